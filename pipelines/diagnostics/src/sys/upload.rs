//! Copies of a few bytes to a GPU before a kernel runs.

use daq_core::gpu::driver::{CudaError, Device, Memory, Stream};
use daq_core::region::{HostOptions, Region, RegionError};
use std::sync::Arc;

/// A few bytes of pinned host memory and the same number of bytes of GPU memory.
#[derive(Debug)]
pub(crate) struct Upload {
    stream: Stream,
    from: Arc<Region>,
    to: Memory,
}

impl Upload {
    /// Allocates `bytes` bytes, at least 1.
    pub(crate) fn new(device: &'static Device, bytes: usize) -> Result<Self, RegionError> {
        let from = Region::host(bytes.max(1), HostOptions::default())?;
        from.pin(device)?;
        Ok(Self {
            stream: Stream::new(device, 1)?,
            to: Memory::new(device, from.bytes())?,
            from,
        })
    }

    /// The stream of the copies.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The GPU's memory.
    pub(crate) const fn memory(&self) -> &Memory {
        &self.to
    }

    /// Starts a copy of the first `bytes` bytes.
    ///
    /// # Panics
    /// If `bytes` exceeds the allocated size.
    pub(crate) fn begin(&self, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= self.from.bytes(), "{bytes} bytes do not fit");
        // SAFETY: the range is inside both memories, as just checked, and both live until the stream has ended (see
        // `drop`). The source is not written meanwhile, and the target's previous content does not matter.
        unsafe {
            let from = self.from.address().as_ptr();
            self.stream.copy_in(self.to.address(), from, bytes)
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After an error, copies may still be in flight.
        let _ = self.stream.synchronize();
    }
}
