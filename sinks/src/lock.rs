//! The lock of a stem, which ensures that only one process at a time writes the files `STEM-…` in a directory.
//!
//! A sink locks `.STEM.lock`, in the directory of its files, before it reads the files and until the last file is
//! complete. A second process that requests the same stem is rejected. The lock file contains the process ID of the
//! writer.
//!
//! - **After a clean end**, the file is removed first and the lock is released afterwards. A process that opened the
//!   file before would then lock a deleted file. So after locking, each process checks whether the path still names the
//!   locked file. If not, the process opens and locks the file at the path again.
//! - **A kill** releases the lock but leaves the file. This is harmless, because only the lock (`flock`) counts, not
//!   the file.
//! - **If the lock file belongs to another user** and is not writable, it is locked through a read-only descriptor. The
//!   file then does not contain the process ID.
//! - **If the filesystem does not support locks** (some network filesystems), the sink logs this and continues. Files
//!   are never overwritten, because they are opened with exclusive creation. But two processes may select the same
//!   segment numbers and fail.

use crate::directory::{failure, remedy};
use crate::presence::Identity;
use daq_core::sink::SinkError;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Maximum number of attempts if the lock file was deleted between opening and locking. Such a deletion happens when
/// another process ends at that moment. Many repetitions mean that the filesystem has no stable inode numbers.
const MAX_ATTEMPTS: u32 = 100;
/// Name of the operation in error messages.
const LOCK_ACTION: &str = "locking its files";

/// Reasons why a stem could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another writer holds the lock.
    #[error("{}: {}", files.display(), writing(*pid))]
    Held {
        /// Path pattern of the stem's files.
        files: PathBuf,
        /// The process ID in the lock file, if the file contains one.
        pid: Option<u32>,
    },
    /// The lock file was replaced during every attempt.
    #[error(
        "cannot lock {path}: the file was replaced during each of {MAX_ATTEMPTS} attempts; try again while no other daq that \
         uses this directory starts or ends. If the error remains, choose a `path` on another filesystem, because this \
         filesystem has no stable inode numbers"
    )]
    Replaced {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}; {}", help(source))]
    Io {
        /// Name of the operation.
        what: &'static str,
        /// Path of the lock file.
        path: PathBuf,
        /// The error that Linux reported.
        source: std::io::Error,
    },
}

impl LockError {
    /// Converts this error into an error of the sink `sink`.
    pub(crate) fn of_sink(self, sink: &str) -> SinkError {
        match self {
            Self::Held { files, pid } => SinkError::Failed {
                what: files.display().to_string(),
                why: format!(
                    "{}; stop that writer, or set another `name` or `path` for sink `{sink}`",
                    writing(pid)
                ),
            },
            Self::Io { ref source, .. } => failure(LOCK_ACTION, self.to_string(), source),
            error @ Self::Replaced { .. } => SinkError::Failed {
                what: LOCK_ACTION.to_owned(),
                why: error.to_string(),
            },
        }
    }

    fn io(what: &'static str, path: &Path, errno: Errno) -> Self {
        Self::Io {
            what,
            path: path.to_owned(),
            source: errno.into(),
        }
    }
}

/// Describes the holder of a lock.
///
/// The only information is the process ID in the file. This ID may be wrong, because a process in another container can
/// have the same ID, and a holder that could not write to the file leaves the ID of its predecessor.
fn writing(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => format!(
            "locked by another writer (pid {pid}, which is also the pid of this process: the \
             writer is another sink of this process, or a process in another container)"
        ),
        Some(pid) => format!("locked by another writer (pid {pid})"),
        None => "locked by another writer".to_owned(),
    }
}

/// Returns advice for a failed operation on a lock file.
fn help(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP) => {
            "the lock file is a symbolic link, which daq does not follow; remove the link"
        }
        Some(Errno::NXIO) => {
            "the lock file is a FIFO or a device, not a regular file; remove this file"
        }
        // Some network filesystems can lock only writable files.
        Some(Errno::BADF) => {
            "the lock file belongs to another user, and this filesystem can lock only writable files; remove the lock \
             file when no daq of that user writes to its directory"
        }
        _ => remedy(error),
    }
}

