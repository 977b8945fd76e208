//! Small host memory that a device accesses in addition to its slots: descriptors, result words, write-back words.

use super::{DmaDevice, DmaError, DmaMap};
use crate::region::{HostOptions, Region, SharedWords};
use crate::sys::store;
use std::sync::Arc;

/// [Words](SharedWords) that a device can access.
#[derive(Debug)]
pub struct DmaBuffer {
    map: DmaMap,
    words: SharedWords,
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
        let words = SharedWords::of(region.clone());
        let map = DmaMap::new(device, region)?;
        // Users compute all device addresses from the first, so the addresses must be consecutive.
        map.address_of(0, bytes)?;
        Ok(Self { map, words })
    }

    /// Returns the device's address of the first byte.
    pub const fn address(&self) -> u64 {
        self.map.address()
    }

    /// Returns the size in bytes, which is at least the requested size.
    pub fn bytes(&self) -> usize {
        self.words.bytes()
    }

    /// Reads the 4-byte word at `offset`. Everything that the device wrote before this word is visible afterwards.
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 4.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        self.words.load32(offset)
    }

    /// Reads the 8-byte word at `offset` in one access, with the guarantees of [`read32`](Self::read32).
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 8.
    #[inline]
    pub fn read64(&self, offset: usize) -> u64 {
        self.words.load64(offset)
    }

    /// Writes the 4-byte word at `offset`. All earlier stores become visible to the device before this word.
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 4.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        store::fence();
        self.words.store32(offset, value);
    }

    /// Writes the 8-byte word at `offset` in one access, with the guarantees of [`write32`](Self::write32).
    ///
    /// # Panics
    /// Panics if the word is outside the buffer or `offset` is not a multiple of 8.
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        store::fence();
        self.words.store64(offset, value);
    }

    /// Zeroes the whole buffer; used during setup.
    pub fn clear(&self) {
        for offset in (0..self.bytes()).step_by(8) {
            self.write64(offset, 0);
        }
    }
}
