//! The thread that copies between rings with a GPU's copy engine. There is one thread per route.

use super::StagingError;
use super::methods::CopyMethod;
use super::ring_copy::{Begun, EngineState, RingCopy};
use crate::leak::leak;
use crate::notify::{Notifier, Wait};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum duration of a sleep. A shorter sleep costs more CPU time than it saves.
const MIN_SLEEP: Duration = Duration::from_micros(60);
/// Time by which the thread wakes before the expected end of a copy.
const WAKE_AHEAD: Duration = Duration::from_micros(10);

/// The size and timing of copies along one route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Maximum size of a copy in bytes.
    pub chunk: usize,
    /// Maximum number of copies in flight, at least 1.
    pub depth: usize,
    /// Data rate of large copies in bytes per second.
    pub rate: f64,
    /// Fixed time per copy, in addition to the transfer time of its bytes.
    pub overhead: Duration,
    /// Maximum size in bytes of bursts that the CPU stores, if it can write the target; 0 if the CPU stores no bursts.
    pub cpu_store_threshold: usize,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copies were started or completed.
    Busy,
    /// No copy could be started or completed.
    Idle,
    /// All ring copies have ended.
    Finished,
}

/// A thread's copies between rings.
pub trait CopyThread: fmt::Debug + Send {
    /// Publishes completed copies and starts new ones; never waits.
    fn step(&mut self) -> Result<Step, StagingError>;

    /// Waits until a copy can be started or completed, or about `limit` has passed.
    fn wait(&self, policy: Wait, limit: Duration);

    /// Logs a warning if the CPU will store to a GPU on another NUMA node than the calling thread's core. Call it on
    /// the thread that calls [`step`](Self::step); `remedy` names the setting for its core.
    fn warn_if_remote_numa(&self, _remedy: &str) {}

    /// Whether a copy is in flight.
    fn has_in_flight(&self) -> bool;

    /// Completes finished copies and discards pending frames after a failure. Returns whether all sources have ended.
    fn discard(&mut self) -> bool;

    /// Closes the target rings after a failure. Their readers read the published frames and then finish.
    fn close(&mut self);

    /// Ends the thread although copies in flight will not complete. [Leaks](crate::leak) all memory that these copies use.
    fn leak(self: Box<Self>);
}

/// Number of copies in flight that keeps the stream busy. While this many copies are in flight, a ring copy that owns
/// one of them starts only whole chunks, and a gather starts only whole batches, so that frames accumulate.
pub(super) const ENOUGH_IN_FLIGHT: usize = 2;

/// A copy in flight, with its expected duration and its expected end.
#[derive(Debug)]
struct Expected {
    takes: Duration,
    at: Instant,
}

/// The ring copies of one route.
pub struct CopyEngineThread {
    ring_copies: Vec<RingCopy>,
    method: Box<dyn CopyMethod>,
    tuning: Tuning,
    /// Notified by the rings of all ring copies.
    notifier: Arc<Notifier>,
    /// All copies in flight, oldest first.
    expected: VecDeque<Expected>,
    /// Index of the ring copy whose turn it is.
    turn: usize,
    /// Time since which copies have been in flight without a pause, and the number of bytes of all copies started since
    /// then.
    streak: Option<(Instant, u64)>,
    /// Whether the CPU may store frames of any ring copy.
    stores: bool,
}

impl CopyEngineThread {
    /// Creates a copy engine thread without ring copies. The rings of all its ring copies must notify `notifier`.
    pub fn new(method: Box<dyn CopyMethod>, tuning: Tuning, notifier: Arc<Notifier>) -> Self {
        Self {
            ring_copies: Vec::new(),
            method,
            expected: VecDeque::with_capacity(tuning.depth.max(1)),
            tuning,
            notifier,
            turn: 0,
            streak: None,
            stores: false,
        }
    }

    /// Adds a ring copy.
    pub fn add(&mut self, ring_copy: RingCopy) {
        self.stores |= ring_copy.has_stores() && self.tuning.cpu_store_threshold > 0;
        self.ring_copies.push(ring_copy);
    }

    fn engine_state(&self) -> EngineState {
        EngineState {
            has_room: self.has_room(),
            enough: self.expected.len() >= ENOUGH_IN_FLIGHT,
            cpu_store_threshold: self.tuning.cpu_store_threshold,
        }
    }

    fn has_room(&self) -> bool {
        self.expected.len() < self.tuning.depth.max(1) && self.method.has_room()
    }

    fn expect(&mut self, bytes: u64) {
        let now = Instant::now();
        let start = self.expected.back().map_or(now, |last| last.at.max(now));
        let takes = Duration::try_from_secs_f64(bytes as f64 / self.tuning.rate.max(1.0));
        let takes = takes.unwrap_or_default() + self.tuning.overhead;
        self.streak.get_or_insert((now, 0)).1 += bytes;
        self.expected.push_back(Expected {
            takes,
            at: start + takes,
        });
    }

    /// Updates the expected ends after copies have completed. The next copy is assumed to start now.
    fn ended(&mut self, copies: usize) {
        if copies == 0 {
            return;
        }
        self.expected.drain(..copies.min(self.expected.len()));
        let mut at = Instant::now();
        if self.expected.is_empty()
            && let Some((since, bytes)) = self.streak.take()
        {
            // All copies completed before this poll, so the rate is at least this high, even if the measured rate is
            // lower.
            let rate = bytes as f64 / (at - since).as_secs_f64().max(1e-9);
            self.tuning.rate = self.tuning.rate.max(rate);
        }
        for copy in &mut self.expected {
            at += copy.takes;
            copy.at = at;
        }
    }

