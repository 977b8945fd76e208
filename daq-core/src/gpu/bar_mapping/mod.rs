//! CPU mappings of GPU memory: one type for all backends.
//!
//! ```text
//!   CPU ──store──▶ BarMapping ◀──load── kernel    one allocation, with an address on either side
//! ```
//! The backend is chosen before the memory is allocated, by what will write it ([`Writer`]): some backends map CUDA
//! memory, one brings its own. Each backend that cannot be used is recorded with its reason ([`Refusal`]).
//!
//! | backend | the memory is | and is mapped by |
//! |---|---|---|
//! | `gdrapi` | CUDA's | GDRCopy's library and kernel module |
//! | `dma-buf` | CUDA's | `mmap` of its dma-buf |
//! | `vulkan` | Vulkan's, imported into CUDA | `vkMapMemory`, through the GPU's BAR |
//! | `host` | the host's, pinned | nothing: the GPU reads it over the bus |
//!
//! # Guarantees
//! - Any offset and size can be copied; this module handles the alignment.
//! - Stores through one [`Stores`] have left the CPU when it is fenced or dropped. If the GPU sees something that was
//!   stored after a fence, it also sees everything stored before it; between fences there is no order.
//! - A mapping is never used after its memory is freed (ensured by the types), in a forked process, or after its
//!   device was lost: that is an error ([`BarMappingError`]).
//! - Mapped memory is mapped again only by [`BarMapping::again`], if the backend supports it.
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
//! They cannot be fenced by another thread either, because its fence would not order them:
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

/// What is freed when a mapping is dropped, in messages.
const MAPPED: &str = "mapped memory";

/// Why a backend could not create a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {why}")]
pub struct Refusal {
    /// The backend.
    pub backend: Backend,
    /// The reason and the remedy.
    pub why: String,
}

/// No backend could create a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CPU cannot store to this GPU's memory: {}", join(.refused))]
pub struct Unmappable {
    /// The reason of each backend.
    pub refused: Vec<Refusal>,
}

fn join(refused: &[Refusal]) -> String {
    let refused: Vec<_> = refused.iter().map(Refusal::to_string).collect();
    refused.join("; ")
}

/// How long the steps of creating a mapping took.
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
    /// The range is not inside the mapping.
    #[error("{bytes} bytes at offset {offset} exceed the mapping of {have} bytes")]
    Outside {
        /// Offset of the range.
        offset: usize,
        /// Length of the range.
        bytes: usize,
        /// Number of mapped bytes.
        have: usize,
    },
    /// The mapping belongs to another process.
    #[error(
        "this process is a fork of the one that mapped memory of cuda:{ordinal}; use the mapping in the process that created it"
    )]
    Forked {
        /// The device.
        ordinal: u32,
    },
    /// The device or the memory is no longer present.
    #[error(
        "the mapped memory of cuda:{ordinal} is gone; check whether the GPU is still present: nvidia-smi; dmesg | grep -i xid"
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

// SAFETY: plain memory behind a pointer that never changes and to which no reference is created. The owner decides
// who may write which part at which time. Any thread may drop it.
unsafe impl Send for BarMapping {}
// SAFETY: as above; the parts that undo it are used only through `&mut`, or to create another mapping.
unsafe impl Sync for BarMapping {}

/// Tries every backend with one page, for plans and diagnoses. Backends that are not `allowed` are not tried.
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
        why: "not allowed: not listed in `backends` of `[staging]`".to_owned(),
    }
}

impl BarMapping {
    /// Allocates at least `bytes` zeroed bytes with the first `allowed` backend that is suitable for `writer`.
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

    /// As [`new`](Self::new), with exactly `backend`.
    pub fn with(
        device: &'static Device,
        bytes: usize,
        backend: Backend,
    ) -> Result<Arc<Self>, Refusal> {
        Self::make(device, bytes, backend, None).map(Arc::new)
    }

