//! The data file of a segment, and the thread that writes the file. The thread receives aligned buffers and returns the
//! results of the writes.
//!
//! ```text
//!  SegmentWriter ──Job{file, buffer, offset}──▶ disk thread ──pwrite──▶ file
//!        ▲                                          │
//!        └──────────────Done{buffer, errno}─────────┘
//! ```
//!
//! The thread writes strictly in the order of offsets. After a failed write, it rejects all queued buffers until the
//! failed buffer is submitted again. So the file always contains a prefix of the stream, without holes.

use crate::channel::{receive, spawn_server, wait_without_answer};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Alignment of memory, offset and length for direct I/O, in bytes. This is the largest logical block size in use.
pub(super) const ALIGN: usize = 4096;

/// [`ALIGN`] as the type of file offsets.
pub(super) const ALIGN_U64: u64 = ALIGN as u64;

/// A buffer that is aligned for direct I/O and filled from its beginning.
#[derive(Debug)]
pub(super) struct Buffer {
    store: Vec<u8>,
    start: usize,
    capacity: usize,
    fill: usize,
    /// File offset of the first byte; a multiple of [`ALIGN`].
    pub(super) offset: u64,
}

impl Buffer {
    /// Allocates a buffer of `capacity` bytes, which must be a multiple of [`ALIGN`]. Touches the buffer's pages, so
    /// that the data path causes no page faults.
    pub(super) fn new(capacity: usize) -> Self {
        let mut store = vec![0_u8; capacity + ALIGN];
        // Linux maps a zeroed allocation only when it is first written, so write to all of it.
        store.fill(0xA5);
        // `align_offset` counts in elements, which are bytes.
        let start = store.as_ptr().align_offset(ALIGN);
        Self {
            store,
            start,
            capacity,
            fill: 0,
            offset: 0,
        }
    }

