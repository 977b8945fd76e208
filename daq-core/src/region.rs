//! Regions. A region is one pinned allocation with a placement and registrations.
//!
//! ```text
//!   Region ── owns ──▶ registrations (undone in reverse order) ──▶ memory (freed last)
//! ```
//! A region is shared by `Arc`. It is freed when the last ring, reader or device that uses it is dropped.

mod share;
mod shared_words;

pub use share::{ShareError, SharedMemory};
pub use shared_words::SharedWords;

use crate::gpu::bar_mapping::{BarMapping, Unmappable};
use crate::gpu::driver::{CudaError, Device, DmaBufError, Memory, Registered};
use crate::gpu::{Backend, Writer};
use crate::sys::copy;
pub use crate::sys::memory::MapError;
use crate::sys::memory::{self, Mapping};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// Size in bytes of the huge pages that regions request.
const HUGE_PAGE: usize = 2 << 20;
/// Page size in bytes. The length of every region is a multiple of the page size.
const PAGE: usize = 4096;

/// Location of a region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// Host memory.
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The error for a region that could not be allocated.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A region of zero bytes was requested.
    #[error("cannot allocate a region of 0 bytes")]
    Empty,
    /// Linux could not map the memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// No backend can provide GPU memory that the CPU can write.
    #[error(transparent)]
    Unmappable(#[from] Unmappable),
    /// Another GPU cannot access memory that the CPU can write.
    #[error(
        "cuda:{peer} cannot access memory of cuda:{owner} that the CPU can also write; copy through host memory"
    )]
    NoPeer {
        /// CUDA ordinal of the GPU that needs access.
        peer: u32,
        /// CUDA ordinal of the GPU that owns the memory.
        owner: u32,
    },
    /// The GPU could not allocate memory, or host memory could not be pinned for the GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Preferences for a host region. Preferences that cannot be met are reported in [`Granted::refused`] and are not
/// errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions {
    /// Preferred NUMA node.
    pub node: Option<u32>,
    /// Lock the pages in memory.
    pub lock: bool,
    /// Use huge pages: Linux's pool if it has enough, transparent huge pages otherwise.
    pub huge: bool,
    /// Back the region by a file in memory ([`Region::file`]), so that another process can also map the region. If limits
    /// prevent this, the memory is private.
    pub shared: bool,
}

/// Which preferences a host region was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Whether the pages are locked.
    pub locked: bool,
    /// Kind of pages: `"hugetlb"`, `"transparent hugepages"` or `"4 KiB pages"`.
    pub pages: &'static str,
    /// Refused preferences, each with reason and remedy.
    pub refused: Vec<String>,
}

/// A use of a region's memory outside this process's code, such as a registration with a device or an export. Dropping
/// the registration ends the use.
pub trait Registration: Send {
    /// Returns the name of the user of the memory, for messages.
    fn holder(&self) -> &str;

    /// Returns the GPU whose driver is called when the registration is dropped, if any.
    fn device(&self) -> Option<&'static Device> {
        None
    }
}

impl Registration for Registered {
    fn holder(&self) -> &'static str {
        "CUDA"
    }

    fn device(&self) -> Option<&'static Device> {
        Some(Self::device(self))
    }
}

/// The kind of memory, and how it is freed.
enum Backing {
    /// A mapping of this process, and the file behind it, if any. The mapping is moved out when the region is dropped.
    Host(Option<Mapping>, Option<OwnedFd>),
    /// GPU memory, which is freed when it is dropped.
    Cuda(Memory),
    /// GPU memory that the CPU can write.
    BarMapping(Arc<BarMapping>),
}

/// One pinned allocation.
pub struct Region {
    address: NonNull<u8>,
    bytes: usize,
    placement: Placement,
    granted: Granted,
    backing: Backing,
    registrations: Mutex<Vec<Box<dyn Registration>>>,
}

