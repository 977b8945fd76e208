//! Memory of a PCI device, mapped into this process.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// A mapped stretch of a device's memory, accessed in 32-bit words alone: no reference into it ever exists.
///
/// Numbers are little-endian, as PCI has them. Loads and stores happen in program order, once each.
#[derive(Debug)]
pub struct Bar {
    memory: MmapRaw,
}

impl Bar {
    /// Maps `bytes` of the device's memory that `fd` shows from `offset` on.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let memory = MmapOptions::new()
            .offset(offset)
            .len(bytes)
            .map_raw(fd.as_raw_fd())?;
        Ok(Self { memory })
    }

    /// Maps all of a file of sysfs that is a device's memory: `/sys/bus/pci/devices/…/resource2`, or `resource2_wc` with
    /// stores combined.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        let memory = MmapOptions::new().map_raw(&file)?;
        Ok(Self { memory })
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Where it is mapped.
    ///
    /// # Panics
    /// Never: the kernel maps nothing at 0.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is not at 0")
    }

    /// The word at `offset`. What the device wrote before it is visible afterwards.
    ///
    /// # Panics
    /// If the word is not inside, or `offset` no multiple of 4.
    #[inline]
    pub fn read(&self, offset: usize) -> u32 {
        // SAFETY: `word` checks bounds and alignment, and the mapping lives as long as `self`. A volatile load through a
        // raw pointer is what memory that a device changes asks for.
        let value = unsafe { self.word(offset).read_volatile() };
        fence(Ordering::Acquire);
        u32::from_le(value)
    }

    /// Stores a word. What was stored before it, here or in memory, is visible to the device first.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        fence(Ordering::Release);
        // SAFETY: as in `read`.
        unsafe { self.word(offset).write_volatile(value.to_le()) };
    }

    fn word(&self, offset: usize) -> *mut u32 {
        assert!(
            offset.is_multiple_of(4) && offset < self.bytes() && self.bytes() - offset >= 4,
            "word at {offset:#x} of {:#x} bytes of a device",
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
        whole.write(12284, 7);
        assert_eq!(part.read(8188), 7);
    }

    #[test]
    #[should_panic(expected = "word at 0x1000 of 0x1000 bytes")]
    fn bar_word_beyond_end_is_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0u8; 4096]).unwrap();
        Bar::open(file.path()).unwrap().read(4096);
    }
}
