//! Copies with streaming stores, for payload that is written once and read much later by another thread.
//!
//! An ordinary store first reads the cache line that it overwrites. A streaming store writes a whole line without
//! reading it. This halves the memory traffic if the destination is not in the cache, as is usual for the slots of a
//! ring.

use std::ptr;

/// Minimum size of a copy with streaming stores. Smaller copies are as fast with ordinary stores.
const MIN_STREAMED_BYTES: usize = 512;
/// Size of a cache line in bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Copies `bytes` bytes. Only [`fence`] orders the copied bytes before later stores.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes, and the two ranges must not overlap.
#[inline]
pub(crate) unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes < MIN_STREAMED_BYTES {
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    } else {
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { stream_lines(from, to, bytes) };
    }
}

/// Orders all earlier [streaming](stream) stores of this thread before its later stores.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SFENCE is a part of every x86-64 processor and touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream_lines(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    const LANE: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(bytes);
    debug_assert!(bytes >= MIN_STREAMED_BYTES);
    // SAFETY: `head` is at most `bytes`, which the caller guarantees to be valid.
    unsafe { less_than_a_line(from, to, head) };
    let mut done = head;
    while bytes - done >= LINE {
        // SAFETY: `done + LINE` is at most `bytes`, so loads and stores stay inside the caller's ranges. `to + done`
        // is aligned to a line, as the streaming stores require; the loads need no alignment. Every x86-64 processor
        // has SSE2.
        unsafe {
            let (from, to) = (from.add(done), to.add(done));
            let load = |lane: usize| _mm_loadu_si128(from.add(lane * LANE).cast());
            let lanes = [load(0), load(1), load(2), load(3)];
            for (lane, value) in lanes.into_iter().enumerate() {
                _mm_stream_si128(to.add(lane * LANE).cast(), value);
            }
        }
        done += LINE;
    }
    // SAFETY: `bytes - done` is the number of remaining bytes, so the copy stays inside the caller's ranges.
    unsafe { less_than_a_line(from.add(done), to.add(done), bytes - done) };
}

/// Copies up to [`LINE`] - 1 bytes in pieces of fixed lengths, which need no function call.
///
/// # Safety
/// The requirements of [`stream`] apply.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn less_than_a_line(from: *const u8, to: *mut u8, bytes: usize) {
    debug_assert!(bytes < LINE);
    let mut done = 0;
    macro_rules! piece {
        ($($length:literal)+) => {$(
            if bytes & $length != 0 {
                // SAFETY: the lengths are the bits of `bytes`, so `done` never exceeds `bytes`.
                unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), $length) };
                done += $length;
            }
        )+};
    }
    piece!(32 16 8 4 2 1);
    debug_assert_eq!(done, bytes);
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn stream_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees all requirements of this call.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Copies memory that another thread or a device may be writing, in words of 8 bytes as far as possible.
///
/// # Safety
/// `to.len()` bytes from `from` must be inside one live allocation.
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the words start after the unaligned head"
)]
pub(crate) unsafe fn volatile(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller guarantees that each byte of the range is readable.
    let byte = |at: usize| unsafe { from.add(at).read_volatile() };
    let head = from.align_offset(8).min(to.len());
    let (first, rest) = to.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<8>();
    let tail = head + words.len() * 8;
    for (i, to) in first.iter_mut().enumerate() {
        *to = byte(i);
    }
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: the word is inside the range, and aligned, because it follows the head.
        *word = unsafe { from.add(head + i * 8).cast::<u64>().read_volatile() }.to_ne_bytes();
    }
    for (i, to) in last.iter_mut().enumerate() {
        *to = byte(tail + i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copy_writes_exactly_its_range(bytes in 0_usize..3000, from in 0_usize..130, to in 0_usize..130, seed: u8) {
            let source: Vec<u8> = (0_u8..=255).cycle().skip(seed.into()).take(from + bytes).collect();
            let mut target = vec![0xa5; to + bytes + 130];
            // SAFETY: each range is inside a separate vector.
            unsafe { stream(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes) };
            fence();
            prop_assert_eq!(&target[to..to + bytes], &source[from..]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0xa5));
        }
    }
}
