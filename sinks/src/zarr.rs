//! `zarr` writes frames to a growing chunked array in a Zarr version 3 store, with arrays that describe each frame.
//!
//! Every run writes a new store, the directory `NAME-000000.zarr` and so on. A store is a group of arrays whose first
//! dimension is the frame. Only one process at a time can write stores with the same name in the same directory. The
//! [lock](crate::lock) file is located beside the stores.
//!
//! | array | type | shape | meaning |
//! |---|---|---|---|
//! | `frames` | see below | `[n, points, channels]`, planar `[n, channels, points]` | payload; short frames are padded
//! with 0 |
//! | `sequence` | uint64 | `[n]` | frame number in its epoch; frames are missing where the number jumps |
//! | `epoch` | uint32 | `[n]` | number of restarts of the producer's frame numbers |
//! | `timestamp_ns` | uint64 | `[n]` | time in nanoseconds of `clock` |
//! | `clock` | uint8 | `[n]` | clock of the timestamp; the array's attribute `names` maps numbers to names |
//! | `length` | uint64 | `[n]` | valid bytes of the frame |
//! | `flags` | uint32 | `[n]` | bits, described in the array's attribute `bits` |
//! | `present` | bool | `[n, packets_per_frame]` | packets that arrived; only if frames consist of packets |
//! | `packets_per_frame`, `first_bytes`, `packet_bytes` | uint32 | `[n]` | number of packets of the frame, bytes of its first
//! packet and of each other packet; only if they are determined at run time |
//! | `kept` | uint8 | `[n]` | which kept fields the frame has: bits, described in the array's attribute `bits`; only if
//! frames keep fields |
//! | name of a kept field | uint64 | `[n]` | its value; 0 if the frame does not have the field |
//!
//! Pairs of float32 are stored as complex64, pairs of float64 as complex128. Zarr has no type for pairs of integers, so
//! they have a last dimension of 2 (real, imaginary). The attributes of `frames` contain its axis, order and rates.
//!
//! # What remains after a kill
//! A store is created as `NAME-000000.zarr.partial`, and is renamed when its arrays and its group exist. A store that
//! was not renamed contains no frames; the next start removes it.
//!
//! Every file is written with a temporary name (`*.partial`), synced and then renamed, so no reader ever sees an
//! incomplete file. A commit has these steps, and each step is complete before the next one begins:
//!
//! 1. the chunk of `frames`,
//! 2. the chunks of the other arrays,
//! 3. the shapes of the other arrays (their `zarr.json`),
//! 4. the shape of `frames` (its `zarr.json`): **the commit**.
//!
//! So at every moment, the first `frames.shape[0]` rows of all arrays are complete and consistent. After a kill, the
//! other arrays may be longer by one commit. The next start truncates them to the length of `frames` and logs the
//! number of frames in the store. It also changes the attribute `state` of the group from `writing` to `recovered`; a
//! closed store has the state `complete`. A kill loses the frames since the last commit. These are at most one chunk
//! that is being written and one that is being filled, and at most the frames of the time `flush` if the disk is fast
//! enough.
//!
//! # A full disk
//! Space for a chunk is reserved before its first frame is accepted. The sink's `guarantee` determines what happens to
//! frames that are not accepted. If a filesystem cannot reserve space, accepted frames wait in memory until there is
//! space. If the disk is still full at the end, these frames are counted as lost and logged.

mod batch;
mod columns;
mod recover;
mod store;
mod write;

use crate::layout::check_layout;
use crate::stem::{Stem, StemKeys};
use batch::Batch;
use columns::{chunk_rows, columns};
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::sink::{RingFrames, Sink, SinkContext, SinkError, SinkFacts, SinkNeeds, SinkSpec};
use daq_core::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Registry entry of `zarr`.
pub(crate) const ENTRY: SinkEntry = SinkEntry {
    name: "zarr",
    summary: "Writes frames to a Zarr array that Python's zarr and xarray can open; the array stays valid if daq is killed",
    example: "\
[sink.NAME]
driver = \"zarr\"
input = \"INPUT\"
# Directory of the stores, made if it is not there.
path = \"out\"
# Stores are called NAME-000000.zarr and so on, one each run; default: the sink's name.
# name = \"NAME\"
# Bytes of a chunk, at least one frame; two chunks are held in memory.
# chunk = \"16 MiB\"
# Frames are committed after this time even if their chunk is not full.
# flush = \"10 s\"
# Written into the attributes.
# description = \"What is recorded\"
",
    schema: |_| schemars::schema_for!(ZarrKeys),
    parse,
    recognise: &[],
};

/// The keys of a `zarr` sink.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ZarrKeys {
    /// Directory of the stores; it is created if missing. Relative paths start at the working directory.
    pub path: PathBuf,
    /// Stem of the store names, `NAME` in `NAME-000000.zarr`; default: the sink's name. Two sinks may share a
    /// directory, but not a stem.
    pub name: Option<String>,
    /// Size of a chunk, rounded down to whole frames, up to 1 GiB; a chunk has at least one frame. The sink holds two
    /// chunks in memory. Default `"16 MiB"`.
    #[serde(default = "sixteen_mebibytes")]
    pub chunk: ByteSize,
    /// Time after which frames are committed even if their chunk is not full.
    /// If daq is killed, the frames of about this time are lost. Default `"10 s"`.
    #[serde(default = "ten_seconds")]
    pub flush: Span,
    /// Free text for the attribute `description`; default: none.
    pub description: Option<String>,
}

const fn sixteen_mebibytes() -> ByteSize {
    ByteSize(16 << 20)
}

const fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

impl StemKeys for ZarrKeys {
    fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn check(&self) -> Result<(), Problem> {
        if !(1..=1 << 30).contains(&self.chunk.0) {
            return Err(Problem::at(
                "chunk",
                format!("`chunk` must be 1 B to 1 GiB, not {}", self.chunk),
            )
            .help("for example \"16 MiB\""));
        }
        Ok(())
    }
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SinkSpec>> {
    let (stem, keys) = Stem::read(section, diagnostics)?;
    Some(Box::new(Zarr { stem, keys }))
}

/// The checked configuration of a `zarr` sink.
#[derive(Debug)]
struct Zarr {
    stem: Stem,
    keys: ZarrKeys,
}

impl SinkSpec for Zarr {
    fn facts(&self) -> SinkFacts {
        self.stem.facts()
    }

    fn needs(&self, frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        check_layout(frames.layout, "zarr", columns::number)?;
        let chunk = self.keys.chunk.bytes().unwrap_or(usize::MAX >> 2);
        // The arrays other than `frames` have chunks of at least 4096 rows, with about 40 bytes per row and 8 for each kept field.
        let others = (256 << 10) + frames.kept.len() * (32 << 10);
        Ok(SinkNeeds {
            memory: 2 * (chunk.max(frames.slot_bytes) + others),
            note: None,
        })
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let lock = self.stem.lock(&context)?;
        let next = recover::recover(&lock, &context.name)?;
        let rows = chunk_rows(self.keys.chunk, context.layout.frame_bytes());
        let columns = columns(&context, rows)?;
        let batches = [Batch::new(&columns), Batch::new(&columns)];
        let store = store::Store::create(&lock, next, columns, &self.keys, &context)?;
        Ok(Box::new(write::ZarrSink::new(
            lock,
            store,
            batches,
            self.keys.flush.0,
            &context,
        )?))
    }
}
