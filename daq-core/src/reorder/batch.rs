//! Places packets in the open frames of a reorder window.

mod epochs;
mod kept;
mod prediction;
mod repeats;
mod slots;

pub use prediction::PacketSlot;

use super::candidates::Content;
use super::classification::{Candidate, Classification};
use super::record::{Record, state};
use super::shared::{Opening, Shared};
use super::{Geometry, PacketId, PacketSize, WriterState, count_rejected};
use crate::frame::{Clock, Timestamp};
use crate::sync::Ordering;
use crate::sys::copy;
use repeats::Earlier;

/// The result of placing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet was written to its frame.
    Placed,
    /// A packet with this number had already arrived.
    Duplicate,
    /// The packet's frame was closed before it arrived.
    Late,
    /// The packet's frame has no slot, because the ring was full.
    RingFull,
    /// The packet precedes the first packet of the run. Its sender was already sending when the run started.
    BeforeStart,
    /// The sequence number is implausible, or the packet has the wrong length.
    Rejected,
    /// The sequence number is far from the stream, so the packet is kept aside. It is placed if the following packets
    /// confirm a new epoch or a long gap, and rejected otherwise.
    Kept,
    /// The sequence number has arrived before, or precedes the first packet of the run. The packet is kept aside. It is placed if
    /// the following packets confirm that the sender has restarted, and counted as a duplicate, or as before the start, otherwise.
    Repeated,
}

/// A batch of packets. While it exists, the sequencer closes no frame that was open when the batch began.
///
/// [`commit`](Self::commit) ends a batch and publishes the frames that it completed. A batch that is dropped instead
/// loses no packet: its complete frames are published at the next commit or [tick](super::ReorderWindow::tick).
///
/// A thread has one batch at a time and cannot finish the window while the batch exists:
///
/// ```compile_fail,E0499
/// fn under_it(window: &mut daq_core::reorder::ReorderWindow) {
///     let mut batch = window.batch();
///     window.finish();
///     batch.commit();
/// }
/// ```
#[derive(Debug)]
#[must_use = "a batch must be committed"]
pub struct Batch<'a> {
    shared: &'a Shared,
    state: &'a mut WriterState,
    base: u64,
    /// One past the highest position seen in this batch.
    horizon: u64,
    /// The lowest position seen in this batch.
    start: u64,
    /// Number of packets that arrived in this batch.
    arrived: u64,
    /// Whether packets before the start of the run are placed.
    accepts_preceding: bool,
    /// When Linux received the next packet; 0 if unknown.
    received: u64,
}

/// Where to write the payload of a packet: the slot of its frame, or the reason why there is no slot.
enum Memory {
    Slot(*mut u8),
    /// The frame has no memory, because the ring was full.
    RingFull,
    /// The frame was closed while this thread waited.
    Closed,
    /// The frame accepts no packets: it is skipped, or the window moved to another epoch while this thread waited.
    Reject,
}

/// The frame of a packet.
enum Found {
    Open { frame: u64, index: u32 },
    Closed { frame: u64, index: u32 },
    BeforeStart,
    Undecided,
    Reject,
}

impl<'a> Batch<'a> {
    pub(super) fn new(shared: &'a Shared, state: &'a mut WriterState) -> Self {
        let base = shared.pin(state.writer);
        let is_stale = shared.segment.load(Ordering::Acquire) != state.epoch.segment;
        if is_stale {
            state.refresh(shared);
        }
        state.epoch.follow(&shared.geometry, base);
        let mut batch = Self {
            shared,
            state,
            base,
            horizon: 0,
            start: u64::MAX,
            arrived: 0,
            accepts_preceding: false,
            received: 0,
        };
        if is_stale {
            // Packets of another thread have confirmed an epoch that this thread's candidates may belong to.
            batch.place_candidates(false);
        }
        batch
    }