// SAFETY: the region is plain memory behind a pointer that never changes. The ring built on it decides who may read
// or write which part at which time; the region only hands out the pointer. `registrations` is behind a mutex and its
// items are `Send`. Any thread may free GPU memory.
unsafe impl Send for Region {}
// SAFETY: for the same reasons as for `Send`: the pointer never changes, and the ring controls all accesses.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates a zeroed host region of at least `bytes`.
    ///
    /// ```
    /// use daq_core::region::{HostOptions, Placement, Region};
    /// let region = Region::host(100_000, HostOptions::default())?;
    /// assert!(region.bytes() >= 100_000);
    /// assert_eq!(region.placement(), Placement::Host);
    /// # Ok::<(), daq_core::region::RegionError>(())
    /// ```
    pub fn host(bytes: usize, options: HostOptions) -> Result<Arc<Self>, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let mut granted = Granted {
            pages: "4 KiB pages",
            ..Granted::default()
        };
        let wants_huge = options.huge && bytes >= HUGE_PAGE;
        let length = bytes.next_multiple_of(if wants_huge { HUGE_PAGE } else { PAGE });
        let pool = wants_huge.then(|| Self::map(length, options.shared, true));
        let pool = pool.and_then(Result::ok);
        let is_pool = pool.is_some();
        let (mapping, file) = match pool {
            Some(mapped) => mapped,
            None => match Self::map(length, options.shared, false) {
                Err(error) if options.shared => {
                    granted.refused.push(format!(
                        "other processes cannot map the memory: {}; raise the limits on open files and file sizes (ulimit -n and -f, LimitNOFILE= and LimitFSIZE=)",
                        error.source
                    ));
                    Self::map(length, false, false)?
                }
                mapped => mapped?,
            },
        };
        if is_pool {
            granted.pages = "hugetlb";
        }
        let address = mapping.address();
        if wants_huge && !is_pool {
            match memory::advise_huge(address, length) {
                // Linux accepts the advice, but ignores it.
                Ok(()) if options.shared && !memory::has_huge_shared_pages() => {}
                Ok(()) => granted.pages = "transparent hugepages",
                Err(errno) => granted.refused.push(format!(
                    "cannot use huge pages: {errno}; reserve huge pages: sysctl vm.nr_hugepages=N"
                )),
            }
        }
        if let Some(node) = options.node
            && let Err(errno) = memory::prefer_node(address, length, node)
        {
            granted.refused.push(format!(
                "cannot allocate the memory on NUMA node {node}: {errno}"
            ));
        }
        if options.lock {
            match memory::lock(address, length) {
                Ok(()) => granted.locked = true,
                Err(errno) => granted.refused.push(format!(
                    "cannot lock {} in memory: {errno}; raise the limit (ulimit -l, or LimitMEMLOCK= in the unit); continuing without locking",
                    crate::units::ByteSize(length as u64)
                )),
            }
        }
        if !granted.locked {
            // SAFETY: the mapping is `length` bytes, was just created, and is not shared yet. Touching each page now
            // keeps page faults out of the data path.
            unsafe { std::ptr::write_bytes(address.as_ptr(), 0, length) };
        }
        Ok(Arc::new(Self {
            address,
            bytes: length,
            placement: Placement::Host,
            granted,
            backing: Backing::Host(Some(mapping), file),
            registrations: Mutex::new(Vec::new()),
        }))
    }

    /// Maps `bytes` zeroed bytes. With `shared`, the memory is that of the returned file. `huge` requests pages of the
    /// huge page pool.
    fn map(bytes: usize, shared: bool, huge: bool) -> Result<(Mapping, Option<OwnedFd>), MapError> {
        if !shared {
            return Ok((Mapping::anonymous(bytes, huge)?, None));
        }
        let file = memory::file(bytes, huge).map_err(|source| MapError { bytes, source })?;
        Ok((Mapping::of_file(&file, bytes)?, Some(file)))
    }

    /// Allocates a zeroed region of at least `bytes` in GPU memory.
    pub fn cuda(device: &'static Device, bytes: usize) -> Result<Arc<Self>, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let memory = Memory::new(device, bytes)?;
        let address = std::ptr::without_provenance_mut(
            usize::try_from(memory.address()).unwrap_or(usize::MAX),
        );
        Ok(Arc::new(Self {
            address: NonNull::new(address).ok_or(RegionError::Empty)?,
            bytes: memory.bytes(),
            placement: Placement::Cuda(device.ordinal()),
            granted: Granted {
                locked: true,
                pages: "GPU memory",
                refused: Vec::new(),
            },
            backing: Backing::Cuda(memory),
            registrations: Mutex::new(Vec::new()),
        }))
    }

    /// Allocates a zeroed region of at least `bytes` in GPU memory that the CPU can write, using the first `allowed`
    /// backend that is suitable for `writer`.
    pub fn mapped(
        device: &'static Device,
        bytes: usize,
        writer: Writer,
        allowed: &[Backend],
    ) -> Result<Arc<Self>, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let mapped = BarMapping::new(device, bytes, writer, allowed)?;
        let address = std::ptr::without_provenance_mut(
            usize::try_from(mapped.address()).unwrap_or(usize::MAX),
        );
        Ok(Arc::new(Self {
            address: NonNull::new(address).ok_or(RegionError::Empty)?,
            bytes: mapped.bytes(),
            placement: Placement::Cuda(device.ordinal()),
            granted: Granted {
                locked: true,
                pages: "GPU memory",
                refused: mapped.refused().iter().map(ToString::to_string).collect(),
            },
            backing: Backing::BarMapping(mapped),
            registrations: Mutex::new(Vec::new()),
        }))
    }

    /// Allocates a host region that reports the placement `placement`, for tests.
    #[cfg(test)]
    pub(crate) fn fake(bytes: usize, placement: Placement) -> Arc<Self> {
        let length = bytes.next_multiple_of(PAGE);
        let mapping = Mapping::anonymous(length, false).unwrap();
        Arc::new(Self {
            address: mapping.address(),
            bytes: length,
            placement,
            granted: Granted::default(),
            backing: Backing::Host(Some(mapping), None),
            registrations: Mutex::new(Vec::new()),
        })
    }

    /// Pins a host region for CUDA, so that GPUs copy from and to it at full rate. One call is sufficient for all GPUs.
    /// Does nothing for a GPU region.
    pub fn pin(self: &Arc<Self>, device: &'static Device) -> Result<(), RegionError> {
        if self.placement == Placement::Host {
            // SAFETY: the region is mapped, and all registrations are dropped before it is unmapped.
            let registered = unsafe { Registered::new(device, self.address, self.bytes) }?;
            self.register(Box::new(registered));
        }
        Ok(())
    }

    /// Lets another GPU write a GPU region. Does nothing if the region belongs to `peer`, or is host memory.
    ///
    /// # Errors
    /// If the GPU cannot access the region's GPU, or the memory has a [BAR mapping](Self::mapped).
    pub fn grant(&self, peer: &'static Device) -> Result<(), RegionError> {
        match &self.backing {
            Backing::Cuda(memory) if memory.device().ordinal() != peer.ordinal() => {
                Ok(memory.grant(peer)?)
            }
            Backing::BarMapping(mapped) if mapped.device().ordinal() != peer.ordinal() => {
                Err(RegionError::NoPeer {
                    peer: peer.ordinal(),
                    owner: mapped.device().ordinal(),
                })
            }
            Backing::Cuda(_) | Backing::BarMapping(_) | Backing::Host(..) => Ok(()),
        }
    }

    /// Returns the address of the first byte: for host memory the CPU's address, for GPU memory the GPU's address,
    /// which the CPU cannot dereference.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the CPU's address of the first byte of host memory, or of GPU memory with a BAR mapping; `None` if the
    /// CPU has no access.
    ///
    /// A device may write the memory at any time, so access it only with copies that tolerate concurrent writes.
    pub fn cpu_address(&self) -> Option<NonNull<u8>> {
        match &self.backing {
            Backing::Host(..) => Some(self.address),
            Backing::BarMapping(mapped) => Some(mapped.cpu_address()),
            Backing::Cuda(_) => None,
        }
    }

    /// Copies the bytes from `offset` on to `to`. A device may write the bytes meanwhile; everything that it wrote before
    /// the call is visible. Returns false if the range is outside the region or the CPU has no access.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let end = offset.checked_add(to.len());
        let Some(base) = self.cpu_address() else {
            return false;
        };
        if end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        fence(Ordering::Acquire);
        // SAFETY: the range is inside the region, which is mapped while it exists. No reference to it is created.
        unsafe { copy::volatile(base.as_ptr().wrapping_add(offset), to) };
        true
    }

    /// Returns the file that backs the region, if the region was created [`shared`](HostOptions::shared).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Host(_, file) => file.as_ref().map(AsFd::as_fd),
            Backing::Cuda(_) | Backing::BarMapping(_) => None,
        }
    }

    /// Exports GPU memory as a dma-buf, through which drivers of other devices can access it.
    pub fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        match &self.backing {
            Backing::Cuda(memory) => memory.dma_buf(0, self.bytes),
            Backing::BarMapping(mapped) => mapped.dma_buf(),
            Backing::Host(..) => Err(DmaBufError::Kind("host memory")),
        }
    }

    /// Returns the CUDA allocation; `None` for host regions and for GPU regions that the CPU can write.
    pub fn memory(&self) -> Option<&Memory> {
        match &self.backing {
            Backing::Cuda(memory) => Some(memory),
            Backing::Host(..) | Backing::BarMapping(_) => None,
        }
    }

    /// Returns the BAR mapping of GPU memory that the CPU can write; `None` for other memory.
    pub fn mapping(&self) -> Option<&Arc<BarMapping>> {
        match &self.backing {
            Backing::BarMapping(mapped) => Some(mapped),
            Backing::Host(..) | Backing::Cuda(_) => None,
        }
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the location of the memory.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns which preferences the region was granted.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Adds a registration to the region. Registrations are dropped before the memory is freed, in reverse order.
    pub fn register(&self, registration: Box<dyn Registration>) {
        self.registrations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(registration);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let registrations = self
            .registrations
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let rest = Rest {
            registrations: std::mem::take(registrations),
            _mapping: match &mut self.backing {
                Backing::Cuda(_) | Backing::BarMapping(_) => None,
                Backing::Host(mapping, _) => mapping.take(),
            },
        };
        let registrations = &mut rest.registrations.iter();
        match registrations.find_map(|registration| registration.device()) {
            Some(device) => device.free("pinned host memory", move || drop(rest)),
            None => drop(rest),
        }
    }
}

