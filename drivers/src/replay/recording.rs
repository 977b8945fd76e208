//! The contents of a SigMF recording according to its metadata: runs of packets.

use super::config::{ReplayConfig, Speed};
use crate::packet::keep::name_problems;
use daq_core::config::Problem;
use daq_core::frame::{Clock, KeptFields, MAX_KEPT_FIELDS};
use daq_core::layout::{Axis, Layout, Order, Samples, Scalar};
use daq_core::reorder::{CLOSE_AFTER, Geometry, Numbering};
use daq_core::sigmf::{Capture, LABEL_INCOMPLETE, LABEL_SUSPECT, Meta, Number, Stream};
use daq_core::units::{ByteSize, Frequency};
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Approximate slot size in bytes for recordings without frames.
const DEFAULT_SLOT: usize = 1 << 20;
/// Maximum packet size in bytes for recordings without packets, unless a sample is larger.
const MAX_PACKET: usize = 8 << 10;
/// Minimum packet size in bytes; smaller packets that divide the data evenly would be too slow.
const MIN_PACKET: usize = 64;
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
    /// Whether the run is an acquisition of its own, which does not continue the previous run.
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
    samples: Samples,
    /// The `daq:` keys of the first file.
    stream: Option<Stream>,
    /// Maximum number of frames missing in a row.
    longest_gap: u64,
    notes: Vec<String>,
}

