//! Reads what a device has written into memory that is shared with it.

use daq_core::region::Region;
use std::sync::atomic::{Ordering, fence};

/// Reads the bytes from `offset` on, a multiple of 8, into `to`, of which only whole 8 bytes are read; false where they are
/// not inside or the CPU does not reach them. Data that the device wrote before is visible.
pub fn read(region: &Region, offset: usize, to: &mut [u8]) -> bool {
    let is_inside = offset
        .checked_add(to.len())
        .is_some_and(|end| end <= region.bytes());
    let Some(base) = region.cpu_address() else {
        return false;
    };
    if !is_inside || !offset.is_multiple_of(8) {
        return false;
    }
    fence(Ordering::Acquire);
    for (i, bytes) in to.chunks_exact_mut(8).enumerate() {
        // SAFETY: inside of the region, as was looked at above, which is mapped while it lives and begins at a page, so the
        // word is aligned; no reference is made to it. The load is volatile because the device may store meanwhile.
        let word = unsafe { base.cast::<u64>().add(offset / 8 + i).read_volatile() };
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    true
}
