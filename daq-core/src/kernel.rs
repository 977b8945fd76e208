//! Kernels: a compute step from one ring to another.

use crate::examine::{Examination, Examined, NamedFile};
use crate::gpu::Dispatch;
use crate::gpu::bar_mapping::BarMappingError;
use crate::gpu::driver;
use crate::gpu::{Backend, Writer};
use crate::layout::Layout;
use crate::region::{Region, RegionError};
use crate::ring::{Completion, Lease, Slice, SlotsMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a kernel's work is put.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Stream<'a> {
    /// Done by the calling thread before `run` returns.
    Host,
    /// Put on this stream. The engine marks the stream before and after `run`; kernels do not wait for it.
    Cuda(&'a driver::Stream),
}

/// Which side of a kernel is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The CPU's.
    Cpu,
    /// The one for the CUDA device with this ordinal.
    Cuda(u32),
}

/// What one call of [`Kernel::run`] has taken on.
///
/// The frames of the burst are `consumed + accumulating + failed`; `accumulating` ones count as consumed or as failed in
/// a later call, through `released` and `dropped`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Submitted {
    /// Frames of this burst whose content goes into the slots finished by this call.
    pub consumed: u64,
    /// Frames of this burst that are kept for an output to come.
    pub accumulating: u64,
    /// Frames of this burst that could not be processed.
    pub failed: u64,
    /// Frames kept by earlier calls that this call's output contains.
    pub released: u64,
    /// Frames kept by earlier calls that no output will contain: they count as failed now.
    pub dropped: u64,
    /// When the output is written and the input no longer read, where `run` knows better than the engine: of what was
    /// put on a CUDA stream, `Immediate` stands for the end of the work there.
    pub completion: Completion,
}

impl Submitted {
    /// `consumed` frames done at once.
    pub const fn done(consumed: u64) -> Self {
        Self {
            consumed,
            accumulating: 0,
            failed: 0,
            released: 0,
            dropped: 0,
            completion: Completion::Immediate,
        }
    }
}

/// Why a kernel stopped the pipeline, or could not be built. A frame that cannot be processed is not such an
/// error: it is counted as `failed`.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A defect.
    #[error("{0}")]
    Defect(String),
    /// What the user wrote is wrong: a source that does not compile, a parameter that is not there.
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

/// What a kernel needs to be built.
#[derive(Clone, Debug)]
pub struct KernelContext {
    /// Its name.
    pub name: String,
    /// The directory that relative paths start from.
    pub directory: PathBuf,
    /// What the frames of its input mean; accepted by [`KernelSpec::layout`].
    pub input: Layout,
    /// Which side is to be built.
    pub side: Side,
    /// Maximum number of frames per call of [`Kernel::run`].
    pub burst: usize,
    /// Maximum number of packet slots per input frame; 0 if frames have no packets.
    pub places: u32,
    /// The memory of the input ring's slots, for a persistent kernel; empty for others.
    pub slots: Slice,
    /// The memory of the output ring's slots, for a persistent kernel; empty for others.
    pub output: Slice,
    /// How bursts reach it on a GPU.
    pub dispatch: Dispatch,
    /// What may make GPU memory that the CPU stores to.
    pub backends: Vec<Backend>,
    /// Whether the device that writes the input rings the doorbell ([`Kernel::device_doorbell`]).
    pub device_rings_doorbell: bool,
}

impl KernelContext {
    /// A context for a kernel that runs alone: no name, paths from the current directory, bursts of 16, no places.
    pub fn alone(input: &Layout, side: Side) -> Self {
        Self {
            name: "kernel".to_owned(),
            directory: PathBuf::from("."),
            input: input.clone(),
            side,
            burst: 16,
            places: 0,
            slots: Slice::default(),
            output: Slice::default(),
            dispatch: Dispatch::Launch,
            backends: Backend::ALL.to_vec(),
            device_rings_doorbell: false,
        }
    }
}

/// A word in GPU memory that a device rings once it has written a frame.
///
/// ```text
///   0    the device's count of finished transfers, 32 bits of which the low 24 count
///   64   frames that had been published when the device began to count, 64 bits; all ones until then
/// ```
#[derive(Clone, Debug)]
pub struct DeviceDoorbell {
    region: Arc<Region>,
    /// The frame from which on the device rings.
    from: Arc<AtomicU64>,
}

impl DeviceDoorbell {
    /// Bits of the device's count that a kernel looks at.
    pub const BITS: u32 = 24;
    const BASE: usize = 64;
    const BYTES: usize = 4096;
    const NOT_YET: u64 = u64::MAX;
    const NEVER: u64 = u64::MAX - 1;

