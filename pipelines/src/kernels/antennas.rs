//! The axes of frames with samples of several antennas and frequency channels.

#[cfg(test)]
mod tests;

use super::require;
use daq_core::config::Problem;
use daq_core::layout::Spread;
use daq_core::layout::{Layout, Order, Scalar};
use schemars::JsonSchema;
use serde::Deserialize;

/// Axes of a frame, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Axes {
    /// All channels of antenna 0 at time 0, then those of antenna 1, …
    TimeAntennaChannel,
    /// All antennas in channel 0 at time 0, then those in channel 1, …
    TimeChannelAntenna,
    /// All times of channel 0 of antenna 0, then those of channel 1, …
    AntennaChannelTime,
    /// All channels of antenna 0 at time 0, then those at time 1, …
    AntennaTimeChannel,
    /// All times of antenna 0 in channel 0, then those of antenna 1, …
    ChannelAntennaTime,
    /// All antennas in channel 0 at time 0, then those at time 1, …
    ChannelTimeAntenna,
}

/// Distances between neighbours along each axis, in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) antenna: usize,
    pub(super) channel: usize,
    pub(super) time: usize,
}

impl Axes {
    /// Returns the axes that the layout of a ring implies.
    pub(super) const fn of(input: &Layout) -> Self {
        match input.order {
            Order::Interleaved => Self::TimeAntennaChannel,
            Order::Planar => Self::AntennaChannelTime,
        }
    }

    pub(super) const fn steps(self, antennas: usize, channels: usize, times: usize) -> Steps {
        let (antenna, channel, time) = match self {
            Self::TimeAntennaChannel => (channels, 1, antennas * channels),
            Self::TimeChannelAntenna => (1, antennas, antennas * channels),
            Self::AntennaChannelTime => (channels * times, times, 1),
            Self::AntennaTimeChannel => (channels * times, 1, channels),
            Self::ChannelAntennaTime => (times, antennas * times, 1),
            Self::ChannelTimeAntenna => (1, antennas * times, antennas),
        };
        Steps {
            antenna,
            channel,
            time,
        }
    }
}

/// Number of elements of each axis of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) antennas: usize,
    pub(super) channels: usize,
    pub(super) times: usize,
    pub(super) steps: Steps,
}

impl Extents {
    /// Returns the numbers of antennas, channels and times of frames of `input`, with the keys of a kernel.
    pub(super) fn new(
        antennas: Option<u32>,
        channels: Option<u32>,
        axes: Option<Axes>,
        input: &Layout,
    ) -> Result<Self, Problem> {
        let ring = input.channels;
        let antennas = antennas.unwrap_or(ring / channels.unwrap_or(1).min(ring));
        let channels = if let Some(channels) = channels {
            channels
        } else {
            require(
                ring.is_multiple_of(antennas),
                "antennas",
                format!("the input's {ring} channels cannot be divided among {antennas} antennas"),
                "correct `antennas`, or set `channels` to the number of frequency channels per antenna",
            )?;
            ring / antennas
        };
        let samples = ring as usize * input.points;
        let (antennas, channels) = (antennas as usize, channels as usize);
        let per_time = antennas.saturating_mul(channels);
        require(
            samples.is_multiple_of(per_time),
            "antennas",
            format!(
                "a frame of {samples} samples is not a whole number of times of {antennas} antennas × {channels} channels"
            ),
            "correct `antennas`, `channels`, or the `slot` of the input ring",
        )?;
        let times = samples / per_time;
        let axes = axes.unwrap_or_else(|| Axes::of(input));
        Ok(Self {
            antennas,
            channels,
            times,
            steps: axes.steps(antennas, channels, times),
        })
    }
}

impl Extents {
    /// Checks that a share of a frame contains some of the frequency channels, with all antennas and times. Frames of `whole`
    /// are divided by `by` into shares with the extents `share`. The error is the reason why not, as a clause.
    pub(super) fn check_share(
        &self,
        share: &Self,
        (whole, axes): (&Layout, Option<Axes>),
        by: Spread,
    ) -> Result<(), String> {
        let is_one_piece = match by {
            Spread::Frames | Spread::Parts => true,
            Spread::Channels => whole.order == Order::Planar,
            Spread::Points => whole.order == Order::Interleaved,
        };
        let axes = axes.unwrap_or_else(|| Axes::of(whole));
        let divided = match axes {
            Axes::TimeAntennaChannel | Axes::TimeChannelAntenna => "times",
            Axes::AntennaChannelTime | Axes::AntennaTimeChannel => "antennas",
            Axes::ChannelAntennaTime | Axes::ChannelTimeAntenna => "channels",
        };
        if !is_one_piece || divided != "channels" {
            return Err(format!(
                "a share must have all antennas and times of some frequency channels, but it has {}; `axes` must begin with the \
                 channel, and a share must be one piece of each frame",
                if is_one_piece {
                    format!("some of the {divided}")
                } else {
                    "pieces of each frame".to_owned()
                }
            ));
        }
        let is_divided = share.channels < self.channels
            && self.channels.is_multiple_of(share.channels)
            && (share.antennas, share.times) == (self.antennas, self.times);
        if is_divided {
            return Ok(());
        }
        Err(format!(
            "with its keys, a share would have {} antennas × {} channels × {} times, but a frame has {} × {} × {}; set `antennas`, \
             remove `channels`, and declare samples with order = \"planar\"",
            share.antennas, share.channels, share.times, self.antennas, self.channels, self.times
        ))
    }
}

/// Returns whether `correlate` and `beamform` multiply samples of this type.
pub(super) const fn is_supported(scalar: Scalar) -> bool {
    matches!(
        scalar,
        Scalar::Int8 | Scalar::Int16 | Scalar::Float16 | Scalar::Float32
    )
}

/// Rejects frames that are not complex samples of a supported type.
pub(super) fn complex_samples(input: &Layout, name: &str) -> Result<(), Problem> {
    super::not_empty(input)?;
    if !is_supported(input.scalar) {
        return Err(input.scalar.unsupported(&format!("kernel `{name}`")));
    }
    require(
        input.complex,
        "input",
        format!("the input's frames ({input}) are not complex samples"),
        "use the output of a `channelize` kernel, or set `complex = true` in the source's `samples`",
    )
}
