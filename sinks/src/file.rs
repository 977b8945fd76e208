//! `file` writes frames to data files, each with a SigMF metadata file.
//!
//! A recording is a sequence of segments: `NAME-000000.sigmf-data` and `NAME-000000.sigmf-meta`, and so on. [`segment`]
//! describes how a segment is committed and what remains after a kill; [`sigmf`](crate::sigmf) describes the metadata.
//! Segment numbers continue those of an earlier run. Files of a killed run are recovered and logged at startup. Only
//! one process at a time can write segments with the same name in the same directory, see [`lock`](crate::lock).
//!
//! # What is written
//! The sink writes the payload of every frame unchanged. If a frame ends inside a sample, the sink writes only its
//! whole samples; it skips a frame without a whole sample. The metadata records both cases. If the samples are points
//! in time of one channel or of interleaved channels, they are SigMF samples. Other frames (spectra, planar channels,
//! named values) are also written unchanged. Their metadata has `core:num_channels` 1, the shape of a frame in
//! `daq:channels`, `daq:points`, `daq:order` and `daq:axis`, and the number of frames per second in `daq:frame_rate`.
//!
//! # Rotation
//! A segment ends when the next frame would make the segment larger than `segment`, or when the segment is older than
//! `rotate`. A segment is completed before the next one begins, because two open segments would leave two partial files
//! after a kill. In the meantime, frames wait in the input ring, which needs enough slots for the duration of a disk
//! sync.
//!
//! # A full disk
//! Each frame is accepted completely or not at all, and space is reserved before a frame is accepted. The sink's
//! `guarantee` determines what happens to frames that are not accepted. Either they wait in the ring, or they are
//! dropped and counted, and the next segment with frames contains an annotation with the cause `disk_full`.

mod recording;
pub mod segment;
mod write;

use crate::directory::{failure, no_space};
use crate::file::segment::{Options, SegmentError, SegmentWriter, recover};
use crate::layout::check_layout;
use crate::sigmf::MetaBuilder;
use crate::stem::{Stem, StemKeys};
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::sink::{RingFrames, Sink, SinkContext, SinkError, SinkFacts, SinkNeeds, SinkSpec};
use daq_core::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Registry entry of `file`.
pub const ENTRY: SinkEntry = SinkEntry {
    name: "file",
    summary: "Writes frames to data files with SigMF metadata, with direct I/O; the files stay valid if daq is killed",
    example: "\
[sink.NAME]
driver = \"file\"
input = \"INPUT\"
# Directory of the files, made if it is not there.
path = \"out\"
# Files are called NAME-000000.sigmf-data and so on; default: the sink's name.
# name = \"NAME\"
# A new file begins before one gets larger than this.
# segment = \"1 GiB\"
# And when it is older than this; off if left out.
# rotate = \"10 min\"
# Write only from the first to the last sample of a stream, and not the rest of its first and last frame.
# trim = false
# Written into the metadata.
# description = \"What is recorded\"
# hardware = \"Recording hardware\"
# Write past the page cache, where the filesystem can.
# direct = true
# Bytes handed to the disk at once; three such buffers are held.
# buffer = \"4 MiB\"
",
    schema: |_| schemars::schema_for!(FileKeys),
    parse,
    recognise: &[],
};

/// Keys of a `file` sink.
///
/// Format of data and metadata: [File formats](file-formats.md).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileKeys {
    /// Directory of the files; it is created if missing. Relative paths start at the working directory.
    pub path: PathBuf,
    /// Stem of the file names, `NAME` in `NAME-000000.sigmf-data`; default: the sink's name. Two sinks may share a
    /// directory, but not a stem.
    pub name: Option<String>,
    /// Maximum file size; a new file begins before this size is exceeded. Every file has at least one frame. Default
    /// `"1 GiB"`.
    #[serde(default = "gibibyte")]
    pub segment: ByteSize,
    /// Maximum age of a file, counted from its first frame. At this age, a new file begins. Default: no limit.
    pub rotate: Option<Span>,
    /// True: samples before the first and after the last packet of a stream, which were never sent, are not written. Default
    /// false: they are written with the fill value of the ring and annotated as `missing`, so that all frames have the same size.
    /// Frames of several parts and frames that are not interleaved samples over time are always written whole.
    #[serde(default)]
    pub trim: bool,
    /// Free text for `core:description`; default: none.
    pub description: Option<String>,
    /// Recording hardware, for `core:hw`; default: none.
    pub hardware: Option<String>,
    /// Bypass the page cache if the filesystem supports it (direct I/O), so that a long recording does not evict other
    /// data; default true.
    #[serde(default = "yes")]
    pub direct: bool,
    /// Size of a disk write, 4 KiB to 256 MiB; the sink holds three such buffers. Default `"4 MiB"`.
    #[serde(default = "four_mebibytes")]
    pub buffer: ByteSize,
}

