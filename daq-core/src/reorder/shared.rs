//! State shared by the threads that fill one window: epochs, pins and the position.
//!
//! # How frames are passed to the sequencer
//! A writer *pins* the position before it reads records, and unpins it when it is done. The sequencer first advances
//! the position, and then waits for a grace period: until no older pin exists. Afterwards no writer accesses the frames
//! that were passed, so their records may be read, published and reused.

use super::candidates::{Candidates, MAX_DISTRUST};
use super::parts::Parts;
use super::record::{History, Record};
use super::{Geometry, PacketId};
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, fence};
use crossbeam_utils::CachePadded;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Value of a writer's pin outside a batch.
pub(super) const IDLE: u64 = u64::MAX;
/// Value of the position while the sequencer changes more than the position. No writer may pin it.
pub(super) const BLOCKED: u64 = u64::MAX - 1;

/// Maximum time that packets wait in the socket of a delayed thread, in nanoseconds.
const MAX_DELAY_NS: u64 = 1_000_000_000;

/// Position, in frames, where the first epoch starts. It leaves room for packets with lower numbers.
const FIRST: u64 = 1 << 20;

/// An epoch: maps unit numbers to positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epoch {
    /// Number of the epoch, counted from 1; 0 if none was opened yet.
    pub(super) number: u64,
    /// Number of the segment, counted from 1; 0 if no epoch was opened yet. An epoch has one segment, and one more after each
    /// long gap.
    pub(super) segment: u64,
    /// A reference unit number.
    pub(super) unit: u64,
    /// Position of the first packet of the reference unit.
    pub(super) position: u64,
}

impl Epoch {
    /// Returns the position of the packet `id`, or `None` if the epoch has no such packet.
    pub(super) fn locate(&self, geometry: &Geometry, id: PacketId) -> Option<u64> {
        let distance = geometry.numbering.packets_between(self.unit, id)?;
        self.position.checked_add_signed(distance)
    }

    /// Moves the reference to `frame`, the oldest open frame, if it is so far behind that numbers would become ambiguous. Packets of
    /// other threads may have moved the window.
    pub(super) fn follow(&mut self, geometry: &Geometry, frame: u64) {
        let front = frame.saturating_mul(u64::from(geometry.packets_per_frame));
        let ahead = front.saturating_sub(self.position);
        if frame < BLOCKED && u128::from(ahead) > geometry.numbering.packets_to_wrap() / 8 {
            let id = geometry.numbering.after(self.unit, ahead);
            self.unit = id.unit;
            self.position = front - u64::from(id.sub);
        }
    }
}

/// A writer's request for a new epoch or segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochRequest {
    /// The first packet of the epoch.
    pub(super) first: PacketId,
    /// The number of the segment that the writer used last.
    pub(super) known: u64,
    /// The horizon when the first of the consistent packets arrived.
    pub(super) since: u64,
    /// What begins with the packet.
    pub(super) opening: Opening,
    /// When Linux received the first of the consistent packets, see [`Shared::is_stale`]; 0 if unknown.
    pub(super) received: u64,
}

/// What begins with a packet whose number is far from the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// An epoch.
    Epoch,
    /// An epoch of a sender that is known to restart its numbering, so that a higher number is not counted as skipped packets.
    Restart,
    /// A segment of the same epoch, after a long gap.
    Segment,
}

