//! Memory of this process that the devices of a VFIO container can access.
//!
//! ```text
//!   Map ── owns ──▶ container (its descriptor stays open) and keep_alive (the memory stays mapped in this process)
//!    └── drop ──▶ ends the Linux mapping first, then releases `keep_alive`
//! ```

use super::vfio as sys;
use super::vfio_bar::Bar;
use daq_core::leak::leak;
use daq_core::region::Region;
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use vfio_ioctls::{VfioContainer, VfioError};

/// Shared owner that keeps memory mapped in this process.
type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Memory that is mapped in this process, with its shared owner.
pub(crate) struct Memory {
    address: NonNull<u8>,
    bytes: usize,
    keep_alive: KeepAlive,
}

impl Memory {
    /// Returns the whole memory of a region, or `None` if the CPU cannot access it.
    pub(crate) fn region(region: &Arc<Region>) -> Option<Self> {
        Some(Self {
            address: region.cpu_address()?,
            bytes: region.bytes(),
            keep_alive: region.clone(),
        })
    }

    /// Returns the whole memory of a mapped BAR of another device.
    pub(crate) fn bar(bar: &Arc<Bar>) -> Self {
        Self {
            address: bar.address(),
            bytes: bar.bytes(),
            keep_alive: bar.clone(),
        }
    }

    /// Returns the address of the memory in this process.
    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the size in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory that a container's devices can access at a bus address, until it is [unmapped](Self::unmap) or dropped.
///
/// If a drop cannot end the Linux mapping, the memory is leaked until the process ends.
pub(crate) struct Map {
    /// Name of the device, for messages.
    device: String,
    container: Arc<dyn AsRawFd + Send + Sync>,
    address: u64,
    bytes: usize,
    /// `None` only after Linux has ended the mapping.
    keep_alive: Option<KeepAlive>,
}

impl Map {
    /// Maps `memory` for the container's devices at `address`. Linux rejects sizes that are not whole pages, and ranges
    /// that overlap an existing mapping.
    pub(crate) fn new(
        device: &str,
        container: &Arc<VfioContainer>,
        address: u64,
        memory: Memory,
    ) -> Result<Self, VfioError> {
        let Memory {
            address: begin,
            bytes,
            keep_alive,
        } = memory;
        // SAFETY: from here until Linux has ended the mapping, a device may write this memory at any time. This is
        // sound because:
        // - The memory stays mapped in this process. `Memory` contains the address and size of a whole region or BAR,
        //   which unmap their memory only when dropped. `keep_alive` shares their ownership. `unmap` and `drop` release it
        //   only after Linux has ended the mapping. This matters for BARs; Linux itself keeps host memory alive.
        // - No Rust reference to memory that a device writes exists. A BAR is accessed by volatile words. For a region,
        //   its ring decides which part may be read or written, and never lends a reader a slot that was passed to a
        //   device.
        // - If Linux reports that it unmapped the full size, this mapping has ended. The container rejects a second
        //   mapping that overlaps it, and the descriptor refers to the same container as long as `container` is held.
        unsafe { container.vfio_dma_map(address, bytes, begin.as_ptr()) }?;
        Ok(Self {
            device: device.to_owned(),
            container: container.clone(),
            address,
            bytes,
            keep_alive: Some(keep_alive),
        })
    }

    /// Returns the size in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the mapping. Afterwards no device can write to the memory. If Linux rejects the call, returns the unchanged
    /// map and the error.
    pub(crate) fn unmap(mut self) -> Result<(), (Self, io::Error)> {
        match self.end() {
            Ok(()) => {
                self.keep_alive = None;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    fn end(&self) -> io::Result<()> {
        // SAFETY: `self` holds the container, which owns this descriptor and closes it only when dropped.
        let container = unsafe { BorrowedFd::borrow_raw(self.container.as_raw_fd()) };
        match sys::unmap(container, self.address, self.bytes as u64)? {
            unmapped if unmapped == self.bytes as u64 => Ok(()),
            unmapped => Err(io::Error::other(format!(
                "Linux unmapped only {unmapped:#x} bytes"
            ))),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let Some(keep_alive) = self.keep_alive.take() else {
            return;
        };
        if let Err(error) = self.end() {
            // Leak the memory before any code that could panic.
            leak(keep_alive);
            let Self {
                device,
                address,
                bytes,
                ..
            } = self;
            tracing::error!(
                "{device}: cannot unmap {bytes:#x} bytes at {address:#x}: {error}; the memory is kept until this \
                 process ends"
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

    /// Returns a map of `keep_alive` whose container is not a VFIO container, so that every unmapping fails.
    fn refused(keep_alive: &Arc<Region>) -> Map {
        Map {
            device: "null".to_owned(),
            container: Arc::new(File::open("/dev/null").unwrap()),
            address: 0x20_0000,
            bytes: keep_alive.bytes(),
            keep_alive: Some(keep_alive.clone()),
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
            "the returned map must own its memory"
        );
        drop(map);
        assert_eq!(
            Arc::strong_count(&region),
            2,
            "the failed drop must leak the memory"
        );
    }

    #[test]
    fn ended_map_makes_no_calls_and_keeps_nothing() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let mut map = refused(&region);
        map.keep_alive = None;
        drop(map);
        assert_eq!(Arc::strong_count(&region), 1);
    }
}
