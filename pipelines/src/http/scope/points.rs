//! The points of one channel, decoded in blocks, so that the memory of a view does not depend on the size of frames.

use super::column;
use super::decode::{Samples, within};
use std::ops::Range;

/// Maximum number of points that are decoded at a time; the largest size of a transform.
pub(super) const BLOCK: usize = 1 << 16;

/// Decoded points: real parts, and imaginary parts if samples are complex. Missing points are NaN.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) re: Vec<f32>,
    pub(super) im: Vec<f32>,
}

/// Points of one channel of a frame.
pub(super) struct Points<'a> {
    samples: &'a Samples<'a>,
    channel: usize,
    range: Range<usize>,
    /// All missing points of the channel, in ascending order.
    missing: Vec<Range<usize>>,
    is_power: bool,
}

impl<'a> Points<'a> {
    /// Returns the points `range` of `channel`.
    pub(super) fn of(samples: &'a Samples<'a>, channel: usize, range: Range<usize>) -> Self {
        Self {
            samples,
            channel,
            range,
            missing: samples.missing(channel),
            is_power: false,
        }
    }

    /// Replaces complex samples by their squared magnitude.
    pub(super) fn power(self) -> Self {
        Self {
            is_power: true,
            ..self
        }
    }

    /// Returns the same points of another channel.
    pub(super) fn of_channel(&self, channel: usize) -> Self {
        Self::of(self.samples, channel, self.range.clone())
    }

    /// Returns the number of channels of the frame.
    pub(super) const fn channels(&self) -> usize {
        self.samples.channels
    }

    pub(super) const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Returns the number of the first point in the frame.
    pub(super) const fn first(&self) -> usize {
        self.range.start
    }

    /// Returns the ranges of missing points, relative to the first point.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<usize>> {
        let gaps = self.missing.iter().map(|gap| within(gap, &self.range));
        gaps.filter(|gap| !gap.is_empty())
    }

    /// Decodes `part`, at most [`BLOCK`] points, into `block`.
    pub(super) fn read(&self, part: Range<usize>, block: &mut Block) {
        let range = self.range.start + part.start..self.range.start + part.end;
        let first = self.missing.partition_point(|gap| gap.end <= range.start);
        let gaps = &self.missing[first..];
        let count = gaps.partition_point(|gap| gap.start < range.end);
        let Block { re, im } = block;
        self.samples
            .read(self.channel, range, &gaps[..count], re, im);
        if self.is_power {
            for (re, im) in re.iter_mut().zip(im.drain(..)) {
                *re = *re * *re + im * im;
            }
        }
    }

    /// Decodes `part` block by block, and calls `with` with the first point of each block.
    pub(super) fn each(
        &self,
        part: Range<usize>,
        block: &mut Block,
        mut with: impl FnMut(usize, &Block),
    ) {
        for first in part.clone().step_by(BLOCK) {
            self.read(first..part.end.min(first + BLOCK), block);
            with(first, block);
        }
    }

    /// Decodes `part`, which is divided into `columns` columns of at least one point. Calls `with` one or several times for
    /// each column, with the real and the imaginary parts of successive points of the column.
    pub(super) fn each_column(
        &self,
        part: Range<usize>,
        columns: usize,
        block: &mut Block,
        mut with: impl FnMut(usize, &[f32], &[f32]),
    ) {
        let (start, len) = (part.start, part.len());
        self.each(part, block, |first, block| {
            let begin = first - start;
            let end = begin + block.re.len();
            let mut at = begin;
            while at < end {
                let i = column_of(at, columns, len);
                let stop = column(i, columns, len).end.min(end);
                let piece = at - begin..stop - begin;
                let im = block.im.get(piece.clone()).unwrap_or_default();
                with(i, &block.re[piece], im);
                at = stop;
            }
        });
    }
}

/// Returns the column that contains value `at` if `len` values are divided into `columns` columns, at most `len`.
pub(super) const fn column_of(at: usize, columns: usize, len: usize) -> usize {
    ((at + 1) * columns - 1) / len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_contain_the_values_that_they_are_computed_for() {
        for (columns, len) in [(1, 1), (3, 7), (7, 7), (5, 12), (800, 1001)] {
            for at in 0..len {
                let i = column_of(at, columns, len);
                assert!(i < columns && column(i, columns, len).contains(&at));
            }
        }
    }
}
