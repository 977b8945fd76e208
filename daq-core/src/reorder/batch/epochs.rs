//! Opens epochs, and crosses long gaps.

use super::{Batch, Found};
use crate::reorder::PacketId;
use crate::reorder::shared::{EpochRequest, Opening, wait_until};
use crate::sync::Ordering;

impl Batch<'_> {
    /// Advances the window over the gap that `id` confirms. The candidates are placed before `id`.
    pub(super) fn cross_gap(&mut self, id: PacketId, frame: u64) -> Found {
        let first = self.state.lowest_candidate(self.geometry(), id);
        if self.shared.holds_gaps() {
            if self.open_epoch(first, Opening::Segment) {
                self.place_candidates(false);
                return self.enter_near(id);
            }
            if self.shared.horizon.load(Ordering::Acquire) > 0 {
                // Packets of other threads have moved the window, or contradict this thread's packets.
                self.state.candidate = None;
                self.state.reject_candidates(self.shared);
                return self.enter_near(id);
            }
        }
        let first = self.state.locate(self.geometry(), first);
        if !self.slide(first.map_or(frame, |(first, _)| first.min(frame))) {
            return Found::Reject;
        }
        self.place_candidates(false);
        // Another epoch may have been opened meanwhile.
        self.enter_near(id)
    }

    /// Returns what begins with the epoch that `id` confirms.
    pub(super) fn opening(&self, id: PacketId) -> Opening {
        let horizon = self
            .shared
            .horizon
            .load(Ordering::Acquire)
            .max(self.horizon);
        if self.shared.returns(id, horizon) {
            Opening::Restart
        } else {
            Opening::Epoch
        }
    }

    /// Opens the epoch that `id` confirms. The epoch starts with the first candidate.
    pub(super) fn begin_epoch(&mut self, id: PacketId) -> Found {
        let first = self.state.lowest_candidate(self.geometry(), id);
        if !self.open_epoch(first, self.opening(id)) {
            self.state.candidate = None;
            self.state.reject_candidates(self.shared);
            return Found::Reject;
        }
        self.place_candidates(false);
        self.enter_near(id)
    }

    /// Advances the window until the frame of packet `id` is open, if the frame is near the window. Packets of another thread may
    /// have opened the epoch at another position.
    pub(super) fn enter_near(&mut self, id: PacketId) -> Found {
        let near = self.base..self.base + 2 * self.geometry().window as u64;
        match self.state.locate(self.geometry(), id) {
            Some((frame, index)) if near.contains(&frame) => self.enter(id, frame, index),
            _ => Found::Reject,
        }
    }

    /// Requests an epoch or a segment at `id` from the sequencer. Returns whether one was opened.
    pub(super) fn open_epoch(&mut self, id: PacketId, opening: Opening) -> bool {
        if id.sub >= self.shared.geometry.numbering.packets_per_unit {
            return false;
        }
        self.flush();
        let (shared, known) = (self.shared, self.state.epoch.segment);
        let since = match self.state.candidate {
            Some(candidate) => candidate.since,
            None => shared.horizon.load(Ordering::Acquire),
        };
        let request = EpochRequest {
            first: id,
            known,
            since,
            opening,
            received: self.state.candidates.received(self.received),
        };
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.confirm_epoch(shared, self.state.writer, self.state.epoch, request);
        } else {
            let refusals = shared.refusals.load(Ordering::Acquire);
            let mut requests = shared.requests();
            requests.firsts[self.state.writer] = Some(id);
            if requests.epoch.is_none_or(|asked| asked.known < known) {
                requests.epoch = Some(request);
            }
            drop(requests);
            shared.has_requests.store(1, Ordering::Release);
            shared.unpin(self.state.writer);
            wait_until(|| {
                // Counts as a poll of this thread, so that the sequencer does not wait for it.
                #[cfg(not(loom))]
                shared.rounds[self.state.writer].fetch_add(1, Ordering::AcqRel);
                shared.segment.load(Ordering::Acquire) != known
                    || shared.refusals.load(Ordering::Acquire) != refusals
                    || shared.closed.load(Ordering::Acquire) != 0
            });
        }
        self.base = shared.pin(self.state.writer);
        if shared.segment.load(Ordering::Acquire) == known {
            return false;
        }
        self.state.refresh(shared);
        true
    }
}
