//! CPU mappings of GPU memory, with one type for all backends.
//!
//! ```text
//!   CPU ──store──▶ BarMapping ◀──load── kernel    one allocation, with an address on either side
//! ```
//! The backend is selected before the memory is allocated, depending on the device that will write it ([`Writer`]).
//! Some backends map CUDA memory, others allocate their own memory. For each backend that cannot be used, the reason is
//! recorded ([`Refusal`]).
//!
//! | Backend | Memory | Mapping |
//! |---|---|---|
//! | `gdrapi` | CUDA memory | GDRCopy's library and Linux module |
//! | `dma-buf` | CUDA memory | `mmap` of the memory's dma-buf |
//! | `vulkan` | Vulkan memory, imported into CUDA | `vkMapMemory`, through the GPU's BAR |
//! | `host` | pinned host memory | none: the GPU reads the memory over the bus |
//!
//! # Guarantees
//! - Any offset and size can be copied; this module handles the alignment.
//! - Stores through one [`Stores`] have left the CPU when it is fenced or dropped. If the GPU sees a store after a
//!   fence, it also sees all stores before this fence. Stores between two fences are not ordered.
//! - A mapping cannot be used after its memory is freed, which the types ensure. Using a mapping in a forked process or
//!   after its device was lost is an error ([`BarMappingError`]).
//! - Mapped memory is mapped a second time only by [`BarMapping::again`], if the backend supports it.
//!
//! A group of stores cannot outlive the mapping:
//!
//! ```compile_fail,E0505
//! # use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError};
//! fn free_too_early(mapped: BarMapping) -> Result<(), BarMappingError> {
//!     let mut stores = mapped.stores()?;
//!     drop(mapped);
//!     stores.copy(0, &[1])
//! }
//! ```
//! Another thread cannot fence a group of stores, because its fence would not order the stores of this thread:
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
use crate::gpu::driver::Memory;
use crate::gpu::driver::{Backing, Device, DmaBufError};
use crate::sys::guard::Guard;
use crate::sys::store;
use pieces::{Pieces, Refused};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

/// Name of the freed memory in messages.
const MAPPED: &str = "mapped memory";

/// The reason why a backend could not create a mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {why}")]
pub struct Refusal {
    /// The backend.
    pub backend: Backend,
    /// The reason and the remedy.
    pub why: String,
}

/// The error if no backend could create a mapping.
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

/// Durations of the steps of creating a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Allocating the memory.
    pub allocate: Duration,
    /// Pinning the memory, or importing it into CUDA.
    pub pin: Duration,
    /// Mapping the memory.
    pub map: Duration,
}

/// The error for a mapping that cannot be used.
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
        "this process is a fork of the process that mapped memory of cuda:{ordinal}; use the mapping in the process that created it"
    )]
    Forked {
        /// CUDA ordinal of the device.
        ordinal: u32,
    },
    /// The device or the memory is no longer present.
    #[error(
        "the mapped memory of cuda:{ordinal} is gone; check whether the GPU is still present: nvidia-smi; dmesg | grep -i xid"
    )]
    Lost {
        /// CUDA ordinal of the device.
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

// SAFETY: the value refers to plain memory. The pointer never changes, and no reference to the memory is created. The
// owner decides who may write which part at which time. Any thread may drop the value.
unsafe impl Send for BarMapping {}
// SAFETY: the pointer never changes and no reference to the memory exists. `made` is used only through `&mut`, or to
// share its memory with another mapping or a dma-buf.
unsafe impl Sync for BarMapping {}

/// The owner of a mapping's memory, which is dropped together with the mapping.
#[expect(
    dead_code,
    reason = "memory of some backends is stored only to keep it allocated"
)]
enum Made {
    Gdrapi(gdrapi::Mapping),
    DmaBuf(dma_buf::Mapping),
    Vulkan(vulkan::Mapping),
    Host(host::Mapping),
}

