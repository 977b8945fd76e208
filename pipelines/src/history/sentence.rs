//! States in words since when the data of a source are complete, and what was lost before.

use super::numbers::SourceNumbers;
use daq_core::units::{counted, format_datetime};
use std::collections::BTreeMap;

/// Time in seconds after a loss during which the source counts as losing data.
pub(super) const RECENT: u64 = 10;
const DAY: u64 = 86_400;

/// Since when the data of a source are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Completeness {
    /// Start of the complete data, in seconds since 1970; `None` before the first packet.
    pub(super) since: Option<u64>,
    /// Time of the last loss.
    lost_at: Option<u64>,
    /// Time of the last packet.
    packet_at: Option<u64>,
}

impl Completeness {
    /// Adds the changes of a source until the time `now`.
    pub(super) fn add(&mut self, now: u64, change: &SourceNumbers<u64>) {
        if change.has_loss() {
            (self.since, self.lost_at) = (Some(now), Some(now));
        }
        if change.expected > 0 {
            self.since.get_or_insert(now);
            self.packet_at = Some(now);
        }
    }

    /// Whether data was lost in the last [`RECENT`] seconds before the time `now`.
    pub(super) fn is_losing(&self, now: u64) -> bool {
        self.lost_at.is_some_and(|at| now < at + RECENT)
    }
}

/// What a sentence is about.
pub(super) struct Account<'a> {
    /// The current time in seconds since 1970.
    pub(super) now: u64,
    /// What the source counts: `packets` or `frames`.
    pub(super) unit: &'a str,
    pub(super) completeness: Completeness,
    /// Sums over the last [`RECENT`] seconds.
    pub(super) recent: SourceNumbers<u64>,
    /// Sums over the last 24 hours.
    pub(super) day: SourceNumbers<u64>,
    /// Seconds of the last 24 hours without a record, because daq did not run or was killed.
    pub(super) unrecorded: u64,
}

impl Account<'_> {
    pub(super) fn sentence(&self) -> String {
        let Some(since) = self.completeness.since else {
            return "no data yet".to_owned();
        };
        let mut text = if self.completeness.is_losing(self.now) {
            let lost = self.losses(&self.recent);
            format!("losing data: {} in the last {RECENT} s", joined(&lost))
        } else {
            let mut before = self.losses(&self.day);
            if self.unrecorded > 0 {
                before.push(format!("{} without a record", duration(self.unrecorded)));
            }
            let complete = format!("complete since {}", self.time(since));
            match before.as_slice() {
                [] => complete,
                before => format!("{complete}; before that {}", joined(before)),
            }
        };
        if let Some(last) = self.completeness.packet_at
            && self.now >= last + RECENT
        {
            text.push_str(&format!("; no {} since {}", self.unit, self.time(last)));
        }
        text
    }

    /// Returns the losses in `sums` in words. The first one names the unit.
    fn losses(&self, sums: &SourceNumbers<u64>) -> Vec<String> {
        let unit = self.unit.trim_end_matches('s');
        let mut losses: Vec<(u64, String)> = sums
            .lost
            .iter()
            .map(|(cause, count)| (*count, in_words(cause, &sums.blocked)))
            .collect();
        losses.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        if sums.skipped > 0 {
            losses.push((
                sums.skipped,
                "skipped by a jump of their numbers".to_owned(),
            ));
        }
        let mut texts: Vec<String> = losses
            .into_iter()
            .enumerate()
            .map(|(i, (count, what))| match i {
                0 => format!("{} {what}", counted(count, unit)),
                _ => format!("{count} {what}"),
            })
            .collect();
        if texts.is_empty() && sums.incomplete > 0 {
            texts.push(format!("{} incomplete", counted(sums.incomplete, "frame")));
        }
        texts
    }

    /// Formats a time in seconds since 1970, with the date if it is not today.
    fn time(&self, seconds: u64) -> String {
        let text = format_datetime(seconds.saturating_mul(1_000_000_000));
        let (date, time) = (&text[..10], &text[11..19]);
        if seconds / DAY == self.now / DAY {
            format!("{time} UTC")
        } else {
            format!("{date} {time} UTC")
        }
    }
}

