//! The ring copies of one GPU and direction, and the thread's steps that serve them.

use super::StagingError;
use super::ring_copy::{Begun, EngineState, RingCopy};
use crate::gpu::driver::{CudaError, Device, Rows, Stream};
use crate::notify::{Notifier, Wait};
use crate::ring::Completion;
use crate::staging::Direction;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Below this a sleep costs more than it saves.
const MIN_SLEEP: Duration = Duration::from_micros(60);
/// How long before a copy's expected end the thread wakes.
const WAKE_AHEAD: Duration = Duration::from_micros(10);

/// How copies are sized and timed on one GPU and direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Most bytes of one copy.
    pub chunk: usize,
    /// Most copies in flight, at least 1.
    pub depth: usize,
    /// Bytes a second of large copies.
    pub rate: f64,
    /// What a copy takes beside its bytes.
    pub overhead: Duration,
    /// Bursts of at most so many bytes are stored by the CPU, where it can store to the target; 0: none.
    pub cpu_store_threshold: usize,
}

/// What moves bytes between host memory and a GPU, in order.
pub trait CopyBackend: Send {
    /// Begins a copy of `bytes` bytes.
    ///
    /// # Safety
    /// Both ranges stay alive, the source is not written and the target neither read nor written by others, until the
    /// next [event](Self::record_event) is done.
    unsafe fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError>;

    /// Begins a copy of rows.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), for every row.
    unsafe fn copy_rows(&mut self, to: u64, from: u64, rows: Rows) -> Result<(), CudaError>;

    /// Marks the end of all copies begun so far.
    fn record_event(&mut self) -> Result<Completion, CudaError>;

    /// Whether another copy can be marked.
    fn has_room(&self) -> bool;

    /// Waits until nothing is under way, as well as a failed device allows.
    fn settle(&mut self);

    /// The device will not finish: nothing that it was given is freed, nor is it waited for, by anyone.
    fn leak(&mut self);
}

/// A stream that copies one way.
#[derive(Debug)]
pub struct CopyStream {
    stream: Stream,
    direction: Direction,
}

impl CopyStream {
    /// A stream for up to `depth` copies in flight.
    pub fn new(
        device: &'static Device,
        direction: Direction,
        depth: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(device, depth)?,
            direction,
        })
    }
}

impl CopyBackend for CopyStream {
    unsafe fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller's word; the direction says which of the addresses the host's is.
        unsafe {
            match self.direction {
                Direction::In => self.stream.copy_in(to, host(from), bytes),
                Direction::Out => self.stream.copy_out(host(to), from, bytes),
            }
        }
    }

    unsafe fn copy_rows(&mut self, to: u64, from: u64, rows: Rows) -> Result<(), CudaError> {
        // SAFETY: as above.
        unsafe {
            match self.direction {
                Direction::In => self.stream.copy_rows_in(to, host(from), rows),
                Direction::Out => self.stream.copy_rows_out(host(to), from, rows),
            }
        }
    }

    fn record_event(&mut self) -> Result<Completion, CudaError> {
        Ok(Completion::Event(self.stream.record_event()?))
    }

    fn has_room(&self) -> bool {
        self.stream.has_free_event()
    }

    fn settle(&mut self) {
        // The failure that led here has been told.
        let _ = self.stream.synchronize();
    }

    fn leak(&mut self) {
        self.stream.device().mark_hung();
    }
}

fn host(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX))
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copies were begun or ended.
    Busy,
    /// Nothing could be done now.
    Idle,
    /// All ring copies have ended.
    Finished,
}

/// Copies under way that keep the stream busy; a ring copy that has one among them begins another only if it is a whole
/// chunk, so that frames gather.
const ENOUGH_IN_FLIGHT: usize = 2;

/// A copy in flight: how long it takes by itself, and when it should be done.
#[derive(Debug)]
struct Expected {
    takes: Duration,
    at: Instant,
}

/// The ring copies of one GPU and direction.
pub struct CopyEngineThread {
    ring_copies: Vec<RingCopy>,
    backend: Box<dyn CopyBackend>,
    tuning: Tuning,
    /// Rung by the rings of all ring copies.
    notifier: Arc<Notifier>,
    /// Copies in flight over all ring copies, oldest first.
    expected: VecDeque<Expected>,
    /// The ring copy whose turn it is.
    turn: usize,
    /// Since when copies have been under way without a pause, and the bytes of those that were begun since.
    streak: Option<(Instant, u64)>,
    /// Whether any ring copy's frames may be stored by the CPU.
    stores: bool,
}

