//! Text descriptions of losses. Only this module decides whether a report may contain "no loss".

use super::{LastRun, Report, SourceLedger, SourceReport};
use crate::units::counted;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of parts that the text names.
const MAX_PARTS: usize = 3;

/// A count that is reported in addition to the loss, with an optional noun and a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Other {
    count: u64,
    noun: Option<&'static str>,
    what: &'static str,
}

/// The numbers of lost, rejected and duplicate packets of a source or a whole pipeline. The text begins with `no data
/// yet`, `no loss` or `lost`.
///
/// ```
/// use daq_core::ledger::SourceReport;
/// let mut source = SourceReport { expected: 4, delivered: 4, ..SourceReport::default() };
/// assert_eq!(source.loss().to_string(), "no loss in 4 packets");
/// source.duplicates = 4;
/// assert_eq!(source.loss().to_string(), "lost 0 of 4 packets, 4 duplicates");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    unit: &'static str,
    expected: u64,
    causes: BTreeMap<&'static str, u64>,
    /// Counts that are not part of the sum of the causes, in the order in which the text lists them.
    others: Vec<Other>,
    /// Sources without data, if other sources have data.
    silent: Vec<String>,
    /// The parts of a source that lost packets, most first.
    parts: Vec<LossyPart>,
}

/// A part of frames that lost packets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LossyPart {
    name: String,
    lost: u64,
    /// Whether none of its packets arrived.
    is_silent: bool,
}

impl fmt::Display for LossyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {}: ", self.name)?;
        if self.is_silent {
            f.write_str("all")
        } else {
            self.lost.fmt(f)
        }
    }
}

impl Loss {
    /// Whether nothing has arrived: no data and no rejected packets.
    pub(crate) fn has_no_data(&self) -> bool {
        self.expected == 0 && self.is_free_of_loss()
    }

    /// Whether data arrived from every source and nothing was lost, rejected, duplicated or skipped.
    pub fn is_none(&self) -> bool {
        self.expected > 0 && self.silent.is_empty() && self.is_free_of_loss()
    }

    fn is_free_of_loss(&self) -> bool {
        self.causes.is_empty() && self.others.is_empty()
    }

    fn of<'a>(sources: &(impl Iterator<Item = &'a SourceReport> + Clone)) -> Self {
        let sum = |count: fn(&SourceReport) -> u64| {
            sources.clone().map(count).fold(0, u64::saturating_add)
        };
        let mut causes = BTreeMap::new();
        for (cause, count) in sources.clone().flat_map(|source| &source.lost) {
            *causes.entry(*cause).or_insert(0) += count;
        }
        let mut units = sources.clone().map(SourceReport::unit);
        let unit = units.next().unwrap_or("packets");
        let is_uniform = units.all(|other| other == unit);
        let mut loss = Self {
            unit: if is_uniform { unit } else { "packets" },
            expected: sum(|source| source.expected),
            causes,
            ..Self::default()
        };
        loss.add(sum(|source| source.duplicates), Some("duplicate"), "");
        loss.add(sum(|source| source.rejected), None, "rejected");
        loss.add(sum(|source| source.skipped), None, "skipped");
        loss.add_frames(sum(|source| source.incomplete), "incomplete");
        loss
    }

    fn add(&mut self, count: u64, noun: Option<&'static str>, what: &'static str) {
        if count > 0 {
            self.others.push(Other { count, noun, what });
        }
    }

    fn add_frames(&mut self, count: u64, what: &'static str) {
        self.add(count, Some("frame"), what);
    }
}

impl SourceReport {
    /// Returns the loss of this source.
    pub fn loss(&self) -> Loss {
        let lossy = self.parts.iter().filter(|(_, part)| part.lost > 0);
        let mut parts: Vec<_> = lossy
            .map(|(name, part)| LossyPart {
                name: name.clone(),
                lost: part.lost,
                is_silent: part.delivered == 0,
            })
            .collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.lost));
        Loss {
            parts,
            ..Loss::of(&std::iter::once(self))
        }
    }
}

