//! The reorder window: the open slots of a ring, in which packets are placed in any order of arrival.
//!
//! ```text
//!       closed, not final            open                  not open yet
//!   … ┆ late or lost?          │ packets are placed   │ a packet here advances
//!     ┆                        │                      │ the window
//!     └── window frames ───────┴── window frames ─────┴── window frames ──┐ beyond: kept aside until
//!                              base                                       │ several packets are consistent,
//!                                                                           then a new epoch opens
//! ```
//! Packets beyond these frames are kept aside until several consistent packets confirm a new epoch, or the old stream
//! continues. They are placed if the new epoch is confirmed, and counted as rejected otherwise. A packet that was
//! recently closed as missing is late: such packets never confirm an epoch, even if many are consistent.
//!
//! Any number of threads may fill one window, each through its own [`ReorderWindow`] handle. Handle 0 is the
//! *sequencer*: it alone closes frames, in order, and publishes them to the ring.
//!
//! # Ledger
//! `expected` covers, for each part of the frames, the first to the last packet seen in each epoch; a packet counts once it
//! has arrived, or once its frame is closed without it. A packet is `delivered` when its frame is published with it. A missing packet
//! stays `pending` until the window no longer tracks its frame, the stream has been idle for a second, or the stream
//! has ended. So a packet that arrives late is counted as `late` and not as a gap. Then its cause is final, and no
//! counter ever decreases.
//!
//! A frame without a slot is still tracked: its packets that arrive are lost to `ring_full`, the others to the wire.

mod batch;
mod candidates;
mod classification;
mod fairness;
mod numbering;
mod parts;
mod record;
mod sequencer;
mod shared;
mod size;

pub use batch::{Batch, Outcome, PacketSlot};
pub use numbering::{Numbering, PacketId};
pub use size::{Arrival, WindowSize};

use crate::frame::{PacketSizes, Timestamp};
use crate::ledger::SourceLedger;
use crate::ring::{Fill, Producer};
use crate::sync::{Arc, Ordering};
use candidates::{Candidates, Content};
use classification::Candidate;
use sequencer::Sequencer;
use shared::{Epoch, Shared};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How frames are divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of packets per frame, at least 1 and a multiple of `parts`.
    pub packets_per_frame: u32,
    /// Number of parts of a frame, at least 1. The parts have the same size and are numbered from 0 in the order of their
    /// packets. Each comes from a detector module, an antenna or another sender of its own.
    pub parts: u32,
    /// Number of payload bytes in the first packet of a part.
    pub first_bytes: usize,
    /// Number of payload bytes of every packet of a part except the first and the last.
    pub packet_bytes: usize,
    /// Number of payload bytes of a frame, a multiple of `parts`. The last packet of a part contains the remaining bytes of
    /// the part. If frames differ in size ([`PacketSize::frame`]), the largest frame has this size.
    pub frame_bytes: usize,
    /// How packets are numbered.
    pub numbering: Numbering,
    /// Number of frames open at the same time, at least 1.
    pub window: usize,
    /// Maximum number of packets, beyond twice the window, that may be missing in a row. If consistent packets step
    /// forward by no more than this, the packets in between are lost. A longer step opens an epoch.
    pub max_gap: u64,
    /// Number of consecutive consistent packets beyond twice the window after which the window accepts them, at least
    /// 1. The packets before the last of them are kept aside meanwhile.
    pub resync_after: u32,
    /// Time without packets after which an incomplete frame before the newest one is closed. After ten times as long, the causes
    /// of losses are final.
    pub close_after: Duration,
    /// Signal duration of a frame in nanoseconds, if each packet contains the time of its own payload. The start time
    /// of a frame is then known even if its first packets are missing. 0 if unknown, or if packets contain the time of
    /// their frame.
    pub frame_ns: u64,
    /// Signal duration of a frame in nanoseconds according to the declared sample rate; 0 if unknown.
    pub declared_ns: u64,
}

/// The default time without packets after which incomplete frames are closed.
pub const CLOSE_AFTER: Duration = Duration::from_millis(100);

