//! Small host memory that a device accesses in addition to its slots: descriptors, result words, write-back words.

use super::{DmaDevice, DmaError, DmaMap};
use crate::region::{HostOptions, Region};
use crate::sys::store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Host memory shared with a device. The memory is accessed only as whole words, and no Rust reference to the memory is
/// ever created.
///
/// All numbers are little-endian, as PCIe devices expect.
#[derive(Debug)]
pub struct DmaBuffer {
    map: DmaMap,
}

impl DmaBuffer {
    /// Allocates `bytes` of zeroed, locked host memory that `device` can access.
    pub fn new(device: Arc<dyn DmaDevice>, bytes: usize) -> Result<Self, DmaError> {
        let options = HostOptions {
            lock: true,
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(bytes, options).map_err(|error| DmaError::Refused {
            device: device.name().to_owned(),
            action: format!("cannot allocate {bytes} bytes of host memory for DMA"),
            why: error.to_string(),
        })?;
        let map = DmaMap::new(device, region)?;
        // Users compute all device addresses from the first, so the addresses must be consecutive.
        map.address_of(0, bytes)?;
        Ok(Self { map })
    }

    /// Returns the device's address of the first byte.
    pub const fn address(&self) -> u64 {
        self.map.address()
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub fn bytes(&self) -> usize {
        self.map.region().bytes()
    }

    /// Reads the 4-byte word at `offset`. Everything that the device wrote before this word is visible afterwards.
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 4.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        // SAFETY: `word` returns an aligned address inside host memory that lives as long as `self`. The CPU and the
        // device access the word only as a whole.
        let word = unsafe { AtomicU32::from_ptr(self.word(offset)) };
        u32::from_le(word.load(Ordering::Acquire))
    }

    /// Reads the 8-byte word at `offset` in one access, with the guarantees of [`read32`](Self::read32).
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 8.
    #[inline]
    pub fn read64(&self, offset: usize) -> u64 {
        // SAFETY: the requirements are met as in `read32`.
        let word = unsafe { AtomicU64::from_ptr(self.word(offset)) };
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Writes the 4-byte word at `offset`. All earlier stores become visible to the device before this word.
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 4.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        store::fence();
        // SAFETY: the requirements are met as in `read32`.
        let word = unsafe { AtomicU32::from_ptr(self.word(offset)) };
        word.store(value.to_le(), Ordering::Release);
    }

    /// Writes the 8-byte word at `offset` in one access, with the guarantees of [`write32`](Self::write32).
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 8.
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        store::fence();
        // SAFETY: the requirements are met as in `read32`.
        let word = unsafe { AtomicU64::from_ptr(self.word(offset)) };
        word.store(value.to_le(), Ordering::Release);
    }

    /// Zeroes the whole buffer; used during setup.
    pub fn clear(&self) {
        for offset in (0..self.bytes()).step_by(8) {
            self.write64(offset, 0);
        }
    }

    fn word<T>(&self, offset: usize) -> *mut T {
        let bytes = size_of::<T>();
        assert!(
            offset.is_multiple_of(bytes)
                && offset
                    .checked_add(bytes)
                    .is_some_and(|end| end <= self.bytes()),
            "the word at offset {offset} is not aligned, or exceeds the buffer of {} bytes",
            self.bytes()
        );
        self.map
            .region()
            .address()
            .as_ptr()
            .wrapping_add(offset)
            .cast()
    }
}
