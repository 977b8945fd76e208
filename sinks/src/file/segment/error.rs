//! Why a segment could not be written.

use crate::directory::remedy;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a segment could not be written.
#[derive(Debug, Error)]
pub enum SegmentError {
    /// The disk or the quota is full. None of the `wanted` bytes was accepted; the same call can be repeated.
    #[error(
        "no space for {path}: {wrote} B of this segment are written, {wanted} B more do not fit; \
         free some space on that filesystem; writing then continues"
    )]
    Full {
        /// The data file.
        path: PathBuf,
        /// Bytes of the segment accepted before.
        wrote: u64,
        /// Bytes that were not accepted.
        wanted: u64,
    },
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}; {remedy}")]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
        /// Advice.
        remedy: &'static str,
    },
    /// A file of this segment already exists; it is not changed.
    #[error(
        "{path} already exists and is not overwritten; choose another directory or name, or move the file away"
    )]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// A sync failed: the content of the disk is unknown, so the segment can only be abandoned.
    #[error(
        "an earlier sync of {path} failed; the file keeps the suffix .partial; check the disk (dmesg)"
    )]
    Unsure {
        /// The data file.
        path: PathBuf,
    },
    /// The segment is committed and closed; only the last sync of its directory failed.
    #[error(
        "{path} is complete, but its directory could not be synced: {source}; the file may be missing after a power failure; {remedy}"
    )]
    Unsynced {
        /// The metadata file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
        /// Advice.
        remedy: &'static str,
    },
    /// [`SegmentWriter::open`](super::SegmentWriter::open) while a segment is open.
    #[error("{path} is still open: close or abandon it before opening the next segment")]
    StillOpen {
        /// The open segment's data file.
        path: PathBuf,
    },
    /// The call requires an open segment.
    #[error("no segment is open: call open first")]
    NotOpen,
}

impl SegmentError {
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
