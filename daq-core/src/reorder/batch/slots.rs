//! Gets a slot for the frame of a packet, from the sequencer if another thread closes frames.

use super::{Batch, Memory};
use crate::reorder::record::{Record, state};
use crate::reorder::shared::{BLOCKED, Shared, wait_until};
use crate::sync::Ordering;

impl Batch<'_> {
    /// Advances the window until `frame` is open. Returns false if the sequencer has ended or has opened an epoch.
    pub(super) fn slide(&mut self, frame: u64) -> bool {
        let window = self.shared.geometry.window as u64;
        self.flush();
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.advance(self.shared, self.state.writer, frame + 1 - window);
            self.base = self.shared.pin(self.state.writer);
            return true;
        }
        self.await_sequencer(frame, |shared| {
            let base = shared.base.load(Ordering::Acquire);
            base != BLOCKED && frame < base + window
        })
    }

    /// Requests `frame` from the sequencer and waits, unpinned, until `ready` returns true. Returns false if the
    /// sequencer has ended or has opened an epoch, which this thread then adopts.
    fn await_sequencer(&mut self, frame: u64, ready: impl Fn(&Shared) -> bool) -> bool {
        let (shared, writer) = (self.shared, self.state.writer);
        let segment = self.state.epoch.segment;
        let is_stale = || shared.segment.load(Ordering::Acquire) != segment;
        let moved = || shared.closed.load(Ordering::Acquire) != 0 || is_stale();
        self.flush();
        shared.wanted[writer].store(frame, Ordering::Release);
        shared.unpin(writer);
        wait_until(|| ready(shared) || moved());
        shared.wanted[writer].store(0, Ordering::Release);
        self.base = shared.pin(writer);
        if is_stale() {
            // The rest of the batch belongs to the new epoch, or is far from it.
            self.state.refresh(shared);
            self.place_candidates(false);
            return false;
        }
        !moved()
    }

    /// Returns the memory of an open frame for a packet that arrived. If no slot is free, the frame is refused a slot
    /// permanently.
    #[inline]
    pub(super) fn memory(&mut self, frame: u64, record: &Record) -> Memory {
        match record.state.load(Ordering::Acquire) {
            state::ASSIGNED => Memory::Slot(record.memory.load(Ordering::Relaxed)),
            _ => self.ask_memory(frame, record),
        }
    }

    fn ask_memory(&mut self, frame: u64, record: &Record) -> Memory {
        loop {
            // A packet with payload cancels the request to skip its frame. Another request may arrive while this thread waits.
            record.resolve_skip_request(state::UNASSIGNED);
            match record.state.load(Ordering::Acquire) {
                state::ASSIGNED => return Memory::Slot(record.memory.load(Ordering::Relaxed)),
                state::SKIPPED => return Memory::Reject,
                state::UNASSIGNED => {}
                _ => return Memory::RingFull,
            }
            if let Some(sequencer) = &mut self.state.sequencer {
                if !sequencer.assign(self.shared, frame) {
                    record.state.store(state::REFUSED, Ordering::Release);
                }
            } else if !self.await_sequencer(frame, |shared| {
                let base = shared.base.load(Ordering::Acquire);
                // The window may advance past the frame without assigning a slot.
                base != BLOCKED && frame < base
                    || shared.record(frame).state.load(Ordering::Acquire) != state::UNASSIGNED
            }) {
                return Memory::Reject;
            }
            if frame < self.base {
                return Memory::Closed;
            }
        }
    }
}
