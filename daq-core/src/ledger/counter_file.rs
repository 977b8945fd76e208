//! The counter file: where counters are stored, in memory or in a small file that survives a killed process.
//!
//! ```text
//!   0       magic  "DAQLEDG1"
//!   8       process id
//!   16      start, ns since 1970
//!   24      counters in use
//!   32      1 once the run has ended cleanly
//!   4096 +  128 · i    counter i: name (120 bytes, zero-padded), value (8 bytes)
//! ```
//! All numbers are in the machine's byte order. Linux writes the pages to disk without any action of the process. A
//! killed process therefore loses no counts, and a power failure at most those of the last seconds.
//!
//! Counters are read from private memory; the file is a mirror that is only written. If another program truncates the
//! file, a store to the mirror faults; the guard then replaces it by zero pages, and the run continues with complete
//! ledgers ([`CounterFile::is_state_lost`]).

use super::ReaderLedger;
use crate::file::{self, Links};
use crate::sys::guard::Guard;
use memmap2::MmapRaw;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const MAGIC: [u8; 8] = *b"DAQLEDG1";
const HEADER: usize = 4096;
const RECORD: usize = 128;
const NAME: usize = RECORD - 8;
/// Maximum number of counters, which limits the file to 1 MiB.
const CAPACITY: usize = 8160;
const BYTES: usize = HEADER + CAPACITY * RECORD;

/// The error for a counter file that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CounterFileError {
    /// The file could not be created.
    #[error("cannot create ledger file {}: {source}; set a writable state directory with XDG_STATE_HOME or --state-dir", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another process writes this ledger.
    #[error("ledger file {}: process {pid} is writing this file; rename this pipeline or stop that process", path.display())]
    Busy {
        /// Path of the file.
        path: PathBuf,
        /// The process ID of the other process.
        pid: u64,
    },
    /// A counter's name is too long.
    #[error("counter name `{name}` is longer than {NAME} bytes")]
    Name {
        /// Name of the counter.
        name: String,
    },
    /// The maximum number of counters is reached.
    #[error("a ledger file can have at most {CAPACITY} counters, but more are needed")]
    Full,
}

/// A set of named counters.
#[derive(Clone)]
pub struct CounterFile {
    memory: Arc<Memory>,
    used: Arc<Mutex<usize>>,
}

/// The words of a counter file in private memory, and their mirror in the file.
struct Memory {
    words: Box<[AtomicU64]>,
    mirror: Option<Mirror>,
}

/// The mapped file.
struct Mirror {
    /// The guard of the mapping, which must be dropped before the mapping.
    guard: Guard,
    map: MmapRaw,
    #[expect(dead_code, reason = "the open file holds the lock")]
    file: std::fs::File,
}

impl Memory {
    fn heap(words: usize) -> Self {
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            mirror: None,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words[offset / 8]
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        self.update(offset, |_| value);
    }

    /// Updates a word that has one writer.
    #[inline]
    fn update(&self, offset: usize, value: impl FnOnce(u64) -> u64) {
        let word = self.word(offset);
        let value = value(word.load(Ordering::Relaxed));
        word.store(value, Ordering::Release);
        if let Some(mirror) = &self.mirror {
            mirror.word(offset).store(value, Ordering::Release);
        }
    }

    /// Adds to a word that several threads add to.
    fn add_shared(&self, offset: usize, n: u64) {
        let before = self.word(offset).fetch_add(n, Ordering::AcqRel);
        if let Some(mirror) = &self.mirror {
            // Several threads add in any order, so use the maximum: the mirror must not decrease.
            let word = mirror.word(offset);
            word.fetch_max(before.wrapping_add(n), Ordering::AcqRel);
        }
    }

    /// Raises a word to at least `value`.
    fn raise(&self, offset: usize, value: u64) {
        self.word(offset).fetch_max(value, Ordering::AcqRel);
        if let Some(mirror) = &self.mirror {
            mirror.word(offset).fetch_max(value, Ordering::AcqRel);
        }
    }
}

impl Mirror {
    /// Maps `file`, which is locked and `BYTES` bytes long.
    fn new(file: std::fs::File) -> io::Result<Self> {
        let map = MmapRaw::map_raw(&file)?;
        let start = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is the mapping that was just created. `map` is dropped after the guard, so the range stays
        // mapped until then. The words are only written, with atomic stores through raw pointers, so zero pages may
        // replace the mapping at any time.
        let guard = unsafe { Guard::new(start, map.len()) }.map_err(io::Error::other)?;
        Ok(Self { guard, map, file })
    }