impl CopyEngineThread {
    /// A copy engine thread without ring copies. `notifier` is the one that all its rings ring.
    pub fn new(backend: Box<dyn CopyBackend>, tuning: Tuning, notifier: Arc<Notifier>) -> Self {
        Self {
            ring_copies: Vec::new(),
            backend,
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
        self.stores |= ring_copy.target().is_some() && self.tuning.cpu_store_threshold > 0;
        self.ring_copies.push(ring_copy);
    }

    /// A word in the log if the CPU will store to a GPU that hangs on another node than the calling thread's core; for
    /// the thread that will call [`step`](Self::step), `remedy` says how its core is chosen.
    pub fn warn_if_remote_numa(&self, remedy: &str) {
        let target = self.ring_copies.iter().find_map(RingCopy::target);
        if let Some(target) = target.filter(|_| self.stores) {
            target.warn_if_remote_numa(remedy);
        }
    }

    /// Publishes what is done and begins what can be begun; never waits.
    pub fn step(&mut self) -> Result<Step, StagingError> {
        let mut ended = 0;
        let mut failure = None;
        for ring_copy in &mut self.ring_copies {
            match ring_copy.reap() {
                Ok(copies) => ended += copies,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            return Err(error.into());
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
        // A ring copy that has nothing passes its turn, as one does whose frames were stored: a source that keeps up with
        // the CPU must not keep it here. Once all have in a row, the copies under way are looked at again.
        let mut passed = 0;
        while passed < self.ring_copies.len() && (self.stores || self.has_room()) {
            let turn = self.turn;
            self.turn = (turn + 1) % self.ring_copies.len();
            let state = self.engine_state();
            match self.ring_copies[turn].begin(&mut *self.backend, state)? {
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

    fn engine_state(&self) -> EngineState {
        EngineState {
            has_room: self.has_room(),
            enough: self.expected.len() >= ENOUGH_IN_FLIGHT,
            cpu_store_threshold: self.tuning.cpu_store_threshold,
        }
    }

    fn has_room(&self) -> bool {
        self.expected.len() < self.tuning.depth.max(1) && self.backend.has_room()
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

    /// Takes note of copies that have ended: the next one is under way from about now, whatever was expected.
    fn ended(&mut self, copies: usize) {
        if copies == 0 {
            return;
        }
        self.expected.drain(..copies.min(self.expected.len()));
        let mut at = Instant::now();
        if self.expected.is_empty()
            && let Some((since, bytes)) = self.streak.take()
        {
            // All ended before anyone looked: copies are at least so fast, whatever was measured once.
            let rate = bytes as f64 / (at - since).as_secs_f64().max(1e-9);
            self.tuning.rate = self.tuning.rate.max(rate);
        }
        for copy in &mut self.expected {
            at += copy.takes;
            copy.at = at;
        }
    }

    /// Whether any ring copy's turn would come to something.
    fn is_ready(&self) -> bool {
        let state = self.engine_state();
        self.ring_copies
            .iter()
            .any(|ring_copy| ring_copy.is_ready(state))
    }

    /// Waits until there is something to do, or about `limit` has passed.
    ///
    /// With [`Wait::Adaptive`] the thread sleeps through most of the copies under way: it wakes when one is left that
    /// keeps the stream busy meanwhile, or when there are frames for the CPU to store.
    pub fn wait(&self, policy: Wait, limit: Duration) {
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
            // New frames ring; the end of a copy does not, but when it comes is known about.
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
        // Nothing need be begun before a copy ends, whatever rings, but for frames that the CPU stores.
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
                    .any(|ring_copy| ring_copy.is_ready(state))
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

    /// Whether a copy is under way.
    pub fn has_in_flight(&self) -> bool {
        !self.expected.is_empty() || self.ring_copies.iter().any(RingCopy::has_in_flight)
    }

    /// After a failure: ends what has ended, skips what comes, and says whether all sources are at their end.
    pub fn discard(&mut self) -> bool {
        for ring_copy in &mut self.ring_copies {
            // What fails now fails for the reason that has been told.
            let _ = ring_copy.reap();
            ring_copy.discard();
        }
        self.expected.clear();
        self.ring_copies.iter().all(RingCopy::is_finished)
    }

    /// Ends although copies are under way that will not end: nothing that they touch is ever freed.
    pub fn leak(mut self) {
        self.backend.leak();
        for ring_copy in self.ring_copies.drain(..) {
            ring_copy.leak();
        }
        std::mem::forget(self.backend);
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
