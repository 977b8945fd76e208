//! CUDA calls for import and export of device memory.

use super::{Code, check, driver};
use cudarc::driver::sys;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

pub(crate) use cudarc::driver::sys::CUexternalMemory as Imported;

/// Sets `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` for the allocation at `address`: synchronous copy functions return only when
/// the copy is complete. This is required if devices outside CUDA, which cannot wait for a stream, also access the
/// allocation.
///
/// # Safety
/// `address` must come from [`allocate`](super::allocate).
pub(crate) unsafe fn synchronize_copies(address: u64) -> Result<(), Code> {
    let on = 1_u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    // SAFETY: the attribute's value is an integer, which is alive during the call. The caller guarantees a valid
    // address.
    check(unsafe {
        driver::cuPointerSetAttribute((&raw const on).cast(), attribute as u32, address)
    })
}

/// Exports device memory as a dma-buf.
///
/// # Safety
/// `bytes` bytes at `address` must be device memory. Address and size must be multiples of the host's page size.
pub(crate) unsafe fn dma_buf(address: u64, bytes: usize) -> Result<OwnedFd, Code> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: the caller guarantees a valid range. The result pointer refers to one writable descriptor, which is the
    // type of this kind of handle.
    check(unsafe {
        driver::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, bytes, kind as u32, 0)
    })?;
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Imports memory that another library, such as Vulkan, allocated on the device of the current context. The memory must
/// be a dedicated allocation (for exactly one buffer).
///
/// # Safety
/// `fd` must be an opaque file descriptor of such an allocation, and the allocation must have `bytes` bytes.
pub(crate) unsafe fn import(fd: OwnedFd, bytes: usize) -> Result<Imported, Code> {
    let mut imported = ptr::null_mut();
    // SAFETY: the description contains only integers and a union of plain data, for which zero is a valid value.
    let mut about: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC =
        unsafe { MaybeUninit::zeroed().assume_init() };
    about.type_ = sys::CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    about.handle.fd = fd.as_raw_fd();
    about.size = bytes as u64;
    about.flags = sys::CUDA_EXTERNAL_MEMORY_DEDICATED;
    // SAFETY: the caller guarantees a valid descriptor. The result pointer refers to one writable handle, and the
    // description is alive during the call.
    check(unsafe { driver::cuImportExternalMemory(&raw mut imported, &raw const about) })?;
    // The driver owns the descriptor now.
    let _ = fd.into_raw_fd();
    Ok(imported)
}

/// Maps imported memory and returns its device address, which must be freed with [`free`](super::free).
///
/// # Safety
/// `imported` must come from [`import`] and have at least `bytes` bytes.
pub(crate) unsafe fn map_imported(imported: Imported, bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    let about = sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset: 0,
        size: bytes as u64,
        flags: 0,
        reserved: [0; 16],
    };
    // SAFETY: the caller guarantees valid imported memory. The result pointer refers to one writable address, and the
    // description is alive during the call.
    check(unsafe {
        driver::cuExternalMemoryGetMappedBuffer(&raw mut address, imported, &raw const about)
    })?;
    Ok(address)
}

/// Releases memory that [`import`] imported.
///
/// # Safety
/// `imported` must come from [`import`]. Its addresses must be freed, and it must not be used again.
pub(crate) unsafe fn end_import(imported: Imported) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuDestroyExternalMemory(imported) })
}
