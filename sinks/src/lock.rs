//! The lock of a stem: one writer of `STEM-…` in a directory at a time.
//!
//! A sink holds `.STEM.lock`, a file beside those it writes, from before it looks at them until the last of them is whole.
//! A second process that wants the stem meanwhile is refused. The file holds the number of the process that writes.
//!
//! - **A clean end** removes the file and then lets the lock go. Whoever opened the file before that comes to hold the lock
//!   of a file that is no longer there; so everyone looks, once the lock is theirs, whether the path still names what they
//!   locked, and begins anew if not.
//! - **A kill** lets the lock go and leaves the file, which hinders nobody: what counts is the lock (`flock`), not the file.
//! - **Where the filesystem has no locks** (some network ones) the sink says so and goes on. Nothing is overwritten even
//!   then, as files are only ever created anew, but two processes at once may take each other's numbers and fail.

use crate::directory::remedy;
use daq_core::sink::SinkError;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// How often a lock may turn out to be that of a file no longer there. Each time another process has ended just then;
/// more than a few such ends in a row are none, but a filesystem whose files have no lasting numbers.
const TRIES: u32 = 100;

/// Why a stem could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Someone else holds it.
    #[error("{}: {}", files.display(), writing(*pid))]
    Held {
        /// The files of the stem.
        files: PathBuf,
        /// Who holds it, where the lock tells.
        pid: Option<u32>,
    },
    /// A file operation failed.
    #[error(
        "cannot open {path}: {source}; {}; if that file is a link or another user's, remove it",
        remedy(source)
    )]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl LockError {
    /// As the error of sink `sink`.
    pub(crate) fn of_sink(self, sink: &str) -> SinkError {
        match self {
            Self::Held { files, pid } => SinkError::Failed {
                what: files.display().to_string(),
                why: format!(
                    "{}; stop that, or give sink `{sink}` another `name` or `path`",
                    writing(pid)
                ),
            },
            error @ Self::Io { .. } => SinkError::Failed {
                what: "locking its files".to_owned(),
                why: error.to_string(),
            },
        }
    }
}

/// Who holds a lock, in words.
fn writing(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => {
            "another sink of this process is writing it".to_owned()
        }
        Some(pid) => format!("another process is writing it (pid {pid})"),
        None => "another process is writing it".to_owned(),
    }
}

/// The right to write the files of one stem in one directory; dropping it gives it back.
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
    stem: String,
    path: PathBuf,
    file: File,
}

impl StemLock {
    /// Locks `stem` in `dir`, which must exist. Never waits.
    pub fn take(dir: &Path, stem: &str) -> Result<Self, LockError> {
        let path = dir.join(format!(".{stem}.lock"));
        let hold = |file| Self {
            dir: dir.to_owned(),
            stem: stem.to_owned(),
            path: path.clone(),
            file,
        };
        let mut tries = 0;
        loop {
            let file = open(&path).map_err(|errno| LockError::Io {
                path: path.clone(),
                source: errno.into(),
            })?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            tries += 1;
            if tries < TRIES && (locked == Err(Errno::INTR) || !is_named(&file, &path)) {
                continue;
            }
            match locked {
                Ok(()) if is_named(&file, &path) => {
                    sign(&file);
                    return Ok(hold(file));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(LockError::Held {
                        files: dir.join(format!("{stem}-*")),
                        pid: signature(&file),
                    });
                }
                no_lock => {
                    tracing::warn!(
                        "no lock is to be had of {} ({}): make sure that no other process writes {stem}-* there, daq \
                         cannot see it",
                        path.display(),
                        no_lock.map_or_else(
                            |errno| errno.to_string(),
                            |()| "it does not stay".to_owned()
                        )
                    );
                    return Ok(hold(file));
                }
            }
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The stem.
    pub fn stem(&self) -> &str {
        &self.stem
    }
}

impl Drop for StemLock {
    fn drop(&mut self) {
        // Removed while it is still locked: nobody else can hold the file that goes. If someone removed ours by hand,
        // the one there now is another's.
        if is_named(&self.file, &self.path) {
            // A file that stays is as one that a kill left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn open(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)).map(File::from)
}

/// Whether `path` still names the open `file`.
fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Writes into the lock who holds it. It helps whoever is refused and nothing else: failing to changes nothing.
fn sign(file: &File) {
    let text = format!("{}\n", std::process::id());
    let _ = file
        .set_len(0)
        .and_then(|()| file.write_all_at(text.as_bytes(), 0));
}

/// Who wrote into the lock that it holds it.
fn signature(file: &File) -> Option<u32> {
    let mut text = [0; 16];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length])
        .ok()?
        .trim_end()
        .parse()
        .ok()
}
