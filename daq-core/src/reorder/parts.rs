//! The parts of frames: what arrived of each part, and whether most parts confirm a new epoch.
//!
//! Each part has a sender of its own. If one sender restarts, its numbers must not end the epoch of the others. Therefore
//! most of the parts that are alive must send numbers of the new epoch. A part is alive until two windows of frames have
//! been closed without it.
//!
//! Senders of several parts are not at the same packet when an epoch begins or ends. Therefore each part begins with its first
//! packet among the frames that are open when the first frame of the epoch is closed. A part without packets there is silent,
//! and is expected from the first frame on. At the end of an epoch, each part ends with its last packet among the open frames. A
//! part without packets there is silent, unless the last closed frame has packets of the part.

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
    /// The first packet that is expected in this epoch, counted in packets of the part from frame 0; `u64::MAX` until the
    /// first frame of the epoch is closed.
    start: AtomicU64,
    /// One past the last packet that is expected in this epoch, counted as `start`; `u64::MAX` until the epoch ends.
    end: AtomicU64,
}

impl Part {
    /// Returns whether the part has sent packets recently. `base` is the oldest open frame.
    fn is_alive(&self, base: u64, window: u64) -> bool {
        self.last.load(Ordering::Acquire) + 2 * window >= base
    }
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
            start: AtomicU64::new(u64::MAX),
            end: AtomicU64::new(u64::MAX),
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
            part.start.store(u64::MAX, Ordering::Release);
            part.end.store(u64::MAX, Ordering::Release);
        }
    }

    /// Determines where the parts begin that have not begun before `frame`, which is being closed. Packets that arrive out of
    /// order can move the beginning of a part to an earlier open frame. `end` is one past the last frame with packets.
    pub(super) fn begin_parts(&self, shared: &Shared, frame: u64, end: u64) {
        let per_part = u64::from(shared.geometry.packets_per_part());
        for (i, part) in (0..).zip(&self.0) {
            let start = part.start.load(Ordering::Relaxed);
            if start <= frame * per_part {
                continue;
            }
            let is_first = start == u64::MAX;
            let mut frames = frame..if is_first { end } else { frame + 1 };
            let found = frames.find_map(|frame| arrived(shared, frame, i).next());
            let start = found.unwrap_or(if is_first { 0 } else { start });
            part.start.store(start, Ordering::Release);
        }
    }

    /// Determines where the parts end. The epoch ends with the open frames `open`, which no writer can access any more.
    pub(super) fn end_parts(&self, shared: &Shared, open: &Range<u64>) {
        let per_part = u64::from(shared.geometry.packets_per_part());
        for (i, part) in (0..).zip(&self.0) {
            let mut frames = (open.start - 1..open.end).rev();
            let last = frames.find_map(|frame| arrived(shared, frame, i).next_back());
            let end = last.map_or(u64::MAX, |last| (last + 1).max(open.start * per_part));
            part.end.store(end, Ordering::Release);
        }
    }

    /// Returns the packets of `part` that are expected in `frame`.
    fn expected(&self, geometry: &Geometry, frame: u64, part: u32) -> Range<u32> {
        let per_part = u64::from(geometry.packets_per_part());
        let first = frame * per_part;
        let index = |position: &AtomicU64| {
            let position = position.load(Ordering::Acquire);
            let packets = position.clamp(first, first + per_part) - first;
            part * geometry.packets_per_part() + u32::try_from(packets).unwrap_or(u32::MAX)
        };
        let Part { start, end, .. } = &self.0[part as usize];
        index(start)..index(end)
    }

    /// Returns whether packet `index` of the closed frame `frame` was expected, as far as parts determine it.
    pub(super) fn expects(&self, geometry: &Geometry, frame: u64, index: u32) -> bool {
        let part = index / geometry.packets_per_part();
        self.0.is_empty() || self.expected(geometry, frame, part).contains(&index)
    }

    /// Returns the number of packets among `packets` that are expected in `frame`.
    pub(super) fn count_expected(
        &self,
        geometry: &Geometry,
        frame: u64,
        packets: &Range<u32>,
    ) -> u64 {
        if self.0.is_empty() {
            return packets.len() as u64;
        }
        let ranges = self.ranges(geometry, frame, packets);
        ranges.map(|(_, range)| range.len() as u64).sum()
    }

    /// Returns the number of late packets, and of damaged packets, among the expected packets `packets` of `frame`.
    pub(super) fn dispositions(
        &self,
        geometry: &Geometry,
        frame: u64,
        record: &Record,
        packets: Range<u32>,
    ) -> (u64, u64) {
        if self.0.is_empty() {
            return record.dispositions(packets);
        }
        let ranges = self.ranges(geometry, frame, &packets);
        ranges.fold((0, 0), |(late, bad), (_, range)| {
            let of_part = record.dispositions(range);
            (late + of_part.0, bad + of_part.1)
        })
    }

    /// Returns whether `part` has sent packets recently. `base` is the oldest open frame.
    pub(super) fn is_alive(&self, part: u32, base: u64, window: u64) -> bool {
        let part = self.0.get(part as usize);
        part.is_some_and(|part| part.is_alive(base, window))
    }

    /// Returns whether most of the parts that are alive, with `part`, have sent numbers far from the window since the highest
    /// position became `horizon`. `base` is the oldest open frame. Always true if frames have one part.
    pub(super) fn agree(&self, part: u32, horizon: u64, base: u64, window: u64) -> bool {
        let (mut far, mut alive) = (0, 0);
        for (i, other) in self.0.iter().enumerate() {
            let is_far = other.far.load(Ordering::Acquire) == horizon + 1 || i == part as usize;
            let is_alive = other.is_alive(base, window);
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
        for (part, range) in self.ranges(&shared.geometry, frame, packets) {
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

    /// Counts the missing packets of `packets` in `frame`, whose loss is final.
    pub(super) fn finalise(
        &self,
        ledgers: &PartLedgers,
        geometry: &Geometry,
        frame: u64,
        record: &Record,
        packets: &Range<u32>,
    ) {
        for (part, range) in self.ranges(geometry, frame, packets) {
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

    /// Returns the parts with those of `packets` that are expected in `frame`.
    fn ranges(
        &self,
        geometry: &Geometry,
        frame: u64,
        packets: &Range<u32>,
    ) -> impl Iterator<Item = (u32, Range<u32>)> {
        let (geometry, packets) = (*geometry, packets.clone());
        (0..u32::try_from(self.0.len()).unwrap_or(u32::MAX)).map(move |part| {
            let expected = self.expected(&geometry, frame, part);
            let start = expected.start.clamp(packets.start, packets.end);
            (part, start..expected.end.clamp(start, packets.end))
        })
    }
}

/// Returns the packets of `part` that arrived in `frame`, intact or damaged, counted in packets of the part from frame 0.
fn arrived(shared: &Shared, frame: u64, part: u32) -> impl DoubleEndedIterator<Item = u64> {
    let (record, per_part) = (shared.record(frame), shared.geometry.packets_per_part());
    let has_arrived = move |index| record.is_present(index) || record.is_bad(index);
    (0..per_part)
        .filter(move |index| has_arrived(part * per_part + index))
        .map(move |index| frame * u64::from(per_part) + u64::from(index))
}

/// Returns the number of packets in `range` that arrived intact.
fn present(record: &Record, range: &Range<u32>) -> u64 {
    range
        .clone()
        .filter(|index| record.is_present(*index))
        .count() as u64
}
