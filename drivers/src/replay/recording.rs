//! The contents of a SigMF recording according to its metadata: runs of packets.

use super::files::find;
use super::keys::{ReplayConfig, Speed};
use crate::packet::keep::name_problems;
use daq_core::config::Problem;
use daq_core::frame::{Clock, KeptFields, MAX_KEPT_FIELDS};
use daq_core::layout::{Order, Samples, Scalar};
use daq_core::sigmf::{
    Capture, LABEL_INCOMPLETE, LABEL_MISSING, LABEL_SUSPECT, Meta, Number, Span, Stream,
};
use daq_core::units::{ByteSize, Frequency};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The label of missing data that the file sink could not list individually.
const UNLISTED: &str = "unlisted";

/// Contiguous samples in one data file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// Index in [`Recording::files`].
    pub file: usize,
    /// Offset in the data file.
    pub byte_start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Number of bytes of the first frame that are not in the file, because the stream began after them.
    pub skipped: u64,
    /// The clock of the times.
    pub clock: Clock,
    /// Number of the first frame; `None` if the run continues the previous run.
    pub sequence: Option<u64>,
    /// Recorded time of the first sample, in nanoseconds.
    pub time_ns: Option<u64>,
    /// Recorded times of the last frames of the run, in nanoseconds; the others follow from `time_ns` and the rate.
    pub times_ns: Vec<Option<u64>>,
    /// Number of frames in the run; 0 if the recording contains no frames.
    pub frames: u64,
    /// Whether the run begins an epoch: it is an acquisition of its own, which does not continue the previous run.
    pub restarts: bool,
}

/// Whether a recording lists the time of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// The time follows from the time of the run and the rate.
    Predicted,
    /// The listed time in nanoseconds; `None` if the frame has no time.
    Time(Option<u64>),
}

impl Run {
    /// Returns whether the time of frame `frame` of the run is listed.
    pub(super) fn listed(&self, frame: u64) -> Listed {
        let first = self.frames.saturating_sub(self.times_ns.len() as u64);
        let index = frame.checked_sub(first).map(usize::try_from);
        let time = index.and_then(|index| self.times_ns.get(index.ok()?));
        time.map_or(Listed::Predicted, |time| Listed::Time(*time))
    }
}

/// A data file and its missing ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DataFile {
    pub path: PathBuf,
    /// Missing ranges that were filled, as `(start, end)` in bytes. The ranges are in ascending order and do not touch each
    /// other.
    pub missing: Vec<(u64, u64)>,
    /// Ranges whose frames have kept fields, as `(start, end, fields)` in bytes, in ascending order.
    pub kept: Vec<(u64, u64, KeptFields)>,
    /// Ranges whose frames were computed from incomplete data, and those whose frames are suspect, as `(start, end)` in bytes, in
    /// ascending order.
    pub incomplete: Vec<(u64, u64)>,
    pub suspect: Vec<(u64, u64)>,
}

/// A recording in one or several files.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub files: Vec<DataFile>,
    pub runs: Vec<Run>,
    /// Size in bytes of one sample of all channels.
    pub group: usize,
    /// Size in bytes of a number, if numbers are big-endian and must be swapped.
    pub swap: Option<usize>,
    /// Whether frames differ in size.
    pub has_sizes: bool,
    pub(super) samples: Samples,
    /// The `daq:` keys of the first file.
    pub(super) stream: Option<Stream>,
    notes: Vec<String>,
}

/// The last frame of the runs that were read so far, and what identifies its epoch.
#[derive(Clone, Copy, Debug)]
struct LastFrame {
    sequence: u64,
    epoch: u32,
    /// Index in [`Recording::files`], and number of the file in its recording.
    file: usize,
    segment: u64,
    /// The first file of the same run of daq.
    first_segment: Option<u64>,
}