    /// Whether at least one ring copy can start a copy or store frames.
    fn is_ready(&self) -> bool {
        let state = self.engine_state();
        self.ring_copies
            .iter()
            .any(|ring_copy| ring_copy.can_begin(state))
    }
}

impl CopyThread for CopyEngineThread {
    fn step(&mut self) -> Result<Step, StagingError> {
        let mut ended = 0;
        let mut failure = None;
        for ring_copy in &mut self.ring_copies {
            match ring_copy.reap() {
                Ok(copies) => ended += copies,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.ended(ended);
        if ended > 0 || self.expected.is_empty() {
            let before = self.ring_copies.len();
            self.ring_copies
                .retain(|ring_copy| !ring_copy.is_finished());
            if self.ring_copies.is_empty() {
                return Ok(Step::Finished);
            }
            if self.ring_copies.len() != before {
                self.turn = 0;
            }
        }
        let mut begun = 0;
        // A ring copy passes its turn if it has no frames, or if its frames were stored by the CPU. Otherwise, a source
        // that is as fast as the CPU would keep the thread in this loop. After all ring copies have passed in a row,
        // the copies in flight are polled again.
        let mut passed = 0;
        while passed < self.ring_copies.len() && (self.stores || self.has_room()) {
            let turn = self.turn;
            self.turn = (turn + 1) % self.ring_copies.len();
            let state = self.engine_state();
            match self.ring_copies[turn].begin(&*self.method, state)? {
                None => passed += 1,
                Some(Begun::Stored) => {
                    passed += 1;
                    begun += 1;
                }
                Some(Begun::Copy(bytes)) => {
                    passed = 0;
                    begun += 1;
                    self.expect(bytes);
                }
            }
        }
        Ok(if begun + ended > 0 {
            Step::Busy
        } else {
            Step::Idle
        })
    }

    // With [`Wait::Adaptive`], the thread sleeps while several copies are in flight. It wakes when only one copy is left to
    // keep the stream busy, or when frames are ready that the CPU can store.
    fn wait(&self, policy: Wait, limit: Duration) {
        let done = || self.ring_copies.iter().any(RingCopy::is_oldest_done);
        if self.expected.is_empty() {
            let ready = || self.is_ready() || self.ring_copies.iter().any(RingCopy::is_over);
            self.notifier.wait(policy, limit, ready);
            return;
        }
        if policy == Wait::Busy {
            self.notifier
                .wait(policy, limit, || done() || self.is_ready());
            return;
        }
        let now = Instant::now();
        if self.expected.len() < ENOUGH_IN_FLIGHT && self.has_room() {
            // New frames cause a notification. The end of a copy does not, but its time is known approximately.
            let mut ready = || done() || self.is_ready();
            let first = self.expected.front().map_or(now, |copy| copy.at);
            let sleep = first.saturating_duration_since(now);
            if sleep > MIN_SLEEP {
                self.notifier
                    .sleep(sleep.saturating_sub(WAKE_AHEAD).min(limit), &mut ready);
            } else {
                self.notifier.wait_polling(policy, MIN_SLEEP, limit, ready);
            }
            return;
        }
        // Until a copy ends, the only possible work is to store frames by the CPU.
        let at = self.expected.len().saturating_sub(2);
        let until = self.expected.get(at).map_or(now, |copy| copy.at);
        let sleep = until.saturating_duration_since(now);
        let may_store = |ring_copy: &RingCopy| ring_copy.may_store(self.tuning.cpu_store_threshold);
        if self.stores && self.ring_copies.iter().any(may_store) {
            let state = EngineState {
                has_room: false,
                ..self.engine_state()
            };
            let ready = || {
                self.ring_copies
                    .iter()
                    .any(|ring_copy| ring_copy.can_begin(state))
            };
            if sleep > MIN_SLEEP {
                let limit = sleep.saturating_sub(WAKE_AHEAD).min(limit);
                self.notifier.wait(Wait::Event, limit, ready);
            } else {
                let ready = || done() || ready();
                self.notifier.wait_polling(policy, MIN_SLEEP, limit, ready);
            }
        } else if sleep > MIN_SLEEP {
            std::thread::sleep(sleep.saturating_sub(WAKE_AHEAD).min(limit));
        } else {
            Notifier::default().wait_polling(policy, MIN_SLEEP, limit, done);
        }
    }

    fn warn_if_remote_numa(&self, remedy: &str) {
        if self.stores {
            let mut ring_copies = self.ring_copies.iter();
            ring_copies.any(|ring_copy| ring_copy.warn_if_remote_numa(remedy));
        }
    }

    fn has_in_flight(&self) -> bool {
        !self.expected.is_empty() || self.ring_copies.iter().any(RingCopy::has_in_flight)
    }

    fn discard(&mut self) -> bool {
        for ring_copy in &mut self.ring_copies {
            // Ignore errors, because their cause was already reported.
            let _ = ring_copy.reap();
            ring_copy.discard();
        }
        self.expected.clear();
        self.ring_copies.iter().all(RingCopy::is_finished)
    }

    fn close(&mut self) {
        for ring_copy in &mut self.ring_copies {
            ring_copy.close_target();
        }
    }

    fn leak(mut self: Box<Self>) {
        self.method.leak();
        for ring_copy in self.ring_copies.drain(..) {
            ring_copy.leak();
        }
        leak(self.method);
    }
}

impl fmt::Debug for CopyEngineThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyEngineThread")
            .field("ring_copies", &self.ring_copies)
            .field("tuning", &self.tuning)
            .finish_non_exhaustive()
    }
}
