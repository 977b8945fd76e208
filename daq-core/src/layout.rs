//! The meaning of a frame's bytes: sample type, channels, points and axes.

mod array;
mod axis;
mod image;
mod spread;

pub use array::ArrayType;
pub use axis::Axis;
pub use image::{Image, Module};
pub use spread::Spread;

use crate::config::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a real sample, or of each component of a complex sample, in a frame.
///
/// Types of whole bytes have the names of NumPy's types. They are little-endian, or big-endian if their names end in `be`.
/// Packed types have no unused bits between their numbers. Their names end in `p` or `pmsb` as in the GenICam Pixel Format
/// Naming Convention (PFNC):
///
/// ```text
///   uint12p      byte 0: a[7:0]    byte 1: b[3:0] a[11:8]    byte 2: b[11:4]
///   uint12pmsb   byte 0: a[11:4]   byte 1: a[3:0] b[11:8]    byte 2: b[7:0]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// 8-bit signed integer.
    Int8,
    /// 8-bit unsigned integer.
    Uint8,
    /// 16-bit signed integer.
    Int16,
    /// 16-bit unsigned integer.
    Uint16,
    /// 32-bit signed integer.
    Int32,
    /// 32-bit unsigned integer.
    Uint32,
    /// 64-bit signed integer.
    Int64,
    /// IEEE 754 binary16.
    Float16,
    /// The upper 16 bits of an IEEE 754 binary32.
    Bfloat16,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// 16-bit signed integer, big-endian.
    Int16be,
    /// 16-bit unsigned integer, big-endian.
    Uint16be,
    /// 32-bit signed integer, big-endian.
    Int32be,
    /// 32-bit unsigned integer, big-endian.
    Uint32be,
    /// IEEE 754 binary32, big-endian.
    Float32be,
    /// 4-bit signed integer, first number in the low bits.
    Int4p,
    /// 4-bit unsigned integer, first number in the low bits.
    Uint4p,
    /// 10-bit signed integer, first number in the low bits.
    Int10p,
    /// 10-bit unsigned integer, first number in the low bits.
    Uint10p,
    /// 12-bit signed integer, first number in the low bits.
    Int12p,
    /// 12-bit unsigned integer, first number in the low bits.
    Uint12p,
    /// 4-bit signed integer, first number in the high bits.
    Int4pmsb,
    /// 4-bit unsigned integer, first number in the high bits.
    Uint4pmsb,
    /// 10-bit signed integer, first number in the high bits.
    Int10pmsb,
    /// 10-bit unsigned integer, first number in the high bits.
    Uint10pmsb,
    /// 12-bit signed integer, first number in the high bits.
    Int12pmsb,
    /// 12-bit unsigned integer, first number in the high bits.
    Uint12pmsb,
}

/// How the numbers of a packed type follow each other without unused bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Number of bits of a number: 4, 10 or 12.
    pub bits: u32,
    /// Whether numbers are in two's complement.
    pub signed: bool,
    /// Whether the first number of a byte is in its high bits, and the first byte of a number has its high bits.
    pub msb_first: bool,
}

impl Packing {
    const fn new(bits: u32, signed: bool, msb_first: bool) -> Self {
        Self {
            bits,
            signed,
            msb_first,
        }
    }

    /// Returns the smallest group of numbers without a shared byte: the number of numbers, and of bytes.
    pub const fn group(self) -> (usize, usize) {
        let step = gcd(self.bits as usize, 8);
        (8 / step, self.bits as usize / step)
    }
}

impl Scalar {
    /// All types.
    pub const ALL: [Self; 28] = [
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
        Self::Int16be,
        Self::Uint16be,
        Self::Int32be,
        Self::Uint32be,
        Self::Float32be,
        Self::Int4p,
        Self::Uint4p,
        Self::Int10p,
        Self::Uint10p,
        Self::Int12p,
        Self::Uint12p,
        Self::Int4pmsb,
        Self::Uint4pmsb,
        Self::Int10pmsb,
        Self::Uint10pmsb,
        Self::Int12pmsb,
        Self::Uint12pmsb,
    ];

