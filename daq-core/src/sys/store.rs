//! Copies to and from write-combined memory: GPU memory as the CPU accesses it over the bus.
//!
//! ```text
//!   64-byte lines   |....####|########|########|###.....|
//!                       head   whole lines       tail
//! ```
//! The processor gathers stores to such memory in a few buffers of one line each. When all bytes of a line have been
//! stored, the processor sends the line as one bus packet. A later store to the same line uses a new buffer and another
//! packet. Therefore head and tail are stored in pieces that do not cross a line, and the whole lines between them with
//! the widest streaming stores.

use std::ptr;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::sync::atomic::{AtomicU8, Ordering};

/// Size in bytes of a line, in which the processor gathers stores.
const LINE: usize = 64;
/// Size in bytes from which the source is usually not in a cache near the core. Narrower loads are then faster: by 3 %
/// at 4 MiB on a fourth-generation Xeon.
const UNCACHED_SOURCE_BYTES: usize = 1 << 20;

/// The store instructions for whole lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    /// The ordinary copy of the C library.
    Plain,
    /// Streaming stores of 16 bytes.
    Sse2,
    /// Streaming stores of 32 bytes.
    Avx2,
    /// Streaming stores of 64 bytes.
    Avx512,
}

impl Width {
    /// All widths, the narrowest first.
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Sse2, Self::Avx2, Self::Avx512];

    /// Whether this processor supports the width.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) fn is_supported(self) -> bool {
        match self {
            // SSE2 is a part of every x86-64 processor.
            Self::Plain | Self::Sse2 => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
        }
    }

    /// Whether this processor supports the width.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub fn is_supported(self) -> bool {
        self == Self::Plain
    }

    /// Returns the greatest width that this processor supports.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    pub(crate) fn widest() -> Self {
        /// 0 until the processor has been queried, then one more than the index in [`Width::ALL`].
        static WIDEST: AtomicU8 = AtomicU8::new(0);

        #[cold]
        fn find() -> Width {
            let here = (1_u8..)
                .zip(Width::ALL)
                .filter(|(_, width)| width.is_supported());
            let (place, width) = here.last().unwrap_or((1, Width::Plain));
            WIDEST.store(place, Ordering::Relaxed);
            width
        }

        match WIDEST.load(Ordering::Relaxed) {
            4 => Self::Avx512,
            3 => Self::Avx2,
            2 => Self::Sse2,
            1 => Self::Plain,
            _ => find(),
        }
    }

    /// Returns the greatest width that this processor supports.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    #[inline]
    pub fn widest() -> Self {
        Self::Plain
    }
}

/// Copies `bytes` bytes to write-combined memory with the widest stores. The bytes have left the CPU after a [`fence`].
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes, and the two ranges must not overlap.
#[inline]
pub(crate) unsafe fn copy_to(to: *mut u8, from: *const u8, bytes: usize) {
    if bytes < LINE {
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { less_than_a_line(to, from, bytes) };
    } else {
        let width = match Width::widest() {
            Width::Avx512 if bytes >= UNCACHED_SOURCE_BYTES => Width::Avx2,
            widest => widest,
        };
        // SAFETY: the caller guarantees valid ranges. The processor supports the queried width. A processor with
        // AVX-512 also supports AVX2.
        unsafe { copy_to_with(width, to, from, bytes) };
    }
}

/// Copies `bytes` bytes as [`copy_to`] does, with stores of a given width.
///
/// # Safety
/// The requirements of [`copy_to`] apply, and the processor must [support](Width::is_supported) the instructions.
#[inline]
pub(crate) unsafe fn copy_to_with(width: Width, to: *mut u8, from: *const u8, bytes: usize) {
    debug_assert!(width.is_supported());
    match width {
        // SAFETY: the caller guarantees all requirements of this call.
        Width::Plain => unsafe { ptr::copy_nonoverlapping(from, to, bytes) },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees all requirements of this call.
        Width::Sse2 => unsafe { x86::by_16(to, from, bytes) },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees all requirements of this call.
        Width::Avx2 => unsafe { x86::by_32(to, from, bytes) },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees all requirements of this call.
        Width::Avx512 => unsafe { x86::by_64(to, from, bytes) },
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: the caller guarantees valid ranges; no wider stores are available.
        _ => unsafe { ptr::copy_nonoverlapping(from, to, bytes) },
    }
}

/// Makes all earlier stores of this thread leave the CPU before its later stores.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SFENCE is a part of every x86-64 processor and touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Copies `bytes` bytes from write-combined memory with loads of at most 32 bytes. If the processor supports streaming
/// loads, each load fetches a whole line.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes, and the two ranges must not overlap.
pub(crate) unsafe fn copy_from(to: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // Streaming loads are not ordered with other accesses. Without this fence, a load may return a line that an
        // earlier load fetched, or overtake a store of this thread (Intel SDM volume 1, 12.10.3).
        // SAFETY: MFENCE is a part of every x86-64 processor and touches no memory.
        unsafe { std::arch::x86_64::_mm_mfence() };
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the caller guarantees valid ranges, and the processor supports AVX2.
            return unsafe { x86::load_by_32(to, from, bytes) };
        }
        if is_x86_feature_detected!("sse4.1") {
            // SAFETY: the caller guarantees valid ranges, and the processor supports SSE4.1.
            return unsafe { x86::load_by_16(to, from, bytes) };
        }
    }
    // SAFETY: the caller guarantees all requirements of this call.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Copies up to [`LINE`] - 1 bytes with at most four moves and without a loop. The last moves may overlap the first. No
