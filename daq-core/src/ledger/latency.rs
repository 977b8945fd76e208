//! Latencies: how long frames take from one stage to the next.
//!
//! ```text
//!   first packet ────▶ published in a ring ────▶ used by a reader (kernel, copy or sink)
//!           RingReport::latency    ReaderReport::latency
//! ```
//! The producer of a ring records the time of a publication, readers compare it with the time at which they have
//! finished the frame. At low rates every burst is recorded, at high rates about one per millisecond. Between two
//! recorded bursts, neither side reads a clock or writes to shared memory.

use super::CounterFileError;
use super::metric::{Put, Sample, Sampled};
use super::stored::{Make, Stored, Total};
use crossbeam_utils::CachePadded;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Upper bounds of the classes in nanoseconds, from 1 us to 10 s; the last class has no upper bound.
const BOUNDS: [u64; 22] = bounds();
/// Number of classes.
const CLASSES: usize = BOUNDS.len() + 1;

const fn bounds() -> [u64; 22] {
    let (mut bounds, mut i, mut decade) = ([0; 22], 0, 1000);
    while i < bounds.len() {
        bounds[i] = decade * [1, 2, 5][i % 3];
        if i % 3 == 2 {
            decade *= 10;
        }
        i += 1;
    }
    bounds
}

/// Numbers of frames by latency, which one thread counts and any thread reads. They are not part of a counter file.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Classes>);

#[derive(Debug, Default)]
struct Classes {
    counts: [AtomicU64; CLASSES],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Latency {
    /// Counts a frame with a latency of `ns` nanoseconds.
    pub fn add(&self, ns: u64) {
        let class = BOUNDS.partition_point(|bound| *bound < ns);
        self.0.counts[class].fetch_add(1, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.0.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Reads the numbers of frames.
    pub fn report(&self) -> LatencyReport {
        self.read()
    }
}

impl Stored for Latency {
    type Value = LatencyReport;

    fn create(_prefix: &str, _field: &str, _make: Make<'_>) -> Result<Self, CounterFileError> {
        Ok(Self::default())
    }

    fn read(&self) -> LatencyReport {
        LatencyReport {
            counts: self.0.counts.each_ref().map(|n| n.load(Ordering::Relaxed)),
            sum_ns: self.0.sum_ns.load(Ordering::Relaxed),
            max_ns: self.0.max_ns.load(Ordering::Relaxed),
            recent: None,
        }
    }
}

/// A snapshot of latencies. In JSON, an object with the number of measured frames (`count`), and `p50_us`, `p99_us` and
/// `max_us` in microseconds. `recent_count`, `recent_p50_us` and `recent_p99_us` are those of the last seconds, if frames
/// were measured then. Quantiles are interpolated between the bounds of classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyReport {
    counts: LatencyCounts,
    sum_ns: u64,
    max_ns: u64,
    recent: Option<LatencyCounts>,
}

/// Number of frames per class of latency.
pub type LatencyCounts = [u64; CLASSES];

impl LatencyReport {
    /// Returns the number of frames per class since the start of the run.
    pub const fn counts(&self) -> &LatencyCounts {
        &self.counts
    }

    /// Returns the number of measured frames.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether no frame was measured.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Sets the counts before the last seconds, so that `recent` can be reported.
    pub fn set_recent(&mut self, before: &LatencyCounts) {
        let mut recent = self.counts;
        for (count, before) in recent.iter_mut().zip(before) {
            *count = count.saturating_sub(*before);
        }
        self.recent = Some(recent);
    }

    /// Returns the latency that the share `quantile` of all frames does not exceed; `None` without frames.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        self.quantile_of(&self.counts, quantile)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the result is between 0 and the largest latency"
    )]
    fn quantile_of(&self, counts: &LatencyCounts, quantile: f64) -> Option<Duration> {
        let rank = quantile * counts.iter().sum::<u64>() as f64;
        let (mut below, mut lower) = (0.0, 0);
        for (i, count) in counts.iter().enumerate() {
            let upper = BOUNDS.get(i).map_or(self.max_ns, |b| self.max_ns.min(*b));
            let upper = upper.max(lower);
            if *count > 0 && below + *count as f64 >= rank {
                let share = ((rank - below) / *count as f64).clamp(0.0, 1.0);
                let ns = lower as f64 + share * (upper - lower) as f64;
                return Some(Duration::from_nanos(ns as u64));
            }
            below += *count as f64;
            lower = upper;
        }
        None
    }
}