/// The exclusive right to write the files of one stem in one directory. Dropping this value releases the lock.
///
/// ```
/// use daq_sinks::lock::{LockError, StemLock};
/// let dir = tempfile::tempdir()?;
/// let lock = StemLock::take(dir.path(), "adc")?;
/// assert!(matches!(StemLock::take(dir.path(), "adc"), Err(LockError::Held { .. })));
/// drop(lock);
/// StemLock::take(dir.path(), "adc")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StemLock {
    dir: PathBuf,
    /// Identity of the directory; `None` if it is unknown.
    identity: Option<Identity>,
    stem: String,
    path: PathBuf,
    file: File,
}

impl StemLock {
    /// Locks `stem` in `dir`, which must exist. Never waits.
    pub fn take(dir: &Path, stem: &str) -> Result<Self, LockError> {
        let lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
        Self::take_by(dir, stem, lock, is_named)
    }

    /// Same as [`take`](Self::take), with replaceable operations: `lock` locks a file, and `is_named` checks whether
    /// the path still names the file.
    fn take_by(
        dir: &Path,
        stem: &str,
        lock: impl Fn(&File) -> Result<(), Errno>,
        is_named: impl Fn(&File, &Path) -> bool,
    ) -> Result<Self, LockError> {
        let path = dir.join(format!(".{stem}.lock"));
        let hold = |file| Self {
            dir: dir.to_owned(),
            identity: Identity::of(dir),
            stem: stem.to_owned(),
            path: path.clone(),
            file,
        };
        let mut is_opened = false;
        for _ in 0..MAX_ATTEMPTS {
            let opened = open(&path).map_err(|errno| LockError::io("open", &path, errno))?;
            is_opened = opened.is_some();
            let Some(file) = opened else {
                continue;
            };
            match rustix::io::retry_on_intr(|| lock(&file)) {
                // The next attempt opens the file that exists now. It may belong to the current holder.
                Ok(()) | Err(Errno::WOULDBLOCK) if !is_named(&file, &path) => {}
                Ok(()) => {
                    sign(&file);
                    return Ok(hold(file));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(LockError::Held {
                        files: dir.join(format!("{stem}-*")),
                        pid: signature(&file),
                    });
                }
                Err(errno @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    tracing::warn!(
                        "this filesystem does not support locks ({errno} for {}); ensure that no other process writes {stem}-* \
                         in this directory, because daq cannot detect such a process",
                        path.display()
                    );
                    return Ok(hold(file));
                }
                Err(errno) => return Err(LockError::io("lock", &path, errno)),
            }
        }
        Err(if is_opened {
            LockError::Replaced { path }
        } else {
            LockError::io("open", &path, Errno::ACCESS)
        })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Checks that the path of the directory still names the same directory.
    ///
    /// # Errors
    /// If the directory was removed, moved or replaced, so that files which are written now cannot be found, or if it cannot be
    /// accessed.
    pub(crate) fn check_dir(&self) -> Result<(), SinkError> {
        let checked = self
            .identity
            .map_or(Ok(()), |identity| identity.check("directory", &self.dir));
        checked.map_err(|absent| absent.of_sink(&self.dir))
    }

    /// Returns the stem.
    pub fn stem(&self) -> &str {
        &self.stem
    }
}

impl Drop for StemLock {
    fn drop(&mut self) {
        // Remove the file while it is still locked, so that no other process can hold the lock of the removed file. If
        // a user removed the file manually, the existing file belongs to another process.
        if is_named(&self.file, &self.path) {
            // A file that cannot be removed has the same effect as one that a kill leaves behind.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens the lock file, or creates it if it is missing. A file that is not writable is opened read-only, which is
/// sufficient for locking. Returns `None` if the file is missing and cannot be created, because its holder has just
/// removed it or because the directory is read-only.
fn open(path: &Path) -> Result<Option<File>, Errno> {
    let open = |flags| {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map(File::from)?;
        match file.metadata() {
            Ok(metadata) if !metadata.is_file() => Err(Errno::NXIO),
            _ => Ok(file),
        }
    };
    match open(OFlags::RDWR | OFlags::CREATE) {
        Err(Errno::ACCESS) => match open(OFlags::RDONLY) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        },
        other => other.map(Some),
    }
}

/// Returns whether `path` still names the open `file`.
fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Writes the process ID to the lock file. Ignores errors, because the ID is used only in error messages.
fn sign(file: &File) {
    let text = format!("{}\n", std::process::id());
    let _ = file
        .set_len(0)
        .and_then(|()| file.write_all_at(text.as_bytes(), 0));
}

/// Reads the process ID of the lock's holder.
fn signature(file: &File) -> Option<u32> {
    let mut text = [0; 16];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length])
        .ok()?
        .trim_end()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const FREE: fn(&File) -> Result<(), Errno> = |_| Ok(());
    const THERE: fn(&File, &Path) -> bool = |_, _| true;

