//! Maps memory of a PCI device into this process.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// A mapped range of a device's memory. The range is accessed only in words of 32 or 64 bits, and no Rust reference to the
/// range is ever created.
///
/// Values are little-endian, as PCI requires. Each load and store is executed once, in program order.
#[derive(Debug)]
pub struct Bar {
    memory: MmapRaw,
}

impl Bar {
    /// Maps `bytes` of the device memory that `fd` exposes, starting at `offset`.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let memory = MmapOptions::new()
            .offset(offset)
            .len(bytes)
            .map_raw(fd.as_raw_fd())?;
        Ok(Self { memory })
    }

    /// Maps a whole sysfs file of device memory: `/sys/bus/pci/devices/…/resource2`, or `resource2_wc` for write
    /// combining.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        let memory = MmapOptions::new().map_raw(&file)?;
        Ok(Self { memory })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Returns the address of the mapping.
    ///
    /// # Panics
    /// Never panics, because Linux maps nothing at address 0.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("Linux maps nothing at address 0")
    }

    /// Reads the word at `offset`. Data that the device wrote before this word is visible afterwards.
    ///
    /// # Panics
    /// Panics if the word is outside the mapping or `offset` is not a multiple of 4.
    #[inline]
    pub fn read(&self, offset: usize) -> u32 {
        // SAFETY: `word` checks bounds and alignment, and the mapping lives as long as `self`. The load is volatile and
        // uses a raw pointer, because the device can change the memory.
        let value = unsafe { self.word::<u32>(offset).read_volatile() };
        fence(Ordering::Acquire);
        u32::from_le(value)
    }

    /// Writes the word at `offset`. Earlier stores, to the mapping or to host memory, become visible to the device
    /// first.
    ///
    /// # Panics
    /// Panics as [`read`](Self::read) does.
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        fence(Ordering::Release);
        // SAFETY: the requirements are met as in `read`.
        unsafe { self.word::<u32>(offset).write_volatile(value.to_le()) };
    }

    /// Reads 64 bits at `offset` in one access, as [`read`](Self::read) does.
    ///
    /// # Panics
    /// Panics if the bits are outside the mapping or `offset` is not a multiple of 8.
    #[inline]
    pub fn read64(&self, offset: usize) -> u64 {
        // SAFETY: the requirements are met as in `read`.
        let value = unsafe { self.word::<u64>(offset).read_volatile() };
        fence(Ordering::Acquire);
        u64::from_le(value)
    }

    /// Writes 64 bits at `offset` in one access, as [`write`](Self::write) does.
    ///
    /// # Panics
    /// Panics as [`read64`](Self::read64) does.
    #[inline]
    pub fn write64(&self, offset: usize, value: u64) {
        fence(Ordering::Release);
        // SAFETY: the requirements are met as in `read`.
        unsafe { self.word::<u64>(offset).write_volatile(value.to_le()) };
    }

    fn word<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(
            offset.is_multiple_of(size) && offset < self.bytes() && self.bytes() - offset >= size,
            "word offset {offset:#x} is not a multiple of {size}, or beyond the {:#x} bytes of the BAR",
            self.bytes()
        );
        self.memory.as_mut_ptr().wrapping_add(offset).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn bar_words_are_little_endian_at_their_offset() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0u8; 12288]).unwrap();
        let whole = Bar::open(file.path()).unwrap();
        assert_eq!(whole.bytes(), 12288);
        let part = Bar::map(file.as_file().as_fd(), 4096, 8192).unwrap();
        part.write(4, 0x0102_0304);
        assert_eq!(whole.read(4100), 0x0102_0304);
        assert_eq!(
            std::fs::read(file.path()).unwrap()[4100..4104],
            [4, 3, 2, 1]
        );
        part.write64(8, 0x1_0000_0002);
        assert_eq!((whole.read(4104), whole.read(4108)), (2, 1));
        assert_eq!(whole.read64(4104), 0x1_0000_0002);
        whole.write(12284, 7);
        assert_eq!(part.read(8188), 7);
    }

    #[test]
    #[should_panic(expected = "word offset 0x1000")]
    fn bar_word_beyond_end_is_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0u8; 4096]).unwrap();
        Bar::open(file.path()).unwrap().read(4096);
    }
}
