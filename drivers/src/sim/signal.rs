//! The signal of the simulated sensor.
//!
//! Tones, pulses, noise, ramp and silence are computed once, into a table of at most a few MiB that is repeated
//! periodically; producing a packet only copies from it. The value of a byte depends only on its position:
//!
//! ```text
//!   frame 0: | point 0 … points-1 |   frame 1: | points … |     point n of the stream = entry n % period
//! ```
//! In planar order there is one such table per channel.

use super::counter;
use super::pulses::{Hit, Pulses};
use daq_core::config::Problem;
use daq_core::layout::{Order, Samples, Scalar};
use daq_core::units::Frequency;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::Deserialize;
use std::f64::consts::TAU;

/// Size in bytes of a table with noise, which determines its period; the table fits into the cache of a server core.
const MAX_TABLE_BYTES: usize = 2 << 20;
/// Size in bytes of a table without noise: small enough for the cache, large enough for efficient copies.
const DEFAULT_TABLE_BYTES: usize = 128 << 10;
/// Minimum number of points of a table, for any number of channels.
const MIN_POINTS: usize = 1024;
/// Period of the ramp in samples.
const RAMP: usize = 1 << 16;

/// A sine wave.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tone {
    /// Frequency: at most half of `samples.rate`. For complex samples, the frequency must be below `samples.rate`; the upper
    /// half represents negative frequencies.
    pub frequency: Frequency,
    /// Amplitude relative to full scale: 1 is the largest integer, or the float 1.0. Larger integers are clipped.
    pub amplitude: f64,
    /// Phase at the first sample in degrees: 0 is the cosine.
    #[serde(default)]
    pub phase: f64,
    /// Index of the channel, counted from 0; default: all channels.
    pub channel: Option<u32>,
}

/// A signal of which every byte is predictable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Samples count up in memory order: integers from 0 to 65535, wrapped to the range of their type; floats from -1 up to 1
    /// in 65536 steps. The imaginary part is the negated real part.
    Ramp,
    /// A 64-bit little-endian counter over the stream's groups of 8 bytes, for any sample type.
    Counter,
    /// All samples are 0, or 128 for `uint8`.
    Silence,
}

/// The parameters of a signal; all random numbers follow from `seed`.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalConfig {
    /// The samples.
    pub samples: Samples,
    /// The pattern; used without tones, pulses and noise.
    pub pattern: Pattern,
    /// Tones, added together.
    pub tones: Vec<Tone>,
    /// Pulses, added together.
    pub pulses: Vec<Pulses>,
    /// Rms of the Gaussian noise in each number, relative to full scale.
    pub noise: f64,
    /// Seed of noise and pulses.
    pub seed: u64,
}

/// The size of a table: its length in points, and the number of whole cycles of each tone.
#[derive(Clone, Debug, PartialEq)]
struct Cycles {
    period: usize,
    cycles: Vec<u64>,
}

impl SignalConfig {
    fn has_table(&self) -> bool {
        !self.tones.is_empty() || self.is_random()
    }

    /// Returns whether the table should be as long as possible, because its content is random.
    fn is_random(&self) -> bool {
        !self.pulses.is_empty() || self.noise > 0.0
    }

    fn rate(&self) -> f64 {
        self.samples.rate.map_or(1.0, |rate| rate.0)
    }

