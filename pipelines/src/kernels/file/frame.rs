//! What an output frame means.

use daq_core::config::Problem;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::units::Frequency;
use schemars::JsonSchema;
use serde::Deserialize;

/// What the points of an output run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AxisKey {
    /// Time.
    Time,
    /// Frequency.
    Frequency,
}

/// The `frame` table: what differs between an output frame and an input frame.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameKeys {
    /// Type of each number: `int8`, `uint8`, `int16`, `int32`, `float32` or `float64`.
    #[serde(rename = "type")]
    pub scalar: Option<Scalar>,
    /// Whether numbers come in pairs (real, imaginary).
    pub complex: Option<bool>,
    /// Channels in the frame, at least 1.
    pub channels: Option<u32>,
    /// Points of each channel in one frame, at least 1.
    pub points: Option<usize>,
    /// Order of the channels' points, `"interleaved"` or `"planar"`.
    pub order: Option<Order>,
    /// What the points run over, `"time"` or `"frequency"`.
    pub axis: Option<AxisKey>,
    /// Points per second and channel, such as `"1 MHz"`, where they run over time; with other `points` than the input's
    /// it follows from the rate of the frames.
    pub rate: Option<Frequency>,
    /// Frequency of the first point, where they run over frequency.
    pub start: Option<Frequency>,
    /// Frequency between points, where they run over frequency.
    pub step: Option<Frequency>,
    /// Names of the points, one each, where they are values of different meaning.
    pub fields: Option<Vec<String>>,
}

impl FrameKeys {
    /// What is wrong whatever the input is.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let none = |key: &str, what: &str| {
            Err(Problem::at(key, format!("a frame without {what}"))
                .help("write at least 1, or leave it out: then it is as in the input"))
        };
        if self.channels == Some(0) {
            return none("frame.channels", "channels");
        }
        if self.points == Some(0) {
            return none("frame.points", "points");
        }
        if let Some(fields) = &self.fields {
            if fields.is_empty() {
                return none("frame.fields", "values");
            }
            if let Some(points) = self.points
                && points != fields.len()
            {
                return Err(Problem::at(
                    "frame.points",
                    format!("{points} points have {} names in `fields`", fields.len()),
                )
                .help("leave `points` out: there is one a name"));
            }
        }
        // Of keys that belong to different axes, only one kind may be there.
        let (rate, start, step) = (
            self.rate.is_some(),
            self.start.is_some(),
            self.step.is_some(),
        );
        let over = |axis| self.axis.is_none_or(|said| said == axis);
        let clash = if self.fields.is_some() && (self.axis.is_some() || rate || start || step) {
            Some(("frame.fields", "named values run over nothing"))
        } else if rate && (start || step || !over(AxisKey::Time)) {
            Some(("frame.rate", "a rate belongs to points that run over time"))
        } else if (start || step) && !over(AxisKey::Frequency) {
            let key = if start { "frame.start" } else { "frame.step" };
            Some((key, "this belongs to points that run over frequency"))
        } else {
            None
        };
        match clash {
            Some((key, why)) => Err(Problem::at(key, why).help(
                "write either `rate`, or `start` and `step`, or `fields`, with the `axis` that goes with it",
            )),
            None => Ok(()),
        }
    }

    /// What a frame made of one of `input` means.
    pub(super) fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        let points = self
            .fields
            .as_ref()
            .map(Vec::len)
            .or(self.points)
            .unwrap_or(input.points);
        let layout = Layout {
            scalar: self.scalar.unwrap_or(input.scalar),
            complex: self.complex.unwrap_or(input.complex),
            channels: self.channels.unwrap_or(input.channels),
            points,
            order: self.order.unwrap_or(input.order),
            axis: self.axis(input, points)?,
            frame_rate: input.frame_rate,
        };
        let point = layout.sample_bytes() as u64 * u64::from(layout.channels);
        // A ring's slots lie side by side in memory that is addressed by 63 bits at most.
        if point
            .checked_mul(points as u64)
            .is_none_or(|bytes| bytes > 1 << 40)
        {
            return Err(Problem::at(
                "frame.points",
                format!("{points} points of {point} bytes are more than 1 TiB a frame"),
            ));
        }
        Ok(layout)
    }

    fn axis(&self, input: &Layout, points: usize) -> Result<Axis, Problem> {
        if let Some(fields) = &self.fields {
            return Ok(Axis::Fields(fields.clone()));
        }
        let is_frequency = self.start.is_some() || self.step.is_some();
        let wanted = if self.rate.is_some() {
            Some(AxisKey::Time)
        } else if is_frequency {
            Some(AxisKey::Frequency)
        } else {
            self.axis
        };
        // As many points a second as there are in the frames of a second.
        let rate = || {
            let same = points == input.points;
            let follows = input.frame_rate.map(|frames| frames * points as f64);
            input.sample_rate().filter(|_| same).or(follows)
        };
        match (wanted, &input.axis) {
            (Some(AxisKey::Time), _) | (None, Axis::Time { .. }) => Ok(Axis::Time {
                rate: self.rate.map(|rate| rate.0).or_else(rate),
            }),
            (None, Axis::Fields(names)) if names.len() != points => Err(Problem::at(
                "frame.points",
                format!(
                    "the input's {} points have names, which {points} cannot keep",
                    names.len()
                ),
            )
            .help("name them in `fields`, or say what they run over in `axis`")),
            (None, Axis::Fields(names)) => Ok(Axis::Fields(names.clone())),
            (None, axis @ Axis::Frequency { .. }) if points == input.points => Ok(axis.clone()),
            // The positions of other points are unknown.
            (Some(AxisKey::Frequency), _) | (None, Axis::Frequency { .. }) => Ok(Axis::Frequency {
                start: self.start.map(|start| start.0),
                step: self.step.map(|step| step.0),
            }),
        }
    }
}
