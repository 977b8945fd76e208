//! The one thread that gives frames memory, closes them in order and settles the ledger.

mod epochs;
mod skips;

use super::shared::{BLOCKED, Epoch, EpochRequest, Requests, Shared, state};
use crate::frame::{Clock, Flags, FrameMeta, Timestamp};
use crate::ledger::{Cause, SourceLedger};
use crate::ring::Producer;
use crate::sync::Ordering;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long a frame with gaps is kept open when nothing comes any more.
const HOLD_TIME: Duration = Duration::from_millis(100);
/// How long the fate of missing places stays open when nothing comes any more.
const FINALISE_AFTER: Duration = Duration::from_secs(1);

/// How long the other threads have to look for packets before an epoch is opened that one of them asks for: they may have
/// earlier packets of it, or packets of the old count that refute it.
const POLL_ROUND: Duration = Duration::from_millis(5);

/// Silence that one tick can tell of, at most, and as long as a source waits for packets at one go: a thread that was held
/// up for longer has not listened meanwhile.
const MAX_SILENCE_STEP: Duration = Duration::from_millis(50);

/// What the sequencer keeps of a closed frame until its gaps are finalised.
#[derive(Clone, Debug, Default)]
struct Closed {
    /// The places that were expected.
    places: Range<u32>,
    missing: u64,
}

/// How long nothing has come.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// The horizon at the last tick.
    horizon: u64,
    /// How long it has been that.
    length: Duration,
    last: Option<Instant>,
}

/// A request for an epoch that waits until all threads have looked for packets.
#[derive(Clone, Copy, Debug)]
struct PendingEpoch {
    request: EpochRequest,
    deadline: Instant,
    /// How often this thread has looked since.
    ticks: u32,
}