    /// Returns the bytes filled so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.store[self.start..self.start + self.fill]
    }

    /// Returns the file offset after the last filled byte.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.fill as u64
    }

    pub(super) fn is_full(&self) -> bool {
        self.fill == self.capacity
    }

    /// Copies as many of `bytes` as fit. Returns the number of copied bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.capacity - self.fill);
        let at = self.start + self.fill;
        self.store[at..at + n].copy_from_slice(&bytes[..n]);
        self.fill += n;
        n
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fill == 0
    }

    pub(super) fn clear(&mut self) {
        self.fill = 0;
    }

    /// Removes all bytes at or after the file offset `end`.
    pub(super) fn cut(&mut self, end: u64) {
        let keep = end.saturating_sub(self.offset);
        self.fill = self.fill.min(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Fills the buffer up to the file offset `end` with the block of `file` that contains the byte before `end`.
    pub(super) fn load(&mut self, file: &DataFile, end: u64) -> Result<(), Errno> {
        self.clear();
        self.offset = end / ALIGN_U64 * ALIGN_U64;
        let want = usize::try_from(end % ALIGN_U64).unwrap_or(0);
        let space = &mut self.store[self.start..self.start + ALIGN];
        let got = retry(|| pread(&file.fd, &mut *space, self.offset))?;
        if got < want {
            return Err(Errno::IO);
        }
        self.fill = want;
        Ok(())
    }
}

/// An open data file, which is written with direct I/O as long as the filesystem supports direct I/O.
#[derive(Debug)]
pub(super) struct DataFile {
    pub(super) fd: OwnedFd,
    direct: AtomicBool,
}

impl DataFile {
    pub(super) fn new(fd: OwnedFd, direct: bool) -> Self {
        Self {
            fd,
            direct: AtomicBool::new(direct),
        }
    }

    /// Returns whether writes bypass the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Writes `bytes` at `offset`. Whole blocks use direct I/O; the rest uses the page cache.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let blocks = bytes.len() / ALIGN * ALIGN;
        if !self.is_direct() {
            return self.write_all(bytes, offset);
        }
        match self.write_all(&bytes[..blocks], offset) {
            // The filesystem accepted O_DIRECT at open but rejects this write; use buffered writes from here on.
            Err(Errno::INVAL) => {
                self.set_direct(false)?;
                self.direct.store(false, Ordering::Relaxed);
                return self.write_all(bytes, offset);
            }
            other => other?,
        }
        if blocks == bytes.len() {
            return Ok(());
        }
        self.set_direct(false)?;
        let tail = self.write_all(&bytes[blocks..], offset + blocks as u64);
        self.set_direct(true).and(tail)
    }

    fn set_direct(&self, on: bool) -> Result<(), Errno> {
        let flags = fcntl_getfl(&self.fd)?;
        fcntl_setfl(
            &self.fd,
            if on {
                flags | OFlags::DIRECT
            } else {
                flags - OFlags::DIRECT
            },
        )
    }

    fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
        let mut stalled = false;
        while !bytes.is_empty() {
            let n = retry(|| pwrite(&self.fd, bytes, offset))?;
            // A short write may end inside a block. Direct I/O must continue at the beginning of that block.
            let n = if n < bytes.len() && self.is_direct() {
                n / ALIGN * ALIGN
            } else {
                n
            };
            if n == 0 && stalled {
                return Err(Errno::NOSPC);
            }
            stalled = n == 0;
            bytes = &bytes[n..];
            offset += n as u64;
        }
        Ok(())
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

struct Job {
    file: Arc<DataFile>,
    stream: u64,
    buffer: Buffer,
}

/// A buffer that the thread returns, with the result of its write.
pub(super) struct Done {
    pub(super) buffer: Buffer,
    pub(super) result: Result<(), Errno>,
}

/// The thread that writes buffers, with its channels. Dropping this value waits for writes in progress.
#[derive(Debug)]
pub(super) struct Disk {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// Number of submitted buffers that have not been returned yet.
    in_flight: usize,
    /// Time at which the oldest buffer in flight was submitted, or at which the previous buffer was returned, whichever
    /// is later.
    since: Instant,
    /// Number of the current data file. This number prevents an error of one file from blocking the next file.
    stream: u64,
}

impl Disk {
    /// Starts the thread. At most `depth` buffers can be in flight.
    pub(super) fn start(depth: usize) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(depth);
        let (finished, done) = sync_channel::<Done>(depth);
        let thread = spawn_server("daq-disk", queue, move |queue| serve(&queue, &finished))?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            in_flight: 0,
            since: Instant::now(),
            stream: 0,
        })
    }

    /// Declares that the following buffers belong to another file.
    pub(super) fn next_stream(&mut self) {
        if self.stream == 0 && self.in_flight == 0 {
            wait_without_answer(&self.done);
        }
        self.stream += 1;
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns how long the pending write has taken; zero if no write is pending.
    pub(super) fn blocked_for(&self) -> Duration {
        if self.in_flight == 0 {
            return Duration::ZERO;
        }
        self.since.elapsed()
    }

    fn returned(&mut self, done: Done) -> Done {
        self.in_flight -= 1;
        self.since = Instant::now();
        done
    }

    /// Submits `buffer`. Never waits, because the channel has room for all buffers.
    pub(super) fn submit(&mut self, file: &Arc<DataFile>, buffer: Buffer) {
        if self.in_flight == 0 {
            self.since = Instant::now();
        }
        let job = Job {
            file: Arc::clone(file),
            stream: self.stream,
            buffer,
        };
        self.jobs
            .as_ref()
            .expect("the channel is open until this value is dropped")
            .send(job)
            .expect("the disk thread ends only after this sender is dropped");
        self.in_flight += 1;
    }

    /// Returns a finished buffer; `None` if no buffer is finished.
    pub(super) fn poll(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        Some(self.returned(done))
    }

    /// Waits for the next finished buffer; returns `None` if no buffer is in flight.
    pub(super) fn wait(&mut self) -> Option<Done> {
        if self.in_flight == 0 {
            return None;
        }
        let done = receive(&self.done)
            .expect("the disk thread ends only after the owner of this receiver is dropped");
        Some(self.returned(done))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns when its queue is closed and empty. A panic in it cannot be handled here.
            let _ = thread.join();
        }
    }
}

fn serve(queue: &Receiver<Job>, finished: &SyncSender<Done>) {
    // The file, the offset and the error of the failed write that blocks all later writes.
    let mut stuck: Option<(u64, u64, Errno)> = None;
    while let Some(Job {
        file,
        stream,
        buffer,
    }) = receive(queue)
    {
        let result = match stuck {
            Some((at, offset, errno)) if at == stream && buffer.offset > offset => Err(errno),
            _ => file.write(buffer.bytes(), buffer.offset),
        };
        match result {
            Err(errno)
                if stuck.is_none_or(|(at, offset, _)| at != stream || buffer.offset <= offset) =>
            {
                stuck = Some((stream, buffer.offset, errno));
            }
            Ok(()) => stuck = None,
            Err(_) => {}
        }
        drop(file);
        if finished.send(Done { buffer, result }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_and_filled_from_front() {
        let mut b = Buffer::new(2 * ALIGN);
        assert_eq!(b.bytes().as_ptr().align_offset(ALIGN), 0);
        assert_eq!(b.push(&[7; 5000]), 5000);
        assert_eq!(b.push(&[8; 5000]), 2 * ALIGN - 5000);
        assert!(b.is_full());
        assert_eq!((b.bytes()[4999], b.bytes()[5000]), (7, 8));
        b.offset = 4096;
        b.cut(4096 + 5001);
        assert_eq!((b.bytes().len(), b.end()), (5001, 4096 + 5001));
        b.cut(100);
        assert!(b.bytes().is_empty());
    }
}
