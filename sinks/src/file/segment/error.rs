//! Errors of writing a segment.

use crate::directory::remedy;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Errors of writing a segment.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// The disk or the quota is full. None of the `wanted` bytes was accepted, so the same call can be repeated later.
    #[error(
        "no space for {path}: {wrote} B of this segment are written, {wanted} B more do not fit; \
         free some space on that filesystem; writing then continues"
    )]
    Full {
        /// The data file.
        path: PathBuf,
        /// Number of bytes of the segment that were accepted before.
        wrote: u64,
        /// Number of bytes that were not accepted.
        wanted: u64,
    },
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}; {remedy}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error that Linux reported.
        source: std::io::Error,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// A file of this segment already exists. The existing file is not changed.
    #[error(
        "{path} already exists and is not overwritten; choose another directory or name, or move the file away"
    )]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// A sync failed. The content of the disk is unknown, so the segment cannot be completed. The segment can only be
    /// kept as a partial file.
    #[error(
        "an earlier sync of {path} failed; the file keeps the suffix .partial; check the disk (dmesg)"
    )]
    Unsure {
        /// The data file.
        path: PathBuf,
    },
    /// The segment is committed and closed. Only the last sync of its directory failed.
    #[error(
        "{path} is complete, but its directory could not be synced: {source}; the file may be missing after a power failure; {remedy}"
    )]
    Unsynced {
        /// The metadata file.
        path: PathBuf,
        /// The error that Linux reported.
        source: std::io::Error,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// [`SegmentWriter::open`](super::SegmentWriter::open) was called while a segment was open.
    #[error(
        "{path} is still open: close it, or keep it as a partial file, before opening the next segment"
    )]
    StillOpen {
        /// The data file of the open segment.
        path: PathBuf,
    },
    /// The call requires an open segment, but no segment is open.
    #[error("no segment is open: call open first")]
    NotOpen,
}

impl SegmentError {
    /// Creates the error of a failed write, after which `wrote` bytes of the segment are written and `wanted` are not.
    pub(super) fn write(
        action: &'static str,
        path: &Path,
        error: impl Into<std::io::Error>,
        (wrote, wanted): (u64, u64),
    ) -> Self {
        let error = error.into();
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::Full {
                path: path.to_owned(),
                wrote,
                wanted,
            },
            _ => Self::io(action, path, error),
        }
    }

    pub(super) fn io(action: &'static str, path: &Path, errno: impl Into<std::io::Error>) -> Self {
        let source = errno.into();
        let remedy = remedy(&source);
        Self::Io {
            action,
            path: path.to_owned(),
            source,
            remedy,
        }
    }
}
