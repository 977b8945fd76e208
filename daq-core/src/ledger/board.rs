//! The board: where counters live, in memory or in a small file that survives a killed process.
//!
//! ```text
//!   0       magic  "DAQLEDG1"
//!   8       process id
//!   16      start, ns since 1970
//!   24      counters in use
//!   32      1 once the run has ended cleanly
//!   4096 +  128 · i    counter i: name (120 bytes, zero-padded), value (8 bytes)
//! ```
//! All numbers in the machine's byte order. The kernel writes the pages back by itself; a killed process
//! loses nothing, a power cut at most the last seconds.

use memmap2::MmapMut;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const MAGIC: [u8; 8] = *b"DAQLEDG1";
const HEADER: usize = 4096;
const RECORD: usize = 128;
const NAME: usize = RECORD - 8;
/// Counters that fit on a board: 1 MiB.
const CAPACITY: usize = 8160;
const BYTES: usize = HEADER + CAPACITY * RECORD;

/// Why a board could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// The file could not be made.
    #[error("ledger file {}: {source}; name a writable state directory by XDG_STATE_HOME or --state-dir", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process writes this ledger.
    #[error("ledger file {}: process {pid} is writing it; give this pipeline another name or stop that process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// The other process.
        pid: u64,
    },
    /// A name does not fit.
    #[error("counter name `{name}` is longer than {NAME} bytes")]
    Name {
        /// The name.
        name: String,
    },
    /// No room for another counter.
    #[error("more than {CAPACITY} counters")]
    Full,
}

/// A set of named counters.
#[derive(Clone)]
pub struct Board {
    memory: Arc<Memory>,
    used: Arc<Mutex<usize>>,
}

enum Memory {
    Heap(Box<[AtomicU64]>),
    File(
        MmapMut,
        #[expect(dead_code, reason = "holds the lock on the file")] std::fs::File,
    ),
}

impl Memory {
    #[expect(clippy::cast_ptr_alignment, reason = "the offset is checked")]
    fn word(&self, offset: usize) -> &AtomicU64 {
        match self {
            Self::Heap(words) => &words[offset / 8],
            Self::File(map, _) => {
                assert!(
                    offset.is_multiple_of(8) && offset + 8 <= map.len(),
                    "offset {offset} outside the board"
                );
                // SAFETY: the offset is aligned (the mapping is page-aligned) and inside the mapping, which
                // lives as long as `self`. Every access to the mapping's words is atomic, and the file is
                // locked against other writers.
                unsafe { AtomicU64::from_ptr(map.as_ptr().add(offset).cast::<u64>().cast_mut()) }
            }
        }
    }
}

impl Board {
    /// A board in memory.
    pub fn in_memory() -> Self {
        let words = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        Self {
            memory: Arc::new(Memory::Heap(words)),
            used: Arc::default(),
        }
    }

    /// A board in a file, which is made or begun anew; its former content should have been read by
    /// [`LastRun::read`] before.
    pub fn in_file(path: &Path, pid: u32, start_ns: u64) -> Result<Self, BoardError> {
        let fail = |source| BoardError::File {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(fail)?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let pid = LastRun::read(path).map_or(0, |last| last.pid);
            return Err(BoardError::Busy {
                path: path.to_owned(),
                pid,
            });
        }
        file.set_len(0).map_err(fail)?;
        // Real space, not a hole: a write through the mapping to a hole on a full disk ends the process.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)
            .map_err(|errno| fail(errno.into()))?;
        // SAFETY: the file is ours (locked above), of `BYTES` bytes, and not truncated while it is mapped; all
        // access goes through atomics.
        let map = unsafe { MmapMut::map_mut(&file) }.map_err(fail)?;
        let memory = Memory::File(map, file);
        memory.word(8).store(u64::from(pid), Ordering::Relaxed);
        memory.word(16).store(start_ns, Ordering::Relaxed);
        memory
            .word(0)
            .store(u64::from_ne_bytes(MAGIC), Ordering::Release);
        Ok(Self {
            memory: Arc::new(memory),
            used: Arc::default(),
        })
    }

