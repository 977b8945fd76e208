//! Host memory that is registered with the driver.

use super::space;
use super::{driver, require};
use std::ffi::c_uint;

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

driver! {
    in_context(_).alone fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: c_uint) {
        require(flags & !0xf == 0 && bytes > 0 && is_mapped(address, bytes))?;
        space::lock().register(address, bytes)
    }

    giving_back(_).alone fn cuMemHostUnregister(address: u64) {
        space::lock().unregister(address)
    }
}
