//! Host memory that NICs read and write concurrently: records and credit words.

use daq_core::region::{HostOptions, Region, RegionError};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host memory of one owner, to be registered with cards. It stays as long as anything holds its region.
#[derive(Debug)]
pub struct SharedWords {
    region: Arc<Region>,
}

impl SharedWords {
    /// At least `bytes` zeroes, locked in memory where that is allowed.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        let options = HostOptions {
            lock: true,
            ..HostOptions::default()
        };
        Ok(Self {
            region: Region::host(bytes.max(1), options)?,
        })
    }

    /// The memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The little-endian word at byte `at`, and with it all that its writer wrote before.
    ///
    /// # Panics
    /// If it does not lie inside, or is not aligned.
    pub fn word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "a word at byte {at}");
        let place = self.place(at, 8).cast::<AtomicU64>();
        // SAFETY: `place` is 8 bytes inside the region, which `self` keeps and which is never unmapped before, aligned
        // as regions begin at pages. Concurrent writers write whole words: a NIC (aligned words of 8 bytes
        // are not torn by PCIe) or an atomic store.
        u64::from_le(unsafe { place.as_ref() }.load(Ordering::Acquire))
    }

    /// Writes `bytes` at byte `at`. No posted work may name them.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = self.place(at, bytes.len());
        // SAFETY: `place` is as many bytes inside the region, which `self` keeps. No reference to them exists in this
        // process: `SharedWords` returns no references and is borrowed mutably. `bytes` cannot overlap for the same reason.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len());
        }
    }

    /// The `bytes` bytes at byte `at`. No one may write them at the same time.
    #[cfg(test)]
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let place = self.place(at, bytes);
        // SAFETY: `place` is as many initialised bytes inside the region, which `self` keeps; they are copied at once.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }.to_vec()
    }

    /// The address of `bytes` bytes at `at`.
    fn place(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at {at} of an area of {}",
            self.region.bytes()
        );
        // SAFETY: `at` is inside the region, or its end, as was just seen.
        unsafe { self.region.address().add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_words_round_trip() {
        let mut area = SharedWords::new(100).unwrap();
        area.write(64, &7_u64.to_le_bytes());
        assert_eq!((area.word(56), area.word(64)), (0, 7));
        assert!(area.region().bytes() >= 100);
    }

    #[test]
    #[should_panic(expected = "of an area of")]
    fn shared_words_outside_are_rejected() {
        let mut area = SharedWords::new(64).unwrap();
        let end = area.region().bytes();
        area.write(end - 4, &[0; 5]);
    }
}
