//! Import and export of device memory.

use super::{Code, check, driver};
use cudarc::driver::sys;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

pub use cudarc::driver::sys::CUexternalMemory as Imported;

/// Lets the driver's copies to and from plain memory be done before they return: other writers of it, which know of no
/// stream, need that.
///
/// # Safety
/// `address` is that of memory of [`allocate`](super::allocate).
pub unsafe fn synchronize_copies(address: u64) -> Result<(), Code> {
    let on = 1_u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    // SAFETY: the attribute's value is an integer, which lives through the call; the address by the caller's contract.
    check(unsafe {
        driver::cuPointerSetAttribute((&raw const on).cast(), attribute as u32, address)
    })
}

/// A dma-buf of device memory.
///
/// # Safety
/// `bytes` bytes at `address`, both multiples of the host's page, are device memory.
pub unsafe fn dma_buf(address: u64, bytes: usize) -> Result<OwnedFd, Code> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: by the caller's contract; a pointer to one descriptor, which is what this kind of handle is.
    check(unsafe {
        driver::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, bytes, kind as u32, 0)
    })?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Imports memory that another library has allocated, dedicated to one buffer, on the device of the current context.
///
/// # Safety
/// `fd` is an opaque descriptor of such memory, which has `bytes` bytes.
pub unsafe fn import(fd: OwnedFd, bytes: usize) -> Result<Imported, Code> {
    let mut imported = ptr::null_mut();
    // SAFETY: the description is integers and a union of plain data, all of which may be zero.
    let mut about: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC =
        unsafe { MaybeUninit::zeroed().assume_init() };
    about.type_ = sys::CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    about.handle.fd = fd.as_raw_fd();
    about.size = bytes as u64;
    about.flags = sys::CUDA_EXTERNAL_MEMORY_DEDICATED;
    // SAFETY: by the caller's contract; a pointer to one handle and a description that lives through the call.
    check(unsafe { driver::cuImportExternalMemory(&raw mut imported, &raw const about) })?;
    // The driver owns the descriptor now.
    let _ = fd.into_raw_fd();
    Ok(imported)
}

/// The address of imported memory; free it with [`free`](super::free).
///
/// # Safety
/// `imported` came from [`import`] and has `bytes` bytes.
pub unsafe fn map_imported(imported: Imported, bytes: usize) -> Result<u64, Code> {
    let mut address = 0;
    let about = sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset: 0,
        size: bytes as u64,
        flags: 0,
        reserved: [0; 16],
    };
    // SAFETY: by the caller's contract; a pointer to one address and a description that lives through the call.
    check(unsafe {
        driver::cuExternalMemoryGetMappedBuffer(&raw mut address, imported, &raw const about)
    })?;
    Ok(address)
}

/// Undoes [`import`].
///
/// # Safety
/// `imported` came from [`import`], its addresses were given back, and it is not used again.
pub unsafe fn end_import(imported: Imported) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuDestroyExternalMemory(imported) })
}
