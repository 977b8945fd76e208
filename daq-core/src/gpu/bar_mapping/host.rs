//! Pinned host memory, which the GPU reads over the PCIe bus.

use super::pieces::{self, Made, Pieces, Refused, Stopwatch};
use crate::gpu::driver::Device;
use crate::region::{HostOptions, Region};

/// Granularity of sizes in bytes: the size of a host page.
const PAGE: usize = 4096;

pub(super) fn make(device: &'static Device, bytes: usize) -> Result<Pieces, Refused> {
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let mut stopwatch = Stopwatch::new();
    let region = Region::host(bytes, HostOptions::default()).map_err(|error| error.to_string())?;
    let allocate = stopwatch.lap();
    region.pin(device).map_err(|error| error.to_string())?;
    let cpu = region.address();
    // CPU and GPU use the same address for pinned host memory.
    let gpu = cpu.addr().get() as u64;
    let mut pieces = Pieces::new((cpu, gpu, region.bytes()), Made::Host(region));
    pieces.costs.allocate = allocate;
    pieces.costs.pin = stopwatch.lap();
    Ok(pieces)
}
