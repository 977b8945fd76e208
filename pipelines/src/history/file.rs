//! The file that keeps the history when daq restarts.
//!
//! A thread of its own writes the file, so that a hanging disk does not delay the monitor. A write replaces the whole
//! file.

use super::{History, SavedHistory};
use daq_core::file;
use daq_core::log_limit::LogLimit;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval between writes.
const WRITE_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum time that the last write may delay the end of the run.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// Reads the history in the file `path`. Returns `None` if the file does not exist.
///
/// # Errors
/// Why the file cannot be used.
pub(super) fn read(path: &Path) -> Result<Option<SavedHistory>, String> {
    let file = match file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| error.to_string())?,
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    parse(&bytes).map(Some)
}

/// Parses the content of the file.
pub(super) fn parse(bytes: &[u8]) -> Result<SavedHistory, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Replaces the file `path`.
fn write(path: &Path, saved: &SavedHistory) -> io::Result<()> {
    file::replace(
        path,
        &path.with_extension("tmp"),
        &serde_json::to_vec(saved)?,
    )
}

/// What the writing thread has to do.
#[derive(Debug, Default)]
struct Task {
    saved: Option<SavedHistory>,
    /// Whether the thread must end after it has written `saved`.
    is_last: bool,
    has_ended: bool,
}

type Shared = Arc<(Mutex<Task>, Condvar)>;

fn lock(shared: &Shared) -> MutexGuard<'_, Task> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the history to a file once a minute and at the end. Without a path, writes nothing.
#[derive(Debug)]
pub(crate) struct Saver(Option<Writer>);

#[derive(Debug)]
struct Writer {
    shared: Shared,
    written: Instant,
}

impl Saver {
    /// Marks the start of the run in `history`. If the file `path` exists, continues the history in it. Starts the thread
    /// that writes the file. A damaged file is logged and replaced later. Without `path`, nothing is written.
    pub(crate) fn start(path: Option<PathBuf>, history: &History) -> io::Result<Self> {
        let Some(path) = path else {
            let _ = history.start(None);
            return Ok(Self(None));
        };
        let (saved, unreadable) = match read(&path) {
            Ok(saved) => (saved, None),
            Err(why) => (None, Some(why)),
        };
        if let Some(why) = history.start(saved).err().or(unreadable) {
            tracing::warn!(
                "cannot use the history in {}: {why}; the history of the ledgers begins again",
                path.display()
            );
        }
        let shared = Shared::default();
        let of_thread = shared.clone();
        // The thread is named after the monitor, because it is not a data thread either.
        std::thread::Builder::new()
            .name("daq-monitor-io".to_owned())
            .spawn(move || run(&path, &of_thread))?;
        let written = Instant::now();
        Ok(Self(Some(Writer { shared, written })))
    }

    /// Writes the history that `saved` returns, if a minute has passed since the last write.
    pub(crate) fn save_if_due(&mut self, saved: impl FnOnce() -> SavedHistory) {
        if let Some(Writer { shared, written }) = &mut self.0
            && written.elapsed() >= WRITE_INTERVAL
        {
            *written = Instant::now();
            lock(shared).saved = Some(saved());
            shared.1.notify_all();
        }
    }

    /// Writes `saved` and ends the thread. If the disk hangs, returns without waiting for the write.
    pub(crate) fn end(self, saved: SavedHistory) {
        let Some(Writer { shared, .. }) = self.0 else {
            return;
        };
        let mut task = lock(&shared);
        task.saved = Some(saved);
        task.is_last = true;
        shared.1.notify_all();
        let waits = |task: &mut Task| !task.has_ended;
        let _ = shared.1.wait_timeout_while(task, END_TIMEOUT, waits);
    }
}

fn run(path: &Path, shared: &Shared) {
    let limit = LogLimit::new();
    loop {
        let idle = |task: &mut Task| task.saved.is_none() && !task.is_last;
        let waited = shared.1.wait_while(lock(shared), idle);
        let mut task = waited.unwrap_or_else(PoisonError::into_inner);
        let (saved, is_last) = (task.saved.take(), task.is_last);
        drop(task);
        if let Some(saved) = saved
            && let Err(error) = write(path, &saved)
        {
            limit.run(|suppressed| {
                tracing::warn!(
                    "cannot write the history to {}: {error}; a restart of daq loses the history of the ledgers{suppressed}",
                    path.display()
                );
            });
        }
        if is_last {
            lock(shared).has_ended = true;
            shared.1.notify_all();
            return;
        }
    }
}
