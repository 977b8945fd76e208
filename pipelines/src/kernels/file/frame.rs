//! Describes output frames.

use super::super::require;
use daq_core::config::Problem;
use daq_core::layout::{Axis, Image, Layout, Order, Scalar};
use daq_core::units::Frequency;
use schemars::JsonSchema;
use serde::Deserialize;

/// Axis of the output's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AxisKey {
    /// Time.
    Time,
    /// Frequency.
    Frequency,
}

/// The table `frame`: differences between output frames and input frames.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FrameKeys {
    /// Type of each number, described in [Sample types](sample-types.md).
    #[serde(rename = "type")]
    pub scalar: Option<Scalar>,
    /// Whether numbers are pairs of real and imaginary part.
    pub complex: Option<bool>,
    /// Number of channels in the frame, at least 1.
    pub channels: Option<u32>,
    /// Number of points of each channel in one frame, at least 1.
    pub points: Option<usize>,
    /// Order of the channels' points, `"interleaved"` or `"planar"`.
    pub order: Option<Order>,
    /// Axis of the points, `"time"` or `"frequency"`.
    pub axis: Option<AxisKey>,
    /// Points per second and channel, such as `"1 MHz"`, for points over time. By default, the points of an output divide the
    /// time of the input's points equally.
    pub rate: Option<Frequency>,
    /// Frequency of the first point, for points over frequency.
    pub start: Option<Frequency>,
    /// Frequency step between points, for points over frequency.
    pub step: Option<Frequency>,
    /// Names of the points, one name per point, for points with different meanings.
    pub fields: Option<Vec<String>>,
}

impl FrameKeys {
    /// Checks everything that does not depend on the input.
    pub(super) fn check(&self) -> Result<(), Problem> {
        for (key, count, what) in [
            (
                "frame.channels",
                self.channels.map(|count| count as usize),
                "channel",
            ),
            ("frame.points", self.points, "point"),
            ("frame.fields", self.fields.as_ref().map(Vec::len), "value"),
        ] {
            require(
                count != Some(0),
                key,
                format!("a frame must have at least one {what}"),
                "write at least 1, or remove the key to use the input's value",
            )?;
        }
        if let (Some(points), Some(fields)) = (self.points, &self.fields) {
            let names = fields.len();
            require(
                points == names,
                "frame.points",
                format!("`points` is {points}, but `fields` has {names} names"),
                "remove `points`; each name is one point",
            )?;
        }
        // Only the keys of one axis are allowed.
        let (rate, start) = (self.rate.is_some(), self.start.is_some());
        let is_frequency = start || self.step.is_some();
        let over = |axis| self.axis.is_none_or(|given| given == axis);
        for (clashes, key, why) in [
            (
                self.fields.is_some() && (self.axis.is_some() || rate || is_frequency),
                "frame.fields",
                "`fields` cannot be combined with `axis`, `rate`, `start` or `step`",
            ),
            (
                rate && (is_frequency || !over(AxisKey::Time)),
                "frame.rate",
                "`rate` requires axis = \"time\", without `start` and `step`",
            ),
            (
                is_frequency && !over(AxisKey::Frequency),
                if start { "frame.start" } else { "frame.step" },
                "`start` and `step` require axis = \"frequency\"",
            ),
        ] {
            require(
                !clashes,
                key,
                why,
                "write either `rate` (axis = \"time\"), or `start` and `step` (axis = \"frequency\"), or `fields` \
                 (without `axis`)",
            )?;
        }
        Ok(())
    }

    /// Returns the layout of an output frame for `input`.
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
            is_contiguous: input.is_contiguous_in(points),
        };
        let point = layout.sample_bits() as u64 * u64::from(layout.channels);
        let bits = point.checked_mul(points as u64);
        // Larger frames are rejected, because the slots of a ring must be contiguous in a 63-bit address space.
        let Some(bits) = bits.filter(|bits| *bits <= 8 << 40) else {
            return Err(Problem::at(
                "frame.points",
                format!("a frame of {points} points of {point} bits is larger than 1 TiB"),
            ));
        };
        require(
            bits.is_multiple_of(8),
            "frame.points",
            format!(
                "a frame of {points} points ends inside a group of packed {} numbers",
                layout.scalar
            ),
            "set a number of points that fills whole bytes, such as a multiple of 4",
        )?;
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
        match (wanted, &input.axis) {
            (Some(AxisKey::Time), _) | (None, Axis::Time { .. }) => Ok(Axis::Time {
                rate: self.rate.map_or_else(|| input.rate_of_points(points), |rate| Some(rate.0)),
            }),
            (None, Axis::Fields(names)) if names.len() != points => Err(Problem::at(
                "frame.points",
                format!(
                    "the input has names for {} points, but the output has {points} points",
                    names.len()
                ),
            )
            .help("set the names of the output's points in `fields`, or the axis of these points in `axis`")),
            (None, Axis::Fields(names)) => Ok(Axis::Fields(names.clone())),
            (None, axis @ Axis::Frequency { .. }) if points == input.points => Ok(axis.clone()),
            // The colours of another number of channels are unknown.
            (None, Axis::Pixels(image)) if points == input.points => Ok(Axis::Pixels(Image {
                colors: image.colors.clone().filter(|_| {
                    self.channels.is_none_or(|channels| channels == input.channels)
                }),
                ..image.clone()
            })),
            (None, Axis::Pixels(_)) => Ok(Axis::Time { rate: None }),
            // The frequencies of the new points are unknown.
            (Some(AxisKey::Frequency), _) | (None, Axis::Frequency { .. }) => Ok(Axis::Frequency {
                start: self.start.map(|start| start.0),
                step: self.step.map(|step| step.0),
            }),
        }
    }
}
