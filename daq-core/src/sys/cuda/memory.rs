//! Device memory, and host memory that devices copy.

use super::{Allocation, Code, Handle, check, driver};
use cudarc::driver::sys;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Plain device memory, in the current context.
pub fn allocate(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: a pointer to one address.
    check(unsafe { driver::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(address)
}

/// Frees plain device memory.
///
/// # Safety
/// `address` came from [`allocate`] and nothing uses the memory any more.
pub unsafe fn free(address: u64) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
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

/// What sizes of [`create`] must be a multiple of.
pub fn granularity(device: Handle, rdma: bool, shareable: bool) -> Result<usize, Code> {
    let mut bytes = 0;
    let properties = properties(device, rdma, shareable);
    let flag = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: a pointer to one size and properties that live through the call.
    check(unsafe {
        driver::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, flag)
    })?;
    Ok(bytes)
}

/// Physical memory of a device, without an address yet; with `rdma` network cards may be given it, with
/// `shareable` other processes.
pub fn create(
    device: Handle,
    bytes: usize,
    rdma: bool,
    shareable: bool,
) -> Result<Allocation, Code> {
    let mut allocation = 0;
    let properties = properties(device, rdma, shareable);
    // SAFETY: a pointer to one handle and properties that live through the call.
    check(unsafe { driver::cuMemCreate(&raw mut allocation, bytes, &raw const properties, 0) })?;
    Ok(allocation)
}

/// Releases physical memory once nothing is mapped to it.
///
/// # Safety
/// `allocation` came from [`create`] and is not used again.
pub unsafe fn release(allocation: Allocation) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemRelease(allocation) })
}

/// A range of device addresses.
pub fn reserve_addresses(bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    // SAFETY: a pointer to one address.
    check(unsafe { driver::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) })?;
    Ok(address)
}

/// Frees a range of addresses.
///
/// # Safety
/// The range is one of [`reserve_addresses`] and nothing is mapped in it.
pub unsafe fn free_addresses(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemAddressFree(address, bytes) })
}

/// Maps physical memory at an address and opens it to the device.
///
/// # Safety
/// The range is reserved, nothing is mapped in it, and the allocation has `bytes` bytes.
pub unsafe fn map(
    device: Handle,
    address: u64,
    bytes: usize,
    allocation: Allocation,
) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemMap(address, bytes, 0, allocation, 0) })?;
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the range was mapped just now; `access` lives through the call.
    let opened = check(unsafe { driver::cuMemSetAccess(address, bytes, &raw const access, 1) });
    if opened.is_err() {
        // SAFETY: mapped just above and used by nothing.
        unsafe { unmap(address, bytes) }?;
    }
    opened
}

/// Undoes [`map`].
///
/// # Safety
/// The range is one that was mapped and no work uses it.
pub unsafe fn unmap(address: u64, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemUnmap(address, bytes) })
}

/// A file descriptor through which another process can map the memory.
///
/// # Safety
/// `allocation` is alive and was created shareable.
pub unsafe fn export(allocation: Allocation) -> Result<OwnedFd, Code> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: a pointer to one descriptor, which is what this kind of handle is.
    check(unsafe {
        driver::cuMemExportToShareableHandle((&raw mut fd).cast(), allocation, kind, 0)
    })?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins host memory for all contexts, so that copies from and to it run at full rate and beside the CPU.
///
/// # Safety
/// `bytes` bytes at `address` are mapped and stay so until [`unregister_host`].
pub unsafe fn register_host(address: *mut u8, bytes: usize) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe {
        driver::cuMemHostRegister_v2(address.cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE)
    })
}

/// Undoes [`register_host`].
///
/// # Safety
/// The memory is registered and no copy uses it.
pub unsafe fn unregister_host(address: *mut u8) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuMemHostUnregister(address.cast()) })
}
