//! Places the samples of a SigMF recording in the window.

use super::keys::ReplayConfig;
use super::recording::{DataFile, Listed, Recording, Run};
use super::timetable::Timetable;
use daq_core::entry::SourceContext;
use daq_core::frame::{Clock, Flags, KeptFields, Timestamp};
use daq_core::ledger::Playback;
use daq_core::reorder::{Batch, Geometry, PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, SourceError};
use std::fs::File;
use std::ops::Range;
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
    /// Buffer for one frame.
    buffer: Box<[u8]>,
    /// Index of the current run, and number of its bytes that were replayed.
    run: usize,
    done: u64,
    /// Number of the next packet.
    position: u64,
    /// Whether the next packet begins an acquisition that does not continue the previous one.
    restarts: bool,
    /// Whether this pass has placed any packet.
    has_brought: bool,
    /// Number of bytes of this pass that were replayed or skipped.
    read: u64,
    playback: Playback,
}

/// Packets of one frame that are replayed together. They begin at the first byte of the current run that was not replayed, and
/// can end in a later run that continues it.
#[derive(Clone, Copy, Debug)]
struct Piece {
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

/// Bytes of a piece that are in one file without interruption.
#[derive(Clone, Debug)]
struct Extent {
    file: usize,
    /// Offset in the file.
    start: u64,
    /// Offsets in the piece.
    range: Range<usize>,
}

impl Extent {
    /// Returns the offset in the file of the byte after the last one.
    const fn end(&self) -> u64 {
        self.start + (self.range.end - self.range.start) as u64
    }
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
            position: 0,
            restarts: false,
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

    /// Starts the run with index `run`, which does not continue the packets of the previous run.
    fn begin_run(&mut self) {
        self.done = 0;
        let Some(run) = self.recording.runs.get(self.run) else {
            return;
        };
        self.restarts |= run.restarts;
        let Some(sequence) = run.sequence else {
            if run.restarts {
                self.position = 0;
            }
            return;
        };
        // Bytes before the first packet that begins in the file cannot be replayed.
        let (first, start) = self.first_packet(run.skipped);
        self.done = (start - run.skipped).min(run.bytes);
        self.read += self.done;
        let frame = sequence.wrapping_mul(self.packets_per_frame());
        self.position = frame.wrapping_add(first.into());
    }

    /// Returns the first packet that does not begin before the byte `skipped` of a frame, and the byte at which it begins. This can
    /// be the first packet of the next frame.
    fn first_packet(&self, skipped: u64) -> (u32, u64) {
        let packets = 0..self.geometry.packets_per_frame;
        let mut starts = packets.map(|i| (i, self.geometry.extent(i).start as u64));
        let next_frame = (
            self.geometry.packets_per_frame,
            self.geometry.frame_bytes as u64,
        );
        starts
            .find(|(_, start)| *start >= skipped)
            .unwrap_or(next_frame)
    }

