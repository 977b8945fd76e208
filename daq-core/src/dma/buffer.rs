//! Small host memory that a device reads or writes beside its slots: descriptors, result words, write-back words.

use super::{DmaDevice, DmaError, DmaMap};
use crate::region::{HostOptions, Region};
use crate::sys::store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Host memory shared with a device, accessed in words alone: no reference into it ever exists.
///
/// All numbers are little-endian, as PCIe devices take them.
#[derive(Debug)]
pub struct DmaBuffer {
    map: DmaMap,
}

impl DmaBuffer {
    /// `bytes` of zeroed, locked host memory that `device` reaches.
    pub fn new(device: Arc<dyn DmaDevice>, bytes: usize) -> Result<Self, DmaError> {
        let options = HostOptions {
            lock: true,
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(bytes, options).map_err(|error| DmaError::Refused {
            device: device.name().to_owned(),
            action: format!("{bytes} bytes of memory for it"),
            why: error.to_string(),
        })?;
        let map = DmaMap::new(device, region)?;
        // Whoever uses it counts on from the first byte's address.
        map.address_of(0, bytes)?;
        Ok(Self { map })
    }

    /// The device's address of the first byte.
    pub const fn address(&self) -> u64 {
        self.map.address()
    }

    /// Bytes; at least as many as were asked for.
    pub fn bytes(&self) -> usize {
        self.map.region().bytes()
    }

    /// The word at `offset`. What the device wrote before it is visible afterwards.
    ///
    /// # Panics
    /// If the word is not inside, or `offset` no multiple of 4.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        // SAFETY: `word` gives an aligned address inside of host memory that lives as long as `self`; whoever writes the
        // word, here or on the device, writes it whole.
        let word = unsafe { AtomicU32::from_ptr(self.word(offset)) };
        u32::from_le(word.load(Ordering::Acquire))
    }

    /// As [`read32`](Self::read32), of 8 bytes at once.
    ///
    /// # Panics
    /// If the word is not inside, or `offset` no multiple of 8.
    #[inline]
    pub fn read64(&self, offset: usize) -> u64 {
        // SAFETY: as in `read32`.
        let word = unsafe { AtomicU64::from_ptr(self.word(offset)) };
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Stores a word. What was stored before it is visible to the device first.
    ///
    /// # Panics
    /// As [`read32`](Self::read32).
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        store::fence();
        // SAFETY: as in `read32`.
        let word = unsafe { AtomicU32::from_ptr(self.word(offset)) };
        word.store(value.to_le(), Ordering::Release);
    }

    /// As [`write32`](Self::write32), of 8 bytes at once.
    ///
    /// # Panics
    /// As [`read64`](Self::read64).
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        store::fence();
        // SAFETY: as in `read32`.
        let word = unsafe { AtomicU64::from_ptr(self.word(offset)) };
        word.store(value.to_le(), Ordering::Release);
    }

    /// Zeroes all of it; for setting up.
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
            "word at {offset} of a buffer of {} bytes",
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
