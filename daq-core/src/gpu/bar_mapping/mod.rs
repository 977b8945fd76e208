//! CPU mappings of GPU memory: one type, whatever makes the mapping.
//!
//! ```text
//!   CPU ──store──▶ BarMapping ◀──load── kernel        one allocation, an address on either side
//! ```
//! How the memory is made is decided before it is allocated, from what will write it ([`Writer`]): some backends map
//! memory of CUDA's, one brings its own. Each backend that cannot is kept with its reason ([`Refusal`]).
//!
//! | backend | the memory is | and is mapped by |
//! |---|---|---|
//! | `gdrapi` | CUDA's | GDRCopy's library and kernel module |
//! | `dma-buf` | CUDA's | `mmap` of its dma-buf |
//! | `vulkan` | Vulkan's, imported into CUDA | `vkMapMemory`, through the GPU's BAR |
//! | `host` | the host's, pinned | nothing: the GPU reads it over the bus |
//!
//! # Guarantees
//! - Any offset and any size can be copied; alignment is this module's business.
//! - Stores through one [`Stores`] have left the CPU when it is fenced or dropped. The GPU finds what was stored before a
//!   fence when it finds what was stored after it; between fences there is no order.
//! - A mapping is never used after its memory is freed (the types see to it), in a process that was forked, or after
//!   its device was lost: that is an error ([`BarMappingError`]).
//! - Memory that is mapped is mapped once more by [`BarMapping::again`] alone, where the backend can.
//!
//! Stores that go together cannot outlive the mapping:
//!
//! ```compile_fail,E0505
//! # use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
//! fn free_too_early(mapped: BarMapping) -> Result<(), BarMappingError> {
//!     let mut stores = mapped.stores()?;
//!     drop(mapped);
//!     stores.copy(0, &[1])
//! }
//! ```
//! nor be fenced by another thread, whose fence would not hold for them:
//!
//! ```compile_fail,E0277
//! # use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
//! fn fence_elsewhere(mapped: &BarMapping) -> Result<(), BarMappingError> {
//!     let mut stores = mapped.stores()?;
//!     stores.copy(0, &[1])?;
//!     std::thread::scope(|scope| scope.spawn(move || stores.fence()).join()).unwrap();
//!     Ok(())
//! }
//! ```

mod dma_buf;
mod gdrapi;
mod host;
mod pieces;
mod vulkan;

use crate::gpu::Backend;
use crate::gpu::Writer;
use crate::gpu::driver::{Backing, Device};
use crate::region::DmaBufError;
use crate::sys::guard::Guard;
use crate::sys::store;
use pieces::{Made, Pieces, Refused};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

/// What is freed of a mapping, in messages.
const MAPPED: &str = "mapped memory";

/// Why a backend made no mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {why}")]
pub struct Refusal {
    /// The backend.
    pub backend: Backend,
    /// Why, and what helps.
    pub why: String,
}

/// No backend made a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CPU has no way to store to this GPU's memory: {}", join(.refused))]
pub struct Unmappable {
    /// What each of them said.
    pub refused: Vec<Refusal>,
}

fn join(refused: &[Refusal]) -> String {
    let refused: Vec<_> = refused.iter().map(Refusal::to_string).collect();
    refused.join("; ")
}

/// What a mapping took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Allocating the memory.
    pub allocate: Duration,
    /// Pinning it, or importing it into CUDA.
    pub pin: Duration,
    /// Mapping it.
    pub map: Duration,
}

/// Why a mapping cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarMappingError {
    /// The bytes are not all inside.
    #[error("{bytes} bytes from {offset} on are not inside of {have} mapped bytes")]
    Outside {
        /// Where they begin.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// Bytes that are mapped.
        have: usize,
    },
    /// Another process made it.
    #[error(
        "this process is a fork of the one that mapped memory of cuda:{ordinal}; use the mapping where it was made"
    )]
    Forked {
        /// The device.
        ordinal: u32,
    },
    /// The device or the memory is not there any more.
    #[error(
        "the mapped memory of cuda:{ordinal} is gone; look whether the GPU is still there: nvidia-smi; dmesg | grep -i xid"
    )]
    Lost {
        /// The device.
        ordinal: u32,
    },
}