impl Report {
    /// Returns the loss of the whole pipeline: its sources, readers, copies, kernels and sinks.
    pub fn loss(&self) -> Loss {
        let mut loss = Loss::of(&self.sources.values());
        if loss.expected > 0 {
            let silent = self
                .sources
                .iter()
                .filter(|(_, source)| source.expected == 0);
            loss.silent = silent.map(|(name, _)| name.clone()).collect();
        }
        let copies = self.copies.values().map(|copy| copy.failed);
        let failed = copies.chain(self.kernels.values().map(|kernel| kernel.failed));
        loss.add_frames(failed.sum(), "failed");
        loss.add_frames(
            self.readers.values().map(|reader| reader.overrun).sum(),
            "overrun",
        );
        loss.add_frames(
            self.readers
                .values()
                .map(|reader| reader.dropped_incomplete)
                .sum(),
            "dropped as incomplete",
        );
        loss.add_frames(
            self.sinks
                .values()
                .map(|sink| sink.dropped + sink.lost)
                .sum(),
            "not written",
        );
        loss
    }
}

impl LastRun {
    /// Returns the ledgers of the sources at the end of the last run, by name.
    pub fn sources(&self) -> BTreeMap<String, SourceReport> {
        let counters: BTreeMap<_, _> = self.counters.iter().cloned().collect();
        let names = counters
            .keys()
            .filter_map(|name| name.strip_prefix("source.")?.strip_suffix(".expected"));
        names
            .map(|name| {
                let ledger = SourceLedger::from_values(&format!("source.{name}"), |counter| {
                    counters.get(counter).copied().unwrap_or(0)
                });
                let engine = format!("source.{name}.engine.");
                let has_engine = counters.keys().any(|counter| counter.starts_with(&engine));
                let report = SourceReport {
                    engine: has_engine.then(Default::default),
                    ..SourceReport::of(&ledger)
                };
                (name.to_owned(), report)
            })
            .collect()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = counted(self.expected, self.unit.trim_end_matches('s'));
        if self.has_no_data() {
            return f.write_str("no data yet");
        }
        if self.is_free_of_loss() {
            write!(f, "no loss in {expected}")?;
        } else {
            let lost: u64 = self.causes.values().sum();
            write!(f, "lost {lost} of {expected}")?;
        }
        for (i, (cause, count)) in self.causes.iter().enumerate() {
            let before = if i == 0 { " (" } else { ", " };
            write!(f, "{before}{cause} {count}")?;
        }
        if !self.causes.is_empty() {
            for (i, part) in self.parts.iter().take(MAX_PARTS).enumerate() {
                write!(f, "{}{part}", if i == 0 { "; " } else { ", " })?;
            }
            match self.parts.len().saturating_sub(MAX_PARTS) {
                0 => {}
                others => write!(f, ", and {}", counted(others, "other part"))?,
            }
            f.write_str(")")?;
        }
        for Other { count, noun, what } in &self.others {
            let counted = noun.map_or_else(|| count.to_string(), |noun| counted(*count, noun));
            let space = if what.is_empty() { "" } else { " " };
            write!(f, ", {counted}{space}{what}")?;
        }
        for name in &self.silent {
            write!(f, ", no data yet from {name}")?;
        }
        Ok(())
    }
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut loss = serializer.serialize_struct("Loss", 2)?;
        loss.serialize_field("text", &self.to_string())?;
        let is_loss = !self.is_none() && !self.has_no_data();
        loss.serialize_field("is_loss", &is_loss)?;
        loss.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Cause, CounterFile, KernelReport, PartReport, ReaderReport, SinkReport};

    fn good() -> SourceReport {
        SourceReport {
            expected: 10,
            delivered: 10,
            ..SourceReport::default()
        }
    }

    #[test]
    fn no_loss_is_printed_only_without_lost_rejected_or_duplicate() {
        assert_eq!(good().loss().to_string(), "no loss in 10 packets");
        assert!(good().loss().is_none());
        type Change = fn(&mut SourceReport);
        let cases: [(Change, &str); 8] = [
            (
                |s| s.lost = [("late", 1)].into(),
                "lost 1 of 10 packets (late 1)",
            ),
            (|s| s.duplicates = 10, "lost 0 of 10 packets, 10 duplicates"),
            (|s| s.rejected = 7, "lost 0 of 10 packets, 7 rejected"),
            (|s| s.skipped = 3, "lost 0 of 10 packets, 3 skipped"),
            (
                |s| s.incomplete = 2,
                "lost 0 of 10 packets, 2 frames incomplete",
            ),
            (
                |s| s.incomplete = 1,
                "lost 0 of 10 packets, 1 frame incomplete",
            ),
            (|s| s.duplicates = 1, "lost 0 of 10 packets, 1 duplicate"),
            (
                |s| (s.expected, s.rejected) = (1, 1),
                "lost 0 of 1 packet, 1 rejected",
            ),
        ];
        for (change, text) in cases {
            let mut source = good();
            change(&mut source);
            assert_eq!(source.loss().to_string(), text);
            assert!(!source.loss().is_none() && !source.loss().has_no_data());
        }
    }

    #[test]
    fn parts_with_loss_are_named() {
        let part = |delivered, lost| PartReport {
            expected: delivered + lost,
            delivered,
            lost,
            ..PartReport::default()
        };
        let mut source = SourceReport {
            lost: [("wire_gap", 12)].into(),
            parts: [("0", part(10, 0)), ("1", part(8, 2)), ("2", part(0, 10))]
                .map(|(name, part)| (name.to_owned(), part))
                .into(),
            ..good()
        };
        let text = "lost 12 of 10 packets (wire_gap 12; part 2: all, part 1: 2)";
        assert_eq!(source.loss().to_string(), text);
        for name in 3..9 {
            source.parts.insert(name.to_string(), part(9, 1));
        }
        let text = source.loss().to_string();
        assert!(
            text.ends_with("part 1: 2, part 3: 1, and 5 other parts)"),
            "{text}"
        );
    }

    #[test]
    fn source_without_packets_is_shown_as_no_data() {
        let mut source = SourceReport::default();
        assert_eq!(source.loss().to_string(), "no data yet");
        assert!(source.loss().has_no_data() && !source.loss().is_none());
        source.rejected = 14_660;
        let text = source.loss().to_string();
        assert_eq!(text, "lost 0 of 0 packets, 14660 rejected");
        assert_eq!(Report::default().loss().to_string(), "no data yet");
    }

    #[test]
    fn pipeline_summary_adds_sources_and_names_those_without_data() {
        let mut report = Report::default();
        report.sources.insert("adc".to_owned(), good());
        report
            .sources
            .insert("ref".to_owned(), SourceReport::default());
        let text = report.loss().to_string();
        assert_eq!(text, "no loss in 10 packets, no data yet from ref");
        assert!(!report.loss().is_none());
        report.sources.insert("ref".to_owned(), good());
        assert_eq!(report.loss().to_string(), "no loss in 20 packets");
        let reader = ReaderReport {
            overrun: 5,
            ..ReaderReport::default()
        };
        report.readers.insert("view".to_owned(), reader);
        let sink = SinkReport {
            dropped: 2,
            lost: 4,
            ..SinkReport::default()
        };
        report.sinks.insert("disk".to_owned(), sink);
        let kernel = KernelReport {
            failed: 7,
            ..KernelReport::default()
        };
        report.kernels.insert("beam".to_owned(), kernel);
        assert_eq!(
            report.loss().to_string(),
            "lost 0 of 20 packets, 7 frames failed, 5 frames overrun, 6 frames not written"
        );
    }

    #[test]
    fn last_run_ledgers_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("adc.ledger");
        let counter_file = CounterFile::in_file(&path, 7, 1).unwrap();
        let ledger = SourceLedger::on(&counter_file, "source.north.adc").unwrap();
        ledger.expected.add(9);
        ledger.delivered.add(6);
        ledger.lost(Cause::Late).add(3);
        ledger.duplicates.add(4);
        let sources = LastRun::read(&path).unwrap().sources();
        assert_eq!(sources.len(), 1);
        assert_eq!(sources["north.adc"], SourceReport::of(&ledger));
        assert_eq!(
            sources["north.adc"].loss().to_string(),
            "lost 3 of 9 packets (late 3), 4 duplicates"
        );
    }
}
