//! The methods that copy bytes from the slots of one ring to the slots of another.
//!
//! | Method | From | To | Done by |
//! |---|---|---|---|
//! | [`CopyStream`] | host memory or a GPU | a GPU or host memory | the GPU's copy engine |
//! | [`CopyStream`] of [`WithinGpu`] | a GPU | the same GPU | the GPU |
//! | [`CopyStream`] of [`BetweenGpus`] | a GPU | another GPU that grants access | the source's copy engine |
//! | [`CpuStores`] | host memory | a GPU with a BAR mapping | the CPU |
//! | [`HostStores`] | host memory | host memory | the CPU |
//!
//! A further method is one more file and one more line in [`between`].

mod between_gpus;
mod cpu_stores;
mod host_stores;
mod stream;
mod within_gpu;

pub(crate) use between_gpus::BetweenGpus;
pub(crate) use cpu_stores::CpuStores;
use host_stores::HostStores;
pub use stream::{CopyStream, StreamPath};
use within_gpu::WithinGpu;

use super::{Direction, Route, StagingError};
use crate::gpu::driver::{Block, CudaError, Device, Pitch, Rows};
use crate::region::{Placement, Region, RegionError};
use crate::ring::Completion;
use std::fmt;
use std::sync::Arc;

/// How the frames of a burst are divided into copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Slots that are contiguous in both rings are copied together, as one range or as rows. For methods in which each
    /// copy has a cost.
    Rows,
    /// Only the lines of 64 bytes that contain payload are copied. For methods in which each byte has a cost.
    Lines,
}

/// Copies bytes between the memories of two rings, in order.
pub trait CopyMethod: fmt::Debug + Send {
    /// Returns how bursts are divided for this method.
    fn division(&self) -> Division {
        Division::Rows
    }

    /// Starts a copy of rows. `to` and `from` are addresses of the rings' regions.
    ///
    /// # Safety
    /// Until the next [event](Self::record_event) is done, all rows must stay allocated at source and target, nothing
    /// else may write the source, and nothing else may read or write the target. A device may write the source if the
    /// caller discards the bytes that it may have written.
    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError>;

    /// Starts a copy of a block. `to` and `from` are addresses of the rings' regions.
    ///
    /// # Safety
    /// The requirements of [`copy`](Self::copy) apply to all rows of the block.
    unsafe fn copy_block(&self, to: u64, from: u64, block: Block) -> Result<(), StagingError> {
        let block = block.flattened();
        for slice in 0..block.slices {
            for row in 0..block.rows {
                let at = |pitch: Pitch| (slice * pitch.slice + row * pitch.row) as u64;
                let rows = Rows::one(block.width);
                // SAFETY: the caller guarantees the requirements.
                unsafe { self.copy(to + at(block.to), from + at(block.from), rows) }?;
            }
        }
        Ok(())
    }

    /// Records the end of all copies started so far. Returns [`Completion::Immediate`] if they have already ended.
    fn record_event(&self) -> Result<Completion, StagingError>;

    /// Whether the end of another copy can be recorded.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until no copy is in flight. Returns earlier if the device has failed.
    fn settle(&self) {}

    /// Declares that the device will not finish its work, so that its memory is [leaked](crate::leak).
    fn leak(&self) {}

    /// Returns the GPU whose memory the CPU stores to; `None` if the CPU stores to no GPU.
    fn stored_gpu(&self) -> Option<&'static Device> {
        None
    }
}

/// Returns the method for copies from `from` to `to` with at most `depth` copies in flight; `None` if no method copies
/// between these memories. Pins host memory that a GPU reads, and grants access to GPU memory that another GPU writes.
pub fn between(
    from: &Arc<Region>,
    to: &Arc<Region>,
    depth: usize,
) -> Result<Option<Box<dyn CopyMethod>>, RegionError> {
    Ok(match (from.placement(), to.placement()) {
        (Placement::Host, Placement::Host) => Some(Box::new(HostStores)),
        (Placement::Host, Placement::Cuda(ordinal)) => {
            if let Some(mapping) = to.mapping() {
                return Ok(Some(Box::new(CpuStores::new(mapping.clone()))));
            }
            let device = Device::open(ordinal)?;
            from.pin(device)?;
            Some(Box::new(CopyStream::new(device, Direction::In, depth)?))
        }
        (Placement::Cuda(writer), Placement::Cuda(owner)) => {
            if writer != owner {
                to.grant(Device::open(writer)?)?;
            }
            Route::between(from.placement(), to.placement())
                .map(|route| on_stream(route, depth))
                .transpose()?
        }
        (Placement::Cuda(_), Placement::Host) => None,
    })
}

/// Returns a stream for copies along `route` with at most `depth` copies in flight. Host memory must be
/// [pinned](Region::pin), and a GPU that writes memory of another GPU needs [access](Region::grant) to it.
pub fn on_stream(route: Route, depth: usize) -> Result<Box<dyn CopyMethod>, CudaError> {
    let device = Device::open(route.device())?;
    Ok(match (route.direction(), route.peers()) {
        (Some(direction), _) => Box::new(CopyStream::new(device, direction, depth)?),
        (None, Some((_, to))) => {
            let to = Device::open(to)?;
            Box::new(CopyStream::new(device, BetweenGpus { to }, depth)?)
        }
        (None, None) => Box::new(CopyStream::new(device, WithinGpu, depth)?),
    })
}

/// Converts a region's address in host memory to a pointer.
fn host(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX))
}
