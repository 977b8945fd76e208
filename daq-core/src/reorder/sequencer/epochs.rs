//! Opens and ends epochs.

use super::super::PacketId;
use super::super::shared::{BLOCKED, Epoch, EpochRequest, Shared, wait_until};
use super::{Closed, POLL_ROUND, PendingEpoch, Sequencer};
use crate::frame::Flags;
use crate::sync::Ordering;
use std::time::Instant;

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
            deadline,
            ticks,
        } = *asked;
        let have_polled = ticks > 2 && self.have_polled(shared, writer) || now >= deadline;
        if have_polled || cfg!(loom) {
            self.pending_epoch = None;
            if request.known == epoch.number {
                self.decide_epoch(shared, writer, epoch, request, false);
            }
        }
    }

    pub(super) fn record_poll_rounds(&mut self, shared: &Shared) {
        for (noted, rounds) in self.rounds.iter_mut().zip(&shared.rounds) {
            *noted = rounds.load(Ordering::Acquire);
        }
    }

    /// Returns whether every other thread has completed a poll that it began after
    /// [`record_poll_rounds`](Self::record_poll_rounds).
    fn have_polled(&self, shared: &Shared, writer: usize) -> bool {
        let pairs = self.rounds.iter().zip(&shared.rounds).enumerate();
        pairs.into_iter().all(|(other, (noted, rounds))| {
            other == writer || rounds.load(Ordering::Acquire).wrapping_sub(*noted) >= 2
        })
    }

    /// Opens the epoch after `epoch` that this thread's packets confirm, or refuses it.
    pub(in super::super) fn confirm_epoch(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        request: EpochRequest,
        restarts: bool,
    ) {
        if !shared.is_exclusive() && cfg!(not(loom)) {
            self.record_poll_rounds(shared);
            let start = Instant::now();
            wait_until(|| self.have_polled(shared, writer) || start.elapsed() >= POLL_ROUND);
        }
        self.decide_epoch(shared, writer, epoch, request, restarts);
    }

    fn decide_epoch(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        request: EpochRequest,
        restarts: bool,
    ) {
        let EpochRequest {
            mut first,
            known,
            since,
        } = request;
        if !shared.is_exclusive() {
            if known > 0 && shared.horizon.load(Ordering::Acquire) != since {
                // Other threads continue in the old numbering.
                shared.refusals.fetch_add(1, Ordering::AcqRel);
                return;
            }
            let geometry = &shared.geometry;
            let near = geometry.window as u64 * u64::from(geometry.packets_per_frame);
            let requests = shared.requests();
            let others = requests.firsts.iter().flatten().copied().filter(|other| {
                let distance = geometry.numbering.packets_between(first.unit, *other);
                distance.is_some_and(|distance| distance.unsigned_abs() < near)
            });
            first = geometry.numbering.lowest(first, others);
        }
        self.open_epoch(shared, writer, epoch, first, restarts);
    }

    /// Ends the epoch `last`, if its number is not 0, and opens the next at `id`.
    ///
    /// `restarts` is true if the sender is known to restart its numbering, so that a higher number is not counted as
    /// skipped packets.
    fn open_epoch(
        &mut self,
        shared: &Shared,
        writer: usize,
        last: Epoch,
        id: PacketId,
        restarts: bool,
    ) {
        let numbering = shared.geometry.numbering;
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let mut absolute = numbering.absolute(id);
        // `None` for a backward step or a partial step.
        let ahead = numbering.packets_between(last.unit, id);
        if last.number > 0
            && !restarts
            && let Some(ahead) = ahead.and_then(|distance| u64::try_from(distance).ok())
        {
            let horizon = shared.horizon.load(Ordering::Acquire);
            let position = last.position.wrapping_add(ahead);
            self.ledger.skipped.add(position.saturating_sub(horizon));
            // A forward step keeps the upper bits of the frame number.
            absolute = position.wrapping_sub(
                shared
                    .epoch_offset
                    .load(Ordering::Relaxed)
                    .wrapping_mul(packets_per_frame),
            );
        }
        let end = self.end_epoch(shared, base);
        let front = end + shared.records.len() as u64;
        for record in &shared.records {
            record.reset();
        }
        self.closed.clear();
        self.closed.resize(shared.records.len(), Closed::default());
        let epoch = Epoch {
            number: last.number + 1,
            unit: id.unit,
            position: front * packets_per_frame + absolute % packets_per_frame - u64::from(id.sub),
        };
        shared.epoch_offset.store(
            front.wrapping_sub(absolute / packets_per_frame),
            Ordering::Relaxed,
        );
        shared.start.store(u64::MAX, Ordering::Relaxed);
        shared.horizon.store(0, Ordering::Relaxed);
        shared.wanted.store(0, Ordering::Relaxed);
        shared.finalised.store(front, Ordering::Relaxed);
        shared.floor.store(front, Ordering::Relaxed);
        shared.parts.begin(front);
        shared.set_epoch(epoch);
        self.flags = Flags::EPOCH;
        self.ledger.epochs.set(epoch.number);
        self.account(shared);
        shared.epoch_number.store(epoch.number, Ordering::Release);
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
