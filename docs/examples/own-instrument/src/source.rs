//! A source: packets with a ramp of 16-bit numbers.

use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::frame::Timestamp;
use daq_core::layout::{Samples, Scalar};
use daq_core::reorder::{Geometry, PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, Producers, SourceError};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry::of::<RampKeys>(
    "ramp",
    "A ramp of 16-bit numbers",
    "\
[source.NAME]
driver  = \"ramp\"
ring    = \"OUTPUT\"
packets = 800      # number of packets
",
);

/// Payload bytes of a packet.
const PACKET: usize = 512;

/// The keys of a `ramp` source. These comments become the reference page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RampKeys {
    /// Number of packets after which the source ends.
    packets: u64,
}

impl SourceSpec for RampKeys {
    fn facts(&self) -> SourceFacts {
        SourceFacts {
            preferred_slot: Some(8 * PACKET),
            supports_backpressure: true,
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let Ok(packets @ 1..) = u32::try_from(slot_bytes / PACKET) else {
            return Err(Problem::at("ring", "`slot` of the ring must be at least 512 B"));
        };
        let geometry = Geometry::new(packets, PACKET);
        let samples = Samples { scalar: Scalar::Int16, ..Samples::default() };
        let layout = samples.layout(geometry.frame_bytes);
        let layout = layout.map_err(|_| Problem::at("ring", "frames must have whole samples"))?;
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, _: &SourceContext) -> Result<Producers, SourceError> {
        Ok(Producers::Fillers(vec![Box::new(Ramp { next: 0, end: self.packets })]))
    }
}

struct Ramp {
    next: u64,
    end: u64,
}

impl Filler for Ramp {
    fn fill(&mut self, window: &mut ReorderWindow, _: Duration) -> Result<Polled, SourceError> {
        if self.next == self.end {
            return Ok(Polled::Ended);
        }
        let id = PacketId::of(self.next);
        Ok(window.with_batch(|batch| {
            if !batch.has_room(id, None) {
                return Polled::Full;
            }
            let mut payload = [0; PACKET];
            for (i, number) in payload.as_chunks_mut().0.iter_mut().enumerate() {
                *number = (self.next as i16).wrapping_add(i as i16).to_le_bytes();
            }
            batch.place(id, &payload, Timestamp::default());
            self.next += 1;
            Polled::Busy
        }))
    }
}
