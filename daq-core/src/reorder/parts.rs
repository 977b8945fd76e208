//! The parts of frames: what arrived of each part, and whether most parts confirm a new epoch.
//!
//! Each part has a sender of its own. If one sender restarts, its numbers must not end the epoch of the others. Therefore
//! most of the parts that are alive must send numbers of the new epoch. A part is alive until two windows of frames have
//! been closed without it.

use super::Geometry;
use super::record::Record;
use super::shared::Shared;
use crate::ledger::PartLedgers;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// What is known about the parts of a window's frames.
#[derive(Debug)]
pub(super) struct Parts(Box<[Part]>);

#[derive(Debug)]
struct Part {
    /// The last closed frame that contains a packet of the part.
    last: AtomicU64,
    /// One more than the horizon when the part sent a number far from the window; 0 if it has sent none.
    far: AtomicU64,
}

impl Parts {
    /// Creates the state of the parts of frames of `geometry`; empty if frames have one part.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let count = if geometry.parts > 1 {
            geometry.parts
        } else {
            0
        };
        let part = |_| Part {
            last: AtomicU64::new(0),
            far: AtomicU64::new(0),
        };
        Self((0..count).map(part).collect())
    }

    /// Records that `part` has sent a number far from the window while the highest position was `horizon`.
    pub(super) fn note_far(&self, part: u32, horizon: u64) {
        if let Some(part) = self.0.get(part as usize) {
            part.far.store(horizon + 1, Ordering::Release);
        }
    }

    /// Records that `part` has sent a number in the window.
    pub(super) fn note_near(&self, part: u32) {
        if let Some(part) = self.0.get(part as usize) {
            part.far.store(0, Ordering::Release);
        }
    }

    /// Considers all parts alive at `frame`, the first of an epoch.
    pub(super) fn begin(&self, frame: u64) {
        for part in &self.0 {
            part.last.store(frame, Ordering::Release);
            part.far.store(0, Ordering::Release);
        }
    }

    /// Returns whether most of the parts that are alive, with `part`, have sent numbers far from the window since the highest
    /// position became `horizon`. `base` is the oldest open frame. Always true if frames have one part.
    pub(super) fn agree(&self, part: u32, horizon: u64, base: u64, window: u64) -> bool {
        let (mut far, mut alive) = (0, 0);
        for (i, other) in self.0.iter().enumerate() {
            let is_far = other.far.load(Ordering::Acquire) == horizon + 1 || i == part as usize;
            let is_alive = other.last.load(Ordering::Acquire) + 2 * window >= base;
            far += usize::from(is_far);
            alive += usize::from(is_alive || is_far);
        }
        self.0.is_empty() || 2 * far > alive
    }

    /// Counts the packets `packets` of a closed frame for each part. `is_delivered` is true if the frame was published.
    pub(super) fn close(
        &self,
        ledgers: &PartLedgers,
        shared: &Shared,
        frame: u64,
        packets: &Range<u32>,
        is_delivered: bool,
    ) {
        let record = shared.record(frame);
        for (part, range) in self.ranges(&shared.geometry, packets) {
            let arrived = present(record, &range);
            if arrived > 0 {
                self.0[part as usize].last.store(frame, Ordering::Release);
            }
            let Some(ledger) = ledgers.get(part) else {
                return;
            };
            ledger.expected.add(range.len() as u64);
            let counter = if is_delivered {
                &ledger.delivered
            } else {
                &ledger.lost
            };
            counter.add(arrived);
        }
    }

    /// Counts the missing packets of `packets`, whose loss is final.
    pub(super) fn finalise(
        &self,
        ledgers: &PartLedgers,
        geometry: &Geometry,
        record: &Record,
        packets: &Range<u32>,
    ) {
        for (part, range) in self.ranges(geometry, packets) {
            let Some(ledger) = ledgers.get(part) else {
                return;
            };
            ledger
                .lost
                .add(range.len() as u64 - present(record, &range));
        }
    }

    /// Counts packets of frames that were passed without being published: those at the positions `gap`.
    pub(super) fn pass(&self, ledgers: &PartLedgers, geometry: &Geometry, gap: &Range<u64>) {
        let per_frame = u64::from(geometry.packets_per_frame);
        let per_part = u64::from(geometry.packets_per_part());
        for part in 0..self.0.len() as u64 {
            let before = |position: u64| {
                let in_frame = (position % per_frame)
                    .saturating_sub(part * per_part)
                    .min(per_part);
                position / per_frame * per_part + in_frame
            };
            let Some(ledger) = u32::try_from(part).ok().and_then(|part| ledgers.get(part)) else {
                return;
            };
            let missing = before(gap.end) - before(gap.start);
            ledger.expected.add(missing);
            ledger.lost.add(missing);
        }
    }

    /// Returns the parts with their packets among `packets`.
    fn ranges(
        &self,
        geometry: &Geometry,
        packets: &Range<u32>,
    ) -> impl Iterator<Item = (u32, Range<u32>)> + use<> {
        let (per_part, packets) = (geometry.packets_per_part(), packets.clone());
        (0..u32::try_from(self.0.len()).unwrap_or(u32::MAX)).map(move |part| {
            let start = (part * per_part).clamp(packets.start, packets.end);
            (
                part,
                start..((part + 1) * per_part).clamp(start, packets.end),
            )
        })
    }
}

/// Returns the number of packets in `range` that arrived.
fn present(record: &Record, range: &Range<u32>) -> u64 {
    range
        .clone()
        .filter(|index| record.is_present(*index))
        .count() as u64
}
