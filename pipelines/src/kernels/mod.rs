//! The built-in kernels.
//!
//! | kernel | from | to | on a GPU |
//! |---|---|---|---|
//! | [`convert`] | samples of any type | float32 samples | always |
//! | [`power_spectrum`] | samples | averaged power a frequency | transforms of 2 to 2^20 points without a prime factor above 7 |
//! | [`stats`] | numbers of any kind | minimum, maximum, mean, RMS, clip count and histogram | always |
//! | [`file`](mod@file) | frames | what code of the user's own makes of them | only |
//!
//! What holds for all of them:
//! - Missing places of a frame were filled before the frame was published, and count as what they were filled
//!   with, unless a kernel's own keys say otherwise. `fill = "nan"` on a ring of floats makes them visible in
//!   every output that they touch.
//! - A frame shorter than its layout says is counted as `failed` and not read.
//! - An output carries the flags of all frames that went into it, the epoch and the timestamp of the first.
//! - A module holds the keys, the layout of the output and the registry entry; the sides that compute, `cpu` and
//!   `cuda`, are modules below it. What goes into which output, and what an output's record says, is decided by code
//!   that both sides share.
//! - On a GPU a burst takes as few launches as there are stretches of frames without one that is left out; nothing
//!   waits for them. The device code is `KERNEL.cu`, carried as PTX, which the driver of any GPU since compute
//!   capability 7.0 (2017) compiles; frames of 2 GiB and more stay on the CPU.

mod account;
mod blend;
pub mod convert;
mod device;
pub mod file;
pub mod power_spectrum;
mod samples;
pub mod stats;
#[cfg(test)]
mod trial;

use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::KernelEntry;
use daq_core::frame::FrameMeta;
use daq_core::kernel::{KernelError, KernelSpec};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, SlotsMut};
use serde::de::DeserializeOwned;

pub use convert::Convert;
pub use file::FileKernel;
pub use power_spectrum::PowerSpectrum;
pub use stats::Stats;

/// Every built-in kernel, and the one that runs files of the user's own.
///
/// ```
/// let names: Vec<_> = daq_pipelines::kernels::KERNELS.iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["convert", "power-spectrum", "stats", "file"]);
/// ```
pub const KERNELS: &[KernelEntry] = &[
    convert::ENTRY,
    power_spectrum::ENTRY,
    stats::ENTRY,
    file::ENTRY,
];

/// Keys that can be wrong beyond their types.
trait Keys: DeserializeOwned + KernelSpec + 'static {
    /// What is wrong with them whatever the input is.
    fn check(&self) -> Result<(), Problem>;

    /// Reads them from what is left of a section.
    fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn KernelSpec>> {
        let problems = |keys: &Self| keys.check().err().into_iter().collect();
        let keys: Self = section.finish_checked(&[], diagnostics, problems)?;
        Some(Box::new(keys))
    }
}

/// The bytes of a frame of `whole` bytes; `None` where the frame is shorter.
fn whole<'a>(frame: &Frame<'a>, whole: usize) -> Result<Option<&'a [u8]>, KernelError> {
    let bytes = frame.bytes().ok_or_else(|| not_host("input"))?;
    Ok(bytes.get(..whole))
}

/// Fills the current slot of `out` with a frame of `bytes` bytes and describes it by `meta`.
fn emit(
    out: &mut SlotsMut<'_>,
    bytes: usize,
    meta: FrameMeta,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), KernelError> {
    let remaining = out.remaining();
    let slot = match out.bytes_mut() {
        None if remaining > 0 => return Err(not_host("output")),
        slot => slot.unwrap_or_default(),
    };
    check_slot(remaining, slot.len(), bytes)?;
    let slot = &mut slot[..bytes];
    fill(slot);
    out.finish(FrameMeta {
        length: bytes,
        places: 0,
        arrived: 0,
        ..meta
    });
    Ok(())
}

/// Refuses an output of `bytes` where `remaining` slots of `have` bytes are left.
fn check_slot(remaining: usize, have: usize, bytes: usize) -> Result<(), KernelError> {
    if remaining == 0 {
        return Err(KernelError::Defect(
            "more outputs are due than slots were given; this is a defect in daq".to_owned(),
        ));
    }
    if bytes > have {
        return Err(KernelError::Defect(format!(
            "an output frame has {bytes} bytes, a slot of the output ring {have}; raise its `slot`"
        )));
    }
    Ok(())
}

fn not_host(which: &str) -> KernelError {
    KernelError::Defect(format!(
        "the {which} ring is not in host memory, where the CPU side of a kernel works"
    ))
}

/// Refuses layouts without numbers.
fn not_empty(input: &Layout) -> Result<(), Problem> {
    if input.points == 0 || input.channels == 0 {
        return Err(
            Problem::at("input", "its frames are smaller than one point")
                .help("raise the `slot` of the input ring"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