/// Requests of writers, which the sequencer handles while all writers wait.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) epoch: Option<EpochRequest>,
    /// Unit numbers to skip.
    pub(super) skips: Vec<u64>,
    /// For each writer, the first packet that may belong to a new epoch.
    pub(super) firsts: Box<[Option<PacketId>]>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) geometry: Geometry,
    /// Number of fields that each frame keeps.
    pub(super) kept: usize,
    pub(super) records: Box<[CachePadded<Record>]>,
    /// The oldest open frame, as a position in frames.
    pub(super) base: CachePadded<AtomicU64>,
    /// One past the highest position (in packets) seen in this epoch.
    pub(super) horizon: CachePadded<AtomicU64>,
    /// The lowest position (in packets) seen in this epoch.
    pub(super) start: AtomicU64,
    /// Number of packets that have arrived in all epochs.
    pub(super) arrived: CachePadded<AtomicU64>,
    /// The frame for which each writer waits for a slot; 0 if it waits for none.
    pub(super) wanted: Box<[CachePadded<AtomicU64>]>,
    pub(super) pins: Box<[CachePadded<AtomicU64>]>,
    /// Number of the epoch.
    pub(super) epoch_number: AtomicU64,
    /// Number of the segment, readable without a lock.
    pub(super) segment: AtomicU64,
    /// The epoch at its start. Each writer adopts it and moves its own reference.
    opened: Mutex<Epoch>,
    /// Offset that is added to a frame's own number to obtain its position in frames.
    pub(super) epoch_offset: AtomicU64,
    /// The first frame of the epoch.
    pub(super) first: AtomicU64,
    /// The first frame of the segment; earlier frames were never expected, or are in a gap.
    pub(super) floor: AtomicU64,
    /// The position of the first packet of the long gaps that are not final; `u64::MAX` without such gaps.
    pub(super) held: AtomicU64,
    /// The causes of loss of frames before this frame are final.
    pub(super) finalised: AtomicU64,
    pub(super) has_requests: AtomicU32,
    pub(super) requests: Mutex<Requests>,
    /// Number of epochs that continue the numbers of the epoch before the last one.
    pub(super) alternations: AtomicU64,
    /// The number of recent alternations. While senders alternate, more packets are needed to confirm an epoch.
    pub(super) distrust: AtomicU32,
    /// The unit number at which the epoch before the current one ended, and whether there is one.
    pub(super) ended: AtomicU64,
    pub(super) has_ended: AtomicU32,
    /// When Linux received the first packets of the epoch; 0 if unknown.
    pub(super) began: AtomicU64,
    /// Number of refused epoch requests.
    pub(super) refusals: AtomicU64,
    /// Number of polls of each writer.
    pub(super) rounds: Box<[CachePadded<AtomicU64>]>,
    /// 1 for each writer that waits for packets.
    pub(super) idle: Box<[CachePadded<AtomicU32>]>,
    /// Records which packets of closed frames arrived.
    pub(super) history: History,
    /// The horizon when the stream became silent for so long that the causes of all gaps became final; `u64::MAX` after
    /// later packets.
    pub(super) silent: AtomicU64,
    /// The horizon when no packet had arrived for so long that incomplete frames were closed.
    pub(super) paused: AtomicU64,
    /// 1 once the sequencer has ended.
    pub(super) closed: AtomicU32,
    /// Linux's drop count at each writer's socket.
    pub(super) drops: Box<[AtomicU64]>,
    /// Number of readings of the drop counts.
    pub(super) readings: AtomicU64,
    /// The parts of frames.
    pub(super) parts: Parts,
    /// The frame of the highest packet when a complete frame was last closed, if frames have several parts.
    pub(super) ahead: AtomicU64,
    /// The state that all threads use instead once the geometry is pinned, see
    /// [`ReorderWindow::pin`](super::ReorderWindow::pin).
    pub(super) pinned: OnceLock<Arc<Self>>,
}

