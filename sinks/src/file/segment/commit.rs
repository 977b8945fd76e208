//! The files of a segment, and the steps that commit the segment.

use super::disk::DataFile;
use super::error::SegmentError;
use crate::directory::remedy;
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPaths {
    /// Path of the complete data file, `NAME.sigmf-data`.
    pub data: PathBuf,
    /// Path of the incomplete data file, `NAME.sigmf-data.partial`.
    pub partial: PathBuf,
    /// Path of the metadata file, `NAME.sigmf-meta`.
    pub meta: PathBuf,
    /// Path of the metadata file before the commit, `NAME.sigmf-meta.tmp`.
    pub meta_tmp: PathBuf,
}

impl SegmentPaths {
    /// Returns the paths of segment `name` in `dir`.
    pub fn new(dir: &Path, name: &str) -> Self {
        let path = |suffix: &str| dir.join(format!("{name}{suffix}"));
        Self {
            data: path(".sigmf-data"),
            partial: path(".sigmf-data.partial"),
            meta: path(".sigmf-meta"),
            meta_tmp: path(".sigmf-meta.tmp"),
        }
    }
}

/// The steps of a close in order; see the table of [`segment`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The buffered data is written, and the file has its exact length.
    Tail,
    /// The data file is synced.
    DataSynced,
    /// The metadata is written to the file with the temporary name and synced.
    MetaWritten,
    /// The data file has its final name.
    DataNamed,
    /// The directory is synced.
    DirectorySynced,
    /// The metadata file has its final name.
    MetaNamed,
    /// The directory is synced again.
    Done,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Self; 7] = [
        Self::Tail,
        Self::DataSynced,
        Self::MetaWritten,
        Self::DataNamed,
        Self::DirectorySynced,
        Self::MetaNamed,
        Self::Done,
    ];
}

/// A complete segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The data file.
    pub data: PathBuf,
    /// The metadata file.
    pub meta: PathBuf,
    /// Size of the data in bytes.
    pub bytes: u64,
}

/// The segment being written.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) dir: PathBuf,
    pub(super) paths: SegmentPaths,
    pub(super) file: Arc<DataFile>,
    /// Number of bytes accepted so far.
    pub(super) len: u64,
    /// Number of bytes reserved from the start of the file.
    pub(super) reserved: u64,
    pub(super) can_reserve: bool,
    /// Whether the data file has its final name.
    pub(super) named: bool,
    pub(super) unsure: bool,
}

impl Open {
    pub(super) fn take(&mut self, step: Step, meta: &[u8]) -> Result<(), SegmentError> {
        let paths = &self.paths;
        match step {
            Step::Tail => Ok(()),
            Step::DataSynced => rustix::fs::fdatasync(&self.file.fd).map_err(|errno| {
                // After a failed sync, Linux may have discarded the pages that it could not write. A second sync that
                // succeeds then proves nothing.
                self.unsure = true;
                SegmentError::io("sync", &paths.partial, errno)
            }),
            Step::MetaWritten => {
                let write = || {
                    let mut file = daq_core::file::create(&paths.meta_tmp)?;
                    file.write_all(meta)?;
                    file.sync_all()
                };
                let counts = (self.len, meta.len() as u64);
                write().map_err(|e| SegmentError::write("write", &paths.meta_tmp, e, counts))
            }
            Step::DataNamed if self.named => Ok(()),
            Step::DataNamed => {
                rename(&paths.partial, &paths.data)?;
                self.named = true;
                Ok(())
            }
            Step::MetaNamed => rename(&paths.meta_tmp, &paths.meta),
            Step::DirectorySynced => sync_directory(&self.dir),
            Step::Done => crate::directory::sync_directory(&self.dir).map_err(|errno| {
                let source = std::io::Error::from(errno);
                SegmentError::Unsynced {
                    path: paths.meta.clone(),
                    remedy: remedy(&source),
                    source,
                }
            }),
        }
    }
}

/// Renames `from` to `to`. Returns an error if `to` exists.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), SegmentError> {
    let at = rustix::fs::CWD;
    let errno = match rustix::fs::renameat_with(at, from, at, to, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        // Some network filesystems do not support a rename that never replaces a file.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if to.symlink_metadata().is_err() => {
            match rustix::fs::rename(from, to) {
                Ok(()) => return Ok(()),
                Err(errno) => errno,
            }
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Errno::EXIST,
        Err(errno) => errno,
    };
    // A network file server may have renamed the file before it failed, or its reply may have been lost.
    if from
        .symlink_metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        && to.symlink_metadata().is_ok()
    {
        return Ok(());
    }
    Err(match errno {
        Errno::EXIST => SegmentError::Exists {
            path: to.to_owned(),
        },
        _ => SegmentError::io("rename", from, errno),
    })
}

pub(super) fn sync_directory(dir: &Path) -> Result<(), SegmentError> {
    crate::directory::sync_directory(dir)
        .map_err(|errno| SegmentError::io("sync the directory", dir, errno))
}