    /// A new counter, 0.
    pub fn counter(&self, name: &str) -> Result<Counter, BoardError> {
        if name.len() > NAME {
            return Err(BoardError::Name {
                name: name.to_owned(),
            });
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if *used == CAPACITY {
            return Err(BoardError::Full);
        }
        let record = HEADER + *used * RECORD;
        let mut padded = [0; NAME];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        for (i, chunk) in padded.as_chunks::<8>().0.iter().enumerate() {
            self.memory
                .word(record + i * 8)
                .store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        *used += 1;
        self.memory.word(24).store(*used as u64, Ordering::Release);
        Ok(Counter {
            memory: self.memory.clone(),
            offset: record + NAME,
        })
    }

    /// Marks the run as ended cleanly.
    pub fn end(&self) {
        self.memory.word(32).store(1, Ordering::Release);
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

/// One number, written by one thread and read by any.
#[derive(Clone)]
pub struct Counter {
    memory: Arc<Memory>,
    offset: usize,
}

impl Counter {
    fn word(&self) -> &AtomicU64 {
        self.memory.word(self.offset)
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    /// Sets the number. Only its one writer may call this.
    pub fn set(&self, value: u64) {
        self.word().store(value, Ordering::Release);
    }

    /// Adds to the number. Only its one writer may call this; see [`add_shared`](Self::add_shared).
    pub fn add(&self, n: u64) {
        let word = self.word();
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    /// Adds to a number that several threads add to.
    pub fn add_shared(&self, n: u64) {
        self.word().fetch_add(n, Ordering::AcqRel);
    }
}

impl Default for Counter {
    /// A counter on no board.
    fn default() -> Self {
        Self {
            memory: Arc::new(Memory::Heap(Box::new([AtomicU64::new(0)]))),
            offset: 0,
        }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// What a board's file tells of the run that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// The process.
    pub pid: u64,
    /// When it started, ns since 1970.
    pub start_ns: u64,
    /// Whether it ended cleanly.
    pub ended: bool,
    /// Its counters by name.
    pub counters: Vec<(String, u64)>,
}

impl LastRun {
    /// Reads the file at `path`; `None` if there is none or it is not a board.
    pub fn read(path: &Path) -> Option<Self> {
        Self::parse(&std::fs::read(path).ok()?)
    }

    /// Reads a board from its bytes; `None` if they are none.
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
            counters.push((
                String::from_utf8_lossy(&name[..end]).into_owned(),
                word(record + NAME)?,
            ));
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
    fn a_file_tells_the_last_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adc.ledger");
        assert_eq!(LastRun::read(&path), None);
        let board = Board::in_file(&path, 42, 1000).unwrap();
        let counter = board.counter("source.adc.expected").unwrap();
        counter.add(7);
        assert!(matches!(
            Board::in_file(&path, 43, 0),
            Err(BoardError::Busy { pid: 42, .. })
        ));
        let last = LastRun::read(&path).unwrap();
        assert_eq!((last.pid, last.start_ns, last.ended), (42, 1000, false));
        assert_eq!(last.counters, [("source.adc.expected".to_owned(), 7)]);
        board.end();
        assert!(LastRun::read(&path).unwrap().ended);
        drop((board, counter));
        assert!(Board::in_file(&path, 44, 0).is_ok());
    }

    #[test]
    fn what_is_no_board_is_told() {
        assert_eq!(LastRun::parse(b""), None);
        assert_eq!(LastRun::parse(&[0; 64]), None);
        assert_eq!(LastRun::parse(&MAGIC), None);
    }

    #[test]
    fn names_must_fit() {
        assert!(matches!(
            Board::in_memory().counter(&"x".repeat(121)),
            Err(BoardError::Name { .. })
        ));
    }
}
