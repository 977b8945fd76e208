//! Memory registered with a card.

use super::context::Context;
use super::errno::{Call, found, last, refused};
use super::ffi as ib;
use crate::verbs::{Access, MemoryRegion, RegistrationMethod, VerbsError};
use daq_core::region::{Placement, Region};
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of the smallest page, in which a dma-buf and the address that stands for it must lie alike.
const PAGE: u64 = 4096;

/// A registration, which ends when it is dropped.
pub struct MrHandle {
    context: Arc<Context>,
    region: NonNull<ib::ibv_mr>,
}

// SAFETY: the library's registration is bound to no thread; it is only read here, and ended once.
unsafe impl Send for MrHandle {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for MrHandle {}

impl MrHandle {
    /// Registers `bytes` bytes from `address` on.
    ///
    /// # Safety
    /// They are mapped in this process or are a GPU's, stay so until this is dropped, and may be read and, with write access,
    /// written by the card at any time until then: no references into them exist.
    pub unsafe fn new(
        context: &Arc<Context>,
        address: u64,
        bytes: usize,
        access: u32,
    ) -> Result<Self, i32> {
        let pointer =
            std::ptr::without_provenance_mut::<c_void>(usize::try_from(address).unwrap_or(0));
        // `iova2` is what the header's ibv_reg_mr calls: it leaves relaxed ordering away where the card does not have it.
        // rdma-core before version 28 has neither.
        let region = if ib::is_present("ibv_reg_mr_iova2") {
            // SAFETY: the domain is there as long as the context; the card checks the rest, and the caller says that the
            // memory may be registered. The address is handed on, not followed.
            unsafe { ib::ibv_reg_mr_iova2(context.domain(), pointer, bytes, address, access) }
        } else {
            // SAFETY: as above.
            unsafe {
                ib::ibv_reg_mr(
                    context.domain(),
                    pointer,
                    bytes,
                    required(access).cast_signed(),
                )
            }
        };
        Self::checked(context, region)
    }

    fn checked(context: &Arc<Context>, region: *mut ib::ibv_mr) -> Result<Self, i32> {
        let region = NonNull::new(region).ok_or_else(last)?;
        Ok(Self {
            context: Arc::clone(context),
            region,
        })
    }

    /// What names it locally and for the peer.
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration lives, and its keys do not change.
        unsafe { ((*self.region.as_ptr()).lkey, (*self.region.as_ptr()).rkey) }
    }
}

impl Drop for MrHandle {
    fn drop(&mut self) {
        // SAFETY: the registration was made by the library and is ended this once; the context lives until after.
        let errno = unsafe { ib::ibv_dereg_mr(self.region.as_ptr()) };
        if errno != 0 {
            // The kernel holds the pages, or the dma-buf, until the context is closed: the card reaches no memory that was
            // given to another user.
            tracing::error!(
                "{}: ibv_dereg_mr: {}; the memory stays registered until the NIC is closed",
                self.context.name(),
                std::io::Error::from_raw_os_error(errno)
            );
        }
    }
}

/// The flags of the verbs. What the peer writes must be writable locally too.
pub const fn flags(access: Access) -> u32 {
    use ib::ibv_access_flags as is;
    let mut flags = 0;
    if access.local_write || access.remote_write {
        flags |= is::IBV_ACCESS_LOCAL_WRITE.0;
    }
    if access.remote_write {
        flags |= is::IBV_ACCESS_REMOTE_WRITE.0;
    }
    if access.relaxed {
        flags |= is::IBV_ACCESS_RELAXED_ORDERING.0;
    }
    flags
}

/// `access` without relaxed ordering, which old versions of the library refuse.
const fn required(access: u32) -> u32 {
    access & !ib::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0
}

/// Registers all of `region`.
pub fn register(
    context: &Arc<Context>,
    region: &Arc<Region>,
    method: RegistrationMethod,
    access: Access,
) -> Result<MemoryRegion, VerbsError> {
    let bytes = region.bytes();
    let flags = flags(access);
    let gpu = region.address().as_ptr().addr() as u64;
    let (address, registered) = match method {
        RegistrationMethod::Host => {
            let said = format!("ibv_reg_mr of {bytes} bytes of {}", region.placement());
            let Some(address) = region.cpu_address() else {
                return Err(found(
                    context.name(),
                    said,
                    "the CPU cannot access this GPU memory; register it by dma-buf or nvidia-peermem",
                ));
            };
            let address = address.as_ptr().addr() as u64;
            // SAFETY: the region is mapped as long as it lives; the key that is made keeps it and ends the registration
            // before it frees it. No references into a region that a device may write exist.
            let registered = unsafe { MrHandle::new(context, address, bytes, flags) }
                .map_err(|errno| refused(context.name(), Call::Host, said, errno))?;
            (address, registered)
        }
        RegistrationMethod::Peer => {
            let said = format!("ibv_reg_mr of {bytes} bytes of {}", region.placement());
            if region.placement() == Placement::Host {
                return Err(found(context.name(), said, "this is not GPU memory"));
            }
            // SAFETY: as for host memory; the address is the GPU's, which the kernel resolves or refuses.
            let registered = unsafe { MrHandle::new(context, gpu, bytes, flags) }
                .map_err(|errno| refused(context.name(), Call::Peer, said, errno))?;
            (gpu, registered)
        }
        RegistrationMethod::DmaBuf => (gpu, register_dma_buf(context, region, gpu, flags)?),
    };
    let keys = registered.keys();
    Ok(MemoryRegion::new(
        Box::new(registered),
        Arc::clone(region),
        method,
        keys,
        address,
    ))
}

fn register_dma_buf(
    context: &Arc<Context>,
    region: &Arc<Region>,
    address: u64,
    flags: u32,
) -> Result<MrHandle, VerbsError> {
    let bytes = region.bytes();
    let said = format!(
        "ibv_reg_dmabuf_mr of {bytes} bytes of {}",
        region.placement()
    );
    let fd = region
        .dma_buf()
        .map_err(|why| found(context.name(), said.as_str(), why.to_string()))?;
    // The dma-buf begins where the region does.
    if !address.is_multiple_of(PAGE) {
        return Err(found(
            context.name(),
            said,
            format!("the region's address {address:#x} is not page-aligned"),
        ));
    }
    // SAFETY: the domain is there as long as the context. The descriptor is open through the call, after which the kernel
    // holds the dma-buf by itself. The region stays until the registration has ended, as for host memory.
    let parts = unsafe {
        ib::ibv_reg_dmabuf_mr(
            context.domain(),
            0,
            bytes,
            address,
            fd.as_raw_fd(),
            flags.cast_signed(),
        )
    };
    MrHandle::checked(context, parts)
        .map_err(|errno| refused(context.name(), Call::DmaBuf, said, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_uses_requested_access() {
        let none = Access::default();
        assert_eq!(flags(none), 0, "the card may read alone");
        let received = Access {
            local_write: true,
            ..none
        };
        assert_eq!(flags(received), 1);
        let written = Access {
            remote_write: true,
            ..none
        };
        assert_eq!(
            flags(written),
            1 | 2,
            "what the peer writes is writable here"
        );
        let relaxed = Access {
            relaxed: true,
            ..written
        };
        assert_eq!(flags(relaxed), 1 | 2 | 1 << 20);
        assert_eq!(required(flags(relaxed)), flags(written));
    }
}
