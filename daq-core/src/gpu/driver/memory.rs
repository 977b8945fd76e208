//! Device memory, and pinned host memory for copies.

use super::device::Device;
use super::error::{CudaError, Doing, PINNING};
use crate::sys::cuda::{self, Allocation};
use crate::units::ByteSize;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// The kind of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Mapped from a physical allocation.
    Mapped {
        /// Whether NICs can access the memory.
        rdma: bool,
        /// Whether other processes can map the memory.
        shareable: bool,
    },
    /// One plain allocation.
    Plain,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped {
                rdma: true,
                shareable: true,
            } => "CUDA virtual memory (cuMemMap), RDMA-capable, shareable with other processes",
            Self::Mapped {
                rdma: true,
                shareable: false,
            } => "CUDA virtual memory (cuMemMap), RDMA-capable",
            Self::Mapped {
                rdma: false,
                shareable: true,
            } => "CUDA virtual memory (cuMemMap), shareable with other processes",
            Self::Mapped {
                rdma: false,
                shareable: false,
            } => "CUDA virtual memory (cuMemMap)",
            Self::Plain => "a plain allocation",
        })
    }
}

/// The error for memory that cannot be exported as a dma-buf.
#[derive(Debug, thiserror::Error)]
pub enum DmaBufError {
    /// The kind of memory does not support the export.
    #[error(
        "{0} cannot be exported as a dma-buf; to use CUDA memory, add `gdrapi` or `dma-buf` to `backends` in `[staging]`"
    )]
    Kind(&'static str),
    /// The GPU's driver returned an error.
    #[error(
        "{0}; exporting dma-bufs needs a GPU and driver that support it (the open kernel modules, 535 or newer)"
    )]
    Refused(#[from] CudaError),
}

/// Memory of one device.
///
/// The value must not be dropped while a stream has work that uses the memory.
pub struct Memory {
    device: &'static Device,
    address: u64,
    bytes: usize,
    /// The physical allocation of mapped memory; `None` for a plain allocation.
    allocation: Option<Allocation>,
    backing: Backing,
}

impl Memory {
    /// Allocates at least `bytes` zeroed bytes. If the device supports mapped memory, NICs and other processes can
    /// access the allocation. Otherwise, makes a plain allocation.
    pub fn new(device: &'static Device, bytes: usize) -> Result<Self, CudaError> {
        let attributes = device.attributes();
        let (rdma, posix_fd) = (attributes.rdma, attributes.posix_fd);
        let mut backings = Vec::new();
        if attributes.vmm {
            for (rdma, shareable) in [
                (rdma, posix_fd),
                (rdma, false),
                (false, posix_fd),
                (false, false),
            ] {
                let way = Backing::Mapped { rdma, shareable };
                if !backings.contains(&way) {
                    backings.push(way);
                }
            }
        }
        backings.push(Backing::Plain);
        let mut last = None;
        for backing in backings {
            match Self::with(device, bytes, backing) {
                Ok(memory) => return Ok(memory),
                // If memory is exhausted, every other method fails, too.
                Err(error) if error.code == 2 || error.is_sticky() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("the list ends with Backing::Plain")))
    }

    /// Allocates at least `bytes` zeroed bytes of exactly `backing`.
    pub fn with(
        device: &'static Device,
        bytes: usize,
        backing: Backing,
    ) -> Result<Self, CudaError> {
        device.enter()?;
        let free = device.free_memory().unwrap_or(0);
        let what = || {
            let place = device.ordinal();
            format!("allocating {} on cuda:{place}", ByteSize(bytes as u64))
        };
        let no_room = |error: CudaError| {
            if error.code == 2 {
                error.with_detail(format!("{} are free", ByteSize(free as u64)))
            } else {
                error
            }
        };
        let memory = match backing {
            Backing::Plain => Self {
                device,
                address: cuda::allocate(bytes).doing(what).map_err(no_room)?,
                bytes,
                allocation: None,
                backing,
            },
            Backing::Mapped { rdma, shareable } => {
                let handle = device.handle();
                let step = cuda::granularity(handle, rdma, shareable).doing(what)?;
                let bytes = bytes.next_multiple_of(step.max(1));
                let allocation = cuda::create(handle, bytes, rdma, shareable)
                    .doing(what)
                    .map_err(no_room)?;
                let address = match cuda::reserve_addresses(bytes) {
                    Ok(address) => address,
                    Err(code) => {
                        // SAFETY: the allocation was created just above and is not mapped.
                        let _ = unsafe { cuda::release(allocation) };
                        return Err(CudaError::new(what(), code));
                    }
                };
                // SAFETY: the range was reserved just above, with the size of the allocation.
                if let Err(code) = unsafe { cuda::map(handle, address, bytes, allocation) } {
                    // SAFETY: the address range and the allocation were created just above, and nothing is mapped.
                    unsafe {
                        let _ = cuda::free_addresses(address, bytes);
                        let _ = cuda::release(allocation);
                    }
                    return Err(CudaError::new(what(), code));
                }
                Self {
                    device,
                    address,
                    bytes,
                    allocation: Some(allocation),
                    backing,
                }
            }
        };
        // SAFETY: the memory has this size, and nothing else uses it yet.
        unsafe { cuda::fill(memory.address, 0, memory.bytes) }.doing(what)?;
        // For device memory the call returns before the bytes are set.
        device.synchronize()?;
        Ok(memory)
    }