    #[expect(
        clippy::cast_ptr_alignment,
        reason = "the mapping is page-aligned and the offset a multiple of 8"
    )]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.map.len(),
            "offset {offset} is not aligned, or outside the counter file"
        );
        // SAFETY: the offset is aligned and inside the mapping, which lives as long as `self`. Every access to its
        // words is atomic; other programs may change the file at any time, which atomics tolerate.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast::<u64>()) }
    }
}

impl CounterFile {
    /// Creates counters in memory only.
    pub fn in_memory() -> Self {
        Self {
            memory: Arc::new(Memory::heap(BYTES / 8)),
            used: Arc::default(),
        }
    }

    /// Creates counters in a file, which is created or emptied; read the file's previous content with [`LastRun::read`]
    /// first.
    ///
    /// Anything but a regular file at `path`, including a symbolic link, is an error.
    pub fn in_file(path: &Path, pid: u32, start_ns: u64) -> Result<Self, CounterFileError> {
        let fail = |source| CounterFileError::File {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = file::open_with(&options, path, Links::Refuse).map_err(fail)?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let pid = LastRun::read(path).map_or(0, |last| last.pid);
            return Err(CounterFileError::Busy {
                path: path.to_owned(),
                pid,
            });
        }
        file.set_len(0).map_err(fail)?;
        // Allocate the space on disk. Without allocation, writing through the mapping to a full disk would kill the
        // process.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)
            .map_err(|errno| fail(errno.into()))?;
        let mut memory = Memory::heap(BYTES / 8);
        memory.mirror = Some(Mirror::new(file).map_err(fail)?);
        memory.store(8, u64::from(pid));
        memory.store(16, start_ns);
        memory.store(0, u64::from_ne_bytes(MAGIC));
        Ok(Self {
            memory: Arc::new(memory),
            used: Arc::default(),
        })
    }

    /// Creates a counter with value 0.
    pub fn counter(&self, name: &str) -> Result<Counter, CounterFileError> {
        if name.len() > NAME {
            return Err(CounterFileError::Name {
                name: name.to_owned(),
            });
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if *used == CAPACITY {
            return Err(CounterFileError::Full);
        }
        let record = HEADER + *used * RECORD;
        let mut padded = [0; NAME];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        for (i, chunk) in padded.as_chunks::<8>().0.iter().enumerate() {
            self.memory
                .store(record + i * 8, u64::from_ne_bytes(*chunk));
        }
        *used += 1;
        self.memory.store(24, *used as u64);
        Ok(Counter {
            memory: self.memory.clone(),
            offset: record + NAME,
        })
    }

    /// Marks the run as ended cleanly.
    pub fn end(&self) {
        self.memory.store(32, 1);
    }

    /// Whether the counters are in a file, which no other process writes while this value exists.
    pub fn is_in_file(&self) -> bool {
        self.memory.mirror.is_some()
    }

    /// Whether the file was truncated while it was mapped, so that it no longer contains the counters.
    pub fn is_state_lost(&self) -> bool {
        let mirror = self.memory.mirror.as_ref();
        mirror.is_some_and(|mirror| mirror.guard.is_lost())
    }
}

impl fmt::Debug for CounterFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CounterFile").finish_non_exhaustive()
    }
}

/// A counter, which one thread writes and any thread reads.
#[derive(Clone)]
pub struct Counter {
    memory: Arc<Memory>,
    offset: usize,
}

impl Counter {
    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.memory.word(self.offset).load(Ordering::Acquire)
    }

    /// Sets the value. Only its single writer may call this.
    pub fn set(&self, value: u64) {
        self.memory.store(self.offset, value);
    }

    /// Adds `n` to the value, which saturates at the largest `u64`. Only its single writer may call this; see
    /// [`add_shared`](Self::add_shared).
    pub fn add(&self, n: u64) {
        self.memory
            .update(self.offset, |before| before.saturating_add(n));
    }

    /// Adds `n` to a counter to which several threads add.
    pub fn add_shared(&self, n: u64) {
        self.memory.add_shared(self.offset, n);
    }

    /// Raises the counter to at least `value`. Several threads may call this.
    pub fn raise(&self, value: u64) {
        self.memory.raise(self.offset, value);
    }
}