/// byte outside the range is accessed.
///
/// # Safety
/// The requirements of [`copy_to`] apply.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "the function must use the instruction set of its caller"
)]
unsafe fn less_than_a_line(to: *mut u8, from: *const u8, bytes: usize) {
    debug_assert!(bytes < LINE);
    macro_rules! both_ends {
        ($length:literal) => {
            // SAFETY: `bytes` is at least the length, so this many bytes at the start and at the end are inside the
            // range.
            unsafe {
                let last = bytes - $length;
                ptr::copy_nonoverlapping(from, to, $length);
                ptr::copy_nonoverlapping(from.add(last), to.add(last), $length);
            }
        };
    }
    match bytes {
        32.. => both_ends!(32),
        16.. => both_ends!(16),
        8.. => both_ends!(8),
        4.. => both_ends!(4),
        2.. => both_ends!(2),
        // SAFETY: `bytes` is 1, so one byte is valid on both sides.
        1 => unsafe { to.write(from.read()) },
        0 => {}
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::{LINE, less_than_a_line};
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_load_si128,
        _mm_stream_si128, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_load_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    /// Defines a copy of head, lines and tail; `$width` is the type for loading and storing whole lines.
    macro_rules! store {
        ($name:ident, $features:literal, $width:ty, $load:ident, $stream:ident) => {
            /// # Safety
            /// The requirements of [`super::copy_to`] apply, and the processor must support the instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
                const STEP: usize = size_of::<$width>();
                const PARTS: usize = LINE / STEP;
                /// Number of lines per iteration.
                const LINES: usize = 4;

                let head = to.align_offset(LINE).min(bytes);
                if head > 0 {
                    // SAFETY: `head` is at most `bytes`, which the caller guarantees to be valid.
                    unsafe { less_than_a_line(to, from, head) };
                }
                let mut done = head;
                while bytes - done >= LINES * LINE {
                    // SAFETY: `done` plus the bytes of an iteration is at most `bytes`, so loads and stores stay
                    // inside the caller's ranges. `to + done` is aligned to a line, as the streaming stores require;
                    // the loads need no alignment.
                    unsafe {
                        let (from, to) = (from.add(done), to.add(done));
                        for line in 0..LINES {
                            let at = |part| line * LINE + part * STEP;
                            let parts: [$width; PARTS] =
                                std::array::from_fn(|part| $load(from.add(at(part)).cast()));
                            for (part, value) in parts.into_iter().enumerate() {
                                $stream(to.add(at(part)).cast(), value);
                            }
                        }
                    }
                    done += LINES * LINE;
                }
                while bytes - done >= LINE {
                    // SAFETY: `done + LINE` is at most `bytes`, and `to + done` is aligned to a line.
                    unsafe {
                        let (from, to) = (from.add(done), to.add(done));
                        for at in (0..LINE).step_by(STEP) {
                            $stream(to.add(at).cast(), $load(from.add(at).cast()));
                        }
                    }
                    done += LINE;
                }
                if done < bytes {
                    // SAFETY: `bytes - done` is the number of remaining bytes, so the copy stays inside the caller's
                    // ranges.
                    unsafe { less_than_a_line(to.add(done), from.add(done), bytes - done) };
                }
            }
        };
    }

    store!(by_16, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    store!(
        by_32,
        "avx2",
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    store!(
        by_64,
        "avx512f",
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );

    /// Defines a copy by streaming loads of `$width`.
    macro_rules! load {
        ($name:ident, $features:literal, $width:ty, $load:ident, $store:ident) => {
            /// # Safety
            /// The requirements of [`super::copy_from`] apply, and the processor must support the instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
                const STEP: usize = size_of::<$width>();

                let head = from.align_offset(STEP).min(bytes);
                // SAFETY: `head` is at most `bytes`, which the caller guarantees to be valid.
                unsafe { less_than_a_line(to, from, head) };
                let mut done = head;
                while bytes - done >= STEP {
                    // SAFETY: `done + STEP` is at most `bytes`; `from + done` is aligned, as the streaming load
                    // requires.
                    unsafe {
                        let value = $load(from.add(done).cast());
                        $store(to.add(done).cast(), value);
                    }
                    done += STEP;
                }
                // SAFETY: `bytes - done` is the number of remaining bytes, so the copy stays inside the caller's
                // ranges.
                unsafe { less_than_a_line(to.add(done), from.add(done), bytes - done) };
            }
        };
    }

    load!(
        load_by_16,
        "sse4.1",
        __m128i,
        _mm_stream_load_si128,
        _mm_storeu_si128
    );
    load!(
        load_by_32,
        "avx2",
        __m256i,
        _mm256_stream_load_si256,
        _mm256_storeu_si256
    );
}

#[cfg(test)]
mod tests;