    /// Returns every problem with its key.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        if !(self.noise.is_finite() && self.noise >= 0.0) {
            let message = format!("{} is not a valid rms", self.noise);
            found.push(
                Problem::at("noise", message)
                    .help("set a value relative to full scale, such as 0.01"),
            );
        }
        for (i, tone) in self.tones.iter().enumerate() {
            let key = |key: &str| format!("tones.{i}.{key}");
            if !tone.amplitude.is_finite() {
                let message = format!("{} is not a valid amplitude", tone.amplitude);
                found.push(
                    Problem::at(key("amplitude"), message)
                        .help("set a value relative to full scale, such as 0.5"),
                );
            }
            if !tone.phase.is_finite() {
                let message = format!("{} is not a valid phase", tone.phase);
                found.push(
                    Problem::at(key("phase"), message).help("set an angle in degrees, such as 90"),
                );
            }
            if let Some(channel) = tone
                .channel
                .filter(|channel| *channel >= self.samples.channels)
            {
                let channels = self.samples.channels;
                let message = format!(
                    "channel {channel} does not exist: `samples.channels` is {channels}, and channels are counted \
                     from 0"
                );
                found.push(
                    Problem::at(key("channel"), message)
                        .help("raise `samples.channels` or name another channel"),
                );
            }
            let Some(rate) = self.samples.rate else {
                let message = "a tone needs a sample rate";
                found.push(
                    Problem::at(key("frequency"), message)
                        .help("add `rate = \"1 MHz\"` to `samples`"),
                );
                continue;
            };
            let (limit, name) = if self.samples.complex {
                (rate.0, "")
            } else {
                (rate.0 / 2.0, "half of ")
            };
            if tone.frequency.0 > limit {
                let message = format!(
                    "{} is above {name}the sample rate of {rate}",
                    tone.frequency
                );
                found.push(
                    Problem::at(key("frequency"), message)
                        .help("lower the frequency or raise `samples.rate`"),
                );
            }
        }
        for (i, pulses) in self.pulses.iter().enumerate() {
            found.extend(pulses.problems(&format!("pulses.{i}"), &self.samples));
        }
        found
    }

    /// Returns notes on how the generated signal deviates from the configured one.
    pub fn notes(&self) -> Vec<String> {
        if !self.has_table() {
            return Vec::new();
        }
        let mut notes = Vec::new();
        let plan = self.cycles();
        let step = self.rate() / plan.period as f64;
        for (tone, cycles) in self.tones.iter().zip(&plan.cycles) {
            let made = *cycles as f64 * step;
            if (made - tone.frequency.0).abs() > tone.frequency.0 * 1e-12 {
                notes.push(format!(
                    "the tone of {} is generated at {made} Hz, so that it is periodic after {} samples",
                    tone.frequency, plan.period
                ));
            }
        }
        for pulses in &self.pulses {
            let events = pulses.events(plan.period, self.rate());
            notes.push(format!(
                "the pulses of {} consist of {events} events that repeat after {} samples",
                pulses.rate, plan.period
            ));
        }
        if self.noise > 0.0 {
            notes.push(format!("the noise repeats after {} samples", plan.period));
        }
        notes
    }

    /// Chooses the length of the table so that every tone is periodic in it: exactly if a table of the maximum size allows
    /// it, otherwise approximately.
    fn cycles(&self) -> Cycles {
        let point = self.samples.point_bytes();
        let max = (MAX_TABLE_BYTES / point).max(MIN_POINTS);
        let wanted = if self.is_random() {
            max
        } else {
            (DEFAULT_TABLE_BYTES / point).clamp(1, max)
        };
        let rate = millihertz(self.rate());
        // The shortest period that contains whole cycles of all tones.
        let exact = self.tones.iter().try_fold(1_u64, |period, tone| {
            let (rate, frequency) = (rate?, millihertz(tone.frequency.0)?);
            let closes = rate / gcd(rate, frequency);
            let both = closes.checked_mul(period / gcd(closes, period))?;
            (both <= max as u64).then_some(both)
        });
        let exact = exact.and_then(|period| usize::try_from(period).ok());
        let period = exact.map_or(max, |period| period * (wanted / period).max(1));
        let cycles = self.tones.iter().map(|tone| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the value is at most the length of a table"
            )]
            let cycles = (tone.frequency.0 * period as f64 / self.rate()).round() as u64;
            cycles
        });
        Cycles {
            period,
            cycles: cycles.collect(),
        }
    }

    /// Computes the signal for frames of `frame_bytes`.
    pub fn build(&self, frame_bytes: usize) -> Signal {
        let sample = Samples {
            channels: 1,
            ..self.samples.clone()
        }
        .point_bytes();
        let table = |unit: usize, planes: usize, bytes: Vec<u8>| {
            let run = frame_bytes / planes;
            let period = bytes.len() / planes;
            Signal {
                table: bytes,
                unit,
                period,
                run,
                frame_bytes,
            }
        };
        if self.has_table() {
            let (channels, planar) = (
                self.samples.channels as usize,
                self.samples.order == Order::Planar,
            );
            let (unit, planes) = if planar {
                (sample, channels)
            } else {
                (sample * channels, 1)
            };
            return table(unit, planes, self.table(sample));
        }
        match self.pattern {
            Pattern::Counter => table(1, 1, Vec::new()),
            Pattern::Ramp => table(sample, 1, self.each_sample(sample, RAMP, ramp)),
            Pattern::Silence => table(
                sample,
                1,
                self.each_sample(sample, DEFAULT_TABLE_BYTES / sample, |_, _, out| {
                    let scalar = self.samples.scalar;
                    out.chunks_exact_mut(number_bytes(scalar))
                        .for_each(|number| encode(0.0, scalar, number));
                }),
            ),
        }
    }

    fn each_sample(
        &self,
        sample: usize,
        samples: usize,
        each: impl Fn(usize, Scalar, &mut [u8]),
    ) -> Vec<u8> {
        let mut bytes = vec![0; sample * samples];
        for (i, out) in bytes.chunks_exact_mut(sample).enumerate() {
            each(i, self.samples.scalar, out);
        }
        bytes
    }

    /// Generates the table of tones, pulses and noise for all channels.
    fn table(&self, sample: usize) -> Vec<u8> {
        let Samples {
            scalar,
            complex,
            channels,
            order,
            ..
        } = self.samples;
        let channels = channels as usize;
        let plan = self.cycles();
        let parts = if complex { 2 } else { 1 };
        let mut bytes = vec![0; plan.period * sample * channels];
        let mut random = Normal::new(self.seed);
        let mut numbers = vec![0.0; plan.period * parts];
        let hits: Vec<_> = (0..)
            .zip(&self.pulses)
            .map(|(i, pulses)| pulses.hits(&self.samples, plan.period, self.seed, i))
            .collect();
        for channel in 0..channels {
            for number in &mut numbers {
                *number = if self.noise > 0.0 {
                    self.noise * random.next()
                } else {
                    0.0
                };
            }
            for (tone, cycles) in self.tones.iter().zip(&plan.cycles) {
                if tone.channel.is_none_or(|only| only as usize == channel) {
                    add_tone(&mut numbers, parts, tone, *cycles, plan.period);
                }
            }
            self.add_pulses(&mut numbers, parts, &hits, channel);
            for (point, values) in numbers.chunks_exact(parts).enumerate() {
                let first = match order {
                    Order::Interleaved => point * channels + channel,
                    Order::Planar => channel * plan.period + point,
                } * sample;
                for (value, out) in values
                    .iter()
                    .zip(bytes[first..][..sample].chunks_exact_mut(number_bytes(scalar)))
                {
                    encode(*value, scalar, out);
                }
            }
        }
        bytes
    }

    /// Adds the pulses in `channel` to the real parts.
    fn add_pulses(&self, numbers: &mut [f64], parts: usize, hits: &[Vec<Hit>], channel: usize) {
        if self.pulses.is_empty() {
            return;
        }
        let mut sum = vec![0.0; numbers.len() / parts];
        for (pulses, hits) in self.pulses.iter().zip(hits) {
            pulses.add(&mut sum, hits, channel, self.rate());
        }
        for (values, more) in numbers.chunks_exact_mut(parts).zip(sum) {
            values[0] += more;
        }
    }
}

