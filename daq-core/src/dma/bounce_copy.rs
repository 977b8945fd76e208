//! Copies frames from an engine's own slots, which act as bounce buffers, into a ring.
//!
//! ```text
//!   engine ─▶ own slots ──copy──▶ open slots of the ring ──▶ slot still holds the frame? ──▶ publish
//! ```
//! Used for an engine that is free-running, or that cannot write to the memory of the ring.

use crate::gpu::Event;
use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::gpu::driver::{CudaError, Device, Stream};
use crate::region::{Placement, Region, RegionError};
use crate::ring::Producer;
use crate::sys::{copy, store};
use std::fmt;
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
    NoWay {
        /// The memory that the engine writes to.
        from: Placement,
        /// The memory of the ring.
        to: Placement,
    },
    /// The BAR mapping of the GPU's memory is lost.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
    /// The GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Host memory could not be pinned for the GPU.
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

enum CopyMethod {
    /// Copies from host memory to host memory.
    Host,
    /// Copies from host memory to GPU memory with CPU stores.
    Stores(Arc<BarMapping>),
    /// Copies within the memory of a GPU with its copy engine.
    Within(&'static Device, Stream),
    /// Copies from pinned host memory to GPU memory with the GPU's copy engine.
    In(&'static Device, Stream),
}

/// Copies from an engine's own slots to the open slots of a ring.
pub struct BounceCopy {
    from: Arc<Region>,
    to: Arc<Region>,
    stride: usize,
    method: CopyMethod,
    /// Whether copies may be in flight.
    is_open: bool,
}

impl BounceCopy {
    /// Creates a copier from slots in `from` to the slots of `to`, which must have the same stride. This function
    /// allocates all memory of the copier.
    pub fn new(from: Arc<Region>, to: &Producer) -> Result<Self, BounceCopyError> {
        let target = to.region();
        let method = match (from.placement(), target.placement()) {
            (Placement::Host, Placement::Host) => CopyMethod::Host,
            (Placement::Host, Placement::Cuda(ordinal)) => {
                if let Some(mapped) = target.mapping() {
                    CopyMethod::Stores(mapped.clone())
                } else {
                    let device = Device::open(ordinal)?;
                    from.pin(device)?;
                    CopyMethod::In(device, Stream::new(device, 2)?)
                }
            }
            (Placement::Cuda(a), Placement::Cuda(b)) if a == b => {
                let device = Device::open(a)?;
                CopyMethod::Within(device, Stream::new(device, 2)?)
            }
            (from, to) => return Err(BounceCopyError::NoWay { from, to }),
        };
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
        let target = to.open_slot(open);
        self.is_open = true;
        let from = self.from.address().as_ptr().wrapping_add(offset);
        match &self.method {
            // SAFETY:
            // - Both addresses are in host memory of different regions, with room for the bytes. The check above and
            //   the ring ensure this.
            // - The target slot is open, so nothing else accesses it.
            // - The device may write the source at the same time. The caller queries the device afterwards, and
            //   discards frames that may have been overwritten.
            CopyMethod::Host => unsafe { copy::stream(from, target, bytes) },
            CopyMethod::Stores(mapped) => {
                mapped.check()?;
                let at = target.addr() - to.region().address().as_ptr().addr();
                let cpu = mapped.cpu_address().as_ptr().wrapping_add(at);
                // SAFETY: as above. In addition, the ring's slots are at the same offset in the BAR mapping as on the
                // GPU, and `check` found the mapping usable.
                unsafe { store::copy_to(cpu, from, bytes) };
            }
            // SAFETY: as above, within the memory of one GPU or from pinned host memory. Both regions are kept until
            // `settle` or `drop` has observed the end of the copies. If the copies do not end, the regions are leaked.
            CopyMethod::Within(_, stream) => unsafe {
                stream.copy_within(target.addr() as u64, from.addr() as u64, bytes)?;
            },
            // SAFETY: the requirements are met as in the arm above.
            CopyMethod::In(_, stream) => unsafe {
                stream.copy_in(target.addr() as u64, from, bytes)?;
            },
        }
        Ok(())
    }

    /// Waits until all copies so far are complete.
    pub fn settle(&mut self) -> Result<(), BounceCopyError> {
        match &self.method {
            CopyMethod::Host => copy::fence(),
            CopyMethod::Stores(mapped) => {
                store::fence();
                mapped.check()?;
            }
            CopyMethod::Within(device, stream) | CopyMethod::In(device, stream) => {
                let event = stream.record_event()?;
                let start = Instant::now();
                while !event.is_done() {
                    std::hint::spin_loop();
                    if start.elapsed() > COPY_TIMEOUT {
                        return Err(BounceCopyError::Hung {
                            device: device.name(),
                            waited: COPY_TIMEOUT,
                        });
                    }
                }
                if let Some(error) = event.failure() {
                    return Err(error.into());
                }
            }
        }
        self.is_open = false;
        Ok(())
    }
}

impl Drop for BounceCopy {
    fn drop(&mut self) {
        if self.is_open && self.settle().is_err() {
            // The copies may stay in flight forever, so their memory is leaked.
            std::mem::forget((self.from.clone(), self.to.clone()));
        }
    }
}

impl fmt::Debug for BounceCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BounceCopy")
            .field("from", &self.from)
            .field(
                "method",
                &match self.method {
                    CopyMethod::Host => "host",
                    CopyMethod::Stores(_) => "stores",
                    CopyMethod::Within(..) => "within the GPU",
                    CopyMethod::In(..) => "the copy engine",
                },
            )
            .finish_non_exhaustive()
    }
}
