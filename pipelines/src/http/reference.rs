//! The reference page of the metrics, generated from the table.

use super::table::metrics;
use daq_core::ledger::{Cause, MetricText, Report};
use std::fmt::Write as _;

/// Returns the reference page in Markdown.
pub fn reference() -> String {
    let causes = Cause::ALL.map(|cause| format!("`{cause}`"));
    let tables = Report::tables();
    let equations = tables.iter().flat_map(|table| {
        // The component of a copy is `copy to`, and of clients `clients of`, which the name of the ring follows in other
        // texts.
        let component = table.component.split(' ').next().unwrap_or_default();
        let equations = table.equations.iter();
        equations.map(move |equation| format!("{component:<9}{equation}\n"))
    });
    let of_sinks = daq_sinks::COUNTS.iter().flat_map(|set| set.equations);
    let of_sinks = of_sinks.map(|equation| format!("{:<9}{equation}\n", "sink"));
    let mut page = format!(
        "# Metrics\n\n\
         The metrics of `/metrics`, in the Prometheus text format. This page is generated from the source code.\n\n\
         Names of counters end in `_total`. Counters start at 0 with the process. Units are bytes, seconds, packets, \
         frames and slots. The labels `source`, `ring`, `reader`, `from`, `to`, `kernel` and `sink` are names from the configuration. \
         A reader is named after its kernel or sink. For a copy between host memory and a GPU, `from` and `to` are the rings, \
         the reader is named `copy to RING`, and `RING@host` is the host ring that daq adds to RING in GPU memory. `cause` is one of {}. A histogram has the series `NAME_bucket` with the \
         upper bound `le` of each size class, `NAME_sum` and `NAME_count`.\n\n\
         These equations hold in every scrape, for each source, ring, reader, copy and kernel. The names are those of \
         the JSON report; `lost` is the sum over all causes:\n\n\
         ```text\n{}```\n\n\
         At the end of a run, this equation holds for each sink and its reader; frames in `lost` are also counted in `frames`:\n\n\
         ```text\n\
         sink     frames + dropped = read + discarded\n\
         ```\n\n",
        causes.join(", "),
        equations.chain(of_sinks).collect::<String>(),
    );
    let rows = metrics().into_iter().map(|metric| {
        let labels: Vec<_> = metric.labels().map(|label| format!("`{label}`")).collect();
        format!(
            "| [`{0}`](#{0}) | {1} | {2} |\n",
            metric.name,
            metric.kind.name(),
            labels.join(", ")
        )
    });
    page.push_str("| name | kind | labels |\n|---|---|---|\n");
    page.extend(rows);
    for metric in metrics() {
        let MetricText {
            name,
            help,
            meaning,
            cause,
            remedy,
            ..
        } = metric;
        // Writing to a `String` cannot fail.
        let _ = write!(page, "\n## {name}\n\n{help}\n\n");
        for (title, text) in [
            ("Meaning", meaning),
            ("Likely cause", cause),
            ("Remedy", remedy),
        ] {
            if !text.is_empty() {
                let _ = writeln!(page, "- {title}: {text}");
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Compares the committed page with the generated one; `DAQ_UPDATE=1` rewrites it.
    #[test]
    fn metrics_reference_page_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference/metrics.md");
        let page = reference();
        if std::env::var_os("DAQ_UPDATE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == page,
            "docs/src/reference/metrics.md differs from the table of metrics; run this test once with DAQ_UPDATE=1"
        );
    }
}