/// GPU memory that the CPU can store to.
pub struct BarMapping {
    device: &'static Device,
    bytes: usize,
    cpu: NonNull<u8>,
    gpu: u64,
    backend: Backend,
    refused: Vec<Refusal>,
    costs: Costs,
    guard: ManuallyDrop<Guard>,
    made: ManuallyDrop<Made>,
}

// SAFETY: plain memory behind a pointer that never changes and to which no reference is made; who may write which part
// at which time is the business of whoever holds it. What undoes it may be called by any thread.
unsafe impl Send for BarMapping {}
// SAFETY: as above; what undoes it is used through `&mut` alone, or makes another one.
unsafe impl Sync for BarMapping {}

/// Tries every backend with one page: what a plan or a diagnosis tells. Those that are not `allowed` are not tried.
pub fn probe(
    device: &'static Device,
    allowed: &[Backend],
) -> Vec<(Backend, Result<Costs, Refusal>)> {
    let try_one = |backend: Backend| {
        if !allowed.contains(&backend) {
            return Err(not_allowed(backend));
        }
        BarMapping::with(device, 1, backend).map(|mapped| mapped.costs())
    };
    Backend::ALL
        .into_iter()
        .map(|backend| (backend, try_one(backend)))
        .collect()
}

pub(crate) fn not_allowed(backend: Backend) -> Refusal {
    Refusal {
        backend,
        why: "not allowed: it is not among `backends` of `[staging]`".to_owned(),
    }
}

impl BarMapping {
    /// At least `bytes` bytes, all zero, made by the first backend of those that suit `writer` and are `allowed`.
    pub fn new(
        device: &'static Device,
        bytes: usize,
        writer: Writer,
        allowed: &[Backend],
    ) -> Result<Arc<Self>, Unmappable> {
        let mut refused = Vec::new();
        for &backend in writer.backends() {
            if !allowed.contains(&backend) {
                refused.push(not_allowed(backend));
                continue;
            }
            match Self::make(device, bytes, backend, None) {
                Ok(mut mapped) => {
                    mapped.refused = refused;
                    return Ok(Arc::new(mapped));
                }
                Err(refusal) => {
                    tracing::debug!("cuda:{}: {refusal}", device.ordinal());
                    refused.push(refusal);
                }
            }
        }
        Err(Unmappable { refused })
    }

    /// The same, made by exactly `backend`.
    pub fn with(
        device: &'static Device,
        bytes: usize,
        backend: Backend,
    ) -> Result<Arc<Self>, Refusal> {
        Self::make(device, bytes, backend, None).map(Arc::new)
    }

    /// The same, over CUDA memory of exactly `backing`, for backends that map CUDA's memory; the others refuse.
    pub fn with_backing(
        device: &'static Device,
        bytes: usize,
        backend: Backend,
        backing: Backing,
    ) -> Result<Arc<Self>, Refusal> {
        Self::make(device, bytes, backend, Some(backing)).map(Arc::new)
    }

    fn make(
        device: &'static Device,
        bytes: usize,
        backend: Backend,
        backing: Option<Backing>,
    ) -> Result<Self, Refusal> {
        let pieces = match backend {
            Backend::Gdrapi => gdrapi::make(device, bytes, backing),
            Backend::DmaBuf => dma_buf::make(device, bytes, backing),
            Backend::Vulkan | Backend::Host if backing.is_some() => Err(Refused(
                "it brings memory of its own; leave the kind of CUDA memory out".to_owned(),
            )),
            Backend::Vulkan => vulkan::make(device, bytes),
            Backend::Host => host::make(device, bytes),
        };
        Self::guarded(device, backend, pieces)
    }

