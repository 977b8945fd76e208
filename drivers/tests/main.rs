//! Tests of sources with real sockets and files, and fuzz targets of their parsers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounting;
mod allocations;
mod fuzz_formats;
mod fuzz_gige;
mod fuzz_headers;
mod fuzz_hsb;
mod gige_acquisitions;
mod gige_block_ids;
mod hsb;
mod instruments;
mod numbered_by_time;
mod replay;
mod replay_captures;
mod replay_frames;
mod replay_packets;
mod replay_runs;
mod replay_times;
mod udp;

use daq_core::entry::{Registry, SourceEntry, SourceSpec};

/// Returns the checked source of a configuration's first section, in a program with the built-in packet formats.
fn spec(entry: &SourceEntry, text: &str) -> Result<Box<dyn SourceSpec>, String> {
    let registry = Registry::default().with_all(daq_drivers::packet::FORMATS);
    daq_testkit::source::spec_in(&registry, entry, text)
}
