//! Pulses as a particle detector gives them: they begin at random times, rise fast and fall off exponentially, and
//! neighbouring channels see some of them together.
//!
//! A pulse of height 1 that begins at time 0 is `(exp(-t / decay) - exp(-t / rise)) / peak`. Both terms are exponentials,
//! so any number of overlapping pulses takes two recursions over a channel's table.

use super::signal::uniform;
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::units::{Frequency, Period};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the stream of random numbers of each table of pulses apart from those of the others and of the noise.
const APART: u64 = 0x9e37_79b9_7f4a_7c15;

/// Events that come at random times.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pulses {
    /// Events a second, on average: above 0 and at most `samples.rate`.
    pub rate: Frequency,
    /// Mean height as a part of full scale; heights are distributed exponentially. Integers clip beyond full scale.
    pub amplitude: f64,
    /// Time constant of the rise, shorter than `decay`; at once if not given.
    #[serde(default)]
    pub rise: Period,
    /// Time constant of the fall.
    pub decay: Period,
    /// The channels, counted from 0, in the order in which they are neighbours; all if not given.
    pub channels: Option<Vec<u32>>,
    /// The chance from 0 to 1 that the next neighbour on either side sees an event too, and so on from there. It sees
    /// half to all of the height.
    #[serde(default)]
    pub shared: f64,
}

/// What one channel sees of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hit {
    channel: usize,
    /// When it begins, in points of the table.
    at: f64,
    height: f64,
}

impl Pulses {
    /// What is wrong with pulses for `samples`, each with its key below `prefix`.
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
            "pulses have no rate without a sample rate".into(),
            "add `rate = \"1 MHz\"` to `samples`",
        );
        must(
            self.rate.0 > 0.0 && rate.is_none_or(|rate| self.rate.0 <= rate),
            "rate",
            format!("{} events a second cannot be made", self.rate.0),
            "give more than 0 and at most `samples.rate`, such as \"1 kHz\"",
        );
        must(
            self.amplitude.is_finite(),
            "amplitude",
            format!("{} is no amplitude", self.amplitude),
            "give a part of full scale, such as 0.1",
        );
        must(
            self.rise < self.decay,
            "rise",
            format!(
                "a rise of {} is not shorter than the decay of {}",
                self.rise, self.decay
            ),
            "lower `rise` or raise `decay`",
        );
        must(
            (0.0..=1.0).contains(&self.shared),
            "shared",
            format!("{} is no chance", self.shared),
            "give 0 to 1, such as 0.5",
        );
        if let Some(channels) = &self.channels {
            must(
                !channels.is_empty(),
                "channels",
                "there is no channel that sees the pulses".into(),
                "name channels, or leave it out for all",
            );
            for channel in channels {
                must(
                    *channel < samples.channels,
                    "channels",
                    format!(
                        "there is no channel {channel}: `samples` has {}, counted from 0",
                        samples.channels
                    ),
                    "raise `samples.channels` or name other channels",
                );
            }
        }
        found
    }

    /// Events in a table of `period` points at `rate` points a second: as many as come on average, at least one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most one a point"
    )]
    pub(super) fn events(&self, period: usize, rate: f64) -> usize {
        (self.rate.0 / rate * period as f64).round().max(1.0) as usize
    }

    /// What the channels of `samples` see of the events in a table of `period` points. `index` tells pulses of one seed
    /// apart.
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
        let stream = APART.wrapping_mul(index as u64 + 1);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ stream);
        let mut hits = Vec::new();
        for _ in 0..self.events(period, rate) {
            let at = uniform(&mut random) * period as f64;
            let height = -self.amplitude * (1.0 - uniform(&mut random)).ln();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "below the number of channels"
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

    /// Adds what `channel` sees to a table of real numbers that is run through again and again, at `rate` points a second.
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

/// The highest value of `exp(-t / decay) - exp(-t / rise)`: at `ln(decay / rise) · rise · decay / (decay - rise)`, where
/// its derivative is 0.
fn peak(rise: f64, decay: f64) -> f64 {
    if rise <= 0.0 {
        return 1.0;
    }
    let at = (decay / rise).ln() * rise * decay / (decay - rise);
    (-at / decay).exp() - (-at / rise).exp()
}

/// Adds exponentials of time constant `tau`, in points, that begin with the hits of `channel`.
fn add(numbers: &mut [f64], hits: &[Hit], channel: usize, tau: f64, scale: f64) {
    let period = numbers.len();
    let mut tails = vec![0.0; period];
    for hit in hits.iter().filter(|hit| hit.channel == channel) {
        // The first point that sees it comes up to one point later.
        let first = hit.at.ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most a table's length"
        )]
        let point = first as usize % period;
        tails[point] += scale * hit.height * (-(first - hit.at) / tau).exp();
    }
    let factor = (-1.0 / tau).exp();
    // What is left of the table's end where it begins anew, after all the rounds before.
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
