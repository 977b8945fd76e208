//! Kernels, which are compute steps from one ring to another.

use crate::check::{CheckContext, CheckReport, NamedFile};
use crate::config::Problem;
use crate::gpu::Dispatch;
use crate::gpu::bar_mapping::BarMappingError;
use crate::gpu::driver;
use crate::gpu::{Backend, Writer};
use crate::layout::{Layout, Spread};
use crate::leak::leak;

use crate::region::{Region, RegionError};
use crate::ring::{Completion, Lease, Slice, SlotsMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a kernel's work is executed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Stream<'a> {
    /// The calling thread does the work before `run` returns.
    Host,
    /// The work is queued on this CUDA stream. The runtime records an event before and after `run`; kernels do not wait
    /// for the stream.
    Cuda(&'a driver::Stream),
}

/// The implementation of a kernel that is built: for the CPU or for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The CPU implementation.
    Cpu,
    /// The GPU implementation, for the CUDA device with this ordinal.
    Cuda(u32),
}

/// Result of one call of [`Kernel::run`].
///
/// The burst has `consumed + accumulating + failed + filtered` frames. Frames in `accumulating` count as consumed or failed in a
/// later call, through `released` and `dropped`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Submitted {
    /// Number of frames of this burst whose content goes into the slots finished by this call.
    pub consumed: u64,
    /// Number of frames of this burst that are kept for a later output.
    pub accumulating: u64,
    /// Number of frames of this burst that could not be processed.
    pub failed: u64,
    /// Number of frames of this burst that the kernel's configuration excludes.
    pub filtered: u64,
    /// Number of frames kept by earlier calls that this call's output contains.
    pub released: u64,
    /// Number of frames kept by earlier calls that no output will contain. They count as failed now.
    pub dropped: u64,
    /// The completion of the call's work: the output is then written and the input is no longer read. For work on a
    /// CUDA stream, `Immediate` means that the runtime waits for the end of the work on the stream.
    pub completion: Completion,
}

impl Submitted {
    /// Creates the result for `consumed` frames that are processed completely.
    pub const fn done(consumed: u64) -> Self {
        Self {
            consumed,
            accumulating: 0,
            failed: 0,
            filtered: 0,
            released: 0,
            dropped: 0,
            completion: Completion::Immediate,
        }
    }
}

/// The error of a kernel that stopped the pipeline or could not be built. A frame that cannot be processed does not
/// cause this error; it is counted as `failed`.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel has a defect.
    #[error("{0}")]
    Defect(String),
    /// The user's input is wrong: kernel source code does not compile, or a parameter does not exist.
    #[error("{0}")]
    Refused(String),
    /// A library or a capability of the machine is missing.
    #[error("{0}")]
    Unavailable(String),
    /// The GPU failed.
    #[error(transparent)]
    Cuda(#[from] driver::CudaError),
    /// A persistent kernel hangs: it cannot be stopped, and its resources cannot be freed.
    #[error("{0}")]
    Hung(String),
}

/// Parameters for building a kernel.
#[derive(Clone, Debug)]
pub struct KernelContext {
    /// The kernel's name.
    pub name: String,
    /// The base directory of relative paths.
    pub directory: PathBuf,
    /// The layout of the input frames, which [`KernelSpec::layout`] has accepted.
    pub input: Layout,
    /// The implementation to build.
    pub side: Side,
    /// Maximum number of frames per call of [`Kernel::run`].
    pub burst: usize,
    /// Maximum number of packet slots per input frame; 0 if frames have no packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep, see [`FrameMeta::kept`](crate::frame::FrameMeta::kept).
    pub kept: Vec<String>,
    /// The memory of the input ring's slots, for a persistent kernel; empty for others.
    pub slots: Slice,
    /// The memory of the output ring's slots, for a persistent kernel; empty for others.
    pub output: Slice,
    /// How bursts are submitted to the kernel on a GPU.
    pub dispatch: Dispatch,
    /// The allowed backends for GPU memory that the CPU can write.
    pub backends: Vec<Backend>,
    /// Whether the device that writes the input rings the doorbell ([`Kernel::device_doorbell`]).
    pub device_rings_doorbell: bool,
    /// The part of each frame that the input contains.
    pub share: FrameShare,
}

/// The share of a frame, or of the frames, that one GPU of a spread ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameShare {
    /// Number of the share, below `count`.
    pub index: u32,
    /// Number of shares; 1 if the ring is not spread.
    pub count: u32,
    /// The first channel of the share in the whole frame.
    pub first_channel: u32,
    /// The first point of the share in the whole frame.
    pub first_point: usize,
}

impl Default for FrameShare {
    /// Returns the share of a ring that is not spread.
    fn default() -> Self {
        Self {
            index: 0,
            count: 1,
            first_channel: 0,
            first_point: 0,
        }
    }
}

