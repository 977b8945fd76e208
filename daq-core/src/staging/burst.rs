//! Divides the frames of a burst into copies.

use super::StagingError;
use super::methods::{CopyMethod, Division};
use crate::gpu::driver::Rows;
use crate::ring::{Lease, Slice};

/// Size in bytes of a line, whose bytes leave the CPU together. The last line of a frame is stored completely, because
/// storing a partial line is slower.
const LINE: usize = 64;

/// Slots that are contiguous in both rings.
struct Run {
    to: u64,
    from: u64,
    stride: usize,
    count: usize,
}

/// Starts copies of the frames of `lease` into the first slots of `to`; returns the number of bytes.
///
/// # Safety
/// `to` must be reserved slots with the stride of the leased slots. Until the next event of `method` is done, these
/// slots must stay reserved, the frames must stay leased, and the memory of both rings must stay allocated.
pub(super) unsafe fn copy(
    method: &dyn CopyMethod,
    lease: &Lease<'_>,
    to: Slice,
) -> Result<u64, StagingError> {
    let Some(from) = lease.slice() else {
        unreachable!("the reader of a RingCopy leases slots of the ring, not copies of them");
    };
    let (mut done, mut total) = (0, 0);
    while done < lease.len() {
        let (source, target) = (from.after(done), to.after(done));
        let run = Run {
            to: target.address(0),
            from: source.address(0),
            stride: source.stride,
            count: source.contiguous().min(target.contiguous()),
        };
        let lengths = lease.lengths(done).take(run.count);
        // SAFETY: the caller guarantees all requirements of these calls. The lengths are those of the run's frames.
        let bytes = unsafe {
            match method.division() {
                Division::Rows => run.rows(method, lengths),
                Division::Lines => run.lines(method, lengths),
            }
        };
        total += bytes? as u64;
        done += run.count;
    }
    Ok(total)
}

impl Run {
    /// Copies all frames together. If the frames fill most of their slots, one contiguous copy is used. If a large part
    /// of the slots is empty, only the filled rows are copied.
    ///
    /// # Safety
    /// The requirements of [`copy`] apply, and `lengths` must be the lengths of the frames.
    unsafe fn rows(
        &self,
        method: &dyn CopyMethod,
        lengths: impl Iterator<Item = usize>,
    ) -> Result<usize, StagingError> {
        let (longest, last) =
            lengths.fold((0, 0), |(longest, _), length| (length.max(longest), length));
        let span = (self.count - 1) * self.stride + last;
        let rows = if longest == 0 {
            return Ok(0);
        } else if longest * self.count < span / 4 * 3 && self.stride <= Rows::MAX_PITCH {
            Rows {
                count: self.count,
                bytes: longest,
                pitch: self.stride,
            }
        } else {
            Rows::one(span)
        };
        // SAFETY: the caller guarantees the requirements. All ranges are inside the slots, because a frame is not
        // longer than its slot.
        unsafe { method.copy(self.to, self.from, rows) }?;
        Ok(rows.count * rows.bytes)
    }

    /// Copies the lines that contain payload. A frame that fills its slot is combined with the next frame.
    ///
    /// # Safety
    /// The requirements of [`copy`] apply, and `lengths` must be the lengths of the frames.
    unsafe fn lines(
        &self,
        method: &dyn CopyMethod,
        lengths: impl Iterator<Item = usize>,
    ) -> Result<usize, StagingError> {
        let mut total = 0;
        let mut send = |begin: usize, bytes: usize| {
            if bytes == 0 {
                return Ok(());
            }
            total += bytes;
            let begin = begin as u64;
            // SAFETY: the caller guarantees the requirements. The piece does not exceed the last slot, because a slot's
            // stride is a multiple of the line size. Nothing ever writes the gaps between frames.
            unsafe { method.copy(self.to + begin, self.from + begin, Rows::one(bytes)) }
        };
        let (mut begin, mut bytes) = (0, 0);
        for (i, length) in (1..).zip(lengths) {
            let lines = length.next_multiple_of(LINE);
            bytes += lines;
            if lines < self.stride {
                send(begin, bytes)?;
                (begin, bytes) = (i * self.stride, 0);
            }
        }
        send(begin, bytes)?;
        Ok(total)
    }
}
