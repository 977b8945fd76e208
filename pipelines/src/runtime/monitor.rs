//! Monitors the sources from a separate thread. Detects silent sources and sources that reject all packets, and records
//! the age of frames and the history of the ledgers.
//!
//! The data threads do not read a clock for this purpose. Instead, the monitor compares the counters of the data
//! threads a few times per second.

use super::Ledgers;
use super::control::{Control, Heartbeat};
use crate::history::{History, Saver};
use daq_core::entry::SilenceHint;
use daq_core::ledger::{LatencyCounts, Rejections, Report, SourceReport};
use daq_core::plan::Plan;
use daq_core::units::counted;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval between comparisons of the counters.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum age of the latencies with which recent latencies are compared.
const RECENT: Duration = Duration::from_secs(10);
/// Time for which all packets must be rejected before a message is logged.
const REJECTION_TIME: Duration = Duration::from_secs(1);
/// Time without packets after which the log contains a hint, also without `silent_after`.
const HINT_AFTER: Duration = Duration::from_secs(10);
/// Minimum number of rejected packets in that time. If the source never accepted a packet, one rejected packet is
/// sufficient.
const MIN_REJECTED: u64 = 10;

/// Times of the last activity of sources and rings, as seen by the monitor.
#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// For each source: arrival time of its last packet with data, in ns since 1970.
    packets: BTreeMap<String, u64>,
    /// For each ring: time at which its newest frame was published.
    frames: BTreeMap<String, Instant>,
    /// For each silent source: the reason why the source is not ready.
    silent: BTreeMap<String, String>,
    latencies: Latencies,
}

/// The latencies of rings and readers some seconds ago.
#[derive(Debug, Default)]
struct Latencies {
    /// Time of `newer`.
    at: Option<Instant>,
    newer: BTreeMap<String, LatencyCounts>,
    /// At least [`RECENT`] and at most twice as old.
    older: BTreeMap<String, LatencyCounts>,
}

impl Latencies {
    /// Keeps the counts of `report`, if those kept last are old enough.
    fn observe(&mut self, report: &Report, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= RECENT;
        if self.at.is_none_or(is_old) {
            self.at = Some(now);
            let rings = report.rings.iter();
            let rings = rings.map(|(name, ring)| (format!("ring {name}"), *ring.latency.counts()));
            let readers = report.readers.iter();
            let readers = readers.map(|(name, reader)| (name.clone(), *reader.latency.counts()));
            let counts = rings.chain(readers).collect();
            self.older = std::mem::replace(&mut self.newer, counts);
        }
    }

    /// Adds the recent latencies to a report.
    fn add_to(&self, report: &mut Report) {
        let none = LatencyCounts::default();
        let before = |name: &str| self.older.get(name).unwrap_or(&none);
        for (name, ring) in &mut report.rings {
            ring.latency.set_recent(before(&format!("ring {name}")));
        }
        for (name, reader) in &mut report.readers {
            reader.latency.set_recent(before(name));
        }
    }
}

impl Activity {
    fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the times of the last activity to a report.
    pub(super) fn add_to(&self, report: &mut Report) {
        self.with(|seen| {
            for (name, source) in &mut report.sources {
                source.last_packet_ns = seen.packets.get(name).copied();
                source.silent = seen.silent.contains_key(name);
            }
            for (name, ring) in &mut report.rings {
                let age = seen.frames.get(name).map(Instant::elapsed);
                ring.newest_frame_age_ns = age.map(nanoseconds);
            }
            seen.latencies.add_to(report);
        });
    }

