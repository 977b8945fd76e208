//! The sink itself: frames into the open segment, rotation, the end.

use super::closer::{Abandoned, Closer, Trouble, abandon};
use super::recording::recording;
use super::{FileKeys, sink_error};
use crate::lock::StemLock;
use crate::segment::{SegmentWriter, segment_name};
use crate::sigmf::{MetaBuilder, Moment, Record};
use daq_core::frame::{Clock, Flags, FrameMeta};
use daq_core::ledger::SinkLedger;
use daq_core::ring::{Frame, Lease};
use daq_core::sink::{Sink, SinkContext, SinkError};
use std::time::{Duration, Instant};

/// What the annotation about frames says that were dropped while the disk was full.
pub(super) const CAUSE_FULL: &str = "disk_full";

/// Writes frames into segments.
pub(super) struct FileSink {
    /// The number of the next segment.
    next: u64,
    limit: u64,
    rotate: Option<Duration>,
    builder: MetaBuilder,
    active: SegmentWriter,
    closer: Closer,
    /// When the open segment took its first frame.
    opened: Instant,
    /// Epoch and number of the last frame that was refused for want of space.
    refused: Option<(u32, u64)>,
    /// Found after frames were taken in the same call: told by the next.
    failure: Option<SinkError>,
    ledger: SinkLedger,
    /// Held until everything above is gone.
    lock: StemLock,
}

impl FileSink {
    pub(super) fn new(
        lock: StemLock,
        keys: &FileKeys,
        next: u64,
        context: &SinkContext,
    ) -> Result<Self, SinkError> {
        let options = keys.options();
        let recording = recording(context, keys.description.clone(), keys.hardware.clone());
        Ok(Self {
            next,
            limit: keys.segment.0,
            rotate: keys.rotate.map(|rotate| rotate.0),
            builder: MetaBuilder::new(recording),
            active: SegmentWriter::new(&options).map_err(sink_error)?,
            closer: Closer::start(SegmentWriter::new(&options).map_err(sink_error)?)?,
            opened: Instant::now(),
            refused: None,
            failure: None,
            ledger: context.ledger.clone(),
            lock,
        })
    }

    /// Takes one frame whole; the bytes written, of which there are none if it fails.
    fn write(&mut self, frame: &Frame<'_>) -> Result<u64, SinkError> {
        let meta = frame.meta();
        let bytes = frame.bytes().ok_or_else(|| SinkError::Failed {
            what: "this sink".to_owned(),
            why: "its frames are not in host memory; this is a defect in the plan".to_owned(),
        })?;
        let length = self.builder.whole(bytes.len() as u64);
        if length == 0 {
            return Ok(0);
        }
        if !self.active.is_empty() && self.active.len() + length > self.limit {
            self.make_room()?;
        }
        if !self.active.is_open() {
            // A kill leaves at most one partial segment: the next one begins when the last one is whole.
            if !self.closer.is_ready() {
                self.look(true)?;
            }
            self.active
                .open(self.lock.dir(), &segment_name(self.lock.stem(), self.next))
                .map_err(sink_error)?;
            self.builder.begin(self.next);
            self.next += 1;
            self.opened = Instant::now();
        }
        let end = usize::try_from(length).unwrap_or(bytes.len());
        self.active.write(&bytes[..end]).map_err(sink_error)?;
        let record = Record {
            sequence: meta.sequence,
            epoch: meta.epoch,
            bytes: length,
            moment: moment(meta),
            restart: meta.flags.contains(Flags::EPOCH),
            suspect: meta.flags.contains(Flags::SUSPECT),
            places: meta.places,
            truncated: meta.flags.contains(Flags::TRUNCATED),
            cause: self
                .refused
                .filter(|refused| *refused != (meta.epoch, meta.sequence))
                .map(|_| CAUSE_FULL),
        };
        self.refused = None;
        let missing = meta.is_incomplete().then(|| frame.present().missing());
        self.builder.frame(&record, missing.into_iter().flatten());
        Ok(length)
    }

    /// Ends the open segment, waiting for the one before it where that is still being closed.
    fn make_room(&mut self) -> Result<(), SinkError> {
        if !self.closer.is_ready() {
            self.look(true)?;
        }
        self.end_segment();
        Ok(())
    }

    /// Ends the open segment, if there is one and the second writer is free.
    fn end_segment(&mut self) {
        if self.active.is_open() && self.builder.frames() > 0 && self.closer.is_ready() {
            self.closer.swap(&mut self.active, self.builder.build());
        }
    }

    fn look(&mut self, wait: bool) -> Result<(), SinkError> {
        match self.closer.look(wait) {
            Ok(closed) => {
                self.ledger.files.add(u64::from(closed));
                Ok(())
            }
            Err(Trouble::Full(error)) => Err(error),
            Err(Trouble::Lost(lost)) => Err(self.lose(lost)),
        }
    }

    /// Counts frames that were taken and could not be written after all as dropped, too.
    fn lose(&self, lost: Abandoned) -> SinkError {
        self.ledger.dropped.add(lost.frames);
        lost.error
    }

    /// Ends the open segment if it is old enough.
    fn rotate_by_time(&mut self) {
        if let Some(rotate) = self.rotate
            && self.active.is_open()
            && self.opened.elapsed() >= rotate
        {
            self.end_segment();
        }
    }

    /// Makes the open segment whole; one without frames leaves no file.
    fn close_active(&mut self) -> Result<(), SinkError> {
        if !self.active.is_open() {
            return Ok(());
        }
        if self.builder.frames() == 0 || self.active.is_empty() {
            if let Some(path) = self.active.abandon() {
                // Nothing is in it; if it stays, the next start tells of a partial of 0 bytes.
                let _ = std::fs::remove_file(path);
            }
            return Ok(());
        }
        let meta = self.builder.build();
        match self.active.close(&meta.to_json()) {
            Ok(_) => {
                self.ledger.files.add(1);
                Ok(())
            }
            Err(error) => {
                let lost = abandon(&mut self.active, Some(&meta), &error);
                Err(self.lose(lost))
            }
        }
    }
}

impl Sink for FileSink {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.rotate_by_time();
        let (mut taken, mut bytes) = (0, 0);
        for i in from..lease.len() {
            let frame = lease.frame(i);
            match self.write(&frame) {
                Ok(length) => bytes += length,
                Err(error) => {
                    if matches!(error, SinkError::Full { .. }) {
                        self.refused = self
                            .refused
                            .or(Some((frame.meta().epoch, frame.meta().sequence)));
                    }
                    if taken == 0 {
                        return Err(error);
                    }
                    if !matches!(error, SinkError::Full { .. }) {
                        self.failure = Some(error);
                    }
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
        self.rotate_by_time();
        match self.look(false) {
            // Frames tell it when they need the space.
            Err(SinkError::Full { .. }) => Ok(()),
            other => other,
        }
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let earlier = match self.closer.end() {
            Ok(closed) => {
                self.ledger.files.add(u64::from(closed));
                Ok(())
            }
            Err(lost) => Err(self.lose(lost)),
        };
        let last = self.close_active();
        earlier
            .and(last)
            .and(self.failure.take().map_or(Ok(()), Err))
    }
}

/// When a frame was taken; only the host's clocks are known to tell UTC.
fn moment(meta: &FrameMeta) -> Option<Moment> {
    let clock = meta.timestamp.clock;
    (clock != Clock::None).then(|| Moment {
        clock: clock.name(),
        ns: meta.timestamp.ns,
        utc: matches!(clock, Clock::Host | Clock::Kernel),
    })
}