    /// As [`with`](Self::with), on CUDA memory of exactly `backing`; backends with their own memory refuse.
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
                "it has its own memory; do not specify a kind of CUDA memory".to_owned(),
            )),
            Backend::Vulkan => vulkan::make(device, bytes),
            Backend::Host => host::make(device, bytes),
        };
        Self::guarded(device, backend, pieces)
    }

    /// Maps the same memory a second time at another address: stores through one are visible through the other.
    pub fn again(&self) -> Result<Arc<Self>, Refusal> {
        let pieces = match &*self.made {
            _ if let Err(error) = self.check() => Err(Refused(error.to_string())),
            Made::Gdrapi(mapping) => mapping.again(),
            Made::DmaBuf(mapping) => mapping.again(),
            Made::Vulkan(_) | Made::Host(_) => Err(Refused(
                "its memory can be mapped only once; share the mapping".to_owned(),
            )),
        };
        Self::guarded(self.device, self.backend, pieces).map(Arc::new)
    }

    /// Exports the memory as a dma-buf, if it is CUDA memory.
    pub fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        match &*self.made {
            Made::Gdrapi(mapping) => mapping.dma_buf(),
            Made::DmaBuf(mapping) => mapping.dma_buf(),
            Made::Vulkan(_) => Err(DmaBufError::Kind("Vulkan memory")),
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
        // SAFETY: the backend mapped these bytes just above, and they stay mapped until `drop`, which ends the guard
        // first. Nothing here creates a reference to them or relies on their content.
        let guard = match unsafe { Guard::new(pieces.cpu, pieces.bytes) } {
            Ok(guard) => guard,
            Err(error) => {
                let rest = Rest {
                    _guard: None,
                    _made: pieces.made,
                };
                // A persistent kernel may have started, and freeing would wait for its end.
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

    /// The address of the first byte as the device sees it.
    pub const fn address(&self) -> u64 {
        self.gpu
    }

    /// Size in bytes, at least as many as requested.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte as the CPU sees it.
    pub(crate) const fn pointer(&self) -> NonNull<u8> {
        self.cpu
    }

    /// The CPU's address of the first byte, for passing the mapping on to a device.
    ///
    /// Stores through this address bypass every check of this module.
    pub const fn cpu_address(&self) -> NonNull<u8> {
        self.cpu
    }

    /// The backend that created it.
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// The backends that were tried before, with the reasons why they failed.
    pub fn refused(&self) -> &[Refusal] {
        &self.refused
    }

    /// How long the steps took.
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// Checks that this process created the mapping and the device is present. Costs a few loads.
    #[inline]
    pub fn check(&self) -> Result<(), BarMappingError> {
        if self.guard.is_forked() {
            return Err(BarMappingError::Forked {
                ordinal: self.device.ordinal(),
            });
        }
        self.check_device()
    }

    /// Checks the device and the memory, as far as this thread's accesses so far have faulted.
    #[inline]
    fn check_device(&self) -> Result<(), BarMappingError> {
        // The fault handler runs between two instructions of this thread, so this check must stay after the accesses.
        compiler_fence(Ordering::SeqCst);
        if self.guard.is_lost() || self.device.is_hung() {
            return Err(BarMappingError::Lost {
                ordinal: self.device.ordinal(),
            });
        }
        Ok(())
    }

    /// A group of stores; they have left the CPU when the value is dropped or fenced.
    #[inline]
    pub fn stores(&self) -> Result<Stores<'_>, BarMappingError> {
        self.check()?;
        Ok(Stores {
            mapped: self,
            thread: PhantomData,
        })
    }

    /// Copies `from` to `offset` and waits until the bytes have left the CPU.
    #[inline]
    pub fn copy_to(&self, offset: usize, from: &[u8]) -> Result<(), BarMappingError> {
        self.stores()?.copy(offset, from)
    }

    /// Reads into `to` from `offset`. Slow: one bus round trip every few bytes. For setup and tests.
    pub fn copy_from(&self, offset: usize, to: &mut [u8]) -> Result<(), BarMappingError> {
        self.check()?;
        let from = self.at(offset, to.len())?;
        // SAFETY: inside the mapping; no reference to it is created.
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

/// The parts of a mapping that is no longer used. The guard is dropped first, because the addresses may be reused
/// once the mapping ends.
struct Rest {
    _guard: Option<Guard>,
    _made: Made,
}

// SAFETY: as for a mapping.
unsafe impl Send for Rest {}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // A child process has no mapping and must not call CUDA. What a hung device may still use is left to the
        // driver, and so is the guard.
        if self.guard.is_forked() || self.device.is_hung() {
            return;
        }
        // SAFETY: each is moved out here, once, and not used again.
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

/// A group of stores to a BAR mapping.
#[derive(Debug)]
pub struct Stores<'a> {
    mapped: &'a BarMapping,
    /// A fence orders the stores of its own thread, so the group stays on the thread that stored.
    thread: PhantomData<*const ()>,
}

impl Stores<'_> {
    /// Copies `from` to `offset`; unordered with other stores until the next fence.
    #[inline]
    pub fn copy(&mut self, offset: usize, from: &[u8]) -> Result<(), BarMappingError> {
        self.mapped.check()?;
        let to = self.mapped.at(offset, from.len())?;
        // SAFETY: inside the mapping; no reference to it is created, so `from` does not overlap it.
        unsafe { store::copy_to(to.as_ptr(), from.as_ptr(), from.len()) };
        self.mapped.check_device()
    }

    /// Copies the words `from` to `offset`, as [`copy`](Self::copy) does.
    pub fn words(&mut self, offset: usize, from: &[u64]) -> Result<(), BarMappingError> {
        // SAFETY: words are initialised bytes and live as long as `from`.
        let bytes =
            unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.copy(offset, bytes)
    }

    /// Stores one word at `offset` as a single store.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    #[inline]
    pub fn word(&mut self, offset: usize, value: u64) -> Result<(), BarMappingError> {
        assert!(offset.is_multiple_of(8), "a word lies on a multiple of 8");
        self.mapped.check()?;
        let to = self.mapped.at(offset, 8)?;
        // SAFETY: inside the mapping, which starts at a page; no reference to it is created.
        unsafe { to.cast::<u64>().write_volatile(value) };
        self.mapped.check_device()
    }

    /// Ends without a fence: a later fence of this thread also covers these stores.
    pub(crate) fn unfenced(self) {
        std::mem::forget(self);
    }

    /// Whether the stores go through `mapped`.
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
