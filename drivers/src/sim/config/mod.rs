//! The keys of a source `sim`, and what makes them a simulation.

use super::faults::Faults;
use super::pace::Pace;
use super::pulses::Pulses;
use super::schedule::{Arrivals, Count, Jump, Schedule};
use super::signal::{Pattern, Recipe, Tone, point_bytes};
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::reorder::{Geometry, Numbering};
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// A packet's payload where nothing else is said and it fits.
const USUAL_PACKET: usize = 8 << 10;
/// A slot's payload where nothing else is said, about.
const USUAL_SLOT: usize = 1 << 20;
/// By how many packets one is overtaken where nothing else is said.
const USUAL_REORDER: u64 = 8;
/// Frames open at a time at most.
const MAX_WINDOW: usize = 1024;

/// A simulated sensor.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    /// What the payload means. With a `rate` the source keeps to it.
    #[serde(default)]
    pub samples: Samples,
    /// A predictable signal: `"ramp"` (if there are neither tones, pulses nor noise), `"counter"` or `"silence"`.
    pub pattern: Option<Pattern>,
    /// Sines, summed up.
    #[serde(default)]
    pub tones: Vec<Tone>,
    /// Pulses of a particle detector, summed up. In complex samples they are in the real part.
    #[serde(default)]
    pub pulses: Vec<Pulses>,
    /// Gaussian noise: its rms in each number as a part of full scale.
    #[serde(default)]
    pub noise: f64,
    /// Seed of noise and pulses. Faults have their own.
    #[serde(default)]
    pub seed: u64,
    /// Payload bytes of a packet; `"8 KiB"` if not given and slots can be cut so, else a whole slot.
    pub packet: Option<ByteSize>,
    /// Frames open at a time, at least 2.
    #[serde(default = "four")]
    pub window: usize,
    /// How fast: `"realtime"` (as `samples.rate` says, and the choice where it is given), `"free"` (as fast as the
    /// ring takes it, the choice otherwise) or a rate of payload such as `"100 Mbit/s"`.
    pub pace: Option<Pace>,
    /// How many times faster than that. Timestamps stay those of the samples.
    #[serde(default = "normal")]
    pub speed: f64,
    /// Whether the source waits for free slots (the choice for `pace = "free"`) or goes on without, as an instrument
    /// does (the choice otherwise): what finds no slot is counted as `ring_full`.
    pub hold: Option<bool>,
    /// End after so many packets, those that faults take included.
    pub packets: Option<u64>,
    /// End after the packets of so many frames.
    pub frames: Option<u64>,
    /// The first packet's sequence number.
    #[serde(default)]
    pub start: u64,
    /// Bits of the sequence number that a packet carries, 8 to 64: it wraps.
    #[serde(default = "sixty_four")]
    pub sequence_bits: u32,
    /// Packets after which the sender counts from 0 again, as if switched off and on.
    pub restart_at: Option<u64>,
    /// A jump of the sequence number: `{ at = 1000, by = 50000 }` leaves out 50000 numbers after 1000 packets.
    pub jump: Option<Jump>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

fn four() -> usize {
    4
}

fn normal() -> f64 {
    1.0
}

fn sixty_four() -> u32 {
    64
}

