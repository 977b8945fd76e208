//! Inboxes: files in memory into which another process writes frames.

use daq_core::frame::Timestamp;
use daq_core::reorder::{Batch, Outcome, PacketId};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Type of the filesystem of files that `memfd_create` makes without huge pages (`linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The error for a file that cannot be an inbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxError {
    /// The file can become shorter, which would stop this process with SIGBUS.
    #[error(
        "the inbox can change its size; create it with memfd_create and MFD_ALLOW_SEALING, and add the seals F_SEAL_SHRINK and F_SEAL_GROW"
    )]
    Unsealed,
    /// The file is not in memory.
    #[error("the inbox is not a file in memory; create it with memfd_create, without MFD_HUGETLB")]
    Kind,
    /// The file has too few or too many slots.
    #[error("the inbox has {bytes} bytes; it must have 1 to {max} slots of {stride} bytes")]
    Size {
        /// Size of the file in bytes.
        bytes: usize,
        /// Size of a slot in bytes.
        stride: usize,
        /// Maximum number of slots.
        max: usize,
    },
    /// The file cannot be mapped.
    #[error("cannot map the inbox: {0}; open it for reading")]
    Map(#[from] io::Error),
}

/// A mapped inbox. The other process can change its bytes at any time.
#[derive(Debug)]
pub(crate) struct Inbox(MmapRaw);

impl Inbox {
    /// Maps a file whose size cannot change.
    pub(crate) fn open(file: &OwnedFd) -> Result<Self, InboxError> {
        let seals = fcntl_get_seals(file).map_err(|_| InboxError::Kind)?;
        let kind = fstatfs(file).map_err(|_| InboxError::Kind)?.f_type;
        // A hole in a file with huge pages cannot be filled if the pool of huge pages is empty.
        if u64::try_from(kind) != Ok(TMPFS_MAGIC) {
            return Err(InboxError::Kind);
        }
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(InboxError::Unsealed);
        }
        Ok(Self(
            MmapOptions::new().map_raw_read_only(file.as_raw_fd())?,
        ))
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Places the `bytes` bytes from `offset` as the packet `id`.
    ///
    /// # Panics
    /// If the range is outside the inbox.
    pub(crate) fn put(
        &self,
        batch: &mut Batch<'_>,
        id: PacketId,
        offset: usize,
        bytes: usize,
        time: Timestamp,
    ) -> Outcome {
        batch.place_with(id, bytes, time, |memory| {
            // SAFETY: `place_with` provides `bytes` writable bytes that nothing else accesses.
            unsafe { self.copy(offset, memory, bytes) };
        })
    }

    /// Copies `bytes` bytes from `offset` to `to`. The other process may write the bytes meanwhile, so the copy can contain
    /// any values.
    ///
    /// # Panics
    /// If the range is outside the inbox.
    ///
    /// # Safety
    /// `to` must be valid for writes of `bytes` bytes.
    unsafe fn copy(&self, offset: usize, to: *mut u8, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{bytes} bytes at {offset} are outside the inbox"
        );
        // SAFETY:
        // - The source range is inside the mapping, which lives as long as `self`. The file is sealed against shrinking, so
        //   its pages exist.
        // - The caller guarantees that `to` is valid. The ranges are different mappings, so they do not overlap.
        // - Another process may write the source meanwhile. No reference to it exists, and every byte value is valid.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr().add(offset), to, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn file(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("inbox", flags | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        if !seals.is_empty() {
            fcntl_add_seals(&file, seals).unwrap();
        }
        file
    }

    #[test]
    fn files_that_can_shrink_are_rejected() {
        let sealing = MemfdFlags::ALLOW_SEALING;
        for (flags, seals) in [
            (MemfdFlags::empty(), SealFlags::empty()),
            (sealing, SealFlags::empty()),
            (sealing, SealFlags::SHRINK),
            (sealing, SealFlags::GROW),
        ] {
            let error = Inbox::open(&file(flags, seals)).unwrap_err();
            assert!(matches!(error, InboxError::Unsealed), "{error}");
        }
        let disk = OwnedFd::from(tempfile::tempfile().unwrap());
        let error = Inbox::open(&disk).unwrap_err();
        assert!(
            matches!(error, InboxError::Kind | InboxError::Unsealed),
            "{error}"
        );
    }

    #[test]
    fn bytes_of_sealed_file_are_copied() {
        let file = file(
            MemfdFlags::ALLOW_SEALING,
            SealFlags::SHRINK | SealFlags::GROW,
        );
        let inbox = Inbox::open(&file).unwrap();
        assert_eq!(rustix::io::pwrite(&file, b"frame", 100), Ok(5));
        let mut bytes = [0; 5];
        // SAFETY: `bytes` has 5 bytes.
        unsafe { inbox.copy(100, bytes.as_mut_ptr(), 5) };
        assert_eq!(&bytes, b"frame");
    }
}
