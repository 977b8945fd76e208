//! Opens and ends epochs.

use super::super::shared::{BLOCKED, Epoch, EpochRequest, Opening, Shared, wait_until};
use super::super::{Geometry, PacketId};
use super::{BUSY_POLL_ROUND, Closed, POLL_ROUND, PendingEpoch, Sequencer};
use crate::frame::Flags;
use crate::sync::Ordering;
use std::time::{Duration, Instant};

/// Time without alternating numbers after which few packets confirm an epoch again.
const TRUST_AFTER: Duration = Duration::from_secs(10);

impl Sequencer {
    /// Opens or refuses the epoch that another thread requested, once all threads have polled for packets.
    pub(super) fn resolve_epoch_request(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        now: Instant,
    ) {
        let Some(asked) = &mut self.pending_epoch else {
            return;
        };
        asked.ticks += 1;
        let PendingEpoch {
            request,
            begun,
            ticks,
        } = *asked;
        let waited = now.saturating_duration_since(begun);
        let have_polled = self.have_polled(shared, writer, ticks > 2, waited);
        if have_polled || cfg!(loom) {
            self.pending_epoch = None;
            if request.known == epoch.segment {
                self.decide_epoch(shared, writer, epoch, request);
            }
        }
    }

    pub(super) fn record_poll_rounds(&mut self, shared: &Shared) {
        for (noted, rounds) in self.rounds.iter_mut().zip(&shared.rounds) {
            *noted = rounds.load(Ordering::Acquire);
        }
    }

    /// Returns whether all other threads have completed a poll that they began after
    /// [`record_poll_rounds`](Self::record_poll_rounds), or are not awaited after the time `waited`. `has_polled` is true if this
    /// thread has completed one.
    fn have_polled(
        &self,
        shared: &Shared,
        writer: usize,
        has_polled: bool,
        waited: Duration,
    ) -> bool {
        if waited >= BUSY_POLL_ROUND {
            return true;
        }
        let is_over = waited >= POLL_ROUND;
        // A thread that waits for a slot waits for this thread.
        let is_idle = |other: usize| {
            is_over && shared.idle[other].load(Ordering::Acquire) != 0
                || shared.wanted[other].load(Ordering::Acquire) != 0
        };
        let mut pairs = self.rounds.iter().zip(&shared.rounds).enumerate();
        (has_polled || is_over)
            && pairs.all(|(other, (noted, rounds))| {
                other == writer
                    || rounds.load(Ordering::Acquire).wrapping_sub(*noted) >= 2
                    || is_idle(other)
            })
    }

    /// Opens the segment after `epoch` that this thread's packets confirm, or refuses it.
    pub(in super::super) fn confirm_epoch(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        request: EpochRequest,
    ) {
        if !shared.is_exclusive() && cfg!(not(loom)) {
            self.record_poll_rounds(shared);
            let start = Instant::now();
            wait_until(|| self.have_polled(shared, writer, true, start.elapsed()));
        }
        self.decide_epoch(shared, writer, epoch, request);
    }

