//! Fills the bytes of missing shares.

use crate::gpu::driver::{Device, Rows, Stream};
use crate::ring::{Completion, Producer, Slice};
use crate::staging::StagingError;
use crate::staging::selection::Overlap;

/// Writes the ring's fill pattern in place of missing bytes.
#[derive(Debug)]
pub enum MissingFill {
    /// The CPU writes the pattern.
    Cpu,
    /// The GPU that holds the target writes the pattern.
    Gpu(Stream),
}

impl MissingFill {
    /// Creates a method for a ring on `device` with at most `depth` fills in flight; for a ring in host memory if `device` is
    /// `None`.
    pub fn new(device: Option<&'static Device>, depth: usize) -> Result<Self, StagingError> {
        Ok(match device {
            None => Self::Cpu,
            Some(device) => Self::Gpu(Stream::new(device, depth + 1)?),
        })
    }

    /// Fills the bytes `overlap` of the next `frames` open slots, from slot `first` of the open slots on. `to` are these slots.
    ///
    /// # Safety
    /// The slots must stay reserved until the next [event](Self::record_event) is done, and contain the overlap.
    pub(super) unsafe fn fill(
        &self,
        producer: &Producer,
        overlap: &Overlap,
        (to, first): (Slice, u64),
        frames: usize,
    ) -> Result<(), StagingError> {
        let (offset, width, rows, pitch) = overlap.at_target();
        match self {
            Self::Cpu => {
                for i in 0..frames as u64 {
                    for row in 0..rows {
                        let begin = offset + row * pitch;
                        producer.fill(first + i, begin..begin + width);
                    }
                }
            }
            Self::Gpu(stream) => {
                let mut pattern = producer.options().fill.pattern();
                if !(offset | width | pitch).is_multiple_of(4) {
                    // The GPU writes patterns of four bytes only to aligned addresses.
                    pattern = [pattern[0]; 4];
                }
                let rows = Rows {
                    count: rows,
                    bytes: width,
                    pitch,
                };
                for i in 0..frames {
                    // SAFETY: the caller guarantees the requirements. Slots are aligned to 64 bytes, and the rows were just
                    // checked.
                    unsafe { stream.fill_rows(to.address(i) + offset as u64, pattern, rows) }?;
                }
            }
        }
        Ok(())
    }

    /// Records the end of all fills started so far. Requires that [`has_room`](Self::has_room) is true.
    pub(super) fn record_event(&self) -> Result<Completion, StagingError> {
        Ok(match self {
            Self::Cpu => Completion::Immediate,
            Self::Gpu(stream) => Completion::Event(stream.record_event()?),
        })
    }

    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Gpu(stream) => stream.has_free_event(),
        }
    }

    /// Waits until no fill is in flight.
    pub(super) fn settle(&self) {
        if let Self::Gpu(stream) = self {
            // A failure of the device has already been reported.
            let _ = stream.synchronize();
        }
    }
}
