//! The source `sim`: a simulated sensor with faults on request.
//!
//! It behaves as a network instrument does: numbered packets of equal length, a number that may be narrow and
//! wrap, and whatever a network makes of them. Every packet's fate follows from the configuration
//! ([`Schedule`]), so a ledger can be foretold:
//!
//! | fault | ledger |
//! |---|---|
//! | `loss`, `lose` | lost `wire_gap` |
//! | `corrupt_header` | `rejected`, and lost `wire_gap` |
//! | `corrupt_payload` | lost `bad_packet` |
//! | `duplicate` | delivered, and one of `duplicates` |
//! | `late` | lost `late` |
//! | `reorder` | delivered |
//! | `restart_at`, `jump` | a new one of `epochs`; all but the last of the packets that must agree on it are `rejected` |
//! | no free slot, and not held back | lost `ring_full` |
//!
//! Before the first packet seen and after the last one nothing is expected, so what is lost there is not
//! counted. More packets lost in a row than the window is long make a jump. For a source that waits for slots
//! the window is no longer than the ring has slots.
//!
//! What a place holds depends on its sequence number alone ([`expected_byte`] for the pattern `counter`);
//! timestamps go on where the count breaks.

mod config;
mod counter;
mod faults;
mod filler;
mod pace;
mod pulses;
mod schedule;
mod signal;

pub use config::SimConfig;
pub use counter::{expected_byte, verify};
pub use faults::{Dice, Fate, Faults, Numbers};
pub use pace::{Pace, Pacer};
pub use pulses::Pulses;
pub use schedule::{Arrival, Arrivals, Count, Jump, Packet, Schedule, State};
pub use signal::{Pattern, Recipe, Signal, Tone};

use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{SourceContext, SourceEntry, SourceSpec};
use daq_core::layout::Layout;
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};

/// The registry entry.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "sim",
    summary: "A simulated sensor: tones, pulses, noise or patterns, at any rate, with faults on request",
    example: EXAMPLE,
    schema: || schemars::schema_for!(SimConfig),
    parse,
};

const EXAMPLE: &str = r#"[source.NAME]
driver  = "sim"
ring    = "OUTPUT"
# With a rate the source keeps to it and does not wait for slots, as an instrument.
samples = { type = "int16", complex = true, channels = 1, rate = "1 MHz" }
noise   = 0.01                # rms, as a part of full scale
tones   = [{ frequency = "125 kHz", amplitude = 0.5 }]
# pulses  = [{ rate = "1 kHz", amplitude = 0.1, rise = "1 us", decay = "10 us", shared = 0.5 }]
# pattern = "counter"         # instead of tones, pulses and noise: "ramp", "counter" or "silence"
# packet  = "8 KiB"           # payload of one packet
# pace    = "free"            # as fast as the ring takes it; or "100 Mbit/s"
# speed   = 2.0               # twice as fast as the sample rate says
# hold    = true              # wait for free slots instead of counting `ring_full`
# frames  = 1000              # end after so many; or packets = 100000

# [source.NAME.faults]
# loss         = 0.001        # also late, duplicate, reorder, corrupt_header, corrupt_payload
# duplicate_at = [5, "100..120"]
"#;

/// A simulation, checked as far as it can be without a ring.
#[derive(Debug)]
struct Sim {
    config: SimConfig,
}

fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn SourceSpec>> {
    let config: SimConfig = section.finish_checked(&[], diagnostics, SimConfig::problems)?;
    Some(Box::new(Sim { config }))
}

impl SourceSpec for Sim {
    fn preferred_slot(&self) -> Option<usize> {
        Some(self.config.preferred_slot())
    }

    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        self.config.geometry(slot_bytes)
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        self.config
            .samples
            .layout(geometry.frame_bytes)
            .map_err(|rest| {
                let message = format!(
                    "a frame of {} bytes ends {rest} bytes into a point",
                    geometry.frame_bytes
                );
                Problem::at("samples", message).help("choose a slot that holds whole points")
            })
    }

    fn supports_backpressure(&self) -> bool {
        self.config.hold()
    }

    fn notes(&self) -> Vec<String> {
        self.config.recipe().notes()
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        let simulator = filler::Simulator::new(&self.config, context.geometry);
        Ok(Producers::Fillers(vec![Box::new(simulator)]))
    }
}

#[cfg(test)]
mod tests;