    /// Returns how frames are divided into packets.
    pub fn geometry(&self) -> &'a Geometry {
        &self.shared.geometry
    }

    /// Returns the number of packets that Linux has dropped at the sockets of the source.
    pub fn kernel_drops(&self) -> u64 {
        self.shared.drops()
    }

    /// Sets the time at which the packets that are placed next were received. Effective only if the time is of Linux's clock.
    ///
    /// If the sender restarts its numbers, a packet that one thread reads late shows by this time that it is older than the
    /// packets that another thread has read, so that it does not count as a further restart.
    #[inline]
    pub fn received_at(&mut self, time: Timestamp) {
        self.received = if time.clock == Clock::Kernel {
            time.ns
        } else {
            0
        };
    }

    /// Copies `payload` to the packet slot of packet `id`.
    #[inline]
    pub fn place(&mut self, id: PacketId, payload: &[u8], time: Timestamp) -> Outcome {
        self.place_sized(id, payload, None, time)
    }

    /// Copies `payload` to the packet slot of packet `id`. If frames differ in size, `frame` is the number of payload bytes
    /// of the packet's frame. A packet that disagrees with the first packet of its frame is rejected.
    ///
    /// Only frames of one part may differ in size, and then each packet of the window must state the size of its frame. A frame
    /// without any packet counts with the packets of the largest frame.
    #[inline]
    pub fn place_sized(
        &mut self,
        id: PacketId,
        payload: &[u8],
        frame: Option<usize>,
        time: Timestamp,
    ) -> Outcome {
        let size = PacketSize {
            payload: payload.len(),
            frame,
        };
        let outcome = self.place_with(id, size, time, |memory| {
            // SAFETY:
            // - `place_with` provides `size.payload` writable bytes of an open slot. Nothing else refers to them,
            //   because the packet has not arrived before and the batch keeps its frame open.
            // - The ring's memory and the caller's payload are different allocations.
            // - `flush` executes a fence before other threads may read the bytes.
            unsafe { copy::stream(payload.as_ptr(), memory, payload.len()) };
        });
        self.state.streamed = true;
        outcome
    }

    /// Calls `write` to write the payload of packet `id`, which has `size`, to its packet slot.
    ///
    /// `write` is called at most once, and only if the outcome is [`Outcome::Placed`] or [`Outcome::Kept`], with the
    /// address of [`PacketSize::payload`] writable bytes.
    #[inline]
    pub fn place_with(
        &mut self,
        id: PacketId,
        size: impl Into<PacketSize>,
        time: Timestamp,
        write: impl FnOnce(*mut u8),
    ) -> Outcome {
        let size = size.into();
        let (frame, index) = match self.find(id, Some(size)) {
            Found::Open { frame, index } => (frame, index),
            Found::Closed { frame, index } => {
                if self.continues_repeats(id, frame, index) {
                    return self.repeat(id, size, time, Earlier::Missing, write);
                }
                return match self.place_late(id, frame, index, Some(size)) {
                    Ok(earlier) => self.repeat(id, size, time, earlier, write),
                    Err(outcome) => outcome,
                };
            }
            Found::BeforeStart => return self.repeat(id, size, time, self.before(), write),
            Found::Undecided => return self.keep(id, Content::Payload(size), time, write),
            Found::Reject => return self.reject(id),
        };
        if self.continues_repeats(id, frame, index) {
            return self.repeat(id, size, time, Earlier::Missing, write);
        }
        let record = self.shared.record(frame);
        let memory = match self.memory(frame, record) {
            Memory::Slot(memory) => Some(memory),
            Memory::RingFull => None,
            Memory::Closed => {
                let late = self.place_late(id, frame, index, Some(size));
                return self.count_late(id, late);
            }
            Memory::Reject => return self.reject(id),
        };
        if !record.admits(size) {
            return self.reject(id);
        }
        let exclusive = self.shared.is_exclusive();
        if !record.claim(index, exclusive) {
            return self.repeat(id, size, time, Earlier::Arrived { frame, index }, write);
        }
        self.see(frame, index);
        self.refute(id);
        if let Some(memory) = memory {
            let offset = self.shared.geometry.extent(index).start;
            // SAFETY: the packet is inside `frame_bytes`, which fits the slot that starts at `memory`.
            // `ReorderWindow::new` checked this.
            write(unsafe { memory.add(offset) });
            #[cfg(loom)]
            // SAFETY: this code runs only under loom, which checks that one thread at a time writes the packet, and
            // that reads happen afterwards.
            record.canary[index as usize].with_mut(|canary| unsafe { *canary += 1 });
        }
        record.mark_present(index, exclusive);
        self.arrived += 1;
        stamp(record, self.geometry(), index, time);
        if memory.is_some() {
            Outcome::Placed
        } else {
            Outcome::RingFull
        }
    }

    /// Records that packet `id` arrived damaged.
    pub fn place_bad(&mut self, id: PacketId) -> Outcome {
        match self.find(id, None) {
            Found::Open { frame, index } => {
                let record = self.shared.record(frame);
                record.resolve_skip_request(state::UNASSIGNED);
                if record.state.load(Ordering::Acquire) == state::SKIPPED {
                    return self.reject(id);
                }
                self.see(frame, index);
                self.refute(id);
                if record.is_present(index) || !record.mark_bad(index, self.shared.is_exclusive()) {
                    return self.duplicate(index);
                }
                Outcome::Placed
            }
            Found::Closed { frame, index } => {
                let late = self.place_late(id, frame, index, None);
                self.count_late(id, late)
            }
            Found::BeforeStart => self.count_late(id, Ok(self.before())),
            Found::Undecided => self.keep(id, Content::Damaged, Timestamp::default(), |_| {}),
            Found::Reject => self.reject(id),
        }
    }

    /// Keeps a packet aside until it is known whether a new epoch starts.
    #[cold]
    fn keep(
        &mut self,
        id: PacketId,
        content: Content,
        time: Timestamp,
        write: impl FnOnce(*mut u8),
    ) -> Outcome {
        match self
            .state
            .keep(self.shared, id, content, time, self.received)
        {
            Some(memory) => {
                write(memory.as_mut_ptr());
                Outcome::Kept
            }
            None => self.reject(id),
        }
    }

    /// Places the candidates, because their epoch is confirmed. If `waits` is true and a slot is missing, stops and
    /// returns false.
    fn place_candidates(&mut self, waits: bool) -> bool {
        if self.state.candidates.is_empty() {
            return true;
        }
        // The candidates are removed from the state, so that one that does not belong to the epoch is rejected instead
        // of being kept again.
        let mut candidates = std::mem::take(&mut self.state.candidates);
        let mut has_room = true;
        while let Some(kept) = candidates.front() {
            let size = match kept.content {
                Content::Payload(size) => Some(size),
                Content::Damaged => None,
                Content::NoData => {
                    self.flush();
                    self.state.skip(self.shared, kept.id.unit);
                    candidates.pop();
                    continue;
                }
            };
            has_room = !waits || self.has_room(kept.id, size);
            if !has_room {
                break;
            }
            candidates.pop();
            if kept.content == Content::Damaged {
                self.place_bad(kept.id);
            } else {
                let frame = size.and_then(|size| size.frame);
                let outcome =
                    self.place_sized(kept.id, candidates.payload(&kept), frame, kept.time);
                self.keep_fields(outcome, || kept.fields);
            }
        }
        self.state.candidates = candidates;
        has_room
    }

    /// Ends the frame of packet `id`, if it is open, because its sender reported the end. All packets of the frame are
    /// then expected. `time` becomes the frame's time unless the frame already has a time. Returns false if the frame
    /// is after the open frames, because the report alone is not plausible. For senders that report the end in a
    /// separate packet, see [`ReorderWindow::await_times`](super::ReorderWindow::await_times).
    pub fn end(&mut self, id: PacketId, time: Timestamp) -> bool {
        if self.state.opens_epoch() {
            return true;
        }
        let geometry = self.geometry();
        let Some((frame, _)) = self.state.locate(geometry, id) else {
            return false;
        };
        let front = self.base + geometry.window as u64;
        if (self.base..front).contains(&frame) {
            stamp(self.shared.record(frame), geometry, 0, time);
            let end = (frame + 1) * u64::from(geometry.packets_per_frame);
            self.horizon = self.horizon.max(end);
        }
        frame < front
    }

    /// Returns whether the frame of packet `id` is tracked: it is open, is not open yet, or was closed so recently that
    /// its packets are counted as late or duplicate. A packet of any other frame is treated as far from the stream.
    pub fn knows(&self, id: PacketId) -> bool {
        let geometry = self.geometry();
        self.state.opens_epoch()
            || self.state.locate(geometry, id).is_some_and(|(frame, _)| {
                let oldest = self.base.saturating_sub(geometry.window as u64);
                frame >= oldest.max(self.shared.floor.load(Ordering::Acquire))
            })
    }

    /// Returns the number of the epoch to which the packet belongs that was placed last, counted from 1.
    pub fn epoch(&self) -> u64 {
        self.state.epoch.number
    }

    /// Returns the number of the epoch to which packet `id` belongs, counted from 1, or `None` if the packet is far from the stream
    /// or begins an epoch.
    pub fn epoch_of(&self, id: PacketId) -> Option<u64> {
        (!self.state.opens_epoch() && self.knows(id)).then_some(self.state.epoch.number)
    }

    /// Returns whether packet `id` can be placed without refusing a slot to any frame: its frame, and every frame that
    /// it causes the window to publish, can have a slot. Also true for a packet that needs no slot, because it is late,
    /// implausible, or has another size than its packet slot. `None` is the expected size, or a packet that is
    /// [placed as damaged](Self::place_bad).
    ///
    /// For sources that apply backpressure: if this returns false, commit the batch,
    /// [wait](super::ReorderWindow::wait), and query the same packet again. The call advances the window as the packet
    /// itself would, as far as slots are free. So query only the packet that is placed next. For such sources, the
    /// window must not have more frames than the ring has slots; otherwise the source could wait forever. Only
    /// exclusive windows can answer; other windows return true.
    pub fn has_room(&mut self, id: PacketId, size: Option<PacketSize>) -> bool {
        if !self.shared.is_exclusive() {
            return true;
        }
        // A packet that continues a run of repeated packets may begin an epoch.
        if self.state.candidate.is_none()
            && let Some((frame, _)) = self.expected(id, size)
            && self.shared.record(frame).state.load(Ordering::Relaxed) == state::ASSIGNED
        {
            return true;
        }
        if self.state.candidates.is_confirmed && !self.place_candidates(true) {
            return false;
        }
        let class = if id.sub >= self.geometry().numbering.packets_per_unit {
            Classification::Reject
        } else if self.state.opens_epoch() {
            Classification::NewEpoch
        } else {
            match self.classify(id, size).0 {
                class if self.is_repeat(class, id) && self.confirms_restart(id) => {
                    Classification::NewEpoch
                }
                class => class,
            }
        };
        self.flush();
        let (shared, writer) = (self.shared, self.state.writer);
        // The candidates are placed before the packet that confirms them.
        let first = self.state.lowest_candidate(&shared.geometry, id);
        let confirms = !self.state.candidates.is_empty() && !self.state.restarts;
        let first_frame = self.state.locate(&shared.geometry, first);
        let Some(sequencer) = &mut self.state.sequencer else {
            return true;
        };
        let has_room = match class {
            Classification::BeforeStart | Classification::Reject | Classification::Undecided => {
                return true;
            }
            Classification::InWindow { frame, .. } if frame < self.base => return true,
            Classification::InWindow { frame, .. } => sequencer.approach(shared, writer, frame),
            Classification::Gap { .. } if confirms && shared.holds_gaps() => {
                sequencer.has_room_for_epoch(shared, writer)
            }
            Classification::Gap { frame, .. } => {
                let frame = first_frame.map_or(frame, |(first, _)| first.min(frame));
                sequencer.approach(shared, writer, frame)
            }
            Classification::NewEpoch => sequencer.has_room_for_epoch(shared, writer),
        };
        self.base = shared.pin(writer);
        match class {
            Classification::NewEpoch if has_room && confirms => {
                if !self.open_epoch(first, self.opening(id)) {
                    return true;
                }
                self.state.candidates.is_confirmed = true;
            }
            Classification::Gap { .. } if has_room && confirms => {
                if shared.holds_gaps() && !self.open_epoch(first, Opening::Segment) {
                    return true;
                }
                self.state.candidates.is_confirmed = true;
            }
            _ => {
                if !has_room {
                    self.state.candidates.wait();
                }
                return has_room;
            }
        }
        self.has_room(id, size)
    }

    /// Counts packets without a readable sequence number.
    pub fn reject_unreadable(&mut self, packets: u64) {
        self.state.ledger.rejected.add_shared(packets);
    }

    /// Counts packets that intentionally contain no data.
    pub fn control(&mut self, packets: u64) {
        self.state.ledger.control.add_shared(packets);
    }

    /// Counts packets that were resent so late that the window no longer tracks them.
    pub fn repeated(&mut self, packets: u64) {
        self.state.ledger.duplicates.add_shared(packets);
    }

    /// Ends the batch: passes its packets to the sequencer, and publishes every complete frame at the front of the
    /// window if this thread is the sequencer.
    pub fn commit(mut self) {
        // The old numbering continues. Candidates that only wait for slots are already confirmed and stay.
        if self.state.candidate.is_none() && !self.state.candidates.is_confirmed {
            self.refute_candidates();
        }
        self.flush();
        self.shared.unpin(self.state.writer);
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.close_complete(self.shared, self.state.writer);
        }
    }

    fn reject(&mut self, id: PacketId) -> Outcome {
        count_rejected(&self.state.ledger, self.geometry(), id);
        Outcome::Rejected
    }

    /// Counts packet `index` of a frame, which has already arrived.
    fn duplicate(&mut self, index: u32) -> Outcome {
        let ledger = &self.state.ledger;
        ledger.duplicates.add_shared(1);
        if let Some(part) = ledger
            .parts
            .get(index / self.shared.geometry.packets_per_part())
        {
            part.duplicates.add_shared(1);
        }
        Outcome::Duplicate
    }

    /// Handles a packet of a closed frame. Returns how its number was used before if the packet can belong to a restarted
    /// sender, and its outcome otherwise.
    fn place_late(
        &mut self,
        id: PacketId,
        frame: u64,
        index: u32,
        size: Option<PacketSize>,
    ) -> Result<Earlier, Outcome> {
        let record = self.shared.record(frame);
        if size.is_some_and(|size| !record.matches(size)) {
            return Err(self.reject(id));
        }
        if record.is_present(index) {
            return Ok(Earlier::Arrived { frame, index });
        }
        let is_finalised = frame < self.shared.finalised.load(Ordering::Acquire);
        let was_expected = self.shared.was_expected(frame, index);
        if !was_expected && self.shared.begins_epoch() {
            return Ok(self.before());
        }
        if is_finalised || !was_expected || record.state.load(Ordering::Acquire) == state::SKIPPED {
            return Ok(Earlier::Missing);
        }
        if !record.mark_late(index, self.shared.is_exclusive()) {
            return Err(self.duplicate(index));
        }
        Err(Outcome::Late)
    }

    /// Counts a packet of a closed frame that cannot belong to a restarted sender.
    fn count_late(&mut self, id: PacketId, late: Result<Earlier, Outcome>) -> Outcome {
        match late {
            Ok(earlier) => self.count_repeat(id, earlier),
            Err(outcome) => outcome,
        }
    }

    /// Moves this thread's reference to `id`, so that wrapping numbers stay unambiguous. Returns the packet's position.
    #[inline]
    fn follow(&mut self, id: PacketId, frame: u64, index: u32) -> u64 {
        let geometry = &self.shared.geometry;
        let position = frame * u64::from(geometry.packets_per_frame) + u64::from(index);
        let state = &mut *self.state;
        state.epoch.unit = id.unit;
        state.epoch.position = position - u64::from(id.sub);
        state.cursor = position + 1;
        let (frame, index) = if index + 1 < geometry.packets_per_frame {
            (frame, index + 1)
        } else {
            (frame + 1, 0)
        };
        state.next = Some((geometry.numbering.next(id), frame, index));
        position
    }

    /// Clears the candidate if packet `id`, which continues the old numbering, refutes it.
    #[inline]
    fn refute(&mut self, id: PacketId) {
        if let Some(candidate) = &self.state.candidate
            && self.shared.refutes(candidate, id)
        {
            self.state.candidate = None;
        }
    }

    /// Finds the position of `id`, a packet of `size`. Advances the window or opens an epoch if necessary.
    #[inline]
    fn find(&mut self, id: PacketId, size: Option<PacketSize>) -> Found {
        if let Some((frame, index)) = self.expected(id, size) {
            self.follow(id, frame, index);
            return Found::Open { frame, index };
        }
        self.find_unexpected(id, size)
    }

    /// Returns the position of `id` if it is the next expected packet and its frame is open. This is the path of most
    /// packets, so it avoids a division.
    #[inline]
    fn expected(&self, id: PacketId, size: Option<PacketSize>) -> Option<(u64, u32)> {
        let (next, frame, index) = self.state.next?;
        let geometry = &self.shared.geometry;
        (next == id
            && (self.base..self.base + geometry.window as u64).contains(&frame)
            && size.is_none_or(|size| geometry.fits(index, size)))
        .then_some((frame, index))
    }

    fn find_unexpected(&mut self, id: PacketId, size: Option<PacketSize>) -> Found {
        if self.state.opens_epoch() {
            let opening = if self.state.restarts {
                Opening::Restart
            } else {
                Opening::Epoch
            };
            if !self.open_epoch(id, opening) {
                return Found::Reject;
            }
        }
        let (class, candidate) = self.classify(id, size);
        let is_first = candidate.is_some_and(|candidate| candidate.count == 1);
        if candidate.is_none() || is_first && candidate != self.state.candidate {
            // The candidates are not consistent with this packet.
            self.refute_candidates();
        }
        self.state.candidate = candidate;
        let found = match class {
            Classification::BeforeStart => return Found::BeforeStart,
            Classification::Reject => return Found::Reject,
            Classification::Undecided => return Found::Undecided,
            Classification::InWindow { frame, index } => return self.enter(id, frame, index),
            Classification::NewEpoch => self.begin_epoch(id),
            Classification::Gap { frame } => self.cross_gap(id, frame),
        };
        // The candidates, or packets of other threads, can advance the window past the packet.
        match (found, size) {
            (Found::Closed { .. }, _) => Found::Reject,
            // The epoch determines the index of the packet in its frame.
            (Found::Open { index, .. }, Some(size)) if !self.geometry().fits(index, size) => {
                Found::Reject
            }
            (found, _) => found,
        }
    }

    /// Advances the window until `frame`, the frame of packet `id`, is open.
    fn enter(&mut self, id: PacketId, frame: u64, index: u32) -> Found {
        if frame >= self.base + self.geometry().window as u64 && !self.slide(frame) {
            return Found::Reject;
        }
        if frame < self.base {
            return Found::Closed { frame, index };
        }
        self.follow(id, frame, index);
        Found::Open { frame, index }
    }

    fn classify(
        &self,
        id: PacketId,
        size: Option<PacketSize>,
    ) -> (Classification, Option<Candidate>) {
        let front = (self.base, self.horizon);
        let (class, candidate) = self.state.classify(self.shared, front, id, size);
        match class {
            Classification::InWindow { frame, index }
                if !self.accepts_preceding && self.precedes(frame, index) =>
            {
                (Classification::BeforeStart, candidate)
            }
            Classification::Undecided | Classification::Gap { .. } | Classification::NewEpoch
                if self.shared.is_stale(self.received) =>
            {
                (Classification::Reject, self.state.candidate)
            }
            _ => (class, candidate),
        }
    }

    fn see(&mut self, frame: u64, index: u32) {
        let position = frame * u64::from(self.geometry().packets_per_frame) + u64::from(index);
        self.horizon = self.horizon.max(position + 1);
        self.start = self.start.min(position);
    }

    /// Publishes the progress of this batch to the other threads.
    fn flush(&mut self) {
        if std::mem::take(&mut self.state.streamed) {
            copy::fence();
        }
        if self.horizon > 0 {
            self.shared.start.fetch_min(self.start, Ordering::AcqRel);
            self.shared
                .horizon
                .fetch_max(self.horizon, Ordering::AcqRel);
            self.shared
                .arrived
                .fetch_add(self.arrived, Ordering::AcqRel);
            (self.horizon, self.start, self.arrived) = (0, u64::MAX, 0);
        }
    }
}

/// Releases the frames, so that other threads do not wait for a batch that was abandoned after an error. After
/// [`commit`](Batch::commit), there is nothing left to release.
impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.flush();
        self.shared.unpin(self.state.writer);
    }
}

/// Sets the time of a frame from the first packet that arrives.
#[inline]
fn stamp(record: &Record, geometry: &Geometry, index: u32, time: Timestamp) {
    if time.clock != crate::frame::Clock::None && record.time_clock.load(Ordering::Relaxed) == 0 {
        let since_start = geometry.nanoseconds_before(index);
        record
            .time_ns
            .store(time.ns.saturating_sub(since_start), Ordering::Relaxed);
        record
            .time_clock
            .store(time.clock as u32, Ordering::Release);
    }
}
