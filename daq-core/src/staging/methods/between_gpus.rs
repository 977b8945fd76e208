//! Copies from the memory of one GPU to the memory of another.

use super::StreamPath;
use crate::gpu::driver::{CudaError, Device, Rows, Stream};

/// Copies from the stream's GPU to another GPU.
///
/// The GPU of the stream needs [access](crate::region::Region::grant) to the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BetweenGpus {
    /// The GPU that is written.
    pub(crate) to: &'static Device,
}

impl StreamPath for BetweenGpus {
    unsafe fn copy(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        rows: Rows,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees all requirements for each row.
        unsafe { stream.copy_to_peer(self.to, to, from, rows) }
    }

    fn target(&self) -> Option<&'static Device> {
        Some(self.to)
    }
}