impl Geometry {
    /// Returns a geometry of `packets_per_frame` packets of `packet_bytes` each, numbered by a 64-bit counter, with a
    /// window of 4 frames.
    pub const fn new(packets_per_frame: u32, packet_bytes: usize) -> Self {
        Self {
            packets_per_frame,
            parts: 1,
            first_bytes: packet_bytes,
            packet_bytes,
            frame_bytes: packets_per_frame as usize * packet_bytes,
            numbering: Numbering::PLAIN,
            window: 4,
            max_gap: 0,
            resync_after: 4,
            close_after: CLOSE_AFTER,
            frame_ns: 0,
            declared_ns: 0,
        }
    }

    /// Returns the signal duration of a frame before packet `i` in nanoseconds; 0 if unknown.
    pub(crate) fn nanoseconds_before(&self, i: u32) -> u64 {
        if self.frame_ns == 0 {
            return 0;
        }
        let bytes = self.extent(i).start as u128 * u128::from(self.frame_ns);
        u64::try_from(bytes / self.frame_bytes.max(1) as u128).unwrap_or(u64::MAX)
    }

    /// Returns the payload bytes of the largest packet.
    fn max_payload(&self) -> usize {
        let last = self.extent(self.packets_per_frame - 1).len();
        self.first_bytes
            .max(self.packet_bytes)
            .max(last)
            .min(self.frame_bytes)
    }

    /// Returns the frame of the packet at `position`, and its index in the frame.
    const fn split(&self, position: u64) -> (u64, u32) {
        let packets_per_frame = self.packets_per_frame as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is less than `packets_per_frame`, which is a u32"
        )]
        let index = (position % packets_per_frame) as u32;
        (position / packets_per_frame, index)
    }

    /// Returns the part of the packet `id`. Only units that are frames have more than one part.
    const fn part_of(&self, id: PacketId) -> u32 {
        if self.parts == 1 {
            0
        } else {
            id.sub / self.packets_per_part()
        }
    }

    /// Returns the number of packets of a part.
    pub const fn packets_per_part(&self) -> u32 {
        self.packets_per_frame / self.parts
    }

    /// Returns the sizes of packets for the metadata of frames.
    pub fn packet_sizes(&self) -> PacketSizes {
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        PacketSizes {
            first: size(self.first_bytes),
            rest: size(self.packet_bytes),
            parts: self.parts,
        }
    }

    /// Returns the byte range of packet `i` in the frame.
    #[inline]
    pub const fn extent(&self, i: u32) -> Range<usize> {
        if self.parts == 1 {
            return self.extent_in_part(i, self.packets_per_frame, self.frame_bytes);
        }
        let (packets, bytes) = (
            self.packets_per_part(),
            self.frame_bytes / self.parts as usize,
        );
        let start = (i / packets) as usize * bytes;
        let extent = self.extent_in_part(i % packets, packets, bytes);
        start + extent.start..start + extent.end
    }

    /// Returns the number of packets of a frame of `bytes` bytes, which must not exceed `frame_bytes`.
    pub fn packets_in(&self, bytes: usize) -> u32 {
        if bytes == self.frame_bytes {
            return self.packets_per_frame;
        }
        let after = bytes.saturating_sub(self.first_bytes);
        narrow(after.div_ceil(self.packet_bytes.max(1)) as u64) + 1
    }

    /// Returns the byte range of packet `i` in a frame of `bytes` bytes.
    pub fn extent_in(&self, i: u32, bytes: usize) -> Range<usize> {
        if bytes == self.frame_bytes {
            return self.extent(i);
        }
        self.extent_in_part(i, self.packets_in(bytes), bytes)
    }

    /// Returns whether packet `i` of a frame can have `size`.
    #[inline]
    fn fits(&self, i: u32, size: PacketSize) -> bool {
        match size.frame {
            None => size.payload == self.extent(i).len(),
            Some(bytes) => {
                self.parts == 1
                    && (1..=self.frame_bytes).contains(&bytes)
                    && i < self.packets_in(bytes)
                    && size.payload == self.extent_in(i, bytes).len()
            }
        }
    }

    /// Returns the byte range of packet `i` in a part of `packets` packets and `bytes` bytes.
    #[inline]
    const fn extent_in_part(&self, i: u32, packets: u32, bytes: usize) -> Range<usize> {
        let start = if i == 0 {
            0
        } else {
            self.first_bytes + (i as usize - 1) * self.packet_bytes
        };
        let size = if i == 0 {
            self.first_bytes
        } else {
            self.packet_bytes
        };
        let end = if i + 1 == packets {
            bytes
        } else {
            start + size
        };
        start..end
    }
}

