//! Ledgers as Prometheus metrics, read when somebody asks and never on the data path.

use super::process::{self, Process};
use super::table::{Kind, METRICS, Read};
use daq_core::ledger::{Cause, Report};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric as Sample, MetricFamily, MetricType};
use prometheus::{Registry, TextEncoder};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A snapshot of all ledgers, taken when called.
pub type ReportFn = Arc<dyn Fn() -> Report + Send + Sync>;

/// The collector behind `/metrics`: one call of the report function a scrape.
pub struct Ledgers {
    report: ReportFn,
    descriptors: Vec<Desc>,
    started: f64,
}

impl Ledgers {
    /// A collector of what `report` gives.
    ///
    /// # Errors
    /// If a name of the table is no metric name, which a test excludes.
    pub fn new(report: ReportFn) -> prometheus::Result<Self> {
        let descriptors = METRICS
            .iter()
            .map(|metric| {
                let labels = metric
                    .labels()
                    .iter()
                    .map(|label| (*label).to_owned())
                    .collect();
                Desc::new(
                    metric.name.to_owned(),
                    metric.help.to_owned(),
                    labels,
                    HashMap::new(),
                )
            })
            .collect::<prometheus::Result<_>>()?;
        Ok(Self {
            report,
            descriptors,
            started: process::now(),
        })
    }

    fn samples(
        &self,
        read: Read,
        labels: &[&str],
        report: &Report,
        process: &Process,
    ) -> Vec<(Vec<LabelPair>, f64)> {
        let alone = |value: f64| vec![(Vec::new(), value)];
        match read {
            Read::Source(of) => each(&report.sources, labels, of),
            Read::Lost => report
                .sources
                .iter()
                .flat_map(|(name, source)| {
                    Cause::ALL.into_iter().map(move |cause| {
                        let lost = source.lost.get(cause.name()).copied().unwrap_or(0);
                        (pairs(labels, &[name, cause.name()]), lost as f64)
                    })
                })
                .collect(),
            Read::Ring(of) => each(&report.rings, labels, of),
            Read::Reader(of) => report
                .readers
                .iter()
                .map(|(name, reader)| (pairs(labels, &[name, &reader.ring]), of(reader) as f64))
                .collect(),
            Read::Kernel(of) => each(&report.kernels, labels, of),
            Read::Sink(of) => each(&report.sinks, labels, of),
            Read::Pipeline(of) => alone(of(report)),
            Read::Build => vec![(pairs(labels, &[env!("CARGO_PKG_VERSION")]), 1.0)],
            Read::Process(of) => alone(of(process)),
            Read::Start => alone(self.started),
        }
    }
}

fn each<T>(
    parts: &BTreeMap<String, T>,
    labels: &[&str],
    of: fn(&T) -> u64,
) -> Vec<(Vec<LabelPair>, f64)> {
    parts
        .iter()
        .map(|(name, part)| (pairs(labels, &[name]), of(part) as f64))
        .collect()
}

fn pairs(names: &[&str], values: &[&str]) -> Vec<LabelPair> {
    names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect()
}

impl Collector for Ledgers {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptors.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (report, process) = ((self.report)(), Process::read());
        METRICS
            .iter()
            .map(|metric| {
                let samples = self
                    .samples(metric.read, metric.labels(), &report, &process)
                    .into_iter();
                let samples = samples.map(|(labels, value)| {
                    let mut sample = Sample::from_label(labels);
                    match metric.kind {
                        Kind::Counter => {
                            let mut counter = Counter::default();
                            counter.set_value(value);
                            sample.set_counter(counter);
                        }
                        Kind::Gauge => {
                            let mut gauge = Gauge::default();
                            gauge.set_value(value);
                            sample.set_gauge(gauge);
                        }
                    }
                    sample
                });
                let mut family = MetricFamily::default();
                family.set_name(metric.name.to_owned());
                family.set_help(metric.help.to_owned());
                family.set_field_type(match metric.kind {
                    Kind::Counter => MetricType::COUNTER,
                    Kind::Gauge => MetricType::GAUGE,
                });
                family.set_metric(samples.collect());
                family
            })
            .collect()
    }
}

/// What `/metrics` answers from.
#[derive(Clone)]
pub struct Exposition {
    registry: Registry,
}

