//! Creates and syncs directories, and returns advice for failed file operations.

use daq_core::sink::SinkError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Creates `dir` and its parents.
pub(crate) fn make_directory(dir: &Path) -> Result<(), SinkError> {
    std::fs::create_dir_all(dir).map_err(|error| {
        let help = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::EXIST | Errno::NOTDIR) => {
                "a file has the name of this directory or of one of its parents; choose another `path`, or move that file away"
            }
            Some(Errno::NAMETOOLONG) => "choose a shorter `path`",
            // A virtual file system such as /proc refuses new directories with ENOENT.
            Some(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {
                "choose a `path` to which the user running daq can write"
            }
            _ => remedy(&error),
        };
        SinkError::Failed {
            what: dir.display().to_string(),
            why: format!("cannot create this directory: {error}; {help}"),
        }
    })
}

/// Syncs the directory, so that its entries survive a power failure.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty())?;
    match rustix::fs::fsync(fd) {
        // Some network filesystems do not support syncing a directory. They keep the order of the changes themselves,
        // or not at all.
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Creates the error of a sink for an operation that failed because of `cause`.
pub(crate) fn failure(what: impl Into<String>, why: String, cause: &std::io::Error) -> SinkError {
    let what = what.into();
    match cause.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN) => SinkError::Unavailable { what, why },
        _ => SinkError::Failed { what, why },
    }
}

/// Returns advice for a failed file operation.
pub(crate) fn remedy(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM) => "give the user running daq write permission for it",
        Some(Errno::NOENT) => {
            "create the directory; if it exists, another program has moved the file"
        }
        Some(Errno::ROFS) => "the filesystem is read-only; remount it or choose another path",
        Some(Errno::MFILE | Errno::NFILE) => {
            "raise the limit of open files (ulimit -n, LimitNOFILE)"
        }
        Some(Errno::AGAIN) => "raise the limits on threads and memory (ulimit -u, TasksMax=)",
        Some(Errno::FBIG) => {
            "the filesystem or `ulimit -f` limits the file size; set a smaller `segment`"
        }
        Some(Errno::NOSPC | Errno::DQUOT) => "free some space on that filesystem",
        _ => "check the disk and its cabling (dmesg)",
    }
}

/// Creates the error of a sink that has no free space for `path`.
pub(crate) fn no_space(path: &Path) -> SinkError {
    SinkError::Full {
        what: path.display().to_string(),
        remedy: "free some space on that filesystem; writing then continues".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_not_creatable_is_named_with_fix() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let why = |path: &Path| make_directory(path).unwrap_err().to_string();
        for path in [file.clone(), file.join("out")] {
            let error = why(&path);
            assert!(error.contains("move that file away"), "{error}");
        }
        let error = why(&dir.path().join("n".repeat(256)));
        assert!(error.contains("choose a shorter `path`"), "{error}");
    }
}