impl LastFrame {
    /// Returns whether `first`, the first frame of the next run, begins an epoch. Runs of daq count their epochs from 1, so equal
    /// epochs of two runs are different epochs.
    fn ends_before(&self, first: &Self) -> bool {
        let is_other_recording = first.first_segment.is_some()
            && first.file != self.file
            && first.segment <= self.segment;
        first.epoch != self.epoch
            || first.first_segment != self.first_segment
            || first.sequence <= self.sequence
            || is_other_recording
    }
}

/// The end of the runs that were read so far.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    frame: Option<LastFrame>,
    /// Frequency of the last capture.
    frequency: Option<f64>,
}

impl Recording {
    /// Reads the metadata selected by `config`, relative to `directory`.
    pub(super) fn open(directory: &Path, config: &ReplayConfig) -> Result<Self, Problem> {
        let mut metas = Vec::new();
        for path in &config.path.0 {
            find(&directory.join(path), config.name.as_deref(), &mut metas)?;
        }
        let mut recording: Option<Self> = None;
        let mut end = End::default();
        for path in &metas {
            let meta = Meta::read(path).map_err(|why| {
                Problem::at("path", why.to_string())
                    .help("set a .sigmf-meta file, or a directory that contains such files")
            })?;
            let recording = match &mut recording {
                Some(recording) => {
                    recording.must_match(path, &meta)?;
                    recording
                }
                None => recording.insert(Self::new(path, &meta)?),
            };
            recording.add(path, &meta, &mut end)?;
        }
        recording
            .filter(|recording| !recording.runs.is_empty())
            .ok_or_else(|| {
                Problem::at("path", "the recording contains no samples")
                    .help("set a recording that contains samples")
            })
    }

    fn new(path: &Path, meta: &Meta) -> Result<Self, Problem> {
        check_names(path, meta)?;
        let datatype = meta.global.datatype;
        let scalar = match datatype.number {
            Number::I8 => Scalar::Int8,
            Number::U8 => Scalar::Uint8,
            Number::I16 => Scalar::Int16,
            Number::U16 => Scalar::Uint16,
            Number::I32 => Scalar::Int32,
            Number::U32 => Scalar::Uint32,
            Number::F32 => Scalar::Float32,
            Number::F64 => Scalar::Float64,
        };
        let stream = meta
            .global
            .stream
            .clone()
            .filter(|stream| stream.frame_bytes > 0);
        let group = usize::try_from(meta.group_bytes()).unwrap_or(usize::MAX);
        if group > 1 << 30 {
            let message = format!(
                "{}: one sample of all channels has {group} bytes, but at most 1 GiB is supported",
                path.display()
            );
            return Err(
                Problem::at("path", message).help("correct `core:num_channels` in the metadata")
            );
        }
        Ok(Self {
            files: Vec::new(),
            runs: Vec::new(),
            group,
            swap: datatype.big_endian.then(|| datatype.number.bytes()),
            samples: Samples {
                scalar,
                complex: datatype.complex,
                channels: meta.global.channels,
                order: Order::Interleaved,
                rate: meta.global.sample_rate.map(Frequency),
                ..Samples::default()
            },
            stream,
            has_sizes: false,
            notes: Vec::new(),
        })
    }

