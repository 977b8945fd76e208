//! The keys of a `sim` source, and the parameters derived from them.

use super::faults::Faults;
use super::pace::Pace;
use super::pulses::Pulses;
use super::schedule::{Arrivals, Count, Jump, Schedule};
use super::signal::{Pattern, SignalConfig, Tone, can_encode};
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::reorder::{Geometry, Numbering};
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// Default payload of a packet, in bytes.
const DEFAULT_PACKET: usize = 8 << 10;
/// Approximate default payload of a slot, in bytes.
const DEFAULT_SLOT: usize = 1 << 20;
/// Default number of packets that overtake a reordered packet.
const DEFAULT_REORDER: u64 = 8;
/// Maximum number of frames open at the same time.
const MAX_WINDOW: usize = 1024;

/// A simulated sensor.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    /// Type and layout of the payload samples. With a `rate`, the source sends in real time.
    #[serde(default)]
    pub samples: Samples,
    /// A predictable signal: `"ramp"` (default without tones, pulses and noise), `"counter"` or `"silence"`.
    pub pattern: Option<Pattern>,
    /// Sine waves, added together.
    #[serde(default)]
    pub tones: Vec<Tone>,
    /// Pulses of a particle detector, added together. With complex samples, the pulses are in the real part.
    #[serde(default)]
    pub pulses: Vec<Pulses>,
    /// Gaussian noise: rms of each number relative to full scale.
    #[serde(default)]
    pub noise: f64,
    /// Seed of noise and pulses. Faults have their own seed.
    #[serde(default)]
    pub seed: u64,
    /// Number of payload bytes in a packet; default `"8 KiB"` if the slot size is a multiple of 8 KiB, otherwise a whole slot.
    pub packet: Option<ByteSize>,
    /// Number of frames open at the same time, at least 2.
    #[serde(default = "four")]
    pub window: usize,
    /// Data rate: `"realtime"`, at `samples.rate` (default if `samples.rate` is set); `"free"`, as fast as the ring accepts
    /// data (default otherwise); or a payload rate such as `"100 Mbit/s"`.
    pub pace: Option<Pace>,
    /// Factor by which the data rate is multiplied. The timestamps of the samples do not change.
    #[serde(default = "normal")]
    pub speed: f64,
    /// Whether the source waits for free slots (true, default for `pace = "free"`) or continues like an instrument (false,
    /// default otherwise). If false, packets without a free slot are counted as `ring_full`.
    pub backpressure: Option<bool>,
    /// Number of packets after which the stream ends, including packets that faults remove.
    pub packets: Option<u64>,
    /// Number of frames after which the stream ends.
    pub frames: Option<u64>,
    /// Sequence number of the first packet.
    #[serde(default)]
    pub start: u64,
    /// Width in bits of the sequence number in a packet, 8 to 64. The number wraps at 2 to the power of this width.
    #[serde(default = "sixty_four")]
    pub sequence_bits: u32,
    /// Number of packets after which the sequence number restarts at 0, as after a power cycle.
    pub restart_at: Option<u64>,
    /// A jump of the sequence number: `{ at = 1000, by = 50000 }` skips 50000 numbers after 1000 packets.
    pub jump: Option<Jump>,
    /// Simulated network faults.
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
    /// Returns all problems that do not depend on the ring.
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
            "`channels` must be at least 1".into(),
            "set at least 1",
        );
        must(
            self.samples.rate.is_none_or(|rate| rate.0 > 0.0),
            "samples.rate",
            "the sample rate must be above 0".into(),
            "set a rate such as \"1 MHz\", or omit `rate`",
        );
        let plain = self.tones.is_empty() && self.pulses.is_empty() && self.noise == 0.0;
        must(
            self.pattern.is_none() || plain,
            "pattern",
            "a pattern cannot be combined with tones, pulses or noise".into(),
            "omit `pattern`, or `tones`, `pulses` and `noise`",
        );
        must(
            can_encode(self.samples.scalar) || (plain && self.pattern == Some(Pattern::Counter)),
            "samples.type",
            format!(
                "the simulator cannot generate a signal of type {}",
                self.samples.scalar
            ),
            "set `pattern = \"counter\"` (without tones, pulses and noise), or a type such as \"int16\"",
        );
        must(
            self.packet.is_none_or(|packet| packet.0 > 0),
            "packet",
            "a packet must hold at least one sample".into(),
            "set a size such as \"8 KiB\"",
        );
        must(
            (2..=MAX_WINDOW).contains(&self.window),
            "window",
            format!(
                "`window` must be 2 to {MAX_WINDOW} frames, not {}",
                self.window
            ),
            "set 4 frames, which is sufficient in most cases",
        );
        must(
            self.pace != Some(Pace::Realtime) || self.samples.rate.is_some(),
            "pace",
            "`pace = \"realtime\"` needs a sample rate".into(),
            "add `rate = \"1 MHz\"` to `samples`",
        );
        let payload = matches!(self.pace, Some(Pace::Payload(rate)) if rate.0 <= 0.0);
        must(
            !payload,
            "pace",
            "the payload rate must be above 0".into(),
            "set a rate such as \"100 Mbit/s\"",
        );
        must(
            self.speed.is_finite() && self.speed > 0.0,
            "speed",
            format!("{} is not a valid speed", self.speed),
            "set a positive number; 2.0 is twice as fast",
        );
        must(
            self.speed == 1.0 || self.pace() != Pace::Free,
            "speed",
            "`speed` has no effect with `pace = \"free\"`".into(),
            "remove `speed`, or set `rate` in `samples` or another `pace`",
        );
        must(
            self.packets.is_none() || self.frames.is_none(),
            "frames",
            "`packets` and `frames` are both set, but only one can limit the length of the stream"
                .into(),
            "set only `packets` or only `frames`",
        );
        must(
            (8..=64).contains(&self.sequence_bits),
            "sequence_bits",
            format!(
                "a sequence number must have 8 to 64 bits, not {}",
                self.sequence_bits
            ),
            "set the number of bits of the sequence number in a packet",
        );
        let half = 1_u64 << (self.sequence_bits.clamp(8, 64) - 1);
        must(
            self.start < half.saturating_mul(2) && self.start < 1 << 62,
            "start",
            format!(
                "{} does not fit into {} bits",
                self.start, self.sequence_bits
            ),
            "lower `start` or raise `sequence_bits`",
        );
        if let Some(jump) = self.jump {
            must(
                (1..half).contains(&jump.by) && jump.by < 1 << 62,
                "jump.by",
                format!(
                    "with {} bits a jump by {} cannot be distinguished from a step back",
                    self.sequence_bits, jump.by
                ),
                "set at least 1, and less than half of the range of the sequence number",
            );
            must(
                jump.at > 0,
                "jump.at",
                "a jump before the first packet has no effect".into(),
                "set `start` instead",
            );
        }
        must(
            self.restart_at != Some(0),
            "restart_at",
            "a restart before the first packet has no effect".into(),
            "set the number of a later packet, at least 1",
        );
        if self.samples.channels > 0 && self.samples.rate.is_none_or(|rate| rate.0 > 0.0) {
            found.extend(self.signal_config().problems());
        }
        found.extend(self.faults.problems());
        found
    }

    /// Returns the parameters of the signal.
    pub fn signal_config(&self) -> SignalConfig {
        SignalConfig {
            samples: self.samples.clone(),
            pattern: self.pattern.unwrap_or(Pattern::Ramp),
            tones: self.tones.clone(),
            pulses: self.pulses.clone(),
            noise: self.noise,
            seed: self.seed,
        }
    }

    /// Returns the pace, with the default applied.
    pub fn pace(&self) -> Pace {
        self.pace.unwrap_or(if self.samples.rate.is_some() {
            Pace::Realtime
        } else {
            Pace::Free
        })
    }

    /// Returns whether the source waits for free slots, with the default applied.
    pub fn backpressure(&self) -> bool {
        self.backpressure.unwrap_or(self.pace() == Pace::Free)
    }

    /// Returns the number of packets per second with `geometry`, or `None` for as fast as possible.
    pub fn packet_rate(&self, geometry: &Geometry) -> Option<f64> {
        let bytes = match self.pace() {
            Pace::Free => return None,
            Pace::Realtime => self.samples.rate?.0 * self.samples.point_bits() as f64 / 8.0,
            Pace::Payload(rate) => rate.0 / 8.0,
        };
        Some(bytes * self.speed / geometry.packet_bytes as f64)
    }

    /// Returns the signal duration of a packet in nanoseconds, if the rate is known.
    pub fn packet_ns(&self, geometry: &Geometry) -> Option<f64> {
        let bytes = match (self.samples.rate, self.pace()) {
            (Some(rate), _) => rate.0 * self.samples.point_bits() as f64 / 8.0,
            (None, Pace::Payload(rate)) => rate.0 / 8.0,
            (None, _) => return None,
        };
        Some(geometry.packet_bytes as f64 / bytes * 1e9)
    }

    /// Returns the default payload bytes of a slot.
    pub fn preferred_slot(&self) -> usize {
        let unit = self
            .packet
            .and_then(ByteSize::bytes)
            .map_or(DEFAULT_PACKET, |packet| packet.max(1));
        let unit = lcm(unit, self.samples.point_bytes()).unwrap_or(unit);
        (DEFAULT_SLOT / unit).max(1).saturating_mul(unit)
    }

    /// Returns how frames are divided into packets in slots of `slot_bytes`.
    pub fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        let slot = ByteSize(slot_bytes as u64);
        let point = self.samples.point_bytes();
        let sample = Samples {
            channels: 1,
            ..self.samples.clone()
        }
        .point_bytes();
        let packet = match self.packet {
            Some(size) => size.bytes().unwrap_or(usize::MAX),
            None if slot_bytes.is_multiple_of(DEFAULT_PACKET)
                && DEFAULT_PACKET.is_multiple_of(point) =>
            {
                DEFAULT_PACKET
            }
            None => slot_bytes / point * point,
        };
        if packet == 0 {
            let message = format!(
                "one sample of all channels has {point} bytes and does not fit into a slot of {slot}"
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
        // In planar order a packet may end between channels, but not within a sample.
        let planar = self.samples.order == daq_core::layout::Order::Planar;
        let (atom, name) = if planar {
            (sample, "samples")
        } else {
            (point, "a sample of all channels")
        };
        if !packet.is_multiple_of(atom) {
            let better = ByteSize((packet / atom).max(1) as u64 * atom as u64);
            let message = format!(
                "the packet size {size} is not a multiple of {atom} bytes, the size of {name}"
            );
            return Err(Problem::at("packet", message).help(format!(
                "set a multiple of {atom} bytes, such as \"{better}\""
            )));
        }
        let unit = lcm(packet, point).unwrap_or(usize::MAX);
        let frame = slot_bytes / unit * unit;
        if frame == 0 {
            let unit = ByteSize(unit as u64);
            let message = format!(
                "packets of {size} hold whole samples of all channels only in multiples of {unit}, which exceeds a \
                 slot of {slot}"
            );
            return Err(
                Problem::at("packet", message).help(format!("set a multiple of {point} bytes"))
            );
        }
        let Ok(packets_per_frame) = u32::try_from(frame / packet) else {
            let message = format!(
                "a slot of {slot} holds more packets of {size} than the maximum of {}",
                u32::MAX
            );
            return Err(Problem::at("packet", message).help("set larger packets"));
        };
        // Every two numbers in the window must differ by less than half of the number range.
        let reach = (2 * self.window as u64 + 1) * u64::from(packets_per_frame);
        if reach >= 1 << (self.sequence_bits - 1) {
            let message = format!(
                "sequence numbers of {} bits are too narrow for a window of {} frames of {packets_per_frame} packets",
                self.sequence_bits, self.window
            );
            return Err(Problem::at("sequence_bits", message)
                .help("set more bits, larger packets or a smaller window"));
        }
        let max = (self.window as u64 - 1) * u64::from(packets_per_frame);
        if let Some(by) = self
            .faults
            .reorder_by
            .filter(|by| self.faults.reorders() && *by > max)
        {
            let message = format!(
                "a packet delayed by {by} packets would be late for a window of {} frames",
                self.window
            );
            let help = format!("set at most {max}, enlarge `window`, or use `late`");
            return Err(Problem::at("faults.reorder_by", message).help(help));
        }
        Ok(Geometry {
            numbering: Numbering {
                width: self.sequence_bits,
                ..Numbering::PLAIN
            },
            window: self.window,
            ..Geometry::new(packets_per_frame, packet)
        })
    }

    /// Returns the packets that the sender produces for a ring of `geometry`.
    pub fn schedule(&self, geometry: &Geometry) -> Schedule {
        let count = Count {
            start: self.start,
            restart_at: self.restart_at,
            jump: self.jump,
        };
        let packets = self.packets.or(self
            .frames
            .map(|frames| frames.saturating_mul(u64::from(geometry.packets_per_frame))));
        Schedule::new(count, &self.faults, packets)
    }

    /// Returns the packets in the order of their arrival.
    pub fn arrivals(&self, geometry: &Geometry) -> Arrivals {
        let max = (geometry.window as u64 - 1) * u64::from(geometry.packets_per_frame);
        let by = self.faults.reorder_by.unwrap_or(DEFAULT_REORDER).min(max);
        Arrivals::new(
            self.schedule(geometry),
            geometry.packets_per_frame,
            geometry.window,
            by,
        )
    }
}

/// Returns the least common multiple, if it is small enough.
fn lcm(a: usize, b: usize) -> Option<usize> {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a.max(1) } else { gcd(b, a % b) }
    }
    (a / gcd(a, b)).checked_mul(b)
}

#[cfg(test)]
mod tests;
