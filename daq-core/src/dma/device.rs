//! The device that an engine belongs to, and the memory that it can access.

use crate::region::Region;
use std::fmt;
use std::sync::Arc;

/// Why memory could not be mapped for a device, or the device not be reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// This device cannot access this kind of memory.
    #[error("{device} cannot access {memory}: {why}")]
    Unreachable {
        /// The device.
        device: String,
        /// Which memory.
        memory: String,
        /// The reason and the remedy.
        why: String,
    },
    /// The operating system refused.
    #[error("{device}: {action}: {why}")]
    Refused {
        /// The device.
        device: String,
        /// The failed request, with addresses and sizes.
        action: String,
        /// The system's error and the remedy.
        why: String,
    },
    /// The device is no longer present.
    #[error(
        "{device} is gone; check whether it was removed or lost its link: dmesg | tail; lspci -s {device}"
    )]
    Gone {
        /// The device.
        device: String,
    },
}

/// A device that reads and writes memory by DMA.
///
/// Its engine, buffers and maps share it; all calls are off the data path.
pub trait DmaDevice: Send + Sync {
    /// Its name in messages: a PCI address, or the path of an emulated device.
    fn name(&self) -> &str;

    /// Makes all of `region` accessible and returns the address of its first byte as the device sees it.
    /// [`address_of`](Self::address_of) returns the addresses of the other bytes.
    ///
    /// An implementation whose device, or emulated device, uses addresses of this process keeps the region until
    /// [`unmap`](Self::unmap).
    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError>;

    /// The device's address of the `bytes` bytes from `offset` on of the region mapped at `address`. Fails if their
    /// device addresses are not consecutive; devices that choose the addresses themselves have consecutive ones.
    fn address_of(&self, address: u64, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let _ = bytes;
        Ok(address + offset as u64)
    }

    /// Undoes [`map`](Self::map): when it returns, no write of the device reaches the memory any more.
    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError>;

    /// Ends all DMA, whatever the device is doing: disables bus mastering, then resets the device.
    fn disable_and_reset(&self) -> Result<(), DmaError>;
}

/// A region that is mapped for a device. Dropping it unmaps the region, which is kept until then.
pub struct DmaMap {
    device: Arc<dyn DmaDevice>,
    region: Arc<Region>,
    address: u64,
}

impl DmaMap {
    /// Maps `region` for `device`.
    pub fn new(device: Arc<dyn DmaDevice>, region: Arc<Region>) -> Result<Self, DmaError> {
        let address = device.map(&region)?;
        Ok(Self {
            device,
            region,
            address,
        })
    }

    /// The device's address of the region's first byte.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The device's address of the `bytes` bytes of the region from `offset` on, which one transfer can write. Fails
    /// if their device addresses are not consecutive.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn address_of(&self, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at {offset} of a region of {}",
            self.region.bytes()
        );
        self.device.address_of(self.address, offset, bytes)
    }

    /// The memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The device.
    pub const fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    /// Leaks the mapping and the memory until the process ends: a device that cannot be stopped may still write it.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        let Err(error) = self.device.unmap(self.address, self.region.bytes()) else {
            return;
        };
        let ended = self.device.disable_and_reset();
        tracing::error!(
            "{error}; {}",
            match &ended {
                Ok(()) => "the device was reset instead".to_owned(),
                Err(error) => format!("{error}; its memory is leaked until this process exits"),
            }
        );
        if ended.is_err() {
            std::mem::forget(self.region.clone());
        }
    }
}

impl fmt::Debug for DmaMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaMap")
            .field("device", &self.device.name())
            .field("region", &self.region)
            .field("address", &format_args!("{:#x}", self.address))
            .finish()
    }
}
