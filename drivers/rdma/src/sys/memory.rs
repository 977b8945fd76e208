//! Registers memory with a NIC.

use super::context::Context;
use super::errno::{Call, found, last, refused};
use super::ffi as ib;
use crate::verbs::{Access, MemoryRegion, RegistrationMethod, VerbsError};
use daq_core::region::{Placement, Region};
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Smallest page size in bytes. A dma-buf and its remote address must have the same offset within a page.
const PAGE: u64 = 4096;

/// A memory registration, which is revoked on drop.
pub(crate) struct MrHandle {
    context: Arc<Context>,
    region: NonNull<ib::ibv_mr>,
}

// SAFETY: the library's registration is not bound to a thread. It is only read here, and destroyed once.
unsafe impl Send for MrHandle {}
// SAFETY: the registration does not change after its creation.
unsafe impl Sync for MrHandle {}

impl MrHandle {
    /// Registers `bytes` bytes starting at `address`.
    ///
    /// # Safety
    /// - The memory must be mapped in this process or be GPU memory, and must stay valid until this value is dropped.
    /// - Until then the NIC may read the memory at any time and, with write access, write it. No references to
    ///   the memory may exist.
    pub(crate) unsafe fn new(
        context: &Arc<Context>,
        address: u64,
        bytes: usize,
        access: u32,
    ) -> Result<Self, i32> {
        let pointer =
            std::ptr::without_provenance_mut::<c_void>(usize::try_from(address).unwrap_or(0));
        // The inline `ibv_reg_mr` in the header calls `ibv_reg_mr_iova2`, which omits relaxed ordering if the NIC does
        // not support it. rdma-core before version 28 supports neither.
        let region = if ib::is_present("ibv_reg_mr_iova2") {
            // SAFETY:
            // - The domain exists as long as the context.
            // - The caller guarantees that the memory may be registered; the NIC checks the other arguments.
            // - The address is only passed on, never dereferenced.
            unsafe { ib::ibv_reg_mr_iova2(context.domain(), pointer, bytes, address, access) }
        } else {
            // SAFETY: the conditions above apply here too.
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

    /// Returns the local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration exists, and its keys do not change.
        unsafe { ((*self.region.as_ptr()).lkey, (*self.region.as_ptr()).rkey) }
    }
}

impl Drop for MrHandle {
    fn drop(&mut self) {
        // SAFETY: the library created the registration, and it is destroyed only here. The context exists until after
        // this call.
        let errno = unsafe { ib::ibv_dereg_mr(self.region.as_ptr()) };
        if errno != 0 {
            // Linux keeps the pages or the dma-buf until the context is closed, so the NIC cannot access memory that
            // was given to another user.
            tracing::error!(
                "{}: ibv_dereg_mr: {}; the memory stays registered until the NIC is closed",
                self.context.name(),
                std::io::Error::from_raw_os_error(errno)
            );
        }
    }
}

/// Converts access rights to the flags of the verbs API. Remote write access requires local write access.
pub(crate) const fn flags(access: Access) -> u32 {
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

/// Returns `access` without relaxed ordering, which old versions of the library reject.
const fn required(access: u32) -> u32 {
    access & !ib::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0
}

/// Registers all of `region` with `method`.
pub(crate) fn register(
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
            let call = format!("ibv_reg_mr of {bytes} bytes of {}", region.placement());
            let Some(address) = region.cpu_address() else {
                return Err(found(
                    context.name(),
                    call,
                    "the CPU cannot access this GPU memory; register it by dma-buf or nvidia-peermem",
                ));
            };
            let address = address.as_ptr().addr() as u64;
            // SAFETY:
            // - The region is mapped as long as it exists. The memory region created below keeps it alive and revokes
            //   the registration before it frees the region.
            // - No references into a region that a device may write exist.
            let registered = unsafe { MrHandle::new(context, address, bytes, flags) }
                .map_err(|errno| refused(context.name(), Call::Host, call, errno))?;
            (address, registered)
        }
        RegistrationMethod::Peer => {
            let call = format!("ibv_reg_mr of {bytes} bytes of {}", region.placement());
            if region.placement() == Placement::Host {
                return Err(found(
                    context.name(),
                    call,
                    "nvidia-peermem can register only GPU memory",
                ));
            }
            // SAFETY: the conditions for host memory apply. The address belongs to the GPU, and Linux resolves or
            // rejects it.
            let registered = unsafe { MrHandle::new(context, gpu, bytes, flags) }
                .map_err(|errno| refused(context.name(), Call::Peer, call, errno))?;
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
    let call = format!(
        "ibv_reg_dmabuf_mr of {bytes} bytes of {}",
        region.placement()
    );
    let fd = region
        .dma_buf()
        .map_err(|why| found(context.name(), call.as_str(), why.to_string()))?;
    // The dma-buf starts at the region's first byte, so the region must be page-aligned.
    if !address.is_multiple_of(PAGE) {
        return Err(found(
            context.name(),
            call,
            format!("the region's address {address:#x} is not page-aligned"),
        ));
    }
    // SAFETY:
    // - The domain exists as long as the context.
    // - The descriptor is open during the call; afterwards Linux holds its own reference to the dma-buf.
    // - The region exists until the registration is revoked, as for host memory.
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
        .map_err(|errno| refused(context.name(), Call::DmaBuf, call, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_uses_requested_access() {
        let none = Access::default();
        assert_eq!(flags(none), 0, "without rights the NIC may only read");
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
            "remote write access includes local write access"
        );
        let relaxed = Access {
            relaxed: true,
            ..written
        };
        assert_eq!(flags(relaxed), 1 | 2 | 1 << 20);
        assert_eq!(required(flags(relaxed)), flags(written));
    }
}
