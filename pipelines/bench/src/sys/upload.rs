//! Copies a few bytes to a GPU before a kernel runs.

use daq_core::gpu::driver::{CudaError, Device, Memory, Stream};
use daq_core::region::{HostOptions, Region, RegionError};
use std::sync::Arc;

/// A small buffer in pinned host memory, and a buffer of the same size in GPU memory.
#[derive(Debug)]
pub(crate) struct Upload {
    stream: Stream,
    from: Arc<Region>,
    to: Memory,
}

impl Upload {
    /// Allocates `bytes` bytes, at least 1, in host memory and in GPU memory.
    pub(crate) fn new(device: &'static Device, bytes: usize) -> Result<Self, RegionError> {
        let from = Region::host(bytes.max(1), HostOptions::default())?;
        from.pin(device)?;
        Ok(Self {
            stream: Stream::new(device, 1)?,
            to: Memory::new(device, from.bytes())?,
            from,
        })
    }

    /// Returns the stream of the copies.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the GPU memory.
    pub(crate) const fn memory(&self) -> &Memory {
        &self.to
    }

    /// Starts to copy the first `bytes` bytes to the GPU.
    ///
    /// # Panics
    /// If `bytes` exceeds the allocated size.
    pub(crate) fn begin(&self, bytes: usize) -> Result<(), CudaError> {
        assert!(
            bytes <= self.from.bytes(),
            "{bytes} bytes do not fit into the upload buffer"
        );
        // SAFETY: the range is inside both memories, as checked above, and both live until the stream has finished (see
        // `drop`). The source is not written in the meantime, and the previous content of the target does not matter.
        unsafe {
            let from = self.from.address().as_ptr();
            self.stream.copy_in(self.to.address(), from, bytes)
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After an error, copies may still be in flight, so wait for them before the memory is freed.
        let _ = self.stream.synchronize();
    }
}
