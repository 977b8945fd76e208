//! Regions: one pinned allocation each, with its placement and its registrations.
//!
//! ```text
//!   Region ── owns ──▶ registrations (undone last to first) ──▶ memory (freed at the end)
//! ```
//! A region is shared by `Arc`; it is freed when the last ring, reader or device that holds it is gone.

use crate::gpu::bar_mapping::{BarMapping, Unmappable};
use crate::gpu::driver::{CudaError, Device, Memory, Registered};
use crate::gpu::{Backend, Writer};
use crate::sys::memory;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the hugepages that regions ask for.
const HUGE_PAGE: usize = 2 << 20;
/// Every region's length is a multiple of this.
const PAGE: usize = 4096;

/// Where a region's memory lies.
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

/// Why a region could not be had.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A region of no bytes was asked for.
    #[error("a region of 0 bytes was asked for")]
    Empty,
    /// The kernel gave no memory.
    #[error(
        "cannot allocate {bytes} bytes of memory: {source}; lower `slots` or `slot` of the ring, or raise `ulimit -v`"
    )]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's answer.
        source: Errno,
    },
    /// The GPU has no memory that the CPU can store to.
    #[error(transparent)]
    Unmappable(#[from] Unmappable),
    /// The GPU gave no memory, or host memory could not be pinned for it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Why there is no dma-buf of a region.
#[derive(Debug, thiserror::Error)]
pub enum DmaBufError {
    /// It is memory that none is made of.
    #[error(
        "{0} is not handed on as a dma-buf; for memory of CUDA's that is, have `gdrapi` or `dma-buf` among `backends` of `[staging]`"
    )]
    Kind(&'static str),
    /// The GPU's driver refused.
    #[error(
        "{0}; it takes a GPU and a driver that export dma-bufs (the open kernel modules, 535 or newer)"
    )]
    Refused(#[from] CudaError),
}

/// How a host region is to be had; every wish that cannot be met is told, none is fatal.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions {
    /// Preferred NUMA node.
    pub node: Option<u32>,
    /// Lock the pages in memory.
    pub lock: bool,
    /// Use hugepages: the kernel's pool where it has enough, transparent ones else.
    pub huge: bool,
    /// Back it by a file in memory ([`Region::file`]), so that another process can map it too; without pool hugepages.
    pub shared: bool,
}

/// What a host region got of what it wished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Whether the pages are locked.
    pub locked: bool,
    /// What backs the pages: `"hugetlb"`, `"transparent hugepages"` or `"4 KiB pages"`.
    pub pages: &'static str,
    /// Wishes that were refused, each with reason and remedy.
    pub refused: Vec<String>,
}

/// Something that refers to a region's memory (a registration with a device, an export) and is undone
/// by being dropped.
pub trait Registration: Send {
    /// Who holds the memory, for messages.
    fn holder(&self) -> &str;

    /// The GPU whose driver is called when it is undone.
    fn device(&self) -> Option<&'static Device> {
        None
    }
}

