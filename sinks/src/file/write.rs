//! The implementation of the sink trait: writes frames to the open segment, rotates segments, and ends the recording.

use super::recording::recording;
use super::{FileKeys, sink_error};
use crate::file::segment::{SegmentError, SegmentWriter, segment_name};
use crate::lock::StemLock;
use crate::sigmf::{MetaBuilder, Moment, Record};
use daq_core::frame::{Clock, Flags, FrameMeta};
use daq_core::ledger::SinkLedger;
use daq_core::ring::{Frame, Lease};
use daq_core::sink::{Sink, SinkContext, SinkError};
use daq_core::units::counted;
use std::time::{Duration, Instant};

/// Cause in the annotations of frames that were dropped while the disk was full.
pub(super) const CAUSE_FULL: &str = "disk_full";

/// Writes frames to segments.
pub(super) struct FileSink {
    /// Number of the next segment.
    next: u64,
    limit: u64,
    rotate: Option<Duration>,
    trim: bool,
    builder: MetaBuilder,
    writer: SegmentWriter,
    /// Whether the open segment accepts no more frames and must be closed. Closing may have to be repeated.
    ending: bool,
    /// Time at which the open segment accepted its first frame.
    opened: Instant,
    /// Epoch and number of the last frame that was rejected for lack of space.
    refused: Option<(u32, u64)>,
    /// An error that occurred after frames were accepted in the same call. The next call returns this error.
    failure: Option<SinkError>,
    ledger: SinkLedger,
    /// Keep this field last, so that the lock is released after all other fields are dropped.
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
            trim: keys.trim,
            builder: MetaBuilder::new(recording),
            writer: SegmentWriter::new(&options).map_err(sink_error)?,
            ending: false,
            opened: Instant::now(),
            refused: None,
            failure: None,
            ledger: context.ledger.clone(),
            lock,
        })
    }

    /// Writes one whole frame. Returns the number of bytes written. On failure, nothing is written.
    fn write(&mut self, frame: &Frame<'_>) -> Result<u64, SinkError> {
        let meta = frame.meta();
        let bytes = frame.bytes().ok_or_else(|| SinkError::Failed {
            what: "this sink".to_owned(),
            why: "the input frames are not in host memory; this is a defect in the plan".to_owned(),
        })?;
        let record = self.record(frame, self.builder.whole(bytes.len() as u64));
        let length = record.bytes;
        if length == 0 {
            return Ok(0);
        }
        let spans = if meta.is_incomplete() {
            frame.present().missing().count()
        } else {
            0
        };
        let is_full = self.writer.len() + length > self.limit || self.builder.is_full(spans);
        if !self.writer.is_empty() && is_full {
            self.ending = true;
        }
        self.end_segment()?;
        if !self.writer.is_open() {
            self.writer
                .open(self.lock.dir(), &segment_name(self.lock.stem(), self.next))
                .map_err(sink_error)?;
            self.builder.begin(self.next);
            self.next += 1;
            self.opened = Instant::now();
        }
        self.writer.keep_spare(self.builder.json_bytes(spans));
        let start = usize::try_from(record.trimmed.0).unwrap_or(bytes.len());
        let written = usize::try_from(length).unwrap_or(bytes.len());
        self.writer
            .write(&bytes[start..start + written])
            .map_err(sink_error)?;
        self.refused = None;
        let missing = meta.is_incomplete().then(|| frame.present().missing());
        self.builder.frame(&record, missing.into_iter().flatten());
        self.builder.keep(&meta.kept);
        Ok(length)
    }

    /// Returns the properties of a frame, of which at most `length` bytes are written.
    fn record(&self, frame: &Frame<'_>, length: u64) -> Record {
        let meta = frame.meta();
        let record = Record {
            sequence: meta.sequence,
            epoch: meta.epoch,
            bytes: length,
            moment: moment(meta),
            restart: meta.flags.contains(Flags::EPOCH),
            suspect: meta.flags.contains(Flags::SUSPECT),
            // A kernel has computed the frame from incomplete data.
            incomplete: meta.is_incomplete() && meta.arrived >= meta.packets_per_frame,
            packets_per_frame: meta.packets_per_frame,
            packet_sizes: meta.packet_sizes,
            truncated: meta.flags.contains(Flags::TRUNCATED),
            tuning: self.builder.tuning(&meta.kept),
            cause: self
                .refused
                .filter(|refused| *refused != (meta.epoch, meta.sequence))
                .map(|_| CAUSE_FULL),
            ..Record::default()
        };
        if !self.trim || !record.truncated {
            return record;
        }
        let inside = self.builder.inside(&record, frame.present().missing());
        Record {
            bytes: inside.end - inside.start,
            trimmed: (inside.start, length - inside.end),
            ..record
        }
    }

    /// Closes the open segment if it must be closed. If there is no space for the metadata, a later call tries again.
    fn end_segment(&mut self) -> Result<(), SinkError> {
        if !self.ending {
            return Ok(());
        }
        match self.writer.close(&self.builder.build().to_json()) {
            Ok(_) => {
                self.ending = false;
                self.ledger.files.add(1);
                Ok(())
            }
            Err(error @ SegmentError::Full { .. }) => Err(sink_error(error)),
            // The segment is committed and counts as complete.
            Err(error @ SegmentError::Unsynced { .. }) => {
                self.ending = false;
                self.ledger.files.add(1);
                Err(sink_error(error))
            }
            Err(error) => Err(self.give_up(&error)),
        }
    }

    /// Abandons the open segment because closing it failed. Counts the frames that are not completely in the file as
    /// lost.
    fn give_up(&mut self, why: &dyn std::error::Error) -> SinkError {
        self.ending = false;
        let meta = self.builder.build();
        let total = self.writer.len();
        let is_gone = matches!(self.writer.check_path(), Err((_, absent)) if absent.is_gone());
        let path = self.writer.keep_partial();
        let kept = path
            .as_ref()
            .filter(|_| !is_gone)
            .and_then(|path| path.metadata().ok())
            .map_or(0, |file| file.len().min(total));
        let (frame_bytes, frames) = meta
            .global
            .stream
            .as_ref()
            .map_or((1, 0), |s| (s.frame_bytes.max(1), s.frames));
        let lost = (total - kept).div_ceil(frame_bytes).min(frames);
        self.ledger.lost.add(lost);
        let rest = if is_gone {
            format!(
                "{} count as lost; if the file was moved, it contains most of them",
                counted(lost, "frame")
            )
        } else {
            format!("The segment contains {kept} bytes, and {lost} frames are lost")
        };
        SinkError::Failed {
            what: path.map_or_else(|| "a segment".to_owned(), |path| path.display().to_string()),
            why: format!("this segment is incomplete: {why}. {rest}"),
        }
    }

    /// Checks that the open segment is still at its path. If it is gone, counts its frames as lost.
    fn check_paths(&mut self) -> Result<(), SinkError> {
        match self.writer.check_path() {
            Err((_, absent)) if absent.is_gone() => return Err(self.give_up(&absent)),
            Err((path, absent)) => return Err(absent.of_sink(path)),
            Ok(()) => {}
        }
        self.lock.check_dir()
    }

    /// Ends the open segment if it has reached its maximum age.
    fn look_at_age(&mut self) {
        self.ending |= self.rotate.is_some_and(|rotate| {
            self.writer.is_open() && self.builder.frames() > 0 && self.opened.elapsed() >= rotate
        });
    }

    /// Closes the open segment. Removes the file of a segment without frames.
    fn close(&mut self) -> Result<(), SinkError> {
        if !self.writer.is_open() {
            return Ok(());
        }
        if self.builder.frames() == 0 || self.writer.is_empty() {
            if let Some(path) = self.writer.keep_partial() {
                // The file is empty. If it cannot be removed, the next start logs a partial file of 0 bytes.
                let _ = std::fs::remove_file(path);
            }
            return Ok(());
        }
        self.ending = true;
        self.end_segment().map_err(|error| match error {
            error @ SinkError::Full { .. } => self.give_up(&error),
            error => error,
        })
    }
}

impl Sink for FileSink {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.look_at_age();
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
        self.check_paths()?;
        self.look_at_age();
        match self.end_segment() {
            // If the space is needed, the next frame reports the error.
            Err(SinkError::Full { .. }) => Ok(()),
            other => other,
        }
    }

    fn blocked_for(&mut self) -> Duration {
        self.writer.blocked_for()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let closed = self.close();
        closed.and(self.failure.take().map_or(Ok(()), Err))
    }
}

/// Returns the time at which a frame was acquired.
fn moment(meta: &FrameMeta) -> Option<Moment> {
    let clock = meta.timestamp.clock;
    (clock != Clock::None).then_some(Moment {
        clock,
        ns: meta.timestamp.ns,
    })
}
