//! Memory of this process that the devices of a VFIO container reach.
//!
//! ```text
//!   Map ── owns ──▶ container (its descriptor stays open) and keeper (the memory stays mapped in this process)
//!    └── ends ──▶ the kernel's mapping, then the keeper goes; it never goes before
//! ```

use super::vfio as sys;
use super::vfio_bar::Bar;
use daq_core::region::Region;
use std::any::Any;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use vfio_ioctls::{VfioContainer, VfioError};

/// What keeps memory mapped in this process.
type Keeper = Arc<dyn Any + Send + Sync>;

/// Memory that is mapped in this process, with what keeps it so.
pub struct Memory {
    address: NonNull<u8>,
    bytes: usize,
    keeper: Keeper,
}

impl Memory {
    /// All of a region; `None` where the CPU does not reach it.
    pub fn region(region: &Arc<Region>) -> Option<Self> {
        Some(Self {
            address: region.cpu_address()?,
            bytes: region.bytes(),
            keeper: region.clone(),
        })
    }

    /// All of a stretch of another device's memory.
    pub fn bar(bar: &Arc<Bar>) -> Self {
        Self {
            address: bar.address(),
            bytes: bar.bytes(),
            keeper: bar.clone(),
        }
    }

    /// Where it is mapped.
    pub const fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory that a container's devices reach at an address, until it is [unmapped](Self::unmap) or dropped.
///
/// Where a drop does not end the kernel's mapping, the memory is kept until the process ends.
pub struct Map {
    /// The device's name, for messages.
    device: String,
    container: Arc<dyn AsRawFd + Send + Sync>,
    address: u64,
    bytes: usize,
    /// `None` once the kernel has ended the mapping, and not before.
    keeper: Option<Keeper>,
}

impl Map {
    /// Makes `memory` reachable for the container's devices at `address`. The kernel refuses what is not whole pages, and
    /// addresses of which one is mapped already.
    pub fn new(
        device: &str,
        container: &Arc<VfioContainer>,
        address: u64,
        memory: Memory,
    ) -> Result<Self, VfioError> {
        let Memory {
            address: begin,
            bytes,
            keeper,
        } = memory;
        // SAFETY: A device may write this memory at any time from here on until the kernel has ended the mapping.
        // - It is mapped in this process and stays so: `Memory` is made of a region's or a BAR's own address and length
        //   alone, both unmap only when they are dropped, and `keeper` is a share of theirs, which `unmap` and `drop`
        //   give up after the kernel has ended the mapping. This matters for BARs; host memory the kernel keeps itself.
        // - No Rust reference into what a device writes exists: a BAR is accessed by volatile words, and of a region its
        //   ring alone says who may read or write which part, and lends no reader a slot that a device was given.
        // - An unmapping of these addresses that the kernel calls whole has ended this mapping: the container refuses a
        //   second one at any of them, and stays the one behind the descriptor as long as `container` is held.
        unsafe { container.vfio_dma_map(address, bytes, begin.as_ptr()) }?;
        Ok(Self {
            device: device.to_owned(),
            container: container.clone(),
            address,
            bytes,
            keeper: Some(keeper),
        })
    }

    /// Bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the mapping: no write of a device reaches the memory afterwards. Where the kernel refuses, the map comes back
    /// as it was, with the kernel's reason.
    pub fn unmap(mut self) -> Result<(), (Self, io::Error)> {
        match self.end() {
            Ok(()) => {
                self.keeper = None;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    fn end(&self) -> io::Result<()> {
        // SAFETY: `self` holds the container, which owns this descriptor and closes it in its drop.
        let container = unsafe { BorrowedFd::borrow_raw(self.container.as_raw_fd()) };
        match sys::unmap(container, self.address, self.bytes as u64)? {
            unmapped if unmapped == self.bytes as u64 => Ok(()),
            unmapped => Err(io::Error::other(format!(
                "the kernel unmapped {unmapped:#x} bytes"
            ))),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.take() else {
            return;
        };
        if let Err(error) = self.end() {
            // Before anything that could unwind.
            mem::forget(keeper);
            let Self {
                device,
                address,
                bytes,
                ..
            } = self;
            tracing::error!(
                "{device}: unmapping {bytes:#x} bytes at {address:#x}: {error}; they are kept until this process ends"
            );
        }
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("device", &self.device)
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::region::HostOptions;
    use std::fs::File;

    /// A map of `keeper` in what refuses every unmapping, being no container.
    fn refused(keeper: &Arc<Region>) -> Map {
        Map {
            device: "null".to_owned(),
            container: Arc::new(File::open("/dev/null").unwrap()),
            address: 0x20_0000,
            bytes: keeper.bytes(),
            keeper: Some(keeper.clone()),
        }
    }

    #[test]
    fn mapping_keeps_its_memory() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let memory = Memory::region(&region).unwrap();
        assert_eq!(Some(memory.address()), region.cpu_address());
        assert_eq!(memory.bytes(), region.bytes());
        assert_eq!(Arc::strong_count(&region), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn memory_with_failed_unmap_is_leaked() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let (map, error) = refused(&region).unmap().unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error}");
        assert_eq!(
            Arc::strong_count(&region),
            2,
            "the map came back with its memory"
        );
        drop(map);
        assert_eq!(Arc::strong_count(&region), 2, "and kept it for good");
    }

    #[test]
    fn ended_map_makes_no_calls_and_keeps_nothing() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let mut map = refused(&region);
        map.keeper = None;
        drop(map);
        assert_eq!(Arc::strong_count(&region), 1);
    }
}
