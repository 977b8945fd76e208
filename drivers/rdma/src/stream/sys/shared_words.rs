//! Host memory that NICs read and write concurrently: records and credit words.

use daq_core::region::{HostOptions, Region, RegionError};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host memory that can be registered with NICs and accessed by its owner. The memory exists as long as the region is
/// referenced.
#[derive(Debug)]
pub struct SharedWords {
    region: Arc<Region>,
}

impl SharedWords {
    /// Allocates at least `bytes` zeroed bytes. The bytes are locked in RAM if the process has the permission.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        let options = HostOptions {
            lock: true,
            ..HostOptions::default()
        };
        Ok(Self {
            region: Region::host(bytes.max(1), options)?,
        })
    }

    /// Returns the memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Reads the little-endian word at byte `at` with acquire ordering: everything that the writer of the word wrote
    /// before the word is visible.
    ///
    /// # Panics
    /// If the word is not inside the memory or not aligned.
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(8),
            "the word offset {at} is not a multiple of 8"
        );
        let place = self.place(at, 8).cast::<AtomicU64>();
        // SAFETY:
        // - `place` is 8 bytes inside the region, which `self` keeps mapped.
        // - The address is aligned, because regions start at page boundaries.
        // - Concurrent writers write whole words: a NIC (PCIe does not tear aligned 8-byte words) or an atomic store.
        u64::from_le(unsafe { place.as_ref() }.load(Ordering::Acquire))
    }

    /// Writes `bytes` at byte `at`. No posted request may read this range.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = self.place(at, bytes.len());
        // SAFETY:
        // - The range at `place` is inside the region, which `self` keeps mapped.
        // - No reference to it exists in this process, because `SharedWords` returns no references and is borrowed
        //   mutably. For the same reason `bytes` cannot overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len());
        }
    }

    /// Returns the `bytes` bytes at byte `at`. These bytes must not be written concurrently.
    #[cfg(test)]
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let place = self.place(at, bytes);
        // SAFETY: the range at `place` is initialised and inside the region, which `self` keeps mapped. It is copied
        // immediately.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }.to_vec()
    }

    /// Returns the address of `bytes` bytes at `at`.
    fn place(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.region.bytes()),
            "{bytes} bytes at offset {at} exceed the shared memory of {} bytes",
            self.region.bytes()
        );
        // SAFETY: `at` is inside the region or at its end, as was just checked.
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
    #[should_panic(expected = "exceed the shared memory of")]
    fn shared_words_outside_are_rejected() {
        let mut area = SharedWords::new(64).unwrap();
        let end = area.region().bytes();
        area.write(end - 4, &[0; 5]);
    }
}
