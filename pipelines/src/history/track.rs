//! The numbers of all sources and rings in the last buckets of time.

use super::numbers::{RingNumbers, SourceNumbers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Maximum number of causes, and of blocking readers, that are recorded for one source.
const MAX_NAMES: usize = 64;

/// One number per bucket, at index `bucket % len`.
#[derive(Clone, Debug)]
pub(super) struct Series(Box<[u64]>);

impl Series {
    fn new(len: usize) -> Self {
        Self(vec![0; len].into())
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|n| *n == 0)
    }

    fn add(&mut self, slot: usize, n: u64) {
        self.0[slot] = self.0[slot].saturating_add(n);
    }

    fn raise(&mut self, slot: usize, n: u64) {
        self.0[slot] = self.0[slot].max(n);
    }
}

/// One number per bucket, oldest first; `None` while daq did not run.
pub(super) type Column = Vec<Option<u64>>;

/// Consecutive buckets of all components.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Columns {
    /// Seconds per bucket.
    pub(super) step: u64,
    /// Start of the first bucket, in seconds since 1970.
    pub(super) start: u64,
    pub(super) sources: BTreeMap<String, SourceNumbers<Column>>,
    pub(super) rings: BTreeMap<String, RingNumbers<Column>>,
}

/// The numbers of all components in the last buckets. The newest bucket is in progress.
#[derive(Clone, Debug)]
pub(super) struct Track {
    /// Seconds per bucket.
    step: u64,
    /// Number of the newest bucket: seconds since 1970 divided by `step`.
    newest: u64,
    /// Whether daq ran during each bucket.
    known: Box<[bool]>,
    sources: BTreeMap<String, SourceNumbers<Series>>,
    rings: BTreeMap<String, RingNumbers<Series>>,
}

