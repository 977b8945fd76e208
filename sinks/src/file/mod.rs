//! `file`: writes frames to data files, each with a SigMF metadata file.
//!
//! A recording is a row of segments, `NAME-000000.sigmf-data` and `NAME-000000.sigmf-meta` and so on. [`segment`] describes
//! how a segment is committed and what a kill leaves, [`sigmf`](crate::sigmf) the metadata. Segment numbers continue those
//! of an earlier run. Files that a killed run left are recovered and logged at startup. Only one process at a time writes segments of one name in one directory, see [`lock`](crate::lock).
//!
//! # What is written
//! The payload of every frame, byte for byte. A frame that ends inside a sample is written up to its last whole sample,
//! a frame without a whole sample is skipped; the metadata records both. Samples over time of one channel or of
//! interleaved channels are what SigMF means by samples. Everything else (spectra, planar channels, named values) is
//! written as it is, with `core:num_channels` 1 and the shape of a frame in `daq:channels`, `daq:points`, `daq:order` and
//! `daq:axis`, and the frames a second in `daq:frame_rate`.
//!
//! # Rotation
//! A segment ends when the next frame would make it larger than `segment`, or when it is older than `rotate`. It is made
//! whole before the next one begins: two open segments would be two partials after a kill. Meanwhile frames wait in the
//! ring before the sink, which needs slots for as long as the disk takes to sync.
//!
//! # A full disk
//! A frame is taken whole or not at all, and space is reserved before it is taken. What happens to frames that are not
//! taken is declared by the sink's `guarantee`: they wait, or they are dropped, counted, and annotated with the cause
//! `disk_full` in the segment that goes on behind them.

mod recording;
pub mod segment;
mod write;

use crate::directory::{failure, no_space};
use crate::file::segment::{Options, SegmentError, SegmentWriter, recover};
use crate::layout::check_layout;
use crate::sigmf::MetaBuilder;
use crate::stem::{Stem, StemKeys};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::SinkEntry;
use daq_core::examine::NamedFile;
use daq_core::layout::Layout;
use daq_core::sink::{Sink, SinkContext, SinkError, SinkSpec};
use daq_core::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What `daq` knows of `file`.
pub const ENTRY: SinkEntry = SinkEntry {
    name: "file",
    summary: "Writes frames to data files with SigMF metadata, with direct I/O; files stay valid after a kill",
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
# Written into the metadata.
# description = \"What is recorded\"
# hardware = \"What it is recorded with\"
# Write past the page cache, where the filesystem can.
# direct = true
# Bytes handed to the disk at once; three such buffers are held.
# buffer = \"4 MiB\"
",
    schema: || schemars::schema_for!(FileKeys),
    parse,
};

/// The keys of a `file` sink.
///
/// Data and metadata of the files: [File formats](file-formats.md).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileKeys {
    /// Directory of the files, made if it is not there; relative paths start from the working
    /// directory.
    pub path: PathBuf,
    /// Stem of the files' names, `NAME` in `NAME-000000.sigmf-data`; default: the sink's name. Two sinks may share a
    /// directory, not a stem.
    pub name: Option<String>,
    /// A new file begins before one gets larger than this, at least one frame each; default `"1 GiB"`.
    #[serde(default = "gibibyte")]
    pub segment: ByteSize,
    /// A new file begins when one is older than this, counted from its first frame; default: no such limit.
    pub rotate: Option<Span>,
    /// Free text for `core:description`; default: none.
    pub description: Option<String>,
    /// What is recorded with, for `core:hw`; default: none.
    pub hardware: Option<String>,
    /// Write past the page cache where the filesystem can, so that a long recording does not evict everything else;
    /// default true.
    #[serde(default = "yes")]
    pub direct: bool,
    /// Bytes handed to the disk at once, 4 KiB to 256 MiB; three such buffers are held. Default `"4 MiB"`.
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
                    .help("try \"1 GiB\""),
            );
        }
        if self.rotate.is_some_and(|rotate| rotate.0.is_zero()) {
            return Err(Problem::at("rotate", "a file cannot end when it begins")
                .help("try \"10 min\", or leave it out"));
        }
        if !(4 << 10..=256 << 20).contains(&self.buffer.0) {
            return Err(Problem::at(
                "buffer",
                format!("{} is not from 4 KiB to 256 MiB", self.buffer),
            )
            .help("try \"4 MiB\""));
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

fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn SinkSpec>> {
    let (stem, keys) = Stem::read(section, diagnostics)?;
    Some(Box::new(File { stem, keys }))
}

/// A checked configuration.
#[derive(Debug)]
struct File {
    stem: Stem,
    keys: FileKeys,
}

impl SinkSpec for File {
    fn claims(&self) -> Vec<Claim> {
        self.stem.claims()
    }

    fn files(&self) -> Vec<NamedFile> {
        self.stem.files()
    }

    fn check(&self, layout: &Layout) -> Result<(), Problem> {
        check_layout(layout)
    }

    fn memory(&self, _slot_bytes: usize) -> usize {
        SegmentWriter::memory(&self.keys.options()) + MetaBuilder::memory()
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
                "sink {}: an earlier run ended without closing {}; it contains the first {} of that file",
                context.name,
                left.path.display(),
                ByteSize(left.bytes)
            );
        }
        for path in &found.unclear {
            tracing::warn!(
                "sink {}: {} belongs to no segment that daq would leave; it is left alone",
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

/// A segment's error as a sink's.
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
