//! Device memory that another library has allocated.

use super::device::Device;
use super::error::{CudaError, Doing};
use crate::sys::cuda::{self, Imported};
use crate::units::ByteSize;
use std::fmt;
use std::os::fd::OwnedFd;

/// Memory of one device that CUDA did not allocate.
///
/// The value must not be dropped while a stream has work that uses the memory.
pub(crate) struct External {
    device: &'static Device,
    imported: Imported,
    address: u64,
    bytes: usize,
}

// SAFETY: the handle is only passed back to the driver, from any thread.
unsafe impl Send for External {}
// SAFETY: shared references only return the address and the size, which never change.
unsafe impl Sync for External {}

impl External {
    /// Imports memory of `allocated` bytes and maps its first `bytes` bytes.
    ///
    /// # Safety
    /// `fd` must be an opaque descriptor of memory on this device, which has `allocated` bytes and is
    /// dedicated to one buffer. The memory must not be freed before the returned value is dropped, and nothing else may
    /// use it yet.
    pub(crate) unsafe fn new(
        device: &'static Device,
        fd: OwnedFd,
        allocated: usize,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        let what = || {
            let place = device.ordinal();
            format!("importing {} into cuda:{place}", ByteSize(allocated as u64))
        };
        device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        let imported = unsafe { cuda::import(fd, allocated) }.doing(what)?;
        // SAFETY: the memory was imported just above, and has at least `bytes` bytes.
        let address = match unsafe { cuda::map_imported(imported, bytes) } {
            Ok(address) => address,
            Err(code) => {
                // SAFETY: the memory was imported just above and is not mapped.
                let _ = unsafe { cuda::end_import(imported) };
                return Err(CudaError::new(what(), code));
            }
        };
        Ok(Self {
            device,
            imported,
            address,
            bytes,
        })
    }

    /// Zeroes the memory and waits until this is complete. The owner must call this function only before the first use.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the memory has this size. No reference to device memory is created, so even a concurrent user, which
        // the contract of this function forbids, would only see old or new bytes.
        unsafe { cuda::fill(self.address, 0, self.bytes) }
            .doing(|| format!("clearing memory of cuda:{}", self.device.ordinal()))?;
        // For device memory, the call returns before the bytes are set.
        self.device.synchronize()
    }

    /// Returns the address of the first byte as the device sees it.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for External {
    fn drop(&mut self) {
        if !self.device.enter_to_free("imported memory") {
            return;
        }
        // SAFETY: address and handle were created in `new`. By the contract of this type, no work uses the memory.
        let result =
            unsafe { cuda::free(self.address).and_then(|()| cuda::end_import(self.imported)) };
        if let Err(code) = result {
            let place = self.device.ordinal();
            tracing::debug!("freeing imported memory of cuda:{place}: {code:?}");
        }
    }
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("External")
            .field("device", &self.device.ordinal())
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
