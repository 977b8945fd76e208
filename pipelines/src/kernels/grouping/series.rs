//! Items that continue across the ends of frames.

use super::super::blend::Blend;
use daq_core::frame::FrameMeta;
use std::collections::VecDeque;
use std::ops::Range;

/// Sizes of items that continue across the ends of frames.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Joined {
    /// Number of points of a frame.
    pub(in super::super) points: usize,
    /// Number of points of an item.
    pub(in super::super) size: usize,
}

/// Frames that follow each other, as one series of points. Item `k` starts at point `k * hop`.
pub(super) struct Series {
    points: u64,
    size: u64,
    hop: u64,
    /// Number of points of the series so far.
    length: u64,
    /// Number of items that have ended so far.
    ended: u64,
    /// The frames that contain points of the next item, each with the position of its first point.
    frames: VecDeque<(u64, FrameMeta)>,
}

impl Series {
    pub(super) fn new(joined: Joined, hop: usize) -> Self {
        Self {
            points: joined.points as u64,
            size: joined.size as u64,
            hop: hop as u64,
            length: 0,
            ended: 0,
            // The points of one item before the current frame, and this frame.
            frames: VecDeque::with_capacity(joined.size.div_ceil(joined.points) + 2),
        }
    }

    /// Starts a new series.
    pub(super) fn restart(&mut self) {
        (self.length, self.ended) = (0, 0);
        self.frames.clear();
    }

    /// Returns the maximum number of items that end in `frames` more frames.
    pub(super) fn max_items(&self, frames: usize) -> u128 {
        max_items(frames, self.points, self.hop)
    }

    /// Returns the number of points before the next frame that are part of the next item.
    pub(super) const fn tail(&self) -> u64 {
        self.length.saturating_sub(self.ended * self.hop)
    }

    /// Returns whether points at the end of the series are in no item that has ended.
    pub(super) const fn has_new_points(&self) -> bool {
        let covered = match self.ended {
            0 => 0,
            ended => (ended - 1) * self.hop + self.size,
        };
        self.length > covered
    }

    /// Appends a frame. Returns the items that end in it.
    pub(super) fn push(&mut self, meta: &FrameMeta) -> Range<u64> {
        let first = self.ended;
        let next = first * self.hop;
        while self
            .frames
            .front()
            .is_some_and(|(start, _)| start + self.points <= next)
        {
            self.frames.pop_front();
        }
        self.frames.push_back((self.length, *meta));
        self.length += self.points;
        if self.length >= self.size {
            self.ended = (self.length - self.size) / self.hop + 1;
        }
        first..self.ended
    }

    /// Adds the metadata of the frames that contain the items to an output. `each` is the number of items per output, and
    /// `delay` returns the duration of a number of points.
    pub(super) fn blend(
        &self,
        items: &Range<u64>,
        each: u64,
        blend: &mut Blend,
        delay: impl Fn(u64) -> u64,
    ) {
        let start = items.start * self.hop;
        let end = (items.end - 1) * self.hop + self.size;
        for (first, meta) in &self.frames {
            if first + self.points <= start || *first >= end {
                continue;
            }
            let offset = start.saturating_sub(*first);
            let point = u128::from(meta.sequence) * u128::from(self.points) + u128::from(offset);
            let number = point / u128::from(self.hop) / u128::from(each);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "frame numbers wrap at 64 bits"
            )]
            blend.add(meta, number as u64, delay(offset));
        }
    }
}

/// Returns the maximum number of items that end in `frames` successive frames of `points` points, if items are at least `hop`
/// points long and start every `hop` points.
pub(in super::super) const fn max_items(frames: usize, points: u64, hop: u64) -> u128 {
    (frames as u128 * points as u128).div_ceil(hop as u128)
}
