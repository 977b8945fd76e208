//! The axes of frames with samples of several antennas and frequency channels.

#[cfg(test)]
mod tests;

use super::require;
use daq_core::config::Problem;
use daq_core::layout::Spread;
use daq_core::layout::{Axis, Layout, Order, Scalar};
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
        let (antennas, channels) = counts(antennas, channels, ring)?;
        require(
            axes.is_some() || antennas.checked_mul(channels) == Some(ring),
            "antennas",
            format!(
                "{antennas} antennas × {channels} channels are not the {ring} channels of the input"
            ),
            "correct `antennas` or `channels`, or declare the number of both with `channels` in the source's `samples`; if frames \
             have another shape than the ring, name their axes in `axes`",
        )?;
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

/// Returns the numbers of antennas and of channels per antenna of a ring with `ring` channels. A number that is `None` follows from
/// the other one.
fn counts(antennas: Option<u32>, channels: Option<u32>, ring: u32) -> Result<(u32, u32), Problem> {
    let divided = |key: &str, by: u32, what: &str, help: &str| {
        let message = format!("the input's {ring} channels cannot be divided {what}");
        require(ring.is_multiple_of(by), key, message, help)?;
        Ok(ring / by)
    };
    match (antennas, channels) {
        (Some(antennas), Some(channels)) => Ok((antennas, channels)),
        (None, channels) => {
            let channels = channels.unwrap_or(1);
            let what = format!("among antennas with {channels} channels each");
            let help = "correct `channels`, or set `antennas`";
            let antennas = divided("channels", channels.min(ring), &what, help)?;
            Ok((antennas, channels))
        }
        (Some(antennas), None) => {
            let what = format!("among {antennas} antennas");
            let help = "correct `antennas`, or set `channels` to the number of frequency channels per antenna";
            Ok((antennas, divided("antennas", antennas, &what, help)?))
        }
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

/// Rejects frames that are not complex samples of a supported type. Spectra are only accepted if the key `axes` declares the meaning
/// of the numbers in a frame.
pub(super) fn complex_samples(
    input: &Layout,
    name: &str,
    axes: Option<Axes>,
) -> Result<(), Problem> {
    super::not_empty(input)?;
    require(
        axes.is_some() || matches!(input.axis, Axis::Time { .. } | Axis::Pixels(_)),
        "input",
        format!("the input's frames ({input}) are not samples over time"),
        "use the output of a `channelize` kernel; if the frames are voltages of antennas and channels, name their axes in `axes`",
    )?;
    require(
        input.complex,
        "input",
        format!("the input's frames ({input}) are not complex samples"),
        "use the output of a `channelize` kernel, or set `complex = true` in the source's `samples`",
    )?;
    if is_supported(input.scalar) {
        Ok(())
    } else {
        Err(input.scalar.unsupported(&format!("kernel `{name}`")))
    }
}