/// The parts of a region that are freed after its last user is dropped.
struct Rest {
    registrations: Vec<Box<dyn Registration>>,
    /// The mapping of this process. No ring, reader or lease refers to it any more. It is dropped last, because devices
    /// access the memory through the registrations.
    _mapping: Option<Mapping>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        while let Some(registration) = self.registrations.pop() {
            drop(registration);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("bytes", &self.bytes)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn region_is_zeroed_and_page_aligned() {
        let region = Region::host(
            3 << 20,
            HostOptions {
                lock: true,
                huge: true,
                node: Some(0),
                ..HostOptions::default()
            },
        )
        .unwrap();
        assert_eq!(region.address().as_ptr() as usize % PAGE, 0);
        // SAFETY: the region has at least 3 MiB, and no other code writes it.
        let bytes = unsafe { std::slice::from_raw_parts(region.address().as_ptr(), 3 << 20) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn mlock_beyond_limit_is_reported_and_region_usable() {
        let region = Region::host(
            1 << 30,
            HostOptions {
                lock: true,
                ..HostOptions::default()
            },
        )
        .unwrap();
        let granted = region.granted();
        assert!(
            granted.locked || granted.refused.iter().any(|why| why.contains("ulimit -l")),
            "{granted:?}"
        );
    }

    #[test]
    fn registrations_are_released_in_reverse_order() {
        static UNDONE: AtomicUsize = AtomicUsize::new(0);
        struct Held(usize);
        impl Registration for Held {
            fn holder(&self) -> &'static str {
                "test"
            }
        }
        impl Drop for Held {
            fn drop(&mut self) {
                assert_eq!(UNDONE.fetch_add(1, Ordering::Relaxed), self.0);
            }
        }
        let region = Region::host(1, HostOptions::default()).unwrap();
        region.register(Box::new(Held(1)));
        region.register(Box::new(Held(0)));
        drop(region);
        assert_eq!(UNDONE.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn empty_region_is_rejected() {
        assert!(matches!(
            Region::host(0, HostOptions::default()),
            Err(RegionError::Empty)
        ));
    }
}