    /// Returns the packing of a packed type; `None` if each number has its own bytes.
    pub const fn packing(self) -> Option<Packing> {
        Some(match self {
            Self::Int4p => Packing::new(4, true, false),
            Self::Uint4p => Packing::new(4, false, false),
            Self::Int10p => Packing::new(10, true, false),
            Self::Uint10p => Packing::new(10, false, false),
            Self::Int12p => Packing::new(12, true, false),
            Self::Uint12p => Packing::new(12, false, false),
            Self::Int4pmsb => Packing::new(4, true, true),
            Self::Uint4pmsb => Packing::new(4, false, true),
            Self::Int10pmsb => Packing::new(10, true, true),
            Self::Uint10pmsb => Packing::new(10, false, true),
            Self::Int12pmsb => Packing::new(12, true, true),
            Self::Uint12pmsb => Packing::new(12, false, true),
            _ => return None,
        })
    }

    /// Returns the little-endian type of the same numbers; `self` for types that are not big-endian.
    #[must_use]
    pub const fn little_endian(self) -> Self {
        match self {
            Self::Int16be => Self::Int16,
            Self::Uint16be => Self::Uint16,
            Self::Int32be => Self::Int32,
            Self::Uint32be => Self::Uint32,
            Self::Float32be => Self::Float32,
            _ => self,
        }
    }

    /// Returns whether the first byte of a number has its high bits. False for packed types.
    pub fn is_big_endian(self) -> bool {
        self != self.little_endian()
    }

    /// Returns the size of one number in bits.
    pub const fn bits(self) -> usize {
        match self.little_endian() {
            Self::Int8 | Self::Uint8 => 8,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 16,
            Self::Int32 | Self::Uint32 | Self::Float32 => 32,
            Self::Int64 | Self::Float64 => 64,
            Self::Int4p | Self::Uint4p | Self::Int4pmsb | Self::Uint4pmsb => 4,
            Self::Int10p | Self::Uint10p | Self::Int10pmsb | Self::Uint10pmsb => 10,
            _ => 12,
        }
    }

    /// Returns the size of one number in bytes; `None` for packed types.
    pub const fn bytes(self) -> Option<usize> {
        match self.packing() {
            None => Some(self.bits() / 8),
            Some(_) => None,
        }
    }

    /// Returns the lowest and the highest value of an integer type; `None` for floats.
    pub const fn range(self) -> Option<(i64, i64)> {
        let signed = match self.little_endian() {
            Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64 => return None,
            Self::Uint8 | Self::Uint16 | Self::Uint32 => false,
            _ => match self.packing() {
                Some(packing) => packing.signed,
                None => true,
            },
        };
        let bits = self.bits();
        if signed {
            Some((i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)))
        } else {
            // No unsigned type has more than 32 bits.
            Some((0, (1 << bits) - 1))
        }
    }

    /// Returns whether the numbers are floats.
    pub const fn is_float(self) -> bool {
        self.range().is_none()
    }

    /// Returns the name used in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int16 => "int16",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int16be => "int16be",
            Self::Uint16be => "uint16be",
            Self::Int32be => "int32be",
            Self::Uint32be => "uint32be",
            Self::Float32be => "float32be",
            Self::Int4p => "int4p",
            Self::Uint4p => "uint4p",
            Self::Int10p => "int10p",
            Self::Uint10p => "uint10p",
            Self::Int12p => "int12p",
            Self::Uint12p => "uint12p",
            Self::Int4pmsb => "int4pmsb",
            Self::Uint4pmsb => "uint4pmsb",
            Self::Int10pmsb => "int10pmsb",
            Self::Uint10pmsb => "uint10pmsb",
            Self::Int12pmsb => "int12pmsb",
            Self::Uint12pmsb => "uint12pmsb",
        }
    }

    /// Returns the problem of a component, such as ``kernel `stats` ``, that does not support this type.
    pub fn unsupported(self, component: &str) -> Problem {
        Problem::at(
            "input",
            format!("{component} does not support samples of type {self}"),
        )
        .help("put a kernel with `use = \"convert\"` before it, which converts the samples to float32")
    }
}

/// Returns the greatest common divisor of two numbers, of which `a` is not 0.
const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
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
    /// Whether the points of successive frames are one series over time: the first point of a frame follows the last point of
    /// the frame before at the same distance as the points within a frame. Only used if the axis is time.
    pub is_contiguous: bool,
}

impl Layout {
    /// Returns the number of numbers in a sample: 2 for complex samples, otherwise 1.
    pub const fn parts(&self) -> usize {
        if self.complex { 2 } else { 1 }
    }

    /// Returns the number of numbers in a frame.
    pub const fn numbers(&self) -> usize {
        self.parts() * self.channels as usize * self.points
    }

