//! What the threads that fill one window share: frame records, pins and the position.
//!
//! # How memory is handed over
//! A writer *pins* the position before it reads records and unpins it when it is done. The sequencer first moves the
//! position on and then waits a grace period: until no pin is older. After that no writer accesses the frames that
//! were passed, and their records may be read, published and reused.

use super::history::History;
use super::{Geometry, PacketId};
use crate::sync::{Arc, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The pin of a writer that is not in a batch.
pub(super) const IDLE: u64 = u64::MAX;
/// The position while the sequencer changes more than the position; no writer may pin it.
pub(super) const BLOCKED: u64 = u64::MAX - 1;

/// The position, in frames, where the first epoch starts. It leaves room for packets with earlier numbers.
const FIRST: u64 = 1 << 20;

/// The state of a frame's memory.
pub(super) mod state {
    /// No packet has asked for memory.
    pub(in super::super) const UNASSIGNED: u32 = 0;
    /// The frame has a slot.
    pub(in super::super) const ASSIGNED: u32 = 1;
    /// A packet arrived and no slot was free.
    pub(in super::super) const REFUSED: u32 = 2;
    /// A control packet asked to skip the frame, and no later packet has arrived yet. Payload of the frame cancels
    /// the request, if it arrives before payload of a later frame.
    pub(in super::super) const SKIP_REQUESTED: u32 = 3;
    /// The frame carries no data by design; its unit number is used up.
    pub(in super::super) const SKIPPED: u32 = 4;
}

/// One frame: open, or closed recently.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) state: AtomicU32,
    pub(super) memory: AtomicPtr<u8>,
    pub(super) arrived: AtomicU32,
    pub(super) time_ns: AtomicU64,
    pub(super) time_clock: AtomicU32,
    claimed: Box<[AtomicU64]>,
    present: Box<[AtomicU64]>,
    bad: Box<[AtomicU64]>,
    late: Box<[AtomicU64]>,
    /// Represents the payload in model checking.
    #[cfg(loom)]
    pub(super) canary: Box<[crate::sync::UnsafeCell<u64>]>,
}

