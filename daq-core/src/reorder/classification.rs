//! Classifies packets by their sequence numbers.
//!
//! Functions of this module do not change any state, so a source with backpressure can classify a packet before it
//! places it.

use super::shared::Shared;
use super::{Geometry, PacketId, PacketSize, WriterState};
use crate::sync::Ordering;

/// A possible start of a new epoch or end of a gap, with which consecutive packets far from the window are consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The unit number of the last packet.
    pub(super) unit: u64,
    /// Index of the last packet in its unit.
    pub(super) sub: u32,
    /// The part of the last packet.
    pub(super) part: u32,
    /// Number of consistent packets.
    pub(super) count: u32,
    /// The horizon when the first of these packets arrived.
    pub(super) since: u64,
    /// Whether the numbers of these packets have arrived before, see the module `repeats`.
    pub(super) is_repeat: bool,
    /// Whether one of these packets has another payload than the packet that arrived first, or they follow a pause.
    pub(super) is_sure: bool,
}

/// The meaning of a packet's sequence number for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classification {
    /// The frame is open, was closed recently, or is so close after the open frames that the window advances to it.
    InWindow { frame: u64, index: u32 },
    /// The frame is after a gap that several packets confirm, so the window advances to it.
    Gap { frame: u64 },
    /// Several packets confirm a new epoch.
    NewEpoch,
    /// The packet may be the first sign of a new epoch or of a gap.
    Undecided,
    /// The packet belongs to a frame before the first frame of the epoch.
    BeforeStart,
    /// The number is implausible, or the index or size of the packet does not fit the unit.
    Reject,
}

impl Shared {
    /// Returns whether `id`, a packet in the window, refutes a candidate. If one thread receives all parts of a frame, a part that
    /// continues in the old numbering does not refute the restart of another part.
    pub(super) fn refutes(&self, candidate: &Candidate, id: PacketId) -> bool {
        if self.geometry.parts == 1 || !self.is_exclusive() {
            return true;
        }
        let part = self.geometry.part_of(id);
        self.parts.note_near(part);
        candidate.part == part
    }
}

impl WriterState {
    /// Returns whether the next packet opens an epoch regardless of its number.
    #[inline]
    pub(super) const fn opens_epoch(&self) -> bool {
        self.epoch.segment == 0 || self.restarts
    }

    /// Classifies `id` while an epoch is open. Also returns the new candidate.
    ///
    /// `front` contains the oldest open frame, and one past the highest position that this thread has seen and not
    /// published yet. A packet of another size than its packet slot is rejected.
    pub(super) fn classify(
        &self,
        shared: &Shared,
        front: (u64, u64),
        id: PacketId,
        size: Option<PacketSize>,
    ) -> (Classification, Option<Candidate>) {
        let (base, _) = front;
        let geometry = &shared.geometry;
        let Some((frame, index)) = self.locate(geometry, id) else {
            return self.classify_distant(shared, front, id);
        };
        if size.is_some_and(|size| !geometry.fits(index, size)) {
            return (Classification::Reject, self.candidate);
        }
        let window = geometry.window as u64;
        if frame >= base + 2 * window || frame + window < base || shared.is_held(frame, index) {
            return self.classify_distant(shared, front, id);
        }
        if frame < shared.floor.load(Ordering::Acquire) {
            // The epoch, or the segment after a long gap, started after this frame.
            let class = if shared.begins_epoch() {
                Classification::BeforeStart
            } else {
                Classification::Reject
            };
            return (class, self.candidate);
        }
        if frame >= base + window && !shared.may_advance(base, frame, geometry.part_of(id)) {
            return self.classify_distant(shared, front, id);
        }
        (Classification::InWindow { frame, index }, self.candidate)
    }

