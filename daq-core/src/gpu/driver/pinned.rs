//! Words in pinned host memory that a device reads.

use super::device::Device;
use crate::region::{HostOptions, Region, RegionError};
use std::sync::Arc;

/// Words that the host writes and kernels read, at the same address on either side.
///
/// A word must not be written while work that reads it is on any stream, nor may this be dropped then. Work sees what
/// was written before it was put on its stream.
#[derive(Debug)]
pub struct Pinned {
    region: Arc<Region>,
    words: usize,
}

impl Pinned {
    /// `words` words, at least one, all zero.
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

    /// The first word's address, for the host and for every device.
    pub fn address(&self) -> u64 {
        self.region.address().as_ptr().addr() as u64
    }

    /// Words.
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Writes `values` from word `index` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, index: usize, values: &[u64]) {
        assert!(
            index
                .checked_add(values.len())
                .is_some_and(|end| end <= self.words),
            "outside of the words"
        );
        // SAFETY: inside of the region, as just checked, which lives as long as `self` and is aligned to a page. The
        // region is this type's own, so the host has no other reader or writer, and no reference is made to it: a
        // device that reads a word meanwhile, against this type's contract, sees old or new bytes.
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
        // SAFETY: the region has a thousand words and nobody writes them meanwhile.
        let words = unsafe { std::slice::from_raw_parts(address.as_ptr(), 1000) };
        assert_eq!(
            (&words[..3], &words[997..]),
            (&[1, 2, 0][..], &[0, 3, u64::MAX][..])
        );
    }

    #[test]
    #[should_panic(expected = "outside of the words")]
    fn pinned_store_beyond_end_is_rejected() {
        Pinned::unpinned(8).unwrap().write(7, &[1, 2]);
    }
}