    /// A doorbell that is not rung yet.
    pub fn new(device: &'static driver::Device, backends: &[Backend]) -> Result<Self, RegionError> {
        let region = Region::mapped(device, Self::BYTES, Writer::Fpga, backends)?;
        let bell = Self {
            region,
            from: Arc::new(AtomicU64::new(Self::NOT_YET)),
        };
        // A lost mapping is reported by its next user.
        let _ = bell.set_base(u64::MAX);
        Ok(bell)
    }

    /// The memory, for the device that rings and the kernel that looks.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn set_base(&self, base: u64) -> Result<(), BarMappingError> {
        match self.region.mapping() {
            Some(mapped) => mapped.copy_to(Self::BASE, &base.to_le_bytes()),
            None => Ok(()),
        }
    }

    /// From frame `frame` on the device rings; it begins to count after this.
    pub fn ring_from(&self, frame: u64) -> Result<(), BarMappingError> {
        self.from.store(frame, Ordering::Release);
        self.set_base(frame)
    }

    /// Marks the doorbell as one that the device will never ring; the host rings instead.
    pub fn disable_device(&self) {
        self.from.store(Self::NEVER, Ordering::Release);
    }

    /// Whether the device rang, or may have rung, for frame `frame`.
    pub fn rings_for(&self, frame: u64) -> bool {
        let from = self.from.load(Ordering::Acquire);
        from < Self::NEVER && from <= frame
    }

    /// Whether the device may still ring.
    pub fn may_ring(&self) -> bool {
        self.from.load(Ordering::Acquire) != Self::NEVER
    }
}

/// A compute step.
///
/// Runs on its own thread; `run` allocates nothing.
pub trait Kernel: Send {
    /// Most output frames that `frames` further input frames can yield now; the engine calls `run` only
    /// with that many slots to write.
    fn outputs(&self, frames: usize) -> usize;

    /// The part of the GPU's threads that the kernel's blocks can keep occupied, 0 to 1; `None` on the CPU.
    fn occupancy(&self) -> Option<f64> {
        None
    }

    /// The doorbell that a device rings after each frame; `None` if no device rings.
    fn device_doorbell(&self) -> Option<DeviceDoorbell> {
        None
    }

    /// Starts the kernel: called once, before the first [`run`](Self::run), when all memory is allocated and all code is
    /// loaded. From then on a persistent kernel may run on its GPU.
    fn begin(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Checks that the device can still finish its work; called periodically while work is in flight.
    ///
    /// After an error, all completions in flight are done and report the failure.
    fn look(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// The state of a persistent kernel, for an error message that it hangs; `None` for launched kernels.
    fn hung(&self) -> Option<String> {
        None
    }

    /// For a persistent kernel, the completion of all work that [`run`](Self::run) submitted, including that of a failed
    /// call.
    fn under_way(&self) -> Option<Completion> {
        None
    }

    /// Drops the kernel without waiting for the device; leaks all memory that the device may still use.
    fn leak(self: Box<Self>) {
        std::mem::forget(self);
    }

    /// Processes all frames of `burst`, finishing slots of `out` as outputs are complete.
    ///
    /// `on` is a stream of the device that the kernel was built for.
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError>;
}

/// A kernel's declared and checked configuration.
pub trait KernelSpec: Send + Sync {
    /// The layout of the output for `input`, or why the kernel cannot take it.
    fn layout(&self, input: &Layout) -> Result<Layout, crate::config::Problem>;

    /// The files that it reads.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }

    /// Examines its code as far as that is possible without a GPU. Problems of [`files`](Self::files) are not repeated.
    fn examine(&self, _examination: &Examination<'_>) -> Examined {
        Examined::default()
    }

    /// Input frames that go into one output frame where that is fixed; for the plan's rates.
    fn frames_per_output(&self, _input: &Layout) -> f64 {
        1.0
    }

    /// Whether the kernel has a side for `side` that can take `input`; the plan places it accordingly.
    fn has(&self, _input: &Layout, side: Side) -> bool {
        side == Side::Cpu
    }

    /// Whether the kernel can be persistent ([`Dispatch::Persistent`]); the error is the reason, as a clause.
    fn supports_persistent(&self) -> Result<(), String> {
        Err("built-in kernels are launched".to_owned())
    }

    /// Bytes that the kernel will allocate beside its rings; for the plan's memory total.
    fn memory(&self, _input: &Layout) -> usize {
        0
    }

    /// Bytes of GPU memory that the kernel will allocate in addition to its rings.
    fn device_memory(&self, input: &Layout) -> usize {
        self.memory(input)
    }

    /// Builds the kernel; called after `layout` accepted the input and `has` the side.
    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError>;
}
