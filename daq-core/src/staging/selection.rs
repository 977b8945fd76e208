//! Which frames of a ring, and which bytes of each frame, a copy to a GPU of a spread ring copies.

use super::StagingError;
use super::burst;
use super::methods::CopyMethod;
use super::tile::{Matrix, Tile};
use crate::frame::{FrameMeta, PacketSizes};
use crate::gpu::driver::{Block, Pitch};
use crate::ring::{Lease, Slice, SlotsMut};

/// The frames that a [`RingCopy`](super::RingCopy) copies, or the part of each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All frames.
    #[default]
    All,
    /// Every `count`-th frame of the ring, from frame `index` on.
    Turns {
        /// The first frame, below `count`.
        index: usize,
        /// Number of copies that copy frames in turn.
        count: usize,
    },
    /// A rectangle of each frame.
    Tile {
        /// The rows and columns of the frame.
        matrix: Matrix,
        /// The rectangle.
        tile: Tile,
    },
}

/// Frames to lease together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of frames before the first selected frame.
    pub(super) lead: usize,
    /// Number of selected frames.
    pub(super) selected: usize,
    /// Number of frames up to the last selected frame.
    pub(super) leased: usize,
}

impl Selection {
    /// Whether a part of the frames is not copied.
    pub(super) const fn skips_frames(&self) -> bool {
        matches!(self, Self::Turns { .. })
    }

    const fn step(&self) -> usize {
        match self {
            Self::Turns { count, .. } => *count,
            Self::All | Self::Tile { .. } => 1,
        }
    }

    /// Returns the number of frames from frame `position` of the ring up to the first selected frame.
    fn lead(&self, position: u64) -> u64 {
        match self {
            Self::Turns { index, count } => {
                let count = *count as u64;
                (*index as u64 + count - position % count) % count
            }
            Self::All | Self::Tile { .. } => 0,
        }
    }

    /// Returns the number of selected frames among `frames` frames from frame `position` of the ring on.
    pub(super) fn count(&self, position: u64, frames: u64) -> u64 {
        frames
            .saturating_sub(self.lead(position))
            .div_ceil(self.step() as u64)
    }

    /// Returns the frames to lease from frame `position` on for `selected` selected frames, at least 1.
    pub(super) fn run(&self, position: u64, selected: usize) -> Run {
        // The remainder of a division by a `usize`.
        let lead = usize::try_from(self.lead(position)).unwrap_or(usize::MAX);
        Run {
            lead,
            selected,
            leased: lead + (selected - 1) * self.step() + 1,
        }
    }

    /// Starts copies of the selected frames of `lease` to the slots `to`. Returns the number of bytes.
    ///
    /// # Safety
    /// The requirements of [`burst::copy`] apply.
    pub(super) unsafe fn copy(
        &self,
        method: &dyn CopyMethod,
        lease: &Lease<'_>,
        run: Run,
        to: Slice,
    ) -> Result<u64, StagingError> {
        let Some(from) = lease.slice() else {
            unreachable!("the reader of a RingCopy leases slots of the ring, not copies of them");
        };
        match self {
            // SAFETY: the caller guarantees the requirements.
            Self::All => unsafe { burst::copy(method, lease, to) },
            Self::Turns { count, .. } => {
                let lengths = (0..run.selected).map(|i| lease.length(run.lead + i * count));
                let from = Every {
                    slots: from.after(run.lead),
                    step: *count,
                };
                let frames = Overlap::of_frames(lengths.max().unwrap_or(0));
                // SAFETY: the caller guarantees the requirements. No frame is longer than its slot.
                unsafe { frames.copy(method, from, Every::slot(to), run.selected) }
            }
            Self::Tile { matrix, tile } => {
                let pair = Overlap::of(&matrix.whole(), tile, tile);
                // SAFETY: the caller guarantees the requirements. The overlap is inside both slots.
                unsafe { pair.copy(method, Every::slot(from), Every::slot(to), lease.len()) }
            }
        }
    }

    /// Writes the metadata of the selected frames of `lease` to the next slots and advances past them.
    pub(super) fn finish(&self, slots: &mut SlotsMut<'_>, lease: &Lease<'_>, run: Run) {
        match self {
            Self::All => slots.finish_as(lease, run.selected),
            Self::Turns { count, .. } => {
                for i in 0..run.selected {
                    let frame = lease.frame(run.lead + i * count);
                    slots.finish_with(*frame.meta(), frame.present().words());
                }
            }
            Self::Tile { matrix, tile } => {
                for i in 0..run.selected {
                    let meta = *lease.frame(i).meta();
                    let length = matrix.length_in(tile, meta.length);
                    slots.finish(without_packets(meta, length));
                }
            }
        }
    }
}

