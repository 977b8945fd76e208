//! Places the samples of a SigMF recording in the window.

use super::config::ReplayConfig;
use super::recording::{Listed, Recording, Run};
use super::timetable::Timetable;
use daq_core::entry::SourceContext;
use daq_core::frame::{Clock, Flags, KeptFields, Timestamp};
use daq_core::ledger::Playback;
use daq_core::reorder::{Batch, Geometry, PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, SourceError};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Replays a recording in pieces of at most one frame.
#[expect(
    clippy::struct_excessive_bools,
    reason = "two settings and two independent states of the replay"
)]
pub(super) struct RecordingPlayer {
    recording: Recording,
    /// The data files, in the order of the recording.
    files: Vec<File>,
    geometry: Geometry,
    backpressure: bool,
    repeats: bool,
    timetable: Timetable,
    byte_ns: Option<f64>,
    /// Number of bytes of the run's first frame that are before the run's first sample.
    skipped: u64,
    /// Buffer for one frame.
    buffer: Box<[u8]>,
    /// Index of the current run, and number of its bytes that were replayed.
    run: usize,
    done: u64,
    /// Number of the next packet.
    position: u64,
    /// Whether the next packet begins an acquisition that does not continue the previous one.
    restarts: bool,
    /// Index of the next missing range in the current file.
    gap: usize,
    /// Whether this pass has placed any packet.
    has_brought: bool,
    /// Number of bytes of this pass that were replayed or skipped.
    read: u64,
    playback: Playback,
}

/// Packets of one frame that are replayed together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    file: usize,
    byte_start: u64,
    /// The piece consists of packets `first..end` of the frame.
    first: u32,
    end: u32,
    bytes: usize,
    /// Size of the frame in bytes.
    frame: usize,
    time: Option<u64>,
    /// The clock of the time.
    clock: Clock,
}

impl RecordingPlayer {
    pub(super) fn open(
        context: &SourceContext,
        config: &ReplayConfig,
    ) -> Result<Self, SourceError> {
        let (name, geometry) = (&context.name, context.geometry);
        let recording = Recording::open(&context.directory, config).map_err(|why| {
            let what = config
                .path
                .0
                .first()
                .map_or_else(String::new, |path| path.display().to_string());
            SourceError::new(what, why.to_string())
        })?;
        for note in recording.notes(config.speed) {
            tracing::warn!("source {name}: {note}");
        }
        let mut files = Vec::with_capacity(recording.files.len());
        for data in &recording.files {
            let file = daq_core::file::open(&data.path).map_err(|why| {
                let path = data.path.display().to_string();
                SourceError::new(
                    path,
                    format!("cannot open the file: {why}; `ls -l` shows who may read it"),
                )
            })?;
            files.push(file);
        }
        let bytes = recording.runs.iter().map(|run| run.bytes).sum();
        context.playback.set_recording(bytes, config.repeats);
        let mut player = Self {
            byte_ns: recording.byte_ns(),
            recording,
            files,
            geometry,
            backpressure: config.backpressure,
            repeats: config.repeats,
            timetable: Timetable::new(config.speed),
            buffer: vec![0; geometry.frame_bytes].into_boxed_slice(),
            run: 0,
            done: 0,
            skipped: 0,
            position: 0,
            restarts: false,
            gap: 0,
            has_brought: false,
            read: 0,
            playback: context.playback.clone(),
        };
        player.begin_run();
        Ok(player)
    }

    fn packets_per_frame(&self) -> u64 {
        u64::from(self.geometry.packets_per_frame)
    }

    /// Starts the run with index `run`.
    fn begin_run(&mut self) {
        (self.done, self.skipped) = (0, 0);
        let Some(run) = self.recording.runs.get(self.run) else {
            return;
        };
        self.restarts |= run.restarts;
        if run.restarts {
            self.position = 0;
        } else if let Some(sequence) = run.sequence {
            let start = sequence.wrapping_mul(self.packets_per_frame());
            let first = self.first_packet(run.skipped);
            self.skipped = first.map_or(0, |_| run.skipped);
            self.position = start.wrapping_add(first.unwrap_or(0).into());
        }
    }

    /// Returns the packet of a frame that begins after `skipped` bytes, if there is one.
    fn first_packet(&self, skipped: u64) -> Option<u32> {
        let mut packets = 0..self.geometry.packets_per_frame;
        packets.find(|packet| self.geometry.extent(*packet).start as u64 == skipped)
    }

