//! Copies within the memory of one GPU.

use super::StreamPath;
use crate::gpu::driver::{CudaError, Rows, Stream};

/// Copies within the memory of the stream's GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WithinGpu;

impl StreamPath for WithinGpu {
    unsafe fn copy(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        rows: Rows,
    ) -> Result<(), CudaError> {
        // The memory of a GPU is so fast that copying the bytes between the rows costs less than further calls.
        // SAFETY: the caller guarantees all requirements for each row. The bytes between the rows are in the same slots
        // and have no content.
        unsafe { stream.copy_within(to, from, rows.extent()) }
    }
}