impl Serialize for LatencyReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let us = |counts, quantile| {
            let duration = self.quantile_of(counts, quantile);
            duration.unwrap_or_default().as_nanos() as f64 / 1e3
        };
        let mut latency = serializer.serialize_struct("Latency", 7)?;
        latency.serialize_field("count", &self.count())?;
        latency.serialize_field("p50_us", &us(&self.counts, 0.5))?;
        latency.serialize_field("p99_us", &us(&self.counts, 0.99))?;
        latency.serialize_field("max_us", &(self.max_ns as f64 / 1e3))?;
        if let Some(recent) = &self.recent
            && recent.iter().any(|count| *count > 0)
        {
            latency.serialize_field("recent_count", &recent.iter().sum::<u64>())?;
            latency.serialize_field("recent_p50_us", &us(recent, 0.5))?;
            latency.serialize_field("recent_p99_us", &us(recent, 0.99))?;
        }
        latency.end()
    }
}

impl Sampled for LatencyReport {
    fn sample(&self, put: Put<'_>) {
        if !self.is_empty() {
            put(Sample::Histogram {
                bounds: &BOUNDS,
                counts: &self.counts,
                count: self.count(),
                sum: self.sum_ns,
                divisor: 1e9,
            });
        }
    }
}

/// Latencies are no counts of frames, so they are in no equation and in no list of counters.
impl Total for LatencyReport {
    fn total(&self) -> u64 {
        0
    }
}

/// Number of publish times that are kept: those of at least one second, because a reader with private copies of frames can
/// be slower than the ring.
const KEPT: usize = 1024;
/// The interval between publish times is adapted so that their distance is between these bounds, in nanoseconds.
const MIN_DISTANCE: u64 = 500_000;
const MAX_DISTANCE: u64 = 2_000_000;
/// Maximum number of frames between two publish times.
const MAX_INTERVAL: u64 = 1 << 32;

/// When frames of a ring were published. The producer records, any number of readers compare.
#[derive(Clone, Debug, Default)]
pub struct PublishTimes(Arc<CachePadded<Times>>);

#[derive(Debug)]
struct Times {
    /// The next publication that reaches this number of frames is recorded.
    due: AtomicU64,
    /// Number of frames between recorded publications.
    interval: AtomicU64,
    /// Number of recorded publications.
    recorded: AtomicU64,
    /// For recorded publication `k`, at index `k % KEPT`: the number of its first frame, and the time.
    entries: [[AtomicU64; 2]; KEPT],
}

impl Default for Times {
    fn default() -> Self {
        Self {
            due: AtomicU64::new(0),
            interval: AtomicU64::new(1),
            recorded: AtomicU64::new(0),
            entries: [const { [const { AtomicU64::new(0) }; 2] }; KEPT],
        }
    }
}

/// Returns the time since the first call in nanoseconds.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder is below KEPT"
)]
const fn index(k: u64) -> usize {
    (k % KEPT as u64) as usize
}

impl PublishTimes {
    /// Whether a publication must be recorded after which `published` frames are published.
    #[inline]
    pub(crate) fn is_due(&self, published: u64) -> bool {
        // Times mean nothing in model checking.
        !cfg!(loom) && published >= self.0.due.load(Ordering::Relaxed)
    }

    /// Records that the frames `first..end` of a ring of `slots` slots are published now. Only the producer calls this,
    /// before it publishes the frames.
    #[cold]
    pub(crate) fn record(&self, first: u64, end: u64, slots: u64) {
        let times = &*self.0;
        let (now, k) = (now(), times.recorded.load(Ordering::Relaxed));
        let last = match k {
            0 => 0,
            _ => times.entries[index(k - 1)][1].load(Ordering::Relaxed),
        };
        let mut interval = times.interval.load(Ordering::Relaxed);
        match now.saturating_sub(last) {
            0..MIN_DISTANCE => interval *= 2,
            MAX_DISTANCE.. => interval /= 2,
            _ => {}
        }
        // A frame can wait until all slots are filled. Its time must be kept until then.
        let min = slots.div_ceil(KEPT as u64 - 4).max(1);
        interval = interval.clamp(min, MAX_INTERVAL);
        times.interval.store(interval, Ordering::Relaxed);
        for (word, value) in times.entries[index(k)].iter().zip([first, now]) {
            word.store(value, Ordering::Release);
        }
        times.recorded.store(k + 1, Ordering::Release);
        times.due.store(end + interval, Ordering::Relaxed);
    }

    /// Requests that the next publication is recorded, because the rate may have become lower. Any thread may call this.
    pub fn refresh(&self) {
        self.0.due.store(0, Ordering::Relaxed);
    }