    /// Returns the next piece, or `None` at the end of the recording.
    fn piece(&mut self) -> Option<Piece> {
        loop {
            let run = self.recording.runs.get(self.run)?;
            let &Run {
                file,
                byte_start,
                bytes,
                sequence,
                time_ns,
                clock,
                ..
            } = run;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the remainder is less than `packets_per_frame`, which is a u32"
            )]
            let first = (self.position % self.packets_per_frame()) as u32;
            let left = bytes - self.done;
            let frame = self.frame_size(first, left);
            let extent = |packet| self.geometry.extent_in(packet, frame);
            let start = extent(first).start;
            let mut end = first;
            while left > 0
                && end < self.geometry.packets_in(frame)
                && (extent(end).end - start) as u64 <= left
            {
                end += 1;
            }
            if end == first {
                // The last packet of a short frame is incomplete, or no bytes are left.
                if first > 0 && sequence.is_some() {
                    self.position += self.packets_per_frame() - u64::from(first);
                }
                self.read += left;
                self.playback.set_bytes(self.read);
                self.run += 1;
                let next = self.recording.runs.get(self.run);
                if next.is_some_and(|next| next.file != file) {
                    self.gap = 0;
                }
                self.begin_run();
                continue;
            }
            let bytes = extent(end - 1).end - start;
            let frame_bytes = self.geometry.frame_bytes as u64;
            let time = match (run.listed(self.done / frame_bytes), time_ns, self.byte_ns) {
                (Listed::Time(listed), ..) if self.done.is_multiple_of(frame_bytes) => listed,
                (Listed::Predicted, Some(ns), Some(byte_ns)) => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "never negative; saturates"
                    )]
                    let since_start = (self.done as f64 * byte_ns) as u64;
                    Some(ns.saturating_add(since_start))
                }
                (_, Some(ns), None) if self.done == 0 => Some(ns),
                _ => None,
            };
            // The time of a frame is that of its first sample, even if this sample is not in the file.
            let time = time.map(|ns| ns.saturating_sub(self.skipped_ns()));
            return Some(Piece {
                file,
                clock,
                byte_start: byte_start + self.done,
                first,
                end,
                bytes,
                frame,
                time,
            });
        }
    }

    /// Returns the size of the frame whose packet `first` is next, of a run with `left` more bytes.
    fn frame_size(&self, first: u32, left: u64) -> usize {
        let max = self.geometry.frame_bytes;
        if self.recording.has_sizes && first == 0 {
            usize::try_from(left).map_or(max, |left| left.clamp(1, max))
        } else {
            max
        }
    }

    /// Returns the duration of the samples before the first sample of the run in its frame.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    fn skipped_ns(&self) -> u64 {
        let skipped = if self.done == 0 { self.skipped } else { 0 };
        (skipped as f64 * self.byte_ns.unwrap_or(0.0)).round() as u64
    }

    /// Returns to the start of the recording. Returns false if the recording is played once or is empty.
    fn restart(&mut self, window: &mut ReorderWindow) -> bool {
        if !self.repeats || !self.has_brought {
            return false;
        }
        (self.run, self.position, self.gap, self.read) = (0, 0, 0, 0);
        self.restarts = false;
        self.has_brought = false;
        self.begin_run();
        self.timetable.restart();
        window.restart();
        true
    }

    /// Returns the recorded time of `piece`, or the time computed from the number of samples.
    fn due(&self, piece: &Piece) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "never negative; saturates"
        )]
        piece.time.or_else(|| {
            self.byte_ns
                .map(|ns| (self.position as f64 * self.geometry.packet_bytes as f64 * ns) as u64)
        })
    }

    /// Returns whether the window has a free slot for `piece`.
    fn has_room(&mut self, batch: &mut Batch<'_>, piece: &Piece) -> bool {
        let gap = self.gap;
        let first = (piece.first..piece.end).find(|packet| !self.lacks(piece, *packet));
        self.gap = gap;
        // All packets of the piece belong to one frame.
        first.is_none_or(|first| {
            let position = self.position + u64::from(first - piece.first);
            batch.has_room(PacketId::of(position), None)
        })
    }

    /// Returns whether packet `packet` of `piece` is missing. Must be called in the order of the packets.
    fn lacks(&mut self, piece: &Piece, packet: u32) -> bool {
        let (start, extent) = (
            self.geometry.extent_in(piece.first, piece.frame).start,
            self.geometry.extent_in(packet, piece.frame),
        );
        let byte = |offset: usize| piece.byte_start + (offset - start) as u64;
        self.is_missing(piece.file, byte(extent.start), byte(extent.end))
    }

    /// Returns whether the packet with the bytes `from..to` is missing. Missing ranges cover whole samples, so a missing range
    /// may overlap the bytes of a neighbouring packet.
    fn is_missing(&mut self, file: usize, from: u64, to: u64) -> bool {
        let missing = &self.recording.files[file].missing;
        while missing.get(self.gap).is_some_and(|gap| gap.1 <= from) {
            self.gap += 1;
        }
        let inside = missing[self.gap..].iter().take_while(|gap| gap.0 < to);
        let lacking: u64 = inside.map(|gap| gap.1.min(to) - gap.0.max(from)).sum();
        lacking == to - from || lacking >= 2 * self.recording.group as u64
    }

    /// Returns the kept fields of the frame that contains `piece`.
    fn kept(&self, piece: &Piece) -> KeptFields {
        let ranges = &self.recording.files[piece.file].kept;
        let after = ranges.partition_point(|(start, ..)| *start <= piece.byte_start);
        match ranges[..after].last() {
            Some((_, end, fields)) if piece.byte_start < *end => *fields,
            _ => KeptFields::default(),
        }
    }

    /// Returns the recorded flags of the frame that contains `piece`.
    fn flags(&self, piece: &Piece) -> Flags {
        let file = &self.recording.files[piece.file];
        let is_in = |ranges: &[(u64, u64)]| {
            let after = ranges.partition_point(|(start, _)| *start <= piece.byte_start);
            ranges[..after]
                .last()
                .is_some_and(|(_, end)| piece.byte_start < *end)
        };
        let flag = |is_set, flag| if is_set { flag } else { Flags(0) };
        flag(is_in(&file.incomplete), Flags::INCOMPLETE)
            .with(flag(is_in(&file.suspect), Flags::SUSPECT))
    }

    fn read(&mut self, piece: &Piece) -> Result<(), SourceError> {
        let buffer = &mut self.buffer[..piece.bytes];
        self.files[piece.file]
            .read_exact_at(buffer, piece.byte_start)
            .map_err(|why| {
                let path = self.recording.files[piece.file].path.display().to_string();
                SourceError::new(
                    path,
                    format!("cannot read the file at byte {}: {why}", piece.byte_start),
                )
            })?;
        if let Some(bytes) = self.recording.swap {
            for number in buffer.chunks_exact_mut(bytes) {
                number.reverse();
            }
        }
        Ok(())
    }
}

