//! Reads data that a device has written into shared memory.

use daq_core::region::Region;
use std::sync::atomic::{Ordering, fence};

/// Copies bytes from `offset`, which must be a multiple of 8, to `to`. Only whole groups of 8 bytes are copied. Returns
/// false if the range is outside the region or the CPU cannot access the region. Data that the device wrote before the
/// call is visible.
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
        // SAFETY:
        // - The word is inside the region, as checked above. The region is mapped as long as it lives.
        // - The region begins at a page boundary and `offset` is a multiple of 8, so the word is aligned.
        // - No reference is created. The load is volatile, because the device may write at the same time.
        let word = unsafe { base.cast::<u64>().add(offset / 8 + i).read_volatile() };
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    true
}
