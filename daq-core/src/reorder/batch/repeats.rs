//! Packets whose numbers have arrived before: repeated packets, or the first packets of a sender that has restarted.
//!
//! A detector that begins to count again with each acquisition soon sends numbers that are still in the window. A run of such
//! packets in order, without a new packet between them, shows a restart in these cases:
//!
//! - Their payload differs from the payload that arrived first.
//! - They arrive after a pause, and are not the same bytes again. A sender or a network that repeats the end of a stream does not
//!   restart. Equal bytes show a restart only if the run begins at the first packet of the epoch.
//! - They precede the first packet of the epoch, although packets of several frames have arrived.
//!
//! If the payload that arrived first is not accessible, because several threads fill the frames or they are in a GPU's memory, it
//! counts as equal. After many such packets without a new one, further ones are rejected instead of counted as duplicates, because a
//! sender may have restarted unnoticed.
//!
//! The packets are kept aside until the run is long enough.

use super::{Batch, Found, Outcome};
use crate::frame::{Clock, Timestamp};
use crate::reorder::candidates::{Content, Kept, Refuted};
use crate::reorder::classification::{Candidate, Classification};
use crate::reorder::{PacketId, PacketSize};
use crate::sync::Ordering;

/// Number of frames, and minimum number of packets, of repeated numbers without a new packet after which mere repeats do not explain
/// them.
const UNEXPLAINED_FRAMES: u64 = 2;
const MIN_UNEXPLAINED: u64 = 64;
/// Minimum number of packets after the first one of an epoch after which packets before it are kept aside.
const MIN_PROGRESS: u64 = 16;
/// Minimum number of packets after the first one of an epoch after which several packets before it do not only arrive out of order.
const MIN_EVIDENCE: u64 = 64;

/// How a packet number was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// The packet has arrived in its frame, which may be closed.
    Arrived {
        /// The frame.
        frame: u64,
        /// Index of the packet in the frame.
        index: u32,
    },
    /// The frame was closed without the packet, and the loss is final.
    Missing,
    /// The packet precedes the first packet of the run.
    BeforeStart,
    /// The packet precedes the first packet of a later epoch.
    BeforeEpoch,
}