impl SimConfig {
    /// Everything that is wrong whatever the ring.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        must(
            self.samples.channels > 0,
            "samples.channels",
            "there are no channels".into(),
            "give at least 1",
        );
        must(
            self.samples.rate.is_none_or(|rate| rate.0 > 0.0),
            "samples.rate",
            "a rate of 0 never brings a sample".into(),
            "give a rate such as \"1 MHz\", or leave it out",
        );
        let plain = self.tones.is_empty() && self.pulses.is_empty() && self.noise == 0.0;
        must(
            self.pattern.is_none() || plain,
            "pattern",
            "a pattern is not mixed with tones, pulses or noise".into(),
            "leave out `pattern`, or `tones`, `pulses` and `noise`",
        );
        must(
            self.packet.is_none_or(|packet| packet.0 > 0),
            "packet",
            "a packet holds at least one sample".into(),
            "give a size such as \"8 KiB\"",
        );
        must(
            (2..=MAX_WINDOW).contains(&self.window),
            "window",
            format!(
                "a window of {} frames is not between 2 and {MAX_WINDOW}",
                self.window
            ),
            "4 is enough for most",
        );
        must(
            self.pace != Some(Pace::Realtime) || self.samples.rate.is_some(),
            "pace",
            "real time is not known without a sample rate".into(),
            "add `rate = \"1 MHz\"` to `samples`",
        );
        let payload = matches!(self.pace, Some(Pace::Payload(rate)) if rate.0 <= 0.0);
        must(
            !payload,
            "pace",
            "nothing is ever sent at this rate".into(),
            "give a rate such as \"100 Mbit/s\"",
        );
        must(
            self.speed.is_finite() && self.speed > 0.0,
            "speed",
            format!("{} is no speed", self.speed),
            "give a positive number; 2.0 is twice as fast",
        );
        must(
            self.speed == 1.0 || self.pace() != Pace::Free,
            "speed",
            "there is no rate to multiply: the source is as fast as the ring takes it".into(),
            "give `samples` a `rate`, or a `pace`",
        );
        must(
            self.packets.is_none() || self.frames.is_none(),
            "frames",
            "`packets` and `frames` both say when to end".into(),
            "give one of them",
        );
        must(
            (8..=64).contains(&self.sequence_bits),
            "sequence_bits",
            format!(
                "a sequence number of {} bits is not between 8 and 64",
                self.sequence_bits
            ),
            "give the bits that a packet carries",
        );
        let half = 1_u64 << (self.sequence_bits.clamp(8, 64) - 1);
        must(
            self.start < half.saturating_mul(2) && self.start < 1 << 62,
            "start",
            format!("{} does not fit {} bits", self.start, self.sequence_bits),
            "lower `start` or raise `sequence_bits`",
        );
        if let Some(jump) = self.jump {
            must(
                (1..half).contains(&jump.by) && jump.by < 1 << 62,
                "jump.by",
                format!(
                    "with {} bits a jump by {} cannot be told from a step back",
                    self.sequence_bits, jump.by
                ),
                "give at least 1, and less than half of what the bits can count",
            );
            must(
                jump.at > 0,
                "jump.at",
                "there is nothing before the first packet".into(),
                "set `start` instead",
            );
        }
        must(
            self.restart_at != Some(0),
            "restart_at",
            "there is nothing before the first packet".into(),
            "give at least 1",
        );
        if self.samples.channels > 0 && self.samples.rate.is_none_or(|rate| rate.0 > 0.0) {
            found.extend(self.recipe().problems());
        }
        found.extend(self.faults.problems());
        found
    }

    /// What the signal is made of.
    pub fn recipe(&self) -> Recipe {
        Recipe {
            samples: self.samples.clone(),
            pattern: self.pattern.unwrap_or(Pattern::Ramp),
            tones: self.tones.clone(),
            pulses: self.pulses.clone(),
            noise: self.noise,
            seed: self.seed,
        }
    }

    /// How fast, with the default filled in.
    pub fn pace(&self) -> Pace {
        self.pace.unwrap_or(if self.samples.rate.is_some() {
            Pace::Realtime
        } else {
            Pace::Free
        })
    }

    /// Whether the source waits for slots, with the default filled in.
    pub fn hold(&self) -> bool {
        self.hold.unwrap_or(self.pace() == Pace::Free)
    }

    /// Packets a second at `geometry`; `None` as fast as it goes.
    pub fn packet_rate(&self, geometry: &Geometry) -> Option<f64> {
        let bytes = match self.pace() {
            Pace::Free => return None,
            Pace::Realtime => self.samples.rate?.0 * point_bytes(&self.samples) as f64,
            Pace::Payload(rate) => rate.0 / 8.0,
        };
        Some(bytes * self.speed / geometry.place_bytes as f64)
    }

    /// Nanoseconds of signal in one packet, where time is known.
    pub fn packet_ns(&self, geometry: &Geometry) -> Option<f64> {
        let bytes = match (self.samples.rate, self.pace()) {
            (Some(rate), _) => rate.0 * point_bytes(&self.samples) as f64,
            (None, Pace::Payload(rate)) => rate.0 / 8.0,
            (None, _) => return None,
        };
        Some(geometry.place_bytes as f64 / bytes * 1e9)
    }

    /// Payload bytes of a slot if nobody says.
    pub fn preferred_slot(&self) -> usize {
        let unit = self
            .packet
            .and_then(ByteSize::bytes)
            .map_or(USUAL_PACKET, |packet| packet.max(1));
        let unit = lcm(unit, point_bytes(&self.samples)).unwrap_or(unit);
        (USUAL_SLOT / unit).max(1).saturating_mul(unit)
    }

    /// How frames are made in slots of `slot_bytes`.
    pub fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        let slot = ByteSize(slot_bytes as u64);
        let point = point_bytes(&self.samples);
        let sample = point / self.samples.channels.max(1) as usize;
        let packet = match self.packet {
            Some(size) => size.bytes().unwrap_or(usize::MAX),
            None if slot_bytes.is_multiple_of(USUAL_PACKET)
                && USUAL_PACKET.is_multiple_of(point) =>
            {
                USUAL_PACKET
            }
            None => slot_bytes / point * point,
        };
        if packet == 0 {
            let message = format!(
                "one point of all channels has {point} bytes, a slot of {slot} cannot hold it"
            );
            return Err(Problem::at("samples", message)
                .help("enlarge the ring's `slot` or lower `channels`"));
        }
        let size = ByteSize(packet as u64);
        if packet > slot_bytes {
            let message = format!("a packet of {size} is larger than the ring's slots of {slot}");
            return Err(
                Problem::at("packet", message).help("enlarge the ring's `slot` or lower `packet`")
            );
        }
        // In planar order a packet may end between the channels, but not within a sample.
        let planar = self.samples.order == daq_core::layout::Order::Planar;
        let (atom, name) = if planar {
            (sample, "samples")
        } else {
            (point, "points of all channels")
        };
        if !packet.is_multiple_of(atom) {
            let better = ByteSize((packet / atom).max(1) as u64 * atom as u64);
            let message =
                format!("a packet of {size} is no whole number of {name}, which have {atom} bytes");
            return Err(Problem::at("packet", message)
                .help(format!("give a multiple, such as \"{better}\"")));
        }
        let unit = lcm(packet, point).unwrap_or(usize::MAX);
        let frame = slot_bytes / unit * unit;
        if frame == 0 {
            let unit = ByteSize(unit as u64);
            let message = format!(
                "packets of {size} make whole points only every {unit}, more than a slot of {slot}"
            );
            return Err(
                Problem::at("packet", message).help(format!("give a multiple of {point} bytes"))
            );
        }
        let Ok(places) = u32::try_from(frame / packet) else {
            let message = format!("a slot of {slot} has too many packets of {size}");
            return Err(Problem::at("packet", message).help("give larger packets"));
        };
        // All that the window may meet lies nearer than half of what the number can tell apart.
        let reach = (2 * self.window as u64 + 1) * u64::from(places);
        if reach >= 1 << (self.sequence_bits - 1) {
            let message = format!(
                "sequence numbers of {} bits are too narrow for a window of {} frames of {places} packets",
                self.sequence_bits, self.window
            );
            return Err(Problem::at("sequence_bits", message)
                .help("give more bits, larger packets or a smaller window"));
        }
        let most = (self.window as u64 - 1) * u64::from(places);
        if let Some(by) = self
            .faults
            .reorder_by
            .filter(|by| self.faults.reorders() && *by > most)
        {
            let message = format!(
                "a packet that {by} others overtake comes too late for a window of {} frames",
                self.window
            );
            let help = format!("give at most {most}, enlarge `window`, or use `late`");
            return Err(Problem::at("faults.reorder_by", message).help(help));
        }
        Ok(Geometry {
            numbering: Numbering {
                width: self.sequence_bits,
                ..Numbering::PLAIN
            },
            window: self.window,
            ..Geometry::new(places, packet)
        })
    }

    /// The packets that the sender makes for a ring of `geometry`.
    pub fn schedule(&self, geometry: &Geometry) -> Schedule {
        let count = Count {
            start: self.start,
            restart_at: self.restart_at,
            jump: self.jump,
        };
        let packets = self.packets.or(self
            .frames
            .map(|frames| frames.saturating_mul(u64::from(geometry.places))));
        Schedule::new(count, &self.faults, packets)
    }

    /// The same as they arrive.
    pub fn arrivals(&self, geometry: &Geometry) -> Arrivals {
        let most = (geometry.window as u64 - 1) * u64::from(geometry.places);
        let by = self.faults.reorder_by.unwrap_or(USUAL_REORDER).min(most);
        Arrivals::new(
            self.schedule(geometry),
            geometry.places,
            geometry.window,
            by,
        )
    }
}

/// The least common multiple, if it is small enough.
fn lcm(a: usize, b: usize) -> Option<usize> {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a.max(1) } else { gcd(b, a % b) }
    }
    (a / gcd(a, b)).checked_mul(b)
}

#[cfg(test)]
mod tests;