    fn must_match(&self, path: &Path, meta: &Meta) -> Result<(), Problem> {
        let shape = |stream: &Option<Stream>| {
            stream
                .as_ref()
                .map(|s| (s.frame_bytes, s.packets_per_frame, s.channels, s.points))
        };
        let sizes = |stream: &Option<Stream>| stream.as_ref().and_then(|s| s.packet_sizes);
        // Earlier versions of daq did not record the sizes.
        let have_equal_packets = |ours, theirs| match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        };
        let other = Self::new(path, meta)?;
        let same = other.samples == self.samples
            && other.kept() == self.kept()
            && other.swap == self.swap
            && shape(&other.stream) == shape(&self.stream)
            && have_equal_packets(sizes(&other.stream), sizes(&self.stream));
        if same {
            return Ok(());
        }
        let message = format!(
            "the sample format or the stream parameters of {} differ from those of the first file",
            path.display()
        );
        Err(Problem::at("path", message)
            .help("use one source for each recording; `name` selects one of several"))
    }

    /// Returns the time at which the runs end that were read so far, in nanoseconds. Returns `None` if no run has a time, or if the
    /// rate is unknown.
    fn end_ns(&self) -> Option<f64> {
        let (byte_ns, mut bytes) = (self.byte_ns()?, 0);
        self.runs.iter().rev().find_map(|run| {
            bytes += run.bytes;
            Some(run.time_ns? as f64 + bytes as f64 * byte_ns)
        })
    }

    /// Returns whether the time of `next` is not the time at which the runs before it end.
    fn has_step(&self, next: &Run) -> bool {
        let Some(time_ns) = next.time_ns else {
            return false;
        };
        let Some((end, byte_ns)) = self.end_ns().zip(self.byte_ns()) else {
            return true;
        };
        (time_ns as f64 - end).abs() > (byte_ns * self.group as f64).max(1000.0)
    }

    /// Returns whether run `index` continues the samples of the run before it, so that a packet can contain samples of both.
    pub(super) fn is_joined(&self, index: usize) -> bool {
        let pair = index
            .checked_sub(1)
            .and_then(|before| self.runs.get(before..=index));
        let is_unnumbered = |run: &Run| run.sequence.is_none();
        pair.is_some_and(|pair| pair.iter().all(is_unnumbered) && !pair[1].restarts)
    }

    /// Returns the numbers of bytes of all runs; runs that continue each other count as one.
    pub(super) fn joined_runs(&self) -> impl Iterator<Item = u64> {
        let mut index = 0;
        std::iter::from_fn(move || {
            let mut bytes = self.runs.get(index)?.bytes;
            index += 1;
            while self.is_joined(index) {
                bytes += self.runs[index].bytes;
                index += 1;
            }
            Some(bytes)
        })
    }

    /// Adds a file after the files that end at `end`.
    fn add(&mut self, path: &Path, meta: &Meta, end: &mut End) -> Result<(), Problem> {
        let data = meta.data_path(path);
        let bytes = std::fs::metadata(&data).map_err(|why| {
            let message = format!("cannot open {}: {why}", data.display());
            Problem::at("path", message).help("keep the data file next to its metadata")
        })?;
        let bytes = bytes.len();
        let spans = meta.spans(bytes);
        self.note_limits(path, meta, &spans, bytes);
        for span in &spans {
            self.add_run(meta, span, end);
        }
        self.files.push(self.annotated(meta, &spans, data));
        Ok(())
    }

    /// Notes which data of a file of `bytes` bytes is not there, or is not described.
    fn note_limits(&mut self, path: &Path, meta: &Meta, spans: &[Span], bytes: u64) {
        if let Some(stream) = &meta.global.stream
            && bytes < stream.bytes
        {
            let data = meta.data_path(path);
            let (data, lacking) = (data.display(), ByteSize(stream.bytes - bytes));
            let last = spans
                .last()
                .and_then(|span| span.bytes.checked_rem(stream.frame_bytes));
            let last = match last {
                None | Some(0) => String::new(),
                Some(rest) => format!(
                    "; its last frame has {rest} of {} bytes, so it is incomplete",
                    stream.frame_bytes
                ),
            };
            self.notes
                .push(format!("{data} is truncated: {lacking} are missing{last}"));
        }
        let mut labels = meta.annotations.iter().map(|note| note.label.as_deref());
        if labels.any(|label| label == Some(UNLISTED)) {
            let path = path.display();
            self.notes.push(format!(
                "{path} does not list all missing data; missing data that is not listed is replayed with its fill bytes"
            ));
        }
    }

    /// Adds the run of the samples `span` of the next file.
    fn add_run(&mut self, meta: &Meta, span: &Span, end: &mut End) {
        let capture = &meta.captures[span.capture];
        let sequence = capture.sequence.filter(|_| self.stream.is_some());
        let time_ns = capture.clock_ns.or_else(|| capture.time_ns());
        let times_ns = capture.times_ns.iter().map(|offset| {
            let offset = (*offset)?;
            time_ns?.checked_add_signed(offset)
        });
        let mut run = Run {
            file: self.files.len(),
            byte_start: span.byte_start,
            bytes: span.bytes,
            sequence,
            skipped: skipped_bytes(capture, self.stream.as_ref(), self.group as u64),
            clock: if capture.time_ns().is_some() {
                Clock::RecordedUtc
            } else {
                Clock::Recorded
            },
            time_ns,
            times_ns: times_ns.collect(),
            frames: capture.frames.unwrap_or(0),
            restarts: false,
        };
        let has_step = self.has_step(&run) || capture.frequency != end.frequency;
        end.frequency = capture.frequency;
        run.restarts = match sequence {
            Some(sequence) => {
                let epoch = capture.epoch.unwrap_or(0);
                self.follow(meta, (sequence, epoch), &run, &mut end.frame)
            }
            None => has_step && !self.runs.is_empty(),
        };
        if !run.restarts && sequence.is_none() {
            self.continue_time(&mut run);
        }
        self.runs.push(run);
    }

    /// Returns whether `run`, whose first frame has the number `sequence` in `epoch`, begins an epoch after the frame `last`.
    fn follow(
        &mut self,
        meta: &Meta,
        (sequence, epoch): (u64, u32),
        run: &Run,
        last: &mut Option<LastFrame>,
    ) -> bool {
        let Some(stream) = &meta.global.stream else {
            return false;
        };
        let first = LastFrame {
            sequence,
            epoch,
            file: run.file,
            segment: stream.segment,
            first_segment: stream.first_segment,
        };
        let begins = last.is_some_and(|last| last.ends_before(&first));
        let continues =
            !begins && last.is_some_and(|last| last.sequence.checked_add(1) == Some(sequence));
        self.has_sizes |= stream.sizes_differ.unwrap_or_else(|| {
            // Earlier versions of daq did not record this. Then the stream goes on after a shorter frame.
            let ends_short =
                |run: &Run| run.skipped == 0 && !run.bytes.is_multiple_of(stream.frame_bytes);
            continues && self.runs.last().is_some_and(ends_short)
        });
        let frames = (run.skipped + run.bytes)
            .div_ceil(stream.frame_bytes)
            .max(1);
        *last = Some(LastFrame {
            sequence: sequence.saturating_add(frames - 1),
            ..first
        });
        begins
    }

    /// Sets the time of `run`, which continues the previous run, if the recording does not contain it.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    fn continue_time(&self, run: &mut Run) {
        if run.time_ns.is_none()
            && let (Some(end), Some(last)) = (self.end_ns(), self.runs.last())
        {
            (run.time_ns, run.clock) = (Some(end as u64), last.clock);
        }
    }

    /// Returns the file `path` with the ranges that its annotations describe.
    fn annotated(&self, meta: &Meta, spans: &[Span], path: PathBuf) -> DataFile {
        let group = self.group as u64;
        // Returns the byte ranges of `count` samples. Samples are converted to bytes span by span, because there may be
        // headers between spans.
        let bytes = |(first, count): (u64, u64)| {
            let end = first.saturating_add(count);
            spans.iter().filter_map(move |span| {
                let start = meta.captures[span.capture]
                    .sample_start
                    .saturating_sub(meta.global.offset);
                let (from, to) = (first.max(start), end.min(start + span.bytes / group));
                let byte = |sample: u64| span.byte_start + (sample - start) * group;
                (from < to).then(|| (byte(from), byte(to)))
            })
        };
        let mut data = DataFile {
            path,
            ..DataFile::default()
        };
        let mut missing = Vec::new();
        for note in &meta.annotations {
            let start = note.sample_start.saturating_sub(meta.global.offset);
            let ranges = || bytes((start, note.sample_count.unwrap_or(u64::MAX)));
            let fields = self.kept_fields(&note.kept);
            if fields.mask() != 0 {
                data.kept
                    .extend(ranges().map(|(from, to)| (from, to, fields)));
            }
            match note.label.as_deref() {
                Some(LABEL_INCOMPLETE) => data.incomplete.extend(ranges()),
                Some(LABEL_SUSPECT) => data.suspect.extend(ranges()),
                Some(LABEL_MISSING) if !note.missing_bytes.is_empty() => {
                    missing.extend(exact(&note.missing_bytes));
                }
                Some(LABEL_MISSING) if note.sample_count.is_some() => missing.extend(ranges()),
                _ => {}
            }
        }
        data.missing = merged(missing);
        data
    }

    /// Returns the names of the fields that the recorded frames keep.
    pub(super) fn kept(&self) -> &[String] {
        let kept = self.stream.as_ref().map_or(&[][..], |stream| &stream.kept);
        &kept[..kept.len().min(MAX_KEPT_FIELDS)]
    }

    /// Returns the fields with the recorded `values`.
    fn kept_fields(&self, values: &BTreeMap<String, u64>) -> KeptFields {
        let mut fields = KeptFields::default();
        for (i, name) in self.kept().iter().enumerate() {
            if let Some(value) = values.get(name) {
                fields.set(i, *value);
            }
        }
        fields
    }

    /// Returns the duration of one byte in nanoseconds, if the rate of samples or of frames of equal size is known.
    pub(super) fn byte_ns(&self) -> Option<f64> {
        if let Some(rate) = self.samples.rate {
            return Some(1e9 / rate.0 / self.group as f64);
        }
        // Spectra, and channels one after the other, have no `core:sample_rate`.
        let stream = self.stream.as_ref().filter(|_| !self.has_sizes)?;
        let rate = stream.frame_rate.filter(|rate| *rate > 0.0)?;
        Some(1e9 / rate / stream.frame_bytes as f64)
    }

    /// Returns notes for the plan.
    pub(super) fn notes(&self, speed: Speed) -> Vec<String> {
        let mut notes = self.notes.clone();
        let is_timed =
            self.samples.rate.is_some() || self.runs.iter().any(|run| run.time_ns.is_some());
        if speed != Speed::Free && !is_timed {
            notes.push(
                "the recording contains no times, so it is replayed as fast as possible".to_owned(),
            );
        }
        let rest = self.rest();
        if rest > 0 {
            let rest = ByteSize(rest);
            notes.push(format!(
                "the last {rest} do not fill a packet and are not replayed"
            ));
        }
        notes
    }
}

