//! Device memory that is allocated with an address.

use super::physical::Physical;
use super::space::{self, Origin};
use super::{In, Out, driver, require};
use crate::code::{INVALID_HANDLE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use crate::faults::OPTIONS;
use crate::options::DmaBuf;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering;

/// Duplicates the descriptor of a file. The caller must close the duplicate.
pub fn duplicate(file: BorrowedFd<'_>, out: &Out<c_int>) -> Result {
    require(!out.is_null())?;
    let copy = file.try_clone_to_owned().map_err(|_| INVALID_HANDLE)?;
    out.set(copy.into_raw_fd())
}

driver! {
    in_context(device) fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        free.set(OPTIONS.memory - device.used.load(Ordering::Acquire))?;
        total.set(OPTIONS.memory)
    }

    in_context(device).alone fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        require(!address.is_null() && bytes > 0)?;
        let memory = Physical::new(device.ordinal, bytes, space::skew(bytes))?;
        address.set(space::lock().place(memory, bytes, Origin::Allocated)?)
    }

    /// Waits for all streams, as the driver does.
    giving_back(device).alone fn cuMemFree_v2(address: u64) {
        if address == 0 {
            return Ok(());
        }
        // A broken context is reported after the memory is freed.
        let _ = device.drain();
        space::lock().unplace(address, Origin::Allocated)
    }

    /// Exports a whole allocation. The descriptor refers to a memory file instead of a dma-buf. It can be mapped only if
    /// the options allow it.
    in_context(device) fn cuMemGetHandleForAddressRange(
        handle: Out<c_int>,
        address: u64,
        bytes: usize,
        kind: c_uint,
        flags: c_ulonglong,
    ) {
        const DMA_BUF: c_uint = 1;
        const PAGE: usize = 4096;
        require(kind == DMA_BUF && flags <= 1)?;
        require(address.is_multiple_of(PAGE as u64) && bytes.is_multiple_of(PAGE) && bytes > 0)?;
        if !OPTIONS.rdma || OPTIONS.dma_buf == DmaBuf::None || flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        let memory = space::lock().whole(device, address, bytes)?.ok_or(NOT_SUPPORTED)?;
        if OPTIONS.dma_buf == DmaBuf::Map {
            return duplicate(memory.file(), &handle);
        }
        // Opens the same file without write access.
        let name = format!("/proc/self/fd/{}", memory.file().as_raw_fd());
        let file = std::fs::File::open(name).map_err(|_| OPERATING_SYSTEM)?;
        handle.set(file.into_raw_fd())
    }

    /// Returns the memory behind a device address, for simulated libraries that access device memory. Stores a file
    /// descriptor, which the caller must close, and the offset of the address in the file. The range must be inside a
    /// single allocation or mapping.
    initialised() fn daq_simulated_memory(address: u64, bytes: usize, file: Out<c_int>, offset: Out<u64>) {
        require(!file.is_null() && !offset.is_null())?;
        let (memory, within) = space::lock().behind(address, bytes)?;
        offset.set(within as u64)?;
        duplicate(memory.file(), &file)
    }

    /// Has no effect, because copies are always synchronous where the call promises it.
    in_context(device) fn cuPointerSetAttribute(value: In<c_uint>, attribute: c_uint, address: u64) {
        const SYNC_MEMOPS: c_uint = 6;
        require(attribute == SYNC_MEMOPS && value.get()? <= 1)?;
        space::lock().device(device, address, 1, false).map(|_| ())
    }

    /// Always fails, because no other library has memory to import.
    in_context(_) fn cuImportExternalMemory(out: Out<usize>, about: In<c_uint>) {
        require(!out.is_null() && !about.is_null())?;
        Err(NOT_SUPPORTED)
    }

    /// Always fails, because no memory was imported.
    in_context(_) fn cuExternalMemoryGetMappedBuffer(_address: Out<u64>, _memory: usize, _about: In<c_uint>) {
        Err(INVALID_HANDLE)
    }

    /// Always fails, because no memory was imported.
    giving_back(_) fn cuDestroyExternalMemory(_memory: usize) {
        Err(INVALID_HANDLE)
    }

    /// Has no effect, because writes to simulated memory become visible in order.
    in_context(_) fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) {
        require(target == 0 && matches!(scope, 100 | 200))?;
        if OPTIONS.rdma {
            Ok(())
        } else {
            Err(NOT_SUPPORTED)
        }
    }
}