impl Exposition {
    /// A registry of its own, with the ledgers of `report` in it.
    ///
    /// # Errors
    /// If the table of metrics contradicts itself, which a test excludes.
    pub fn new(report: ReportFn) -> prometheus::Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(Ledgers::new(report)?))?;
        Ok(Self { registry })
    }

    /// The registry, for further collectors.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The metrics of this moment in text format 0.0.4. Metrics without any sample (no kernel, say) are left
    /// out.
    ///
    /// # Errors
    /// If a further collector gives what cannot be written.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use daq_core::ledger::{KernelReport, ReaderReport, RingReport, SinkReport, SourceReport};
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// A report in which every number differs and every equation holds.
    pub(in crate::http) fn sample_report() -> Report {
        let mut report = Report {
            seconds: 12.5,
            ..Report::default()
        };
        let source = SourceReport {
            expected: 1000,
            delivered: 900,
            pending: 60,
            lost: [("wire_gap", 37), ("late", 3)].into(),
            bytes: 921_600,
            duplicates: 5,
            rejected: 6,
            control: 7,
            epochs: 2,
            jumped: 8,
        };
        report.sources.insert("adc".to_owned(), source);
        let ring = RingReport {
            capacity: 64,
            high_water: 33,
            made: 110,
            published: 100,
            ring_full: 10,
        };
        report.rings.insert("raw".to_owned(), ring);
        let reader = ReaderReport {
            ring: "raw".to_owned(),
            published: 99,
            read: 70,
            overrun: 9,
            discarded: 4,
            pending: 16,
            held: 11,
        };
        report.readers.insert("spectrum".to_owned(), reader);
        let kernel = KernelReport {
            input: 80,
            consumed: 64,
            withheld: 12,
            failed: 1,
            pending: 3,
            made: 13,
            device: None,
        };
        report.kernels.insert("spectrum".to_owned(), kernel);
        let sink = SinkReport {
            frames: 17,
            bytes: 69_632,
            files: 14,
            full: true,
            dropped: 15,
        };
        report.sinks.insert("di\"sk".to_owned(), sink);
        assert_eq!(report.violations(), []);
        report
    }

    fn text() -> String {
        Exposition::new(Arc::new(sample_report))
            .unwrap()
            .text()
            .unwrap()
    }

    #[test]
    fn the_text_has_exactly_the_table() {
        let text = text();
        for (prefix, expected) in [
            (
                "# HELP ",
                METRICS
                    .iter()
                    .map(|m| format!("{} {}", m.name, m.help))
                    .collect::<BTreeSet<_>>(),
            ),
            (
                "# TYPE ",
                METRICS
                    .iter()
                    .map(|m| format!("{} {}", m.name, m.kind.name()))
                    .collect(),
            ),
        ] {
            let found: BTreeSet<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix(prefix))
                .map(str::to_owned)
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn every_number_of_the_report_is_told() {
        let text = text();
        for line in [
            r#"daq_source_expected_packets_total{source="adc"} 1000"#,
            r#"daq_source_delivered_packets_total{source="adc"} 900"#,
            r#"daq_source_pending_packets{source="adc"} 60"#,
            r#"daq_source_delivered_bytes_total{source="adc"} 921600"#,
            r#"daq_source_duplicate_packets_total{source="adc"} 5"#,
            r#"daq_source_rejected_packets_total{source="adc"} 6"#,
            r#"daq_source_control_packets_total{source="adc"} 7"#,
            r#"daq_source_epochs_total{source="adc"} 2"#,
            r#"daq_source_jumped_packets_total{source="adc"} 8"#,
            r#"daq_ring_capacity_slots{ring="raw"} 64"#,
            r#"daq_ring_high_water_slots{ring="raw"} 33"#,
            r#"daq_ring_made_frames_total{ring="raw"} 110"#,
            r#"daq_ring_published_frames_total{ring="raw"} 100"#,
            r#"daq_ring_full_frames_total{ring="raw"} 10"#,
            r#"daq_reader_published_frames_total{reader="spectrum",ring="raw"} 99"#,
            r#"daq_reader_read_frames_total{reader="spectrum",ring="raw"} 70"#,
            r#"daq_reader_overrun_frames_total{reader="spectrum",ring="raw"} 9"#,
            r#"daq_reader_discarded_frames_total{reader="spectrum",ring="raw"} 4"#,
            r#"daq_reader_pending_frames{reader="spectrum",ring="raw"} 16"#,
            r#"daq_reader_held_frames_total{reader="spectrum",ring="raw"} 11"#,
            r#"daq_kernel_input_frames_total{kernel="spectrum"} 80"#,
            r#"daq_kernel_consumed_frames_total{kernel="spectrum"} 64"#,
            r#"daq_kernel_withheld_frames{kernel="spectrum"} 12"#,
            r#"daq_kernel_failed_frames_total{kernel="spectrum"} 1"#,
            r#"daq_kernel_pending_frames{kernel="spectrum"} 3"#,
            r#"daq_kernel_made_frames_total{kernel="spectrum"} 13"#,
            r#"daq_sink_frames_total{sink="di\"sk"} 17"#,
            r#"daq_sink_bytes_total{sink="di\"sk"} 69632"#,
            r#"daq_sink_files_total{sink="di\"sk"} 14"#,
            r#"daq_sink_full{sink="di\"sk"} 1"#,
            r#"daq_sink_dropped_frames_total{sink="di\"sk"} 15"#,
            "daq_uptime_seconds 12.5",
            "daq_ledger_violations 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn every_cause_is_told_from_the_start() {
        let text = text();
        for cause in Cause::ALL {
            let lost = match cause {
                Cause::WireGap => 37,
                Cause::Late => 3,
                _ => 0,
            };
            let line =
                format!(r#"daq_source_lost_packets_total{{source="adc",cause="{cause}"}} {lost}"#);
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn an_empty_pipeline_tells_of_itself_only() {
        let text = Exposition::new(Arc::new(Report::default))
            .unwrap()
            .text()
            .unwrap();
        assert!(
            !text.contains("daq_source") && text.contains("\ndaq_uptime_seconds 0\n"),
            "{text}"
        );
    }

    #[test]
    fn promtool_finds_nothing() {
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool = match promtool {
            Ok(promtool) => promtool,
            Err(error) => {
                eprintln!("skipped: promtool (Debian: prometheus) does not start: {error}");
                return;
            }
        };
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(text().as_bytes())
            .unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success() && said.is_empty(),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}
