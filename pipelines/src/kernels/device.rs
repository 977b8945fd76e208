//! Functions that all CUDA implementations use: they load device code and address the slots of a burst.

use super::defect;
use super::sys::device_code;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Device, Module};
use daq_core::kernel::{KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};
use flate2::read::GzDecoder;
use std::io::Read as _;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Maximum frame size in bytes that device code supports, because it uses 32-bit offsets.
pub(super) const MAX_BYTES: usize = 1 << 31;
/// Maximum number of channels that a grid of blocks supports.
const MAX_CHANNELS: u32 = 1 << 20;

/// Device code of a kernel: compressed PTX, for compute capability 7.0 unless another one is given.
#[derive(Debug)]
pub struct Code {
    name: &'static str,
    /// In the format of gzip.
    compressed: &'static [u8],
}

macro_rules! code {
    ($name:literal) => {
        Code {
            name: $name,
            compressed: include_bytes!(concat!("../../generated/", $name, ".ptx.gz")),
        }
    };
}

/// The device code that verifies DMA writes.
pub(crate) const VERIFICATION: Code = code!("verification");
/// The persistent kernels that measurements and self-tests run.
pub const ECHO: Code = code!("echo");
/// The device code of `convert`.
pub const CONVERT: Code = code!("convert");
pub(super) const POWER_SPECTRUM: Code = code!("power_spectrum");
/// Device code of `power-spectrum` for one size each.
pub(super) static POWERS_OF_TWO: [(usize, Code); 7] = [
    (128, code!("power_of_two_128")),
    (256, code!("power_of_two_256")),
    (512, code!("power_of_two_512")),
    (1024, code!("power_of_two_1024")),
    (2048, code!("power_of_two_2048")),
    (4096, code!("power_of_two_4096")),
    (8192, code!("power_of_two_8192")),
];
/// Device code of `channelize` for one number of channels each.
pub(super) static CHANNELIZE: [(usize, Code); 8] = [
    (64, code!("channelize_64")),
    (128, code!("channelize_128")),
    (256, code!("channelize_256")),
    (512, code!("channelize_512")),
    (1024, code!("channelize_1024")),
    (2048, code!("channelize_2048")),
    (4096, code!("channelize_4096")),
    (8192, code!("channelize_8192")),
];
pub(super) const CORRELATE: Code = code!("correlate");
/// Device code for compute capability 8.0.
pub(super) const CORRELATE_TENSOR: Code = code!("correlate_tensor");
pub(super) const BEAMFORM: Code = code!("beamform");
/// Device code for compute capability 8.0.
pub(super) const BEAMFORM_TENSOR: Code = code!("beamform_tensor");
pub(super) const REORDER: Code = code!("reorder");
pub(super) const SELECT: Code = code!("select");
pub(super) const STATS: Code = code!("stats");

/// Returns the device code for transforms of `size` points; `None` if this size has no device code of its own.
pub(super) fn power_of_two(size: usize) -> Option<&'static Code> {
    of_size(&POWERS_OF_TWO, size)
}

/// Returns the device code for this number of channels; `None` if no code supports it.
pub(super) fn channelize(channels: usize) -> Option<&'static Code> {
    of_size(&CHANNELIZE, channels)
}

