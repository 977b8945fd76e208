//! State shared by the threads of a pipeline: the stop request, failures, heartbeats.

use super::{Failure, FailureKind};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting data thread checks for a stop request.
pub(crate) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time without a heartbeat after which a data thread counts as stalled.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// State shared by the threads and the pipeline.
#[derive(Debug)]
pub struct Control {
    stop: AtomicBool,
    /// Whether sinks end without waiting for further frames.
    closes_sinks: AtomicBool,
    /// Time at which sinks that cannot write must end, in ms since `start`; 0 until the pipeline stops.
    deadline: AtomicU64,
    drain: Duration,
    start: Instant,
    failures: Mutex<Vec<Failure>>,
    /// Names of the sources whose last frames were requested as a whole.
    whole: Mutex<BTreeSet<String>>,
}

impl Control {
    /// Creates the state of a running pipeline. `drain` is the maximum time that sinks that cannot write may delay the
    /// end of the pipeline.
    pub fn new(drain: Duration) -> Self {
        Self {
            stop: AtomicBool::new(false),
            closes_sinks: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            drain,
            start: Instant::now(),
            failures: Mutex::new(Vec::new()),
            whole: Mutex::new(BTreeSet::new()),
        }
    }

    /// Requests that the source `name` counts the packets that its last frame lacks at the end as lost.
    pub(super) fn request_whole_frames(&self, name: &str) {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.insert(name.to_owned());
    }

    /// Returns whether the packets that the last frame of the source `name` lacks at the end are lost.
    pub(super) fn wants_whole_frames(&self, name: &str) -> bool {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.contains(name)
    }

    /// Returns whether the pipeline is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns whether draining has exceeded its maximum time.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_overdue_by(Duration::ZERO)
    }

    /// Returns whether draining has exceeded its maximum time by `time`.
    pub(super) fn is_overdue_by(&self, time: Duration) -> bool {
        let deadline = self.deadline.load(Ordering::Acquire);
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        deadline != 0 && self.since_start() >= deadline.saturating_add(time)
    }

    /// Requests the sinks to end when they have written the published frames, because a thread upstream hangs.
    pub(super) fn close_sinks(&self) {
        self.closes_sinks.store(true, Ordering::Release);
    }

    /// Returns whether sinks end without waiting for further frames.
    pub(super) fn closes_sinks(&self) -> bool {
        self.closes_sinks.load(Ordering::Acquire)
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Stops the pipeline. The sources end, and the other threads drain their rings.
    pub fn stop(&self) {
        if !self.stop.swap(true, Ordering::AcqRel) {
            let drain = u64::try_from(self.drain.as_millis()).unwrap_or(u64::MAX);
            self.deadline
                .store((self.since_start() + drain).max(1), Ordering::Release);
        }
    }

    /// Returns the failures that were recorded so far.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records a failure and stops the sources.
    pub(crate) fn fail(&self, kind: FailureKind, component: String, why: String) {
        let line = self.record(kind, component, why);
        // Log last: the pipeline must stop even if logging blocks.
        self.stop();
        tracing::error!("{line}");
    }

    /// Records a failure of a component on one GPU of a spread ring. Only its frames are lost; the pipeline continues.
    pub(crate) fn lose(&self, kind: FailureKind, component: String, why: String) {
        let line = self.record(kind, component, why);
        tracing::error!(
            "{line}; its frames are discarded and counted from now on, and the other GPUs continue"
        );
    }

    /// Records a failure and returns its text.
    fn record(&self, kind: FailureKind, component: String, why: String) -> String {
        let failure = Failure {
            kind,
            component,
            why,
        };
        let line = format!("{}: {}", failure.component, failure.why);
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
        line
    }
}

/// Role of a data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A thread of a source, which fills a ring.
    Source,
    /// A kernel, or a thread that copies to or from a GPU.
    Step,
    /// A thread of a sink, which drains a ring.
    Sink,
}

/// The heartbeat of one data thread.
#[derive(Debug)]
pub struct Heartbeat {
    pub(crate) name: String,
    pub(crate) role: Role,
    beats: AtomicU64,
    has_final_counts: AtomicBool,
    ended: AtomicBool,
    /// The heartbeat count at the last check, and the time at which the count last changed.
    seen: Mutex<(u64, Instant)>,
}

impl Heartbeat {
    /// Creates the heartbeat of the thread `name`.
    pub fn new(name: String, role: Role) -> Arc<Self> {
        Arc::new(Self {
            name,
            role,
            beats: AtomicU64::new(0),
            has_final_counts: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            seen: Mutex::new((0, Instant::now())),
        })
    }

    pub(crate) fn beat(&self) {
        self.beats.store(
            self.beats.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    #[cfg(test)]
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Records that the thread counts no further frames until its component has ended.
    pub(crate) fn end_counts(&self) {
        self.has_final_counts.store(true, Ordering::Release);
    }

    pub(crate) fn has_final_counts(&self) -> bool {
        self.has_final_counts.load(Ordering::Acquire)
    }

    /// Records that the thread has ended.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether the heartbeat count has not changed for [`STALL_TIMEOUT`]. This function must be called
    /// regularly.
    pub(crate) fn is_stalled(&self) -> bool {
        let beats = self.beats.load(Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if beats != seen.0 || self.has_ended() {
            *seen = (beats, Instant::now());
        }
        seen.1.elapsed() > STALL_TIMEOUT
    }
}

/// Monitors whether a device makes progress. While the device makes no progress, the thread that uses the device gives
/// no heartbeat and is therefore reported as stalled.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    is_logged: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            is_logged: false,
        }
    }

    /// Returns the time since the last progress.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns whether the current work has already taken so long that querying the driver adds no relevant delay.
    pub(crate) fn is_slow(&self) -> bool {
        self.since.elapsed() > STOP_POLL_INTERVAL
    }

    /// Records whether the device has work and whether it has made progress. Returns true if the device has work but
    /// has made no progress for so long that it appears to hang.
    pub(crate) fn observe(
        &mut self,
        has_work: bool,
        has_moved: bool,
        heartbeat: &Heartbeat,
    ) -> bool {
        if !has_work || has_moved {
            *self = Self::new();
            heartbeat.beat();
        } else if !self.is_logged && self.since.elapsed() > STALL_TIMEOUT {
            self.is_logged = true;
            tracing::warn!(
                "{}: the GPU has completed no work for {} s, so the GPU or its driver hangs; check nvidia-smi and dmesg | grep -i xid",
                heartbeat.name,
                STALL_TIMEOUT.as_secs()
            );
        }
        self.is_logged
    }
}
