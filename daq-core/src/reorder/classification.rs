//! Where a packet leads, by the window's rules alone.
//!
//! Nothing changes here, so that a source that waits may ask before it puts a packet.

use super::shared::Shared;
use super::{Geometry, PacketId, WriterState};
use crate::sync::Ordering;

/// What packets in succession that are far from the window agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The last packet's unit.
    unit: u64,
    /// How many packets agree.
    pub(super) count: u32,
    /// The horizon at the first of them.
    pub(super) since: u64,
}

/// Where a packet leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classification {
    /// To a frame that is open, was closed not long ago, or lies so little ahead that the window slides to it.
    InWindow { frame: u64, place: u32 },
    /// To a frame beyond a gap that packets agree on: the window slides to it.
    Gap { frame: u64, place: u32 },
    /// To a new epoch, which packets agree on.
    NewEpoch,
    /// Nowhere yet: it may be the first sign of a new epoch or of a gap.
    Undecided,
    /// Nowhere: it is not believed, or names no place.
    Reject,
}

impl WriterState {
    /// Whether the next packet opens an epoch, whatever its number.
    #[inline]
    pub(super) const fn opens_epoch(&self) -> bool {
        self.epoch.number == 0 || self.restarts
    }

    /// Where `id` leads while an epoch is open, and the candidate after it.
    ///
    /// `front` is the oldest open frame and one past the highest position that this thread has seen and not told;
    /// a packet that is not of `bytes` leads nowhere.
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
            // Everything that was sent has come: a closed frame's numbers are those of a sender that has restarted.
            return self.classify_distant(shared, front, id);
        }
        if frame < shared.floor.load(Ordering::Acquire) {
            // Counting began after it: a straggler, and no sign of a new count.
            return (Classification::Reject, self.candidate);
        }
        (Classification::InWindow { frame, place }, self.candidate)
    }

    /// A packet far from the window: very late, an outlier, or the first sign of a new epoch.
    fn classify_distant(
        &self,
        shared: &Shared,
        (base, seen): (u64, u64),
        id: PacketId,
    ) -> (Classification, Option<Candidate>) {
        let geometry = &shared.geometry;
        let is_place = id.sub < geometry.numbering.places_per_unit;
        // A source each of whose numbers is to be believed says itself what is a step back.
        if !is_place || geometry.resync_after > 1 && self.is_late(shared, base, id) {
            return (Classification::Reject, self.candidate);
        }
        let near = geometry.window as u64 * u64::from(geometry.places);
        // With what this batch has seen: its own packets are not those of other threads.
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
            // Other threads go on in the old count: this one lags, or its sender alone has begun anew.
            return (Classification::Reject, None);
        }
        (Classification::NewEpoch, candidate)
    }

    /// Whether `id` names a place that was closed as missing: then it is that packet, however far behind the others, and
    /// no sign of a sender that counts again, which would repeat numbers that arrived.
    fn is_late(&self, shared: &Shared, base: u64, id: PacketId) -> bool {
        let places = u64::from(shared.geometry.places);
        self.locate(&shared.geometry, id)
            .is_some_and(|(frame, place)| {
                let position = frame * places + u64::from(place);
                frame >= shared.floor.load(Ordering::Acquire)
                    && shared.history.is_missing(position, base * places)
            })
    }

    /// Where `id` belongs if it lies ahead, and no further than a gap may be long.
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

    /// The frame and place that `id` names in the present epoch, if it is a place of it at all.
    pub(super) fn locate(&self, geometry: &Geometry, id: PacketId) -> Option<(u64, u32)> {
        let distance = geometry.numbering.places_between(self.epoch.unit, id)?;
        let position = self.epoch.position.checked_add_signed(distance)?;
        Some(geometry.split(position))
    }
}
