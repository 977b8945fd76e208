//! Collects captures, annotations and totals while a segment is written.

use super::kept::Kept;
use super::ranges::{Listed as ListedBytes, Ranges};
use super::recording::{Moment, Record, Recording, Tuning, nanoseconds, nanoseconds_of};
use super::times::{Listed, MAX_TIMES, TimeClass, Times};
use daq_core::frame::{KeptFields, PacketSizes};
use daq_core::sigmf::{
    Annotation, Capture, Extension, Global, LABEL_GAP, LABEL_INCOMPLETE, LABEL_MISSING,
    LABEL_SUSPECT, MAX_INTEGER, Meta, NAMESPACE, NAMESPACE_VERSION, SPECIFICATION, Stream,
};
use daq_core::units::counted;
use daq_core::units::format_datetime;

/// Maximum number of captures in a segment's metadata.
pub const MAX_CAPTURES: usize = 10_000;

/// Maximum number of annotations in a segment's metadata, not counting the annotation for unlisted entries.
pub const MAX_ANNOTATIONS: usize = 10_000;

/// Maximum number of annotations of a frame besides those of its missing packets: for suspect data, for incomplete data and for
/// lost frames.
const OTHER_NOTES: usize = 3;

/// Maximum number of bytes of one capture or annotation in the metadata text.
const ENTRY_BYTES: u64 = 640;

/// Maximum number of bytes of all other parts of the metadata text, without the texts of the recording.
const GLOBAL_BYTES: u64 = 8 << 10;

/// Label of the annotation that summarises all unlisted entries.
pub const LABEL_UNLISTED: &str = "unlisted";

/// Cause of samples that are missing before the start or after the end of the stream.
pub const CAUSE_TRUNCATED: &str = "truncated";

