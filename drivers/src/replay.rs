//! The source `replay`: replays recorded data at the original speed or at another speed.
//!
//! | recording | frames |
//! |---|---|
//! | a capture (pcap, pcapng) | its UDP datagrams are parsed with a `format`, like packets of a `udp` source |
//! | SigMF written by daq | the same frames and packets again, with their recorded numbers |
//! | SigMF of other programs | one gapless stream, divided into frames that fit the slot and numbered from 0 |
//!
//! If a record of a capture contains several datagrams (segmentation offload), it is split by the packet lengths of the format.
//! If the lengths are ambiguous, the capture is rejected.
//!
//! Timestamps are the recorded ones ([`Clock::RecordedUtc`](daq_core::frame::Clock::RecordedUtc) if they are
//! known to be UTC, otherwise [`Clock::Recorded`](daq_core::frame::Clock::Recorded)), unless the packet format contains
//! a timestamp.
//!
//! # Ledger
//! Captures are counted like `udp`, but no packet is lost in Linux. Packets of which the capture contains only the beginning
//! (`cut_short`), whose link layer is not supported (`unknown_link`), or whose lengths contradict each other (`malformed`) are
//! rejected, unless `port` or `destination` exclude them.
//!
//! In SigMF recordings, packets that are marked as missing
//! and frames that the numbers skip are lost again, `wire_gap`; packets missing before the first or after the last one of a
//! recording are not expected. A skipped frame within a window of the previous frame appears as a frame without packets. An
//! epoch opens wherever the recording starts one, where the next file is from another run of daq, where the frame numbers step back,
//! and with `loop` at the start of each pass. Every pass loses the same
//! packets, and nothing is lost between passes. With `backpressure = false`, packets without a free slot are lost, `ring_full`.

mod capture;
mod division;
mod files;
mod keys;
mod offload;
mod player;
mod recording;
mod timetable;

use keys::ReplayConfig;

use crate::packet::Origins;
use crate::packet::frames::Frames;
use crate::packet::section;
use capture::CapturePlayer;
use daq_core::check::{FileUse, NamedFile};
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{FrameFacts, Registry, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::source::{Producers, SourceError};
use player::RecordingPlayer;
use recording::Recording;
use std::path::Path;
use std::sync::OnceLock;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "replay",
    summary: "Recorded data: captures (pcap, pcapng) and SigMF recordings, at original or other speed",
    example: EXAMPLE,
    schema: |registry| section::with_format(registry, schemars::schema_for!(ReplayConfig), false),
    parse,
    recognise: &[],
};

const EXAMPLE: &str = section::example!(
    r#"[source.NAME]
driver  = "replay"
ring    = "OUTPUT"
path    = "recording.pcap"    # or several: ["first.pcap", "second.pcap"]
samples = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
# path  = "recordings/"       # SigMF: a directory, a .sigmf-meta or a .sigmf-data file; without samples and format
# name  = "raw"               # select one recording of a directory that contains several
# speed = 2.0                 # twice the recorded speed; "free" = as fast as it can be read
# loop  = true                # repeat from the start until stopped; each repetition is a new epoch
# backpressure = false        # do not wait for free slots: drop frames and count `ring_full`, like an instrument
# port  = 4950                # captures: only datagrams to this UDP port
# destination = "239.1.2.3"   # captures: only datagrams to this address
"#,
    r#""8 KiB""#
);

/// Assumed maximum number of packets that one receive call returned during the capture.
const RECORDED_BATCH: usize = 64;

/// A source that replays captures.
#[derive(Debug)]
struct CaptureReplay {
    config: ReplayConfig,
    frames: Frames,
}

/// A source that replays a SigMF recording.
#[derive(Debug)]
struct RecordingReplay {
    config: ReplayConfig,
    /// The metadata, read on first use.
    known: OnceLock<Result<Recording, Problem>>,
}

fn parse(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let has_format = section.has("format");
    let format = if has_format {
        Some(section::take(section, registry, diagnostics))
    } else {
        None
    };
    let name = section.name().to_owned();
    let problems = |config: &ReplayConfig| {
        let mut problems = config.problems(has_format);
        if config.is_capture(has_format) && !has_format {
            problems.push(
                Problem::at(
                    "path",
                    "a capture contains packets, but their format is not configured",
                )
                .help(format!("add a table `[source.{name}.format]`")),
            );
        }
        problems
    };
    let config: ReplayConfig = section.finish_checked(&["format"], diagnostics, problems)?;
    if config.is_capture(has_format) {
        let frames = Frames::new(
            format??,
            &config.packet_keys,
            &Origins::default(),
            1,
            RECORDED_BATCH,
        );
        return Some(Box::new(CaptureReplay { config, frames }));
    }
    let known = OnceLock::new();
    Some(Box::new(RecordingReplay { config, known }))
}

fn origins(config: &ReplayConfig) -> Vec<String> {
    let paths = config.path.0.iter();
    paths.map(|path| path.display().to_string()).collect()
}

fn files(config: &ReplayConfig, purpose: FileUse) -> Vec<NamedFile> {
    let key = |i: usize| match config.path.0.len() {
        1 => "path".to_owned(),
        _ => format!("path.{i}"),
    };
    let paths = config.path.0.iter().enumerate();
    paths
        .map(|(i, path)| NamedFile::new(key(i), path, purpose))
        .collect()
}

impl SourceSpec for CaptureReplay {
    fn facts(&self) -> SourceFacts {
        let capture = self.config.path.0.first();
        SourceFacts {
            origins: origins(&self.config),
            files: files(&self.config, FileUse::Reads),
            supports_backpressure: self.config.backpressure,
            inspect_advice: capture
                .map(|capture| format!("run `daq inspect {}`", capture.display())),
            ..self.frames.facts()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        self.frames.in_slots(slot_bytes)
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let format = self.frames.start(context);
        let player = CapturePlayer::open(context, &self.config, format)?;
        Ok(Producers::Fillers(vec![Box::new(player)]))
    }
}

impl RecordingReplay {
    fn recording(&self) -> Result<&Recording, Problem> {
        self.known
            .get_or_init(|| Recording::open(Path::new(""), &self.config))
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// A recording is in order, so its packets need no window.
impl SourceSpec for RecordingReplay {
    fn facts(&self) -> SourceFacts {
        let facts = SourceFacts {
            origins: origins(&self.config),
            files: files(&self.config, FileUse::ReadsAny),
            supports_backpressure: self.config.backpressure,
            ..SourceFacts::default()
        };
        // `frames` returns the problem of a recording that cannot be read.
        let Ok(recording) = self.recording() else {
            return facts;
        };
        SourceFacts {
            preferred_slot: Some(recording.preferred_slot()),
            kept: recording.kept().to_vec(),
            notes: recording.notes(self.config.speed),
            ..facts
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let recording = self.recording()?;
        let geometry = recording.geometry(slot_bytes)?;
        Ok(FrameFacts::new(geometry, recording.layout(&geometry)?))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let player = RecordingPlayer::open(context, &self.config)?;
        Ok(Producers::Fillers(vec![Box::new(player)]))
    }
}
