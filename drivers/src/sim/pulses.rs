//! Pulses like those of a particle detector: they begin at random times, rise quickly and decay exponentially, and
//! neighbouring channels see some of them together.
//!
//! A pulse of height 1 that begins at time 0 is `(exp(-t / decay) - exp(-t / rise)) / peak`. Both terms are exponentials,
//! so any number of overlapping pulses needs only two recursions over a channel's table.

use super::signal::uniform;
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::units::{Frequency, Period};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::Deserialize;

/// Separates the random numbers of the pulse tables from each other and from the noise.
const STREAM_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pulses at random times.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pulses {
    /// Average number of events per second: above 0 and at most `samples.rate`.
    pub rate: Frequency,
    /// Mean height relative to full scale; heights are distributed exponentially. Integers clip beyond full scale.
    pub amplitude: f64,
    /// Time constant of the rise, shorter than `decay`; default 0, an immediate rise.
    #[serde(default)]
    pub rise: Period,
    /// Time constant of the decay.
    pub decay: Period,
    /// Channels, counted from 0, in the order in which they are neighbours; default all.
    pub channels: Option<Vec<u32>>,
    /// Probability, 0 to 1, that the next neighbour on each side also sees an event; the same probability applies to each
    /// further neighbour. A neighbour sees 50 % to 100 % of the height.
    #[serde(default)]
    pub shared: f64,
}

/// The signal of one event in one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hit {
    channel: usize,
    /// Start of the pulse, in points of the table.
    at: f64,
    height: f64,
}

impl Pulses {
    /// Returns every problem of the pulses for `samples`, each with its key below `prefix`.
    pub(super) fn problems(&self, prefix: &str, samples: &Samples) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(format!("{prefix}.{key}"), message).help(help));
            }
        };
        let rate = samples.rate.map(|rate| rate.0);
        must(
            rate.is_some(),
            "rate",
            "pulses need a sample rate".into(),
            "add `rate = \"1 MHz\"` to `samples`",
        );
        must(
            self.rate.0 > 0.0 && rate.is_none_or(|rate| self.rate.0 <= rate),
            "rate",
            format!(
                "the event rate must be above 0 and at most the sample rate, not {} Hz",
                self.rate.0
            ),
            "set a rate up to `samples.rate`, such as \"1 kHz\"",
        );
        must(
            self.amplitude.is_finite(),
            "amplitude",
            format!("{} is not a valid amplitude", self.amplitude),
            "set a value relative to full scale, such as 0.1",
        );
        must(
            self.rise < self.decay,
            "rise",
            format!(
                "`rise` is {}, but must be shorter than `decay`, which is {}",
                self.rise, self.decay
            ),
            "lower `rise` or raise `decay`",
        );
        must(
            (0.0..=1.0).contains(&self.shared),
            "shared",
            format!("{} is not a probability", self.shared),
            "set a probability from 0 to 1, such as 0.5",
        );
        if let Some(channels) = &self.channels {
            must(
                !channels.is_empty(),
                "channels",
                "`channels` must not be empty".into(),
                "list at least one channel, or omit `channels` for all channels",
            );
            for channel in channels {
                must(
                    *channel < samples.channels,
                    "channels",
                    format!(
                        "channel {channel} does not exist: `samples.channels` is {}, and channels are counted from 0",
                        samples.channels
                    ),
                    "raise `samples.channels` or list other channels",
                );
            }
        }
        found
    }

    /// Returns the number of events in a table of `period` points at `rate` points per second: the average number, at
    /// least one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "there is at most one event per point"
    )]
    pub(super) fn events(&self, period: usize, rate: f64) -> usize {
        (self.rate.0 / rate * period as f64).round().max(1.0) as usize
    }

    /// Returns the signals of the events in a table of `period` points, for the channels of `samples`. Pulse tables
    /// with the same seed have different values of `index`, so that they get different random numbers.
    pub(super) fn hits(
        &self,
        samples: &Samples,
        period: usize,
        seed: u64,
        index: usize,
    ) -> Vec<Hit> {
        let rate = samples.rate.map_or(1.0, |rate| rate.0);
        let channels = self
            .channels
            .clone()
            .unwrap_or_else(|| (0..samples.channels).collect());
        let stream = STREAM_SEED.wrapping_mul(index as u64 + 1);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ stream);
        let mut hits = Vec::new();
        for _ in 0..self.events(period, rate) {
            let at = uniform(&mut random) * period as f64;
            let height = -self.amplitude * (1.0 - uniform(&mut random)).ln();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the index is not negative and less than the number of channels"
            )]
            let middle = (uniform(&mut random) * channels.len() as f64) as usize;
            hits.push(Hit {
                channel: channels[middle] as usize,
                at,
                height,
            });
            let sides: [&mut dyn Iterator<Item = &u32>; 2] = [
                &mut channels[middle + 1..].iter(),
                &mut channels[..middle].iter().rev(),
            ];
            for side in sides {
                for channel in side {
                    if uniform(&mut random) >= self.shared {
                        break;
                    }
                    hits.push(Hit {
                        channel: *channel as usize,
                        at,
                        height: height * (0.5 + 0.5 * uniform(&mut random)),
                    });
                }
            }
        }
        hits
    }

    /// Adds the pulses in `channel` to a periodic table of real numbers with `rate` points per second.
    pub(super) fn add(&self, numbers: &mut [f64], hits: &[Hit], channel: usize, rate: f64) {
        let points = |time: Period| time.0 as f64 * 1e-12 * rate;
        let (rise, decay) = (points(self.rise), points(self.decay));
        let peak = peak(rise, decay);
        self::add(numbers, hits, channel, decay, 1.0 / peak);
        if rise > 0.0 {
            self::add(numbers, hits, channel, rise, -1.0 / peak);
        }
    }
}

/// Returns the maximum of `exp(-t / decay) - exp(-t / rise)`, which is at `ln(decay / rise) · rise · decay / (decay -
/// rise)`, where the derivative is 0.
fn peak(rise: f64, decay: f64) -> f64 {
    if rise <= 0.0 {
        return 1.0;
    }
    let at = (decay / rise).ln() * rise * decay / (decay - rise);
    (-at / decay).exp() - (-at / rise).exp()
}

/// Adds exponentials with time constant `tau`, in points, that begin with the hits of `channel`.
fn add(numbers: &mut [f64], hits: &[Hit], channel: usize, tau: f64, scale: f64) {
    let period = numbers.len();
    let mut tails = vec![0.0; period];
    for hit in hits.iter().filter(|hit| hit.channel == channel) {
        // The pulse appears in the first point after its start, up to one point later.
        let first = hit.at.ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is at most the length of a table"
        )]
        let point = first as usize % period;
        tails[point] += scale * hit.height * (-(first - hit.at) / tau).exp();
    }
    let factor = (-1.0 / tau).exp();
    // The level at the end of the table, summed over all previous periods, because the end continues at the start of
    // the table.
    let round = tails
        .iter()
        .fold(0.0, |level, begins| level * factor + begins);
    let mut level = round / -(-(period as f64) / tau).exp_m1();
    for (number, begins) in numbers.iter_mut().zip(tails) {
        level = level * factor + begins;
        *number += level;
    }
}

#[cfg(test)]
mod tests;
