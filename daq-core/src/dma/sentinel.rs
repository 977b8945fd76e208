//! Sentinels: what a slot holds before a device has written it, so that it can be told whether it has.

use crate::region::Region;
use std::sync::atomic::{Ordering, fence};

/// Bytes that are written to a GPU's memory at a time.
const PIECE: usize = 1 << 20;

/// Words that nobody could guess, one for each 8 bytes of a region.
///
/// They follow from the seed by the finaliser of splitmix64, so that a kernel on a GPU makes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sentinel {
    seed: u64,
}

/// What was found where sentinels had been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Words that should have been overwritten and still are sentinels.
    pub unwritten: u64,
    /// Words that should still be sentinels and are not.
    pub touched: u64,
}

impl Seen {
    /// Whether exactly what should have been written was.
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
    /// Sentinels that follow from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// What they follow from.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The sentinel of the 8 bytes at `8 * i` of a region.
    pub const fn word(self, i: u64) -> u64 {
        let mut z = self
            .seed
            .wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Lays sentinels from `offset` on, a multiple of 8, over `bytes` bytes, a multiple of 8, of a region; false if they
    /// are not inside, or its GPU refuses them.
    pub fn lay(self, region: &Region, offset: usize, bytes: usize) -> bool {
        if !is_inside(region, offset, bytes) {
            return false;
        }
        let Some(base) = region.cpu_address() else {
            return self.write(region, offset, bytes);
        };
        for at in (offset..offset + bytes).step_by(8) {
            // SAFETY: inside of the region, which is mapped while it lives and begins at a page; no reference is made to
            // it. The store is volatile because a device may look at the same time.
            unsafe {
                base.cast::<u64>()
                    .add(at / 8)
                    .write_volatile(self.word(at as u64 / 8).to_le());
            }
        }
        crate::sys::store::fence();
        true
    }

    /// Lays sentinels in a GPU's memory to which the CPU cannot store.
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
                .inspect_err(|error| tracing::warn!("laying sentinels: {error}"))
                .is_ok()
        })
    }

    /// Looks at `bytes` bytes from `offset` on, of which the first `written` should have been overwritten.
    ///
    /// `None` where the CPU does not reach them, or offset or bytes are no multiple of 8.
    pub fn look(
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
            // SAFETY: as in `lay`.
            let found = unsafe { base.cast::<u64>().add((offset + at) / 8).read_volatile() };
            let kept = self.word((offset + at) as u64 / 8);
            judge(u64::from_le(found), kept, written.saturating_sub(at).min(8))
        });
        Some(words.fold(Seen::default(), std::ops::Add::add))
    }
}

/// Whether whole words of a region are meant.
fn is_inside(region: &Region, offset: usize, bytes: usize) -> bool {
    let end = offset.checked_add(bytes);
    let is_inside = end.is_some_and(|end| end <= region.bytes());
    is_inside && offset.is_multiple_of(8) && bytes.is_multiple_of(8)
}

/// What became of one word, of which the first `inside` bytes should have been overwritten.
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
    // A few bytes may be by chance what they were; a whole word is not.
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
        let seen = |written| sentinel.look(&region, 64, 1024, written).unwrap();
        assert!(seen(0).is_exact());
        assert_eq!(seen(1024).unwritten, 128);
        // 101 bytes: twelve words and five bytes.
        // SAFETY: inside of the region, which nobody else uses.
        unsafe { region.address().as_ptr().add(64).write_bytes(0x5a, 101) };
        assert!(seen(101).is_exact());
        assert_eq!(seen(100).touched, 1);
        assert_eq!(seen(112).unwritten, 1);
        assert_eq!(seen(0).touched, 13);
        assert!(sentinel.look(&region, usize::MAX - 7, 16, 0).is_none());
        assert!(sentinel.look(&region, 0, 8192, 0).is_none() && !sentinel.lay(&region, 4, 8));
    }
}
