//! CUDA memory that is exported as a dma-buf and mapped directly.
//!
//! Whether a driver lets a dma-buf be mapped is known by trying alone: its attribute speaks of the export.

use super::pieces::{self, Made, Pieces, Refused, Stopwatch, plain_offset};
use crate::gpu::driver::{Backing, Device, Memory};
use crate::region::DmaBufError;
use crate::sys::memory as sys;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What memory is rounded up to: a page of the GPU, as with GDRCopy.
const PAGE: usize = 64 << 10;
/// The kernel's inner number for "not supported", which this path of the driver lets out.
const ENOTSUPP: i32 = 524;

/// A mapped part of CUDA memory.
#[derive(Debug)]
pub(super) struct Mapping {
    cpu: NonNull<u8>,
    bytes: usize,
    memory: Arc<Memory>,
}

pub(super) fn make(
    device: &'static Device,
    bytes: usize,
    backing: Option<Backing>,
) -> Result<Pieces, Refused> {
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let (memory, allocate) = pieces::allocate(device, bytes, PAGE, backing)?;
    let mut pieces = map(Arc::new(memory), bytes)?;
    pieces.costs.allocate = allocate;
    Ok(pieces)
}

fn map(memory: Arc<Memory>, bytes: usize) -> Result<Pieces, Refused> {
    let offset = plain_offset(&memory, PAGE);
    let gpu = memory.address() + offset;
    let mut stopwatch = Stopwatch::new();
    let offset = usize::try_from(offset).map_err(|error| error.to_string())?;
    let dma_buf = memory.dma_buf(offset, bytes).map_err(|error| {
        format!("{error}; it takes a GPU and a driver that export dma-bufs (the open kernel modules, 535 or newer)")
    })?;
    let exported = stopwatch.lap();
    // The mapping needs no descriptor once it is there.
    let cpu = sys::map_file(&dma_buf, bytes).map_err(refusal)?;
    drop(dma_buf);
    let mut pieces = Pieces::new(
        (cpu, gpu, bytes),
        Made::DmaBuf(Mapping { cpu, bytes, memory }),
    );
    pieces.costs.pin = exported;
    pieces.costs.map = stopwatch.lap();
    Ok(pieces)
}

impl Mapping {
    /// A dma-buf of the memory.
    pub(super) fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        pieces::dma_buf(&self.memory, self.bytes, PAGE)
    }

    /// The same memory, mapped once more.
    pub(super) fn again(&self) -> Result<Pieces, Refused> {
        map(Arc::clone(&self.memory), self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is that of `map`; whoever used it is gone with the value that owned this.
        let result = unsafe { sys::unmap(self.cpu, self.bytes) };
        debug_assert!(result.is_ok(), "unmapping a dma-buf failed: {result:?}");
    }
}

/// An error of mapping, and what helps.
fn refusal(errno: Errno) -> Refused {
    let why = if errno.raw_os_error() == ENOTSUPP {
        "not supported (524)".to_owned()
    } else {
        errno.to_string()
    };
    Refused(format!(
        "the driver exports a dma-buf of the memory but does not let the CPU map it: {why}; drivers up to 595 refuse that on GPUs with memory of their own, and nothing has to be done where another backend maps it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_internal_errno_is_described() {
        let told = refusal(Errno::from_raw_os_error(ENOTSUPP)).0;
        assert!(told.contains("not supported (524)"), "{told}");
    }
}
