//! Detects that a file or directory of a recording was removed, moved or replaced while a sink writes to it.
//!
//! Linux continues to write to a removed file, but no program can open this file any more. So sinks compare about once a second what
//! they write to with what its path names.

use crate::directory::remedy;
use daq_core::sink::SinkError;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use thiserror::Error;

/// Device and inode of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// Why the path of a recording no longer names what the sink writes to.
#[derive(Debug, Error)]
pub(crate) enum Absent {
    /// What the sink wrote cannot be found at its path.
    #[error(
        "{0}; exclude the directory from clean-up jobs, check that its disk is mounted, and start daq again"
    )]
    Gone(String),
    /// The path cannot be accessed.
    #[error("cannot access it any more: {error}; {}", access_remedy(error))]
    Inaccessible {
        /// The error that Linux reported.
        error: Error,
    },
}

impl Absent {
    /// Returns the error of a sink that writes to `path`.
    pub(crate) fn of_sink(&self, path: &Path) -> SinkError {
        SinkError::Failed {
            what: path.display().to_string(),
            why: self.to_string(),
        }
    }

    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }
}

impl Identity {
    fn of_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Returns the identity of what `path` names; `None` if it is unknown.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        path.metadata().ok().as_ref().map(Self::of_metadata)
    }

    /// Checks that `path` still names the `what` (such as `directory`) with this identity.
    pub(crate) fn check(self, what: &str, path: &Path) -> Result<(), Absent> {
        compare(what, Some(self), path.metadata())
    }
}

/// Checks that `path` still names the open `file`.
pub(crate) fn check_file(file: impl AsFd, path: &Path) -> Result<(), Absent> {
    let open = file.as_fd().try_clone_to_owned().map(File::from);
    // Without the properties of the open file, there is nothing to compare.
    let Ok(open) = open.and_then(|file| file.metadata()) else {
        return Ok(());
    };
    if open.nlink() == 0 {
        return Err(removed("file"));
    }
    compare("file", Some(Identity::of_metadata(&open)), path.metadata())
}

fn removed(what: &str) -> Absent {
    Absent::Gone(format!(
        "the {what} of this recording was removed or moved, so what is written now is lost"
    ))
}

/// Compares what a path names `now` with what it named before.
fn compare(
    what: &str,
    before: Option<Identity>,
    now: Result<Metadata, Error>,
) -> Result<(), Absent> {
    match now {
        Ok(now) if before.is_none_or(|before| before == Identity::of_metadata(&now)) => Ok(()),
        Ok(_) => Err(Absent::Gone(format!(
            "another {what} has replaced the {what} of this recording, so what is written now is lost"
        ))),
        Err(error) => absent(what, error),
    }
}

/// Returns what a failed look-up means. Errors that can be temporary are ignored.
fn absent(what: &str, error: Error) -> Result<(), Absent> {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        _ if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(removed(what))
        }
        Some(Errno::STALE) => Err(Absent::Gone(format!(
            "the file server has removed the {what} of this recording (stale file handle), so what is written now is lost"
        ))),
        Some(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Ok(()),
        _ => Err(Absent::Inaccessible { error }),
    }
}

/// Returns advice for a path that cannot be accessed.
fn access_remedy(error: &Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "give the user running daq permission to search (x) all directories of the path"
        }
        _ => remedy(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_moved_and_replaced_files_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let [path, moved] = ["file", "moved"].map(|name| dir.path().join(name));
        let file = File::create(&path).unwrap();
        check_file(&file, &path).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        let error = check_file(&file, &path).unwrap_err();
        assert!(
            error.is_gone() && error.to_string().contains("removed or moved"),
            "{error}"
        );
        std::fs::write(&path, "").unwrap();
        let error = check_file(&file, &path).unwrap_err();
        assert!(
            error.to_string().contains("another file has replaced"),
            "{error}"
        );
        std::fs::rename(&moved, &path).unwrap();
        check_file(&file, &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(check_file(&file, &path).unwrap_err().is_gone());
    }

    #[test]
    fn missing_paths_differ_from_inaccessible_paths() {
        let of = |errno: Errno| absent("directory", Error::from(errno));
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::STALE] {
            assert!(of(errno).unwrap_err().is_gone(), "{errno}");
        }
        for (errno, part) in [
            (Errno::ACCESS, "permission to search"),
            (Errno::IO, "check the disk"),
        ] {
            let error = of(errno).unwrap_err();
            assert!(
                !error.is_gone() && error.to_string().contains(part),
                "{error}"
            );
        }
        for errno in [Errno::TIMEDOUT, Errno::AGAIN] {
            assert!(of(errno).is_ok(), "{errno}");
        }
    }
}