    /// The same memory, mapped a second time at another address: what is stored through one is there through the other.
    pub fn again(&self) -> Result<Arc<Self>, Refusal> {
        let pieces = match &*self.made {
            _ if let Err(error) = self.check() => Err(Refused(error.to_string())),
            Made::Gdrapi(mapping) => mapping.again(),
            Made::DmaBuf(mapping) => mapping.again(),
            Made::Vulkan(_) | Made::Host(_) => Err(Refused(
                "its memory is mapped once and cannot be mapped again; share the mapping"
                    .to_owned(),
            )),
        };
        Self::guarded(self.device, self.backend, pieces).map(Arc::new)
    }

    /// A dma-buf of the memory, where it is CUDA's.
    pub fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        match &*self.made {
            Made::Gdrapi(mapping) => mapping.dma_buf(),
            Made::DmaBuf(mapping) => mapping.dma_buf(),
            Made::Vulkan(_) => Err(DmaBufError::Kind("Vulkan's memory")),
            Made::Host(_) => Err(DmaBufError::Kind("host memory")),
        }
    }

    fn guarded(
        device: &'static Device,
        backend: Backend,
        pieces: Result<Pieces, Refused>,
    ) -> Result<Self, Refusal> {
        let refuse = |why| Refusal { backend, why };
        let pieces = pieces.map_err(|Refused(why)| refuse(why))?;
        // SAFETY: the backend mapped so many bytes there just now, and they stay until `drop`, which ends the guard
        // first. Nothing here makes a reference to them or relies on what they hold.
        let guard = match unsafe { Guard::new(pieces.cpu, pieces.bytes) } {
            Ok(guard) => guard,
            Err(error) => {
                let rest = Rest {
                    _guard: None,
                    _made: pieces.made,
                };
                // A kernel may have come to stay, whose end the call would wait for.
                device.free(MAPPED, move || drop(rest));
                return Err(refuse(error.to_string()));
            }
        };
        Ok(Self {
            device,
            bytes: pieces.bytes,
            cpu: pieces.cpu,
            gpu: pieces.gpu,
            backend,
            refused: Vec::new(),
            costs: pieces.costs,
            guard: ManuallyDrop::new(guard),
            made: ManuallyDrop::new(pieces.made),
        })
    }

    /// The device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// The first byte's address, as the device sees it.
    pub const fn address(&self) -> u64 {
        self.gpu
    }

    /// Bytes, at least as many as were asked for.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte's address, as the CPU sees it.
    pub(crate) const fn pointer(&self) -> NonNull<u8> {
        self.cpu
    }

    /// Where the CPU reaches the first byte, for whoever hands the mapping on to a device.
    ///
    /// Stores through this address pass by every check of this module.
    pub const fn cpu_address(&self) -> NonNull<u8> {
        self.cpu
    }

    /// What made it.
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// The backends that were tried before and why they could not.
    pub fn refused(&self) -> &[Refusal] {
        &self.refused
    }

    /// What it took.
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// Whether it can be used: this process made it and the device is there. A few loads.
    #[inline]
    pub fn check(&self) -> Result<(), BarMappingError> {
        if self.guard.is_forked() {
            return Err(BarMappingError::Forked {
                ordinal: self.device.ordinal(),
            });
        }
        self.check_device()
    }

    /// Whether the device and the memory are there, as far as this thread's accesses so far have met them.
    #[inline]
    fn check_device(&self) -> Result<(), BarMappingError> {
        // The handler of a fault runs between two instructions of this thread: the look must stay behind the accesses.
        compiler_fence(Ordering::SeqCst);
        if self.guard.is_lost() || self.device.is_hung() {
            return Err(BarMappingError::Lost {
                ordinal: self.device.ordinal(),
            });
        }
        Ok(())
    }

    /// Stores that go together; they have left the CPU when the value is dropped or fenced.
    #[inline]
    pub fn stores(&self) -> Result<Stores<'_>, BarMappingError> {
        self.check()?;
        Ok(Stores {
            mapped: self,
            thread: PhantomData,
        })
    }

    /// Copies `from` to `offset` and on, and waits until the bytes have left the CPU.
    #[inline]
    pub fn copy_to(&self, offset: usize, from: &[u8]) -> Result<(), BarMappingError> {
        self.stores()?.copy(offset, from)
    }

    /// Reads into `to` from `offset` on: slow, a trip over the bus every few bytes. For setting up and for tests.
    pub fn copy_from(&self, offset: usize, to: &mut [u8]) -> Result<(), BarMappingError> {
        self.check()?;
        let from = self.at(offset, to.len())?;
        // SAFETY: inside of the mapping; no reference is made to it.
        unsafe { store::copy_from(to.as_mut_ptr(), from.as_ptr(), to.len()) };
        self.check_device()
    }

    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, BarMappingError> {
        let is_inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        if !is_inside {
            return Err(BarMappingError::Outside {
                offset,
                bytes,
                have: self.bytes,
            });
        }
        // SAFETY: inside, as just checked.
        Ok(unsafe { self.cpu.add(offset) })
    }
}

