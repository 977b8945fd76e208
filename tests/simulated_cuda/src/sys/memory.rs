//! Device memory that is allocated together with its address.

use super::physical::Physical;
use super::space::{self, Origin};
use super::{Out, call, require};
use crate::code::{Code, INVALID_HANDLE, NOT_SUPPORTED, Result};
use crate::faults::OPTIONS;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering;

/// A second descriptor of a file, for the caller to close.
pub fn duplicate(file: BorrowedFd<'_>, out: &Out<c_int>) -> Result {
    require(!out.is_null())?;
    let copy = file.try_clone_to_owned().map_err(|_| INVALID_HANDLE)?;
    out.set(copy.into_raw_fd())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call!(cuMemGetInfo_v2).in_context(|device| {
        free.set(OPTIONS.memory - device.used.load(Ordering::Acquire))?;
        total.set(OPTIONS.memory)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) -> Code {
    call!(cuMemAlloc_v2).in_context(|device| {
        require(!address.is_null() && bytes > 0)?;
        let memory = Physical::new(device.ordinal, bytes)?;
        address.set(space::lock().place(memory, bytes, Origin::Allocated)?)
    })
}

/// Waits for all streams, as the driver does.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call!(cuMemFree_v2).giving_back(|device| {
        if address == 0 {
            return Ok(());
        }
        // A broken context is told after the memory is given back.
        let _ = device.drain();
        space::lock().unplace(address, Origin::Allocated)
    })
}

/// The descriptor is no dma-buf but a file in memory of which `mmap` shows the same bytes; for whole allocations only.
#[unsafe(no_mangle)]
extern "C" fn cuMemGetHandleForAddressRange(
    handle: Out<c_int>,
    address: u64,
    bytes: usize,
    kind: c_uint,
    flags: c_ulonglong,
) -> Code {
    const DMA_BUF: c_uint = 1;
    const PAGE: usize = 4096;
    call!(cuMemGetHandleForAddressRange).in_context(|_| {
        require(kind == DMA_BUF && flags <= 1)?;
        require(address.is_multiple_of(PAGE as u64) && bytes.is_multiple_of(PAGE) && bytes > 0)?;
        if !OPTIONS.rdma || flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        let memory = space::lock().whole(address, bytes)?.ok_or(NOT_SUPPORTED)?;
        duplicate(memory.file(), &handle)
    })
}

/// There is nothing to flush: the model's writes are seen in order.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) -> Code {
    call!(cuFlushGPUDirectRDMAWrites).in_context(|_| {
        require(target == 0 && matches!(scope, 100 | 200))?;
        if OPTIONS.rdma {
            Ok(())
        } else {
            Err(NOT_SUPPORTED)
        }
    })
}
