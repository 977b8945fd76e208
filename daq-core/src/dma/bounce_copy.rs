//! Copies frames from an engine's own slots, which act as bounce buffers, into a ring.
//!
//! ```text
//!   engine ─▶ own slots ──copy──▶ open slots of the ring ──▶ slot still holds the frame? ──▶ publish
//! ```
//! Used for an engine that is free-running, or that cannot write to the memory of the ring.

use crate::gpu::driver::{Device, Rows};
use crate::leak::leak;
use crate::region::{Placement, Region, RegionError};
use crate::ring::Producer;
use crate::staging::{self, CopyMethod, StagingError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for a GPU to finish a batch of copies.
const COPY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why frames cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum BounceCopyError {
    /// No method copies from one memory to the other.
    #[error(
        "cannot copy frames from {from} to {to}; place the ring on the GPU that the engine writes, or in host memory"
    )]
    NoMethod {
        /// The memory that the engine writes to.
        from: Placement,
        /// The memory of the ring.
        to: Placement,
    },
    /// The GPU failed, or the BAR mapping of its memory is lost.
    #[error(transparent)]
    Copy(#[from] StagingError),
    /// The GPU cannot be used, or host memory could not be pinned for the GPU.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The GPU does not finish a copy in time.
    #[error(
        "{device} did not copy a batch of frames within {waited:?}; check whether the GPU hangs: nvidia-smi; dmesg | grep -i xid"
    )]
    Hung {
        /// Name of the GPU.
        device: &'static str,
        /// The time limit.
        waited: Duration,
    },
}

/// Copies from an engine's own slots to the open slots of a ring.
#[derive(Debug)]
pub struct BounceCopy {
    from: Arc<Region>,
    to: Arc<Region>,
    stride: usize,
    method: Box<dyn CopyMethod>,
    /// Whether copies may be in flight.
    is_open: bool,
}

impl BounceCopy {
    /// Creates a copier from slots in `from` to the slots of `to`, which must have the same stride. This function
    /// allocates all memory of the copier.
    pub fn new(from: Arc<Region>, to: &Producer) -> Result<Self, BounceCopyError> {
        let target = to.region();
        let method = staging::between(&from, target, 2)?.ok_or(BounceCopyError::NoMethod {
            from: from.placement(),
            to: target.placement(),
        })?;
        Ok(Self {
            from,
            to: target.clone(),
            stride: to.options().stride(),
            method,
            is_open: false,
        })
    }

    /// Returns the memory that the engine writes to.
    pub const fn from(&self) -> &Arc<Region> {
        &self.from
    }

    /// Starts to copy `bytes` bytes of the engine's slot `slot` to open slot number `open` of `to`. The copy is
    /// complete after [`settle`](Self::settle).
    ///
    /// # Panics
    /// Panics if slot `slot` or open slot `open` does not exist or is shorter than `bytes` bytes, or if `to` belongs to
    /// another ring.
    pub fn copy(
        &mut self,
        slot: usize,
        bytes: usize,
        to: &Producer,
        open: u64,
    ) -> Result<(), BounceCopyError> {
        let offset = slot.saturating_mul(self.stride);
        let end = offset.saturating_add(bytes);
        assert!(
            bytes <= to.options().slot_bytes
                && end <= self.from.bytes()
                && Arc::ptr_eq(to.region(), &self.to),
            "cannot copy {bytes} bytes of slot {slot}: the range must be inside both regions, and the ring must be the declared target"
        );
        let target = to.open_slot(open).expose_provenance() as u64;
        let from = self.from.address().as_ptr().wrapping_add(offset);
        self.is_open = true;
        // SAFETY:
        // - Both ranges are inside the regions of the method. The check above and the ring ensure this. The regions are
        //   kept until `settle` or `drop` has observed the end of the copies. If the copies do not end, the regions are
        //   leaked.
        // - The target slot is open, so nothing else accesses it.
        // - The device may write the source at the same time. The caller queries the device afterwards, and discards
        //   frames that may have been overwritten.
        unsafe {
            self.method
                .copy(target, from.expose_provenance() as u64, Rows::one(bytes))
        }?;
        Ok(())
    }

    /// Waits until all copies so far are complete.
    pub fn settle(&mut self) -> Result<(), BounceCopyError> {
        let event = self.method.record_event()?;
        let start = Instant::now();
        while !event.is_done() {
            std::hint::spin_loop();
            if start.elapsed() > COPY_TIMEOUT {
                return Err(BounceCopyError::Hung {
                    device: self.gpu_name(),
                    waited: COPY_TIMEOUT,
                });
            }
        }
        if let Some(error) = event.failure() {
            return Err(StagingError::from(error).into());
        }
        self.is_open = false;
        Ok(())
    }

    fn gpu_name(&self) -> &'static str {
        match self.to.placement() {
            Placement::Cuda(ordinal) => Device::open(ordinal).map_or("the GPU", Device::name),
            Placement::Host => "the CPU",
        }
    }
}

impl Drop for BounceCopy {
    fn drop(&mut self) {
        if self.is_open && self.settle().is_err() {
            // The copies may stay in flight forever, so their memory is leaked.
            leak((self.from.clone(), self.to.clone()));
        }
    }
}
