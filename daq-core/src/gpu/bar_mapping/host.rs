//! Pinned host memory, which the GPU reads over the PCIe bus.

use super::pieces::{self, Pieces, Refused, Stopwatch};
use crate::gpu::driver::{Device, Registered};
use crate::sys::memory;

/// Granularity of sizes in bytes: the size of a host page.
const PAGE: usize = 4096;

/// Host memory that is pinned for the GPU.
#[derive(Debug)]
pub(super) struct Mapping {
    // Dropped first, because the memory must stay mapped while it is pinned.
    _registered: Registered,
    _memory: memory::Mapping,
}

pub(super) fn make(device: &'static Device, bytes: usize) -> Result<Pieces<Mapping>, Refused> {
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let mut stopwatch = Stopwatch::new();
    let memory = memory::Mapping::anonymous(bytes, false).map_err(|error| error.to_string())?;
    let allocate = stopwatch.lap();
    let cpu = memory.address();
    // SAFETY: the memory was mapped just above, and is unmapped after it is unpinned.
    let registered =
        unsafe { Registered::new(device, cpu, bytes) }.map_err(|error| error.to_string())?;
    let mapping = Mapping {
        _registered: registered,
        _memory: memory,
    };
    // CPU and GPU use the same address for pinned host memory.
    let gpu = cpu.addr().get() as u64;
    let mut pieces = Pieces::new((cpu, gpu, bytes), mapping);
    pieces.costs.allocate = allocate;
    pieces.costs.pin = stopwatch.lap();
    Ok(pieces)
}