/// A generated signal, ready to be copied.
#[derive(Clone, Debug)]
pub struct Signal {
    /// Planes of the table, one after another; empty for the pattern `counter`.
    table: Vec<u8>,
    /// Size of one entry in bytes.
    unit: usize,
    /// Size of one plane of the table in bytes.
    period: usize,
    /// Size of one plane of a frame in bytes.
    run: usize,
    frame_bytes: usize,
}

impl Signal {
    /// Passes the bytes `extent` of frame `frame` to `out` in pieces.
    pub fn write(&self, frame: u64, extent: std::ops::Range<usize>, mut out: impl FnMut(&[u8])) {
        if self.table.is_empty() {
            let first = frame
                .wrapping_mul(self.frame_bytes as u64)
                .wrapping_add(extent.start as u64);
            return counter::write(first, extent.len(), out);
        }
        let entries = (self.period / self.unit) as u64;
        let frame_phase = (frame % entries) * ((self.run / self.unit) as u64 % entries) % entries;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value is less than the table's length"
        )]
        let frame_phase = frame_phase as usize * self.unit;
        let mut at = extent.start;
        while at < extent.end {
            let (plane, within) = (at / self.run, at % self.run);
            let phase = (frame_phase + within) % self.period;
            let bytes = (extent.end - at)
                .min(self.run - within)
                .min(self.period - phase);
            out(&self.table[plane * self.period + phase..][..bytes]);
            at += bytes;
        }
    }
}

