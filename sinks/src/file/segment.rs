//! Segments. A segment is a stream of bytes in one data file, which is committed by the metadata file beside it.
//!
//! # Files, and what remains after a kill
//! A segment `NAME` is a pair of files. [`SegmentWriter::close`] creates it in this order; each step is complete before
//! the next one begins:
//!
//! | step | action | files after a kill | result of [`recover()`] |
//! |---|---|---|---|
//! | open | `NAME.sigmf-data.partial` is created and written to | the partial | a partial, reported |
//! | [`Step::Tail`] | the tail is written, the file cut to its exact length | the partial | a partial, reported |
//! | [`Step::DataSynced`] | `fdatasync` of the data | the partial | a partial, reported |
//! | [`Step::MetaWritten`] | `NAME.sigmf-meta.tmp` is written and synced | partial and tmp | a whole segment |
//! | [`Step::DataNamed`] | the partial is renamed to `NAME.sigmf-data` | data and tmp | a whole segment |
//! | [`Step::DirectorySynced`] | `fsync` of the directory | data and tmp | a whole segment |
//! | [`Step::MetaNamed`] | the tmp is renamed to `NAME.sigmf-meta`: **the commit** | the pair | nothing to do |
//! | [`Step::Done`] | `fsync` of the directory | the pair | nothing to do |
//!
//! So at every moment, a `.sigmf-meta` file exists only beside complete, synced data. Data without a `.sigmf-meta` file
//! belongs to the segment that was being written. Such data has the suffix `.partial`, except between the two renames.
//! Between the two renames, the synced `tmp` file proves that the data is complete, so [`recover()`] finishes the
//! commit. A truncated `tmp` file proves nothing, so [`recover()`] gives its data the suffix `.partial` again. The
//! directory is synced between the renames, so that their order also survives a power failure.
//!
//! The writer of a stem holds the stem's [lock](crate::lock), which [`recover()`] requires.
//!
//! Bytes are written to the data file strictly in order. So a partial file is a prefix of the segment's data, which may
//! end at any byte. This module never deletes or overwrites data.
//!
//! # A full disk
//! [`SegmentWriter::write`] accepts all bytes or none. Space is reserved (`fallocate`) before bytes are accepted, so a
//! full disk is detected early and accepted data is safe. If a filesystem cannot reserve space, a full disk is detected
//! by a failed write. The accepted data then stays in memory and is written again with the next call. In both cases the
//! error is [`SegmentError::Full`], and the same call can be repeated when there is space. The reservation includes
//! [`META_SLACK`] bytes, or the number set by [`SegmentWriter::keep_spare`]. These bytes are released before the
//! metadata is written, so that a segment can be closed even on a full disk.
//!
//! # Memory and threads
//! A writer owns one thread and [`Options::buffers`] aligned buffers. [`SegmentWriter::new`] allocates them, and every
//! segment reuses them. A write copies the bytes into a buffer and allocates nothing. The next buffer is filled while
//! the thread writes the previous one.

mod commit;
mod disk;
mod error;
mod recover;

pub use commit::{Closed, SegmentPaths, Step};
pub use error::SegmentError;
pub use recover::{Leftover, Recovered, recover, segment_index, segment_name};

use crate::presence::{Absent, check_file};
use commit::{Open, rename};
use disk::{ALIGN, ALIGN_U64, Buffer, DataFile, Disk};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Minimum number of bytes reserved for the metadata while a segment is written.
pub const META_SLACK: u64 = 2 << 20;

/// Number of additional bytes that are reserved at a time, if the disk has that much space.
const RESERVE_AHEAD: u64 = 64 << 20;

/// Settings of a [`SegmentWriter`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Buffer size in bytes, rounded up to whole blocks of 4096 bytes. Direct I/O is most efficient with large writes.
    pub buffer_bytes: usize,
    /// Number of buffers, at least 2, because one buffer is filled while other buffers are written.
    pub buffers: usize,
    /// Whether to try direct I/O, which does not fill the page cache.
    pub direct: bool,
    /// Whether to reserve disk space before data is written, if the filesystem supports this.
    pub reserve: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffer_bytes: 4 << 20,
            buffers: 3,
            direct: true,
            reserve: true,
        }
    }
}

