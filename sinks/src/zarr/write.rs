//! The implementation of the sink trait: adds frames to the current chunk, commits chunks, and ends the recording.

use super::batch::Batch;
use super::recover::remove_partials;
use super::store::{Rooms, Store};
use crate::finisher::Finisher;
use crate::lock::StemLock;
use crate::presence::Identity;
use daq_core::ledger::SinkLedger;
use daq_core::ring::{Frame, Lease};
use daq_core::sink::{Sink, SinkContext, SinkError};
use daq_core::units::counted;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Writes frames to a store.
pub(super) struct ZarrSink {
    dir: PathBuf,
    /// Directories of the store and its arrays, and their identities.
    directories: Vec<(PathBuf, Option<Identity>)>,
    rooms: Rooms,
    active: Batch,
    /// Commits the previous chunk on another thread.
    committer: Finisher<Batch, SinkError>,
    /// Whether the current chunk contains frames that are not committed.
    dirty: bool,
    flush: Duration,
    flushed: Instant,
    /// Number of rows committed so far.
    committed: u64,
    /// Whether the store was removed, moved or replaced.
    is_gone: bool,
    /// An error that occurred after frames were accepted in the same call. The next call returns this error.
    failure: Option<SinkError>,
    ledger: SinkLedger,
    /// Keep this field last, so that the lock is released after all other fields are dropped.
    lock: StemLock,
}

impl ZarrSink {
    pub(super) fn new(
        lock: StemLock,
        mut store: Store,
        [active, spare]: [Batch; 2],
        flush: Duration,
        context: &SinkContext,
    ) -> Result<Self, SinkError> {
        let (dir, rooms) = (store.dir.clone(), store.rooms());
        let directories = store.directories().into_iter();
        let directories = directories.map(|path| {
            let identity = Identity::of(&path);
            (path, identity)
        });
        Ok(Self {
            dir,
            directories: directories.collect(),
            rooms,
            active,
            committer: Finisher::start("daq-zarr", spare, move |batch| store.commit(batch))?,
            dirty: false,
            flush,
            flushed: Instant::now(),
            committed: 0,
            is_gone: false,
            failure: None,
            ledger: context.ledger.clone(),
            lock,
        })
    }

    /// Adds one frame. Returns the number of payload bytes added. On failure, nothing is added.
    fn write(&mut self, frame: &Frame<'_>) -> Result<u64, SinkError> {
        let bytes = frame.bytes().ok_or_else(|| SinkError::Failed {
            what: "this sink".to_owned(),
            why: "the input frames are not in host memory; this is a defect in the plan".to_owned(),
        })?;
        if self.active.is_full() {
            self.poll(true)?;
            self.ship();
        }
        if self.active.room.is_none() {
            self.active.room = Some(self.rooms.make()?);
        }
        let taken = self.active.push(frame, bytes) as u64;
        self.dirty = true;
        if self.active.is_full() {
            // Submit the full chunk now if the other chunk is free, otherwise with the next frame.
            self.ship();
        }
        Ok(taken)
    }

    /// If the other chunk is free, submits the current chunk for its commit and continues with the other chunk.
    fn ship(&mut self) {
        let sent = self.committer.exchange(|mut next| {
            next.follow(&self.active);
            let mut full = std::mem::replace(&mut self.active, next);
            full.clear_tail();
            full
        });
        if sent {
            self.dirty = false;
            self.flushed = Instant::now();
        }
    }

    /// Commits the frames of an incomplete chunk if `flush` has passed and the memory of the other chunk is free.
    fn flush(&mut self) {
        if !self.dirty || self.flushed.elapsed() < self.flush {
            return;
        }
        let sent = self.committer.exchange(|mut copy| {
            copy.copy(&mut self.active);
            copy.clear_tail();
            copy
        });
        if sent {
            self.dirty = false;
            self.flushed = Instant::now();
        }
    }

    fn poll(&mut self, wait: bool) -> Result<(), SinkError> {
        if let Some(batch) = self.committer.poll(wait)? {
            self.committed = batch.end();
            self.ledger.files.add(u64::from(batch.is_full()));
            if let Some(error) = batch.unsynced.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks that the store and its arrays are still at their paths. If they are gone, all their frames are lost.
    fn check_paths(&mut self) -> Result<(), SinkError> {
        // The directory of the store is the last one.
        for (path, identity) in self.directories.iter().rev() {
            let checked = identity.map_or(Ok(()), |identity| identity.check("store", path));
            if let Err(absent) = checked {
                self.is_gone = absent.is_gone();
                return Err(absent.of_sink(path));
            }
        }
        self.lock.check_dir()
    }

    /// Commits all frames.
    fn close(&mut self) -> Result<(), SinkError> {
        self.poll(true)?;
        if self.dirty {
            let rest = self.active.rows > 0 && !self.active.is_full();
            self.ship();
            self.poll(true)?;
            self.ledger.files.add(u64::from(rest));
        } else {
            self.ledger.files.add(u64::from(self.active.rows > 0));
        }
        Store::complete(&self.dir)
    }
}

impl Sink for ZarrSink {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let (mut taken, mut bytes) = (0, 0);
        for i in from..lease.len() {
            match self.write(&lease.frame(i)) {
                Ok(length) => bytes += length,
                Err(error) if taken == 0 => return Err(error),
                Err(SinkError::Full { .. }) => break,
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            }
            taken += 1;
        }
        self.ledger.frames.add(taken as u64);
        self.ledger.bytes.add(bytes);
        Ok(taken)
    }

    fn tick(&mut self) -> Result<(), SinkError> {
        self.check_paths()?;
        match self.poll(false) {
            // If the space is needed, the next frame reports the error.
            Ok(()) | Err(SinkError::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.active.is_full() {
            self.ship();
        } else {
            self.flush();
        }
        Ok(())
    }

    fn blocked_for(&mut self) -> Duration {
        self.committer.blocked_for()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let rows = self.active.end();
        let closed = self.close();
        // Remove the space reserved for chunks that will never be written, and the files of a failed commit.
        for (directory, _) in &self.directories {
            remove_partials(directory);
        }
        let committed = if self.is_gone { 0 } else { self.committed };
        let lost = rows - committed;
        if lost > 0 {
            self.ledger.lost.add(lost);
        }
        let result = closed.map_err(|error| match error {
            error if lost == 0 => error,
            error => SinkError::Failed {
                what: self.dir.display().to_string(),
                why: format!(
                    "{error}; the last {} that the sink accepted are lost",
                    counted(lost, "frame")
                ),
            },
        });
        result.and(self.failure.take().map_or(Ok(()), Err))
    }
}
