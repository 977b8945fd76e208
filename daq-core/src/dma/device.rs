//! The device of a DMA engine, and the memory that it can access.

use crate::leak::leak;
use crate::region::Region;
use std::fmt;
use std::sync::Arc;

/// Reason why memory could not be mapped for a device, or why the device could not be reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// This device cannot access this kind of memory.
    #[error("{device} cannot access {memory}: {why}")]
    Unreachable {
        /// Name of the device.
        device: String,
        /// Description of the memory.
        memory: String,
        /// The reason and the fix.
        why: String,
    },
    /// The operating system refused the request.
    #[error("{device}: {action}: {why}")]
    Refused {
        /// Name of the device.
        device: String,
        /// The failed request, with addresses and sizes.
        action: String,
        /// The system's error and the fix.
        why: String,
    },
    /// The device is no longer present.
    #[error(
        "{device} is gone; check whether it was removed or lost its link: dmesg | tail; lspci -s {device}"
    )]
    Gone {
        /// Name of the device.
        device: String,
    },
}

/// A device that reads and writes memory by DMA.
///
/// The device's engine, buffers and maps share this object. No method is called on the data path.
pub trait DmaDevice: Send + Sync {
    /// Returns the device's name for messages: a PCI address, or the path of an emulated device.
    fn name(&self) -> &str;

    /// Makes all of `region` accessible, and returns the device's address of its first byte.
    /// [`address_of`](Self::address_of) returns the addresses of the other bytes.
    ///
    /// If the device (also an emulated one) uses addresses of this process, the implementation keeps the region until
    /// [`unmap`](Self::unmap).
    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError>;

    /// Returns the device's address of the `bytes` bytes at `offset` of the region mapped at `address`. Fails if the
    /// device addresses of these bytes are not consecutive, which is impossible for devices that select the addresses
    /// themselves.
    fn address_of(&self, address: u64, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let _ = bytes;
        Ok(address + offset as u64)
    }

    /// Unmaps a region that [`map`](Self::map) mapped. When this function returns, the device can no longer write to
    /// the memory.
    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError>;

    /// Ends all DMA regardless of the device's state: disables bus mastering, then resets the device.
    fn disable_and_reset(&self) -> Result<(), DmaError>;
}

/// A region that is mapped for a device. The value keeps the region alive; dropping the value unmaps the region.
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

    /// Returns the device's address of the region's first byte.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the device's address of the `bytes` bytes at `offset` of the region, so that one transfer can write
    /// them. Fails if the device addresses of these bytes are not consecutive.
    ///
    /// # Panics
    /// Panics if the range is outside the region.
    pub fn address_of(&self, offset: usize, bytes: usize) -> Result<u64, DmaError> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at offset {offset} exceed the region of {} bytes",
            self.region.bytes()
        );
        self.device.address_of(self.address, offset, bytes)
    }

    /// Returns the mapped memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the device.
    pub const fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
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
                Ok(()) =>
                    "the device was reset instead, so it no longer accesses the memory".to_owned(),
                Err(error) => format!("{error}; the memory is leaked until this process exits"),
            }
        );
        if ended.is_err() {
            leak(self.region.clone());
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
