//! The fixtures of the sinks' tests.

pub use daq_testkit::sink::*;

use daq_core::layout::Layout;
use daq_core::sink::{RingFrames, SinkSpec};

/// Reads the section `[sink.NAME]` of `driver` with `keys`. Returns errors as text.
pub fn spec(driver: &str, name: &str, keys: &str) -> Result<Box<dyn SinkSpec>, String> {
    daq_testkit::sink::spec(daq_sinks::SINKS, &registry(), driver, name, keys)
}
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{Registered, Registry};
use daq_core::frame::{Clock, Timestamp};
use daq_core::outgoing::{OutgoingFormat, OutgoingFormatEntry, OutgoingFrames, PacketBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use std::ops::Range;

/// Returns a registry with the format `spead` of [`TestFormat`].
pub fn registry() -> Registry {
    Registry::default().with(&TestFormat)
}

/// A packet format for sinks: a header of 20 bytes with frame, packet and time in network byte order, then the payload and
/// one zero byte.
#[derive(Debug)]
pub struct TestFormat;

/// Number of bytes around the payload of each packet.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub const AROUND: usize = 21;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TestKeys {
    #[serde(default = "hundred")]
    payload: usize,
}

fn hundred() -> usize {
    100
}

impl Registered for TestFormat {
    fn kind(&self) -> &'static str {
        "packet formats"
    }

    fn name(&self) -> &'static str {
        "spead"
    }

    fn summary(&self) -> &'static str {
        "A format for tests"
    }

    fn outgoing_format(&self) -> Option<&dyn OutgoingFormatEntry> {
        Some(self)
    }
}

impl OutgoingFormatEntry for TestFormat {
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        TestKeys::json_schema(generator)
    }

    fn parse(
        &self,
        table: &mut Section,
        diagnostics: &mut Diagnostics,
    ) -> Option<Box<dyn OutgoingFormat>> {
        let keys = table.finish::<TestKeys>(&[], diagnostics)?;
        Some(Box::new(keys))
    }
}

impl OutgoingFormat for TestKeys {
    fn builder(&self, frames: &OutgoingFrames) -> Result<Box<dyn PacketBuilder>, Problem> {
        Ok(Box::new(TestBuilder {
            payload: self.payload,
            frame: frames.frame_bytes,
        }))
    }
}

struct TestBuilder {
    payload: usize,
    frame: usize,
}

impl PacketBuilder for TestBuilder {
    fn packets(&self) -> u32 {
        u32::try_from(self.frame.div_ceil(self.payload)).unwrap()
    }

    fn payload(&self, packet: u32) -> Range<usize> {
        let start = packet as usize * self.payload;
        start..(start + self.payload).min(self.frame)
    }

    fn append_header(&self, frame: u64, packet: u32, time: Timestamp, out: &mut Vec<u8>) {
        out.extend_from_slice(&frame.to_be_bytes());
        out.extend_from_slice(&packet.to_be_bytes());
        let ns = (time.clock != Clock::None).then_some(time.ns);
        out.extend_from_slice(&ns.unwrap_or(u64::MAX).to_be_bytes());
    }

    fn trailer_len(&self) -> usize {
        1
    }

    fn describe(&self, _: u64, _: Timestamp, packets: &mut Vec<Vec<u8>>) {
        *packets = vec![b"description".to_vec()];
    }

    fn end(&self, next: u64) -> Vec<Vec<u8>> {
        vec![format!("end {next}").into_bytes()]
    }
}

/// Checks that `spec` accepts frames of `layout`.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn check(spec: &dyn SinkSpec, layout: &Layout) -> Result<(), Problem> {
    let frames = RingFrames {
        layout,
        slot_bytes: layout.frame_bytes(),
        packets_per_frame: 0,
        kept: &[],
    };
    spec.needs(frames).map(drop)
}
