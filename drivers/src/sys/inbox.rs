//! Inboxes: files in memory into which another process writes frames.

use daq_core::frame::Timestamp;
use daq_core::reorder::{Batch, Outcome, PacketId};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;

/// Type of the filesystem of files that `memfd_create` makes without huge pages (`linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The error for a file that cannot be an inbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxError {
    /// The file can change its size, so that a slot may no longer exist when it is read.
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
    /// The file cannot be read.
    #[error("cannot read the inbox: {0}; open it for reading")]
    Read(#[from] io::Error),
}

/// An inbox. The other process can change its bytes at any time.
///
/// The file is read with system calls instead of a mapping. A mapping would allocate memory for each hole that the other
/// process leaves, and stop this process with SIGBUS if no memory is free.
#[derive(Debug)]
pub(crate) struct Inbox {
    file: OwnedFd,
    bytes: usize,
}

impl Inbox {
    /// Opens a file whose size cannot change.
    pub(crate) fn open(file: &OwnedFd) -> Result<Self, InboxError> {
        let seals = fcntl_get_seals(file).map_err(|_| InboxError::Kind)?;
        let kind = fstatfs(file).map_err(|_| InboxError::Kind)?.f_type;
        if u64::try_from(kind) != Ok(TMPFS_MAGIC) {
            return Err(InboxError::Kind);
        }
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(InboxError::Unsealed);
        }
        rustix::io::pread(file, &mut [0], 0).map_err(io::Error::from)?;
        let bytes = fstat(file).map_err(io::Error::from)?.st_size;
        Ok(Self {
            file: file.try_clone()?,
            bytes: usize::try_from(bytes).unwrap_or(0),
        })
    }

    /// Returns the size in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
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
            // SAFETY: `place_with` provides `bytes` initialised bytes that nothing else writes.
            self.read(offset, unsafe {
                std::slice::from_raw_parts_mut(memory, bytes)
            });
        })
    }

    /// Reads from `offset` into `to`. The other process may write the bytes meanwhile, so they can have any values. Holes, and
    /// bytes that cannot be read, are zeros.
    ///
    /// # Panics
    /// If the range is outside the inbox.
    fn read(&self, offset: usize, to: &mut [u8]) {
        let end = offset.checked_add(to.len());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{} bytes at {offset} are outside the inbox",
            to.len()
        );
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&self.file, &mut to[done..], (offset + done) as u64) {
                Ok(read @ 1..) => done += read,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return to[done..].fill(0),
            }
        }
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
        inbox.read(100, &mut bytes);
        assert_eq!(&bytes, b"frame");
    }
}