    /// Returns one sentence per silent source.
    pub(super) fn silences(&self) -> Vec<String> {
        self.with(|seen| seen.silent.values().cloned().collect())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The properties of a source that the monitor needs.
pub(super) struct MonitoredSource {
    pub(super) name: String,
    /// Time without data after which the source counts as silent; `None` to disable the check.
    pub(super) silent_after: Option<Duration>,
    /// Whether the source waits for slow readers. A source that has delivered data can then be silent although nothing is
    /// wrong.
    pub(super) supports_backpressure: bool,
    pub(super) hint: SilenceHint,
    /// How to recognise the format of packets that are rejected.
    pub(super) inspect: Option<String>,
    pub(super) rejections: Rejections,
    /// The source's threads; a source whose threads have ended is not silent.
    pub(super) heartbeats: Vec<Arc<Heartbeat>>,
}

/// State of a source between two checks.
struct Source {
    watched: MonitoredSource,
    expected: u64,
    /// Time at which `expected` last increased, or the startup time.
    moved: Instant,
    /// Number of rejected packets when `expected` last increased. `rejecting` is the time of the first rejection after
    /// that.
    rejected: u64,
    rejecting: Option<Instant>,
    is_rejection_logged: bool,
    /// Whether a hint was logged for a silence that `silent_after` does not define.
    is_hint_logged: bool,
    /// Number of control packets when `expected` last increased.
    control: u64,
    /// The parts of frames, if there are several.
    parts: BTreeMap<String, Part>,
}

/// State of a part of frames between two checks.
#[derive(Clone, Copy, Debug)]
struct Part {
    delivered: u64,
    /// Time at which `delivered` last increased, or at which packets of other parts arrived first.
    moved: Instant,
    is_silent: bool,
}

/// Result of a check of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// The source has been silent for this long, but has no `silent_after`.
    Quiet(Duration),
    /// The source has been silent for this long.
    Silent(Duration),
    /// Data has arrived again after a silence of this length.
    Resumed(Duration),
}

impl Source {
    fn new(watched: MonitoredSource, now: Instant) -> Self {
        Self {
            watched,
            expected: 0,
            moved: now,
            rejected: 0,
            rejecting: None,
            is_rejection_logged: false,
            is_hint_logged: false,
            control: 0,
            parts: BTreeMap::new(),
        }
    }

    /// Compares the counters with those of the last check. `is_silent` is true if the silence was already reported.
    fn observe(&mut self, report: &SourceReport, is_silent: bool, now: Instant) -> Change {
        let quiet = now.saturating_duration_since(self.moved);
        if report.expected != self.expected {
            (self.expected, self.moved) = (report.expected, now);
            (self.rejected, self.rejecting) = (report.rejected, None);
            self.control = report.control;
            self.is_rejection_logged = false;
            return if is_silent {
                Change::Resumed(quiet)
            } else {
                Change::None
            };
        }
        match self.watched.silent_after {
            Some(limit) if quiet >= limit && !is_silent => Change::Silent(quiet),
            None if quiet >= HINT_AFTER && self.needs_hint() => {
                self.is_hint_logged = true;
                Change::Quiet(quiet)
            }
            _ => Change::None,
        }
    }

    /// Returns whether a silence is worth a hint: only once, because senders of some experiments pause.
    const fn needs_hint(&self) -> bool {
        let can_wait = self.watched.supports_backpressure && self.expected > 0;
        !self.is_hint_logged && !self.is_rejection_logged && !can_wait
    }

    /// Returns the parts that have become silent while packets of other parts arrive, and those that have ended a silence.
    fn observe_parts(&mut self, report: &SourceReport, now: Instant) -> Vec<(String, Change)> {
        let Some(limit) = self.watched.silent_after else {
            return Vec::new();
        };
        // While the whole source is silent, no part differs from the others.
        let is_active = now.saturating_duration_since(self.moved) < limit / 2;
        let mut changes = Vec::new();
        for (name, counts) in &report.parts {
            let part = self.parts.entry(name.clone()).or_insert(Part {
                delivered: counts.delivered,
                moved: now,
                is_silent: false,
            });
            let quiet = now.saturating_duration_since(part.moved);
            let has_moved = counts.delivered != part.delivered;
            if has_moved || report.expected == 0 {
                (part.delivered, part.moved) = (counts.delivered, now);
            }
            if has_moved && std::mem::take(&mut part.is_silent) {
                changes.push((name.clone(), Change::Resumed(quiet)));
            } else if !has_moved && !part.is_silent && is_active && quiet >= limit {
                part.is_silent = true;
                changes.push((name.clone(), Change::Silent(quiet)));
            }
        }
        changes
    }