    fn decide_epoch(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        request: EpochRequest,
    ) {
        let EpochRequest {
            mut first, opening, ..
        } = request;
        let geometry = &shared.geometry;
        if !shared.is_exclusive() {
            let near = geometry.window as u64 * u64::from(geometry.packets_per_frame);
            let requests = shared.requests();
            let others = requests.firsts.iter().flatten().copied().filter(|other| {
                let distance = geometry.numbering.packets_between(first.unit, *other);
                distance.is_some_and(|distance| distance.unsigned_abs() < near)
            });
            first = geometry.numbering.lowest(first, others);
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        if Self::refuses(shared, epoch, &request, first) {
            shared.base.store(base, Ordering::SeqCst);
            shared.refusals.fetch_add(1, Ordering::AcqRel);
        } else if opening == Opening::Segment {
            self.open_segment(shared, base, epoch, first);
        } else {
            shared.began.store(request.received, Ordering::Release);
            self.open_epoch(shared, base, epoch, first, opening == Opening::Restart);
        }
    }

    /// Returns whether the `request` for a segment that begins at `first` is refused. No thread fills frames meanwhile.
    fn refuses(shared: &Shared, epoch: Epoch, request: &EpochRequest, first: PacketId) -> bool {
        let horizon = shared.horizon.load(Ordering::Acquire);
        if request.opening == Opening::Segment {
            let position = epoch.locate(&shared.geometry, first);
            // Packets of other threads may have filled the gap, or none has arrived before it.
            let per_frame = u64::from(shared.geometry.packets_per_frame);
            let is_filled = |position| position / per_frame < horizon.div_ceil(per_frame);
            return horizon == 0 || position.is_none_or(is_filled);
        }
        // Other threads continue in the old numbering.
        !shared.is_exclusive() && request.known > 0 && horizon != request.since
    }

    /// Ends the epoch `last`, if its number is not 0, and opens the next at `id`. `base` is the oldest open frame.
    ///
    /// `restarts` is true if the sender is known to restart its numbering, so that a higher number is not counted as
    /// skipped packets.
    fn open_epoch(
        &mut self,
        shared: &Shared,
        base: u64,
        last: Epoch,
        id: PacketId,
        restarts: bool,
    ) {
        let geometry = &shared.geometry;
        let packets_per_frame = u64::from(geometry.packets_per_frame);
        let (mut frame, mut index) = geometry.numbering.frame_of(id, geometry.packets_per_frame);
        let horizon = shared.horizon.load(Ordering::Acquire);
        // `None` for a partial step.
        let position = last.locate(geometry, id);
        let position = position.filter(|_| last.number > 0 && !restarts);
        self.note_alternation(shared, last, id, horizon);
        let end = self.end_epoch(shared, base);
        if let Some(position) = position {
            let goes_back = self.may_go_back(shared, position);
            let is_forward = position >= last.position.max(horizon);
            if goes_back || is_forward {
                // The upper bits of the frame number do not change.
                let offset = shared.epoch_offset.load(Ordering::Relaxed);
                (frame, index) = geometry.split(position);
                frame = frame.wrapping_sub(offset);
            }
            if goes_back {
                self.alternate(shared);
                self.go_back(shared, position);
            } else if is_forward {
                self.ledger.skipped.add(position - horizon);
            }
        }
        self.count_held_gaps(shared);
        let front = end + shared.records.len() as u64;
        shared
            .epoch_offset
            .store(front.wrapping_sub(frame), Ordering::Relaxed);
        shared.first.store(front, Ordering::Release);
        self.flags = Flags::EPOCH;
        shared
            .epoch_number
            .store(last.number + 1, Ordering::Relaxed);
        self.ledger.epochs.set(last.number + 1);
        let epoch = Epoch {
            number: last.number + 1,
            segment: last.segment + 1,
            unit: id.unit,
            position: front * packets_per_frame + u64::from(index) - u64::from(id.sub),
        };
        self.begin_segment(shared, epoch, front);
    }

    /// Counts an epoch at `id` that continues the numbers of the epoch before `last`. Many such epochs show two senders with
    /// different numbers. An epoch that rather begins where an earlier one began is the next acquisition of the same sender.
    /// `horizon` is one past the highest position in `last`.
    fn note_alternation(&mut self, shared: &Shared, last: Epoch, id: PacketId, horizon: u64) {
        let Geometry {
            numbering, window, ..
        } = shared.geometry;
        let near = window as u64 * u64::from(shared.geometry.packets_per_frame);
        let distance = |from| {
            let distance = numbering.packets_between(from, PacketId::of(id.unit));
            distance.map_or(u64::MAX, i64::unsigned_abs)
        };
        if let Some((begun, ended)) = self.before
            && distance(ended) <= near
            && distance(ended) < distance(begun)
        {
            self.alternate(shared);
        }
        let last_packets = horizon.saturating_sub(last.position);
        let ended = numbering.after(last.unit, last_packets).unit;
        self.before = self.begun.replace(id.unit).map(|begun| (begun, ended));
        shared.ended.store(ended, Ordering::Release);
        let has_ended = u32::from(last.number > 0);
        shared.has_ended.store(has_ended, Ordering::Release);
    }

    fn alternate(&mut self, shared: &Shared) {
        shared.note_alternation();
        self.alternated = None;
    }

    /// Trusts the numbers again if they have not alternated for some time.
    pub(super) fn tick_distrust(&mut self, shared: &Shared, now: Instant) {
        if shared.distrust.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = *self.alternated.get_or_insert(now);
        if now.saturating_duration_since(since) >= TRUST_AFTER {
            shared.distrust.store(0, Ordering::Relaxed);
        }
    }

    /// Continues the epoch `last` at `id`, after a long gap. `base` is the oldest open frame.
    fn open_segment(&mut self, shared: &Shared, base: u64, last: Epoch, id: PacketId) {
        let geometry = &shared.geometry;
        let Some(position) = last.locate(geometry, id) else {
            return;
        };
        let horizon = shared.horizon.load(Ordering::Acquire);
        self.is_before_gap = true;
        self.end_epoch(shared, base);
        self.is_before_gap = false;
        let (front, _) = geometry.split(position);
        let first = front * u64::from(geometry.packets_per_frame);
        shared.history.record_missing(horizon, first);
        self.hold_gap(shared, horizon, shared.start.load(Ordering::Acquire));
        self.after_gap = front;
        let epoch = Epoch {
            segment: last.segment + 1,
            unit: id.unit,
            position: position - u64::from(id.sub),
            ..last
        };
        self.begin_segment(shared, epoch, front);
    }

    /// Opens the frames from `front`, the first frame of the segment that `epoch` describes.
    fn begin_segment(&mut self, shared: &Shared, epoch: Epoch, front: u64) {
        for record in &shared.records {
            record.reset();
        }
        self.closed.clear();
        self.closed.resize(shared.records.len(), Closed::default());
        shared.start.store(u64::MAX, Ordering::Relaxed);
        shared.horizon.store(0, Ordering::Relaxed);
        shared.finalised.store(front, Ordering::Relaxed);
        shared.floor.store(front, Ordering::Relaxed);
        shared.parts.begin(front);
        shared.set_epoch(epoch);
        self.account(shared);
        shared.segment.store(epoch.segment, Ordering::Release);
        shared.base.store(front, Ordering::SeqCst);
    }

    /// Closes and finalises all frames from `base` while no thread fills frames. Returns the next frame.
    pub(super) fn end_epoch(&mut self, shared: &Shared, base: u64) -> u64 {
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        let horizon = shared.horizon.load(Ordering::Acquire);
        let end = horizon.div_ceil(packets_per_frame).max(base);
        self.account(shared);
        shared.parts.end_parts(shared, &(base..end));
        for frame in base..end {
            self.close(shared, frame, horizon - frame * packets_per_frame, true);
        }
        // Slots that were assigned to frames without packets stay open for later frames.
        (self.assigned, self.asked_to) = (0, 0);
        for frame in shared.finalised.swap(end, Ordering::AcqRel)..end {
            self.finalise(shared, frame);
        }
        self.account(shared);
        end
    }
}
