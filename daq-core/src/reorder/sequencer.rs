//! The sequencer: the one thread that assigns slots to frames, closes frames in order and finalises the ledger.

mod epochs;
mod held_gaps;
mod silence;
mod skips;
mod times;

use super::narrow;
use super::record::state;
use super::shared::{BLOCKED, Epoch, EpochRequest, Requests, Shared};
use crate::frame::{Flags, FrameMeta, Timestamp};
use crate::ledger::{Cause, SourceLedger};
use crate::ring::Producer;
use crate::sync::Ordering;
use held_gaps::HeldGaps;
use silence::Silence;
use std::ops::Range;
use std::time::{Duration, Instant};

/// When one thread requests a new epoch, the sequencer waits for the other threads to poll their sockets. These sockets may
/// hold earlier packets of the new epoch, or packets of the old numbering, which show that there is no new epoch. The sequencer
/// waits at most this long for threads that wait for packets, because they wake if packets arrive.
const POLL_ROUND: Duration = Duration::from_millis(5);
/// The sequencer waits at most this long for threads that do not wait for packets, because a busy machine may delay them.
const BUSY_POLL_ROUND: Duration = Duration::from_millis(100);

/// State of a closed frame until its gaps are finalised.
#[derive(Clone, Debug, Default)]
struct Closed {
    /// The packets that were expected.
    packets: Range<u32>,
    missing: u64,
}

/// A requested epoch that waits until all threads have polled for packets.
#[derive(Clone, Copy, Debug)]
struct PendingEpoch {
    request: EpochRequest,
    begun: Instant,
    /// Number of times that this thread has polled since the request.
    ticks: u32,
}

#[derive(Debug)]
pub(super) struct Sequencer {
    producer: Producer,
    ledger: SourceLedger,
    /// Number of open frames that have a slot. These frames use the producer's open slots in order.
    assigned: u64,
    /// Open frames before this frame have a slot or need no slot.
    asked_to: u64,
    /// Number of packets of closed frames that did not arrive in time.
    absent: u64,
    /// Number of missing packets whose disposition is not final.
    missing: u64,
    /// Number of packets that will never arrive, and the number of drop counter readings when that was determined. A
    /// later reading shows whether the packets were lost on this host.
    gaps: (u64, u64),
    /// Linux's drop count before the gaps that are open now.
    drops: u64,
    /// Long gaps that are not final.
    held: HeldGaps,
    /// The unit numbers at which the current epoch began, and those at which the epoch before it began and ended.
    begun: Option<u64>,
    before: Option<(u64, u64)>,
    /// Time of the first tick after the numbers alternated between two senders.
    alternated: Option<Instant>,
    /// Whether the frames that are closed end before a long gap, so that they are not truncated.
    is_before_gap: bool,
    /// The first frame after the last long gap. It is not truncated either.
    after_gap: u64,
    /// Reusable buffer for the units of skip requests.
    skips: Vec<u64>,
    closed: Vec<Closed>,
    /// The epoch request of another thread.
    pending_epoch: Option<PendingEpoch>,
    /// Number of polls of each thread when the epoch was requested.
    rounds: Box<[u64]>,
    /// Flags of the next frame to be published.
    flags: Flags,
    silence: Silence,
    /// The last published frame that has a time, and this time.
    last_time: Option<(u64, Timestamp)>,
    /// Whether a complete frame stays open until it has its time.
    awaits_times: bool,
    /// Minimum number of frames without packets that the window passes in one step.
    pub(super) min_gap_step: u64,
    /// The frame for which a packet last waited, and one past the last frame to publish before it.
    awaited: (u64, u64),
}

