//! Skips units that a control packet marks as containing no data.

use super::super::PacketId;
use super::super::record::state;
use super::super::shared::{BLOCKED, Epoch, Shared};
use super::Sequencer;
use crate::sync::Ordering;

impl Sequencer {
    /// Skips the frame of `unit`, which contains no data. If payload of the frame arrives before payload of a later
    /// frame, the skip is cancelled. If packets of later frames have already arrived, the frame is skipped immediately,
    /// unless it has payload. If the frame is closed, the request is too late.
    pub(in super::super) fn skip(
        &mut self,
        shared: &Shared,
        writer: usize,
        epoch: Epoch,
        unit: u64,
    ) {
        // Before the first packet, it is unknown whether the numbering starts before or after the unit.
        if epoch.segment == 0 || shared.horizon.load(Ordering::Acquire) == 0 {
            return;
        }
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        let position = shared
            .geometry
            .numbering
            .packets_between(epoch.unit, PacketId::of(unit))
            .and_then(|distance| epoch.position.checked_add_signed(distance));
        let Some(frame) = position.map(|position| position / packets_per_frame) else {
            return;
        };
        self.pass_skipped(shared, writer, frame);
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let end = base + shared.geometry.window as u64;
        if frame < base {
            self.skip_closed(shared, frame);
        } else if frame < end {
            self.skip_open(shared, frame, end);
        }
        shared.base.store(base, Ordering::SeqCst);
    }

    /// Moves the window so that it contains `frame`, if all frames that it passes are skipped.
    fn pass_skipped(&mut self, shared: &Shared, writer: usize, frame: u64) {
        let base = shared.base.load(Ordering::Relaxed);
        let window = shared.geometry.window as u64;
        let front = (frame + 1).saturating_sub(window);
        let is_skipped = |frame| {
            let state = shared.record(frame).state.load(Ordering::Acquire);
            matches!(state, state::SKIP_REQUESTED | state::SKIPPED)
        };
        if (base + 1..=base + window).contains(&front) && (base..front).all(is_skipped) {
            self.advance(shared, writer, front);
        }
    }

    /// Requests to skip a frame before `end`, the end of the open frames.
    fn skip_open(&mut self, shared: &Shared, frame: u64, end: u64) {
        let record = shared.record(frame);
        let is_known = matches!(
            record.state.load(Ordering::Acquire),
            state::SKIP_REQUESTED | state::SKIPPED
        );
        if is_known || record.has_payload() {
            return;
        }
        if (frame + 1..end).any(|later| shared.record(later).has_payload()) {
            self.skip_overtaken(shared, frame, end);
        } else {
            self.skip_ahead(shared, frame, end);
        }
    }

    /// Requests to skip an open frame after which no packet has arrived.
    fn skip_ahead(&mut self, shared: &Shared, frame: u64, end: u64) {
        for later in frame..end {
            let record = shared.record(later);
            if record.state.load(Ordering::Relaxed) == state::ASSIGNED {
                record.state.store(state::UNASSIGNED, Ordering::Relaxed);
                self.assigned -= 1;
            }
        }
        self.asked_to = self.asked_to.min(frame);
        // Packets count as missing only after a later packet has arrived.
        let position = frame * u64::from(shared.geometry.packets_per_frame);
        shared.horizon.fetch_max(position + 1, Ordering::AcqRel);
        shared
            .record(frame)
            .state
            .store(state::SKIP_REQUESTED, Ordering::Release);
    }

    /// Skips an open frame after which packets of later frames have arrived. The later frames move down by one slot.
    fn skip_overtaken(&mut self, shared: &Shared, frame: u64, end: u64) {
        let record = shared.record(frame);
        if record.state.swap(state::SKIPPED, Ordering::AcqRel) != state::ASSIGNED {
            return;
        }
        let mut free = record.memory.load(Ordering::Relaxed);
        for later in frame + 1..end {
            let record = shared.record(later);
            if record.state.load(Ordering::Relaxed) != state::ASSIGNED {
                continue;
            }
            let memory = record.memory.load(Ordering::Relaxed);
            if record.has_payload() {
                // SAFETY:
                // - Both addresses are different open slots of this window's ring, each with at least `frame_bytes`
                //   bytes.
                // - No thread writes to them, because the position is blocked and every batch of another thread has
                //   ended.
                unsafe {
                    memory.copy_to_nonoverlapping(free, shared.geometry.frame_bytes);
                }
            }
            record.memory.store(free, Ordering::Relaxed);
            free = memory;
        }
        self.assigned -= 1;
    }

    /// Marks the missing packets of a closed frame as late if they have no cause yet, because the control packet
    /// arrived too late.
    fn skip_closed(&mut self, shared: &Shared, frame: u64) {
        if frame < shared.finalised.load(Ordering::Acquire) {
            return;
        }
        let closed = self.closed_mut(shared, frame).clone();
        if !shared.record(frame).has_payload() {
            for index in closed.packets {
                shared.record(frame).mark_late(index, false);
            }
        }
    }
}