impl Record {
    fn new(places: u32) -> Self {
        let words = || {
            (0..(places as usize).div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Self {
            state: AtomicU32::new(state::UNASSIGNED),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            arrived: AtomicU32::new(0),
            time_ns: AtomicU64::new(0),
            time_clock: AtomicU32::new(0),
            claimed: words(),
            present: words(),
            bad: words(),
            late: words(),
            #[cfg(loom)]
            canary: (0..places)
                .map(|_| crate::sync::UnsafeCell::new(0))
                .collect(),
        }
    }

    /// Clears the record; only while no writer can access it.
    pub(super) fn reset(&self) {
        self.state.store(state::UNASSIGNED, Ordering::Relaxed);
        self.memory.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
        self.time_clock.store(0, Ordering::Relaxed);
        for word in self
            .claimed
            .iter()
            .chain(&self.present)
            .chain(&self.bad)
            .chain(&self.late)
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_present(&self, place: u32) -> bool {
        bit(&self.present, place)
    }

    pub(super) fn is_bad(&self, place: u32) -> bool {
        bit(&self.bad, place)
    }

    /// The bitmap of packets that arrived.
    pub(super) fn present(&self) -> impl Iterator<Item = u64> {
        self.present.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Claims a packet for writing; returns false if it was already claimed.
    #[inline]
    pub(super) fn claim(&self, place: u32, exclusive: bool) -> bool {
        if exclusive {
            !self.is_present(place)
        } else {
            set(&self.claimed, place, false)
        }
    }

    /// Marks a packet as arrived; returns false if it had arrived already.
    #[inline]
    pub(super) fn mark_present(&self, place: u32, exclusive: bool) -> bool {
        let fresh = set(&self.present, place, exclusive);
        if fresh {
            add(&self.arrived, 1, exclusive);
        }
        fresh
    }

    /// Replaces a pending skip request by `state`.
    pub(super) fn resolve_skip_request(&self, state: u32) {
        let _ = self.state.compare_exchange(
            state::SKIP_REQUESTED,
            state,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Marks a packet as arrived damaged.
    pub(super) fn mark_bad(&self, place: u32, exclusive: bool) -> bool {
        set(&self.bad, place, exclusive)
    }

    /// Marks a packet as arrived after its frame was closed; returns false if it was marked already.
    pub(super) fn mark_late(&self, place: u32, exclusive: bool) -> bool {
        set(&self.late, place, exclusive)
    }

    /// Whether any packet of the frame has arrived.
    pub(super) fn has_payload(&self) -> bool {
        let is_bad = |word: &AtomicU64| word.load(Ordering::Acquire) != 0;
        self.arrived.load(Ordering::Acquire) > 0 || self.bad.iter().any(is_bad)
    }

    /// Of the packets in `range` that did not arrive in time, returns the number that were late, and the number
    /// damaged but not late.
    pub(super) fn dispositions(&self, range: std::ops::Range<u32>) -> (u64, u64) {
        let (mut late, mut bad) = (0, 0);
        for place in range.filter(|place| !self.is_present(*place)) {
            if bit(&self.late, place) {
                late += 1;
            } else if self.is_bad(place) {
                bad += 1;
            }
        }
        (late, bad)
    }
}

#[inline]
fn bit(words: &[AtomicU64], i: u32) -> bool {
    words[i as usize / 64].load(Ordering::Acquire) >> (i % 64) & 1 == 1
}

/// Sets a bit; returns whether it was clear. `exclusive` = only this thread writes the words.
#[inline]
fn set(words: &[AtomicU64], i: u32, exclusive: bool) -> bool {
    let word = &words[i as usize / 64];
    let mask = 1 << (i % 64);
    let old = if exclusive {
        let old = word.load(Ordering::Relaxed);
        word.store(old | mask, Ordering::Release);
        old
    } else {
        word.fetch_or(mask, Ordering::AcqRel)
    };
    old & mask == 0
}

#[inline]
fn add(word: &AtomicU32, n: u32, exclusive: bool) {
    if exclusive {
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Release);
    } else {
        word.fetch_add(n, Ordering::AcqRel);
    }
}

/// An epoch: maps unit numbers to positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epoch {
    /// The number of the epoch, counted from 1; 0 = none yet.
    pub(super) number: u64,
    /// A reference unit number …
    pub(super) unit: u64,
    /// … and the position of its first packet.
    pub(super) position: u64,
}

/// A writer's request for a new epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochRequest {
    /// The first packet of the epoch.
    pub(super) first: PacketId,
    /// The number of the epoch that the writer knows.
    pub(super) known: u64,
    /// The horizon when the first of the agreeing packets arrived.
    pub(super) since: u64,
}

/// Requests of writers that the sequencer handles while all writers wait.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) epoch: Option<EpochRequest>,
    /// Units to skip.
    pub(super) skips: Vec<u64>,
    /// Of each writer, the first packet that may belong to a new epoch.
    pub(super) firsts: Box<[Option<PacketId>]>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) geometry: Geometry,
    pub(super) records: Box<[CachePadded<Record>]>,
    /// The oldest open frame, as a position in frames.
    pub(super) base: CachePadded<AtomicU64>,
    /// One past the highest position (in packets) seen in this epoch.
    pub(super) horizon: CachePadded<AtomicU64>,
    /// The lowest position (in packets) seen in this epoch.
    pub(super) start: AtomicU64,
    /// Packets that have arrived, in all epochs.
    pub(super) arrived: CachePadded<AtomicU64>,
    /// The highest frame for which a writer waits for a slot.
    pub(super) wanted: AtomicU64,
    pub(super) pins: Box<[CachePadded<AtomicU64>]>,
    /// The epoch's number, readable without a lock.
    pub(super) epoch_number: AtomicU64,
    pub(super) epoch: Mutex<Epoch>,
    /// Added to a frame's own number to obtain its position in frames.
    pub(super) epoch_offset: AtomicU64,
    /// The first frame of the epoch; no earlier frame was ever expected.
    pub(super) floor: AtomicU64,
    /// Frames before this one have their causes of loss.
    pub(super) finalised: AtomicU64,
    pub(super) has_requests: AtomicU32,
    pub(super) requests: Mutex<Requests>,
    /// Number of refused requests for an epoch.
    pub(super) refusals: AtomicU64,
    /// How often each writer has polled for packets.
    pub(super) rounds: Box<[CachePadded<AtomicU64>]>,
    /// Which packets of closed frames arrived.
    pub(super) history: History,
    /// The horizon when the stream was last silent for so long that all gaps have their causes.
    pub(super) silent: AtomicU64,
    /// 1 once the sequencer has ended.
    pub(super) closed: AtomicU32,
    /// The kernel's drop count, by writer.
    pub(super) drops: Box<[AtomicU64]>,
    /// How often the drop counts have been read.
    pub(super) readings: AtomicU64,
    /// What all threads use instead once the geometry is pinned, see
    /// [`ReorderWindow::pin`](super::ReorderWindow::pin).
    pub(super) pinned: OnceLock<Arc<Self>>,
}

impl Shared {
    pub(super) fn new(geometry: Geometry, writers: usize) -> Self {
        // The open frames, as many closed ones, and one that is neither while the window moves.
        let records = 2 * geometry.window + 1;
        Self {
            records: (0..records)
                .map(|_| CachePadded::new(Record::new(geometry.places)))
                .collect(),
            base: CachePadded::new(AtomicU64::new(FIRST)),
            horizon: CachePadded::new(AtomicU64::new(0)),
            start: AtomicU64::new(0),
            arrived: CachePadded::new(AtomicU64::new(0)),
            wanted: AtomicU64::new(0),
            pins: (0..writers)
                .map(|_| CachePadded::new(AtomicU64::new(IDLE)))
                .collect(),
            epoch_number: AtomicU64::new(0),
            epoch: Mutex::new(Epoch::default()),
            epoch_offset: AtomicU64::new(0),
            floor: AtomicU64::new(FIRST),
            finalised: AtomicU64::new(FIRST),
            has_requests: AtomicU32::new(0),
            requests: Mutex::new(Requests {
                epoch: None,
                skips: Vec::with_capacity(64),
                firsts: vec![None; writers].into(),
            }),
            refusals: AtomicU64::new(0),
            rounds: (0..writers)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            history: History::new(),
            silent: AtomicU64::new(u64::MAX),
            closed: AtomicU32::new(0),
            drops: (0..writers).map(|_| AtomicU64::new(0)).collect(),
            readings: AtomicU64::new(0),
            pinned: OnceLock::new(),
            geometry,
        }
    }