impl Shared {
    pub(super) fn new(geometry: Geometry, kept: usize, writers: usize) -> Self {
        // The open frames, the same number of closed frames, and one that is neither while the window advances.
        let records = 2 * geometry.window + 1;
        Self {
            records: (0..records)
                .map(|_| CachePadded::new(Record::new(geometry.packets_per_frame, kept)))
                .collect(),
            base: CachePadded::new(AtomicU64::new(FIRST)),
            horizon: CachePadded::new(AtomicU64::new(0)),
            start: AtomicU64::new(0),
            arrived: CachePadded::new(AtomicU64::new(0)),
            wanted: (0..writers)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            pins: (0..writers)
                .map(|_| CachePadded::new(AtomicU64::new(IDLE)))
                .collect(),
            epoch_number: AtomicU64::new(0),
            segment: AtomicU64::new(0),
            held: AtomicU64::new(u64::MAX),
            opened: Mutex::new(Epoch::default()),
            epoch_offset: AtomicU64::new(0),
            first: AtomicU64::new(FIRST),
            floor: AtomicU64::new(FIRST),
            finalised: AtomicU64::new(FIRST),
            has_requests: AtomicU32::new(0),
            requests: Mutex::new(Requests {
                epoch: None,
                skips: Vec::with_capacity(64),
                firsts: vec![None; writers].into(),
            }),
            alternations: AtomicU64::new(0),
            distrust: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            has_ended: AtomicU32::new(0),
            began: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            rounds: (0..writers)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            idle: (0..writers)
                .map(|_| CachePadded::new(AtomicU32::new(0)))
                .collect(),
            history: History::new(),
            silent: AtomicU64::new(u64::MAX),
            paused: AtomicU64::new(u64::MAX),
            closed: AtomicU32::new(0),
            drops: (0..writers).map(|_| AtomicU64::new(0)).collect(),
            readings: AtomicU64::new(0),
            parts: Parts::new(&geometry),
            ahead: AtomicU64::new(0),
            pinned: OnceLock::new(),
            geometry,
            kept,
        }
    }

    /// Returns the epoch that the sequencer opened last.
    pub(super) fn epoch(&self) -> Epoch {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the epoch that writers adopt once [`segment`](Self::segment) changes.
    pub(super) fn set_epoch(&self, epoch: Epoch) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = epoch;
    }

    /// Returns whether no packet has arrived since the stream became silent. `seen` is one past the highest position that a
    /// thread has seen.
    pub(super) fn is_silent(&self, seen: u64) -> bool {
        self.silent.load(Ordering::Acquire) == self.horizon.load(Ordering::Acquire).max(seen)
    }

    /// Returns whether no packet has arrived since the stream paused, which is earlier than [silence](Self::is_silent).
    pub(super) fn is_paused(&self, seen: u64) -> bool {
        self.paused.load(Ordering::Acquire) == self.horizon.load(Ordering::Acquire).max(seen)
    }

    /// Returns whether a packet that Linux received at the time `received` has waited in the socket of a delayed thread since
    /// before the epoch began. The clock may have been set back, so only packets of the last second are recognised.
    pub(super) fn is_stale(&self, received: u64) -> bool {
        let ahead = self.began.load(Ordering::Acquire).saturating_sub(received);
        received > 0 && !self.is_exclusive() && (1..MAX_DELAY_NS).contains(&ahead)
    }

    /// Returns whether the segment begins with the epoch, not after a long gap.
    pub(super) fn begins_epoch(&self) -> bool {
        self.floor.load(Ordering::Acquire) == self.first.load(Ordering::Acquire)
    }

    /// Returns the number of consistent packets that confirm an epoch or a long gap: `resync_after`, and up to 64 times as many while
    /// two senders with different numbers alternate. The packets before the last of them are kept.
    pub(super) fn required(&self) -> u32 {
        let resync_after = self.geometry.resync_after;
        let factor = (self.distrust.load(Ordering::Relaxed) / 4).min(MAX_DISTRUST);
        let kept = u32::try_from(Candidates::capacity_for(&self.geometry)).unwrap_or(u32::MAX);
        let max = (kept / self.geometry.parts).saturating_add(1);
        resync_after
            .saturating_mul(1 << factor)
            .min(max)
            .max(resync_after)
    }

