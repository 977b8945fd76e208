//! The meaning of a frame's bytes: sample type, channels, points and axes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a real sample, or of each component of a complex sample, in a frame; little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// 8-bit signed integer.
    Int8,
    /// 8-bit unsigned integer.
    Uint8,
    /// 16-bit signed integer.
    Int16,
    /// 32-bit signed integer.
    Int32,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
}

impl Scalar {
    /// Returns the size of one number in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 => 2,
            Self::Int32 | Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// Returns the name used in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The order of the numbers of several channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// All channels of point 0, then all channels of point 1, …
    #[default]
    Interleaved,
    /// All points of channel 0, then all points of channel 1, …
    Planar,
}

/// The physical axis of the points of a channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Axis {
    /// A time axis.
    Time {
        /// Points per second and channel; `None` if unknown.
        rate: Option<f64>,
    },
    /// A frequency axis: point `i` is at `start + i * step`.
    Frequency {
        /// Frequency of point 0 in Hz; `None` if the sample rate of the input is unknown.
        start: Option<f64>,
        /// Distance between two points in Hz; `None` if the sample rate of the input is unknown.
        step: Option<f64>,
    },
    /// Named values: point `i` is the value with name `i`.
    Fields(Vec<String>),
}

/// The meaning of a frame's bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The type of a real sample, or of each component of a complex sample.
    pub scalar: Scalar,
    /// Whether a sample is a pair (real, imaginary).
    pub complex: bool,
    /// Number of channels, at least 1.
    pub channels: u32,
    /// Number of points of each channel in one frame.
    pub points: usize,
    /// The order of channels and points.
    pub order: Order,
    /// The axis of the points.
    pub axis: Axis,
    /// Frames per second; `None` if unknown.
    pub frame_rate: Option<f64>,
}

impl Layout {
    /// Returns the size of one sample of one channel in bytes.
    pub const fn sample_bytes(&self) -> usize {
        self.scalar.bytes() * if self.complex { 2 } else { 1 }
    }

    /// Returns the size of a whole frame in bytes.
    pub const fn frame_bytes(&self) -> usize {
        self.sample_bytes() * self.channels as usize * self.points
    }

    /// Returns the number of points per second and channel, if the axis is time and the rate is known.
    pub const fn sample_rate(&self) -> Option<f64> {
        match self.axis {
            Axis::Time { rate } => rate,
            _ => None,
        }
    }
}

/// The alternate form (`{:#}`) shows the number of points as a maximum.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complex = if self.complex { "complex " } else { "" };
        write!(
            f,
            "{complex}{}, {} × {}{} ",
            self.scalar,
            crate::units::counted(self.channels, "channel"),
            if f.alternate() { "up to " } else { "" },
            self.points
        )?;
        match &self.axis {
            Axis::Time { rate: Some(rate) } => {
                write!(f, "samples at {}", crate::units::Frequency(*rate))
            }
            Axis::Time { rate: None } => f.write_str("samples"),
            Axis::Frequency { .. } => f.write_str("bins"),
            Axis::Fields(_) => f.write_str("values"),
        }
    }
}

/// The `samples` table of a source, which describes its payload.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// Type of each number: `int8`, `uint8`, `int16`, `int32`, `float32` or `float64`. Received bytes are stored
    /// unchanged. Kernels and file metadata interpret them as little-endian. Samples of a big-endian sender, such as a
    /// NumPy array of type `>i2` sent by spead2, are not byte-swapped; the sender must swap them.
    #[serde(rename = "type")]
    pub scalar: Scalar,
    /// Whether each sample is a pair of numbers (real, imaginary).
    pub complex: bool,
    /// Number of channels in the payload, at least 1.
    pub channels: u32,
    /// Order of the channels' samples.
    pub order: Order,
    /// Samples per second and channel, such as `"1 MHz"`.
    pub rate: Option<crate::units::Frequency>,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            scalar: Scalar::Int8,
            complex: false,
            channels: 1,
            order: Order::Interleaved,
            rate: None,
        }
    }
}

impl Samples {
    /// Returns the layout of frames of `frame_bytes` bytes. If these are not a whole number of points, returns the
    /// number of remaining bytes as the error.
    pub fn layout(&self, frame_bytes: usize) -> Result<Layout, usize> {
        let point =
            self.scalar.bytes() * if self.complex { 2 } else { 1 } * self.channels.max(1) as usize;
        if !frame_bytes.is_multiple_of(point) {
            return Err(frame_bytes % point);
        }
        let points = frame_bytes / point;
        let rate = self.rate.map(|rate| rate.0);
        Ok(Layout {
            scalar: self.scalar,
            complex: self.complex,
            channels: self.channels.max(1),
            points,
            order: self.order,
            axis: Axis::Time { rate },
            frame_rate: rate.filter(|_| points > 0).map(|rate| rate / points as f64),
        })
    }
}
