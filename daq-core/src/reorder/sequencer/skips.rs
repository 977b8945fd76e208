//! Units that a control packet names: they carry no data.

use super::super::PacketId;
use super::super::shared::{BLOCKED, Shared, state};
use super::Sequencer;
use crate::sync::Ordering;

impl Sequencer {
    /// Notes that the frame of `unit` carries no data. Payload that comes before that of a later frame wins; a frame that
    /// was overtaken is void at once, unless it has payload; one that was closed has come too late.
    pub(in super::super) fn skip(&mut self, shared: &Shared, writer: usize, unit: u64) {
        if self.epoch.number == 0 {
            return;
        }
        let base = shared.base.swap(BLOCKED, Ordering::SeqCst);
        shared.wait_grace_period(writer, BLOCKED);
        let places = u64::from(shared.geometry.places);
        let position = shared
            .geometry
            .numbering
            .places_between(self.epoch.unit, PacketId::of(unit))
            .and_then(|distance| self.epoch.position.checked_add_signed(distance));
        // Before anything has come it is not known on which side of the unit counting begins.
        if let Some(frame) = position.map(|position| position / places)
            && shared.horizon.load(Ordering::Acquire) > 0
        {
            let end = base + shared.geometry.window as u64;
            if frame < base {
                self.skip_closed(shared, frame);
            } else if frame < end {
                self.skip_open(shared, frame, end);
            }
        }
        shared.base.store(base, Ordering::SeqCst);
    }

    /// Notes a frame before `end`, the end of those that are open.
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

    /// Notes an open frame beyond which nothing has come.
    fn skip_ahead(&mut self, shared: &Shared, frame: u64, end: u64) {
        for later in frame..end {
            let record = shared.record(later);
            if record.state.load(Ordering::Relaxed) == state::ASSIGNED {
                record.state.store(state::UNASSIGNED, Ordering::Relaxed);
                self.assigned -= 1;
            }
        }
        self.asked_to = self.asked_to.min(frame);
        // What is missing before it is known to be missing.
        let position = frame * u64::from(shared.geometry.places);
        shared.horizon.fetch_max(position + 1, Ordering::AcqRel);
        shared
            .record(frame)
            .state
            .store(state::SKIP_REQUESTED, Ordering::Release);
    }

    /// Makes an open frame void that packets of later ones have overtaken: those move down by a slot.
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
                // SAFETY: both are open slots of this window's ring, each at least `frame_bytes` long and not the same.
                // No thread writes to them: the position is blocked, and every batch of another thread has ended.
                unsafe {
                    memory.copy_to_nonoverlapping(free, shared.geometry.frame_bytes);
                }
            }
            record.memory.store(free, Ordering::Relaxed);
            free = memory;
        }
        self.assigned -= 1;
    }

    /// Says of a closed frame that its control packet came late, if its missing places have no cause yet.
    fn skip_closed(&mut self, shared: &Shared, frame: u64) {
        if frame < shared.finalised.load(Ordering::Acquire) {
            return;
        }
        let closed = self.closed_mut(shared, frame).clone();
        if !shared.record(frame).has_payload() {
            for place in closed.places {
                shared.record(frame).mark_late(place, false);
            }
        }
    }
}
