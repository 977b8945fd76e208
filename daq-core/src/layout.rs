//! What the bytes of a frame mean: sample type, channels, points and axes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of one real number in a frame, little-endian.
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
    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 => 2,
            Self::Int32 | Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// The name used in configuration and reports.
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

/// What the points of a channel run over.
#[derive(Clone, Debug, PartialEq)]
pub enum Axis {
    /// Time; points per second where known.
    Time {
        /// Points per second and channel.
        rate: Option<f64>,
    },
    /// Frequency: point `i` stands for `start + i * step`.
    Frequency {
        /// Hz of point 0; `None` where the input's rate is unknown.
        start: Option<f64>,
        /// Hz between points.
        step: Option<f64>,
    },
    /// Named values, one a point.
    Fields(Vec<String>),
}

/// The meaning of a frame's bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The type of each real number.
    pub scalar: Scalar,
    /// Whether a sample is a pair (real, imaginary).
    pub complex: bool,
    /// Channels, at least 1.
    pub channels: u32,
    /// Points of each channel in one frame.
    pub points: usize,
    /// The order of channels and points.
    pub order: Order,
    /// What the points run over.
    pub axis: Axis,
    /// Frames per second where known.
    pub frame_rate: Option<f64>,
}

impl Layout {
    /// Bytes of one sample of one channel.
    pub const fn sample_bytes(&self) -> usize {
        self.scalar.bytes() * if self.complex { 2 } else { 1 }
    }

    /// Bytes of a whole frame.
    pub const fn frame_bytes(&self) -> usize {
        self.sample_bytes() * self.channels as usize * self.points
    }

    /// Points per second and channel, if the axis is time and the rate is known.
    pub const fn sample_rate(&self) -> Option<f64> {
        match self.axis {
            Axis::Time { rate } => rate,
            _ => None,
        }
    }
}

/// The alternate form (`{:#}`) says that the points are a maximum.
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

/// The `samples` table of a source: what its payload means.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// Type of each number: `int8`, `uint8`, `int16`, `int32`, `float32` or `float64`. Bytes are stored as they are sent;
    /// kernels and the metadata of files take them as little-endian. The samples of a big-endian sender (as spead2 sends
    /// from a NumPy array of type `>i2`) are not swapped: have the sender swap them.
    #[serde(rename = "type")]
    pub scalar: Scalar,
    /// Whether numbers come in pairs (real, imaginary).
    pub complex: bool,
    /// Channels in the payload, at least 1.
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
    /// The layout of frames of `frame_bytes`, or the number of bytes that do not make a whole point.
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