fn of_size(codes: &'static [(usize, Code)], size: usize) -> Option<&'static Code> {
    let mut codes = codes.iter();
    codes
        .find(|(known, _)| *known == size)
        .map(|(_, code)| code)
}

impl Code {
    /// Returns the name, for messages.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the PTX.
    pub fn ptx(&self) -> String {
        let mut ptx = String::new();
        // The data is a part of the program, and a test decompresses it. In a damaged program, the driver reports invalid PTX.
        let _ = GzDecoder::new(self.compressed).read_to_string(&mut ptx);
        ptx
    }

    /// Returns the PTX in which names are replaced by their `known` values, so that the driver's compiler removes the code for
    /// other values.
    pub(crate) fn with_values(&self, known: &[(&'static str, u32)]) -> String {
        known.iter().fold(self.ptx(), |ptx, (name, value)| {
            ptx.replace(name, &value.to_string())
        })
    }

    /// Loads the code on a device.
    pub(super) fn load(&self, ordinal: u32) -> Result<(&'static Device, Arc<Module>), KernelError> {
        self.load_with(ordinal, &[])
    }

    /// Loads the code on a device, with values that are known for all launches.
    pub(super) fn load_with(
        &self,
        ordinal: u32,
        known: &[(&'static str, u32)],
    ) -> Result<(&'static Device, Arc<Module>), KernelError> {
        let device = Device::open(ordinal)?;
        let module = device_code::built_in(device, self, known)?;
        Ok((device, module))
    }
}

/// Returns whether frames of `input` are small enough for the 32-bit offsets of device code.
pub(super) fn can_count(input: &Layout) -> bool {
    input.frame_bytes() < MAX_BYTES && input.channels <= MAX_CHANNELS
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
    check_out(out, bytes)?;
    super::finish(out, bytes, meta);
    Ok(())
}

/// Checks that a device can write an output of `bytes` bytes to the current slot of `out`.
fn check_out(out: &mut SlotsMut<'_>, bytes: usize) -> Result<(), KernelError> {
    if out.bytes_mut().is_some() {
        return Err(not_device("output ring"));
    }
    super::check_slot(out.remaining(), out.slice().stride, bytes)
}

/// Maximum number of frames of a run: of blocks in the second dimension of a grid.
const MAX_RUN: usize = 65_535;

/// Runs a kernel that makes one output from each frame. Calls `launch` for each run of at most [`MAX_RUN`] consecutive
/// frames, with the index of the first frame, the number of frames, and the slots of their outputs.
pub(super) fn map_frames(
    burst: &Lease<'_>,
    out: &mut SlotsMut<'_>,
    max_frames: usize,
    bytes: [usize; 2],
    launch: impl FnMut(usize, usize, &Slice) -> Result<(), KernelError>,
) -> Result<Submitted, KernelError> {
    map_chosen(burst, out, max_frames, bytes, |meta| Some(*meta), launch)
}

/// Runs a kernel that makes one output from each frame for which `choose` returns the metadata of the output, like
/// [`map_frames`]. Other frames count as filtered.
///
/// A burst has at most `max_frames` frames. Frames of less than `input_bytes` bytes fail, because their slots contain
/// stale bytes after the end of the frame. Outputs have `output_bytes` bytes.
pub(super) fn map_chosen(
    burst: &Lease<'_>,
    out: &mut SlotsMut<'_>,
    max_frames: usize,
    bytes: [usize; 2],
    choose: impl Fn(&FrameMeta) -> Option<FrameMeta>,
    launch: impl FnMut(usize, usize, &Slice) -> Result<(), KernelError>,
) -> Result<Submitted, KernelError> {
    let finish = |out: &mut SlotsMut<'_>, _: &Frame<'_>, meta| super::finish(out, bytes[1], meta);
    map_and_finish(burst, out, max_frames, bytes, choose, finish, launch)
}

/// Runs a kernel like [`map_chosen`]. `finish` writes the metadata of the output for a frame and the chosen metadata.
pub(super) fn map_and_finish(
    burst: &Lease<'_>,
    out: &mut SlotsMut<'_>,
    max_frames: usize,
    [input_bytes, output_bytes]: [usize; 2],
    choose: impl Fn(&FrameMeta) -> Option<FrameMeta>,
    finish: impl Fn(&mut SlotsMut<'_>, &Frame<'_>, FrameMeta),
    mut launch: impl FnMut(usize, usize, &Slice) -> Result<(), KernelError>,
) -> Result<Submitted, KernelError> {
    let frames = burst.len();
    if frames > max_frames.min(out.remaining()) {
        return Err(defect(
            "a burst has more frames than the announced maximum or than free output slots",
        ));
    }
    check_out(out, output_bytes)?;
    let chosen = |i: usize| choose(burst.frame(i).meta());
    let (mut next, mut failed, mut filtered) = (0, 0, 0);
    while next < frames {
        let first = next;
        let end = frames.min(first + MAX_RUN);
        while next < end && burst.length(next) >= input_bytes && chosen(next).is_some() {
            next += 1;
        }
        if next > first {
            launch(first, next - first, &out.slice())?;
        }
        for i in first..next {
            // These frames were chosen above.
            let meta = chosen(i).unwrap_or_default();
            finish(out, &burst.frame(i), meta);
        }
        if next < end {
            if chosen(next).is_some() {
                failed += 1;
            } else {
                filtered += 1;
            }
            next += 1;
        }
    }
    Ok(Submitted {
        failed,
        filtered,
        ..Submitted::done(frames as u64 - failed - filtered)
    })
}

fn not_device(which: &str) -> KernelError {
    defect(format!(
        "the {which} is not in the memory of the GPU that runs the kernel"
    ))
}
