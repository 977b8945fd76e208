//! Stores by the CPU to GPU memory.

use super::{CopyMethod, Division, host};
use crate::gpu::bar_mapping::BarMapping;
use crate::gpu::driver::{Device, Rows};
use crate::ring::Completion;
use crate::staging::StagingError;
use crate::sys::store;
use std::sync::Arc;

/// Copies from host memory to GPU memory with CPU stores, through the BAR mapping of the target.
#[derive(Debug)]
pub(crate) struct CpuStores {
    mapping: Arc<BarMapping>,
    /// Whether an event waits until the bytes have left the CPU.
    fenced: bool,
}

impl CpuStores {
    /// Creates a method that stores to the memory of `mapping`. Bytes have left the CPU when an event is recorded.
    pub(crate) const fn new(mapping: Arc<BarMapping>) -> Self {
        Self {
            mapping,
            fenced: true,
        }
    }

    /// Omits the fence of an event. A later fence of the same thread also covers these stores.
    #[must_use]
    pub(crate) fn unfenced(self) -> Self {
        Self {
            fenced: false,
            ..self
        }
    }
}

impl CopyMethod for CpuStores {
    fn division(&self) -> Division {
        Division::Lines
    }

    #[inline]
    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError> {
        self.mapping.check()?;
        let offset = usize::try_from(to - self.mapping.address()).unwrap_or(usize::MAX);
        debug_assert!(
            offset + rows.extent() <= self.mapping.bytes(),
            "the rows are outside the mapping"
        );
        let to = self.mapping.cpu_address().as_ptr().wrapping_add(offset);
        for row in 0..rows.count {
            let at = row * rows.pitch;
            // SAFETY: the caller guarantees valid rows. Slots are at the same offset in the BAR mapping as on the GPU,
            // and `check` found the mapping usable. No reference to either memory is created.
            unsafe { store::copy_to(to.wrapping_add(at), host(from).wrapping_add(at), rows.bytes) };
        }
        Ok(())
    }

    #[inline]
    fn record_event(&self) -> Result<Completion, StagingError> {
        if self.fenced {
            store::fence();
        }
        // The accesses may have detected that the memory is lost.
        self.mapping.check_device()?;
        Ok(Completion::Immediate)
    }

    fn stored_gpu(&self) -> Option<&'static Device> {
        Some(self.mapping.device())
    }
}