/// Writes segments, one after another.
///
/// ```
/// use daq_sinks::file::segment::{Options, SegmentWriter};
/// let dir = tempfile::tempdir()?;
/// let mut writer = SegmentWriter::new(&Options::default())?;
/// writer.open(dir.path(), "demo-000000")?;
/// writer.write(b"samples")?;
/// let closed = writer.close(b"{}")?;
/// assert_eq!(std::fs::read(closed.data)?, b"samples");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SegmentWriter {
    options: Options,
    disk: Disk,
    free: Vec<Buffer>,
    /// Buffers whose write failed, in ascending order of offset.
    failed: Vec<Buffer>,
    failure: Option<Errno>,
    /// The buffer that is being filled.
    current: Option<Buffer>,
    open: Option<Open>,
    /// Number of bytes reserved for the metadata.
    spare: u64,
    has_logged_buffered: bool,
}

impl SegmentWriter {
    /// Allocates the buffers and starts the thread.
    pub fn new(options: &Options) -> Result<Self, SegmentError> {
        let mut options = options.clone();
        options.buffers = options.buffers.clamp(2, 256);
        options.buffer_bytes = options.buffer_bytes.max(1).next_multiple_of(ALIGN);
        let disk = Disk::start(options.buffers)
            .map_err(|e| SegmentError::io("start the writing thread", Path::new("daq-disk"), e))?;
        Ok(Self {
            disk,
            free: (0..options.buffers)
                .map(|_| Buffer::new(options.buffer_bytes))
                .collect(),
            failed: Vec::with_capacity(options.buffers),
            failure: None,
            current: None,
            open: None,
            spare: META_SLACK,
            has_logged_buffered: false,
            options,
        })
    }

    /// Returns the number of bytes of memory that a writer with `options` uses.
    pub fn memory(options: &Options) -> usize {
        options.buffers.clamp(2, 256)
            * (options.buffer_bytes.max(1).next_multiple_of(ALIGN) + ALIGN)
    }

    /// Begins segment `name` in `dir`, which must exist.
    pub fn open(&mut self, dir: &Path, name: &str) -> Result<(), SegmentError> {
        if let Some(open) = &self.open {
            return Err(SegmentError::StillOpen {
                path: open.paths.partial.clone(),
            });
        }
        let paths = SegmentPaths::new(dir, name);
        for path in [&paths.data, &paths.meta] {
            if path.symlink_metadata().is_ok() {
                return Err(SegmentError::Exists { path: path.clone() });
            }
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let created = rustix::fs::open(&paths.partial, flags, Mode::from_raw_mode(0o666));
        let fd = created.map_err(|errno| match errno {
            Errno::EXIST => SegmentError::Exists {
                path: paths.partial.clone(),
            },
            _ => SegmentError::write("create", &paths.partial, errno, (0, 0)),
        })?;
        let refused = if self.options.direct {
            rustix::fs::fcntl_getfl(&fd)
                .and_then(|now| rustix::fs::fcntl_setfl(&fd, now | OFlags::DIRECT))
                .err()
        } else {
            None
        };
        let file = Arc::new(DataFile::new(fd, self.options.direct && refused.is_none()));
        self.disk.next_stream();
        self.open = Some(Open {
            dir: dir.to_owned(),
            paths,
            file,
            len: 0,
            reserved: 0,
            can_reserve: self.options.reserve,
            named: false,
            unsure: false,
        });
        self.log_buffered();
        Ok(())
    }

    /// Returns whether a segment is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether the open segment is written with direct I/O.
    pub fn is_direct(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.file.is_direct())
    }

