//! Copies of a few bytes to a GPU, in front of a kernel.

use daq_core::gpu::driver::{CudaError, Device, Memory, Stream};
use daq_core::region::{HostOptions, Region, RegionError};
use std::sync::Arc;

/// A few bytes of pinned host memory and as many of a GPU's.
#[derive(Debug)]
pub(crate) struct Upload {
    stream: Stream,
    from: Arc<Region>,
    to: Memory,
}

impl Upload {
    /// Room for `bytes` bytes, at least 1.
    pub(crate) fn new(device: &'static Device, bytes: usize) -> Result<Self, RegionError> {
        let from = Region::host(bytes.max(1), HostOptions::default())?;
        from.pin(device)?;
        Ok(Self {
            stream: Stream::new(device, 1)?,
            to: Memory::new(device, from.bytes())?,
            from,
        })
    }

    /// The stream that the copies are put on.
    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The GPU's memory.
    pub(crate) const fn memory(&self) -> &Memory {
        &self.to
    }

    /// Begins a copy of the first `bytes` bytes.
    ///
    /// # Panics
    /// If they are more than there is room for.
    pub(crate) fn begin(&self, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= self.from.bytes(), "{bytes} bytes do not fit");
        // SAFETY: inside of both, as just checked, which live until the stream has ended (see `drop`). Nobody writes
        // the source, and what the target holds does not matter.
        unsafe {
            let from = self.from.address().as_ptr();
            self.stream.copy_in(self.to.address(), from, bytes)
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After an error copies may be under way.
        let _ = self.stream.synchronize();
    }
}