    /// Allocates device memory with a copy of `bytes`.
    pub fn holding(device: &'static Device, bytes: &[u8]) -> Result<Self, CudaError> {
        let memory = Self::with(device, bytes.len().max(1), Backing::Plain)?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the address of the first byte as the device sees it.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the kind of memory.
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Writes `bytes` at `offset` and waits until the bytes have arrived. Used for setup and tests.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.bytes),
            "the range is outside the memory"
        );
        self.device.enter()?;
        // SAFETY: the range is inside the memory, as just checked. No reference to device memory is created, so
        // concurrent users see old or new bytes.
        unsafe { cuda::copy_in(self.address + offset as u64, bytes) }
            .doing(|| format!("writing memory of cuda:{}", self.device.ordinal()))?;
        // The call returns when the bytes have left host memory, which can be before they have arrived. A stream that
        // does not wait for the default stream might not see them.
        self.device.synchronize()
    }

    /// Reads from `offset` into `bytes` and waits until the bytes have arrived. Used for setup and tests.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.bytes),
            "the range is outside the memory"
        );
        self.device.enter()?;
        // SAFETY: the range is inside the memory, as just checked.
        unsafe { cuda::copy_out(bytes, self.address + offset as u64) }
            .doing(|| format!("reading memory of cuda:{}", self.device.ordinal()))
    }

    /// Lets another device read and write the memory. The device must be a [peer](super::Identity::link_to).
    ///
    /// # Errors
    /// If the device cannot access this memory. No device can be granted access to a plain allocation.
    pub fn grant(&self, peer: &Device) -> Result<(), CudaError> {
        let what = || {
            format!(
                "granting cuda:{} access to memory of cuda:{}",
                peer.ordinal(),
                self.device.ordinal()
            )
        };
        if self.allocation.is_none() {
            return Err(CudaError::new(what(), cuda::NOT_SUPPORTED)
                .with_detail(format!("the memory is {}", self.backing)));
        }
        self.device.enter()?;
        // SAFETY: the range was mapped in `with` and stays mapped as long as `self`.
        unsafe { cuda::grant(peer.handle(), self.address, self.bytes) }.doing(what)
    }

    /// Exports the memory as a file descriptor, with which another process can map it; `None` if the memory is not
    /// shareable.
    pub fn share(&self) -> Result<Option<OwnedFd>, CudaError> {
        let (
            Some(allocation),
            Backing::Mapped {
                shareable: true, ..
            },
        ) = (self.allocation, self.backing)
        else {
            return Ok(None);
        };
        self.device.enter()?;
        // SAFETY: the allocation lives as long as `self` and is shareable.
        unsafe { cuda::export(allocation) }
            .map(Some)
            .doing(|| format!("sharing memory of cuda:{}", self.device.ordinal()))
    }

    /// Exports `bytes` bytes from `offset` on as a dma-buf. The range must start and end at boundaries of host pages.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn dma_buf(&self, offset: usize, bytes: usize) -> Result<OwnedFd, DmaBufError> {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= self.bytes),
            "the range is outside the memory"
        );
        self.device.enter()?;
        // SAFETY: the range is inside the memory, as just checked. The driver rejects ranges that are not whole pages.
        let exported = unsafe { cuda::dma_buf(self.address + offset as u64, bytes) }
            .doing(|| format!("exporting memory of cuda:{}", self.device.ordinal()));
        Ok(exported?)
    }

    /// Sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` for this memory: synchronous copy functions return only when the copy is
    /// complete. This is required if devices outside CUDA write the memory. Does nothing for mapped memory, which does
    /// not need the attribute.
    pub(crate) fn synchronize_copies(&self) -> Result<(), CudaError> {
        if self.backing != Backing::Plain {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: the address is that of a plain allocation.
        unsafe { cuda::synchronize_copies(self.address) }
            .doing(|| format!("preparing memory of cuda:{}", self.device.ordinal()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (address, bytes, allocation) = (self.address, self.bytes, self.allocation);
        let ordinal = self.device.ordinal();
        self.device.free("memory", move || {
            // SAFETY: address, size and allocation were created in `with`, and their owner is dropped. By the contract
            // of `Memory`, no work uses the memory.
            let result = unsafe {
                match allocation {
                    None => cuda::free(address),
                    Some(allocation) => cuda::unmap(address, bytes)
                        .and_then(|()| cuda::free_addresses(address, bytes))
                        .and_then(|()| cuda::release(allocation)),
                }
            };
            if let Err(code) = result {
                // After a sticky error, no memory can be freed. The process must end anyway.
                tracing::debug!("freeing memory of cuda:{ordinal}: {code:?}");
            }
        });
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("device", &self.device.ordinal())
            .field("bytes", &self.bytes)
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

/// Host memory that is pinned for CUDA, so that copies run at full rate and without the CPU.
#[derive(Debug)]
pub struct Registered {
    device: &'static Device,
    address: NonNull<u8>,
}

// SAFETY: the address is only passed back to the driver, from any thread.
unsafe impl Send for Registered {}

impl Registered {
    /// Pins `bytes` bytes at `address` for all devices.
    ///
    /// # Safety
    /// The range must be mapped, and must stay mapped until the returned value is dropped.
    pub(crate) unsafe fn new(
        device: &'static Device,
        address: NonNull<u8>,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::register_host(address.as_ptr(), bytes) }.doing(|| {
            format!(
                "{PINNING} {} of host memory for CUDA",
                ByteSize(bytes as u64)
            )
        })?;
        Ok(Self { device, address })
    }

    /// Returns the device whose driver pinned the memory.
    pub(crate) const fn device(&self) -> &'static Device {
        self.device
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.device.enter_to_free("pinned host memory") {
            return;
        }
        // SAFETY: the memory was registered in `new`. A region drops its registrations only when no ring uses it, so no
        // copy is in flight.
        if let Err(code) = unsafe { cuda::unregister_host(self.address.as_ptr()) } {
            tracing::debug!("unpinning host memory: {code:?}");
        }
    }
}