    fn log_part(&self, part: &str, change: Change) {
        let name = &self.watched.name;
        match change {
            Change::None | Change::Quiet(_) => {}
            Change::Silent(quiet) => tracing::warn!(
                "source {name}: part {part} is silent: none of its packets were delivered for {:.0} s, but packets of other parts \
                 arrive; check the sender of this part, its address, port and number",
                quiet.as_secs_f64()
            ),
            Change::Resumed(quiet) => tracing::warn!(
                "source {name}: packets of part {part} arrive again after {:.0} s of silence",
                quiet.as_secs_f64()
            ),
        }
    }

    /// Returns why the source has no data, and what to check.
    fn why_silent(&self, counts: &SourceReport) -> String {
        let control = counts.control.saturating_sub(self.control);
        if counts.rejected > self.rejected {
            format!(
                "packets arrive, but all are rejected{}",
                self.why_rejected(counts.rejected)
            )
        } else if control > 0 {
            format!(
                "packets arrive, but none contains data ({}): they are messages or descriptors, or do not meet the conditions of \
                 the format. {}",
                counted(control, "control packet"),
                (self.watched.hint)()
            )
        } else {
            (self.watched.hint)()
        }
    }

    /// Returns the most frequent reason of `total` rejected packets.
    fn why_rejected(&self, total: u64) -> String {
        let reason = match self.watched.rejections.most_frequent(total) {
            Some((count, reason)) => format!(
                "; most frequent reason in this run ({}): {reason}",
                counted(count, "packet")
            ),
            None => "; the first rejection message of this source names the reason".to_owned(),
        };
        match &self.watched.inspect {
            Some(advice) => format!("{reason}. To recognise the format of the packets, {advice}"),
            None => reason,
        }
    }

    /// Returns the number of rejected packets if all arriving packets are rejected. Returns this number only once per
    /// interruption.
    fn rejects_everything(&mut self, report: &SourceReport, now: Instant) -> Option<u64> {
        let rejected = report.rejected.saturating_sub(self.rejected);
        let min = if self.expected == 0 { 1 } else { MIN_REJECTED };
        if rejected == 0 || self.is_rejection_logged {
            return None;
        }
        let since = *self.rejecting.get_or_insert(now);
        let is_due = now.saturating_duration_since(since) >= REJECTION_TIME && rejected >= min;
        self.is_rejection_logged = is_due;
        is_due.then_some(rejected)
    }

    fn has_ended(&self) -> bool {
        self.watched
            .heartbeats
            .iter()
            .all(|heartbeat| heartbeat.has_ended())
    }

    fn log_rejections(&self, rejected: u64, total: u64) {
        let name = &self.watched.name;
        let why = self.why_rejected(total);
        tracing::warn!(
            "source {name}: all arriving packets are rejected (the last {}){why}",
            counted(rejected, "packet")
        );
    }
}

/// Returns the time since 1970.
fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or(Duration::ZERO)
}

/// Returns an empty history of the components in `plan`.
pub(super) fn history_of(plan: &Plan) -> History {
    let sources = plan.sources.iter();
    let sources = sources.map(|source| (source.name.clone(), source.ring.clone()));
    let rings = plan.rings.iter().map(|ring| ring.name.clone());
    History::new(sources.collect(), rings.collect(), since_1970().as_secs())
}