const fn gibibyte() -> ByteSize {
    ByteSize(1 << 30)
}

const fn four_mebibytes() -> ByteSize {
    ByteSize(4 << 20)
}

const fn yes() -> bool {
    true
}

impl StemKeys for FileKeys {
    fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn check(&self) -> Result<(), Problem> {
        if self.segment.0 == 0 {
            return Err(
                Problem::at("segment", "a segment must be larger than 0 bytes")
                    .help("for example \"1 GiB\""),
            );
        }
        if self.rotate.is_some_and(|rotate| rotate.0.is_zero()) {
            return Err(Problem::at("rotate", "`rotate` must be longer than zero")
                .help("for example \"10 min\"; remove the key to disable the limit"));
        }
        if !(4 << 10..=256 << 20).contains(&self.buffer.0) {
            return Err(Problem::at(
                "buffer",
                format!("`buffer` must be 4 KiB to 256 MiB, not {}", self.buffer),
            )
            .help("for example \"4 MiB\""));
        }
        Ok(())
    }
}

impl FileKeys {
    fn options(&self) -> Options {
        let buffer_bytes = self.buffer.bytes().unwrap_or(4 << 20);
        Options {
            buffer_bytes,
            direct: self.direct,
            ..Options::default()
        }
    }
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SinkSpec>> {
    let (stem, keys) = Stem::read(section, diagnostics)?;
    Some(Box::new(File { stem, keys }))
}

/// The checked configuration of a `file` sink.
#[derive(Debug)]
struct File {
    stem: Stem,
    keys: FileKeys,
}

impl SinkSpec for File {
    fn facts(&self) -> SinkFacts {
        self.stem.facts()
    }

    fn needs(&self, frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        check_layout(frames.layout, "file", recording::number)?;
        Ok(SinkNeeds {
            memory: SegmentWriter::memory(&self.keys.options()) + MetaBuilder::memory(frames.kept),
            note: None,
        })
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let lock = self.stem.lock(&context)?;
        let found = recover(&lock).map_err(sink_error)?;
        for path in &found.completed {
            tracing::warn!(
                "sink {}: an earlier run ended while closing {}; the file is complete and is now closed",
                context.name,
                path.display()
            );
        }
        for left in &found.partial {
            tracing::warn!(
                "sink {}: an earlier run ended before it completed a segment; {} contains the first {} of the segment's data",
                context.name,
                left.path.display(),
                ByteSize(left.bytes)
            );
        }
        for path in &found.unclear {
            tracing::warn!(
                "sink {}: {} does not belong to any segment of daq; the file is not changed",
                context.name,
                path.display()
            );
        }
        Ok(Box::new(write::FileSink::new(
            lock,
            &self.keys,
            found.next_index,
            &context,
        )?))
    }
}

/// Converts the error of a segment into an error of the sink.
fn sink_error(error: SegmentError) -> SinkError {
    match error {
        SegmentError::Full { path, .. } => no_space(&path),
        error @ SegmentError::Unsynced { .. } => SinkError::Failed {
            what: "closing a segment".to_owned(),
            why: error.to_string(),
        },
        SegmentError::Io { ref source, .. } => {
            failure("writing segments", error.to_string(), source)
        }
        error => SinkError::Failed {
            what: "writing segments".to_owned(),
            why: error.to_string(),
        },
    }
}