    /// Returns the number of recorded publications.
    pub(crate) fn recorded(&self) -> u64 {
        self.0.recorded.load(Ordering::Acquire)
    }

    /// Passes over all publications from publication `next` on whose first frame is before frame `end`, and counts the
    /// time since then in `latency`, if it is given.
    #[inline]
    pub(crate) fn pass(&self, next: &mut u64, end: u64, latency: Option<&Latency>) {
        let recorded = self.recorded();
        if *next < recorded {
            self.compare(recorded, next, end, latency);
        }
    }

    #[cold]
    fn compare(&self, recorded: u64, next: &mut u64, end: u64, latency: Option<&Latency>) {
        let mut time = None;
        *next = (*next).max(recorded.saturating_sub(KEPT as u64));
        while *next < recorded {
            let entry = &self.0.entries[index(*next)];
            let [first, at] = entry.each_ref().map(|word| word.load(Ordering::Acquire));
            // The producer first announces publication k and then overwrites publication k - KEPT. The loads above are
            // ordered before this load.
            let is_kept = self.recorded() < *next + KEPT as u64;
            if is_kept && first >= end {
                return;
            }
            if let Some(latency) = latency.filter(|_| is_kept) {
                let time = *time.get_or_insert_with(now);
                latency.add(time.saturating_sub(at));
            }
            *next += 1;
        }
    }
}

impl Stored for PublishTimes {
    type Value = ();

    fn create(_prefix: &str, _field: &str, _make: Make<'_>) -> Result<Self, CounterFileError> {
        Ok(Self::default())
    }

    fn read(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_1_2_5_per_decade() {
        assert_eq!(BOUNDS[..4], [1000, 2000, 5000, 10_000]);
        assert_eq!(BOUNDS[21], 10_000_000_000);
    }

    #[test]
    fn quantiles_are_interpolated_and_bounded_by_maximum() {
        let latency = Latency::default();
        assert_eq!(latency.read().quantile(0.5), None);
        for _ in 0..98 {
            latency.add(1500);
        }
        latency.add(30_000);
        latency.add(12_000_000_000);
        let report = latency.read();
        let us = |quantile| report.quantile(quantile).unwrap().as_nanos() / 1000;
        assert_eq!((report.count(), us(0.49)), (100, 1));
        assert_eq!((us(0.985), us(1.0)), (35, 12_000_000));
        let mut recent = report.clone();
        recent.set_recent(report.counts());
        let json = serde_json::to_value(&recent).unwrap();
        assert_eq!(json["max_us"], 12e6);
        assert!(json["p99_us"].is_f64() && json.get("recent_count").is_none());
        recent.set_recent(&LatencyCounts::default());
        let json = serde_json::to_value(&recent).unwrap();
        assert_eq!(
            (&json["recent_count"], &json["recent_p50_us"]),
            (&json["count"], &json["p50_us"])
        );
        // A single frame has a known latency at most.
        let one = Latency::default();
        one.add(1500);
        assert_eq!(one.read().quantile(1.0), Some(Duration::from_nanos(1500)));
    }

    #[test]
    fn reader_counts_only_frames_that_it_has_finished() {
        let (times, latency) = (PublishTimes::default(), Latency::default());
        let mut next = times.recorded();
        assert!(times.is_due(1));
        times.record(0, 1, 8);
        times.record(1, 4, 8);
        times.pass(&mut next, 0, Some(&latency));
        assert_eq!((next, latency.read().count()), (0, 0));
        times.pass(&mut next, 1, Some(&latency));
        assert_eq!((next, latency.read().count()), (1, 1));
        times.pass(&mut next, 2, None);
        assert_eq!((next, latency.read().count()), (2, 1));
        // Frames whose time is no longer kept are not counted.
        let (end, kept) = (3 * KEPT as u64, KEPT as u64);
        for frame in 4..end {
            times.record(frame, frame + 1, 8);
        }
        times.pass(&mut next, end, Some(&latency));
        assert_eq!(next, end - 2);
        // The oldest of them may be overwritten at any moment.
        assert_eq!(latency.read().count(), 1 + kept - 1);
    }

    #[test]
    fn fast_producer_records_few_times_until_refreshed() {
        let times = PublishTimes::default();
        let recorded = (1..=100_000_u64).filter(|published| {
            let is_due = times.is_due(*published);
            if is_due {
                times.record(published - 1, *published, 8);
            }
            is_due
        });
        // Without adaptation, all publications would be recorded.
        assert!(recorded.count() < 50_000);
        times.0.due.store(u64::MAX, Ordering::Relaxed);
        assert!(!times.is_due(1));
        times.refresh();
        assert!(times.is_due(1));
    }
}