impl Filler for RecordingPlayer {
    fn fill(&mut self, window: &mut ReorderWindow, _: Duration) -> Result<Polled, SourceError> {
        let Some(piece) = self.piece() else {
            let goes_on = self.restart(window);
            return Ok(if goes_on { Polled::Busy } else { Polled::Ended });
        };
        if !self.timetable.is_free()
            && let Some(due) = self.due(&piece)
            && let Some(wait) = self.timetable.wait(due, Instant::now())
        {
            return Ok(Polled::Until(wait));
        }
        if std::mem::take(&mut self.restarts) {
            window.restart();
        }
        let mut batch = window.batch();
        if self.backpressure && !self.has_room(&mut batch, &piece) {
            batch.commit();
            return Ok(Polled::Full);
        }
        self.read(&piece)?;
        let time = piece.time.map_or_else(Timestamp::default, |ns| Timestamp {
            ns,
            clock: piece.clock,
        });
        let (kept, flags) = (self.kept(&piece), self.flags(&piece));
        let start = self.geometry.extent_in(piece.first, piece.frame).start;
        let frame = self.recording.has_sizes.then_some(piece.frame);
        for packet in piece.first..piece.end {
            let extent = self.geometry.extent_in(packet, piece.frame);
            if !self.lacks(&piece, packet) {
                let bytes = &self.buffer[extent.start - start..extent.end - start];
                let outcome = batch.place_sized(PacketId::of(self.position), bytes, frame, time);
                batch.keep_fields(outcome, || kept);
                batch.flag(outcome, flags);
                self.has_brought = true;
            }
            self.position += 1;
        }
        batch.commit();
        self.done += piece.bytes as u64;
        self.read += piece.bytes as u64;
        self.playback.set_bytes(self.read);
        Ok(Polled::Busy)
    }
}
