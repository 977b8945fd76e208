//! Classifies packets by their sequence numbers.
//!
//! Nothing here changes any state, so a source that waits may ask before it puts a packet.

use super::shared::Shared;
use super::{Geometry, PacketId, WriterState};
use crate::sync::Ordering;

/// What successive packets far from the window agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The unit number of the last packet.
    unit: u64,
    /// Number of packets that agree.
    pub(super) count: u32,
    /// The horizon at the first of them.
    pub(super) since: u64,
}

/// What a packet's sequence number means for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classification {
    /// The frame is open, was closed recently, or lies so little ahead that the window slides to it.
    InWindow { frame: u64, place: u32 },
    /// The frame lies beyond a gap that several packets confirm: the window slides to it.
    Gap { frame: u64, place: u32 },
    /// Several packets confirm a new epoch.
    NewEpoch,
    /// The packet may be the first sign of a new epoch or of a gap.
    Undecided,
    /// The number is implausible, or the unit has no such packet.
    Reject,
}

impl WriterState {
    /// Whether the next packet opens an epoch, whatever its number.
    #[inline]
    pub(super) const fn opens_epoch(&self) -> bool {
        self.epoch.number == 0 || self.restarts
    }

    /// Classifies `id` while an epoch is open; also returns the new candidate.
    ///
    /// `front` is the oldest open frame, and one past the highest position that this thread has seen and not
    /// published yet. A packet whose length is not `bytes` is rejected.
    pub(super) fn classify(
        &self,
        shared: &Shared,
        front: (u64, u64),
        id: PacketId,
        bytes: Option<usize>,
    ) -> (Classification, Option<Candidate>) {
        let (base, _) = front;
        let geometry = &shared.geometry;
        let Some((frame, place)) = self.locate(geometry, id) else {
            return self.classify_distant(shared, front, id);
        };
        if bytes.is_some_and(|bytes| bytes != geometry.extent(place).len()) {
            return (Classification::Reject, self.candidate);
        }
        let window = geometry.window as u64;
        if frame >= base + 2 * window || frame + window < base {
            return self.classify_distant(shared, front, id);
        }
        if frame < base && shared.has_been_silent() {
            // Every packet that was sent has arrived, so numbers of closed frames are those of a restarted sender.
            return self.classify_distant(shared, front, id);
        }
        if frame < shared.floor.load(Ordering::Acquire) {
            // The epoch started after this frame: the packet is a straggler, not a sign of new numbering.
            return (Classification::Reject, self.candidate);
        }
        (Classification::InWindow { frame, place }, self.candidate)
    }

    /// Classifies a packet far from the window: very late, an outlier, or the first sign of a new epoch.
    fn classify_distant(
        &self,
        shared: &Shared,
        (base, seen): (u64, u64),
        id: PacketId,
    ) -> (Classification, Option<Candidate>) {
        let geometry = &shared.geometry;
        let is_place = id.sub < geometry.numbering.places_per_unit;
        // A source whose every number is trusted reports backward steps itself.
        if !is_place || geometry.resync_after > 1 && self.is_late(shared, base, id) {
            return (Classification::Reject, self.candidate);
        }
        let near = geometry.window as u64 * u64::from(geometry.places);
        // Includes what this batch has seen: its own packets are not those of other threads.
        let horizon = shared.horizon.load(Ordering::Acquire).max(seen);
        let (agreed, since) = match self.candidate {
            Some(Candidate { unit, count, since }) => {
                match geometry.numbering.places_between(unit, id) {
                    Some(0) => (count, since),
                    Some(distance) if distance.unsigned_abs() <= near => (count + 1, since),
                    _ => (1, horizon),
                }
            }
            None => (1, horizon),
        };
        let candidate = Some(Candidate {
            unit: id.unit,
            count: agreed,
            since,
        });
        if agreed < geometry.resync_after {
            return (Classification::Undecided, candidate);
        }
        if let Some((frame, place)) = self.locate_beyond_gap(geometry, base, id) {
            return (Classification::Gap { frame, place }, candidate);
        }
        if horizon != since && !shared.is_exclusive() {
            // Other threads continue in the old numbering: this thread lags, or only its sender has restarted.
            return (Classification::Reject, None);
        }
        (Classification::NewEpoch, candidate)
    }

    /// Whether `id` names a packet that was closed as missing. It is then that packet, however late. A restarted
    /// sender would repeat numbers that arrived.
    fn is_late(&self, shared: &Shared, base: u64, id: PacketId) -> bool {
        let places = u64::from(shared.geometry.places);
        self.locate(&shared.geometry, id)
            .is_some_and(|(frame, place)| {
                let position = frame * places + u64::from(place);
                frame >= shared.floor.load(Ordering::Acquire)
                    && shared.history.is_missing(position, base * places)
            })
    }

    /// The position of `id` if it lies ahead by no more than the longest allowed gap.
    fn locate_beyond_gap(
        &self,
        geometry: &Geometry,
        base: u64,
        id: PacketId,
    ) -> Option<(u64, u32)> {
        let window = geometry.window as u64;
        let (frame, place) = self.locate(geometry, id)?;
        let gap = geometry.max_gap.div_ceil(u64::from(geometry.places));
        let reach = base + 2 * window + gap;
        (base + window..reach)
            .contains(&frame)
            .then_some((frame, place))
    }

    /// The frame and packet index of `id` in the current epoch; `None` if the epoch has no such packet.
    pub(super) fn locate(&self, geometry: &Geometry, id: PacketId) -> Option<(u64, u32)> {
        let distance = geometry.numbering.places_between(self.epoch.unit, id)?;
        let position = self.epoch.position.checked_add_signed(distance)?;
        Some(geometry.split(position))
    }
}
