//! CUDA calls for blocks of memory: rows of several slices.

use super::{Code, RawStream, Rows, check, driver};
use cudarc::driver::sys;
use std::ffi::{c_uchar, c_uint};
use std::ptr;

/// Distances between the rows and the slices of a [`Block`] at its source or target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitch {
    /// Distance between the starts of neighbouring rows in bytes.
    pub row: usize,
    /// Distance between the starts of neighbouring slices in bytes.
    pub slice: usize,
}

/// Slices of equal size, each of rows of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Length of a row in bytes.
    pub width: usize,
    /// Number of rows in a slice.
    pub rows: usize,
    /// Number of slices.
    pub slices: usize,
    /// Distances at the source.
    pub from: Pitch,
    /// Distances at the target.
    pub to: Pitch,
    /// Whether a further slice after the last one is allocated at the source and at the target.
    pub is_followed: bool,
}

/// Largest length of a row that is copied with one call. The pitch of a single row is its length.
const MAX_ROW: usize = 1 << 30;

impl Block {
    /// Returns a block of one row.
    const fn row(width: usize) -> Self {
        let pitch = Pitch {
            row: width,
            slice: width,
        };
        Self {
            width,
            rows: 1,
            slices: 1,
            from: pitch,
            to: pitch,
            is_followed: false,
        }
    }

    /// Returns the number of bytes.
    pub const fn bytes(&self) -> usize {
        self.width * self.rows * self.slices
    }

    /// Returns the same bytes with as few slices and rows as possible.
    #[must_use]
    pub const fn flattened(self) -> Self {
        let mut block = self.with_joined_rows();
        if block.rows == 1 && block.slices > 1 {
            (block.rows, block.slices) = (block.slices, 1);
            (block.from.row, block.to.row) = (block.from.slice, block.to.slice);
        } else if block.slices > 1
            && block.from.slice == block.rows * block.from.row
            && block.to.slice == block.rows * block.to.row
        {
            (block.rows, block.slices) = (block.rows * block.slices, 1);
        }
        block.with_joined_rows()
    }

    /// Returns the same bytes with one row per slice, if the rows follow each other without gaps.
    const fn with_joined_rows(mut self) -> Self {
        if self.rows == 1 || self.from.row == self.width && self.to.row == self.width {
            (self.width, self.rows) = (self.width * self.rows, 1);
            (self.from.row, self.to.row) = (self.width, self.width);
        }
        self
    }

    /// Returns the first `count` slices, or the first `count` rows of a block of one slice.
    const fn up_to(self, count: usize) -> Self {
        if self.slices > 1 {
            Self {
                slices: count,
                ..self
            }
        } else {
            Self {
                rows: count,
                ..self
            }
        }
    }

    /// Returns slice `i`, or row `i` of a block of one slice, with its offsets at source and target.
    const fn single(self, i: usize) -> (usize, usize, Self) {
        if self.slices > 1 {
            let slice = Self { slices: 1, ..self };
            (i * self.from.slice, i * self.to.slice, slice)
        } else {
            let row = Self { rows: 1, ..self };
            (i * self.from.row, i * self.to.row, row)
        }
    }

    /// Whether one call can copy all slices: the distance between slices is a multiple of that between rows.
    const fn is_box(&self) -> bool {
        self.from.slice.is_multiple_of(self.from.row)
            && self.to.slice.is_multiple_of(self.to.row)
            && !self.has_large_pitch()
    }

    const fn has_large_pitch(&self) -> bool {
        self.rows > 1 && (self.from.row > Rows::MAX_PITCH || self.to.row > Rows::MAX_PITCH)
    }
}

/// Copies a block between any memories that the stream's device can access.
///
/// # Safety
/// All rows must stay allocated until the stream has completed the copy. Until then, nothing else may write the source, or
/// read or write the target.
pub(crate) unsafe fn copy_block_async(
    to: u64,
    from: u64,
    block: Block,
    stream: RawStream,
) -> Result<(), Code> {
    let block = block.flattened();
    if block.bytes() == 0 {
        return Ok(());
    }
    if block.bytes() == block.width && block.width > MAX_ROW {
        let rest = Block::row(block.width - MAX_ROW);
        let skipped = MAX_ROW as u64;
        // SAFETY: both rows are parts of the row of the block, for which the caller guarantees the requirements.
        return unsafe {
            copy_rows(to, from, Block::row(MAX_ROW), stream)?;
            copy_block_async(to + skipped, from + skipped, rest, stream)
        };
    }
    // The driver rejects a copy if the bytes after its last row, up to the pitch, are outside of the allocation. Therefore
    // the last slice, and the last row, are copied alone if nothing follows them.
    let (last, is_divisible) = if block.slices > 1 {
        (block.slices - 1, block.is_box())
    } else {
        (block.rows - 1, !block.has_large_pitch())
    };
    if last == 0 {
        // SAFETY: the caller guarantees the requirements.
        return unsafe { copy_rows(to, from, block, stream) };
    }
    if is_divisible {
        let before = if block.is_followed {
            block
        } else {
            block.up_to(last)
        };
        // SAFETY: the rows are rows of the block, for which the caller guarantees the requirements.
        unsafe {
            if before.slices > 1 {
                copy_slices(to, from, before, stream)
            } else {
                copy_rows(to, from, before, stream)
            }
        }?;
    }
    if is_divisible && block.is_followed {
        return Ok(());
    }
    let singles = if is_divisible { last } else { 0 };
    for i in singles..=last {
        let (skipped, offset, single) = block.single(i);
        // SAFETY: the rows are rows of the block, for which the caller guarantees the requirements.
        unsafe { copy_block_async(to + offset as u64, from + skipped as u64, single, stream) }?;
    }
    Ok(())
}