/// The monitor's thread; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Monitor {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(super) fn start(
        ledgers: Arc<Ledgers>,
        control: Arc<Control>,
        sources: Vec<MonitoredSource>,
        history: Arc<History>,
        file: Option<PathBuf>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let mut saver = Saver::start(file, &history)?;
        let now = Instant::now();
        let mut sources: Vec<_> = sources.into_iter().map(|s| Source::new(s, now)).collect();
        let watch = move || {
            let mut published = BTreeMap::new();
            while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                ledgers.refresh_times();
                let report = ledgers.report();
                observe(
                    &ledgers,
                    &mut sources,
                    &mut published,
                    &report,
                    control.is_stopping(),
                );
                history.record(&report, since_1970().as_secs());
                saver.save_if_due(|| history.saved());
            }
            history.record(&ledgers.report(), since_1970().as_secs());
            history.end();
            saver.end(history.saved());
        };
        let thread = std::thread::Builder::new().name("daq-monitor".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(watch)?),
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn observe(
    ledgers: &Ledgers,
    sources: &mut [Source],
    published: &mut BTreeMap<String, u64>,
    report: &Report,
    is_stopping: bool,
) {
    let now = Instant::now();
    let wall = nanoseconds(since_1970());
    let activity = ledgers.activity();
    activity.with(|seen| {
        for (name, ring) in &report.rings {
            if published.insert(name.clone(), ring.published).unwrap_or(0) != ring.published {
                seen.frames.insert(name.clone(), now);
            }
        }
        seen.latencies.observe(report, now);
    });
    for source in sources {
        let name = source.watched.name.clone();
        let Some(counts) = report.sources.get(&name) else {
            continue;
        };
        let before = source.expected;
        let is_silent = activity.with(|seen| seen.silent.contains_key(&name));
        let change = source.observe(counts, is_silent, now);
        if source.expected != before {
            activity.with(|seen| seen.packets.insert(name.clone(), wall));
        }
        if is_stopping || source.has_ended() {
            activity.with(|seen| seen.silent.remove(&name));
            continue;
        }
        // Log after the lock is released, so that readers of the report do not wait for the log.
        match change {
            Change::None => {}
            Change::Quiet(quiet) => tracing::warn!(
                "source {name}: no data packet for {:.0} s; {}",
                quiet.as_secs_f64(),
                source.why_silent(counts)
            ),
            Change::Silent(quiet) => {
                let limit = source.watched.silent_after.unwrap_or_default();
                let rejected = counts.rejected.saturating_sub(source.rejected);
                source.is_rejection_logged |= rejected > 0;
                let also = match rejected {
                    0 => String::new(),
                    count => format!(" (rejected: {})", counted(count, "packet")),
                };
                let reason = format!(
                    "source {name}: no data packet for more than {} s{also}",
                    limit.as_secs_f64()
                );
                activity.with(|seen| seen.silent.insert(name.clone(), reason));
                tracing::warn!(
                    "source {name}: no data packet for {:.0} s{also}; {}",
                    quiet.as_secs_f64(),
                    source.why_silent(counts)
                );
            }
            Change::Resumed(quiet) => {
                activity.with(|seen| seen.silent.remove(&name));
                tracing::warn!(
                    "source {name}: packets arrive again after {:.0} s of silence",
                    quiet.as_secs_f64()
                );
            }
        }
        for (part, change) in source.observe_parts(counts, now) {
            source.log_part(&part, change);
        }
        if let Some(rejected) = source.rejects_everything(counts, now) {
            source.log_rejections(rejected, counts.rejected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::PartReport;

    fn source(silent_after: Option<u64>, start: Instant) -> Source {
        let watched = MonitoredSource {
            name: "adc".to_owned(),
            silent_after: silent_after.map(Duration::from_secs),
            supports_backpressure: false,
            hint: Box::new(String::new),
            inspect: Some("run `daq inspect --port 7`".to_owned()),
            rejections: Rejections::default(),
            heartbeats: vec![Heartbeat::new(
                "adc".to_owned(),
                crate::runtime::control::Role::Source,
            )],
        };
        Source::new(watched, start)
    }

    fn report(expected: u64, rejected: u64) -> SourceReport {
        SourceReport {
            expected,
            rejected,
            ..SourceReport::default()
        }
    }

    #[test]
    fn silence_and_its_end_are_detected_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut source = source(Some(10), start);
        assert_eq!(source.observe(&report(0, 0), false, at(9)), Change::None);
        let silent = Change::Silent(Duration::from_secs(10));
        assert_eq!(source.observe(&report(0, 0), false, at(10)), silent);
        assert_eq!(source.observe(&report(0, 3), true, at(11)), Change::None);
        let resumed = Change::Resumed(Duration::from_secs(30));
        assert_eq!(source.observe(&report(5, 3), true, at(30)), resumed);
        assert_eq!(source.observe(&report(6, 3), false, at(31)), Change::None);
        assert_eq!(source.observe(&report(6, 3), false, at(40)), Change::None);
        assert_eq!(source.observe(&report(6, 3), false, at(41)), silent);
    }

    #[test]
    fn silence_without_limit_is_hinted_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let quiet = Change::Quiet(HINT_AFTER);
        let mut silent = source(None, start);
        assert_eq!(silent.observe(&report(0, 0), false, at(9)), Change::None);
        assert_eq!(silent.observe(&report(0, 0), false, at(10)), quiet);
        assert_eq!(silent.observe(&report(0, 0), false, at(1000)), Change::None);
        let mut stopped = source(None, start);
        stopped.observe(&report(5, 0), false, at(5));
        assert_eq!(stopped.observe(&report(5, 0), false, at(15)), quiet);
        let mut blocked = source(None, start);
        blocked.watched.supports_backpressure = true;
        blocked.observe(&report(5, 0), false, at(5));
        assert_eq!(blocked.observe(&report(5, 0), false, at(60)), Change::None);
        let mut rejecting = source(None, start);
        rejecting.is_rejection_logged = true;
        assert_eq!(
            rejecting.observe(&report(0, 9), false, at(60)),
            Change::None
        );
    }

    #[test]
    fn silent_part_is_detected_once_while_others_arrive() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut source = source(Some(10), start);
        let mut observe = |delivered: [u64; 2], second| {
            let part = |delivered| PartReport {
                delivered,
                ..PartReport::default()
            };
            let report = SourceReport {
                parts: [("a", part(delivered[0])), ("b", part(delivered[1]))]
                    .map(|(name, part)| (name.to_owned(), part))
                    .into(),
                ..report(delivered.iter().sum(), 0)
            };
            source.observe(&report, false, at(second));
            source.observe_parts(&report, at(second))
        };
        assert_eq!(observe([0, 0], 20), [], "no packet has arrived");
        assert_eq!(observe([1, 0], 21), []);
        assert_eq!(
            observe([2, 0], 30),
            [("b".to_owned(), Change::Silent(Duration::from_secs(10)))]
        );
        assert_eq!(observe([3, 0], 31), []);
        assert_eq!(
            observe([3, 5], 33),
            [("b".to_owned(), Change::Resumed(Duration::from_secs(13)))]
        );
        assert_eq!(observe([3, 5], 60), [], "the whole source is silent");
    }

    #[test]
    fn silence_is_explained_by_what_arrives() {
        let source = source(Some(10), Instant::now());
        assert_eq!(source.why_silent(&report(0, 0)), "");
        source
            .watched
            .rejections
            .count("length", 3, "set `payload = 7`");
        let why = source.why_silent(&report(0, 3));
        assert!(
            why.contains("(3 packets): length: set `payload = 7`"),
            "{why}"
        );
        assert!(why.ends_with("run `daq inspect --port 7`"), "{why}");
        let control = SourceReport {
            control: 2,
            ..report(0, 0)
        };
        assert!(source.why_silent(&control).contains("2 control packets"));
    }

    #[test]
    fn packets_all_rejected_are_detected_once_and_again_after_data() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut source = source(None, start);
        assert_eq!(source.rejects_everything(&report(0, 0), at(0)), None);
        assert_eq!(source.rejects_everything(&report(0, 1), at(1)), None);
        assert_eq!(source.rejects_everything(&report(0, 2), at(2)), Some(2));
        assert_eq!(source.rejects_everything(&report(0, 9), at(9)), None);
        source.observe(&report(100, 9), false, at(10));
        // Single late packets after the end of a stream do not count as a rejection of all packets.
        assert_eq!(source.rejects_everything(&report(100, 12), at(11)), None);
        assert_eq!(source.rejects_everything(&report(100, 12), at(20)), None);
        assert_eq!(
            source.rejects_everything(&report(100, 19), at(21)),
            Some(10)
        );
    }
}