/// A run of continuous frames.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    first: Record,
    /// Time of the run's first sample, derived from the first frame that has a time.
    moment: Option<Moment>,
    frames: u64,
    lost: u64,
    /// Times of frames that do not follow from `moment` and the rate.
    listed: Option<Listed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Missing,
    Truncated,
    Suspect,
    Incomplete,
    Lost { frames: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Note {
    kind: Kind,
    start: u64,
    count: u64,
    cause: Option<&'static str>,
    merged: u64,
    /// The missing packets, if they do not end where samples end.
    bytes: Option<ListedBytes>,
}

/// Number and extent of the entries that did not fit into the lists.
#[derive(Clone, Copy, Debug, Default)]
struct Unlisted {
    start: u64,
    end: u64,
    notes: u64,
    runs: u64,
    samples: u64,
    frames: u64,
}

impl Unlisted {
    fn is_empty(&self) -> bool {
        self.notes == 0 && self.runs == 0
    }

    fn cover(&mut self, start: u64, count: u64) {
        if self.is_empty() {
            self.start = start;
        }
        self.end = self.end.max(start + count);
    }
}

/// Collects the metadata of segments, one after another.
#[derive(Debug)]
pub struct MetaBuilder {
    pub(super) recording: Recording,
    pub(super) group: u64,
    /// Maximum number of bytes of the part of the text that is the same for all segments.
    global_bytes: u64,
    segment: u64,
    /// The first segment of this run of daq.
    first_segment: Option<u64>,
    max_runs: usize,
    runs: Vec<Run>,
    max_notes: usize,
    notes: Vec<Note>,
    kept: Kept,
    times: Times,
    ranges: Ranges,
    unlisted: Unlisted,
    bytes: u64,
    frames: u64,
    missing_samples: u64,
    missing_frames: u64,
    /// Whether a frame of this recording had fewer bytes than `frame_bytes`.
    sizes_differ: bool,
    /// Index of the sample after the last missing sample.
    missing_end: u64,
    /// The last frame that was written, in this or an earlier segment.
    last: Option<Record>,
    /// Whether no frame of this segment was written yet.
    fresh: bool,
}

impl MetaBuilder {
    /// Creates a builder for the segments of `recording`. Allocates all memory that the other methods use, except
    /// [`build`](Self::build).
    pub fn new(recording: Recording) -> Self {
        Self::with_limits(recording, MAX_CAPTURES, MAX_ANNOTATIONS)
    }

    /// Same as [`new`](Self::new), with a maximum number of `captures` and `annotations`.
    pub fn with_limits(recording: Recording, captures: usize, annotations: usize) -> Self {
        let group = (recording.datatype.bytes() as u64 * u64::from(recording.channels)).max(1);
        let texts = [&recording.description, &recording.hardware];
        let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
        let axis = recording.table.as_ref();
        let axis = axis.map_or(0, |table| table.axis.to_string().len());
        // JSON encodes a control character with six bytes, and a number on its own line with twelve additional bytes.
        let texts = 6 * (texts + recording.source.len()) + 8 * axis;
        let kept = recording.kept.iter().map(|name| name.len() + 24);
        let texts = texts + kept.sum::<usize>();
        Self {
            kept: Kept::new(&recording.kept),
            times: Times::new(captures / 2),
            ranges: Ranges::new(),
            recording,
            group,
            global_bytes: GLOBAL_BYTES + texts as u64,
            segment: 0,
            first_segment: None,
            max_runs: captures,
            runs: Vec::with_capacity(captures),
            max_notes: annotations,
            notes: Vec::with_capacity(annotations),
            unlisted: Unlisted::default(),
            bytes: 0,
            frames: 0,
            missing_samples: 0,
            missing_frames: 0,
            sizes_differ: false,
            missing_end: 0,
            last: None,
            fresh: true,
        }
    }

    /// Returns the number of bytes of memory that a builder from [`new`](Self::new) uses for frames with the kept fields `kept`.
    pub fn memory(kept: &[String]) -> usize {
        MAX_CAPTURES * size_of::<Run>()
            + MAX_ANNOTATIONS * size_of::<Note>()
            + MAX_TIMES * size_of::<i64>()
            + Ranges::memory()
            + Kept::memory(kept)
    }

    /// Starts segment number `segment`. The builder remembers the last frame, so frames lost between two segments are
    /// recorded in the second segment.
    pub fn begin(&mut self, segment: u64) {
        self.segment = segment;
        self.first_segment.get_or_insert(segment);
        self.runs.clear();
        self.notes.clear();
        self.kept.clear();
        self.times.clear();
        self.ranges.clear();
        self.unlisted = Unlisted::default();
        self.bytes = 0;
        self.frames = 0;
        self.missing_samples = 0;
        self.missing_frames = 0;
        self.missing_end = 0;
        self.fresh = true;
    }

    /// Returns the settings of the receiver in the kept fields of a frame.
    pub fn tuning(&self, kept: &KeptFields) -> Tuning {
        Tuning::of(&self.recording.kept, kept)
    }

    /// Returns the number of bytes of a short frame that can be written: the largest part of `bytes` that consists of
    /// whole samples of all channels.
    pub fn whole(&self, bytes: u64) -> u64 {
        bytes / self.group * self.group
    }

    /// Records a written frame. `missing` contains the frame's missing packets as ascending pairs of the first packet
    /// and the number of packets. Allocates nothing.
    pub fn frame(&mut self, record: &Record, missing: impl IntoIterator<Item = (u32, u32)>) {
        if std::mem::take(&mut self.recording.detects_sizes) && record.packet_sizes.rest > 0 {
            self.detect_sizes(record);
        }
        self.sizes_differ |= record.frame_bytes() < self.whole(self.recording.frame_bytes);
        let record = &self.with_time_of_first_sample(record);
        let start = self.bytes / self.group;
        let samples = record.bytes / self.group;
        let lost = match &self.last {
            Some(last) if last.epoch == record.epoch => record
                .sequence
                .saturating_sub(last.sequence)
                .saturating_sub(1),
            _ => 0,
        };
        if lost > 0 {
            self.missing_frames = self.missing_frames.saturating_add(lost);
            self.note(Kind::Lost { frames: lost }, start, 0, record.cause);
        }
        let follows = self.last.as_ref().is_some_and(|last| {
            !self.fresh
                && !record.restart
                && last.epoch == record.epoch
                && last.sequence.checked_add(1) == Some(record.sequence)
                && last.tuning == record.tuning
                && last.bytes == self.recording.frame_bytes
        });
        let class = match self.runs.last() {
            Some(run) if follows && self.unlisted.runs == 0 => {
                let capture = (run.moment, run.frames, run.listed);
                self.times.classify(&self.recording, capture, record.moment)
            }
            _ => TimeClass::Predicted,
        };
        let follows = follows && class != TimeClass::Step;
        if follows && self.unlisted.runs > 0 {
            self.unlisted.end = start + samples;
        } else if let Some(run) = self.runs.last_mut().filter(|_| follows) {
            if run.moment.is_none() {
                let before = nanoseconds(run.frames, self.recording.frame_ns());
                run.moment = record.moment.map(|moment| Moment {
                    ns: moment.ns.saturating_sub(before),
                    ..moment
                });
            }
            if class == TimeClass::Listed {
                self.times.list(&mut run.listed, run.moment, record.moment);
            }
            run.frames += 1;
        } else if self.runs.len() < self.max_runs {
            self.runs.push(Run {
                start,
                first: *record,
                moment: record.moment,
                frames: 1,
                lost,
                listed: None,
            });
        } else {
            self.unlisted.cover(start, samples);
            self.unlisted.runs += 1;
        }
        if record.suspect {
            self.note(Kind::Suspect, start, samples, None);
        }
        if record.incomplete {
            self.note(Kind::Incomplete, start, samples, None);
        }
        let mut begins = false;
        for (first, count) in missing {
            let kind = if record.truncates(first, count, begins) {
                begins = first == 0;
                Kind::Truncated
            } else {
                Kind::Missing
            };
            self.note_packets(record, kind, (first, count));
        }
        self.bytes += record.bytes;
        self.frames += 1;
        self.fresh = false;
        self.last = Some(*record);
    }

    /// Annotates the `count` missing packets from packet `first` of the frame that is written next.
    fn note_packets(&mut self, record: &Record, kind: Kind, (first, count): (u32, u32)) {
        let sizes = self.packet_sizes(record);
        let byte = |packet: u32| {
            let at = sizes.offset(packet, record.packets_per_frame, record.frame_bytes());
            self.bytes + at.saturating_sub(record.trimmed.0).min(record.bytes)
        };
        let bytes = (byte(first), byte(first.saturating_add(count)));
        let samples = (bytes.0 / self.group, bytes.1.div_ceil(self.group));
        if samples.0 == samples.1 {
            return;
        }
        let (notes, before) = (self.notes.len(), self.missing_end);
        let cause = (kind == Kind::Truncated).then_some(CAUSE_TRUNCATED);
        self.note(kind, samples.0, samples.1 - samples.0, cause);
        if self.unlisted.notes > 0 {
            return;
        }
        let is_merged = self.notes.len() == notes;
        // If the packets begin inside a sample that is missing already, the last annotation contains this sample.
        let Some(note) = self.notes.last_mut() else {
            return;
        };
        let ends_with_samples = [bytes.0, bytes.1]
            .iter()
            .all(|byte| byte.is_multiple_of(self.group));
        if note.bytes.is_none() && ends_with_samples {
            return;
        }
        if note.bytes.is_none() && is_merged {
            let earlier = (note.start * self.group, before * self.group);
            self.ranges.push(&mut note.bytes, earlier);
        }
        self.ranges.push(&mut note.bytes, bytes);
    }

    /// Returns the sizes of the packets of a frame.
    pub(super) const fn packet_sizes(&self, record: &Record) -> PacketSizes {
        match record.packet_sizes.rest {
            0 => self.recording.packet_sizes,
            _ => record.packet_sizes,
        }
    }

    /// Returns `record` with the time of the first sample that was written. Without a rate, the time of a frame is that of its
    /// first packet that arrived, so it is already that of the first sample of the stream.
    fn with_time_of_first_sample(&self, record: &Record) -> Record {
        let samples = (record.trimmed.0 / self.group) as f64;
        let frames = samples / self.recording.frame_samples().max(1) as f64;
        let trimmed_ns = nanoseconds_of(frames, self.recording.frame_ns());
        Record {
            moment: record.moment.map(|moment| Moment {
                ns: moment.ns.saturating_add(trimmed_ns),
                ..moment
            }),
            ..*record
        }
    }

    /// Records the kept fields of the frame that was recorded last. Allocates nothing.
    pub fn keep(&mut self, fields: &KeptFields) {
        if let Some(last) = &self.last {
            let samples = last.bytes / self.group;
            let end = self.bytes / self.group;
            self.kept.add(end - samples, samples, fields);
        }
    }

    /// Returns whether the segment must end, because its metadata may have no room for another frame with `spans` spans of missing
    /// packets: for its capture, its annotations, its kept fields or its time.
    pub fn is_full(&self, spans: usize) -> bool {
        self.kept.is_full()
            || self.times.is_full()
            || self.ranges.is_full(spans)
            || self.runs.len() == self.max_runs
            || self.notes.len() + spans + OTHER_NOTES > self.max_notes
    }

    /// Sets the packet sizes from the first frame.
    fn detect_sizes(&mut self, first: &Record) {
        let recording = &mut self.recording;
        recording.packet_sizes = first.packet_sizes;
        let is_whole = recording.is_layout_maximum || first.frame_bytes() == recording.frame_bytes;
        recording.packets_per_frame = if is_whole {
            first.packets_per_frame
        } else {
            // The first frame may be smaller than others, and then has fewer packets.
            packets_in(first.packet_sizes, recording.frame_bytes)
        };
        // Frames of different sizes are at most as large as the layout.
        if !recording.is_layout_maximum {
            return;
        }
        recording.frame_bytes = first.frame_bytes();
        if let Some(table) = &mut recording.table {
            let point = recording.datatype.bytes() as u64 * u64::from(table.channels.max(1));
            table.points = first.frame_bytes() / point.max(1);
        }
    }

    fn note(&mut self, kind: Kind, mut start: u64, mut count: u64, cause: Option<&'static str>) {
        if matches!(kind, Kind::Missing | Kind::Truncated) {
            // Two packets may share a sample, which must count as missing only once.
            let from = start.max(self.missing_end);
            count = (start + count).saturating_sub(from);
            start = from;
            if count == 0 {
                return;
            }
            self.missing_end = start + count;
            if kind == Kind::Missing {
                self.missing_samples += count;
            }
        }
        let touches = |note: &&mut Note| {
            !matches!(kind, Kind::Lost { .. })
                && (note.kind, note.cause, note.start + note.count) == (kind, cause, start)
        };
        // After the first unlisted annotation, the last listed annotation is no longer adjacent.
        let neighbour = if self.unlisted.notes == 0 {
            self.notes.last_mut().filter(touches)
        } else {
            None
        };
        if let Some(note) = neighbour {
            note.count += count;
            note.merged += 1;
        } else if self.notes.len() < self.max_notes {
            self.notes.push(Note {
                kind,
                start,
                count,
                cause,
                merged: 1,
                bytes: None,
            });
        } else {
            self.unlisted.cover(start, count);
            self.unlisted.notes += 1;
            match kind {
                Kind::Missing => self.unlisted.samples += count,
                Kind::Lost { frames } => {
                    self.unlisted.frames = self.unlisted.frames.saturating_add(frames);
                }
                Kind::Truncated | Kind::Suspect | Kind::Incomplete => {}
            }
        }
    }

    /// Returns the maximum number of bytes of the metadata text after one more frame with `spans` spans of missing
    /// packets.
    pub fn json_bytes(&self, spans: usize) -> u64 {
        // The frame may add one capture.
        let captures = (self.runs.len() + 1).min(self.max_runs);
        let annotations = (self.notes.len() + spans + OTHER_NOTES).min(self.max_notes) + 1;
        (captures + annotations) as u64 * ENTRY_BYTES
            + self.times.json_bytes()
            + self.ranges.json_bytes(spans)
            + self.kept.json_bytes()
            + self.global_bytes
    }

    /// Returns the number of bytes of the frames recorded for this segment.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of frames recorded for this segment.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the metadata of the frames recorded since [`begin`](Self::begin).
    pub fn build(&self) -> Meta {
        let recording = &self.recording;
        let table = recording.table.as_ref();
        let mut captures: Vec<Capture> = self.runs.iter().map(|run| self.capture(run)).collect();
        if captures.is_empty() {
            captures.push(Capture::default());
        }
        let annotation = |note: &Note| Annotation {
            missing_bytes: note
                .bytes
                .map_or_else(Vec::new, |bytes| self.ranges.of(bytes)),
            ..note.annotation()
        };
        let mut annotations: Vec<Annotation> = self.notes.iter().map(annotation).collect();
        if !self.unlisted.is_empty() {
            annotations.push(self.unlisted.annotation());
        }
        annotations.extend(self.kept.annotations());
        annotations.sort_by_key(|annotation| annotation.sample_start);
        Meta {
            global: Global {
                datatype: recording.datatype,
                version: SPECIFICATION.into(),
                // The SigMF specification requires a rate above 0 and up to 1 THz.
                sample_rate: recording
                    .sample_rate
                    .filter(|rate| *rate > 0.0 && *rate <= 1e12),
                channels: recording.channels,
                offset: 0,
                dataset: None,
                trailing_bytes: 0,
                recorder: Some(concat!("daq ", env!("CARGO_PKG_VERSION")).into()),
                description: recording.description.clone(),
                author: None,
                hardware: recording.hardware.clone(),
                extensions: vec![Extension {
                    name: NAMESPACE.into(),
                    version: NAMESPACE_VERSION.into(),
                    optional: true,
                }],
                stream: Some(Stream {
                    bytes: self.bytes,
                    frames: self.frames,
                    frame_bytes: recording.frame_bytes,
                    packets_per_frame: recording.packets_per_frame,
                    packet_sizes: (recording.packet_sizes.rest > 0)
                        .then_some(recording.packet_sizes),
                    sizes_differ: Some(self.sizes_differ),
                    segment: self.segment,
                    first_segment: self.first_segment,
                    source: Some(recording.source.clone()),
                    missing_samples: self.missing_samples,
                    missing_frames: self.missing_frames,
                    channels: table.map(|table| table.channels),
                    points: table.map(|table| table.points),
                    order: table.map(|table| table.order.into()),
                    axis: table.map(|table| table.axis.clone()),
                    // JSON cannot represent infinity and NaN.
                    frame_rate: table
                        .and_then(|table| table.frame_rate)
                        .filter(|rate| rate.is_finite()),
                    kept: recording.kept.clone(),
                }),
            },
            captures,
            annotations,
        }
    }

    fn capture(&self, run: &Run) -> Capture {
        let moment = run.moment;
        let frame_samples = self.recording.frame_bytes / self.group;
        let times = run.listed.map(|listed| self.times.of(listed));
        Capture {
            sample_start: run.start,
            global_index: run
                .first
                .sequence
                .checked_mul(frame_samples)
                .and_then(|index| index.checked_add(run.first.trimmed.0 / self.group))
                .filter(|&index| index <= MAX_INTEGER),
            datetime: moment
                .filter(|moment| moment.clock.is_utc())
                .map(|moment| format_datetime(moment.ns)),
            frequency: run.first.tuning.frequency.map(|hz| hz as f64),
            bandwidth: run.first.tuning.bandwidth.map(|hz| hz as f64),
            header_bytes: 0,
            sequence: Some(run.first.sequence),
            epoch: Some(run.first.epoch),
            clock: moment.map(|moment| moment.clock.name().into()),
            clock_ns: moment.map(|moment| moment.ns),
            times_ns: times.unwrap_or_default(),
            frames: Some(run.frames),
            missing_frames: run.lost,
        }
    }
}

/// Returns the number of packets of `sizes` in a frame of `bytes` bytes.
fn packets_in(sizes: PacketSizes, bytes: u64) -> u32 {
    let parts = sizes.parts.max(1);
    let after = (bytes / u64::from(parts)).saturating_sub(u64::from(sizes.first));
    let packets = after.div_ceil(u64::from(sizes.rest.max(1))) + 1;
    u32::try_from(packets).map_or(u32::MAX, |packets| packets.saturating_mul(parts))
}

impl Note {
    fn annotation(&self) -> Annotation {
        let (label, comment, missing_frames) = match self.kind {
            Kind::Missing => (
                LABEL_MISSING,
                "samples that never arrived; their values are fill values".into(),
                0,
            ),
            Kind::Truncated => (
                LABEL_MISSING,
                "the stream began or ended inside this frame; these samples were never sent, their values are fill values"
                    .into(),
                0,
            ),
            Kind::Suspect => (
                LABEL_SUSPECT,
                "the source detected an error in this payload".into(),
                0,
            ),
            Kind::Incomplete => (
                LABEL_INCOMPLETE,
                "computed from samples of which some were missing".into(),
                0,
            ),
            Kind::Lost { frames } => (
                LABEL_GAP,
                format!("{} missing before this sample", counted(frames, "frame")),
                frames,
            ),
        };
        Annotation {
            sample_start: self.start,
            // Readers find an annotation only at the samples that it contains: for lost frames, the sample after them.
            sample_count: Some(self.count.max(1)),
            label: Some(label.into()),
            comment: Some(comment),
            cause: self.cause.map(Into::into),
            missing_frames,
            merged: if self.merged > 1 { self.merged } else { 0 },
            ..Annotation::default()
        }
    }
}

impl Unlisted {
    fn annotation(&self) -> Annotation {
        Annotation {
            sample_start: self.start,
            sample_count: Some(self.end - self.start),
            label: Some(LABEL_UNLISTED.into()),
            comment: Some(format!(
                "too many entries to list: this range has {} more annotations ({} missing samples, {} missing frames) \
                 and {} more captures",
                self.notes, self.samples, self.frames, self.runs
            )),
            cause: None,
            missing_frames: self.frames,
            merged: self.notes + self.runs,
            ..Annotation::default()
        }
    }
}