/// Returns the metadata of a part of the frame `meta` with `length` bytes. The packets of the frame do not divide its parts,
/// so the part does not consist of packets. Its flags show whether packets of the frame are missing.
pub(super) fn without_packets(meta: FrameMeta, length: usize) -> FrameMeta {
    FrameMeta {
        length,
        packets_per_frame: 0,
        arrived: 0,
        packet_sizes: PacketSizes::default(),
        ..meta
    }
}

/// The bytes that two rectangles of a frame have in common, in the memories of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    from: usize,
    to: usize,
    width: usize,
    rows: usize,
    from_row: usize,
    to_row: usize,
}

impl Overlap {
    /// Returns the common bytes `common` of the rectangles `from` and `to`, which both contain it.
    pub(super) fn of(from: &Tile, to: &Tile, common: &Tile) -> Self {
        Self {
            from: from.offset_of(common),
            to: to.offset_of(common),
            width: common.width(),
            rows: common.height(),
            from_row: from.width(),
            to_row: to.width(),
        }
    }

    /// Returns the first `bytes` bytes of frames that are the same at source and target.
    pub(super) const fn of_frames(bytes: usize) -> Self {
        Self {
            from: 0,
            to: 0,
            width: bytes,
            rows: 1,
            from_row: bytes,
            to_row: bytes,
        }
    }

    /// Returns the number of bytes of one frame.
    pub(super) const fn bytes(&self) -> usize {
        self.width * self.rows
    }

    /// Returns the offset of the bytes in the target's slot, the length of a row, the number of rows and their distance.
    pub(super) const fn at_target(&self) -> (usize, usize, usize, usize) {
        (self.to, self.width, self.rows, self.to_row)
    }

    /// Starts copies of the common bytes of `frames` frames. Returns the number of bytes.
    ///
    /// # Safety
    /// The requirements of [`burst::copy`] apply. All slots must contain the rectangles.
    pub(super) unsafe fn copy(
        &self,
        method: &dyn CopyMethod,
        from: Every,
        to: Every,
        frames: usize,
    ) -> Result<u64, StagingError> {
        let mut done = 0;
        while done < frames {
            let (source, target) = (from.after(done), to.after(done));
            let slices = source.contiguous().min(target.contiguous());
            let slices = slices.min(frames - done);
            let block = Block {
                width: self.width,
                rows: self.rows,
                slices,
                from: source.pitch(self.from_row),
                to: target.pitch(self.to_row),
                is_followed: source.is_followed(slices) && target.is_followed(slices),
            };
            // SAFETY: the caller guarantees the requirements.
            unsafe {
                method.copy_block(
                    target.slots.address(0) + self.to as u64,
                    source.slots.address(0) + self.from as u64,
                    block,
                )
            }?;
            done += slices;
        }
        Ok((frames * self.bytes()) as u64)
    }
}

/// Every `step`-th of some slots, beginning with the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Every {
    pub(super) slots: Slice,
    /// At least 1.
    pub(super) step: usize,
}

impl Every {
    /// Returns all slots of `slots`.
    pub(super) const fn slot(slots: Slice) -> Self {
        Self { slots, step: 1 }
    }

    const fn after(&self, frames: usize) -> Self {
        Self {
            slots: self.slots.after(frames * self.step),
            ..*self
        }
    }

    /// Returns the number of frames before the end of the ring.
    const fn contiguous(&self) -> usize {
        self.slots.contiguous().div_ceil(self.step)
    }

    /// Whether the ring has a further slot after the first `frames` frames, `step` slots after the last of them.
    const fn is_followed(&self, frames: usize) -> bool {
        self.slots.first + frames * self.step < self.slots.slots
    }

    /// Returns the distances between the rows and the frames.
    const fn pitch(&self, row: usize) -> Pitch {
        Pitch {
            row,
            slice: self.slots.stride * self.step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_select_every_nth_frame() {
        let turns = Selection::Turns { index: 1, count: 3 };
        // Frames 1, 4, 7, …
        assert_eq!(turns.count(0, 1), 0);
        assert_eq!(turns.count(0, 2), 1);
        assert_eq!(turns.count(0, 5), 2);
        assert_eq!(turns.count(2, 2), 0);
        assert_eq!(turns.count(2, 3), 1);
        let run = |lead, selected, leased| Run {
            lead,
            selected,
            leased,
        };
        assert_eq!(turns.run(0, 2), run(1, 2, 5));
        assert_eq!(turns.run(4, 1), run(0, 1, 1));
        assert_eq!(Selection::All.run(5, 4), run(0, 4, 4));
        assert_eq!(Selection::All.count(5, 4), 4);
    }
}