    #[test]
    fn only_filesystem_without_locks_is_written_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL] {
            StemLock::take_by(dir.path(), "adc", |_| Err(errno), THERE).unwrap();
        }
        for errno in [Errno::BADF, Errno::IO, Errno::STALE, Errno::PERM] {
            let error = StemLock::take_by(dir.path(), "adc", |_| Err(errno), THERE).unwrap_err();
            assert!(error.to_string().starts_with("cannot lock "), "{error}");
        }
    }

    #[test]
    fn directory_that_disappears_is_detected() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("out");
        std::fs::create_dir(&dir).unwrap();
        let lock = StemLock::take(&dir, "adc").unwrap();
        std::fs::remove_file(dir.join(".adc.lock")).unwrap();
        lock.check_dir().unwrap();
        let moved = parent.path().join("moved");
        std::fs::rename(&dir, &moved).unwrap();
        let error = lock.check_dir().unwrap_err().to_string();
        assert!(error.contains("was removed or moved"), "{error}");
        std::fs::create_dir(&dir).unwrap();
        let error = lock.check_dir().unwrap_err().to_string();
        assert!(error.contains("another directory has replaced"), "{error}");
        std::fs::remove_dir(&dir).unwrap();
        std::fs::rename(&moved, &dir).unwrap();
        lock.check_dir().unwrap();
    }

    #[test]
    fn loser_of_lock_race_does_not_write() {
        let dir = tempfile::tempdir().unwrap();
        for held in [FREE, |_| Err(Errno::WOULDBLOCK)] {
            let error = StemLock::take_by(dir.path(), "adc", held, |_, _| false).unwrap_err();
            assert!(matches!(error, LockError::Replaced { .. }), "{error}");
            let races = Cell::new(0);
            let is_named = |_: &File, _: &Path| races.replace(races.get() + 1) == MAX_ATTEMPTS - 1;
            let last = StemLock::take_by(dir.path(), "adc", held, is_named);
            assert!(
                !matches!(last, Err(LockError::Replaced { .. })),
                "the last attempt must be able to succeed"
            );
        }
    }

    #[test]
    fn lock_interrupted_by_signal_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let signals = Cell::new(2 * MAX_ATTEMPTS);
        let lock = |_: &File| match signals.replace(signals.get().saturating_sub(1)) {
            0 => Ok(()),
            _ => Err(Errno::INTR),
        };
        StemLock::take_by(dir.path(), "adc", lock, THERE).unwrap();
    }

    #[test]
    fn lock_file_that_is_fifo_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".adc.lock");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = StemLock::take(dir.path(), "adc").unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn lock_error_does_not_suggest_breaking_lock() {
        let message = |errno: Errno| LockError::io("open", Path::new("x"), errno).to_string();
        assert!(message(Errno::LOOP).ends_with("remove the link"));
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::IO] {
            assert!(!message(errno).contains("remove"), "{}", message(errno));
        }
        assert!(message(Errno::BADF).contains("when no daq of that user writes to its directory"));
    }

    #[test]
    fn lock_holder_is_reported_from_lock_file() {
        assert_eq!(writing(None), "locked by another writer");
        assert!(writing(Some(0)).ends_with("writer (pid 0)"));
        let own = writing(Some(std::process::id()));
        assert!(own.contains("another sink of this process, or a process in another container"));
    }
}