/// The size of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSize {
    /// Number of payload bytes of the packet.
    pub payload: usize,
    /// Number of payload bytes of its frame, if frames differ in size; at most [`Geometry::frame_bytes`].
    pub frame: Option<usize>,
}

impl From<usize> for PacketSize {
    /// Returns the size of a packet with `payload` bytes of payload in a frame that has [`Geometry::frame_bytes`].
    fn from(payload: usize) -> Self {
        Self {
            payload,
            frame: None,
        }
    }
}

/// One thread's handle to a window.
#[derive(Debug)]
pub struct ReorderWindow {
    shared: Arc<Shared>,
    state: WriterState,
    /// Whether this handle uses a pinned geometry, see [`pin`](Self::pin).
    is_pinned: bool,
}

/// The state of one writer thread.
#[derive(Debug)]
struct WriterState {
    writer: usize,
    /// The epoch that this thread has adopted. Its reference follows the packets of this thread.
    epoch: Epoch,
    candidate: Option<Candidate>,
    /// The packets that belong to the candidate.
    candidates: Candidates,
    /// Position of the next expected packet.
    cursor: u64,
    /// Whether the next packet opens an epoch regardless of its number.
    restarts: bool,
    /// The horizon since which only repeated numbers have arrived whose payload could not be compared, and the number of these
    /// packets.
    unexplained: (u64, u64),
    /// The next expected packet with its frame and index; `None` if they must be computed from `cursor`.
    next: Option<(PacketId, u64, u32)>,
    /// Whether payload was copied with streaming stores that other threads may not see yet.
    streamed: bool,
    ledger: SourceLedger,
    sequencer: Option<Sequencer>,
}

impl ReorderWindow {
    /// Creates a window over `producer`, filled by `writers` threads. Returns one handle per thread; the first is the
    /// sequencer.
    ///
    /// # Panics
    /// Panics if `writers`, `geometry.window`, `geometry.packets_per_frame` or `geometry.numbering.step` is 0, or if a
    /// frame does not fit into the ring's slots.
    pub fn new(
        producer: Producer,
        geometry: Geometry,
        writers: usize,
        ledger: &SourceLedger,
    ) -> Vec<Self> {
        assert!(
            writers > 0 && geometry.window > 0 && geometry.packets_per_frame > 0,
            "the window, the packets per frame and the number of writers must be at least 1: {geometry:?}"
        );
        assert!(
            geometry.numbering.step > 0 && geometry.numbering.packets_per_unit > 0,
            "{geometry:?}"
        );
        assert!(
            geometry.frame_bytes <= producer.options().slot_bytes,
            "a frame must fit into a slot of the ring: {geometry:?}"
        );
        assert!(
            geometry.parts > 0
                && geometry.packets_per_frame.is_multiple_of(geometry.parts)
                && geometry.frame_bytes.is_multiple_of(geometry.parts as usize),
            "packets and bytes of a frame must be multiples of its parts: {geometry:?}"
        );
        let last = geometry.extent(geometry.packets_per_frame - 1);
        assert!(
            last.start < last.end,
            "the last packet of a frame must not be empty: {geometry:?}"
        );
        assert!(
            geometry.packets_per_frame <= producer.options().packets_per_frame,
            "`packets_per_frame` must not exceed the ring's `packets_per_frame`: {geometry:?}"
        );
        assert!(
            ledger.parts.is_empty() || ledger.parts.len() == geometry.parts as usize,
            "each part needs a ledger: {geometry:?}"
        );
        let shared = Arc::new(Shared::new(
            geometry,
            producer.options().kept_fields(),
            writers,
        ));
        let mut sequencer = Some(Sequencer::new(producer, ledger.clone(), &shared));
        (0..writers)
            .map(|writer| {
                let state = WriterState {
                    writer,
                    epoch: Epoch::default(),
                    candidate: None,
                    candidates: Candidates::new(&geometry),
                    cursor: 0,
                    restarts: false,
                    unexplained: (0, 0),
                    next: None,
                    streamed: false,
                    ledger: ledger.clone(),
                    sequencer: sequencer.take(),
                };
                Self {
                    shared: shared.clone(),
                    state,
                    is_pinned: false,
                }
            })
            .collect()
    }

