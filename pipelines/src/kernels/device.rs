//! Functions that all CUDA implementations use: they load device code and address the slots of a burst.

use crate::sys::device_code;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Argument, Device, Module};
use daq_core::kernel::{KernelError, Stream};
use daq_core::layout::{Layout, Scalar};
use daq_core::ring::{Lease, Slice, SlotsMut};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Maximum frame size in bytes that device code supports, because it uses 32-bit offsets.
const MAX_BYTES: usize = 1 << 31;
/// Maximum number of channels that a grid of blocks supports.
const MAX_CHANNELS: u32 = 1 << 20;

/// Device code of a kernel, as PTX for compute capability 7.0.
pub(super) struct Code {
    name: &'static str,
    ptx: &'static [u8],
}

macro_rules! code {
    ($name:literal) => {
        Code {
            name: $name,
            ptx: include_bytes!(concat!("../../generated/", $name, ".ptx")),
        }
    };
}

pub(super) const CONVERT: Code = code!("convert");
pub(super) const POWER_SPECTRUM: Code = code!("power_spectrum");
pub(super) const STATS: Code = code!("stats");

impl Code {
    /// Loads the code on a device.
    pub(super) fn load(&self, ordinal: u32) -> Result<(&'static Device, Arc<Module>), KernelError> {
        let device = Device::open(ordinal)?;
        let module = device_code::built_in(device, self.name, self.ptx)?;
        Ok((device, module))
    }
}

/// Returns whether frames of `input` are small enough for the 32-bit offsets of device code.
pub(super) fn can_count(input: &Layout) -> bool {
    input.frame_bytes() < MAX_BYTES && input.channels <= MAX_CHANNELS
}

/// Returns the number that represents `scalar` in device code.
pub(super) const fn code_of(scalar: Scalar) -> Argument {
    Argument::U32(match scalar {
        Scalar::Int8 => 0,
        Scalar::Uint8 => 1,
        Scalar::Int16 => 2,
        Scalar::Int32 => 3,
        Scalar::Float32 => 4,
        Scalar::Float64 => 5,
    })
}

/// Converts a count, which must fit into 32 bits, to `u32`.
pub(super) fn small(count: impl TryInto<u32>) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

/// Returns the arguments that describe a ring's slots, starting at the first slot of `slice`.
pub(super) fn ring(slice: &Slice) -> [Argument; 4] {
    [
        Argument::U64(slice.base),
        Argument::U64(slice.stride as u64),
        Argument::U32(small(slice.slots)),
        Argument::U32(small(slice.first)),
    ]
}

/// Returns the CUDA stream to which the work must be submitted.
pub(super) fn stream(on: Stream<'_>) -> Result<&driver::Stream, KernelError> {
    match on {
        Stream::Cuda(stream) => Ok(stream),
        _ => Err(not_device("stream")),
    }
}

/// Returns the slots of a burst.
pub(super) fn slots(burst: &Lease<'_>) -> Result<Slice, KernelError> {
    if burst.frame(0).bytes().is_some() {
        return Err(not_device("input ring"));
    }
    burst.slice().ok_or_else(|| not_device("input ring"))
}

/// Finishes the current slot of `out` with the metadata `meta`. The device writes the slot's content, `bytes` bytes,
/// later.
pub(super) fn promise(
    out: &mut SlotsMut<'_>,
    bytes: usize,
    meta: FrameMeta,
) -> Result<(), KernelError> {
    if out.bytes_mut().is_some() {
        return Err(not_device("output ring"));
    }
    super::check_slot(out.remaining(), out.slice().stride, bytes)?;
    out.finish(FrameMeta {
        length: bytes,
        packets_per_frame: 0,
        arrived: 0,
        ..meta
    });
    Ok(())
}

fn not_device(which: &str) -> KernelError {
    KernelError::Defect(format!(
        "the {which} is not in the memory of the GPU that runs the kernel; this is a defect in daq"
    ))
}
