//! Logs a message when a source starts to lose data, and another when the loss has ended.

use daq_core::ledger::{Report, SourceReport};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time without loss after which the loss of a source counts as ended.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// The sources that are losing data, each with the time of its last loss.
#[derive(Debug, Default)]
pub(super) struct LossChanges {
    losing: BTreeMap<String, Instant>,
}

/// A change of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Starts(String),
    Ends(String),
}

impl LossChanges {
    /// Logs the changes between two reports. The report `now` was taken at the time `at`.
    pub(super) fn log(&mut self, now: &Report, before: &Report, at: Instant) {
        for change in self.find(now, before, at) {
            match change {
                Change::Starts(text) => tracing::warn!("{text}"),
                Change::Ends(text) => tracing::info!("{text}"),
            }
        }
    }

    fn find(&mut self, now: &Report, before: &Report, at: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, source) in &now.sources {
            let old = before.sources.get(name).map_or(0, SourceReport::lost_total);
            if source.lost_total() > old {
                if self.losing.insert(name.clone(), at).is_none() {
                    let text = format!("source {name}: losing data, {}", source.loss());
                    changes.push(Change::Starts(text));
                }
            } else if let Some(last) = self.losing.get(name)
                && at.duration_since(*last) >= RECOVERY_TIME
            {
                self.losing.remove(name);
                let seconds = RECOVERY_TIME.as_secs();
                let text = format!(
                    "source {name}: no further loss for {seconds} s, {}",
                    source.loss()
                );
                changes.push(Change::Ends(text));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(late: u64) -> Report {
        let source = SourceReport {
            expected: 100,
            delivered: 100 - late,
            lost: [("late", late)]
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .collect(),
            ..SourceReport::default()
        };
        Report {
            sources: [("adc".to_owned(), source)].into(),
            ..Report::default()
        }
    }

    #[test]
    fn loss_start_and_end_are_logged_once() {
        let mut changes = LossChanges::default();
        let start = Instant::now();
        let mut find = |before, now, second| {
            let at = start + Duration::from_secs(second);
            changes.find(&report(now), &report(before), at)
        };
        assert_eq!(find(0, 0, 1), []);
        let text = "source adc: losing data, lost 2 of 100 packets (late 2)";
        assert_eq!(find(0, 2, 2), [Change::Starts(text.to_owned())]);
        assert_eq!(find(2, 3, 3), []);
        assert_eq!(find(3, 3, 4), []);
        assert_eq!(find(3, 4, 11), [], "the loss continues");
        assert_eq!(find(4, 4, 20), []);
        let text = "source adc: no further loss for 10 s, lost 4 of 100 packets (late 4)";
        assert_eq!(find(4, 4, 21), [Change::Ends(text.to_owned())]);
        assert_eq!(find(4, 4, 60), []);
        assert!(matches!(find(4, 5, 61)[..], [Change::Starts(_)]));
    }
}