impl KernelContext {
    /// Creates the parameters for a kernel outside a pipeline: default name, paths relative to the current directory,
    /// bursts of 16 frames, frames without packets.
    pub fn alone(input: &Layout, side: Side) -> Self {
        Self {
            name: "kernel".to_owned(),
            directory: PathBuf::from("."),
            input: input.clone(),
            side,
            burst: 16,
            packets_per_frame: 0,
            kept: Vec::new(),
            slots: Slice::default(),
            output: Slice::default(),
            dispatch: Dispatch::Launch,
            backends: Backend::ALL.to_vec(),
            device_rings_doorbell: false,
            share: FrameShare::default(),
        }
    }
}

/// A doorbell in GPU memory, which a device writes after each frame.
///
/// ```text
///   0    number of transfers that the device has finished: 32 bits, of which the low 24 are valid
///   64   number of frames published before the device began to count: 64 bits; all ones until then
/// ```
#[derive(Clone, Debug)]
pub struct DeviceDoorbell {
    region: Arc<Region>,
    /// The first frame for which the device rings the doorbell.
    from: Arc<AtomicU64>,
}

impl DeviceDoorbell {
    /// Number of valid bits in the device's count.
    pub const BITS: u32 = 24;
    const BASE: usize = 64;
    const BYTES: usize = 4096;
    const NOT_YET: u64 = u64::MAX;
    const NEVER: u64 = u64::MAX - 1;

    /// Creates a doorbell that no device rings yet.
    pub fn new(device: &'static driver::Device, backends: &[Backend]) -> Result<Self, RegionError> {
        let region = Region::mapped(device, Self::BYTES, Writer::Fpga, backends)?;
        let bell = Self {
            region,
            from: Arc::new(AtomicU64::new(Self::NOT_YET)),
        };
        // An error means that the mapping was lost. The next access to the mapping reports it.
        let _ = bell.set_base(u64::MAX);
        Ok(bell)
    }

    /// Returns the memory, which the device writes and the kernel polls.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn set_base(&self, base: u64) -> Result<(), BarMappingError> {
        match self.region.mapping() {
            Some(mapped) => mapped.copy_to(Self::BASE, &base.to_le_bytes()),
            None => Ok(()),
        }
    }

    /// Declares that the device rings the doorbell for frame `frame` and all later frames. Call this before the device
    /// begins to count its transfers in the doorbell.
    pub fn ring_from(&self, frame: u64) -> Result<(), BarMappingError> {
        self.from.store(frame, Ordering::Release);
        self.set_base(frame)
    }

    /// Declares that the device will never ring the doorbell. The host rings its own doorbell instead.
    pub fn disable_device(&self) {
        self.from.store(Self::NEVER, Ordering::Release);
    }

    /// Whether the device rang the doorbell for frame `frame`, or may have rung it.
    pub fn rings_for(&self, frame: u64) -> bool {
        let from = self.from.load(Ordering::Acquire);
        from < Self::NEVER && from <= frame
    }

    /// Whether the device may still ring the doorbell.
    pub fn may_ring(&self) -> bool {
        self.from.load(Ordering::Acquire) != Self::NEVER
    }
}

/// A compute step.
///
/// Each kernel runs on its own thread; `run` must not allocate memory.
pub trait Kernel: Send {
    /// Returns the maximum number of output frames that the next `frames` input frames can produce. The runtime calls
    /// `run` only with at least this number of free output slots. By default, a kernel produces one frame per input frame.
    fn outputs(&self, frames: usize) -> usize {
        frames
    }

    /// Returns the fraction of the GPU's threads that the kernel's blocks can occupy, 0 to 1; `None` on the CPU.
    fn occupancy(&self) -> Option<f64> {
        None
    }

    /// Returns the doorbell that a device rings after each frame; `None` if no device rings a doorbell.
    fn device_doorbell(&self) -> Option<DeviceDoorbell> {
        None
    }

    /// Launches the code of a GPU kernel without work on the stream `on`, so that the driver allocates the local memory, the
    /// buffer of `printf` and the heap that the code needs. Beside a persistent kernel, the driver would wait for its end.
    /// Called once, before a persistent kernel starts on the GPU. A persistent kernel uses a stream of its own, and has ended when
    /// this returns.
    ///
    /// The default does nothing. The built-in kernels need nothing else, because their code has no local memory, `printf` or
    /// `malloc`, and is loaded when they are built.
    fn launch_empty(&mut self, _on: Stream<'_>) -> Result<(), KernelError> {
        Ok(())
    }