    /// Returns the size of one sample of one channel in bits.
    pub const fn sample_bits(&self) -> usize {
        self.scalar.bits() * self.parts()
    }

    /// Returns the size of one sample of one channel in bytes; `None` for packed types.
    pub const fn sample_bytes(&self) -> Option<usize> {
        match self.scalar.bytes() {
            Some(bytes) => Some(bytes * self.parts()),
            None => None,
        }
    }

    /// Returns the size of a whole frame in bytes. Frames of a packed type contain whole groups of numbers
    /// ([`Packing::group`]).
    pub const fn frame_bytes(&self) -> usize {
        match self.sample_bytes() {
            Some(bytes) => bytes * self.channels as usize * self.points,
            None => (self.numbers() * self.scalar.bits()).div_ceil(8),
        }
    }

    /// Whether the channels of a frame of `bytes` bytes can be separated. A planar frame of another size than
    /// [`frame_bytes`](Self::frame_bytes) does not show where its channels begin.
    pub const fn has_separable_channels(&self, bytes: usize) -> bool {
        matches!(self.order, Order::Interleaved)
            || self.channels <= 1
            || bytes == self.frame_bytes()
    }

    /// Returns the image whose pixels are the points.
    pub const fn image(&self) -> Option<&Image> {
        match &self.axis {
            Axis::Pixels(image) => Some(image),
            _ => None,
        }
    }

    /// Returns the number of points per second and channel, if the axis is time and the rate is known.
    pub const fn sample_rate(&self) -> Option<f64> {
        match self.axis {
            Axis::Time { rate } => rate,
            _ => None,
        }
    }

    /// Returns the number of points per second of output frames that divide the time of these frames into `points` points;
    /// `None` if unknown. An output with one point has the frame rate.
    pub fn rate_of_points(&self, points: usize) -> Option<f64> {
        if points == 1 && self.frame_rate.is_some() {
            return self.frame_rate;
        }
        let scale = points as f64 / self.points.max(1) as f64;
        let from_samples = self.sample_rate().map(|rate| rate * scale);
        let is_whole = self.is_contiguous.then_some(self.frame_rate).flatten();
        from_samples.or_else(|| is_whole.map(|rate| rate * points as f64))
    }

    /// Returns whether output frames that divide the time of these frames into `points` points are contiguous. Frames of one
    /// point always are, because their points are as far apart as the frames.
    pub const fn is_contiguous_in(&self, points: usize) -> bool {
        self.is_contiguous || points == 1
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
            Axis::Pixels(image) => {
                write!(f, "pixels, {} × {}", image.width, image.height)?;
                match image.modules.len() {
                    0 => Ok(()),
                    modules => write!(f, " in {}", crate::units::counted(modules, "module")),
                }
            }
        }
    }
}

/// The `samples` table of a source, which describes its payload.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// Type of each number, described in [Sample types](sample-types.md). Received bytes are stored unchanged. Types of
    /// whole bytes are little-endian, or big-endian if their names end in `be`: a NumPy array of type `>i2` is `int16be`.
    /// Packed types (`uint12p`, …) must fill whole frames; kernel `convert` unpacks them.
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
    /// Number of columns of an image, if frames are images: their pixels follow each other row by row. Needs `height`. Files, Zarr
    /// stores, Python and the page then have rows and columns. A colour image has `channels = 3`.
    pub width: Option<u32>,
    /// Number of rows of an image.
    pub height: Option<u32>,
    /// Colour filter of the pixels of each module, or the order of the colours of several channels, in the notation of GenICam, such
    /// as `"BayerRG"` or `"BGR"`. It is written to metadata. The page shows images with a Bayer filter in colours, and three channels
    /// as red, green and blue, unless `colors` is another order than `"RGB"` or `"BGR"`.
    pub colors: Option<String>,
    /// The places of detector modules in an image, if a frame contains several modules one after the other. `width` and `height`
    /// are then the size of a module.
    pub modules: Vec<Module>,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            scalar: Scalar::Int8,
            complex: false,
            channels: 1,
            order: Order::Interleaved,
            rate: None,
            width: None,
            height: None,
            colors: None,
            modules: Vec::new(),
        }
    }
}

/// Size in bytes above which no machine's memory contains a frame.
const MAX_FRAME: usize = 1 << 46;

impl Samples {
    /// Returns the smallest number of bytes that contains a whole number of points (samples of all channels): the size
    /// of one point, or of several points of a packed type.
    pub const fn point_bytes(&self) -> usize {
        let bits = self.point_bits();
        bits / gcd(bits, 8)
    }