/// What a region's memory is, and who frees it.
enum Backing {
    /// A mapping of this process, which the region unmaps, and the file behind it, if there is one.
    Host(Option<OwnedFd>),
    /// Memory of a GPU, which frees itself.
    Cuda(Memory),
    /// The same that the CPU can store to.
    BarMapping(Arc<BarMapping>),
    /// A mapping of this process that stands for a GPU's memory, without which rings there could not be tested.
    #[cfg(test)]
    Fake,
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

// SAFETY: the region is plain memory behind a pointer that never changes. Who may read or write which
// part at which time is the business of the ring built on it; the region itself hands out only the
// pointer. `registrations` is behind a mutex and its items are `Send`; a GPU's memory may be freed by any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A zeroed host region of at least `bytes`.
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
        let map = |source| RegionError::Map {
            bytes: length,
            source,
        };
        let file = options
            .shared
            .then(|| memory::file(length))
            .transpose()
            .map_err(map)?;
        let pool = (wants_huge && file.is_none())
            .then(|| memory::map(length, true))
            .and_then(Result::ok);
        let address = match pool {
            Some(address) => {
                granted.pages = "hugetlb";
                address
            }
            None => match &file {
                Some(file) => memory::map_file(file, length),
                None => memory::map(length, false),
            }
            .map_err(map)?,
        };
        if wants_huge && pool.is_none() {
            match memory::advise_huge(address, length) {
                Ok(()) => granted.pages = "transparent hugepages",
                Err(errno) => granted.refused.push(format!(
                    "hugepages: {errno}; reserve some: sysctl vm.nr_hugepages=N"
                )),
            }
        }
        if let Some(node) = options.node
            && let Err(errno) = memory::prefer_node(address, length, node)
        {
            granted
                .refused
                .push(format!("memory on NUMA node {node}: {errno}"));
        }
        if options.lock {
            match memory::lock(address, length) {
                Ok(()) => granted.locked = true,
                Err(errno) => granted.refused.push(format!(
                    "locking {} in memory: {errno}; raise the limit (ulimit -l, LimitMEMLOCK= in the unit), going on unlocked",
                    crate::units::ByteSize(length as u64)
                )),
            }
        }
        if !granted.locked {
            // SAFETY: the mapping is `length` bytes, just made, and not shared yet. Touching each page now
            // keeps page faults out of the data path.
            unsafe { std::ptr::write_bytes(address.as_ptr(), 0, length) };
        }
        Ok(Arc::new(Self {
            address,
            bytes: length,
            placement: Placement::Host,
            granted,
            backing: Backing::Host(file),
            registrations: Mutex::new(Vec::new()),
        }))
    }

    /// A zeroed region of at least `bytes` in the memory of a GPU.
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

    /// A zeroed region of at least `bytes` in the memory of a GPU that the CPU can store to, made by the first backend
    /// that suits `writer` and is `allowed`.
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

    /// A host region that says of itself that it lies on a GPU.
    #[cfg(test)]
    pub(crate) fn fake(bytes: usize, placement: Placement) -> Arc<Self> {
        let length = bytes.next_multiple_of(PAGE);
        Arc::new(Self {
            address: memory::map(length, false).unwrap(),
            bytes: length,
            placement,
            granted: Granted::default(),
            backing: Backing::Fake,
            registrations: Mutex::new(Vec::new()),
        })
    }

    /// Pins a host region for CUDA, so that GPUs copy from and to it at full rate. Done once, it holds for all
    /// GPUs; regions of GPUs need nothing.
    pub fn pin(self: &Arc<Self>, device: &'static Device) -> Result<(), RegionError> {
        if self.placement == Placement::Host {
            // SAFETY: the region is mapped, and registrations are undone before it is unmapped.
            let registered = unsafe { Registered::new(device, self.address, self.bytes) }?;
            self.register(Box::new(registered));
        }
        Ok(())
    }

    /// The address of the first byte, as the CPU sees it; of a GPU's memory, as the GPU sees it, which the CPU
    /// cannot follow.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Where the CPU reaches the first byte: of host memory, or of a GPU's through a mapping; `None` where it cannot.
    ///
    /// A device may write there at any time; whoever reads or writes does it by copies that allow for that.
    pub fn cpu_address(&self) -> Option<NonNull<u8>> {
        match &self.backing {
            Backing::Host(_) => Some(self.address),
            Backing::BarMapping(mapped) => Some(mapped.cpu_address()),
            Backing::Cuda(_) => None,
            #[cfg(test)]
            Backing::Fake => None,
        }
    }

    /// The file whose first bytes a host region is, where it was made [`shared`](HostOptions::shared).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Host(file) => file.as_ref().map(AsFd::as_fd),
            Backing::Cuda(_) | Backing::BarMapping(_) => None,
            #[cfg(test)]
            Backing::Fake => None,
        }
    }

    /// A dma-buf of a GPU's region, through which other devices' drivers reach its memory.
    pub fn dma_buf(&self) -> Result<OwnedFd, DmaBufError> {
        match &self.backing {
            Backing::Cuda(memory) => Ok(memory.dma_buf(0, self.bytes)?),
            Backing::BarMapping(mapped) => mapped.dma_buf(),
            Backing::Host(_) => Err(DmaBufError::Kind("host memory")),
            #[cfg(test)]
            Backing::Fake => Err(DmaBufError::Kind("pretended memory")),
        }
    }

    /// The GPU's memory, as CUDA allocated it; `None` for host regions and those that the CPU can store to.
    pub fn memory(&self) -> Option<&Memory> {
        match &self.backing {
            Backing::Cuda(memory) => Some(memory),
            Backing::Host(_) | Backing::BarMapping(_) => None,
            #[cfg(test)]
            Backing::Fake => None,
        }
    }

    /// The GPU's memory as the CPU can store to it; `None` where it cannot.
    pub fn mapping(&self) -> Option<&Arc<BarMapping>> {
        match &self.backing {
            Backing::BarMapping(mapped) => Some(mapped),
            Backing::Host(_) | Backing::Cuda(_) => None,
            #[cfg(test)]
            Backing::Fake => None,
        }
    }

    /// Bytes in the region; at least as many as were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the memory lies.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// What the region got of what it wished.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Ties a registration's life to the region: it is undone before the memory is freed, later ones first.
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
            mapping: match self.backing {
                Backing::Cuda(_) | Backing::BarMapping(_) => None,
                Backing::Host(_) => Some((self.address, self.bytes)),
                #[cfg(test)]
                Backing::Fake => Some((self.address, self.bytes)),
            },
        };
        let registrations = &mut rest.registrations.iter();
        match registrations.find_map(|registration| registration.device()) {
            Some(device) => device.free("pinned host memory", move || drop(rest)),
            None => drop(rest),
        }
    }
}

/// What is left of a region that nobody holds any more.
struct Rest {
    registrations: Vec<Box<dyn Registration>>,
    /// The mapping of this process.
    mapping: Option<(NonNull<u8>, usize)>,
}

// SAFETY: as for a region.
unsafe impl Send for Rest {}

impl Drop for Rest {
    fn drop(&mut self) {
        while let Some(registration) = self.registrations.pop() {
            drop(registration);
        }
        let Some((address, bytes)) = self.mapping else {
            return;
        };
        // SAFETY: address and length are those of the one mapping made in `host`. This comes from the drop of the last
        // `Arc` of the region, so no ring, reader or lease refers to the memory; every registration that let a
        // device refer to it was undone just above.
        let result = unsafe { memory::unmap(address, bytes) };
        debug_assert!(result.is_ok(), "unmapping a region failed: {result:?}");
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        // SAFETY: the region is at least 3 MiB and nobody writes it.
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