    /// Starts the kernel. Called once before the first [`run`](Self::run), after all memory is allocated and all code
    /// is loaded. A persistent kernel may run on its GPU from then on.
    fn start(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Checks that the device can still finish its work; called periodically while work is in flight.
    ///
    /// After an error, all completions in flight are marked as done and report the failure.
    fn poll(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Returns the state of a persistent kernel for an error message about a hang; `None` for launched kernels.
    fn hang_report(&self) -> Option<String> {
        None
    }

    /// Returns the completion of all work that [`run`](Self::run) submitted to a persistent kernel, including work of a
    /// call that failed; `None` for launched kernels.
    fn in_flight(&self) -> Option<Completion> {
        None
    }

    /// Ends the kernel without waiting for the device; [leaks](crate::leak) all memory that the device may still use.
    fn leak(self: Box<Self>) {
        leak(self);
    }

    /// Processes all frames of `burst`, and finishes a slot of `out` for each output frame.
    ///
    /// `on` is a stream of the device that the kernel was built for.
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError>;
}

/// What a kernel states about itself. A kernel sets the fields that differ from the default:
/// `KernelFacts { persistent: Ok(()), ..KernelFacts::default() }`.
#[derive(Clone, Debug)]
pub struct KernelFacts {
    /// The files that the kernel reads.
    pub files: Vec<NamedFile>,
    /// Whether each GPU can process a part of the frames of a stream: the results do not depend on other frames, and each
    /// GPU produces frames regularly. The error is the reason why not, as a clause.
    pub spread_frames: Result<(), String>,
    /// Whether the kernel can be persistent ([`Dispatch::Persistent`]). The error is the reason why not, as a clause.
    pub persistent: Result<(), String>,
}

impl Default for KernelFacts {
    /// Returns the facts about a kernel that reads no files, processes each frame alone and is launched for each burst.
    fn default() -> Self {
        Self {
            files: Vec::new(),
            spread_frames: Ok(()),
            persistent: Err("built-in kernels support only dispatch = \"launch\"".to_owned()),
        }
    }
}

/// What a kernel states about input frames of one layout.
#[derive(Clone, Copy, Debug)]
pub struct InputFacts {
    /// Whether the kernel has an implementation for the CPU.
    pub runs_on_cpu: bool,
    /// Whether the kernel has an implementation for GPUs that can process such frames. The plan uses this to place the kernel.
    pub runs_on_gpu: bool,
    /// The maximum number of output frames that one input frame can produce, for the minimum number of slots of the output
    /// ring. [`Kernel::outputs`] never returns more for one frame.
    pub max_outputs: usize,
    /// Whether the output consists of the same packets in the same order, so that it shows which of them are missing.
    pub keeps_packets: bool,
    /// The number of bytes that the kernel allocates on the CPU in addition to its rings, for the plan's memory total.
    pub memory: usize,
    /// The number of bytes of GPU memory that the kernel allocates on a GPU in addition to its rings.
    pub device_memory: usize,
}

impl Default for InputFacts {
    /// Returns the facts about a kernel that runs on the CPU and produces one frame per input frame.
    fn default() -> Self {
        Self {
            runs_on_cpu: true,
            runs_on_gpu: false,
            max_outputs: 1,
            keeps_packets: false,
            memory: 0,
            device_memory: 0,
        }
    }
}

impl InputFacts {
    /// Whether the kernel has an implementation for `side` that can process the frames.
    pub const fn runs_on(&self, side: Side) -> bool {
        match side {
            Side::Cpu => self.runs_on_cpu,
            Side::Cuda(_) => self.runs_on_gpu,
        }
    }
}

/// The checked configuration of a kernel.
pub trait KernelSpec: Send + Sync {
    /// Returns every problem of the keys that the types of their values do not exclude.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns what follows from the keys alone. Equal keys have equal facts on each machine.
    fn facts(&self) -> KernelFacts {
        KernelFacts::default()
    }

    /// Returns the layout of the output for `input`, or why the kernel does not accept `input`.
    fn layout(&self, input: &Layout) -> Result<Layout, Problem>;

    /// Returns what follows from the keys for frames of `input`. If `layout` rejects `input`, the kernel need not run on a GPU.
    fn input_facts(&self, _input: &Layout) -> InputFacts {
        InputFacts::default()
    }

    /// Checks that the output for a share of each frame is the same share of the output for the whole frame, as far as the
    /// shapes of frames do not show it. Frames of `whole` are divided by `by` into equal shares with the layout `share`. The
    /// error is the reason why not, as a clause.
    fn supports_share(&self, _whole: &Layout, _share: &Layout, _by: Spread) -> Result<(), String> {
        Ok(())
    }

    /// Checks the kernel's code as far as this is possible without a GPU. Problems of [`KernelFacts::files`] are not
    /// repeated.
    fn check_files(&self, _examination: &CheckContext<'_>) -> CheckReport {
        CheckReport::default()
    }

    /// Builds the kernel. Called only if `layout` accepts the input and the kernel runs on the side.
    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError>;
}
