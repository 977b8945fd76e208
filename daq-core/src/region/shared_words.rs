//! Host memory whose words devices also read and write.

use super::{HostOptions, Placement, Region, RegionError};
use crate::gpu::driver::Device;
use crate::sys::copy;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Host memory that this process shares with devices, such as NICs, FPGA cards and GPUs.
///
/// Words are accessed as a whole, and are little-endian. Everything that the writer of a word wrote before the word is
/// visible to a reader of the word. No reference to plain bytes of the memory is created.
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
        Ok(Self::of(Region::host(bytes.max(1), options)?))
    }

    /// Allocates at least `bytes` zeroed bytes that are pinned for CUDA. CPU and GPUs use the same addresses.
    pub fn pinned(device: &'static Device, bytes: usize) -> Result<Self, RegionError> {
        let region = Region::host(bytes.max(1), HostOptions::default())?;
        region.pin(device)?;
        Ok(Self::of(region))
    }

    /// Uses the words of `region`, which nothing else reads or writes except devices.
    ///
    /// # Panics
    /// If the region is not in host memory.
    pub(crate) fn of(region: Arc<Region>) -> Self {
        assert_eq!(
            region.placement(),
            Placement::Host,
            "the words must be in host memory"
        );
        Self { region }
    }

    /// Returns the memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the address of the first word, for the CPU and for GPUs.
    pub fn address(&self) -> u64 {
        self.region.address().as_ptr().addr() as u64
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// Returns all words of 8 bytes.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the region is zeroed host memory that starts at a page boundary, consists of whole pages, and lives as
        // long as `self`. Devices and other processes write only whole words.
        unsafe {
            std::slice::from_raw_parts(self.region.address().cast().as_ptr(), self.bytes() / 8)
        }
    }

    /// Reads the 4-byte word at byte `at`.
    ///
    /// # Panics
    /// If the word is outside the memory or `at` is not a multiple of 4.
    #[inline]
    pub(crate) fn load32(&self, at: usize) -> u32 {
        u32::from_le(self.word32(at).load(Ordering::Acquire))
    }

    /// Reads the 8-byte word at byte `at`.
    ///
    /// # Panics
    /// If the word is outside the memory or `at` is not a multiple of 8.
    #[inline]
    pub fn load64(&self, at: usize) -> u64 {
        u64::from_le(self.words()[index(at, 8)].load(Ordering::Acquire))
    }

    /// Writes the 4-byte word at byte `at`.
    ///
    /// # Panics
    /// If the word is outside the memory or `at` is not a multiple of 4.
    #[inline]
    pub(crate) fn store32(&self, at: usize, value: u32) {
        self.word32(at).store(value.to_le(), Ordering::Release);
    }

    /// Writes the 8-byte word at byte `at`.
    ///
    /// # Panics
    /// If the word is outside the memory or `at` is not a multiple of 8.
    #[inline]
    pub(crate) fn store64(&self, at: usize, value: u64) {
        self.words()[index(at, 8)].store(value.to_le(), Ordering::Release);
    }

    /// Writes `values` as 8-byte words from byte `at` on.
    ///
    /// # Panics
    /// If a word is outside the memory or `at` is not a multiple of 8.
    pub fn store_words(&self, at: usize, values: &[u64]) {
        let words = &self.words()[index(at, 8)..][..values.len()];
        for (word, value) in words.iter().zip(values) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Writes `bytes` at byte `at`. No device may access this range meanwhile.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.range(at, bytes.len());
        // SAFETY: the range is inside the region, which `self` keeps mapped. No reference to it exists, because `self`
        // is borrowed mutably, is the only owner of the words in this process, and no function returns references to plain
        // bytes.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Returns a copy of the `bytes` bytes at byte `at`. Bytes that a device writes meanwhile are old or new.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let (from, mut copied) = (self.range(at, bytes), vec![0; bytes]);
        // SAFETY: the range is inside the region, which `self` keeps mapped.
        unsafe { copy::volatile(from.as_ptr(), &mut copied) };
        copied
    }

    #[inline]
    fn word32(&self, at: usize) -> &AtomicU32 {
        let word = self.range(index(at, 4) * 4, 4);
        // SAFETY: the word is inside the region, which lives as long as `self`, and is aligned, because regions start at
        // page boundaries. The CPU and devices access the word only as a whole.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    /// Returns the address of `bytes` bytes at byte `at`.
    #[inline]
    fn range(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{bytes} bytes at offset {at} exceed the shared memory of {} bytes",
            self.bytes()
        );
        // SAFETY: `at` is inside the region or at its end, as was just checked.
        unsafe { self.region.address().add(at) }
    }
}

/// Returns the index of the word of `size` bytes at byte `at`.
#[inline]
fn index(at: usize, size: usize) -> usize {
    assert!(
        at.is_multiple_of(size),
        "the offset {at} of a word is not a multiple of {size}"
    );
    at / size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_words_round_trip() {
        let mut words = SharedWords::new(100).unwrap();
        assert!(words.bytes() >= 100);
        words.write(64, &0x0807_0605_0403_0201_u64.to_le_bytes());
        assert_eq!((words.load64(56), words.load32(68)), (0, 0x0807_0605));
        words.store32(64, 9);
        words.store_words(72, &[3, u64::MAX]);
        words.store64(72, 4);
        assert_eq!(words.load64(64), 0x0807_0605_0000_0009);
        assert_eq!(words.read(71, 3), [8, 4, 0]);
        assert_eq!(words.words()[10].load(Ordering::Relaxed), u64::MAX);
    }

    #[test]
    #[should_panic(expected = "exceed the shared memory of")]
    fn shared_words_outside_are_rejected() {
        let mut words = SharedWords::new(64).unwrap();
        let end = words.bytes();
        words.write(end - 4, &[0; 5]);
    }
}
