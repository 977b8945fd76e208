//! CUDA calls for device memory and pinned host memory.

use super::{Allocation, Code, Handle, check, driver};
use cudarc::driver::sys;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Allocates plain device memory in the current context, and returns its address.
pub(crate) fn allocate(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: the result pointer refers to one writable address.
    check(unsafe { driver::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(address)
}

/// Frees plain device memory.
///
/// # Safety
/// `address` must come from [`allocate`], and nothing may use the memory any more.
pub(crate) unsafe fn free(address: u64) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemFree_v2(address) })
}

fn properties(device: Handle, rdma: bool, shareable: bool) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if shareable {
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

const fn location(device: Handle) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

/// Returns the granularity of [`create`] in bytes: sizes must be a multiple of it.
pub(crate) fn granularity(device: Handle, rdma: bool, shareable: bool) -> Result<usize, Code> {
    let mut bytes = 0;
    let properties = properties(device, rdma, shareable);
    let flag = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the result pointer refers to one writable size, and the properties are alive during the call.
    check(unsafe {
        driver::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, flag)
    })?;
    Ok(bytes)
}

/// Allocates physical memory of a device, which has no address yet. With `rdma`, network cards can access the memory.
/// With `shareable`, other processes can map it.
pub(crate) fn create(
    device: Handle,
    bytes: usize,
    rdma: bool,
    shareable: bool,
) -> Result<Allocation, Code> {
    let mut allocation = 0;
    let properties = properties(device, rdma, shareable);
    // SAFETY: the result pointer refers to one writable handle, and the properties are alive during the call.
    check(unsafe { driver::cuMemCreate(&raw mut allocation, bytes, &raw const properties, 0) })?;
    Ok(allocation)
}

/// Releases physical memory. The driver frees it after all its mappings were removed.
///
/// # Safety
/// `allocation` must come from [`create`] and must not be used again.
pub(crate) unsafe fn release(allocation: Allocation) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemRelease(allocation) })
}

/// Reserves a range of device addresses, and returns its start.
pub(crate) fn reserve_addresses(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: the result pointer refers to one writable address.
    check(unsafe { driver::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) })?;
    Ok(address)
}

/// Frees a range of addresses.
///
/// # Safety
/// The range must come from [`reserve_addresses`], and nothing may be mapped in it.
pub(crate) unsafe fn free_addresses(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemAddressFree(address, bytes) })
}

/// Maps physical memory at an address and gives the device access to it.
///
/// # Safety
/// The range must be reserved, nothing may be mapped in it, and the allocation must have `bytes` bytes.
pub(crate) unsafe fn map(
    device: Handle,
    address: u64,
    bytes: usize,
    allocation: Allocation,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemMap(address, bytes, 0, allocation, 0) })?;
    // SAFETY: the range was mapped just above.
    let opened = unsafe { grant(device, address, bytes) };
    if opened.is_err() {
        // SAFETY: the range was mapped just above, and nothing uses it yet.
        unsafe { unmap(address, bytes) }?;
    }
    opened
}

/// Lets a device read and write a range. The access of other devices does not change.
///
/// # Safety
/// The range must be mapped by [`map`].
pub(crate) unsafe fn grant(device: Handle, address: u64, bytes: usize) -> Result<(), Code> {
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the caller guarantees a mapped range, and `access` is alive during the call.
    check(unsafe { driver::cuMemSetAccess(address, bytes, &raw const access, 1) })
}

/// Unmaps a range that [`map`] mapped.
///
/// # Safety
/// The range must be mapped by [`map`], and no work may use it.
pub(crate) unsafe fn unmap(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemUnmap(address, bytes) })
}

/// Exports memory as a file descriptor, with which another process can map it.
///
/// # Safety
/// `allocation` must not be released, and must have been created with `shareable`.
pub(crate) unsafe fn export(allocation: Allocation) -> Result<OwnedFd, Code> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the caller guarantees a valid allocation. The result pointer refers to one writable descriptor, which is
    // the type of this kind of handle.
    check(unsafe {
        driver::cuMemExportToShareableHandle((&raw mut fd).cast(), allocation, kind, 0)
    })?;
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins host memory for all contexts, so that copies from and to it run at full rate and without the CPU.
///
/// # Safety
/// `bytes` bytes at `address` must be mapped, and must stay mapped until [`unregister_host`].
pub(crate) unsafe fn register_host(address: *mut u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe {
        driver::cuMemHostRegister_v2(address.cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE)
    })
}

/// Unpins host memory that [`register_host`] pinned.
///
/// # Safety
/// The memory must be registered, and no copy may use it.
pub(crate) unsafe fn unregister_host(address: *mut u8) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuMemHostUnregister(address.cast()) })
}
