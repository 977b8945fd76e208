//! Kernels: a compute step from one ring to another.

use crate::layout::Layout;
use crate::ring::{Completion, Lease, SlotsMut};

/// Where a kernel's work is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stream {
    /// Done by the calling thread before `run` returns.
    Host,
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
/// The frames of the burst are `consumed + withheld + failed`; `withheld` ones count as consumed or as failed in
/// a later call, through `released` and `dropped`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Submitted {
    /// Frames of this burst whose content goes into the slots finished by this call.
    pub consumed: u64,
    /// Frames of this burst that are kept for an output to come.
    pub withheld: u64,
    /// Frames of this burst that could not be processed.
    pub failed: u64,
    /// Frames withheld by earlier calls that this call's output contains.
    pub released: u64,
    /// Frames withheld by earlier calls that no output will contain: they count as failed now.
    pub dropped: u64,
    /// When the output is written and the input no longer read.
    pub completion: Completion,
}

impl Submitted {
    /// `consumed` frames done at once.
    pub const fn done(consumed: u64) -> Self {
        Self {
            consumed,
            withheld: 0,
            failed: 0,
            released: 0,
            dropped: 0,
            completion: Completion::Immediate,
        }
    }
}

/// Why a kernel stopped the pipeline. A frame that cannot be processed is not such an error: it is counted
/// as `failed`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(pub String);

/// A compute step.
///
/// Runs on its own thread; `run` allocates nothing.
pub trait Kernel: Send {
    /// Most output frames that `frames` further input frames can yield now; the engine calls `run` only
    /// with that many slots to write.
    fn outputs(&self, frames: usize) -> usize;

    /// Processes all frames of `burst`, finishing slots of `out` as outputs are complete.
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream,
    ) -> Result<Submitted, KernelError>;
}

/// A kernel's declared and checked configuration.
pub trait KernelSpec: Send + Sync {
    /// The layout of the output for `input`, or why the kernel cannot take it.
    fn layout(&self, input: &Layout) -> Result<Layout, crate::config::Problem>;

    /// Input frames that go into one output frame where that is fixed; for the plan's rates.
    fn frames_per_output(&self, _input: &Layout) -> f64 {
        1.0
    }

    /// Whether the kernel has a side for `side`; the plan places it accordingly.
    fn has(&self, side: Side) -> bool {
        side == Side::Cpu
    }

    /// Bytes that the kernel will allocate beside its rings; for the plan's memory total.
    fn memory(&self, _input: &Layout) -> usize {
        0
    }

    /// Builds the kernel; called after `layout` accepted `input`.
    fn build(&self, input: &Layout, side: Side) -> Result<Box<dyn Kernel>, KernelError>;
}
