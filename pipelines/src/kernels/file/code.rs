//! Loads the user's code on its device, checks it against the configuration and sets its parameters.

use super::FileKernel;
use super::params::{Member, refused};
use crate::kernels::sys::device_code;
use daq_core::gpu::driver::{Device, Function, Grid, Module};
use daq_core::kernel::{FrameShare, KernelContext, KernelError, KernelSpec};
use daq_core::layout::Layout;
use daq_core::region::RegionError;

/// Name of the variable that stores the header version with which code was compiled, and the current header version.
const HEADER_VERSION: (&str, u32) = ("daq_header", 2);
/// Dynamic shared memory in bytes that every kernel may use without requesting more.
const DEFAULT_SHARED: u32 = 48 << 10;

/// User code, ready to be launched.
pub(super) struct Code {
    pub(super) device: &'static Device,
    pub(super) function: Function,
    /// The blocks of one frame.
    pub(super) grid: Grid,
    pub(super) occupancy: f64,
    pub(super) input: Shape,
    pub(super) output: Shape,
}

/// The kind of frame metadata that the code receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    pub(super) channels: u32,
    pub(super) points: usize,
    /// The part of the whole frame that frames contain.
    pub(super) share: FrameShare,
}

impl From<&Layout> for Shape {
    fn from(layout: &Layout) -> Self {
        Self {
            bytes: layout.frame_bytes(),
            channels: layout.channels,
            points: layout.points,
            share: FrameShare::default(),
        }
    }
}

impl Shape {
    /// Returns the word with the number of channels for device code and, in the high half, the share of a spread ring: its
    /// number in 14 bits, the number of shares in 14 bits, and whether channels (1) or points (2) are divided in 2 bits.
    pub(super) fn channels_word(&self) -> u64 {
        let FrameShare { index, count, .. } = self.share;
        let divided = match (self.share.first_channel, self.share.first_point) {
            (0, 0) => 0,
            (0, _) => 2,
            _ => 1,
        };
        let narrow = |number: u32| u64::from(number) & 0x3fff;
        let share = narrow(index) | narrow(count) << 14 | divided << 28;
        u64::from(self.channels) | share << 32
    }
}

impl Code {
    /// Loads `image`. The kernel in the image is called `entry`, unless the configuration sets another name.
    pub(super) fn load(
        keys: &FileKernel,
        context: &KernelContext,
        device: &'static Device,
        image: &[u8],
        entry: &str,
    ) -> Result<Self, KernelError> {
        let file = &keys.file;
        let output = keys.layout(&context.input).map_err(super::super::refused)?;
        let module = device_code::user_code(device, file, image).map_err(|error| {
            let (major, minor) = device.attributes().capability;
            match error.code {
                // CUDA error codes: invalid image, no binary for this GPU, invalid PTX.
                200 | 209 | 218 => KernelError::Refused(format!(
                    "{error}; compile {file} for this GPU: nvcc -cubin -arch=sm_{major}{minor}"
                )),
                _ => error.into(),
            }
        })?;
        let made_with = module.read_global(HEADER_VERSION.0)?;
        if made_with.as_deref() != Some(&HEADER_VERSION.1.to_le_bytes()) {
            return Err(KernelError::Refused(format!(
                "{file} was {}; put DAQ_KERNEL(on_frame, Params) at the end of its source and compile it with the header \
                 that `daq reference kernel-header` prints",
                match made_with {
                    None => "compiled without the macro DAQ_KERNEL of daq.cuh",
                    Some(_) => "compiled with daq.cuh of another daq version",
                }
            )));
        }
        set_params(keys, &module)?;
        let entry = keys.entry.as_deref().unwrap_or(entry);
        let function = module.function(entry).map_err(|error| match error.code {
            500 => KernelError::Refused(format!(
                "`entry`: {file} has no kernel `{entry}`; define it with DAQ_ENTRY({entry}, FUNCTION) in the source"
            )),
            _ => error.into(),
        })?;
        let shared = keys.shared.map_or(0, |shared| shared.0);
        let grid = Grid {
            blocks: [keys.blocks(&context.input), 1, 1],
            threads: [keys.threads, 1, 1],
            shared: u32::try_from(shared).unwrap_or(u32::MAX),
        };
        fit(keys, device, &function, &grid)?;
        Ok(Self {
            occupancy: function.occupancy(&grid)?,
            device,
            function,
            grid,
            input: Shape {
                share: context.share,
                ..(&context.input).into()
            },
            output: (&output).into(),
        })
    }
}

/// Returns the function that makes the error for memory `what` that cannot be allocated.
pub(super) fn no_memory(what: &str) -> impl Fn(RegionError) -> KernelError {
    move |error| match error {
        RegionError::Cuda(error) => KernelError::Cuda(error),
        other => KernelError::Unavailable(format!("cannot allocate {what}: {other}")),
    }
}

/// Sets the parameters from the configuration.
fn set_params(keys: &FileKernel, module: &Module) -> Result<(), KernelError> {
    if keys.params.is_empty() {
        return Ok(());
    }
    let file = &keys.file;
    const NAME: &str = "daq_params";
    let Some(mut image) = module.read_global(NAME)? else {
        return Err(KernelError::Refused(format!(
            "`params`: {file} has no parameters; put DAQ_KERNEL(on_frame, Params) at the end of its source"
        )));
    };
    for (key, value) in &keys.params {
        let Some(bytes) = module.read_global(&format!("daq_param_{key}"))? else {
            return Err(KernelError::Refused(format!(
                "`params.{key}`: {file} does not export `{key}` as a parameter; put DAQ_PARAM(Params, {key}) at the end of its source"
            )));
        };
        let Some(member) = Member::read(&bytes) else {
            return Err(KernelError::Refused(format!(
                "`params.{key}`: member `{key}` of `struct Params` in {file} has an unsupported type; change the member \
                 to a number, a boolean or a one-dimensional array of them"
            )));
        };
        member
            .set(&mut image, value)
            .map_err(|why| KernelError::Refused(refused(file, key, value, &member, &why)))?;
    }
    module.write_global(NAME, &image)?;
    Ok(())
}

/// Checks that the device and the code support this number of blocks and threads.
fn fit(
    keys: &FileKernel,
    device: &Device,
    function: &Function,
    grid: &Grid,
) -> Result<(), KernelError> {
    let file = &keys.file;
    let max = function.max_threads()?;
    if keys.threads > max {
        return Err(KernelError::Refused(format!(
            "`threads` = {}: {file} supports at most {max} threads per block on {}; write at most {}",
            keys.threads,
            device.name(),
            max / super::WARP * super::WARP
        )));
    }
    let max = u32::try_from(device.attributes().max_shared).unwrap_or(0);
    if grid.shared > max {
        return Err(KernelError::Refused(format!(
            "`shared` = {} bytes: the maximum per block is {max} on {}; reduce `shared`",
            grid.shared,
            device.name()
        )));
    }
    if grid.shared > DEFAULT_SHARED {
        function.allow_shared(grid.shared)?;
    }
    Ok(())
}