impl Batch<'_> {
    /// Handles a packet whose number is not new: counts it, keeps it aside, or opens an epoch.
    #[cold]
    pub(super) fn repeat(
        &mut self,
        id: PacketId,
        size: PacketSize,
        time: Timestamp,
        earlier: Earlier,
        write: impl FnOnce(*mut u8),
    ) -> Outcome {
        if self.shared.is_stale(self.received) {
            return self.count_repeat(id, earlier);
        }
        let horizon = self.seen_horizon();
        // The first packets of the run may be behind the window.
        let distant = self.state.candidate;
        let distant = distant.filter(|run| !run.is_repeat && self.shared.geometry.parts == 1);
        let (run, distant) = (self.run(id), distant.filter(|run| self.is_next(run, id)));
        if let Some(run) = run
            && self.confirms(id, &run)
        {
            return match self.begin_epoch(id) {
                Found::Open { .. } => self.place_with(id, size, time, write),
                _ => self.count_repeat(id, earlier),
            };
        }
        let is_late =
            earlier == Earlier::Missing && run.is_none() && !self.shared.is_paused(horizon);
        if self.shared.geometry.resync_after == 1 || is_late {
            return self.count_repeat(id, earlier);
        }
        let continued = run.or(distant);
        if continued.is_none() {
            self.refute_candidates();
        }
        let candidate = Candidate {
            unit: id.unit,
            sub: id.sub,
            part: self.shared.geometry.part_of(id),
            count: continued.map_or(1, |run| run.count + 1),
            since: horizon,
            is_repeat: true,
            is_sure: false,
        };
        self.state.candidate = Some(candidate);
        let content = Content::Payload(size);
        let Some(memory) = self
            .state
            .keep(self.shared, id, content, time, self.received)
        else {
            self.state.candidate = None;
            return self.count_repeat(id, earlier);
        };
        write(memory.as_mut_ptr());
        self.state.candidates.set_refuted(earlier.refuted());
        let is_equal = match earlier {
            Earlier::Arrived { frame, index } => self.equals_earlier(frame, index),
            _ => Some(true),
        };
        let is_sure = run.is_some_and(|run| run.is_sure)
            || is_equal == Some(false)
            || self.shared.is_paused(self.horizon);
        self.state.candidate = Some(Candidate {
            is_sure,
            ..candidate
        });
        if run.is_some() || self.is_evidence(id, time, earlier, is_equal) {
            return Outcome::Repeated;
        }
        let is_unexplained = is_equal.is_none() && self.note_unexplained(horizon);
        if is_unexplained {
            self.state.candidates.set_refuted(Refuted::Rejected);
        }
        self.state.reject_candidates(self.shared);
        self.state.candidate = None;
        if is_unexplained {
            Outcome::Rejected
        } else {
            earlier.outcome()
        }
    }

    /// Ends the candidates, because the stream continues without them. Packets before the start of the epoch whose frames are open
    /// arrived out of order, so they are placed. The others are counted.
    pub(in super::super) fn refute_candidates(&mut self) {
        let precedes =
            |kept: &Kept| matches!(kept.refuted, Refuted::BeforeStart | Refuted::BeforeEpoch);
        if !self.state.candidates.packets().any(precedes) {
            self.state.reject_candidates(self.shared);
            return;
        }
        let mut candidates = std::mem::take(&mut self.state.candidates);
        self.accepts_preceding = true;
        while let Some(kept) = candidates.pop() {
            let open = self.base..self.base + self.geometry().window as u64;
            let is_open = |id| {
                let position = self.state.locate(self.geometry(), id);
                position.is_some_and(|(frame, _)| open.contains(&frame))
            };
            match kept.content {
                Content::Payload(size) if precedes(&kept) && is_open(kept.id) => {
                    let payload = candidates.payload(&kept);
                    let outcome = self.place_sized(kept.id, payload, size.frame, kept.time);
                    self.keep_fields(outcome, || kept.fields);
                }
                Content::NoData => {}
                _ => {
                    let geometry = &self.shared.geometry;
                    kept.refuted.count(&self.state.ledger, geometry, kept.id);
                }
            }
        }
        self.accepts_preceding = false;
        self.state.candidates = candidates;
        self.state.reject_candidates(self.shared);
    }

    /// Counts a packet that may be repeated, or may be of a restarted sender. Returns whether there are so many without a new packet
    /// that mere repeats do not explain them.
    fn note_unexplained(&mut self, horizon: u64) -> bool {
        let (since, count) = self.state.unexplained;
        let count = if since == horizon { count + 1 } else { 1 };
        self.state.unexplained = (horizon, count);
        self.is_unexplained()
    }

    /// Returns whether the last packet was rejected because too many packets had numbers that have arrived before, while it is
    /// unknown whether their payload differs.
    pub fn is_unexplained(&self) -> bool {
        let (since, count) = self.state.unexplained;
        let frames = UNEXPLAINED_FRAMES * u64::from(self.shared.geometry.packets_per_frame);
        since == self.seen_horizon() && count > frames.max(MIN_UNEXPLAINED)
    }

    /// Returns the run of repeated packets that `id` continues.
    fn run(&self, id: PacketId) -> Option<Candidate> {
        let run = self.state.candidate?;
        (run.is_repeat && self.is_next(&run, id)).then_some(run)
    }

    /// Returns whether `id` follows the packets of `run`, and no new packet has arrived between them.
    fn is_next(&self, run: &Candidate, id: PacketId) -> bool {
        let geometry = &self.shared.geometry;
        let Some(distance) = geometry.numbering.packets_between(run.unit, id) else {
            return false;
        };
        let distance = distance - i64::from(run.sub);
        let near = geometry.window as u64 * u64::from(geometry.packets_per_frame);
        // Packets of several parts are not in order. A number that does not change is no run.
        distance.unsigned_abs() <= near
            && (distance > 0 || distance < 0 && geometry.parts > 1)
            && run.since == self.seen_horizon()
    }

    /// Returns whether a packet of `frame` that has not arrived continues a run of repeated packets: the sender that restarted sends
    /// a packet that was lost before.
    #[inline]
    pub(super) fn continues_repeats(&self, id: PacketId, frame: u64, index: u32) -> bool {
        // Packets of several parts are not in order, so they continue no run.
        let is_sure = self.state.candidate.is_some_and(|run| run.is_sure);
        is_sure && self.shared.geometry.parts == 1 && self.fills_hole(id, frame, index)
    }

    #[cold]
    fn fills_hole(&self, id: PacketId, frame: u64, index: u32) -> bool {
        let position = frame * u64::from(self.shared.geometry.packets_per_frame) + u64::from(index);
        position < self.seen_horizon()
            && !self.shared.record(frame).is_present(index)
            && self.run(id).is_some()
    }

    /// Returns whether a packet in the window precedes the first packet of the epoch, although packets of several frames have
    /// arrived since.
    pub(super) fn precedes(&self, frame: u64, index: u32) -> bool {
        let position = frame * u64::from(self.shared.geometry.packets_per_frame) + u64::from(index);
        let start = self.shared.start.load(Ordering::Acquire).min(self.start);
        position < start && self.has_progressed() && self.seen_horizon() - start >= MIN_PROGRESS
    }

    /// Returns whether `id` confirms that the sender has restarted with the packets of `run`.
    fn confirms(&self, id: PacketId, run: &Candidate) -> bool {
        let geometry = &self.shared.geometry;
        let parts = &self.shared.parts;
        run.count + 1 >= self.shared.required()
            && self.may_restart(id)
            && (parts.agree(
                geometry.part_of(id),
                run.since,
                self.base,
                geometry.window as u64,
            ) || self.shared.is_silent(self.horizon))
    }

    /// Returns whether a run that `id` continues can be a restart: `id` is not before the first packet of the epoch, or so many packets
    /// have arrived since then that packets before it do not only arrive out of order.
    fn may_restart(&self, id: PacketId) -> bool {
        let start = self.shared.start.load(Ordering::Acquire).min(self.start);
        self.seen_horizon().saturating_sub(start) >= MIN_EVIDENCE
            || self
                .state
                .epoch
                .locate(&self.shared.geometry, id)
                .is_none_or(|position| position >= start)
    }

    /// Returns whether a packet with number `id`, which has arrived before, confirms that the sender has restarted.
    pub(super) fn confirms_restart(&self, id: PacketId) -> bool {
        self.run(id).is_some_and(|run| self.confirms(id, &run))
    }

    /// Returns whether the number of the packet `id` of `class` has arrived before, precedes the first packet of the run, or fills a
    /// hole that a run of repeated packets reaches.
    pub(super) fn is_repeat(&self, class: Classification, id: PacketId) -> bool {
        match class {
            Classification::InWindow { frame, index } => {
                frame < self.base
                    || self.shared.record(frame).is_present(index)
                    || self.continues_repeats(id, frame, index)
            }
            class => class == Classification::BeforeStart,
        }
    }

    fn seen_horizon(&self) -> u64 {
        self.shared
            .horizon
            .load(Ordering::Acquire)
            .max(self.horizon)
    }

    /// Returns whether the packet that was kept last can be the first of a restarted sender.
    /// `is_equal` states whether its payload is that of the packet that arrived first, if both are known.
    fn is_evidence(
        &self,
        id: PacketId,
        time: Timestamp,
        earlier: Earlier,
        is_equal: Option<bool>,
    ) -> bool {
        let is_paused = self.shared.is_paused(self.horizon);
        let (frame, index) = match earlier {
            Earlier::Missing => return is_paused,
            Earlier::BeforeStart | Earlier::BeforeEpoch => {
                return is_paused || self.has_progressed();
            }
            Earlier::Arrived { frame, index } => (frame, index),
        };
        let is_paused = is_paused || self.is_apart(frame, index, time);
        if is_equal == Some(false) {
            return true;
        }
        // Bytes that are not accessible may be equal.
        let first = self.state.lowest_candidate(&self.shared.geometry, id);
        is_paused && self.is_first(first)
    }

    /// Returns whether packets of several frames have arrived, so that packets before the start do not only arrive out of order. If
    /// several threads fill the window, or frames have several parts, one of them may lag behind.
    fn has_progressed(&self) -> bool {
        let geometry = &self.shared.geometry;
        let start = self.shared.start.load(Ordering::Acquire).min(self.start);
        let min = 2 * u64::from(geometry.packets_per_frame);
        geometry.parts == 1
            && self.shared.is_exclusive()
            && self.seen_horizon() >= start.saturating_add(min)
    }

    /// Returns whether `id` is at or before the first packet of the epoch. If each thread may receive only some packets of a frame,
    /// those of the first frame are first.
    fn is_first(&self, id: PacketId) -> bool {
        let geometry = &self.shared.geometry;
        let start = self.shared.start.load(Ordering::Acquire).min(self.start);
        let first = |position| {
            if self.shared.is_exclusive() {
                position
            } else {
                position / u64::from(geometry.packets_per_frame)
            }
        };
        let position = self.state.epoch.locate(geometry, id);
        position.is_some_and(|position| first(position) <= first(start))
    }

    /// Returns how the number of a packet was used that precedes the first packet of the epoch.
    pub(super) const fn before(&self) -> Earlier {
        if self.state.epoch.segment == 1 {
            Earlier::BeforeStart
        } else {
            Earlier::BeforeEpoch
        }
    }

    /// Returns whether `time` is much later or earlier than the time of the packet `index` of `frame` that arrived first, by at
    /// least `close_after`.
    fn is_apart(&self, frame: u64, index: u32, time: Timestamp) -> bool {
        let record = self.shared.record(frame);
        let clock = record.time_clock.load(Ordering::Acquire);
        let geometry = &self.shared.geometry;
        let start = time.ns.saturating_sub(geometry.nanoseconds_before(index));
        let apart = start.abs_diff(record.time_ns.load(Ordering::Relaxed));
        time.clock != Clock::None
            && clock == time.clock as u32
            && u128::from(apart) >= geometry.close_after.as_nanos()
    }

    /// Returns whether the packet that was kept last has the payload of packet `index` of `frame`, which arrived first. `None` if
    /// the earlier payload is not accessible. Other threads may not see each other's streaming stores yet.
    fn equals_earlier(&self, frame: u64, index: u32) -> Option<bool> {
        let sequencer = self.state.sequencer.as_ref()?;
        if !self.shared.is_exclusive() {
            return None;
        }
        let record = self.shared.record(frame);
        let bytes = record.bytes(&self.shared.geometry);
        let offset = self.shared.geometry.extent_in(index, bytes).start;
        let memory = record.memory.load(Ordering::Relaxed);
        let published = self.base.saturating_sub(frame);
        let payload = self.state.candidates.newest_payload();
        sequencer
            .producer()
            .equals(memory, published, offset, payload)
    }

    /// Counts a packet whose number is not new.
    pub(super) fn count_repeat(&mut self, id: PacketId, earlier: Earlier) -> Outcome {
        if matches!(earlier, Earlier::Arrived { frame, .. } if frame >= self.base) {
            // The old numbering continues.
            self.refute(id);
        }
        earlier
            .refuted()
            .count(&self.state.ledger, &self.shared.geometry, id);
        earlier.outcome()
    }
}

impl Earlier {
    /// Returns how a packet is counted that is no restart.
    const fn refuted(self) -> Refuted {
        match self {
            Self::Arrived { .. } => Refuted::Duplicate,
            Self::Missing => Refuted::Rejected,
            Self::BeforeEpoch => Refuted::BeforeEpoch,
            Self::BeforeStart => Refuted::BeforeStart,
        }
    }

    const fn outcome(self) -> Outcome {
        match self {
            Self::Arrived { .. } => Outcome::Duplicate,
            Self::Missing | Self::BeforeEpoch => Outcome::Rejected,
            Self::BeforeStart => Outcome::BeforeStart,
        }
    }
}