/// What is left of a mapping that nobody holds any more. The guard goes first: from the end of the mapping on its
/// addresses may be somebody else's.
struct Rest {
    _guard: Option<Guard>,
    _made: Made,
}

// SAFETY: as for a mapping.
unsafe impl Send for Rest {}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // A child has no mapping, and CUDA is not to be called in it. What a device that was given up still uses is left
        // to the driver, and the guard with it.
        if self.guard.is_forked() || self.device.is_hung() {
            return;
        }
        // SAFETY: each is taken here, once, and not used again.
        let rest = unsafe {
            Rest {
                _guard: Some(ManuallyDrop::take(&mut self.guard)),
                _made: ManuallyDrop::take(&mut self.made),
            }
        };
        self.device.free(MAPPED, move || drop(rest));
    }
}

impl fmt::Debug for BarMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BarMapping")
            .field("device", &self.device.ordinal())
            .field("bytes", &self.bytes)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// Stores to a mapping that go together.
#[derive(Debug)]
pub struct Stores<'a> {
    mapped: &'a BarMapping,
    /// A fence is one of the thread that stored, so they stay with it.
    thread: PhantomData<*const ()>,
}

impl Stores<'_> {
    /// Copies `from` to `offset` and on; in no order with other stores until the next fence.
    #[inline]
    pub fn copy(&mut self, offset: usize, from: &[u8]) -> Result<(), BarMappingError> {
        self.mapped.check()?;
        let to = self.mapped.at(offset, from.len())?;
        // SAFETY: inside of the mapping; no reference is made to it, so `from` lies elsewhere.
        unsafe { store::copy_to(to.as_ptr(), from.as_ptr(), from.len()) };
        self.mapped.check_device()
    }

    /// Copies `from` to `offset` and on, as [`copy`](Self::copy) does.
    pub fn words(&mut self, offset: usize, from: &[u64]) -> Result<(), BarMappingError> {
        // SAFETY: words are bytes, all of them initialised, and live as long as `from`.
        let bytes =
            unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.copy(offset, bytes)
    }

    /// Stores one word at `offset`, which is a multiple of 8, in one piece.
    ///
    /// # Panics
    /// If it is none.
    #[inline]
    pub fn word(&mut self, offset: usize, value: u64) -> Result<(), BarMappingError> {
        assert!(offset.is_multiple_of(8), "a word lies on a multiple of 8");
        self.mapped.check()?;
        let to = self.mapped.at(offset, 8)?;
        // SAFETY: inside of the mapping, which begins at a page; no reference is made to it.
        unsafe { to.cast::<u64>().write_volatile(value) };
        self.mapped.check_device()
    }

    /// Ends without a fence: whoever stores next from this thread, and fences then, has what was stored here go first.
    pub(crate) fn unfenced(self) {
        std::mem::forget(self);
    }

    /// Whether they go through this mapping.
    #[inline]
    pub(crate) fn are_of(&self, mapped: &BarMapping) -> bool {
        std::ptr::eq(self.mapped, mapped)
    }

    /// Everything stored so far leaves the CPU before anything that is stored later.
    #[inline]
    pub fn fence(&mut self) {
        store::fence();
    }
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        self.fence();
    }
}