    /// Classifies a packet far from the window: very late, an outlier, or the first sign of a new epoch.
    fn classify_distant(
        &self,
        shared: &Shared,
        (base, seen): (u64, u64),
        id: PacketId,
    ) -> (Classification, Option<Candidate>) {
        let geometry = &shared.geometry;
        let is_index_valid = id.sub < geometry.numbering.packets_per_unit;
        let near = geometry.window as u64 * u64::from(geometry.packets_per_frame);
        // Includes positions that this batch has seen, because its own packets are not evidence of other threads.
        let horizon = shared.horizon.load(Ordering::Acquire).max(seen);
        // A restarted sender also sends packets again that were lost before, but not as the first ones.
        let is_late = || self.is_late(shared, base, id) && !self.continues(geometry, horizon, id);
        // A source whose numbers are all trusted (`resync_after` is 1) reports backward steps itself.
        if !is_index_valid || geometry.resync_after > 1 && is_late() {
            return (Classification::Reject, self.candidate);
        }
        let (agreed, since) = match self.candidate {
            // If several threads fill frames of several parts, packets of the old numbering that arrived meanwhile refute the
            // candidates of all threads at the same position, so that they can agree.
            Some(Candidate {
                unit,
                sub,
                count,
                since,
                is_repeat: false,
                ..
            }) if geometry.parts == 1 || shared.is_exclusive() || since == horizon => {
                let distance = geometry.numbering.packets_between(unit, id);
                match distance.map(|distance| distance - i64::from(sub)) {
                    Some(0) => (count, since),
                    Some(distance) if distance.unsigned_abs() <= near => (count + 1, since),
                    _ => (1, horizon),
                }
            }
            _ => (1, horizon),
        };
        let candidate = Some(Candidate {
            unit: id.unit,
            sub: id.sub,
            part: geometry.part_of(id),
            count: agreed,
            since,
            is_repeat: false,
            is_sure: false,
        });
        let window = geometry.window as u64;
        let parts_agree = || {
            shared
                .parts
                .agree(geometry.part_of(id), since, base, window)
        };
        if agreed < shared.required() || !parts_agree() && !shared.is_silent(seen) {
            return (Classification::Undecided, candidate);
        }
        if !shared.returns(id, horizon)
            && let Some(frame) = self.locate_beyond_gap(geometry, base, id)
        {
            return (Classification::Gap { frame }, candidate);
        }
        if horizon != since && !shared.is_exclusive() {
            // Other threads continue in the old numbering, so either this thread lags behind or only its sender has
            // restarted.
            return (Classification::Reject, None);
        }
        (Classification::NewEpoch, candidate)
    }

    /// Returns whether `id` follows the candidates in order, and no packet near the window has arrived since.
    fn continues(&self, geometry: &Geometry, horizon: u64, id: PacketId) -> bool {
        let near = geometry.window as u64 * u64::from(geometry.packets_per_frame);
        let run = self.candidate.filter(|_| geometry.parts == 1);
        run.is_some_and(|run| {
            let distance = geometry.numbering.packets_between(run.unit, id);
            let distance = distance.map(|distance| distance - i64::from(run.sub));
            let is_next = |distance: i64| distance > 0 && distance.unsigned_abs() <= near;
            run.since == horizon && distance.is_some_and(is_next)
        })
    }

    /// Returns whether `id` is the number of a packet after the first one that was closed as missing. If so, the packet is the missing
    /// packet, however late it is, because a restarted sender would also repeat numbers of packets that arrived.
    fn is_late(&self, shared: &Shared, base: u64, id: PacketId) -> bool {
        let packets_per_frame = u64::from(shared.geometry.packets_per_frame);
        self.locate(&shared.geometry, id)
            .filter(|(frame, index)| !shared.is_held(*frame, *index))
            .is_some_and(|(frame, index)| {
                let position = frame * packets_per_frame + u64::from(index);
                frame >= shared.first.load(Ordering::Acquire)
                    && !(shared.begins_epoch() && position < shared.start.load(Ordering::Acquire))
                    && shared
                        .history
                        .is_missing(position, base * packets_per_frame)
            })
    }

    /// Returns the frame of `id` if the gap before it is not longer than the maximum.
    fn locate_beyond_gap(&self, geometry: &Geometry, base: u64, id: PacketId) -> Option<u64> {
        let window = geometry.window as u64;
        let (frame, _) = self.locate(geometry, id)?;
        let gap = geometry
            .max_gap
            .div_ceil(u64::from(geometry.packets_per_frame));
        let reach = base + 2 * window + gap;
        (base + window..reach).contains(&frame).then_some(frame)
    }

    /// Returns the frame and the packet index of `id` in the current epoch, or `None` if the epoch has no such packet.
    pub(super) fn locate(&self, geometry: &Geometry, id: PacketId) -> Option<(u64, u32)> {
        let position = self.epoch.locate(geometry, id)?;
        Some(geometry.split(position))
    }
}
