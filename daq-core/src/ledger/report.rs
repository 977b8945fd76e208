//! A snapshot of all ledgers, as shown by `--report json`, `/status`, `/metrics` and the live display.

use super::equation::Equation;
use super::stored::Balanced;
use super::{
    ClientsReport, CopyReport, CountsReport, DeviceReport, EngineReport, KernelReport, MetricText,
    PartReport, ReaderReport, RingReport, SinkReport, SourceReport,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A snapshot of all ledgers of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Source ledgers, by name of the source.
    pub sources: BTreeMap<String, SourceReport>,
    /// Ring ledgers, by name of the ring.
    pub rings: BTreeMap<String, RingReport>,
    /// Reader ledgers, by name of the kernel, sink, copy or process that reads.
    pub readers: BTreeMap<String, ReaderReport>,
    /// Ledgers of readers in other processes, by name of the ring; only rings that had such readers.
    pub clients: BTreeMap<String, ClientsReport>,
    /// Copy ledgers, by name of the ring that the copy fills.
    pub copies: BTreeMap<String, CopyReport>,
    /// Kernel ledgers, by name of the kernel.
    pub kernels: BTreeMap<String, KernelReport>,
    /// Sink ledgers, by name of the sink.
    pub sinks: BTreeMap<String, SinkReport>,
    /// Seconds since the start of the pipeline.
    pub seconds: f64,
}

/// A ledger equation that does not hold. This is always a bug in daq, never a property of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the ledger.
    pub ledger: String,
    /// The equation with its numbers.
    pub equation: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ledger, self.equation)
    }
}

/// A table of a report: the components of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name of the table in JSON, such as `sources`.
    pub name: &'static str,
    /// What a component of the table is called, such as `source`.
    pub component: &'static str,
    /// The equations that every component keeps.
    pub equations: &'static [Equation],
    /// The names of the numbers of a component in JSON.
    pub numbers: Vec<String>,
}

impl Table {
    fn of<R: Balanced + Default + Serialize>(name: &'static str, component: &'static str) -> Self {
        let empty = serde_json::to_value(R::default()).unwrap_or_default();
        let fields = empty.as_object().into_iter().flatten();
        let numbers = fields.filter(|(_, value)| value.is_u64());
        Self {
            name,
            component,
            equations: R::EQUATIONS,
            numbers: numbers.map(|(name, _)| name.clone()).collect(),
        }
    }
}

impl Report {
    /// Returns the tables of a report, from the sources to the sinks.
    pub fn tables() -> [Table; 7] {
        [
            Table::of::<SourceReport>("sources", "source"),
            Table::of::<RingReport>("rings", "ring"),
            Table::of::<ReaderReport>("readers", "reader"),
            Table::of::<ClientsReport>("clients", "clients of"),
            Table::of::<CopyReport>("copies", "copy to"),
            Table::of::<KernelReport>("kernels", "kernel"),
            Table::of::<SinkReport>("sinks", "sink"),
        ]
    }

    /// Returns the descriptions of the metrics that every component of a kind has. Counters of particular components
    /// ([`CountSet`](super::CountSet)) can have further metrics.
    pub fn metrics() -> Vec<&'static MetricText> {
        let mut all: Vec<&'static MetricText> = Vec::new();
        all.extend(SourceReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(PartReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(EngineReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(RingReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(ReaderReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(ClientsReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(CopyReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(KernelReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(DeviceReport::METRICS.iter().map(|metric| &metric.text));
        all.extend(SinkReport::METRICS.iter().map(|metric| &metric.text));
        all
    }

    /// Returns every equation that does not hold.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        check("source", &self.sources, &mut found);
        for source in self.sources.values() {
            check("part", &source.parts, &mut found);
        }
        let sources = self.sources.iter();
        check_counts(
            "source",
            sources.map(|(name, s)| (name, &s.counts)),
            &mut found,
        );
        let sinks = self.sinks.iter();
        check_counts("sink", sinks.map(|(name, s)| (name, &s.counts)), &mut found);
        check("ring", &self.rings, &mut found);
        check("reader", &self.readers, &mut found);
        check("clients of", &self.clients, &mut found);
        check("copy to", &self.copies, &mut found);
        check("kernel", &self.kernels, &mut found);
        check("sink", &self.sinks, &mut found);
        found
    }
}

fn check<R: Balanced>(component: &str, reports: &BTreeMap<String, R>, found: &mut Vec<Violation>) {
    for (name, report) in reports {
        for (equation, terms) in R::EQUATIONS.iter().zip(report.terms()) {
            found.extend(violation(component, name, equation, terms));
        }
    }
}

/// Checks the equations of counters that only some components have.
fn check_counts<'a>(
    component: &str,
    reports: impl Iterator<Item = (&'a String, &'a CountsReport)>,
    found: &mut Vec<Violation>,
) {
    for (name, report) in reports {
        for (equation, terms) in report.terms() {
            found.extend(violation(component, name, equation, terms));
        }
    }
}

/// Returns the violation if the terms of an equation do not add up.
fn violation(
    component: &str,
    name: &str,
    equation: &Equation,
    (left, right): (u64, Vec<u64>),
) -> Option<Violation> {
    (left != right.iter().sum::<u64>()).then(|| Violation {
        ledger: format!("{component} {name}"),
        equation: format!("{equation}: {left} is not the sum of {right:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_ledger_equations_are_named() {
        let mut report = Report::default();
        let source = SourceReport {
            expected: 3,
            delivered: 1,
            pending: 1,
            ..SourceReport::default()
        };
        report.sources.insert("adc".to_owned(), source);
        let found = report.violations();
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("source adc"), "{}", found[0]);
        report
            .sources
            .get_mut("adc")
            .unwrap()
            .lost
            .insert("wire_gap", 1);
        assert_eq!(report.violations(), []);
    }
}
