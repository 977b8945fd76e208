//! The device that an engine belongs to: what it can reach.

use crate::region::Region;
use std::fmt;
use std::sync::Arc;

/// Why memory could not be given to a device, or the device not be cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// This device cannot be given this kind of memory.
    #[error("{device} cannot be given {memory}: {why}")]
    Unreachable {
        /// The device.
        device: String,
        /// Which memory.
        memory: String,
        /// Why, and what helps.
        why: String,
    },
    /// The system refused.
    #[error("{device}: {action}: {why}")]
    Refused {
        /// The device.
        device: String,
        /// What was asked of the system, with addresses and sizes.
        action: String,
        /// Its answer, and what helps.
        why: String,
    },
    /// The device is not there any more.
    #[error(
        "{device} is gone; look whether it was removed or has lost its link: dmesg | tail; lspci -s {device}"
    )]
    Gone {
        /// The device.
        device: String,
    },
}

/// A device that writes and reads memory by itself.
///
/// Implementations are shared by the engine, its buffers and its maps; all calls are off the data path.
pub trait DmaDevice: Send + Sync {
    /// Its name in messages: a PCI address, or where its model is.
    fn name(&self) -> &str;

    /// Makes all of `region` reachable and returns the address, as the device sees it, of its first byte. Where those of
    /// the others are says [`address_of`](Self::address_of).
    ///
    /// An implementation whose device, or whose model of one, reaches the memory through this process's addresses keeps
    /// the region until [`unmap`](Self::unmap).
    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError>;

    /// The device's address of the `bytes` bytes from `offset` on of what is mapped at `address`; an error where theirs are
    /// not consecutive, which they are for devices that choose the addresses themselves.
    fn address_of(&self, address: u64, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let _ = bytes;
        Ok(address + offset as u64)
    }

    /// Ends what [`map`](Self::map) began: when it returns no write of the device reaches the memory any more.
    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError>;

    /// Ends all DMA, whatever the device is doing: bus mastering off, then a reset.
    fn disable_and_reset(&self) -> Result<(), DmaError>;
}

/// A region as a device reaches it; undone by being dropped, and the region is kept until then.
pub struct DmaMap {
    device: Arc<dyn DmaDevice>,
    region: Arc<Region>,
    address: u64,
}

impl DmaMap {
    /// Makes `region` reachable for `device`.
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

    /// The device's address of the `bytes` bytes of the region from `offset` on, which one transfer can write; an error
    /// where their addresses are not consecutive.
    ///
    /// # Panics
    /// If they are not all there.
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

    /// Leaves the memory mapped and allocated until the process ends: a device that cannot be stopped may still write it.
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
                Err(error) => format!("{error}: its memory is kept until this process ends"),
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