#[derive(Debug)]
pub(super) struct Sequencer {
    producer: Producer,
    ledger: SourceLedger,
    /// Open frames that have a slot: they have the producer's open slots in order.
    assigned: u64,
    /// Open frames before this one have a slot or want none.
    asked_to: u64,
    /// Places of closed frames that had not arrived in time.
    absent: u64,
    /// Those whose fate is open.
    missing: u64,
    /// Places that will never come, and the number of readings of the kernel's drops when that was known: a
    /// later reading tells where they were lost.
    gaps: (u64, u64),
    /// The kernel's drops before the gaps that are open now.
    drops: u64,
    /// Room for a requests's list of units.
    skips: Vec<u64>,
    closed: Vec<Closed>,
    /// The epoch, its reference moved along with the packets of this thread.
    epoch: Epoch,
    /// Another thread's request.
    pending_epoch: Option<PendingEpoch>,
    /// How often each thread had looked for packets when an epoch was asked for.
    rounds: Box<[u64]>,
    /// Flags of the next frame to be published.
    flags: Flags,
    silence: Silence,
    /// Whether a frame that has all its places waits for its time.
    awaits_times: bool,
    /// Whether gaps are passed frame by frame, however long: the measure of what one step does.
    #[cfg(test)]
    pub(super) passes_one_by_one: bool,
    /// The frame that a packet was last held back for, and one past the last frame that is published on the way there.
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
            skips: Vec::with_capacity(64),
            closed: Vec::with_capacity(shared.records.len()),
            epoch: Epoch::default(),
            pending_epoch: None,
            rounds: vec![0; shared.rounds.len()].into(),
            flags: Flags::default(),
            silence: Silence::default(),
            awaits_times: false,
            #[cfg(test)]
            passes_one_by_one: false,
            awaited: (0, 0),
        }
    }

    pub(super) fn producer(&self) -> &Producer {
        &self.producer
    }

    /// All that is kept of missing places, for comparing.
    #[cfg(test)]
    pub(super) fn dispositions(&self) -> impl std::fmt::Debug {
        let closed = self.closed.iter().map(|closed| closed.missing).sum::<u64>();
        (self.assigned, self.missing, self.gaps, self.drops, closed)
    }

    pub(super) fn has_gaps(&self) -> bool {
        self.missing > 0 || self.gaps.0 > 0
    }

    pub(super) fn await_times(&mut self) {
        self.awaits_times = true;
    }

    /// Remembers where this thread's packets are, so that the next epoch's jump can be told.
    pub(super) fn follow(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Gives every open frame up to `frame` that wants a slot one, in order; false if there are too few. A frame that is
    /// void or was refused a slot wants none, and `frame` has payload, whatever a control packet said.
    pub(super) fn assign(&mut self, shared: &Shared, frame: u64) -> bool {
        let base = shared.base.load(Ordering::Relaxed);
        if base == BLOCKED {
            return false;
        }
        // A window may be long, and its oldest frame may stay open while packets go on.
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

    /// Gives one frame a slot if it wants one; false if there is none. All before it must have been asked.
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

    /// After a batch: the ledger, and every frame at the front that is complete.
    pub(super) fn close_batch(&mut self, shared: &Shared, writer: usize) {
        self.close_complete(shared, writer, self.awaits_times);
    }

    fn close_complete(&mut self, shared: &Shared, writer: usize, with_time: bool) {
        self.account(shared);
        loop {
            let base = shared.base.load(Ordering::Relaxed);
            let record = shared.record(base);
            let has_all = record.arrived.load(Ordering::Acquire) == shared.geometry.places
                && (!with_time || record.time_clock.load(Ordering::Acquire) != 0);
            let complete = has_all || record.state.load(Ordering::Acquire) == state::SKIPPED;
            if !complete {
                return;
            }
            self.advance(shared, writer, base + 1);
        }
    }

    pub(super) fn tick(&mut self, shared: &Shared, writer: usize, now: Instant) {
        if shared.has_requests.load(Ordering::Acquire) != 0 {
            self.read_requests(shared, writer, now);
        }
        if self.pending_epoch.is_some() {
            self.resolve_epoch_request(shared, writer, now);
        }
        let base = shared.base.load(Ordering::Relaxed);
        let window = shared.geometry.window as u64;
        let wanted = shared.wanted.load(Ordering::Acquire);
        if wanted >= base {
            if wanted >= base + window {
                self.advance(shared, writer, wanted + 1 - window);
            }
            if !self.assign(shared, wanted) {
                let refused = &shared.record(wanted).state;
                let _ = refused.compare_exchange(
                    state::UNASSIGNED,
                    state::REFUSED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
        self.close_batch(shared, writer);
        self.close_stale(shared, writer, now);
        if self.gaps.0 > 0 && shared.readings.load(Ordering::Acquire) > self.gaps.1 {
            self.decide(shared);
        }
    }

    /// Closes what has waited too long, and settles it later still.
    fn close_stale(&mut self, shared: &Shared, writer: usize, now: Instant) {
        let horizon = shared.horizon.load(Ordering::Acquire);
        let silence = &mut self.silence;
        let step = silence.last.map_or(Duration::ZERO, |last| {
            now.saturating_duration_since(last).min(MAX_SILENCE_STEP)
        });
        silence.last = Some(now);
        if silence.horizon != horizon {
            (silence.horizon, silence.length) = (horizon, Duration::ZERO);
            return;
        }
        silence.length += step;
        let silent = silence.length;
        if horizon == 0 || silent < HOLD_TIME {
            return;
        }
        // A frame whose last place has come may still be filled by another thread; one whose sender has told its end is over.
        let seen = if self.awaits_times {
            horizon
        } else {
            horizon - 1
        };
        self.advance(shared, writer, seen / u64::from(shared.geometry.places));
        self.close_complete(shared, writer, false);
        if silent >= FINALISE_AFTER {
            shared.silent.store(horizon, Ordering::Release);
        }
        if silent >= FINALISE_AFTER && self.missing > 0 {
            let base = shared.base.load(Ordering::Relaxed);
            let from = shared.finalised.swap(base, Ordering::AcqRel);
            shared.wait_until_unpinned(writer);
            for frame in from..base {
                self.finalise(shared, frame);
            }
        }
    }

    fn read_requests(&mut self, shared: &Shared, writer: usize, now: Instant) {
        let (epoch, skips) = {
            let mut requests: std::sync::MutexGuard<'_, Requests> = shared.requests();
            shared.has_requests.store(0, Ordering::Relaxed);
            std::mem::swap(&mut requests.skips, &mut self.skips);
            (requests.epoch.take(), std::mem::take(&mut self.skips))
        };
        for unit in &skips {
            self.skip(shared, writer, *unit);
        }
        // Kept, so that the next requests needs no memory.
        self.skips = skips;
        self.skips.clear();
        // Whoever asked before the last epoch was opened has seen too little.
        if let Some(request) = epoch
            && request.known == self.epoch.number
            && self.pending_epoch.is_none()
        {
            self.record_poll_rounds(shared);
            self.pending_epoch = Some(PendingEpoch {
                request,
                deadline: now + POLL_ROUND,
                ticks: 0,
            });
        }
    }

    /// Moves the window's front to `front`, closing what it passes. Later packets have been seen, or every
    /// place of the passed frames has.
    pub(super) fn advance(&mut self, shared: &Shared, writer: usize, front: u64) {
        let base = shared.base.load(Ordering::Relaxed);
        for frame in base..front.min(Self::publish_end(shared, base)) {
            self.pass(shared, writer, frame, true);
        }
        self.pass_gap(shared, writer, front);
    }

    /// One past the last frame to be published when the window slides from `base`: further on there is nothing to
    /// publish, those in between are only counted.
    fn publish_end(shared: &Shared, base: u64) -> u64 {
        base + 2 * shared.geometry.window as u64
    }

    /// Moves the window's front past the frame `base`, the oldest open one.
    fn pass(&mut self, shared: &Shared, writer: usize, base: u64, publish: bool) {
        let places = u64::from(shared.geometry.places);
        shared
            .horizon
            .fetch_max((base + 1) * places, Ordering::AcqRel);
        self.retire_record(shared, base);
        shared.base.store(base + 1, Ordering::SeqCst);
        shared.wait_grace_period(writer, base + 1);
        self.close(shared, base, places, publish);
    }

    /// Moves the window's front to `front` past frames that are not published, only counted.
    fn pass_gap(&mut self, shared: &Shared, writer: usize, front: u64) {
        while shared.base.load(Ordering::Relaxed) < front {
            self.skip_gap(shared, writer, front);
            let base = shared.base.load(Ordering::Relaxed);
            self.pass(shared, writer, base, false);
        }
    }

    /// Moves the window's front in one step over frames that nothing has come for, as far as [`pass`](Self::pass), frame
    /// by frame on the way to `front`, would settle them: a gap may be as long as a count is wide.
    fn skip_gap(&mut self, shared: &Shared, writer: usize, front: u64) {
        #[cfg(test)]
        if self.passes_one_by_one {
            return;
        }
        let records = shared.records.len() as u64;
        // Frames further on are closed with their gaps open, for packets that come late.
        let open = front - (shared.geometry.window as u64 + 1);
        if open < shared.base.load(Ordering::Relaxed) + records {
            return;
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let places = u64::from(shared.geometry.places);
        // Other threads may have gone on meanwhile, into the gap.
        if shared.horizon.load(Ordering::Acquire) > base * places {
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
        let (first, end) = (base * places, open * places);
        shared.history.record_missing(first, end);
        let start = shared.start.load(Ordering::Acquire).clamp(first, end);
        shared.horizon.fetch_max(end, Ordering::AcqRel);
        self.absent += end - start;
        self.account(shared);
        self.note_gaps(shared, end - start);
        shared.base.store(open, Ordering::SeqCst);
    }

    /// Slides the window to `frame` as a packet there would, but refuses no frame a slot: false if there are too few
    /// slots now. What can be published is, so that readers have something to free.
    pub(super) fn approach(&mut self, shared: &Shared, writer: usize, frame: u64) -> bool {
        let slots = self.producer.options().slots;
        // No more frames are open than there can be slots.
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

    /// Whether an epoch can be opened without a frame being refused a slot; closes what need not be open for it.
    pub(super) fn has_room_for_epoch(&mut self, shared: &Shared, writer: usize) -> bool {
        let horizon = shared.horizon.load(Ordering::Acquire);
        let end = horizon.div_ceil(u64::from(shared.geometry.places));
        let has_room = self.close_with_room(shared, writer, end.saturating_sub(1), end) && {
            let base = shared.base.load(Ordering::Relaxed);
            // Those that are open with packets in them, one at most, and the epoch's first.
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

    /// Closes the frames before `front` in order while each has a slot, those before `end` published; true if all are.
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

    /// A source that is held back has not fallen silent: no frame is stale.
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

    /// Closes one frame that no writer can reach any more: counts it and hands it to the ring.
    fn close(&mut self, shared: &Shared, frame: u64, up_to: u64, publish: bool) {
        let geometry = &shared.geometry;
        let per_frame = u64::from(geometry.places);
        let record = shared.record(frame);
        let state = record.state.load(Ordering::Acquire);
        if matches!(state, state::SKIP_REQUESTED | state::SKIPPED) {
            record.state.store(state::SKIPPED, Ordering::Release);
            *self.closed_mut(shared, frame) = Closed::default();
            let words = (geometry.places as usize).div_ceil(64);
            let known = std::iter::repeat_n(u64::MAX, words);
            shared
                .history
                .record(frame * per_frame, geometry.places, known);
            return;
        }
        let first = frame * per_frame;
        let start = shared
            .start
            .load(Ordering::Acquire)
            .clamp(first, first + per_frame)
            - first;
        let end = up_to.min(per_frame).max(start);
        let places = narrow(start)..narrow(end);
        let arrived = u64::from(record.arrived.load(Ordering::Acquire));
        let missing = (end - start) - arrived;
        self.missing += missing;
        self.absent += missing;
        self.account(shared);
        let closed = self.closed_mut(shared, frame);
        (closed.places, closed.missing) = (places, missing);
        shared
            .history
            .record(first, geometry.places, record.present());

        if publish
            && self.assign_one(shared, frame)
            && record.state.load(Ordering::Relaxed) == state::ASSIGNED
        {
            self.publish(shared, frame, arrived, start > 0 || end < per_frame);
            if missing > 0 {
                self.ledger.incomplete.add(1);
            }
            self.ledger.bytes.add(Self::bytes(shared, frame, arrived));
            self.ledger.delivered.add(arrived);
        } else {
            if publish {
                self.producer.refuse(1);
            }
            self.ledger.lost_ring_full.add(arrived);
        }
    }

    /// Payload bytes of the places that arrived.
    fn bytes(shared: &Shared, frame: u64, arrived: u64) -> u64 {
        let geometry = &shared.geometry;
        let record = shared.record(frame);
        let odd = [0, geometry.places - 1];
        let odd = if geometry.places == 1 {
            &odd[..1]
        } else {
            &odd[..]
        };
        let odd = odd.iter().filter(|place| record.is_present(**place));
        let (count, bytes) = odd.fold((0, 0), |(n, bytes), place| {
            (n + 1, bytes + geometry.extent(*place).len() as u64)
        });
        (arrived - count) * geometry.place_bytes as u64 + bytes
    }

    /// Fills what is missing, describes the frame and publishes it.
    fn publish(&mut self, shared: &Shared, frame: u64, arrived: u64, truncated: bool) {
        let geometry = &shared.geometry;
        let record = shared.record(frame);
        let mut flags = std::mem::take(&mut self.flags);
        if arrived < u64::from(geometry.places) {
            flags = flags.with(Flags::INCOMPLETE);
            let memory = record.memory.load(Ordering::Relaxed);
            for place in (0..geometry.places).filter(|place| !record.is_present(*place)) {
                let extent = geometry.extent(place);
                // SAFETY: the extent lies inside the frame's slot, which is open and which no writer can reach any
                // more (see `Shared::wait_grace_period`).
                unsafe { fill(memory, extent, self.producer.options().fill.pattern()) };
                #[cfg(loom)]
                // SAFETY: loom checks that nobody else writes the place.
                record.canary[place as usize].with_mut(|canary| unsafe { *canary = 0 });
            }
        }
        if truncated {
            flags = flags.with(Flags::TRUNCATED);
        }
        #[expect(clippy::cast_possible_truncation, reason = "stored from a Clock")]
        let clock = Clock::from_u8(record.time_clock.load(Ordering::Acquire) as u8);
        let meta = FrameMeta {
            sequence: frame.wrapping_sub(shared.epoch_offset.load(Ordering::Relaxed)),
            #[expect(clippy::cast_possible_truncation, reason = "no run opens 2^32 epochs")]
            epoch: shared.epoch_number.load(Ordering::Relaxed) as u32,
            flags,
            timestamp: Timestamp {
                ns: record.time_ns.load(Ordering::Relaxed),
                clock,
            },
            length: geometry.frame_bytes,
            places: geometry.places,
            arrived: narrow(arrived),
            first_bytes: narrow(geometry.first_bytes as u64),
            place_bytes: narrow(geometry.place_bytes as u64),
        };
        let meta = if clock == Clock::None {
            FrameMeta {
                timestamp: Timestamp::default(),
                ..meta
            }
        } else {
            meta
        };
        #[cfg(loom)]
        for place in (0..geometry.places).filter(|place| record.is_present(*place)) {
            // SAFETY: loom checks that nobody writes the place any more.
            record.canary[place as usize].with(|canary| assert!(unsafe { *canary } > 0));
        }
        self.producer.describe(0, &meta, record.present());
        self.producer.publish(1);
        self.assigned -= 1;
    }

    /// Gives the missing places of a closed frame their causes.
    fn finalise(&mut self, shared: &Shared, frame: u64) {
        let closed = std::mem::take(self.closed_mut(shared, frame));
        if closed.missing == 0 {
            return;
        }
        let (late, bad) = shared.record(frame).dispositions(closed.places);
        self.ledger.lost(Cause::Late).add(late);
        self.ledger.lost(Cause::BadPacket).add(bad);
        self.missing -= closed.missing;
        self.note_gaps(shared, closed.missing - late - bad);
    }

    /// Counts places that will never come.
    fn note_gaps(&mut self, shared: &Shared, places: u64) {
        let readings = shared.readings.load(Ordering::Acquire);
        self.gaps = (self.gaps.0 + places, readings);
        if readings == 0 {
            // Nobody reads drops for this source: there is nothing to wait for.
            self.decide(shared);
        }
    }

    /// Says where the places that will never come were lost: here, if the kernel's drops have grown since
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

    /// Brings `expected` up to date: a place counts once it has arrived, or its frame is closed without it.
    fn account(&mut self, shared: &Shared) {
        let arrived = shared.arrived.load(Ordering::Acquire);
        self.ledger.expected.set(arrived + self.absent);
    }

    pub(super) fn finish(&mut self, shared: &Shared, writer: usize) {
        if self.epoch.number == 0 {
            return;
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let end = self.end_epoch(shared, base);
        self.decide(shared);
        // Whatever comes now opens an epoch of its own.
        for record in &shared.records {
            record.reset();
        }
        shared.start.store(u64::MAX, Ordering::Relaxed);
        shared.horizon.store(0, Ordering::Relaxed);
        shared.floor.store(end, Ordering::Relaxed);
        shared.base.store(end, Ordering::SeqCst);
    }
}

/// Repeats `pattern` over `extent` of the slot at `memory`, in phase with the slot's start.
///
/// # Safety
/// The extent lies inside memory that only the caller refers to.
unsafe fn fill(memory: *mut u8, extent: Range<usize>, pattern: [u8; 4]) {
    if pattern == [pattern[0]; 4] {
        // SAFETY: forwarded to the caller.
        unsafe {
            memory
                .add(extent.start)
                .write_bytes(pattern[0], extent.len());
        };
        return;
    }
    for i in extent {
        // SAFETY: forwarded to the caller.
        unsafe { memory.add(i).write(pattern[i % 4]) };
    }
}

/// A number of places, which fits by construction.
fn narrow(places: u64) -> u32 {
    u32::try_from(places).unwrap_or(u32::MAX)
}