/// Copies the rows of a block of one slice with one call.
///
/// # Safety
/// The requirements of [`copy_block_async`] apply.
unsafe fn copy_rows(to: u64, from: u64, block: Block, stream: RawStream) -> Result<(), Code> {
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: ptr::null(),
        srcDevice: from,
        srcArray: ptr::null_mut(),
        srcPitch: block.from.row,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: ptr::null_mut(),
        dstDevice: to,
        dstArray: ptr::null_mut(),
        dstPitch: block.to.row,
        WidthInBytes: block.width,
        Height: block.rows,
    };
    // SAFETY: the caller guarantees the requirements, and `copy` is alive during the call.
    check(unsafe { driver::cuMemcpy2DAsync_v2(&raw const copy, stream) })
}

/// Copies the slices of a block with one call. The distances between slices must be multiples of those between rows.
///
/// # Safety
/// The requirements of [`copy_block_async`] apply.
unsafe fn copy_slices(to: u64, from: u64, block: Block, stream: RawStream) -> Result<(), Code> {
    let copy = sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: ptr::null(),
        srcDevice: from,
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: block.from.row,
        srcHeight: block.from.slice / block.from.row,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: ptr::null_mut(),
        dstDevice: to,
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: block.to.row,
        dstHeight: block.to.slice / block.to.row,
        WidthInBytes: block.width,
        Height: block.rows,
        Depth: block.slices,
    };
    // SAFETY: the caller guarantees the requirements, and `copy` is alive during the call.
    check(unsafe { driver::cuMemcpy3DAsync_v2(&raw const copy, stream) })
}

/// Fills rows of device memory with a pattern of four bytes, or of one byte if all four are equal.
///
/// # Safety
/// All rows must be memory of the stream's device that stays allocated until the stream has completed the fill. Until
/// then, nothing else may read or write the rows. If the bytes of `pattern` differ, `to`, `pitch` and `width` must be
/// multiples of 4.
pub(crate) unsafe fn fill_rows_async(
    to: u64,
    pattern: [u8; 4],
    (width, rows, pitch): (usize, usize, usize),
    stream: RawStream,
) -> Result<(), Code> {
    if width * rows == 0 {
        return Ok(());
    }
    let byte: c_uchar = pattern[0];
    // SAFETY: the caller guarantees the requirements of both calls.
    check(unsafe {
        if pattern == [byte; 4] {
            driver::cuMemsetD2D8Async(to, pitch, byte, width, rows, stream)
        } else {
            let word: c_uint = u32::from_le_bytes(pattern);
            driver::cuMemsetD2D32Async(to, pitch, word, width / 4, rows, stream)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pitch(row: usize, slice: usize) -> Pitch {
        Pitch { row, slice }
    }

    #[test]
    fn blocks_become_as_flat_as_possible() {
        let block = |width, rows, slices, from, to| {
            Block {
                width,
                rows,
                slices,
                from,
                to,
                is_followed: false,
            }
            .flattened()
        };
        let flat = |block: Block| (block.width, block.rows, block.slices);
        // Whole frames without gaps are one row.
        let whole = block(8, 4, 3, pitch(8, 32), pitch(8, 32));
        assert_eq!(flat(whole), (96, 1, 1));
        // Columns of frames that follow each other are the rows of one slice.
        let columns = block(4, 4, 3, pitch(8, 32), pitch(4, 16));
        assert_eq!(flat(columns), (4, 12, 1));
        // Frames of one row each.
        let rows = block(6, 1, 3, pitch(6, 64), pitch(6, 128));
        assert_eq!(flat(rows), (6, 3, 1));
        assert_eq!((rows.from.row, rows.to.row), (64, 128));
        // The rows of each frame go to a part of a larger frame.
        let corner = block(4, 2, 3, pitch(8, 16), pitch(4, 32));
        assert_eq!(flat(corner), (4, 2, 3));
        assert!(corner.is_box());
        // Rows without gaps are one row, also if the slices have gaps.
        let halves = block(8, 2, 3, pitch(8, 32), pitch(8, 16));
        assert_eq!(flat(halves), (16, 3, 1));
        assert_eq!((halves.from.row, halves.to.row), (32, 16));
        assert!(!block(5, 2, 3, pitch(6, 64), pitch(6, 64)).is_box());
    }
}
