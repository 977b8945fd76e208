//! Frames carried out of slots of an engine's own, into a ring.
//!
//! ```text
//!   engine ─▶ slots of its own ──copy──▶ open slots of the ring ──▶ is the slot still the frame's? ──▶ publish
//! ```
//! Where an engine goes round whatever anybody does, or may not write where the ring lies.

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

/// Why frames cannot be carried.
#[derive(Debug, thiserror::Error)]
pub enum BounceCopyError {
    /// There is no method from one memory to the other.
    #[error(
        "no method to carry frames from {from} to {to}: put the ring on the GPU that the engine writes, or into host memory"
    )]
    NoWay {
        /// Where the engine writes.
        from: Placement,
        /// Where the ring lies.
        to: Placement,
    },
    /// The mapping of the GPU's memory is lost.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
    /// The GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Host memory could not be pinned for the GPU.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The GPU does not end a copy.
    #[error(
        "{device} has not copied a batch of frames within {waited:?}; look for a hang: nvidia-smi; dmesg | grep -i xid"
    )]
    Hung {
        /// The GPU.
        device: &'static str,
        /// How long it had.
        waited: Duration,
    },
}

enum CopyMethod {
    /// Both in host memory.
    Host,
    /// Host memory to a GPU's, by stores of the CPU.
    Stores(Arc<BarMapping>),
    /// Within a GPU's memory, by its copy engine.
    Within(&'static Device, Stream),
    /// Pinned host memory to a GPU's, by its copy engine.
    In(&'static Device, Stream),
}

/// Copies from slots of an engine's own to the open slots of a ring.
pub struct BounceCopy {
    from: Arc<Region>,
    to: Arc<Region>,
    stride: usize,
    method: CopyMethod,
    /// Whether copies may be under method.
    is_open: bool,
}

impl BounceCopy {
    /// Copies from slots in `from`, which lie as those of `to` do. Allocates what it needs now.
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

    /// Begins to copy `bytes` bytes of the engine's slot `slot` to the `open`-th open slot of `to`; done once
    /// [settled](Self::settle).
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
            "{bytes} bytes of slot {slot} are carried"
        );
        let target = to.open_slot(open);
        self.is_open = true;
        let from = self.from.address().as_ptr().wrapping_add(offset);
        match &self.method {
            // SAFETY: both are host memory with room for the bytes, as checked above and by the ring; they are different
            // regions. The target is open, so nobody else touches it. The source may be written by the device at the
            // same time: whoever carries asks the device afterwards and throws away what it may have overtaken.
            CopyMethod::Host => unsafe { copy::stream(from, target, bytes) },
            CopyMethod::Stores(mapped) => {
                mapped.check()?;
                let at = target.addr() - to.region().address().as_ptr().addr();
                let cpu = mapped.cpu_address().as_ptr().wrapping_add(at);
                // SAFETY: as above; the ring's slots lie in the mapping, which `check` has found usable, at the offset
                // that they have on the GPU.
                unsafe { store::copy_to(cpu, from, bytes) };
            }
            // SAFETY: as above, within the memory of one GPU or from pinned memory; both regions are kept until `settle`, or
            // the drop, has seen the end of the copies, or for ever where there is none.
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

    /// Returns once everything copied so far is there.
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
            // Copies may be under method for ever: what they use is never freed.
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