impl Track {
    /// Creates a track of `complete` complete buckets of `step` seconds and the bucket that contains the time `now`.
    pub(super) fn new<'a>(
        step: u64,
        complete: usize,
        now: u64,
        sources: impl Iterator<Item = &'a str>,
        rings: impl Iterator<Item = &'a str>,
    ) -> Self {
        let len = complete + 1;
        let series = || Series::new(len);
        let source = || SourceNumbers::<()>::default().map(|()| series());
        let ring = || RingNumbers::<()>::default().map(|()| series());
        let mut track = Self {
            step,
            newest: now / step,
            known: vec![false; len].into(),
            sources: sources.map(|name| (name.to_owned(), source())).collect(),
            rings: rings.map(|name| (name.to_owned(), ring())).collect(),
        };
        let slot = track.slot(track.newest);
        track.known[slot] = true;
        track
    }

    fn slot(&self, bucket: u64) -> usize {
        usize::try_from(bucket % self.known.len() as u64).unwrap_or(0)
    }

    /// Returns the numbers of all stored buckets.
    fn stored(&self) -> RangeInclusive<u64> {
        let complete = self.known.len() as u64 - 1;
        self.newest.saturating_sub(complete)..=self.newest
    }

    /// Makes the bucket that contains the time `now` the newest. The buckets in between contain zeros.
    pub(super) fn advance(&mut self, now: u64) {
        let to = now / self.step;
        let len = self.known.len() as u64;
        for bucket in (self.newest + 1).max(to.saturating_sub(len - 1))..=to {
            let slot = self.slot(bucket);
            self.clear(slot);
            self.known[slot] = true;
        }
        self.newest = self.newest.max(to);
    }

    fn clear(&mut self, slot: usize) {
        for source in self.sources.values_mut() {
            for names in source.named_mut() {
                for series in names.values_mut() {
                    series.0[slot] = 0;
                }
            }
            for series in source.fixed_mut() {
                series.0[slot] = 0;
            }
        }
        for ring in self.rings.values_mut() {
            for series in ring.fixed_mut() {
                series.0[slot] = 0;
            }
        }
    }

    /// Adds the changes of a source to the newest bucket.
    pub(super) fn add_source(&mut self, name: &str, change: &SourceNumbers<u64>) {
        self.add_source_at(self.newest, name, change);
    }

    fn add_source_at(&mut self, bucket: u64, name: &str, change: &SourceNumbers<u64>) {
        let (slot, len) = (self.slot(bucket), self.known.len());
        let Some(source) = self.sources.get_mut(name) else {
            return;
        };
        for (series, n) in source.fixed_mut().zip(change.fixed()) {
            series.add(slot, *n);
        }
        for (names, changes) in source.named_mut().zip(change.named()) {
            for (name, n) in changes.iter().filter(|(_, n)| **n > 0) {
                if names.len() >= MAX_NAMES {
                    names.retain(|_, series| !series.is_zero());
                }
                if names.len() < MAX_NAMES || names.contains_key(name) {
                    let series = names.entry(name.clone());
                    series.or_insert_with(|| Series::new(len)).add(slot, *n);
                }
            }
        }
    }

    /// Adds the changes of a ring to the newest bucket.
    pub(super) fn add_ring(&mut self, name: &str, change: &RingNumbers<u64>) {
        self.add_ring_at(self.newest, name, change);
    }

    fn add_ring_at(&mut self, bucket: u64, name: &str, change: &RingNumbers<u64>) {
        let slot = self.slot(bucket);
        if let Some(ring) = self.rings.get_mut(name) {
            ring.published.add(slot, change.published);
            ring.ring_full.add(slot, change.ring_full);
            ring.fill.raise(slot, change.fill);
        }
    }

    /// Returns the sums of a source over the newest `buckets` buckets.
    pub(super) fn sum(&self, source: &str, buckets: u64) -> SourceNumbers<u64> {
        let first = self.newest.saturating_sub(buckets.saturating_sub(1));
        let range = first.max(*self.stored().start())..=self.newest;
        let sum = |series: &Series| {
            let numbers = range.clone().map(|bucket| series.0[self.slot(bucket)]);
            numbers.fold(0, u64::saturating_add)
        };
        let found = self.sources.get(source);
        let mut sums = found.map_or_else(SourceNumbers::default, |source| source.map(sum));
        for names in sums.named_mut() {
            names.retain(|_, n| *n > 0);
        }
        sums
    }

    /// Returns the buckets that begin at or after the time `since`. The bucket in progress is included `with_newest`.
    pub(super) fn columns(&self, since: u64, with_newest: bool) -> Columns {
        let end = self.newest + u64::from(with_newest);
        let first = since.div_ceil(self.step).clamp(*self.stored().start(), end);
        let column = |series: &Series| -> Column {
            let slots = (first..end).map(|bucket| self.slot(bucket));
            slots
                .map(|slot| self.known[slot].then_some(series.0[slot]))
                .collect()
        };
        Columns {
            step: self.step,
            start: first * self.step,
            sources: self
                .sources
                .iter()
                .map(|(name, source)| {
                    let mut columns = source.map(column);
                    for names in columns.named_mut() {
                        names.retain(|_, column| column.iter().any(|n| n.unwrap_or(0) > 0));
                    }
                    (name.clone(), columns)
                })
                .collect(),
            rings: self
                .rings
                .iter()
                .map(|(name, ring)| (name.clone(), ring.map(column)))
                .collect(),
        }
    }

    /// Adds the buckets of an earlier run. Returns why they do not fit into this track.
    pub(super) fn restore(&mut self, saved: &Columns) -> Result<(), &'static str> {
        if saved.step != self.step || !saved.start.is_multiple_of(self.step) {
            return Err("its buckets have another length");
        }
        let first = saved.start / self.step;
        let columns = saved.sources.values().flat_map(|source| {
            let named = source.named().flat_map(BTreeMap::values);
            source.fixed().chain(named)
        });
        let rings = saved.rings.values();
        let rings = rings.flat_map(RingNumbers::fixed);
        let mut lengths = columns.chain(rings).map(Vec::len);
        let len = lengths.next().unwrap_or(0);
        if lengths.any(|other| other != len) || len > self.known.len() {
            return Err("its columns differ in length");
        }
        if first.saturating_add(len as u64) > self.newest + 1 {
            return Err("it is from the future; check the system clock");
        }
        for (i, bucket) in (0..len).zip(first..) {
            if !self.stored().contains(&bucket) {
                continue;
            }
            let mut is_known = false;
            let mut at = |column: &Column| {
                is_known |= column[i].is_some();
                column[i].unwrap_or(0)
            };
            for (name, source) in &saved.sources {
                let change = source.map(&mut at);
                self.add_source_at(bucket, name, &change);
            }
            for (name, ring) in &saved.rings {
                let change = ring.map(&mut at);
                self.add_ring_at(bucket, name, &change);
            }
            let slot = self.slot(bucket);
            self.known[slot] |= is_known;
        }
        Ok(())
    }
}
