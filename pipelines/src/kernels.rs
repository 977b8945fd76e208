//! The built-in kernels.
//!
//! | kernel | from | to | on a GPU |
//! |---|---|---|---|
//! | [`beamform`] | samples of antennas | beams, or their power | always |
//! | [`channelize`] | samples over time | complex samples of frequency channels | powers of two from 64 to 8192 channels |
//! | [`convert`] | samples of any type | float32 samples | always |
//! | [`correlate`] | samples of antennas | visibilities | always |
//! | [`power_spectrum`] | samples | averaged power per frequency | transforms of 2 to 2^20 points without a prime
//! factor above 7 |
//! | [`select`] | frames of any type | a part of each frame, of some frames | always |
//! | [`stats`] | numbers of any kind | minimum, maximum, mean, RMS, clip count and histogram | always |
//! | [`file`](mod@file) | frames | output of your own code | only |
//!
//! Rules for all built-in kernels:
//! - Missing packets of a frame are filled before the frame is published, and count with their fill value unless a
//!   kernel's own keys say otherwise. With `fill = "nan"` on a ring of floats they are visible in every output that
//!   depends on them.
//! - A frame that is shorter than its layout is not read and counts as `failed`.
//! - `channelize`, and `power-spectrum` with `continuous`, join the samples of successive frames. They refuse the output of a
//!   `select` that leaves out frames or samples, because its frames do not continue each other.
//! - An output has the flags of all its input frames, and the epoch and the timestamp of the first one.
//! - Each module contains the keys, the output layout and the registry entry; its submodules `cpu` and `cuda` compute
//!   the outputs. Both use the module `grouping` to decide which input belongs to which output, and to set the
//!   metadata.
//! - On a GPU, each run of consecutive frames in a burst needs one set of launches. No thread waits for the launches.
//!   The module `launcher` divides runs into launches, and [`parameters`] defines the structures that host and device
//!   code share. The device code is `KERNEL.cu`, compiled to PTX, which the driver of any GPU since compute capability
//!   7.0 (2017) can compile. Code for tensor cores is in files of its own, for compute capability 8.0. Frames of 2 GiB and
//!   more are processed on the CPU.

mod account;
mod antennas;
pub mod beamform;
mod blend;
pub mod channelize;
pub mod convert;
pub mod correlate;
mod device;
pub mod file;
mod grouping;
mod half;
mod joiner;
mod launcher;
mod npy;
pub mod parameters;
pub mod power_spectrum;
mod quantise;
mod reorder;
pub(crate) mod samples;
pub mod select;
pub mod stats;
pub(crate) mod sys;
mod transform;
#[cfg(test)]
#[path = "../tests/gpu_kernels/trial.rs"]
#[expect(dead_code, unreachable_pub, reason = "the tests on GPUs use the rest")]
mod trial;

use daq_core::check::{CheckContext, CheckReport, NamedFile};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::frame::{FrameMeta, PacketSizes};
use daq_core::kernel::KernelError;
use daq_core::layout::Layout;
use daq_core::ring::{Frame, SlotsMut};
use std::fmt::Display;

pub use antennas::Axes;
pub use beamform::Beamform;
pub use channelize::Channelize;
pub use convert::Convert;
pub use correlate::Correlate;
pub(crate) use device::VERIFICATION;
pub use device::{CONVERT as CONVERT_CODE, Code, ECHO as ECHO_CODE};
pub use file::FileKernel;
pub use power_spectrum::PowerSpectrum;
pub use quantise::OutputType;
pub use select::Select;
pub use stats::Stats;

/// All built-in kernels, and the kernel that runs user files.
///
/// ```
/// let names: Vec<_> = daq_pipelines::kernels::KERNELS.iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["convert", "power-spectrum", "channelize", "correlate", "beamform", "select", "stats", "file"]);
/// ```
pub const KERNELS: &[KernelEntry] = &[
    convert::ENTRY,
    power_spectrum::ENTRY,
    channelize::ENTRY,
    correlate::ENTRY,
    beamform::ENTRY,
    select::ENTRY,
    stats::ENTRY,
    file::ENTRY,
];

/// Returns the first `whole` bytes of a frame; `None` if the frame is shorter.
fn whole<'a>(frame: &Frame<'a>, whole: usize) -> Result<Option<&'a [u8]>, KernelError> {
    let bytes = frame.bytes().ok_or_else(|| not_host("input"))?;
    Ok(bytes.get(..whole))
}

/// Fills the current slot of `out` with a frame of `bytes` bytes and the metadata `meta`.
fn emit(
    out: &mut SlotsMut<'_>,
    bytes: usize,
    meta: FrameMeta,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), KernelError> {
    write_slot(out, bytes, fill)?;
    finish(out, bytes, meta);
    Ok(())
}

/// Fills the first `bytes` bytes of the current slot of `out`, which is not finished yet.
fn write_slot(
    out: &mut SlotsMut<'_>,
    bytes: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), KernelError> {
    let remaining = out.remaining();
    let slot = match out.bytes_mut() {
        None if remaining > 0 => return Err(not_host("output")),
        slot => slot.unwrap_or_default(),
    };
    check_slot(remaining, slot.len(), bytes)?;
    fill(&mut slot[..bytes]);
    Ok(())
}