impl Sequencer {
    pub(super) fn new(producer: Producer, ledger: SourceLedger, shared: &Shared) -> Self {
        Self {
            producer,
            ledger,
            assigned: 0,
            asked_to: 0,
            absent: 0,
            missing: 0,
            gaps: (0, 0),
            drops: 0,
            held: HeldGaps::new(),
            begun: None,
            before: None,
            alternated: None,
            is_before_gap: false,
            after_gap: 0,
            skips: Vec::with_capacity(64),
            closed: Vec::with_capacity(shared.records.len()),
            pending_epoch: None,
            rounds: vec![0; shared.rounds.len()].into(),
            flags: Flags::default(),
            silence: Silence::new(shared.rounds.len()),
            last_time: None,
            awaits_times: false,
            min_gap_step: shared.records.len() as u64,
            awaited: (0, 0),
        }
    }

    pub(super) fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Returns the state of missing packets, for comparison.
    #[cfg(test)]
    pub(super) fn dispositions(&self) -> impl std::fmt::Debug {
        let closed = self.closed.iter().map(|closed| closed.missing).sum::<u64>();
        (self.assigned, self.missing, self.gaps, self.drops, closed)
    }

    pub(super) fn has_gaps(&self) -> bool {
        self.missing > 0 || self.gaps.0 > 0 || !self.held.is_empty()
    }

    pub(super) fn await_times(&mut self) {
        self.awaits_times = true;
    }

    /// Assigns slots in order to every open frame up to `frame` that needs one. Returns false if too few slots are
    /// free. A frame that is skipped or was refused a slot needs no slot. `frame` itself contains payload, so a skip
    /// request for it is cancelled.
    pub(super) fn assign(&mut self, shared: &Shared, frame: u64) -> bool {
        let base = shared.base.load(Ordering::Relaxed);
        if base == BLOCKED {
            return false;
        }
        // A window may be long, and its oldest frame may stay open while packets of later frames arrive, so start where
        // the last call ended.
        for open in base.max(self.asked_to)..=frame {
            let is_skipped = open < frame;
            shared.record(open).resolve_skip_request(if is_skipped {
                state::SKIPPED
            } else {
                state::UNASSIGNED
            });
            if !self.assign_one(shared, open) {
                return false;
            }
            self.asked_to = open + 1;
        }
        true
    }

    /// Assigns a slot to one frame if it needs one. Returns false if no slot is free. Earlier frames must have been
    /// handled.
    fn assign_one(&mut self, shared: &Shared, frame: u64) -> bool {
        let record = shared.record(frame);
        if record.state.load(Ordering::Relaxed) != state::UNASSIGNED {
            return true;
        }
        if self.producer.open() <= self.assigned && self.producer.claim(1) == 0 {
            return false;
        }
        record
            .memory
            .store(self.producer.open_slot(self.assigned), Ordering::Relaxed);
        record.state.store(state::ASSIGNED, Ordering::Release);
        self.assigned += 1;
        true
    }

    /// Updates the ledger, and closes and publishes every complete frame at the front.
    pub(super) fn close_complete(&mut self, shared: &Shared, writer: usize) {
        self.close_while_complete(shared, writer, self.awaits_times);
    }

    fn close_while_complete(&mut self, shared: &Shared, writer: usize, with_time: bool) {
        self.account(shared);
        loop {
            let base = shared.base.load(Ordering::Relaxed);
            let record = shared.record(base);
            let has_all = record.arrived.load(Ordering::Acquire)
                == record.packets(&shared.geometry)
                && (!with_time || record.time_clock.load(Ordering::Acquire) != 0);
            let complete = has_all || record.state.load(Ordering::Acquire) == state::SKIPPED;
            if !complete {
                return;
            }
            if has_all {
                shared.note_complete();
            }
            self.advance(shared, writer, base + 1);
        }
    }

    pub(super) fn tick(&mut self, shared: &Shared, writer: usize, epoch: Epoch, now: Instant) {
        if shared.has_requests.load(Ordering::Acquire) != 0 {
            self.read_requests(shared, writer, epoch, now);
        }
        if self.pending_epoch.is_some() {
            self.resolve_epoch_request(shared, writer, epoch, now);
        }
        self.serve_writers(shared, writer);
        self.close_complete(shared, writer);
        self.close_stale(shared, writer, now);
        self.tick_held_gaps(shared, now);
        self.tick_distrust(shared, now);
        if self.gaps.0 > 0 && shared.readings.load(Ordering::Acquire) > self.gaps.1 {
            self.decide(shared);
        }
    }