    /// Checks that the data file of the open segment is still at its path. Returns the path if it is not.
    pub(crate) fn check_path(&self) -> Result<(), (&Path, Absent)> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        let path = if open.named {
            &open.paths.data
        } else {
            &open.paths.partial
        };
        check_file(&open.file.fd, path).map_err(|absent| (path.as_path(), absent))
    }

    /// Returns the number of bytes accepted for the open segment; 0 if no segment is open.
    pub fn len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.len)
    }

    /// Returns whether no byte was accepted for the open segment yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the number of bytes that are reserved for the metadata from the next write on. The minimum is
    /// [`META_SLACK`].
    pub fn keep_spare(&mut self, bytes: u64) {
        self.spare = bytes.max(META_SLACK);
    }

    /// Handles finished writes. Returns how long the oldest pending write has taken; zero if no write is pending.
    pub fn blocked_for(&mut self) -> Duration {
        self.collect_writes();
        self.disk.blocked_for()
    }

    /// Appends all of `bytes`, or nothing on failure. Waits for the disk if every buffer is in flight.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SegmentError> {
        let before = self.usable()?.len;
        self.reserve(bytes.len() as u64)?;
        self.collect_writes();
        if !self.failed.is_empty() {
            self.write_failed()
                .map_err(|errno| self.refused(errno, bytes.len() as u64))?;
        }
        if let Err(errno) = self.append(bytes) {
            self.truncate(before)?;
            return Err(self.refused(errno, bytes.len() as u64));
        }
        Ok(())
    }

    /// Removes everything after the first `len` bytes. Has no effect if the segment is shorter.
    // The `expect` below cannot panic; its message states why.
    #[allow(clippy::missing_panics_doc)]
    pub fn truncate(&mut self, len: u64) -> Result<(), SegmentError> {
        let len = self.usable()?.len.min(len);
        self.wait_for_writes();
        if let Some(buffer) = self.current.take() {
            self.failed.push(buffer);
        }
        // The buffer that contains byte `len` becomes the current buffer. Later buffers become free. Earlier buffers
        // stay in the list of failed buffers.
        let mut i = 0;
        while i < self.failed.len() {
            if self.failed[i].end() < len || self.failed[i].is_full() && self.failed[i].end() == len
            {
                i += 1;
                continue;
            }
            let mut buffer = self.failed.remove(i);
            if buffer.offset <= len && self.current.is_none() {
                buffer.cut(len);
                self.current = Some(buffer);
            } else {
                self.free.push(buffer);
            }
        }
        if self.failed.is_empty() {
            self.failure = None;
        }
        let open = self.open.as_mut().ok_or(SegmentError::NotOpen)?;
        let path = &open.paths.partial;
        if self.current.is_none() && !len.is_multiple_of(ALIGN_U64) {
            let mut buffer = self
                .free
                .pop()
                .expect("if no buffer is current or in flight, the buffer that held `len` is free");
            let loaded = buffer.load(&open.file, len);
            self.current = Some(buffer);
            if let Err(errno) = loaded {
                open.unsure = true;
                return Err(SegmentError::io("read back", path, errno));
            }
        }
        let stat =
            rustix::fs::fstat(&open.file.fd).map_err(|e| SegmentError::io("inspect", path, e))?;
        if u64::try_from(stat.st_size).is_ok_and(|size| size > len) {
            rustix::fs::ftruncate(&open.file.fd, len)
                .map_err(|e| SegmentError::io("cut", path, e))?;
            open.reserved = open.reserved.min(len);
        }
        open.len = len;
        Ok(())
    }

    /// Completes the segment: writes the buffered data, syncs it, and commits it with `meta`, the text of the metadata.
    ///
    /// After [`SegmentError::Full`] or another error, the segment is still open. The caller must close the segment
    /// later, or call [`keep_partial`]. The only exception is [`SegmentError::Unsynced`]: then the segment is closed
    /// and complete, because a commit is never undone.
    ///
    /// [`keep_partial`]: Self::keep_partial
    pub fn close(&mut self, meta: &[u8]) -> Result<Closed, SegmentError> {
        self.close_until(meta, Step::Done)
    }

    /// Same as [`close`](Self::close), but stops after step `last`, to test what remains after a kill. The segment
    /// stays open unless `last` is [`Step::Done`].
    #[doc(hidden)]
    pub fn close_until(&mut self, meta: &[u8], last: Step) -> Result<Closed, SegmentError> {
        let open = self.usable()?;
        let closed = Closed {
            data: open.paths.data.clone(),
            meta: open.paths.meta.clone(),
            bytes: open.len,
        };
        for step in Step::ALL {
            if step > last {
                break;
            }
            if step == Step::Tail {
                self.write_tail()?;
            } else {
                self.take(step, meta)?;
            }
        }
        if last == Step::Done {
            self.end();
        }
        Ok(closed)
    }

    /// Executes a step after [`Step::Tail`]. After the commit, the segment is closed, even if the step fails.
    fn take(&mut self, step: Step, meta: &[u8]) -> Result<(), SegmentError> {
        let open = self.open.as_mut().ok_or(SegmentError::NotOpen)?;
        let taken = open.take(step, meta);
        if matches!(taken, Err(SegmentError::Unsynced { .. })) {
            self.end();
        }
        taken
    }

    /// Resets the writer after a commit.
    fn end(&mut self) {
        self.log_buffered();
        self.open = None;
        self.recycle();
    }

    /// Abandons the open segment. Returns the file with the data that was written to the disk, which has the suffix
    /// `.partial`.
    ///
    /// Buffered data that was not written is lost. Returns `None` if no segment is open.
    pub fn keep_partial(&mut self) -> Option<PathBuf> {
        self.wait_for_writes();
        self.recycle();
        let open = self.open.take()?;
        // The temporary metadata file may be complete. Then `recover` would assume that the incomplete data is complete.
        let _ = std::fs::remove_file(&open.paths.meta_tmp);
        if open.named && rename(&open.paths.data, &open.paths.partial).is_err() {
            return Some(open.paths.data);
        }
        Some(open.paths.partial)
    }

    fn usable(&self) -> Result<&Open, SegmentError> {
        let open = self.open.as_ref().ok_or(SegmentError::NotOpen)?;
        if open.unsure {
            return Err(SegmentError::Unsure {
                path: open.paths.partial.clone(),
            });
        }
        Ok(open)
    }

    fn refused(&self, errno: Errno, wanted: u64) -> SegmentError {
        let open = self.open.as_ref();
        let (path, wrote) =
            open.map_or((Path::new(""), 0), |open| (&*open.paths.partial, open.len));
        SegmentError::write("write", path, errno, (wrote, wanted))
    }

    /// Reserves space for `more` bytes and the metadata.
    fn reserve(&mut self, more: u64) -> Result<(), SegmentError> {
        let Some(open) = self.open.as_mut() else {
            return Err(SegmentError::NotOpen);
        };
        let need = open.len + more + self.spare;
        if !open.can_reserve || need <= open.reserved {
            return Ok(());
        }
        // Reserve in large steps if there is space, otherwise exactly as much as needed.
        let mut full = false;
        for ahead in [RESERVE_AHEAD, RESERVE_AHEAD / 16, 0] {
            let end = need + ahead;
            match rustix::fs::fallocate(
                &open.file.fd,
                FallocateFlags::KEEP_SIZE,
                open.reserved,
                end - open.reserved,
            ) {
                Ok(()) => {
                    open.reserved = end;
                    return Ok(());
                }
                Err(Errno::NOSPC | Errno::DQUOT) => full = true,
                // This error does not mean that the disk is full. If it is full, the write itself will fail.
                Err(Errno::INTR | Errno::FBIG) => full = false,
                Err(_) => {
                    open.can_reserve = false;
                    return Ok(());
                }
            }
        }
        if full {
            Err(self.refused(Errno::NOSPC, more))
        } else {
            Ok(())
        }
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let mut buffer = match self.current.take() {
                Some(buffer) => buffer,
                None => self.empty_buffer()?,
            };
            let Some(open) = self.open.as_mut() else {
                return Err(Errno::BADF);
            };
            if buffer.is_empty() {
                buffer.offset = open.len;
            }
            let n = buffer.push(bytes);
            bytes = &bytes[n..];
            open.len += n as u64;
            if buffer.is_full() {
                self.disk.submit(&open.file, buffer);
            } else {
                self.current = Some(buffer);
            }
        }
        Ok(())
    }

    fn empty_buffer(&mut self) -> Result<Buffer, Errno> {
        loop {
            if let Some(mut buffer) = self.free.pop() {
                buffer.clear();
                return Ok(buffer);
            }
            match self.disk.wait() {
                Some(done) => self.take_back(done),
                None => return Err(self.failure.unwrap_or(Errno::NOSPC)),
            }
        }
    }

    /// Takes back the buffers whose writes have finished.
    fn collect_writes(&mut self) {
        while let Some(done) = self.disk.poll() {
            self.take_back(done);
        }
    }

    /// Waits for all buffers in flight and takes them back.
    fn wait_for_writes(&mut self) {
        while let Some(done) = self.disk.wait() {
            self.take_back(done);
        }
    }

    fn take_back(&mut self, done: disk::Done) {
        match done.result {
            Ok(()) => self.free.push(done.buffer),
            Err(errno) => {
                // Only the first buffer in the file really failed; it blocked the others. So keep the first error.
                self.failure = self.failure.or(Some(errno));
                self.failed.push(done.buffer);
            }
        }
    }

    /// Waits for all buffers in flight and writes the failed buffers again.
    fn write_failed(&mut self) -> Result<(), Errno> {
        // Buffers in flight follow the failed buffers, so the disk thread rejects them. Wait for them first.
        self.wait_for_writes();
        self.failure = None;
        let Some(open) = &self.open else {
            return Err(Errno::BADF);
        };
        for buffer in self.failed.drain(..) {
            self.disk.submit(&open.file, buffer);
        }
        self.wait_for_writes();
        self.failure.map_or(Ok(()), Err)
    }

    /// Writes all buffered data and sets the file's length, which also releases the reserved space after the end.
    fn write_tail(&mut self) -> Result<(), SegmentError> {
        self.write_failed()
            .map_err(|errno| self.refused(errno, 0))?;
        let open = self.open.as_ref().ok_or(SegmentError::NotOpen)?;
        if let Some(buffer) = &self.current {
            open.file
                .write(buffer.bytes(), buffer.offset)
                .map_err(|errno| self.refused(errno, 0))?;
        }
        if open.reserved > open.len {
            // Some filesystems release the space after the end only if the file's length changes.
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&open.file.fd, punch, open.len, open.reserved - open.len);
        }
        rustix::fs::ftruncate(&open.file.fd, open.len)
            .map_err(|e| SegmentError::io("cut", &open.paths.partial, e))?;
        if let Some(open) = &mut self.open {
            open.reserved = open.len;
        }
        Ok(())
    }

    fn recycle(&mut self) {
        self.free
            .extend(self.failed.drain(..).chain(self.current.take()));
        self.failure = None;
        debug_assert_eq!(
            self.free.len() + self.disk.in_flight(),
            self.options.buffers,
            "each buffer must be either free or in flight"
        );
    }

    /// Logs once that direct I/O was requested but is not supported by the filesystem.
    fn log_buffered(&mut self) {
        let Some(open) = &self.open else { return };
        if self.options.direct && !open.file.is_direct() && !self.has_logged_buffered {
            self.has_logged_buffered = true;
            tracing::warn!(
                path = %open.dir.display(),
                "this filesystem does not support direct I/O; writing through the page cache"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_after_commit_leaves_segment_intact() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SegmentWriter::new(&Options::default()).unwrap();
        writer.open(dir.path(), "a-000000").unwrap();
        writer.write(b"samples").unwrap();
        let closed = writer.close_until(b"{}", Step::MetaNamed).unwrap();
        // The last step, the sync of the directory, now fails.
        writer.open.as_mut().unwrap().dir = dir.path().join("gone");
        let error = writer.take(Step::Done, b"{}").unwrap_err();
        assert!(matches!(error, SegmentError::Unsynced { .. }), "{error}");
        assert!(!writer.is_open());
        assert_eq!(writer.keep_partial(), None);
        assert_eq!(std::fs::read(closed.data).unwrap(), b"samples");
        assert_eq!(std::fs::read(closed.meta).unwrap(), b"{}");
        writer.open(dir.path(), "a-000001").unwrap();
    }
}