/// Finishes the current slot of `out` as the conversion of `frame`, with `bytes` bytes. `sizes` returns the sizes of its
/// packets. If the ring has room for the packets, the output shows which of them are missing.
fn finish_with_packets(
    out: &mut SlotsMut<'_>,
    bytes: usize,
    frame: &Frame<'_>,
    sizes: impl Fn(PacketSizes) -> Option<PacketSizes>,
) {
    let meta = *frame.meta();
    let has_room = meta.packets_per_frame <= out.packets_per_frame();
    match sizes(meta.packet_sizes).filter(|_| has_room) {
        Some(packet_sizes) => {
            let meta = FrameMeta {
                length: bytes,
                packet_sizes,
                ..meta
            };
            out.finish_with(meta, frame.present().words());
        }
        None => finish(out, bytes, meta),
    }
}

/// Finishes the current slot of `out` as a frame of `bytes` bytes with the metadata `meta`.
fn finish(out: &mut SlotsMut<'_>, bytes: usize, meta: FrameMeta) {
    out.finish(FrameMeta {
        length: bytes,
        packets_per_frame: 0,
        arrived: 0,
        ..meta
    });
}

/// Returns an error if no output slot is left (`remaining` is 0), or if the slot size `have` is smaller than `bytes`.
fn check_slot(remaining: usize, have: usize, bytes: usize) -> Result<(), KernelError> {
    if remaining == 0 {
        return Err(defect("a kernel has more outputs than reserved slots"));
    }
    if bytes > have {
        return Err(KernelError::Defect(format!(
            "an output frame of {bytes} bytes does not fit into a slot of {have} bytes; raise `slot` of the output ring"
        )));
    }
    Ok(())
}

/// Returns the error for a state that only a defect in daq can cause.
fn defect(what: impl Display) -> KernelError {
    KernelError::Defect(format!("{what}; this is a defect in daq"))
}

fn not_host(which: &str) -> KernelError {
    KernelError::Defect(format!(
        "the kernel runs on the CPU, but its {which} ring is not in host memory"
    ))
}

/// Returns a problem of `key` unless `is_met`.
fn require(
    is_met: bool,
    key: &str,
    message: impl Into<String>,
    help: impl Into<String>,
) -> Result<(), Problem> {
    if is_met {
        Ok(())
    } else {
        Err(Problem::at(key, message).help(help))
    }
}

/// Returns the error of a kernel that cannot be built because of a configuration problem.
#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn refused(problem: Problem) -> KernelError {
    KernelError::Refused(problem.to_string())
}

/// Checks the files of a kernel with `read`, which reads them as at startup. Another check reports files that cannot be read.
fn check_contents(
    files: &[NamedFile],
    context: &CheckContext<'_>,
    read: impl FnOnce(&Layout) -> Result<(), KernelError>,
) -> CheckReport {
    let mut report = CheckReport::default();
    let is_readable =
        |file: &NamedFile| file.check_name().is_ok() && file.check_file(context.directory).is_ok();
    if let Some(input) = context.input
        && !files.is_empty()
        && files.iter().all(is_readable)
        && let Err(error) = read(input)
    {
        report.problems.push(problem_of(&error.to_string(), files));
    }
    report
}

/// Returns the problem that a kernel reports at startup as `text`: a key of `files`, the message and the fix.
fn problem_of(text: &str, files: &[NamedFile]) -> Problem {
    let rest = |file: &NamedFile| text.strip_prefix(&format!("`{}`: ", file.key));
    let found = files.iter().find_map(|file| Some((&file.key, rest(file)?)));
    let (message, help) = match found.map_or(text, |(_, rest)| rest).rsplit_once("; ") {
        Some((message, help)) => (message, Some(help.to_owned())),
        None => (found.map_or(text, |(_, rest)| rest), None),
    };
    Problem {
        key: found.map(|(key, _)| key.clone()),
        message: message.to_owned(),
        help,
    }
}

/// Rejects sample types that the built-in kernel `name` does not support.
fn common_type(input: &Layout, name: &str) -> Result<(), Problem> {
    if samples::is_common(input.scalar) {
        Ok(())
    } else {
        Err(input.scalar.unsupported(&format!("kernel `{name}`")))
    }
}

/// Returns the error of a kernel that is built for a sample type that [`common_type`] rejects.
fn unsupported(input: &Layout, name: &str) -> KernelError {
    refused(input.scalar.unsupported(&format!("kernel `{name}`")))
}

/// Rejects frames that do not continue each other, for `what`, which needs samples of several successive frames.
fn contiguous(input: &Layout, what: &str) -> Result<(), Problem> {
    require(
        input.is_contiguous,
        "input",
        format!(
            "{what} needs successive samples, but the frames of the input do not continue each other, because a kernel \
             `select` leaves out frames (`every`) or samples (`points`, `parts`)"
        ),
        "place the kernel `select` behind this kernel, or let it keep the same range of every frame without a gap: all frames, \
         and points of which `count` × `step` is the number of points of a frame",
    )
}

/// How to fix frames that are too short, also if another kernel fills the input ring.
const LONGER_FRAMES: &str = "make the frames of the source longer (`slot` of the ring that the source fills), or use fewer channels in an earlier \
     kernel";

/// Rejects layouts without points.
fn not_empty(input: &Layout) -> Result<(), Problem> {
    require(
        input.points > 0 && input.channels > 0,
        "input",
        "the input's frames are smaller than one point",
        LONGER_FRAMES,
    )
}

#[cfg(test)]
mod tests;