    /// Returns the index in its frame of the packet at `position`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than `packets_per_frame`, which is a u32"
    )]
    fn index(&self) -> u32 {
        (self.position % self.packets_per_frame()) as u32
    }

    /// Returns the next piece, or `None` at the end of the recording.
    fn piece(&mut self) -> Option<Piece> {
        loop {
            let run = self.recording.runs.get(self.run)?;
            let (first, left) = (self.index(), self.left());
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
            if end > first {
                return Some(Piece {
                    first,
                    end,
                    bytes: extent(end - 1).end - start,
                    frame,
                    time: self.time_of_frame(run, start),
                    clock: run.clock,
                });
            }
            // The last packet of a short frame is incomplete, or no bytes are left.
            if first > 0 && run.sequence.is_some() {
                self.position += self.packets_per_frame() - u64::from(first);
            }
            self.end_run(left);
        }
    }

    /// Returns the number of bytes that follow without interruption; if this is more than a frame, at least the size of a frame.
    fn left(&self) -> u64 {
        let runs = &self.recording.runs;
        let (mut run, mut left) = (self.run, runs[self.run].bytes - self.done);
        while left < self.geometry.frame_bytes as u64 && self.recording.is_joined(run + 1) {
            run += 1;
            left += runs[run].bytes;
        }
        left
    }

    /// Starts the next run that is not joined to the current one, of which the last `left` bytes are not replayed.
    fn end_run(&mut self, left: u64) {
        self.read += left;
        self.run += 1;
        while self.recording.is_joined(self.run) {
            self.run += 1;
        }
        self.begin_run();
        self.playback.set_bytes(self.read);
    }

    /// Moves past `bytes` bytes that were replayed.
    fn advance(&mut self, bytes: u64) {
        self.read += bytes;
        self.done += bytes;
        while self.done >= self.recording.runs[self.run].bytes
            && self.recording.is_joined(self.run + 1)
        {
            self.done -= self.recording.runs[self.run].bytes;
            self.run += 1;
        }
        self.playback.set_bytes(self.read);
    }

    /// Returns the time of the frame whose packet at byte `start` is next in `run`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    fn time_of_frame(&self, run: &Run, start: usize) -> Option<u64> {
        // The frame can begin before the run.
        let since_first = (self.done + run.skipped).saturating_sub(start as u64);
        let frame = since_first / self.geometry.frame_bytes as u64;
        match (run.listed(frame), run.time_ns, self.byte_ns) {
            (Listed::Time(listed), ..) => listed,
            (Listed::Predicted, Some(ns), Some(byte_ns)) => {
                let since_start = (self.done as f64 * byte_ns) as u64;
                let before = (start as f64 * byte_ns).round() as u64;
                Some(ns.saturating_add(since_start).saturating_sub(before))
            }
            (Listed::Predicted, Some(ns), None) if frame == 0 => Some(ns),
            _ => None,
        }
    }

    /// Returns the size of the frame whose packet `first` is next, of a run with `left` more bytes.
    fn frame_size(&self, first: u32, left: u64) -> usize {
        let max = self.geometry.frame_bytes;
        if !self.recording.has_sizes {
            return max;
        }
        let start = self.geometry.extent(first).start;
        usize::try_from(left).map_or(max, |left| start.saturating_add(left).clamp(1, max))
    }

    /// Returns to the start of the recording. Returns false if the recording is played once or is empty.
    fn restart(&mut self, window: &mut ReorderWindow) -> bool {
        if !self.repeats || !self.has_brought {
            return false;
        }
        (self.run, self.position, self.read) = (0, 0, 0);
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
            let frame = self.position / self.packets_per_frame();
            let start = self.geometry.extent(piece.first).start;
            let bytes = frame as f64 * self.geometry.frame_bytes as f64 + start as f64;
            self.byte_ns.map(|ns| (bytes * ns) as u64)
        })
    }

    /// Returns whether the window has a free slot for `piece`.
    fn has_room(&self, batch: &mut Batch<'_>, piece: &Piece) -> bool {
        let first = (piece.first..piece.end).find(|packet| !self.lacks(piece, *packet));
        // All packets of the piece belong to one frame.
        first.is_none_or(|first| {
            let position = self.position + u64::from(first - piece.first);
            batch.has_room(PacketId::of(position), None)
        })
    }

    /// Returns the bytes `range` of the next piece in the files.
    fn extents(&self, range: Range<usize>) -> impl Iterator<Item = Extent> {
        let runs = &self.recording.runs;
        let (mut index, mut done, mut at) = (self.run, self.done, 0);
        std::iter::from_fn(move || {
            while at < range.end {
                let run = runs.get(index)?;
                let end = usize::try_from(run.bytes - done).map_or(usize::MAX, |left| at + left);
                let part = range.start.max(at)..range.end.min(end);
                let start = run.byte_start + done + part.start.saturating_sub(at) as u64;
                (index, done, at) = (index + 1, 0, end);
                if !part.is_empty() {
                    return Some(Extent {
                        file: run.file,
                        start,
                        range: part,
                    });
                }
            }
            None
        })
    }

    /// Returns whether packet `packet` of `piece` is missing. Missing ranges can cover whole samples, so a missing range may overlap
    /// the bytes of a neighbouring packet.
    fn lacks(&self, piece: &Piece, packet: u32) -> bool {
        let start = self.geometry.extent_in(piece.first, piece.frame).start;
        let packet = self.geometry.extent_in(packet, piece.frame);
        let lacking: u64 = self
            .extents(packet.start - start..packet.end - start)
            .map(|extent| self.missing_in(&extent))
            .sum();
        lacking == packet.len() as u64 || lacking >= 2 * self.recording.group as u64
    }

    /// Returns the number of missing bytes in `extent`.
    fn missing_in(&self, extent: &Extent) -> u64 {
        let (from, to) = (extent.start, extent.end());
        let missing = &self.recording.files[extent.file].missing;
        let first = missing.partition_point(|gap| gap.1 <= from);
        let inside = missing[first..].iter().take_while(|gap| gap.0 < to);
        inside.map(|gap| gap.1.min(to) - gap.0.max(from)).sum()
    }

    /// Returns the file and the offset at which the next piece begins.
    fn place(&self) -> (&DataFile, u64) {
        let run = &self.recording.runs[self.run];
        (&self.recording.files[run.file], run.byte_start + self.done)
    }

    /// Returns the kept fields of the frame that contains the next piece.
    fn kept(&self) -> KeptFields {
        let (file, start) = self.place();
        let after = file.kept.partition_point(|(from, ..)| *from <= start);
        match file.kept[..after].last() {
            Some((_, end, fields)) if start < *end => *fields,
            _ => KeptFields::default(),
        }
    }

    /// Returns the recorded flags of the frame that contains the next piece.
    fn flags(&self) -> Flags {
        let (file, start) = self.place();
        let is_in = |ranges: &[(u64, u64)]| {
            let after = ranges.partition_point(|(from, _)| *from <= start);
            ranges[..after].last().is_some_and(|(_, end)| start < *end)
        };
        let flag = |is_set, flag| if is_set { flag } else { Flags(0) };
        flag(is_in(&file.incomplete), Flags::INCOMPLETE)
            .with(flag(is_in(&file.suspect), Flags::SUSPECT))
    }

    fn read(&mut self, piece: &Piece) -> Result<(), SourceError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = self.extents(0..piece.bytes).try_for_each(|extent| {
            self.files[extent.file]
                .read_exact_at(&mut buffer[extent.range.clone()], extent.start)
                .map_err(|why| self.unreadable(&extent, &why))
        });
        self.buffer = buffer;
        read?;
        if let Some(bytes) = self.recording.swap {
            for number in self.buffer[..piece.bytes].chunks_exact_mut(bytes) {
                number.reverse();
            }
        }
        Ok(())
    }

    fn unreadable(&self, extent: &Extent, why: &std::io::Error) -> SourceError {
        let path = self.recording.files[extent.file].path.display().to_string();
        let start = extent.start;
        SourceError::new(path, format!("cannot read the file at byte {start}: {why}"))
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
        let (kept, flags) = (self.kept(), self.flags());
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
        self.advance(piece.bytes as u64);
        Ok(Polled::Busy)
    }
}
