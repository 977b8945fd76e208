//! Stores by the CPU to host memory.

use super::{CopyMethod, Division, host};
use crate::gpu::driver::Rows;
use crate::ring::Completion;
use crate::staging::StagingError;
use crate::sys::copy;

/// Copies from host memory to host memory with streaming stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostStores;

impl CopyMethod for HostStores {
    fn division(&self) -> Division {
        Division::Lines
    }

    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError> {
        for row in 0..rows.count {
            let at = row * rows.pitch;
            // SAFETY: the caller guarantees valid rows in host memory. No reference to either memory is created.
            unsafe {
                copy::stream(
                    host(from).wrapping_add(at),
                    host(to).wrapping_add(at),
                    rows.bytes,
                );
            }
        }
        Ok(())
    }

    fn record_event(&self) -> Result<Completion, StagingError> {
        copy::fence();
        Ok(Completion::Immediate)
    }
}