    /// Returns how frames are divided into packets.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Replaces the planned geometry, which is an upper bound, with the one detected from the first packets. Each
    /// thread calls this with the same geometry before it places its first packet. The first call determines the
    /// geometry.
    ///
    /// # Panics
    /// Panics if frames or their packets exceed the planned sizes, or if an epoch is open.
    pub fn pin(&mut self, geometry: Geometry) {
        self.adopt_pinned();
        if self.is_pinned {
            return;
        }
        let planned = &self.shared.geometry;
        assert!(
            (1..=planned.packets_per_frame).contains(&geometry.packets_per_frame)
                && geometry.frame_bytes <= planned.frame_bytes
                && geometry.extent(geometry.packets_per_frame - 1).start < geometry.frame_bytes,
            "the geometry exceeds the planned geometry: {geometry:?}, planned {planned:?}"
        );
        assert!(
            self.state.epoch.segment == 0,
            "the geometry must be set before the first packet"
        );
        let writers = self.shared.pins.len();
        self.shared.pinned.get_or_init(|| {
            let pinned = Shared::new(geometry, self.shared.kept, writers);
            for (new, planned) in pinned.idle.iter().zip(&self.shared.idle) {
                new.store(planned.load(Ordering::Acquire), Ordering::Release);
            }
            Arc::new(pinned)
        });
        self.adopt_pinned();
    }

    /// Uses the pinned geometry, if any thread has pinned one.
    fn adopt_pinned(&mut self) {
        let Some(pinned) = self.shared.pinned.get().cloned() else {
            return;
        };
        self.shared = pinned;
        self.shared.idle[self.state.writer].store(0, Ordering::Release);
        self.is_pinned = true;
        let geometry = &self.shared.geometry;
        self.state.candidates = Candidates::new(geometry);
    }

    /// Returns whether only this thread fills the window. If so, Linux can receive packets directly into their packet
    /// slots (see [`Batch::predict`]).
    pub fn is_exclusive(&self) -> bool {
        self.shared.is_exclusive()
    }