/// Returns the number of bytes before the first sample of `capture` in its frame, as `core:global_index` shows.
fn skipped_bytes(capture: &Capture, stream: Option<&Stream>, group: u64) -> u64 {
    let skipped = stream.and_then(|stream| {
        let frame_samples = stream.frame_bytes / group;
        let start = capture.sequence?.checked_mul(frame_samples)?;
        let skipped = capture.global_index?.checked_sub(start)?;
        Some(skipped).filter(|skipped| *skipped < frame_samples)
    });
    skipped.unwrap_or(0) * group
}

/// Returns the ranges that the annotation `missing_bytes` lists, as `(start, end)`.
fn exact(missing_bytes: &[[u64; 2]]) -> impl Iterator<Item = (u64, u64)> {
    let range = |[first, count]: &[u64; 2]| (*first, first.saturating_add(*count));
    missing_bytes.iter().map(range)
}

/// Returns `ranges` in ascending order. Ranges that touch or overlap become one.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match merged.last_mut() {
            Some(before) if before.1 >= from => before.1 = before.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Checks the names of kept fields, which become names of files in some sinks.
fn check_names(path: &Path, meta: &Meta) -> Result<(), Problem> {
    let stream = meta.global.stream.as_ref();
    let names = stream.map_or(&[][..], |stream| &stream.kept);
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    match name_problems(&names, |_| String::new()).first() {
        None => Ok(()),
        Some(problem) => {
            let message = format!("{}: `daq:kept`: {}", path.display(), problem.message);
            Err(Problem::at("path", message).help("correct `daq:kept` in the metadata"))
        }
    }
}
