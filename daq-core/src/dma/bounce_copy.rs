//! Copies frames from an engine's own slots, which act as bounce buffers, into a ring.
//!
//! ```text
//!   engine ─▶ own slots ──copy──▶ open slots of the ring ──▶ slot still holds the frame? ──▶ publish
//! ```
//! Used for an engine that runs freely, without backpressure, or that cannot write the memory of the ring.

use crate::gpu::Event;
use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::gpu::driver::{CudaError, Device, Stream};
use crate::region::{Placement, Region, RegionError};
use crate::ring::Producer;
use crate::sys::{copy, store};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a GPU may take for a batch of copies within its memory.
const COPY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why frames cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum BounceCopyError {
    /// No method copies from one memory to the other.
    #[error(
        "cannot copy frames from {from} to {to}: place the ring on the GPU that the engine writes, or in host memory"
    )]
    NoWay {
        /// The memory that the engine writes.
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
    /// The GPU does not finish a copy.
    #[error(
        "{device} did not copy a batch of frames within {waited:?}; check whether it hangs: nvidia-smi; dmesg | grep -i xid"
    )]
    Hung {
        /// The GPU.
        device: &'static str,
        /// How long it had.
        waited: Duration,
    },
}

enum CopyMethod {
    /// Host memory to host memory.
    Host,
    /// Host memory to GPU memory, by CPU stores.
    Stores(Arc<BarMapping>),
    /// Within the memory of a GPU, by its copy engine.
    Within(&'static Device, Stream),
    /// Pinned host memory to GPU memory, by its copy engine.
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
    /// Copies from slots in `from`, which have the same stride as those of `to`. Allocates everything now.
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

    /// The memory that the engine writes.
    pub const fn from(&self) -> &Arc<Region> {
        &self.from
    }

    /// Starts to copy `bytes` bytes of the engine's slot `slot` to the `open`-th open slot of `to`. The copy is
    /// complete after [`settle`](Self::settle).
    ///
    /// # Panics
    /// If there is no such slot, or it is shorter.
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
            "{bytes} bytes of slot {slot} cannot be copied"
        );
        let target = to.open_slot(open);
        self.is_open = true;
        let from = self.from.address().as_ptr().wrapping_add(offset);
        match &self.method {
            // SAFETY: both are host memory with room for the bytes, as checked above and by the ring, in different
            // regions. The target slot is open, so nothing else accesses it. The device may write the source at the
            // same time: the caller queries the device afterwards and discards what may have been overwritten.
            CopyMethod::Host => unsafe { copy::stream(from, target, bytes) },
            CopyMethod::Stores(mapped) => {
                mapped.check()?;
                let at = target.addr() - to.region().address().as_ptr().addr();
                let cpu = mapped.cpu_address().as_ptr().wrapping_add(at);
                // SAFETY: as above. The ring's slots are in the mapping, which `check` has found usable, at the same
                // offset as on the GPU.
                unsafe { store::copy_to(cpu, from, bytes) };
            }
            // SAFETY: as above, within the memory of one GPU or from pinned memory. Both regions are kept until
            // `settle`, or the drop, has seen the end of the copies; if there is none they are leaked.
            CopyMethod::Within(_, stream) => unsafe {
                stream.copy_within(target.addr() as u64, from.addr() as u64, bytes)?;
            },
            // SAFETY: as above.
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
            // Copies may be in flight forever, so the memory that they use is leaked.
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