    /// Returns whether `id` continues the epoch before the current one, of which only a few packets have arrived. They were strays
    /// behind the stream then, and the numbers between are not missing. `horizon` is one past the highest position seen.
    pub(super) fn returns(&self, id: PacketId, horizon: u64) -> bool {
        let geometry = &self.geometry;
        let per_frame = u64::from(geometry.packets_per_frame);
        let seen = horizon.saturating_sub(self.first.load(Ordering::Acquire) * per_frame);
        let ended = self.ended.load(Ordering::Acquire);
        let distance = geometry.numbering.packets_between(ended, id);
        self.has_ended.load(Ordering::Acquire) != 0
            && seen <= 2 * u64::from(geometry.resync_after) + per_frame
            && distance.is_some_and(|distance| {
                distance.unsigned_abs() <= geometry.window as u64 * per_frame
            })
    }

    /// Counts a change between two senders with different numbers.
    pub(super) fn note_alternation(&self) {
        self.alternations.fetch_add(1, Ordering::Relaxed);
        let distrust = self.distrust.load(Ordering::Relaxed);
        self.distrust
            .store(distrust.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns whether packet `index` of `frame` is before the current segment, in or after a gap that is not final.
    pub(super) fn is_held(&self, frame: u64, index: u32) -> bool {
        let first = self.held.load(Ordering::Acquire);
        first != u64::MAX
            && frame < self.floor.load(Ordering::Acquire)
            && frame * u64::from(self.geometry.packets_per_frame) + u64::from(index) >= first
    }

    /// Returns whether long gaps are held until they are final. A source whose numbers are all trusted has a `resync_after` of 1. If
    /// frames have several parts, most of their senders must confirm a gap.
    pub(super) const fn holds_gaps(&self) -> bool {
        self.geometry.parts == 1 && self.geometry.resync_after > 1
    }

    /// Returns whether packet `index` of the closed frame `frame` was expected.
    pub(super) fn was_expected(&self, frame: u64, index: u32) -> bool {
        let position = frame * u64::from(self.geometry.packets_per_frame) + u64::from(index);
        position >= self.start.load(Ordering::Acquire)
            && self.parts.expects(&self.geometry, frame, index)
    }

    pub(super) fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether only one thread fills the window.
    pub(super) fn is_exclusive(&self) -> bool {
        self.pins.len() == 1
    }

    /// Returns the index of the record of the frame at `position` (in frames).
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than a usize"
    )]
    #[inline]
    pub(super) fn index(&self, position: u64) -> usize {
        (position % self.records.len() as u64) as usize
    }

    /// Returns the record of the frame at `position` (in frames).
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
            // Pairs with the fence in `wait_grace_period`: either the sequencer sees this pin, or this thread sees the
            // new position.
            fence(Ordering::SeqCst);
            if self.base.load(Ordering::Acquire) == base {
                return base;
            }
            self.pins[writer].store(IDLE, Ordering::Release);
        }
    }

    /// Releases the pin of [`pin`](Self::pin).
    pub(super) fn unpin(&self, writer: usize) {
        if !self.is_exclusive() {
            self.pins[writer].store(IDLE, Ordering::Release);
        }
    }

    /// Waits until no writer except `except` pins a position before `base`.
    pub(super) fn wait_grace_period(&self, except: usize, base: u64) {
        if self.is_exclusive() {
            return;
        }
        fence(Ordering::SeqCst);
        for (writer, pin) in self.pins.iter().enumerate() {
            wait_until(|| writer == except || pin.load(Ordering::Acquire) >= base);
        }
    }

    /// Waits until every writer except `except` was observed without a pin.
    pub(super) fn wait_until_unpinned(&self, except: usize) {
        fence(Ordering::SeqCst);
        for (writer, pin) in self.pins.iter().enumerate() {
            wait_until(|| writer == except || pin.load(Ordering::Acquire) == IDLE);
        }
    }

    /// Returns the number of drops that Linux has counted at all sockets.
    pub(super) fn drops(&self) -> u64 {
        self.drops
            .iter()
            .map(|drops| drops.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

/// Waits until `ready` returns true, which requires progress of another thread. Spins briefly, then yields the core
/// repeatedly, because with more threads than cores the other thread may be waiting for the core.
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
