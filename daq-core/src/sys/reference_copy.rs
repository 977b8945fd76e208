//! Reference methods of storing to write-combined memory, for comparison with daq's own copy. They are simple loops
//! without optimisation.

use std::ptr;

/// Copies `bytes` bytes with the ordinary copy of the C library.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes, and the two ranges must not overlap.
pub(crate) unsafe fn plain(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller guarantees all requirements of this call.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use x86::{by_32, by_64, direct, has_direct};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid_count, __m256i, __m512i, _mm256_loadu_si256, _mm256_stream_si256,
        _mm512_loadu_si512, _mm512_stream_si512,
    };
    use std::ptr;

    /// Defines a copy that uses streaming stores of type `$width` where the target is aligned, and ordinary stores at
    /// both ends.
    macro_rules! stream {
        ($name:ident, $features:literal, $width:ty, $load:ident, $stream:ident) => {
            /// # Safety
            /// The requirements of [`super::plain`] apply, and the processor must support the instructions.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
                const STEP: usize = size_of::<$width>();
                let mut done = to.align_offset(STEP).min(bytes);
                // SAFETY: `done` never exceeds `bytes`, which the caller guarantees to be valid; `to + done` is
                // aligned to a step in the loop.
                unsafe {
                    ptr::copy_nonoverlapping(from, to, done);
                    while bytes - done >= STEP {
                        $stream(to.add(done).cast(), $load(from.add(done).cast()));
                        done += STEP;
                    }
                    ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
                }
            }
        };
    }

    stream!(
        by_32,
        "avx2",
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    stream!(
        by_64,
        "avx512f",
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );

    /// Whether this processor stores whole lines directly (MOVDIR64B: CPUID leaf 7, ECX bit 28).
    pub(crate) fn has_direct() -> bool {
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx >> 28 & 1 == 1
    }

    /// Copies whole cache lines with direct stores, and both ends with stores of words and bytes.
    ///
    /// # Safety
    /// The requirements of [`super::plain`] apply, and the processor must [support](has_direct) the instructions.
    pub(crate) unsafe fn direct(to: *mut u8, from: *const u8, bytes: usize) {
        const LINE: usize = 64;
        const WORD: usize = 8;
        let mut done = 0;
        // SAFETY: `done` never exceeds `bytes`, which the caller guarantees to be valid. Direct stores are used only if
        // `to + done` is aligned to a line, as they require. The source needs no alignment.
        unsafe {
            while done < bytes {
                let (to, from) = (to.add(done), from.add(done));
                let left = bytes - done;
                done += if left >= LINE && to.addr().is_multiple_of(LINE) {
                    asm!("movdir64b {to}, [{from}]", to = in(reg) to, from = in(reg) from, options(nostack, preserves_flags));
                    LINE
                } else if left >= WORD && to.addr().is_multiple_of(WORD) {
                    let word: u64 = ptr::read_unaligned(from.cast());
                    ptr::write_volatile(to.cast(), word);
                    WORD
                } else {
                    to.write_volatile(from.read());
                    1
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::staging::StoreMethod;

    #[test]
    fn reference_copy_writes_exactly_its_range() {
        let source: Vec<u8> = (0..=250).cycle().take(700).collect();
        for method in StoreMethod::ALL
            .into_iter()
            .filter(|method| method.is_supported())
        {
            for (to, from, bytes) in [(0, 0, 600), (1, 3, 517), (63, 1, 64), (5, 0, 3), (7, 9, 0)] {
                let mut target = vec![0xff; 700];
                // SAFETY: both ranges are inside vectors, and the processor supports the method.
                unsafe { method.store(target[to..].as_mut_ptr(), source[from..].as_ptr(), bytes) };
                crate::sys::store::fence();
                assert_eq!(
                    target[to..to + bytes],
                    source[from..from + bytes],
                    "{method:?}"
                );
                let around = target[..to].iter().chain(&target[to + bytes..]);
                assert!(around.copied().all(|byte| byte == 0xff), "{method:?}");
            }
        }
    }
}