    /// Declares that frames get their times when they end ([`Batch::end`]), separately from their packets. A complete
    /// frame then stays open until it has its time, the window advances past it, or no more packets arrive.
    pub fn await_times(&mut self) {
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.await_times();
        }
    }

    /// Returns whether this handle is the sequencer, which closes frames.
    pub const fn is_sequencer(&self) -> bool {
        self.state.sequencer.is_some()
    }

    /// Returns the pattern with which missing packets are filled.
    pub fn fill(&self) -> Fill {
        self.state
            .sequencer
            .as_ref()
            .map_or(Fill::ZERO, |sequencer| sequencer.producer().options().fill)
    }

    /// Begins a batch. Open frames stay open until the batch is committed.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch::new(&self.shared, &mut self.state)
    }

    /// Calls `place` with a batch, and commits the batch.
    pub fn with_batch<R>(&mut self, place: impl FnOnce(&mut Batch<'_>) -> R) -> R {
        let mut batch = self.batch();
        let result = place(&mut batch);
        batch.commit();
        result
    }

    /// Waits until a slot is freed or about `limit` has passed.
    pub fn wait(&self, policy: crate::notify::Wait, limit: std::time::Duration) {
        if let Some(sequencer) = &self.state.sequencer {
            sequencer.producer().wait(policy, limit);
        }
    }

    /// Calls `wait`, which waits for packets. Meanwhile, other threads do not wait for this thread.
    pub fn idle<R>(&mut self, wait: impl FnOnce() -> R) -> R {
        let idle = &self.shared.idle[self.state.writer];
        idle.store(1, Ordering::Release);
        let result = wait();
        idle.store(0, Ordering::Release);
        result
    }

    /// Reports the number of packets that Linux has dropped so far at this thread's socket. This is evidence for the
    /// cause of gaps, not for their number.
    pub fn note_drops(&self, total: u64) {
        self.shared.drops[self.state.writer].store(total, Ordering::Relaxed);
        self.shared.readings.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether the cause of a gap may not be determined yet. If so, [`note_drops`](Self::note_drops) should be
    /// called.
    pub fn wants_drops(&self) -> bool {
        self.state
            .sequencer
            .as_ref()
            .is_some_and(Sequencer::has_gaps)
            || self.state.sequencer.is_none()
    }

    /// Returns the number of epochs that continue the numbers of the epoch before the last one. Several of them show that two
    /// senders with different numbers send to one source.
    pub fn alternations(&self) -> u64 {
        self.shared.alternations.load(Ordering::Relaxed)
    }

    /// Declares that the sender restarts its numbering. The next packet opens an epoch even if its number continues the
    /// stream.
    ///
    /// Call this function if the source knows about the restart, for example if it replays a recording. Effective only
    /// for exclusive windows; other windows require consistent packets.
    pub fn restart(&mut self) {
        if self.shared.is_exclusive() {
            self.state.restarts = true;
            self.state.next = None;
        }
    }

    /// Counts packets that arrived before the source was ready.
    pub fn count_before_start(&self, packets: u64) {
        self.state.ledger.before_start.add_shared(packets);
    }

    /// Counts packets that the sender announced, that did not arrive, and that no later packet number shows as missing.
    /// Effective only for the sequencer.
    pub fn count_absent(&mut self, packets: u64) {
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.count_absent(&self.shared, packets);
        }
    }

    /// Counts packets without a readable sequence number.
    pub fn reject(&self, packets: u64) {
        self.state.ledger.rejected.add_shared(packets);
    }

    /// Counts packets that intentionally contain no data.
    pub fn control(&self, packets: u64) {
        self.state.ledger.control.add_shared(packets);
    }

    /// Declares that `unit` intentionally contains no data (such as a SPEAD heap of descriptors), so its packets are
    /// not expected.
    ///
    /// Effective only if a unit is a frame, and while none of its packets has arrived. If payload of the unit arrives
    /// before payload of a later unit, the request is cancelled. If later units have already arrived, the unit is
    /// skipped immediately and its packets are rejected. If its frame is already closed, its packets count as `late`.
    pub fn skip(&mut self, unit: u64) {
        let is_frame = self.shared.geometry.numbering.packets_per_unit
            == self.shared.geometry.packets_per_frame;
        if !is_frame || self.state.opens_epoch() && self.is_sequencer() {
            return;
        }
        if !self.state.candidates.is_empty() {
            // The unit may belong to an epoch that is not confirmed yet.
            let _ = self.state.keep(
                &self.shared,
                PacketId::of(unit),
                Content::NoData,
                Timestamp::default(),
                0,
            );
        }
        self.state.skip(&self.shared, unit);
    }

    /// Does the sequencer's work between batches: handles requests of other threads, closes complete frames, and closes
    /// frames that have waited too long. Every thread must call it after each poll for packets, and at least every few
    /// milliseconds while it does not wait for packets.
    pub fn tick(&mut self, now: Instant) {
        self.adopt_pinned();
        if !self.state.candidates.is_empty() && self.state.candidates.is_too_old(now) {
            self.end_candidates();
        }
        let (shared, state) = (&self.shared, &mut self.state);
        let epoch = state.current_epoch(shared);
        if let Some(sequencer) = &mut state.sequencer {
            sequencer.tick(shared, state.writer, epoch, now);
        } else {
            shared.rounds[state.writer].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends the candidates, because no packet follows them. Those after a pause are not of this run.
    fn end_candidates(&mut self) {
        if self.state.candidates.is_empty() || self.state.candidate.is_some_and(|run| run.is_sure) {
            self.state.reject_candidates(&self.shared);
        } else {
            let mut batch = self.batch();
            batch.refute_candidates();
            batch.commit();
        }
    }

    /// Ends the stream: publishes open frames up to the last packet seen, and finalises the ledger. All other threads
    /// must have stopped.
    pub fn finish(&mut self) {
        self.end(false);
    }

    /// [Finishes](Self::finish) the window of a run that was to receive whole frames: counts the packets after the last one in the
    /// newest frame as missing. Frames of several parts are finished as usual.
    pub fn finish_frame(&mut self) {
        self.end(true);
    }

    fn end(&mut self, wants_whole_frame: bool) {
        self.adopt_pinned();
        self.end_candidates();
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.finish(&self.shared, self.state.writer, wants_whole_frame);
        }
    }
}

impl WriterState {
    /// Adopts the epoch that the sequencer opened.
    fn refresh(&mut self, shared: &Shared) {
        self.epoch = shared.epoch();
        if !shared.is_exclusive() {
            shared.requests().firsts[self.writer] = None;
        }
        self.cursor = self.epoch.position;
        self.restarts = false;
        self.next = None;
        self.candidate = None;
    }

    /// Returns the current epoch. Its reference follows the packets of this thread once this thread has adopted the
    /// epoch.
    fn current_epoch(&self, shared: &Shared) -> Epoch {
        let mut epoch = if shared.segment.load(Ordering::Acquire) == self.epoch.segment {
            self.epoch
        } else {
            shared.epoch()
        };
        epoch.follow(&shared.geometry, shared.base.load(Ordering::Acquire));
        epoch
    }

    /// Requests to skip `unit`, which intentionally contains no data, see [`ReorderWindow::skip`].
    fn skip(&mut self, shared: &Shared, unit: u64) {
        let epoch = self.current_epoch(shared);
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.skip(shared, self.writer, epoch, unit);
            return;
        }
        let mut requests = shared.requests();
        if requests.skips.len() < requests.skips.capacity() {
            requests.skips.push(unit);
        }
        drop(requests);
        shared.has_requests.store(1, Ordering::Release);
    }

    /// Keeps a candidate and returns the memory for its payload, or `None` if it cannot be kept.
    fn keep(
        &mut self,
        shared: &Shared,
        id: PacketId,
        content: Content,
        time: Timestamp,
        received: u64,
    ) -> Option<&mut [u8]> {
        if !shared.is_exclusive() && content != Content::NoData {
            let first = self.lowest_candidate(&shared.geometry, id);
            shared.requests().firsts[self.writer] = Some(first);
        }
        if let Some(candidate) = &self.candidate {
            let part = shared.geometry.part_of(id);
            shared.parts.note_far(part, candidate.since);
        }
        let (memory, dropped) = self.candidates.push(id, content, time, received);
        if let Some(dropped) = dropped {
            dropped
                .refuted
                .count(&self.ledger, &shared.geometry, dropped.id);
        }
        memory
    }

    /// Returns the candidate with the lowest position, including `id`.
    fn lowest_candidate(&self, geometry: &Geometry, id: PacketId) -> PacketId {
        geometry.numbering.lowest(id, self.candidates.ids())
    }

    /// Counts the candidates, because the stream continued without them.
    fn reject_candidates(&mut self, shared: &Shared) {
        if self.candidates.is_empty() {
            return;
        }
        for kept in self.candidates.packets() {
            kept.refuted.count(&self.ledger, &shared.geometry, kept.id);
        }
        self.candidates.clear();
        if !shared.is_exclusive() {
            shared.requests().firsts[self.writer] = None;
        }
    }
}

/// Counts a packet with an implausible number.
fn count_rejected(ledger: &SourceLedger, geometry: &Geometry, id: PacketId) {
    ledger.rejected.add_shared(1);
    if let Some(part) = ledger.parts.get(geometry.part_of(id)) {
        part.rejected.add_shared(1);
    }
}

impl Drop for ReorderWindow {
    fn drop(&mut self) {
        self.adopt_pinned();
        self.state.reject_candidates(&self.shared);
        if self.state.sequencer.is_some() {
            // During unwinding the window may be inconsistent. An unfinished ledger is better than a second panic.
            if !std::thread::panicking() {
                self.finish();
            }
            self.shared.closed.store(1, Ordering::Release);
        }
    }
}

/// Converts a number of packets, which always fits.
fn narrow(packets: u64) -> u32 {
    u32::try_from(packets).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