impl Made {
    /// Returns the mapped CUDA memory, or the name of the memory if the backend allocated it without CUDA.
    const fn memory(&self) -> Result<&Arc<Memory>, &'static str> {
        match self {
            Self::Gdrapi(gdrapi::Mapping { memory, .. })
            | Self::DmaBuf(dma_buf::Mapping { memory, .. }) => Ok(memory),
            Self::Vulkan(_) => Err("Vulkan memory"),
            Self::Host(_) => Err("host memory"),
        }
    }
}

/// Tests every `allowed` backend with one page, for plans and diagnoses.
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
        why: "not allowed, because `backends` of `[staging]` does not list this backend".to_owned(),
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

    /// Allocates memory as [`new`](Self::new) does, but only with `backend`.
    pub fn with(
        device: &'static Device,
        bytes: usize,
        backend: Backend,
    ) -> Result<Arc<Self>, Refusal> {
        Self::make(device, bytes, backend, None).map(Arc::new)
    }

    /// Allocates memory as [`with`](Self::with) does, with CUDA memory of kind `backing`. Backends that allocate their
    /// own memory return an error.
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
            Backend::Gdrapi => {
                gdrapi::make(device, bytes, backing).map(|made| made.map(Made::Gdrapi))
            }
            Backend::DmaBuf => {
                dma_buf::make(device, bytes, backing).map(|made| made.map(Made::DmaBuf))
            }
            Backend::Vulkan | Backend::Host if backing.is_some() => Err(Refused(
                "this backend allocates its own memory; do not specify a kind of CUDA memory"
                    .to_owned(),
            )),
            Backend::Vulkan => vulkan::make(device, bytes).map(|made| made.map(Made::Vulkan)),
            Backend::Host => host::make(device, bytes).map(|made| made.map(Made::Host)),
        };
        Self::guarded(device, backend, pieces)
    }

    /// Maps the same memory a second time at another address. Stores through one mapping are visible through the other.
    pub fn again(&self) -> Result<Arc<Self>, Refusal> {
        let pieces =
            match &*self.made {
                _ if let Err(error) = self.check() => Err(Refused(error.to_string())),
                Made::Gdrapi(mapping) => gdrapi::map(mapping.memory.clone(), self.bytes)
                    .map(|made| made.map(Made::Gdrapi)),
                Made::DmaBuf(mapping) => dma_buf::map(mapping.memory.clone(), self.bytes)
                    .map(|made| made.map(Made::DmaBuf)),
                Made::Vulkan(_) | Made::Host(_) => Err(Refused(
                    "memory of this backend can be mapped only once; share the mapping".to_owned(),
                )),
            };
        Self::guarded(self.device, self.backend, pieces).map(Arc::new)
    }

    /// Exports the memory as a dma-buf, which is possible only for CUDA memory.
    pub fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        let memory = self.made.memory().map_err(DmaBufError::Kind)?;
        let offset = usize::try_from(self.gpu - memory.address()).unwrap_or(usize::MAX);
        memory.dma_buf(offset, self.bytes)
    }

    fn guarded(
        device: &'static Device,
        backend: Backend,
        pieces: Result<Pieces<Made>, Refused>,
    ) -> Result<Self, Refusal> {
        let refuse = |why| Refusal { backend, why };
        let pieces = pieces.map_err(|Refused(why)| refuse(why))?;
        // SAFETY: the backend mapped these bytes just above. They stay mapped until `drop`, which drops the guard
        // first. No code of this module creates a reference to them or relies on their content.
        let guard = match unsafe { Guard::new(pieces.cpu, pieces.bytes) } {
            Ok(guard) => guard,
            Err(error) => {
                let rest = Rest {
                    _guard: None,
                    _made: pieces.made,
                };
                // A persistent kernel may have started meanwhile, and freeing would wait for its end.
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

    /// Returns the GPU whose memory is mapped.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the address of the first byte as the device sees it.
    pub const fn address(&self) -> u64 {
        self.gpu
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte as the CPU sees it.
    pub(crate) const fn pointer(&self) -> NonNull<u8> {
        self.cpu
    }

    /// Returns the CPU's address of the first byte, which can be passed to a device.
    ///
    /// Stores through this address bypass every check of this module.
    pub const fn cpu_address(&self) -> NonNull<u8> {
        self.cpu
    }

    /// Returns the backend that created the mapping.
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the backends that were tried before, with the reasons why they failed.
    pub fn refused(&self) -> &[Refusal] {
        &self.refused
    }

    /// Returns the durations of the steps of creating the mapping.
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// Checks that this process created the mapping and that the device is present. Takes only a few load instructions.
    #[inline]
    pub fn check(&self) -> Result<(), BarMappingError> {
        if self.guard.is_forked() {
            return Err(BarMappingError::Forked {
                ordinal: self.device.ordinal(),
            });
        }
        self.check_device()
    }

    /// Checks whether the device hangs, and whether an access of this thread has detected that the memory was lost.
    #[inline]
    pub(crate) fn check_device(&self) -> Result<(), BarMappingError> {
        // The fault handler runs between two instructions of this thread, so this check must stay after the accesses.
        compiler_fence(Ordering::SeqCst);
        if self.guard.is_lost() || self.device.is_hung() {
            return Err(BarMappingError::Lost {
                ordinal: self.device.ordinal(),
            });
        }
        Ok(())
    }

    /// Starts a group of stores. The stores have left the CPU when the returned value is dropped or fenced.
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

    /// Reads from `offset` into `to`. This is slow, because every few bytes need a round trip over the bus. Use this
    /// function only for setup and tests.
    pub fn copy_from(&self, offset: usize, to: &mut [u8]) -> Result<(), BarMappingError> {
        self.check()?;
        let from = self.at(offset, to.len())?;
        // SAFETY: the range is inside the mapping, and no reference to the mapping is created.
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
        // SAFETY: the offset is inside the mapping, as just checked.
        Ok(unsafe { self.cpu.add(offset) })
    }
}

/// The parts of a mapping that is no longer used. The guard is dropped first, because Linux may reuse the addresses
/// after the memory is unmapped.
struct Rest {
    _guard: Option<Guard>,
    _made: Made,
}

// SAFETY: the parts refer to plain memory to which no reference exists, and any thread may free them.
unsafe impl Send for Rest {}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // A child process does not have the mapping and must not call CUDA. Memory that a hung device may still use is
        // not freed, and its guard is kept.
        if self.guard.is_forked() || self.device.is_hung() {
            return;
        }
        // SAFETY: both fields are moved out only here and are not used again.
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
    /// Makes the type neither `Send` nor `Sync`, because a fence orders only the stores of its own thread.
    thread: PhantomData<*const ()>,
}

impl Stores<'_> {
    /// Copies `from` to `offset`. The store is not ordered with other stores until the next fence.
    #[inline]
    pub fn copy(&mut self, offset: usize, from: &[u8]) -> Result<(), BarMappingError> {
        self.mapped.check()?;
        let to = self.mapped.at(offset, from.len())?;
        // SAFETY: the range is inside the mapping. No reference to the mapping exists, so `from` does not overlap it.
        unsafe { store::copy_to(to.as_ptr(), from.as_ptr(), from.len()) };
        self.mapped.check_device()
    }

    /// Copies the words `from` to `offset`, as [`copy`](Self::copy) does.
    pub fn words(&mut self, offset: usize, from: &[u64]) -> Result<(), BarMappingError> {
        // SAFETY: the words consist of initialised bytes, which live as long as `from`.
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
        assert!(
            offset.is_multiple_of(8),
            "the offset of a word must be a multiple of 8"
        );
        self.mapped.check()?;
        let to = self.mapped.at(offset, 8)?;
        // SAFETY: the word is inside the mapping, which is page-aligned, and no reference to the mapping is created.
        unsafe { to.cast::<u64>().write_volatile(value) };
        self.mapped.check_device()
    }

    /// Whether the stores go through `mapped`.
    #[inline]
    pub(crate) fn are_of(&self, mapped: &BarMapping) -> bool {
        std::ptr::eq(self.mapped, mapped)
    }

    /// Makes all earlier stores leave the CPU before later stores.
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