/// Formats a number of seconds in words.
pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Describes the packets that were lost for `cause`. `blocked` are the readers that blocked the source's ring.
fn in_words(cause: &str, blocked: &BTreeMap<String, u64>) -> String {
    match cause {
        "wire_gap" => "lost on the wire".to_owned(),
        "kernel_drop" => "dropped by Linux because the receive buffer was full".to_owned(),
        "late" => "too late for their frame".to_owned(),
        "bad_packet" => "damaged".to_owned(),
        "overrun" => "overwritten by the device".to_owned(),
        "expired" => "deleted by the server before they were received".to_owned(),
        "ring_full" if !blocked.is_empty() => {
            let readers: Vec<_> = blocked.keys().map(|name| format!("`{name}`")).collect();
            format!("lost because {} blocked the full ring", joined(&readers))
        }
        "ring_full" => "lost because the ring was full".to_owned(),
        other => format!("lost ({other})"),
    }
}

/// Joins parts of a sentence with commas and `and`.
fn joined(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDNIGHT: u64 = 1_763_942_400;

    fn account(now: u64, completeness: Completeness) -> Account<'static> {
        Account {
            now,
            unit: "packets",
            completeness,
            recent: SourceNumbers::default(),
            day: SourceNumbers::default(),
            unrecorded: 0,
        }
    }

    fn lost(causes: &[(&str, u64)]) -> SourceNumbers<u64> {
        SourceNumbers {
            expected: 100,
            lost: causes
                .iter()
                .map(|(cause, count)| ((*cause).to_owned(), *count))
                .collect(),
            ..SourceNumbers::default()
        }
    }

    #[test]
    fn sentence_states_since_when_data_are_complete() {
        let mut state = Completeness::default();
        assert_eq!(account(MIDNIGHT, state).sentence(), "no data yet");
        state.add(MIDNIGHT, &lost(&[]));
        assert_eq!(
            account(MIDNIGHT + 1, state).sentence(),
            "complete since 00:00:00 UTC"
        );
        state.add(MIDNIGHT + 60, &lost(&[("wire_gap", 41)]));
        let mut losing = account(MIDNIGHT + 61, state);
        losing.recent = lost(&[("wire_gap", 41)]);
        assert_eq!(
            losing.sentence(),
            "losing data: 41 packets lost on the wire in the last 10 s"
        );
        state.add(MIDNIGHT + 80, &lost(&[]));
        let mut after = account(MIDNIGHT + 81, state);
        after.day = lost(&[("wire_gap", 41)]);
        assert_eq!(
            after.sentence(),
            "complete since 00:01:00 UTC; before that 41 packets lost on the wire"
        );
        after.unrecorded = 7;
        assert_eq!(
            after.sentence(),
            "complete since 00:01:00 UTC; before that 41 packets lost on the wire and 7 s without a record"
        );
        assert_eq!(
            account(MIDNIGHT + DAY + 100, state).sentence(),
            "complete since 2025-11-24 00:01:00 UTC; no packets since 2025-11-24 00:01:20 UTC"
        );
    }

    #[test]
    fn every_cause_of_loss_is_described() {
        for cause in daq_core::ledger::Cause::ALL {
            let words = in_words(cause.name(), &BTreeMap::new());
            assert!(!words.starts_with("lost ("), "{words}");
        }
        let mut sums = lost(&[("late", 3), ("ring_full", 12)]);
        sums.blocked = [("disk".to_owned(), 2), ("view".to_owned(), 1)].into();
        sums.skipped = 5;
        assert_eq!(
            account(MIDNIGHT, Completeness::default()).losses(&sums),
            [
                "12 packets lost because `disk` and `view` blocked the full ring",
                "3 too late for their frame",
                "5 skipped by a jump of their numbers"
            ]
        );
        let short = SourceNumbers {
            incomplete: 1,
            ..SourceNumbers::default()
        };
        assert_eq!(
            account(MIDNIGHT, Completeness::default()).losses(&short),
            ["1 frame incomplete"]
        );
    }
}