/// Returns whether a signal can be generated in numbers of type `scalar`. Other types only have a counter in each byte.
pub(super) fn can_encode(scalar: Scalar) -> bool {
    scalar.packing().is_none()
        && !scalar.is_big_endian()
        && !matches!(scalar, Scalar::Float16 | Scalar::Bfloat16)
}

/// Returns the size of a number of a type for which [`can_encode`] returns true.
fn number_bytes(scalar: Scalar) -> usize {
    scalar.bytes().unwrap_or(1)
}

fn add_tone(numbers: &mut [f64], parts: usize, tone: &Tone, cycles: u64, period: usize) {
    let phase = tone.phase.to_radians();
    for (point, values) in numbers.chunks_exact_mut(parts).enumerate() {
        // The phase is reduced as an integer, so that the end of the table continues at its start without a step.
        let turned = (point as u64 * cycles) % period as u64;
        let angle = TAU * turned as f64 / period as f64 + phase;
        values[0] += tone.amplitude * angle.cos();
        if let Some(imaginary) = values.get_mut(1) {
            *imaginary += tone.amplitude * angle.sin();
        }
    }
}

/// Writes sample `i` of the ramp.
fn ramp(i: usize, scalar: Scalar, out: &mut [u8]) {
    let i = i64::try_from(i % RAMP).expect("below 2^16");
    for (number, sign) in out.chunks_exact_mut(number_bytes(scalar)).zip([1, -1]) {
        match scalar {
            Scalar::Float32 | Scalar::Float64 => {
                let half = (RAMP / 2) as f64;
                encode((sign * i) as f64 / half - sign as f64, scalar, number);
            }
            _ => {
                let bytes = number.len();
                number.copy_from_slice(&(sign * i).to_le_bytes()[..bytes]);
            }
        }
    }
}

/// Writes `value`, relative to full scale, as a number of type `scalar`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounding and clipping are intended"
)]
fn encode(value: f64, scalar: Scalar, out: &mut [u8]) {
    match scalar {
        Scalar::Int8 => {
            out.copy_from_slice(&((value * f64::from(i8::MAX)).round() as i8).to_le_bytes());
        }
        Scalar::Uint8 => {
            out.copy_from_slice(&(((value * 127.0).round() + 128.0) as u8).to_le_bytes());
        }
        Scalar::Int16 => {
            out.copy_from_slice(&((value * f64::from(i16::MAX)).round() as i16).to_le_bytes());
        }
        Scalar::Uint16 => {
            out.copy_from_slice(&(((value * 32_767.0).round() + 32_768.0) as u16).to_le_bytes());
        }
        Scalar::Int32 => {
            out.copy_from_slice(&((value * f64::from(i32::MAX)).round() as i32).to_le_bytes());
        }
        Scalar::Uint32 => {
            let code = (value * 2_147_483_647.0).round() + 2_147_483_648.0;
            out.copy_from_slice(&(code as u32).to_le_bytes());
        }
        // The conversion to an integer limits values outside of its range.
        Scalar::Int64 => out.copy_from_slice(&((value * 2_f64.powi(63)) as i64).to_le_bytes()),
        Scalar::Float32 => out.copy_from_slice(&(value as f32).to_le_bytes()),
        Scalar::Float64 => out.copy_from_slice(&value.to_le_bytes()),
        // Excluded by `can_encode`.
        _ => {}
    }
}

/// Returns a frequency in millihertz if that is a whole number.
fn millihertz(frequency: f64) -> Option<u64> {
    let scaled = frequency * 1000.0;
    let near = (scaled - scaled.round()).abs() <= scaled * 1e-15;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    (near && (0.0..9e15).contains(&scaled)).then_some(scaled.round() as u64)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// Gaussian random numbers with variance 1 (Box-Muller method).
struct Normal {
    random: Xoshiro256PlusPlus,
    spare: Option<f64>,
}

impl Normal {
    fn new(seed: u64) -> Self {
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            spare: None,
        }
    }

    fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - uniform(&mut self.random)).ln()).sqrt();
        let (sin, cos) = (TAU * uniform(&mut self.random)).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

/// Returns a random number in [0, 1).
pub(super) fn uniform(random: &mut Xoshiro256PlusPlus) -> f64 {
    // 53 bits: the precision of a double.
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;