    /// Returns the size of one point (sample of all channels) in bits.
    pub const fn point_bits(&self) -> usize {
        let channels = if self.channels == 0 { 1 } else { self.channels };
        self.scalar.bits() * if self.complex { 2 } else { 1 } * channels as usize
    }

    /// Returns the problem of values that no payload can have.
    fn problem(&self) -> Option<Problem> {
        if self.channels == 0 {
            let problem = Problem::at("samples.channels", "`channels` must be at least 1");
            return Some(problem.help("set at least 1"));
        }
        let rate = self
            .rate
            .filter(|rate| !rate.0.is_normal() || rate.0 < 0.0)?;
        let message = format!("the sample rate cannot be {rate}, it must be above 0");
        let problem = Problem::at("samples.rate", message);
        Some(problem.help("set a rate such as \"1 MHz\", or remove `rate`"))
    }

    /// Returns the layout of frames with the points of `layout`, which are the pixels of an image if `width` and `height` are set.
    /// Fails if the points are not those of an image, or if the number of channels or the rate is invalid.
    pub fn shaped(&self, layout: Layout) -> Result<Layout, Problem> {
        if let Some(problem) = self.problem() {
            return Err(problem);
        }
        let problem = |message: String, help: &str| {
            Err(Problem::at("samples", message).help(help.to_owned()))
        };
        let (Some(width @ 1..), Some(height @ 1..)) = (self.width, self.height) else {
            let is_plain = (self.width, self.height) == (None, None);
            if is_plain && self.colors.is_none() && self.modules.is_empty() {
                return Ok(layout);
            }
            return problem(
                "the size of the images is unknown".to_owned(),
                "set `width` and `height` to the number of columns and rows, at least 1",
            );
        };
        let wrong = |module: &&Module| !matches!(module.rotate, 0 | 90 | 180 | 270);
        if let Some(module) = self.modules.iter().find(wrong) {
            return problem(
                format!("a module cannot be rotated by {} degrees", module.rotate),
                "set `rotate` to 0, 90, 180 or 270",
            );
        }
        let image = Image {
            width,
            height,
            colors: self.colors.clone(),
            modules: self.modules.clone(),
        };
        if let Some((a, b)) = image.overlap() {
            return problem(
                format!("the modules {a} and {b} overlap in the image"),
                "correct `x` and `y` of `modules`: the column and the row in which each module begins",
            );
        }
        let colors = image.colors.as_deref();
        if let Some(filter) = colors.and_then(Image::filter_in_genicam) {
            return problem(
                format!(
                    "`colors = {colors:?}` is not the notation of GenICam",
                    colors = colors.unwrap_or_default()
                ),
                &format!("set `colors = \"{filter}\"`"),
            );
        }
        if image.pixels() == layout.points {
            return Ok(Layout {
                axis: Axis::Pixels(image),
                ..layout
            });
        }
        let (modules, pixels) = (
            crate::units::counted(image.count(), "module"),
            image.pixels(),
        );
        let bytes = pixels.saturating_mul(self.point_bits()).div_ceil(8);
        if bytes > MAX_FRAME {
            return problem(
                format!("{modules} of {width} × {height} pixels are larger than any frame"),
                "correct `width`, `height` or `modules`",
            );
        }
        problem(
            format!(
                "a frame contains {} pixels, but {modules} of {width} × {height} pixels are {pixels} pixels",
                layout.points
            ),
            &format!(
                "correct `width`, `height` or `modules`, or make frames of {bytes} bytes with `slot` of the ring"
            ),
        )
    }

    /// Returns the layout of frames of `frame_bytes` bytes. If these are not a whole number of points, or end inside a
    /// group of packed numbers, returns the number of remaining bytes as the error.
    pub fn layout(&self, frame_bytes: usize) -> Result<Layout, usize> {
        let step = self.point_bytes();
        if !frame_bytes.is_multiple_of(step) {
            return Err(frame_bytes % step);
        }
        let points = frame_bytes / step * (step * 8 / self.point_bits());
        let rate = self.rate.map(|rate| rate.0);
        Ok(Layout {
            scalar: self.scalar,
            complex: self.complex,
            channels: self.channels.max(1),
            points,
            order: self.order,
            axis: Axis::Time { rate },
            frame_rate: rate.filter(|_| points > 0).map(|rate| rate / points as f64),
            is_contiguous: true,
        })
    }
}

#[cfg(test)]
mod tests;
