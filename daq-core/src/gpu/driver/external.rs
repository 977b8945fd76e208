//! Memory of a device that another library has allocated.

use super::device::Device;
use super::error::{CudaError, Doing};
use crate::sys::cuda::{self, Imported};
use crate::units::ByteSize;
use std::fmt;
use std::os::fd::OwnedFd;

/// Memory of one device that CUDA did not allocate.
///
/// It must not be dropped while work that uses it is on any stream.
pub struct External {
    device: &'static Device,
    imported: Imported,
    address: u64,
    bytes: usize,
}

// SAFETY: the handle is only handed back to the driver, from any thread.
unsafe impl Send for External {}
// SAFETY: as above.
unsafe impl Sync for External {}

impl External {
    /// Takes memory over, `allocated` bytes of which the first `bytes` are given an address.
    ///
    /// # Safety
    /// `fd` is an opaque descriptor of memory on this device, of so many bytes, dedicated to one buffer; it is not
    /// freed before this is dropped, and nothing else uses it yet.
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
        // SAFETY: by the caller's word.
        let imported = unsafe { cuda::import(fd, allocated) }.doing(what)?;
        // SAFETY: imported just now, with at least as many bytes.
        let address = match unsafe { cuda::map_imported(imported, bytes) } {
            Ok(address) => address,
            Err(code) => {
                // SAFETY: imported just now and given no address.
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

    /// Fills it with zeros, and waits; for its owner, before anybody uses it.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the memory is as long as it says; what uses it meanwhile, against this function's contract, sees old or
        // new bytes: no reference is made to device memory.
        unsafe { cuda::fill(self.address, 0, self.bytes) }
            .doing(|| format!("clearing memory of cuda:{}", self.device.ordinal()))?;
        // Setting is asynchronous to the host for device memory.
        self.device.synchronize()
    }

    /// The first byte's address, as the device sees it.
    pub const fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for External {
    fn drop(&mut self) {
        if !self.device.enter_to_free("imported memory") {
            return;
        }
        // SAFETY: both are those of `new`; no work uses the memory by this type's contract.
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