impl Recording {
    /// Reads the metadata selected by `config`, relative to `directory`.
    pub(super) fn open(directory: &Path, config: &ReplayConfig) -> Result<Self, Problem> {
        let mut metas = Vec::new();
        for path in &config.path.0 {
            find(&directory.join(path), config.name.as_deref(), &mut metas)?;
        }
        let mut recording: Option<Self> = None;
        let (mut last, mut frequency) = (None, None);
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
            recording.add(path, &meta, (&mut last, &mut frequency))?;
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
            longest_gap: 0,
            notes: Vec::new(),
        })
    }

    fn must_match(&self, path: &Path, meta: &Meta) -> Result<(), Problem> {
        let shape = |stream: &Option<Stream>| {
            stream
                .as_ref()
                .map(|s| (s.frame_bytes, s.packets_per_frame, s.channels, s.points))
        };
        let other = Self::new(path, meta)?;
        let same = other.samples == self.samples
            && other.kept() == self.kept()
            && other.swap == self.swap
            && shape(&other.stream) == shape(&self.stream);
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

    /// Returns whether the time of `next` is not the time at which the runs before it end.
    fn restarts(&self, next: &Run) -> bool {
        let Some(time_ns) = next.time_ns else {
            return false;
        };
        let mut bytes = 0;
        for run in self.runs.iter().rev() {
            bytes += run.bytes;
            if let Some(start) = run.time_ns {
                let Some(byte_ns) = self.byte_ns() else {
                    return true;
                };
                let end = start as f64 + bytes as f64 * byte_ns;
                return (time_ns as f64 - end).abs() > (byte_ns * self.group as f64).max(1000.0);
            }
        }
        true
    }

    /// Adds a file. `last` is the frame number and the epoch at the end of the previous file, and `frequency` the frequency of
    /// its last capture.
    fn add(
        &mut self,
        path: &Path,
        meta: &Meta,
        (last, frequency): (&mut Option<(u64, u32)>, &mut Option<f64>),
    ) -> Result<(), Problem> {
        let data = meta.data_path(path);
        let bytes = std::fs::metadata(&data).map_err(|why| {
            let message = format!("cannot open {}: {why}", data.display());
            Problem::at("path", message).help("keep the data file next to its metadata")
        })?;
        let bytes = bytes.len();
        let spans = meta.spans(bytes);
        if let Some(stream) = &meta.global.stream
            && bytes < stream.bytes
        {
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
        if meta
            .annotations
            .iter()
            .any(|note| note.label.as_deref() == Some(UNLISTED))
        {
            let path = path.display();
            self.notes.push(format!(
                "{path} does not list all missing data; missing data that is not listed is replayed with its fill bytes"
            ));
        }
        let file = self.files.len();
        let group = self.group as u64;
        for span in &spans {
            let capture = &meta.captures[span.capture];
            let sequence = capture.sequence.filter(|_| self.stream.is_some());
            let time_ns = capture.clock_ns.or_else(|| capture.time_ns());
            if let (Some(stream), Some(sequence)) = (&self.stream, sequence) {
                let (epoch, frames) = (
                    capture.epoch.unwrap_or(0),
                    span.bytes.div_ceil(stream.frame_bytes),
                );
                if let Some((before, same)) = *last
                    && same == epoch
                    && sequence > before
                {
                    self.longest_gap = self.longest_gap.max(sequence - before - 1);
                    // The stream goes on after a shorter frame.
                    let ends_short = |run: &Run| {
                        run.skipped == 0 && !run.bytes.is_multiple_of(stream.frame_bytes)
                    };
                    self.has_sizes |=
                        sequence == before + 1 && self.runs.last().is_some_and(ends_short);
                }
                *last = Some((sequence.saturating_add(frames.max(1) - 1), epoch));
            }
            let times_ns = capture.times_ns.iter().map(|offset| {
                let offset = (*offset)?;
                time_ns?.checked_add_signed(offset)
            });
            let run = Run {
                file,
                byte_start: span.byte_start,
                bytes: span.bytes,
                sequence,
                skipped: skipped_bytes(capture, self.stream.as_ref(), group),
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
            let restarts = self.restarts(&run) || capture.frequency != *frequency;
            let is_first = self.runs.is_empty();
            *frequency = capture.frequency;
            self.runs.push(Run {
                restarts: restarts && sequence.is_none() && !is_first,
                ..run
            });
        }
        self.files.push(DataFile {
            path: data,
            ..DataFile::default()
        });
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
        for note in &meta.annotations {
            let fields = self.kept_fields(&note.kept);
            if fields.mask() != 0 {
                let start = note.sample_start.saturating_sub(meta.global.offset);
                let samples = (start, note.sample_count.unwrap_or(u64::MAX));
                let ranges = bytes(samples).map(|(from, to)| (from, to, fields));
                self.files[file].kept.extend(ranges);
            }
        }
        for note in &meta.annotations {
            let data = &mut self.files[file];
            let flagged = match note.label.as_deref() {
                Some(LABEL_INCOMPLETE) => &mut data.incomplete,
                Some(LABEL_SUSPECT) => &mut data.suspect,
                _ => continue,
            };
            let start = note.sample_start.saturating_sub(meta.global.offset);
            flagged.extend(bytes((start, note.sample_count.unwrap_or(u64::MAX))));
        }
        let mut missing: Vec<(u64, u64)> = meta.missing().flat_map(bytes).collect();
        missing.sort_unstable();
        let merged = &mut self.files[file].missing;
        for (from, to) in missing {
            match merged.last_mut() {
                Some(before) if before.1 >= from => before.1 = before.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Ok(())
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

    /// Returns the size in bytes of a recorded frame, if the recording contains frames.
    fn frame_bytes(&self) -> Option<usize> {
        self.stream
            .as_ref()
            .map(|stream| usize::try_from(stream.frame_bytes).unwrap_or(usize::MAX))
    }

    /// Returns the packet size for recordings without packets. It is the largest size that divides every run evenly,
    /// unless that results in too many packets.
    fn packet_bytes(&self, max: usize) -> usize {
        let common = self
            .runs
            .iter()
            .fold(0, |common, run| gcd(common, run.bytes / self.group as u64));
        let common = usize::try_from(common).unwrap_or(usize::MAX).max(1);
        let max = (max.min(MAX_PACKET) / self.group).max(1);
        let min = MIN_PACKET.div_ceil(self.group).min(max);
        (min..=max)
            .rev()
            .find(|groups| common.is_multiple_of(*groups))
            .unwrap_or(max)
            * self.group
    }

    pub(super) fn preferred_slot(&self) -> usize {
        self.frame_bytes().unwrap_or_else(|| {
            let packet = self.packet_bytes(DEFAULT_SLOT);
            (DEFAULT_SLOT / packet).max(1) * packet
        })
    }

    pub(super) fn geometry(&self, slot: usize) -> Result<Geometry, Problem> {
        let too_small = |bytes: usize, what: &str| {
            let (bytes, slot) = (ByteSize(bytes as u64), ByteSize(slot as u64));
            let message = format!("{what} of {bytes} does not fit into slots of {slot}");
            Problem::at("path", message)
                .help(format!("set `slot = \"{bytes}\"` in the ring's section"))
        };
        let (frame_bytes, packet_bytes) = if let Some(frame_bytes) = self.frame_bytes() {
            if frame_bytes > slot {
                return Err(too_small(frame_bytes, "a recorded frame"));
            }
            let packets_per_frame =
                self.stream
                    .as_ref()
                    .map_or(0, |stream| stream.packets_per_frame) as usize;
            let packet = if packets_per_frame > 0 {
                frame_bytes.div_ceil(packets_per_frame)
            } else {
                self.packet_bytes(frame_bytes)
            };
            (frame_bytes, packet)
        } else {
            if self.group > slot {
                return Err(too_small(self.group, "a sample"));
            }
            let packet = self.packet_bytes(slot);
            (slot / packet * packet, packet)
        };
        let packets_per_frame =
            u32::try_from(frame_bytes.div_ceil(packet_bytes)).unwrap_or(u32::MAX);
        Ok(Geometry {
            packets_per_frame,
            parts: 1,
            first_bytes: if packets_per_frame == 1 {
                frame_bytes
            } else {
                packet_bytes
            },
            packet_bytes,
            frame_bytes,
            numbering: Numbering::PLAIN,
            // A recording is in order and all its numbers are valid, so one open frame is sufficient.
            window: 1,
            max_gap: self
                .longest_gap
                .saturating_add(1)
                .saturating_mul(u64::from(packets_per_frame))
                .min(1 << 48),
            resync_after: 1,
            close_after: CLOSE_AFTER,
            // Each piece has the timestamp of its first packet, even if that packet is missing.
            frame_ns: 0,
            declared_ns: 0,
        })
    }

    pub(super) fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        let stream = self.stream.as_ref();
        if let Some((stream, points)) = stream.and_then(|stream| Some((stream, stream.points?))) {
            let layout = Layout {
                scalar: self.samples.scalar,
                complex: self.samples.complex,
                channels: stream.channels.unwrap_or(1).max(1),
                points: usize::try_from(points).unwrap_or(0),
                order: if stream.order.as_deref() == Some("planar") {
                    Order::Planar
                } else {
                    Order::Interleaved
                },
                axis: axis(stream.axis.as_ref()),
                frame_rate: None,
            };
            let whole = layout
                .sample_bytes()
                .and_then(|sample| sample.checked_mul(layout.channels as usize));
            if whole.and_then(|whole| whole.checked_mul(layout.points)) == Some(bytes) {
                return Ok(layout);
            }
            let message = format!(
                "frames of {bytes} bytes do not match the channels and points in the metadata"
            );
            return Err(Problem::at("path", message)
                .help("correct `daq:channels` or `daq:points` in the metadata"));
        }
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!(
                "recorded frames of {bytes} bytes are not a whole number of samples of all channels: {rest} bytes are \
                 left over"
            );
            Problem::at("path", message).help("correct `daq:frame_bytes` in the metadata")
        })
    }

    /// Returns the duration of one byte of samples in nanoseconds, if the rate is known.
    pub(super) fn byte_ns(&self) -> Option<f64> {
        let rate = self.samples.rate?.0;
        Some(1e9 / rate / self.group as f64)
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
        if self.stream.is_none() {
            let packet = self.packet_bytes(DEFAULT_SLOT) as u64;
            let rest = self.runs.iter().map(|run| run.bytes % packet).sum::<u64>();
            if rest > 0 {
                let rest = ByteSize(rest);
                notes.push(format!(
                    "the last {rest} do not fill a packet and are not replayed"
                ));
            }
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

/// Appends the metadata files of `path` to `metas`, in order.
fn find(path: &Path, name: Option<&str>, metas: &mut Vec<PathBuf>) -> Result<(), Problem> {
    if !path.is_dir() {
        let meta = path.with_extension("sigmf-meta");
        if !path.exists() && !meta.exists() {
            let message = format!("{} does not exist", path.display());
            return Err(Problem::at("path", message)
                .help("correct `path`; relative paths start from the working directory"));
        }
        metas.push(meta);
        return Ok(());
    }
    let unreadable = |why: std::io::Error| {
        let message = format!("cannot read the directory {}: {why}", path.display());
        Problem::at("path", message).help("set a readable directory")
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        if entry
            .extension()
            .is_some_and(|extension| extension == "sigmf-meta")
        {
            found.push(entry);
        }
    }
    found.sort();
    let stems: BTreeSet<String> = found.iter().map(|path| stem(path)).collect();
    let list = || {
        stems
            .iter()
            .map(|stem| format!("\"{stem}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(name) = name {
        found.retain(|path| stem(path) == name);
        if found.is_empty() && !stems.is_empty() {
            let message = format!("{} contains no recording \"{name}\"", path.display());
            return Err(
                Problem::at("name", message).help(format!("available recordings: {}", list()))
            );
        }
    } else if stems.len() > 1 {
        let message = format!("{} contains {} recordings", path.display(), stems.len());
        return Err(
            Problem::at("path", message).help(format!("select one with `name`: {}", list()))
        );
    }
    if found.is_empty() {
        let message = format!("no .sigmf-meta file in {}", path.display());
        return Err(Problem::at("path", message)
            .help("set the directory of a recording, or a capture file"));
    }
    metas.append(&mut found);
    Ok(())
}

/// Returns the common start of the names of a recording's segments: everything before the number.
fn stem(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = stem.len() < name.len();
    let stem = stem
        .strip_suffix(['-', '_', '.'])
        .filter(|stem| numbered && !stem.is_empty());
    stem.unwrap_or(&name).to_owned()
}

/// Returns the axis that the metadata describe.
fn axis(value: Option<&Value>) -> Axis {
    let axis = value.and_then(|value| Axis::deserialize(value).ok());
    axis.unwrap_or(Axis::Time { rate: None })
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
