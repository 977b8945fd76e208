//! The source `sim`: a simulated sensor with configurable faults.
//!
//! It behaves like a network instrument: it sends numbered packets of equal length, the sequence number may be narrow and
//! wrap, and the network can lose, damage, delay or duplicate packets. The configuration determines what happens to every
//! packet (`schedule.rs`), so the ledger can be predicted:
//!
//! | fault | ledger |
//! |---|---|
//! | `loss`, `lose` | lost `wire_gap` |
//! | `corrupt_header` | `rejected`, and lost `wire_gap` |
//! | `corrupt_payload` | lost `bad_packet` |
//! | `duplicate` | delivered, and one of `duplicates` |
//! | `late` | lost `late` |
//! | `reorder` | delivered |
//! | `restart_at`, `jump` | one more of `epochs`; the packets that confirm it are `rejected`, except the last |
//! | no free slot, and `backpressure = false` | lost `ring_full` |
//!
//! Packets lost before the first or after the last received packet are not expected and therefore not counted. If more
//! packets are lost in a row than the window is long, a new epoch begins. For a source that waits for slots, the window is
//! not longer than the number of slots in the ring.
//!
//! The content of a packet depends only on its sequence number ([`expected_byte`] for the pattern `counter`). Timestamps
//! continue without a break when the sequence number jumps or restarts.

mod counter;
mod faults;
mod filler;
mod keys;
mod pace;
mod pulses;
mod schedule;
mod signal;

pub use counter::{expected_byte, verify};
pub use keys::SimConfig;
pub use pace::Pacer;
pub use schedule::State;

use crate::packet::frames::sample_layout;
use daq_core::config::Problem;
use daq_core::entry::{FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec};
use daq_core::source::{Producers, SourceError};

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "sim",
    summary: "A simulated sensor: tones, pulses, noise or patterns, at any rate, with faults on request",
    example: EXAMPLE,
    schema: |_| schemars::schema_for!(SimConfig),
    parse: |section, _, diagnostics| {
        let config: SimConfig = section.finish_checked(&[], diagnostics, SimConfig::problems)?;
        Some(Box::new(config))
    },
    recognise: &[],
};

const EXAMPLE: &str = r#"[source.NAME]
driver  = "sim"
ring    = "OUTPUT"
# With a rate, the source sends in real time and does not wait for slots, like an instrument.
samples = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
noise   = 0.01                # rms, relative to full scale
tones   = [{ frequency = "125 kHz", amplitude = 0.5 }]
# pulses  = [{ rate = "1 kHz", amplitude = 0.1, rise = "1 us", decay = "10 us", shared = 0.5 }]
# pattern = "counter"         # instead of tones, pulses and noise: "ramp", "counter" or "silence"
# packet  = "8 KiB"           # payload of one packet
# pace    = "free"            # as fast as the ring accepts data; or "100 Mbit/s"
# speed   = 2.0               # twice the sample rate
# backpressure = true         # wait for free slots instead of counting `ring_full`
# frames  = 1000              # end after this many frames; or packets = 100000

# [source.NAME.faults]
# loss         = 0.001        # also late, duplicate, reorder, corrupt_header, corrupt_payload
# duplicate_at = [5, "100..120"]
"#;

impl SourceSpec for SimConfig {
    fn facts(&self) -> SourceFacts {
        SourceFacts {
            preferred_slot: Some(self.preferred_slot()),
            supports_backpressure: self.backpressure(),
            notes: self.signal_config().notes(),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let geometry = self.geometry(slot_bytes)?;
        let help = "choose a slot that holds whole samples of all channels";
        let layout = sample_layout(&self.samples, geometry.frame_bytes, help)?;
        Ok(FrameFacts::new(geometry, layout))
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let simulator = filler::Simulator::new(self, context.geometry);
        Ok(Producers::Fillers(vec![Box::new(simulator)]))
    }
}

#[cfg(test)]
mod tests;
