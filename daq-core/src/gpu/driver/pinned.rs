//! Pinned host memory whose words a device reads.

use super::device::Device;
use crate::region::{HostOptions, Region, RegionError};
use std::sync::Arc;

/// Words that the host writes and kernels read. Host and kernels use the same addresses.
///
/// While a stream has work that reads a word, the word must not be written and `Pinned` must not be dropped. Work sees
/// the values that were written before the work was submitted.
#[derive(Debug)]
pub struct Pinned {
    region: Arc<Region>,
    words: usize,
}

impl Pinned {
    /// Allocates `words` zeroed words, at least one.
    pub fn new(device: &'static Device, words: usize) -> Result<Self, RegionError> {
        let pinned = Self::unpinned(words)?;
        pinned.region.pin(device)?;
        Ok(pinned)
    }

    fn unpinned(words: usize) -> Result<Self, RegionError> {
        let words = words.max(1);
        let bytes = words.saturating_mul(size_of::<u64>());
        Ok(Self {
            region: Region::host(bytes, HostOptions::default())?,
            words,
        })
    }

    /// Returns the address of the first word, for the host and every device.
    pub fn address(&self) -> u64 {
        self.region.address().as_ptr().addr() as u64
    }

    /// Returns the number of words.
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Writes `values` from word `index` on.
    ///
    /// # Panics
    /// If the values do not fit.
    pub fn write(&mut self, index: usize, values: &[u64]) {
        assert!(
            index
                .checked_add(values.len())
                .is_some_and(|end| end <= self.words),
            "the range is outside the pinned words"
        );
        // SAFETY: the range is inside the region, as just checked. The region lives as long as `self` and is
        // page-aligned. Only this type accesses the region on the host, and no reference to it is created. Even a
        // device that reads a word at the same time, which the contract of this type forbids, would see old or new
        // bytes.
        unsafe {
            let to = self.region.address().cast::<u64>().add(index);
            to.copy_from_nonoverlapping(std::ptr::NonNull::from(values).cast(), values.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_words_are_stored_at_their_offset() {
        let mut pinned = Pinned::unpinned(1000).unwrap();
        pinned.write(0, &[1, 2]);
        pinned.write(998, &[3, u64::MAX]);
        pinned.write(1000, &[]);
        let address = pinned.region.address().cast::<u64>();
        assert_eq!(pinned.address(), address.as_ptr().addr() as u64);
        // SAFETY: the region has 1000 words, and nothing else writes them.
        let words = unsafe { std::slice::from_raw_parts(address.as_ptr(), 1000) };
        assert_eq!(
            (&words[..3], &words[997..]),
            (&[1, 2, 0][..], &[0, 3, u64::MAX][..])
        );
    }

    #[test]
    #[should_panic(expected = "the range is outside the pinned words")]
    fn pinned_store_beyond_end_is_rejected() {
        Pinned::unpinned(8).unwrap().write(7, &[1, 2]);
    }
}
