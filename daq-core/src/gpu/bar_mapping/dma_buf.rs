//! CUDA memory that is exported as a dma-buf and mapped directly.
//!
//! Only an attempt shows whether a driver lets the CPU map a dma-buf, because the device attribute describes only the
//! export.

use super::pieces::{self, Made, Pieces, Refused, Stopwatch, plain_offset};
use crate::gpu::driver::{Backing, Device, Memory};
use crate::region::DmaBufError;
use crate::sys::memory as sys;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Granularity of sizes in bytes: the size of a GPU page, as for GDRCopy.
const PAGE: usize = 64 << 10;
/// Linux's internal error number for "not supported", which the driver returns if mapping a dma-buf is not possible.
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
        format!("{error}; exporting dma-bufs needs a GPU and driver that support it (the open kernel modules, 535 or newer)")
    })?;
    let exported = stopwatch.lap();
    // The mapping stays valid without the descriptor.
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
    /// Exports the memory as a dma-buf.
    pub(super) fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        pieces::dma_buf(&self.memory, self.bytes, PAGE)
    }

    /// Maps the same memory a second time.
    pub(super) fn again(&self) -> Result<Pieces, Refused> {
        map(Arc::clone(&self.memory), self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was created in `map`. The owner of this value is dropped, so nothing uses the mapping any
        // more.
        let result = unsafe { sys::unmap(self.cpu, self.bytes) };
        debug_assert!(result.is_ok(), "unmapping a dma-buf failed: {result:?}");
    }
}

/// Describes a mapping error, with a remedy.
fn refusal(errno: Errno) -> Refused {
    let why = if errno.raw_os_error() == ENOTSUPP {
        "not supported (524)".to_owned()
    } else {
        errno.to_string()
    };
    Refused(format!(
        "the driver exports a dma-buf of the memory but does not let the CPU map it: {why}; drivers up to 595 refuse this mapping on GPUs with their own memory; no action is needed if another backend can map the memory"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_internal_errno_is_described() {
        let message = refusal(Errno::from_raw_os_error(ENOTSUPP)).0;
        assert!(message.contains("not supported (524)"), "{message}");
    }
}