impl Default for Counter {
    /// Creates a counter that does not belong to a counter file.
    fn default() -> Self {
        Self {
            memory: Arc::new(Memory::heap(1)),
            offset: 0,
        }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// The content of a counter file, written by an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// The process ID.
    pub pid: u64,
    /// Start time of the run, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Whether the run ended cleanly.
    pub ended: bool,
    /// Names and values of the counters, without those that have the value [`ReaderLedger::UNLIMITED`].
    pub counters: Vec<(String, u64)>,
}

impl LastRun {
    /// Reads the file at `path`; `None` if it is missing or not a counter file.
    pub fn read(path: &Path) -> Option<Self> {
        let file = file::open_with(OpenOptions::new().read(true), path, Links::Refuse).ok()?;
        let mut bytes = Vec::new();
        file.take(BYTES as u64).read_to_end(&mut bytes).ok()?;
        Self::parse(&bytes)
    }

    /// Parses the bytes of a counter file; `None` if they are not valid.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |offset: usize| {
            bytes
                .get(offset..offset + 8)?
                .try_into()
                .ok()
                .map(u64::from_ne_bytes)
        };
        if bytes.get(..8)? != MAGIC {
            return None;
        }
        let used = usize::try_from(word(24)?).ok()?.min(CAPACITY);
        let mut counters = Vec::with_capacity(used);
        for i in 0..used {
            let record = HEADER + i * RECORD;
            let name = bytes.get(record..record + NAME)?;
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            let value = word(record + NAME)?;
            if value != ReaderLedger::UNLIMITED || !name.ends_with(".leased") {
                counters.push((name, value));
            }
        }
        Some(Self {
            pid: word(8)?,
            start_ns: word(16)?,
            ended: word(32)? == 1,
            counters,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_file_holds_last_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adc.ledger");
        assert_eq!(LastRun::read(&path), None);
        let counter_file = CounterFile::in_file(&path, 42, 1000).unwrap();
        let counter = counter_file.counter("source.adc.expected").unwrap();
        counter.add(7);
        assert!(matches!(
            CounterFile::in_file(&path, 43, 0),
            Err(CounterFileError::Busy { pid: 42, .. })
        ));
        let last = LastRun::read(&path).unwrap();
        assert_eq!((last.pid, last.start_ns, last.ended), (42, 1000, false));
        assert_eq!(last.counters, [("source.adc.expected".to_owned(), 7)]);
        counter_file.end();
        assert!(LastRun::read(&path).unwrap().ended);
        drop((counter_file, counter));
        assert!(CounterFile::in_file(&path, 44, 0).is_ok());
    }

    #[test]
    fn counters_survive_file_truncation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adc.ledger");
        let counter_file = CounterFile::in_file(&path, 42, 1000).unwrap();
        let counter = counter_file.counter("source.adc.expected").unwrap();
        counter.add(7);
        assert!(!counter_file.is_state_lost());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        counter.add(1);
        counter.add_shared(2);
        counter.raise(4);
        assert_eq!(counter.get(), 10);
        assert!(counter_file.is_state_lost());
        counter_file.end();
    }

    #[test]
    fn counter_file_that_is_symlink_or_fifo_is_rejected() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let (foreign, link) = (dir.path().join("foreign"), dir.path().join("link.ledger"));
        std::fs::write(&foreign, "keep me").unwrap();
        std::os::unix::fs::symlink(&foreign, &link).unwrap();
        let fifo = dir.path().join("fifo.ledger");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [&link, &fifo] {
            assert_eq!(LastRun::read(path), None);
            let error = CounterFile::in_file(path, 1, 0).unwrap_err();
            assert!(matches!(error, CounterFileError::File { .. }), "{error}");
        }
        assert_eq!(std::fs::read(&foreign).unwrap(), b"keep me");
    }

    #[test]
    fn counter_saturates_at_maximum() {
        let counter = Counter::default();
        counter.add(u64::MAX - 1);
        counter.add(3);
        assert_eq!(counter.get(), u64::MAX);
    }

    #[test]
    fn invalid_counter_file_is_reported() {
        assert_eq!(LastRun::parse(b""), None);
        assert_eq!(LastRun::parse(&[0; 64]), None);
        assert_eq!(LastRun::parse(&MAGIC), None);
    }

    #[test]
    fn counter_name_too_long_is_rejected() {
        assert!(matches!(
            CounterFile::in_memory().counter(&"x".repeat(121)),
            Err(CounterFileError::Name { .. })
        ));
    }
}
