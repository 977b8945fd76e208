//! Host memory that is registered with the driver.

use super::physical::POISON;
use super::space;
use super::{Out, call, require};
use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY, Result};
use std::ffi::c_uint;
use std::ptr;

const PAGE: u64 = 4096;

/// Returns true if all pages of a range are mapped.
fn is_mapped(address: u64, bytes: usize) -> bool {
    let start = address / PAGE * PAGE;
    let Some(end) = address
        .checked_add(bytes as u64)
        .and_then(|end| end.checked_next_multiple_of(PAGE))
    else {
        return false;
    };
    let mut pages = vec![0_u8; usize::try_from((end - start) / PAGE).unwrap_or(0)];
    let length = pages.len() * usize::try_from(PAGE).unwrap_or(0);
    // SAFETY: the call writes one byte for each page of `length` bytes, and `pages` has one element per page. It reads
    // nothing in the range, and returns an error if the range is not mapped.
    unsafe { libc::mincore(start as *mut libc::c_void, length, pages.as_mut_ptr()) == 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: c_uint) -> Code {
    call!(cuMemHostRegister_v2).alone().in_context(|device| {
        require(flags & !0xf == 0 && bytes > 0 && is_mapped(address, bytes))?;
        space::lock().register(address, bytes, device.ordinal, false)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: u64) -> Code {
    call!(cuMemHostUnregister)
        .alone()
        .giving_back(|_| space::lock().unregister(address, false).map(|_| ()))
}

/// Registered memory has the same address on the device.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, flags: c_uint) -> Code {
    call!(cuMemHostGetDevicePointer_v2).in_context(|_| {
        require(flags == 0 && space::lock().registered_bytes(address, 1)? == 1)?;
        out.set(address)
    })
}

fn allocate(bytes: usize, ordinal: i32) -> Result<u64> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address that Linux selects does not overlap other memory.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: `bytes` bytes were just mapped at `base` for writing, and no other code uses them.
    unsafe { ptr::write_bytes(base.cast::<u8>(), POISON, bytes) };
    space::lock().register(base as u64, bytes, ordinal, true)?;
    Ok(base as u64)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(out: Out<u64>, bytes: usize, flags: c_uint) -> Code {
    call!(cuMemHostAlloc).alone().in_context(|device| {
        require(!out.is_null() && bytes > 0 && flags & !7 == 0)?;
        out.set(allocate(bytes, device.ordinal)?)
    })
}

/// Waits for all streams, as the driver does.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: u64) -> Code {
    call!(cuMemFreeHost).alone().giving_back(|device| {
        // A broken context is reported after the memory is freed.
        let _ = device.drain();
        let bytes = space::lock()
            .unregister(address, true)
            .map_err(|_| INVALID_VALUE)?;
        // SAFETY: `allocate` has mapped these bytes, and the caller, who frees them, no longer uses them.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
        Ok(())
    })
}
