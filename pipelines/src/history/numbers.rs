//! The numbers of a source or a ring in a history: as changes, as series in memory, or as columns of an answer.

use daq_core::ledger::{ReaderReport, RingReport, SourceReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The numbers of a source. `T` is a number, or one number per bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceNumbers<T> {
    pub(super) expected: T,
    pub(super) delivered: T,
    pub(super) bytes: T,
    pub(super) rejected: T,
    pub(super) duplicates: T,
    pub(super) skipped: T,
    pub(super) incomplete: T,
    /// Lost packets by cause.
    pub(super) lost: BTreeMap<String, T>,
    /// Frames that the ring of the source refused, by the reader that blocked the ring.
    pub(super) blocked: BTreeMap<String, T>,
}

impl<T> SourceNumbers<T> {
    /// Returns the numbers without the numbers by name.
    pub(super) fn fixed(&self) -> [&T; 7] {
        [
            &self.expected,
            &self.delivered,
            &self.bytes,
            &self.rejected,
            &self.duplicates,
            &self.skipped,
            &self.incomplete,
        ]
    }

    pub(super) const fn fixed_mut(&mut self) -> [&mut T; 7] {
        [
            &mut self.expected,
            &mut self.delivered,
            &mut self.bytes,
            &mut self.rejected,
            &mut self.duplicates,
            &mut self.skipped,
            &mut self.incomplete,
        ]
    }

    pub(super) const fn named(&self) -> [&BTreeMap<String, T>; 2] {
        [&self.lost, &self.blocked]
    }

    pub(super) const fn named_mut(&mut self) -> [&mut BTreeMap<String, T>; 2] {
        [&mut self.lost, &mut self.blocked]
    }

    /// Converts every number. Numbers by name for which `keep` returns false are left out.
    pub(super) fn map<U>(
        &self,
        keep: impl Fn(&T) -> bool,
        mut convert: impl FnMut(&T) -> U,
    ) -> SourceNumbers<U> {
        let [lost, blocked] = self.named().map(|names| {
            let kept = names.iter().filter(|(_, number)| keep(number));
            kept.map(|(name, number)| (name.clone(), convert(number)))
                .collect()
        });
        let [
            expected,
            delivered,
            bytes,
            rejected,
            duplicates,
            skipped,
            incomplete,
        ] = self.fixed().map(convert);
        SourceNumbers {
            expected,
            delivered,
            bytes,
            rejected,
            duplicates,
            skipped,
            incomplete,
            lost,
            blocked,
        }
    }
}

impl SourceNumbers<u64> {
    /// Returns what changed between two reports of a source. `readers` are the two reports of each reader of the source's
    /// ring, by name.
    pub(super) fn between<'a>(
        before: &SourceReport,
        now: &SourceReport,
        readers: impl Iterator<Item = (&'a str, u64, &'a ReaderReport)>,
    ) -> Self {
        let change = |of: fn(&SourceReport) -> u64| of(now).saturating_sub(of(before));
        let lost = now.lost.iter().map(|(cause, count)| {
            let old = before.lost.get(cause).copied().unwrap_or(0);
            ((*cause).to_owned(), count.saturating_sub(old))
        });
        let blocked = readers
            .map(|(name, old, reader)| (name.to_owned(), reader.blocked.saturating_sub(old)));
        Self {
            expected: change(|source| source.expected),
            delivered: change(|source| source.delivered),
            bytes: change(|source| source.bytes),
            rejected: change(|source| source.rejected),
            duplicates: change(|source| source.duplicates),
            skipped: change(|source| source.skipped),
            incomplete: change(|source| source.incomplete),
            lost: lost.filter(|(_, count)| *count > 0).collect(),
            blocked: blocked.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Whether data of the source is missing.
    pub(super) fn has_loss(&self) -> bool {
        !self.lost.is_empty() || self.skipped > 0 || self.incomplete > 0
    }
}

/// The numbers of a ring. `T` is a number, or one number per bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RingNumbers<T> {
    pub(super) published: T,
    pub(super) ring_full: T,
    /// Maximum number of frames that a reader of the ring had not read yet.
    pub(super) fill: T,
}

impl<T> RingNumbers<T> {
    pub(super) fn map<U>(&self, convert: impl FnMut(&T) -> U) -> RingNumbers<U> {
        let [published, ring_full, fill] =
            [&self.published, &self.ring_full, &self.fill].map(convert);
        RingNumbers {
            published,
            ring_full,
            fill,
        }
    }

    pub(super) const fn values_mut(&mut self) -> [&mut T; 3] {
        [&mut self.published, &mut self.ring_full, &mut self.fill]
    }
}

impl RingNumbers<u64> {
    /// Returns what changed between two reports of a ring. `pending` is the lag of the slowest reader.
    pub(super) fn between(before: &RingReport, now: &RingReport, pending: u64) -> Self {
        Self {
            published: now.published.saturating_sub(before.published),
            ring_full: now.ring_full.saturating_sub(before.ring_full),
            fill: pending.min(now.capacity),
        }
    }
}
