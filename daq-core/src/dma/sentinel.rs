//! Sentinels: known values that are written to a slot before a transfer. They show whether the device has written to
//! the slot.

use crate::region::Region;
use std::sync::atomic::{Ordering, fence};

/// Number of bytes that are written to GPU memory at a time.
const PIECE: usize = 1 << 20;

/// A sequence of unpredictable words, one for each 8 bytes of a region.
///
/// The words are derived from the seed by the finaliser of splitmix64, so that a kernel on a GPU can compute the same
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sentinel {
    seed: u64,
}

/// The result of comparing memory with sentinels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of words that should have been overwritten but are still sentinels.
    pub unwritten: u64,
    /// Number of words that should still be sentinels but are not.
    pub touched: u64,
}

impl Seen {
    /// Returns whether exactly the expected bytes were written.
    pub const fn is_exact(self) -> bool {
        self.unwritten == 0 && self.touched == 0
    }
}

impl std::ops::Add for Seen {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            unwritten: self.unwritten + other.unwritten,
            touched: self.touched + other.touched,
        }
    }
}

impl Sentinel {
    /// Creates the sentinels of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the seed of the sentinels.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// Returns the sentinel of the 8 bytes at offset `8 * i` of a region.
    pub const fn word(self, i: u64) -> u64 {
        let mut z = self
            .seed
            .wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Writes sentinels over `bytes` bytes of a region, starting at `offset`; both must be multiples of 8. Returns
    /// false if the range is outside the region or the GPU refuses the write.
    pub fn lay(self, region: &Region, offset: usize, bytes: usize) -> bool {
        if !is_inside(region, offset, bytes) {
            return false;
        }
        let Some(base) = region.cpu_address() else {
            return self.write(region, offset, bytes);
        };
        for at in (offset..offset + bytes).step_by(8) {
            // SAFETY: the word is inside the region, which is mapped while it exists and starts at a page boundary, so
            // the word is aligned. No reference to it is created. The store is volatile, because a device may read at
            // the same time.
            unsafe {
                base.cast::<u64>()
                    .add(at / 8)
                    .write_volatile(self.word(at as u64 / 8).to_le());
            }
        }
        crate::sys::store::fence();
        true
    }

    /// Writes sentinels to GPU memory that the CPU cannot store to.
    fn write(self, region: &Region, offset: usize, bytes: usize) -> bool {
        let Some(memory) = region.memory() else {
            return false;
        };
        let mut words = Vec::with_capacity(PIECE);
        (offset..offset + bytes).step_by(PIECE).all(|at| {
            words.clear();
            for word in (at..(at + PIECE).min(offset + bytes)).step_by(8) {
                words.extend(self.word(word as u64 / 8).to_le_bytes());
            }
            memory
                .write(at, &words)
                .inspect_err(|error| tracing::warn!("cannot write sentinels: {error}"))
                .is_ok()
        })
    }

    /// Compares `bytes` bytes, starting at `offset`, with sentinels. The first `written` bytes should have been
    /// overwritten.
    ///
    /// Returns `None` if the CPU cannot read the bytes, or if `offset` or `bytes` is not a multiple of 8.
    pub fn inspect(
        self,
        region: &Region,
        offset: usize,
        bytes: usize,
        written: usize,
    ) -> Option<Seen> {
        let base = region.cpu_address()?;
        if !is_inside(region, offset, bytes) {
            return None;
        }
        fence(Ordering::Acquire);
        let words = (0..bytes).step_by(8).map(|at| {
            // SAFETY: the requirements are met as in `lay`.
            let found = unsafe { base.cast::<u64>().add((offset + at) / 8).read_volatile() };
            let kept = self.word((offset + at) as u64 / 8);
            judge(u64::from_le(found), kept, written.saturating_sub(at).min(8))
        });
        Some(words.fold(Seen::default(), std::ops::Add::add))
    }
}

/// Returns whether the range is inside the region and consists of whole words.
fn is_inside(region: &Region, offset: usize, bytes: usize) -> bool {
    let end = offset.checked_add(bytes);
    let is_inside = end.is_some_and(|end| end <= region.bytes());
    is_inside && offset.is_multiple_of(8) && bytes.is_multiple_of(8)
}

/// Compares one word, whose first `inside` bytes should have been overwritten.
fn judge(found: u64, kept: u64, inside: usize) -> Seen {
    let differs = found ^ kept;
    let (within, beyond) = match inside {
        0 => (0, differs),
        8.. => (differs, 0),
        bytes => {
            let mask = (1 << (8 * bytes)) - 1;
            (differs & mask, differs & !mask)
        }
    };
    // Single bytes may equal the sentinel by chance, but a whole word does not.
    let is_telling = inside == 8;
    Seen {
        unwritten: u64::from(is_telling && within == 0),
        touched: u64::from(beyond != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::HostOptions;

    #[test]
    fn sentinel_reports_unwritten_and_overwritten_words() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        let sentinel = Sentinel::new(7);
        assert!(sentinel.lay(&region, 64, 1024));
        let seen = |written| sentinel.inspect(&region, 64, 1024, written).unwrap();
        assert!(seen(0).is_exact());
        assert_eq!(seen(1024).unwritten, 128);
        // 101 bytes are twelve words and five bytes.
        // SAFETY: the range is inside the region, which nothing else uses.
        unsafe { region.address().as_ptr().add(64).write_bytes(0x5a, 101) };
        assert!(seen(101).is_exact());
        assert_eq!(seen(100).touched, 1);
        assert_eq!(seen(112).unwritten, 1);
        assert_eq!(seen(0).touched, 13);
        assert!(sentinel.inspect(&region, usize::MAX - 7, 16, 0).is_none());
        assert!(sentinel.inspect(&region, 0, 8192, 0).is_none() && !sentinel.lay(&region, 4, 8));
    }
}