    /// Assigns or refuses a slot to each frame for which a writer waits, from the lowest to the highest.
    fn serve_writers(&mut self, shared: &Shared, writer: usize) {
        let wanted = || {
            shared
                .wanted
                .iter()
                .map(|wanted| wanted.load(Ordering::Acquire))
        };
        let mut next = shared.base.load(Ordering::Relaxed);
        while let Some(frame) = wanted().filter(|frame| *frame >= next).min() {
            self.serve(shared, writer, frame);
            next = frame + 1;
        }
    }

    /// Opens `frame`, for which a writer waits, and assigns or refuses a slot to it.
    fn serve(&mut self, shared: &Shared, writer: usize, frame: u64) {
        let base = shared.base.load(Ordering::Relaxed);
        let window = shared.geometry.window as u64;
        if frame >= base + window {
            self.advance(shared, writer, frame + 1 - window);
        }
        if !self.assign(shared, frame) {
            let refused = &shared.record(frame).state;
            let _ = refused.compare_exchange(
                state::UNASSIGNED,
                state::REFUSED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Closes frames that have waited too long, and finalises them later.
    fn close_stale(&mut self, shared: &Shared, writer: usize, now: Instant) {
        let Some(silent) = self.silence.measure(shared, writer, now) else {
            return;
        };
        let horizon = shared.horizon.load(Ordering::Acquire);
        if horizon == 0 || silent < shared.geometry.close_after {
            return;
        }
        // Another thread may still fill a frame whose last packet has arrived. If the sender reports the ends of
        // frames, a frame whose end was reported is complete.
        let seen = if self.awaits_times {
            horizon
        } else {
            horizon - 1
        };
        let base = shared.base.load(Ordering::Relaxed);
        let front = seen / u64::from(shared.geometry.packets_per_frame);
        self.advance(shared, writer, shared.stale_front(base, front));
        self.close_while_complete(shared, writer, false);
        let horizon = shared.horizon.load(Ordering::Acquire);
        self.silence.horizon = horizon;
        shared.paused.store(horizon, Ordering::Release);
        let is_final = silent >= 10 * shared.geometry.close_after;
        if is_final {
            shared.silent.store(horizon, Ordering::Release);
        }
        if is_final && self.missing > 0 {
            let base = shared.base.load(Ordering::Relaxed);
            let from = shared.finalised.swap(base, Ordering::AcqRel);
            shared.wait_until_unpinned(writer);
            for frame in from..base {
                self.finalise(shared, frame);
            }
        }
    }

    fn read_requests(&mut self, shared: &Shared, writer: usize, epoch: Epoch, now: Instant) {
        let (request, skips) = {
            let mut requests: std::sync::MutexGuard<'_, Requests> = shared.requests();
            shared.has_requests.store(0, Ordering::Relaxed);
            std::mem::swap(&mut requests.skips, &mut self.skips);
            (requests.epoch.take(), std::mem::take(&mut self.skips))
        };
        for unit in &skips {
            self.skip(shared, writer, epoch, *unit);
        }
        // Keep the buffer, so that the next request needs no allocation.
        self.skips = skips;
        self.skips.clear();
        // A request made before the last segment was opened is outdated.
        let is_current = |request: &EpochRequest| request.known == epoch.segment;
        let pending = self.pending_epoch.map(|pending| pending.request);
        if let Some(request) = request
            && is_current(&request)
            && !pending.as_ref().is_some_and(is_current)
        {
            self.record_poll_rounds(shared);
            self.pending_epoch = Some(PendingEpoch {
                request,
                begun: now,
                ticks: 0,
            });
        }
    }

    /// Moves the front of the window to `front` and closes the frames that it passes. Called when later packets were
    /// seen, or when the passed frames are complete.
    pub(super) fn advance(&mut self, shared: &Shared, writer: usize, front: u64) {
        let base = shared.base.load(Ordering::Relaxed);
        for frame in base..front.min(Self::publish_end(shared, base)) {
            self.pass(shared, writer, frame, true);
        }
        self.pass_gap(shared, writer, front);
    }

    /// Returns one past the last frame to publish when the window advances from `base`. Later frames have nothing to
    /// publish and are only counted.
    fn publish_end(shared: &Shared, base: u64) -> u64 {
        base + 2 * shared.geometry.window as u64
    }

    /// Moves the front of the window past the frame `base`, the oldest open one.
    fn pass(&mut self, shared: &Shared, writer: usize, base: u64, publish: bool) {
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        shared
            .horizon
            .fetch_max((base + 1) * packets_per_frame, Ordering::AcqRel);
        self.retire_record(shared, base);
        shared.base.store(base + 1, Ordering::SeqCst);
        shared.wait_grace_period(writer, base + 1);
        self.close(shared, base, packets_per_frame, publish);
    }

    /// Moves the front of the window to `front` past frames that are counted but not published.
    fn pass_gap(&mut self, shared: &Shared, writer: usize, front: u64) {
        while shared.base.load(Ordering::Relaxed) < front {
            self.skip_gap(shared, writer, front);
            let base = shared.base.load(Ordering::Relaxed);
            self.pass(shared, writer, base, false);
        }
    }

    /// Moves the front of the window past frames without packets in one step, because a gap may be as long as the
    /// number range. The step stops where [`pass`](Self::pass), called frame by frame up to `front`, would not finalise
    /// the frames any more.
    fn skip_gap(&mut self, shared: &Shared, writer: usize, front: u64) {
        // Later frames are closed but not finalised, so that their late packets are counted as late.
        let open = front - (shared.geometry.window as u64 + 1);
        let base = shared.base.load(Ordering::Relaxed);
        if open < base.saturating_add(self.min_gap_step) {
            return;
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        // Other threads may have placed packets in the gap meanwhile.
        if shared.horizon.load(Ordering::Acquire) > base * packets_per_frame {
            shared.base.store(base, Ordering::SeqCst);
            return;
        }
        for frame in shared.finalised.swap(open, Ordering::AcqRel)..base {
            self.finalise(shared, frame);
        }
        for record in &shared.records {
            record.reset();
        }
        self.asked_to = 0;
        let (first, end) = (base * packets_per_frame, open * packets_per_frame);
        shared.history.record_missing(first, end);
        let start = shared.start.load(Ordering::Acquire).clamp(first, end);
        shared.horizon.fetch_max(end, Ordering::AcqRel);
        self.absent += end - start;
        self.account(shared);
        shared
            .parts
            .pass(&self.ledger.parts, &shared.geometry, &(start..end));
        self.note_gaps(shared, end - start);
        shared.base.store(open, Ordering::SeqCst);
    }

    /// Advances the window to `frame` as a packet of that frame would, but without refusing any frame a slot. Returns
    /// false if too few slots are free. Frames that can be published are published, so that readers have slots to free.
    pub(super) fn approach(&mut self, shared: &Shared, writer: usize, frame: u64) -> bool {
        let slots = self.producer.options().slots;
        // At most as many frames are open as the ring has slots.
        let window = shared.geometry.window.min(slots) as u64;
        let base = shared.base.load(Ordering::Relaxed);
        if self.awaited.0 != frame {
            self.awaited = (frame, Self::publish_end(shared, base));
        }
        let front = (frame + 1).saturating_sub(window);
        let has_room = self.close_with_room(shared, writer, front, self.awaited.1)
            && self.assign(shared, frame);
        self.note_room(has_room)
    }

    /// Returns whether an epoch can be opened without refusing any frame a slot. Closes frames that need not stay open.
    pub(super) fn has_room_for_epoch(&mut self, shared: &Shared, writer: usize) -> bool {
        let horizon = shared.horizon.load(Ordering::Acquire);
        let end = horizon.div_ceil(u64::from(shared.geometry.packets_per_frame));
        let has_room = self.close_with_room(shared, writer, end.saturating_sub(1), end) && {
            let base = shared.base.load(Ordering::Relaxed);
            // Slots are needed for the open frames with packets, at most one, and for the first frame of the epoch.
            let has_slot = |frame| {
                shared.record(frame).resolve_skip_request(state::SKIPPED);
                self.assign_one(shared, frame)
            };
            (base..end).all(has_slot) && {
                let taken = (base..end).filter(|frame| {
                    shared.record(*frame).state.load(Ordering::Relaxed) == state::ASSIGNED
                });
                self.producer.open() > taken.count() as u64 || self.producer.claim(1) > 0
            }
        };
        self.note_room(has_room)
    }

    /// Closes frames before `front` in order while slots are free, and publishes those before `end`. Returns whether
    /// all frames before `front` are closed.
    fn close_with_room(&mut self, shared: &Shared, writer: usize, front: u64, end: u64) -> bool {
        for frame in shared.base.load(Ordering::Relaxed)..front.min(end) {
            if !self.assign_one(shared, frame) {
                return false;
            }
            self.pass(shared, writer, frame, true);
        }
        self.pass_gap(shared, writer, front);
        true
    }

    /// If there is no room, resets the silence, because a source that waits for slots is not silent and no frame is
    /// stale.
    fn note_room(&mut self, has_room: bool) -> bool {
        if !has_room {
            self.silence.length = Duration::ZERO;
        }
        has_room
    }

    /// Frees the record that the frame `base + window` will use.
    fn retire_record(&mut self, shared: &Shared, base: u64) {
        let window = shared.geometry.window as u64;
        let old = base - window - 1;
        if old >= shared.finalised.load(Ordering::Relaxed) {
            shared.finalised.store(old + 1, Ordering::Release);
            self.finalise(shared, old);
        }
        shared.record(base + window).reset();
    }

    fn closed_mut(&mut self, shared: &Shared, frame: u64) -> &mut Closed {
        if self.closed.is_empty() {
            self.closed.resize(shared.records.len(), Closed::default());
        }
        let index = shared.index(frame);
        &mut self.closed[index]
    }

    /// Counts and publishes a frame that no writer can access any more.
    fn close(&mut self, shared: &Shared, frame: u64, up_to: u64, publish: bool) {
        let geometry = &shared.geometry;
        let per_frame = u64::from(geometry.packets_per_frame);
        let record = shared.record(frame);
        let state = record.state.load(Ordering::Acquire);
        if matches!(state, state::SKIP_REQUESTED | state::SKIPPED) {
            record.state.store(state::SKIPPED, Ordering::Release);
            *self.closed_mut(shared, frame) = Closed::default();
            let known = std::iter::repeat(u64::MAX);
            shared
                .history
                .record(frame * per_frame, geometry.packets_per_frame, known);
            return;
        }
        let first = frame * per_frame;
        let start = shared
            .start
            .load(Ordering::Acquire)
            .clamp(first, first + per_frame)
            - first;
        let count = record.packets(geometry);
        let end = up_to.min(u64::from(count)).max(start);
        let packets = narrow(start)..narrow(end);
        let arrived = u64::from(record.arrived.load(Ordering::Acquire));
        let seen = shared.horizon.load(Ordering::Acquire).div_ceil(per_frame);
        shared.parts.begin_parts(shared, frame, seen);
        let expected = shared.parts.count_expected(geometry, frame, &packets);
        let missing = expected - arrived;
        self.missing += missing;
        self.absent += missing;
        self.account(shared);
        let closed = self.closed_mut(shared, frame);
        (closed.packets, closed.missing) = (packets.clone(), missing);
        shared.history.record(first, count, record.present());
        if count < geometry.packets_per_frame {
            // The other packets of the largest frame do not exist, so none of them is missing.
            let (from, rest) = (first + u64::from(count), geometry.packets_per_frame - count);
            shared
                .history
                .record(from, rest, std::iter::repeat(u64::MAX));
        }

        if publish
            && self.assign_one(shared, frame)
            && record.state.load(Ordering::Relaxed) == state::ASSIGNED
        {
            let is_cut = expected < u64::from(count);
            let is_at_gap = self.is_before_gap || frame == self.after_gap;
            self.publish(shared, frame, arrived, is_cut && !is_at_gap);
            if missing > 0 || is_cut && is_at_gap {
                self.ledger.incomplete.add(1);
            }
            self.ledger.bytes.add(Self::bytes(shared, frame, arrived));
            self.ledger.delivered.add(arrived);
            shared
                .parts
                .close(&self.ledger.parts, shared, frame, &packets, true);
        } else {
            if publish {
                self.producer.refuse(1);
            }
            self.ledger.lost(Cause::RingFull).add(arrived);
            shared
                .parts
                .close(&self.ledger.parts, shared, frame, &packets, false);
        }
    }

    /// Returns the payload bytes of the packets that arrived.
    fn bytes(shared: &Shared, frame: u64, arrived: u64) -> u64 {
        let geometry = &shared.geometry;
        let record = shared.record(frame);
        let frame_bytes = record.bytes(geometry);
        // Only the first and the last packet of a part may have another size.
        let packets = geometry.packets_in(frame_bytes) / geometry.parts;
        let first = (0..geometry.parts).map(|part| part * packets);
        let odd = first.flat_map(|first| [Some(first), (packets > 1).then(|| first + packets - 1)]);
        let odd = odd.flatten().filter(|index| record.is_present(*index));
        let (count, bytes) = odd.fold((0, 0), |(n, bytes), index| {
            (
                n + 1,
                bytes + geometry.extent_in(index, frame_bytes).len() as u64,
            )
        });
        (arrived - count) * geometry.packet_bytes as u64 + bytes
    }

    /// Fills the missing packets, writes the metadata and publishes the frame.
    fn publish(&mut self, shared: &Shared, frame: u64, arrived: u64, truncated: bool) {
        let geometry = &shared.geometry;
        let record = shared.record(frame);
        let mut flags = std::mem::take(&mut self.flags);
        flags = flags.with(Flags(record.flags.load(Ordering::Acquire)));
        let bytes = record.bytes(geometry);
        let count = geometry.packets_in(bytes);
        if arrived < u64::from(count) {
            flags = flags.with(Flags::INCOMPLETE);
            let memory = record.memory.load(Ordering::Relaxed);
            for index in (0..count).filter(|index| !record.is_present(*index)) {
                let extent = geometry.extent_in(index, bytes);
                // SAFETY: the extent is inside the frame's open slot, which no writer can access any more (see
                // `Shared::wait_grace_period`).
                unsafe { fill(memory, extent, self.producer.options().fill.pattern()) };
                #[cfg(loom)]
                // SAFETY: this code runs only under loom, which checks that no other thread writes the packet.
                record.canary[index as usize].with_mut(|canary| unsafe { *canary = 0 });
            }
        }
        if truncated {
            flags = flags.with(Flags::TRUNCATED);
        }
        let meta = FrameMeta {
            sequence: frame.wrapping_sub(shared.epoch_offset.load(Ordering::Relaxed)),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a run opens fewer than 2^32 epochs"
            )]
            epoch: shared.epoch_number.load(Ordering::Relaxed) as u32,
            flags,
            timestamp: self.time_of(shared, frame, arrived, flags),
            length: bytes,
            packets_per_frame: count,
            arrived: narrow(arrived),
            packet_sizes: geometry.packet_sizes(),
            kept: record.kept(),
        };
        #[cfg(loom)]
        for index in (0..count).filter(|index| record.is_present(*index)) {
            // SAFETY: this code runs only under loom, which checks that no thread writes the packet any more.
            record.canary[index as usize].with(|canary| assert!(unsafe { *canary } > 0));
        }
        self.producer.describe(0, &meta, record.present());
        self.producer.publish(1);
        self.assigned -= 1;
    }

    /// Assigns causes to the missing packets of a closed frame.
    fn finalise(&mut self, shared: &Shared, frame: u64) {
        let closed = std::mem::take(self.closed_mut(shared, frame));
        if closed.missing == 0 {
            return;
        }
        let record = shared.record(frame);
        let parts = &shared.parts;
        let geometry = &shared.geometry;
        parts.finalise(&self.ledger.parts, geometry, frame, record, &closed.packets);
        let (late, bad) = parts.dispositions(geometry, frame, record, closed.packets);
        self.ledger.lost(Cause::Late).add(late);
        self.ledger.lost(Cause::BadPacket).add(bad);
        self.missing -= closed.missing;
        self.note_gaps(shared, closed.missing - late - bad);
    }

    /// Counts packets that will never arrive and that belong to no frame of the window.
    pub(super) fn count_absent(&mut self, shared: &Shared, packets: u64) {
        self.absent += packets;
        self.gaps.0 += packets;
        self.decide(shared);
        self.account(shared);
    }

    /// Counts packets that will never arrive.
    fn note_gaps(&mut self, shared: &Shared, packets: u64) {
        let readings = shared.readings.load(Ordering::Acquire);
        self.gaps = (self.gaps.0 + packets, readings);
        if readings == 0 {
            // If no drop counters are read for this source, there is nothing to wait for.
            self.decide(shared);
        }
    }

    /// Determines where packets that will never arrive were lost: on this host, if Linux's drop count has grown since
    /// before the gaps began.
    fn decide(&mut self, shared: &Shared) {
        let (gaps, _) = std::mem::take(&mut self.gaps);
        let drops = shared.drops();
        let cause = if drops == self.drops {
            Cause::WireGap
        } else {
            Cause::KernelDrop
        };
        self.ledger.lost(cause).add(gaps);
        if self.missing == 0 {
            self.drops = drops;
        }
    }

    /// Updates `expected`: a packet counts once it has arrived, or once its frame is closed without it.
    fn account(&mut self, shared: &Shared) {
        let arrived = shared.arrived.load(Ordering::Acquire);
        self.ledger.expected.set(arrived + self.absent);
    }

    pub(super) fn finish(&mut self, shared: &Shared, writer: usize, wants_whole_frame: bool) {
        if shared.segment.load(Ordering::Relaxed) == 0 {
            return;
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        if wants_whole_frame && shared.geometry.parts == 1 {
            let horizon = shared.horizon.load(Ordering::Acquire);
            let end = horizon.next_multiple_of(u64::from(shared.geometry.packets_per_frame));
            shared.horizon.store(end, Ordering::Release);
        }
        let end = self.end_epoch(shared, base);
        self.count_held_gaps(shared);
        self.account(shared);
        self.decide(shared);
        // A packet that arrives from now on opens a new epoch.
        for record in &shared.records {
            record.reset();
        }
        shared.start.store(u64::MAX, Ordering::Relaxed);
        shared.horizon.store(0, Ordering::Relaxed);
        shared.floor.store(end, Ordering::Relaxed);
        shared.base.store(end, Ordering::SeqCst);
    }
}

/// Repeats `pattern` over `extent` of the slot at `memory`, aligned to the slot's start.
///
/// # Safety
/// The extent must be inside memory that nothing else refers to.
unsafe fn fill(memory: *mut u8, extent: Range<usize>, pattern: [u8; 4]) {
    if pattern == [pattern[0]; 4] {
        // SAFETY: the caller guarantees the requirements.
        unsafe {
            memory
                .add(extent.start)
                .write_bytes(pattern[0], extent.len());
        };
        return;
    }
    for i in extent {
        // SAFETY: the caller guarantees the requirements.
        unsafe { memory.add(i).write(pattern[i % 4]) };
    }
}