    /// Whether no packet has arrived since the stream became silent.
    pub(super) fn has_been_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire) == self.horizon.load(Ordering::Acquire)
    }

    pub(super) fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether only one thread fills the window.
    pub(super) fn is_exclusive(&self) -> bool {
        self.pins.len() == 1
    }

    /// The index of the record of the frame at `position` (in frames).
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below a usize"
    )]
    #[inline]
    pub(super) fn index(&self, position: u64) -> usize {
        (position % self.records.len() as u64) as usize
    }

    /// The record of the frame at `position` (in frames).
    #[inline]
    pub(super) fn record(&self, position: u64) -> &Record {
        &self.records[self.index(position)]
    }

    /// Pins the position for writer `writer` and returns it.
    pub(super) fn pin(&self, writer: usize) -> u64 {
        loop {
            let mut base = BLOCKED;
            wait_until(|| {
                base = self.base.load(Ordering::Acquire);
                base != BLOCKED || self.closed.load(Ordering::Acquire) != 0
            });
            if self.is_exclusive() {
                return base;
            }
            self.pins[writer].store(base, Ordering::Relaxed);
            // Pairs with the fence in `wait_grace_period`: either the sequencer sees this pin, or this thread sees
            // the new position.
            fence(Ordering::SeqCst);
            if self.base.load(Ordering::Acquire) == base {
                return base;
            }
            self.pins[writer].store(IDLE, Ordering::Release);
        }
    }

    /// Releases what [`pin`](Self::pin) pinned.
    pub(super) fn unpin(&self, writer: usize) {
        if !self.is_exclusive() {
            self.pins[writer].store(IDLE, Ordering::Release);
        }
    }

    /// Waits until no writer but `except` pins a position before `base`.
    pub(super) fn wait_grace_period(&self, except: usize, base: u64) {
        if self.is_exclusive() {
            return;
        }
        fence(Ordering::SeqCst);
        for (writer, pin) in self.pins.iter().enumerate() {
            wait_until(|| writer == except || pin.load(Ordering::Acquire) >= base);
        }
    }

    /// Waits until every writer but `except` has been seen without a pin.
    pub(super) fn wait_until_unpinned(&self, except: usize) {
        fence(Ordering::SeqCst);
        for (writer, pin) in self.pins.iter().enumerate() {
            wait_until(|| writer == except || pin.load(Ordering::Acquire) == IDLE);
        }
    }

    /// Drops that the kernel has counted at all sockets.
    pub(super) fn drops(&self) -> u64 {
        self.drops
            .iter()
            .map(|drops| drops.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

/// Waits until `ready` returns true, which requires progress of another thread. Spins briefly, then yields the core
/// repeatedly: with more threads than cores, the other thread may be waiting for it.
#[inline]
pub(super) fn wait_until(mut ready: impl FnMut() -> bool) {
    #[cfg(not(loom))]
    let backoff = crossbeam_utils::Backoff::new();
    while !ready() {
        #[cfg(not(loom))]
        backoff.snooze();
        #[cfg(loom)]
        crate::sync::spin_hint();
    }
}
