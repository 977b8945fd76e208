//! CUDA memory that is exported as a dma-buf and mapped directly.
//!
//! Only an attempt shows whether a driver lets the CPU map a dma-buf, because the device attribute describes only the
//! export.

use super::pieces::{self, Pieces, Refused, Stopwatch, plain_offset};
use crate::gpu::driver::{Backing, Device, Memory};
use crate::sys::memory as sys;
use rustix::io::Errno;
use std::sync::Arc;

/// Granularity of sizes in bytes: the size of a GPU page, as for GDRCopy.
const PAGE: usize = 64 << 10;
/// Linux's internal error number for "not supported", which the driver returns if mapping a dma-buf is not possible.
const ENOTSUPP: i32 = 524;

/// A mapped part of CUDA memory.
#[derive(Debug)]
pub(super) struct Mapping {
    // Dropped before the memory that it maps.
    _mapping: sys::Mapping,
    pub(super) memory: Arc<Memory>,
}

pub(super) fn make(
    device: &'static Device,
    bytes: usize,
    backing: Option<Backing>,
) -> Result<Pieces<Mapping>, Refused> {
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let (memory, allocate) = pieces::allocate(device, bytes, PAGE, backing)?;
    let mut pieces = map(Arc::new(memory), bytes)?;
    pieces.costs.allocate = allocate;
    Ok(pieces)
}

pub(super) fn map(memory: Arc<Memory>, bytes: usize) -> Result<Pieces<Mapping>, Refused> {
    let offset = plain_offset(&memory, PAGE);
    let gpu = memory.address() + offset;
    let mut stopwatch = Stopwatch::new();
    let offset = usize::try_from(offset).map_err(|error| error.to_string())?;
    let dma_buf = memory
        .dma_buf(offset, bytes)
        .map_err(|error| error.to_string())?;
    let exported = stopwatch.lap();
    // The mapping stays valid without the descriptor.
    let mapping = sys::Mapping::of_file(&dma_buf, bytes).map_err(|error| refusal(error.source))?;
    drop(dma_buf);
    let mut pieces = Pieces::new(
        (mapping.address(), gpu, bytes),
        Mapping {
            _mapping: mapping,
            memory,
        },
    );
    pieces.costs.pin = exported;
    pieces.costs.map = stopwatch.lap();
    Ok(pieces)
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
