//! `correlate` computes the visibilities of all pairs of antennas, integrated over time: the X part of an FX correlator.
//!
//! The input has one complex sample per antenna, frequency channel and time. Dual-polarisation antennas count as two
//! antennas. With `x` as an array of (antenna, channel, time), an output is, in numpy,
//!
//! ```python
//! i, j = np.triu_indices(antennas)                        # baselines (0, 0), (0, 1), …, (1, 1), …: antenna i <= j
//! v = np.einsum("act,bct->cab", x, x.conj())[:, i, j]     # an array of (channel, baseline)
//! ```
//!
//! The sum has `integrate` times. The output is complex float32, multiplied by `scale`, or, for int8 samples with
//! `type = "int32"`, exact complex int32. In the layout of the output ring, baselines are channels, and frequency channels
//! are points; the baseline varies fastest (`interleaved`).
//!
//! # Order of the input
//! `axes` names the axes of a frame, the slowest first. By default, the order follows from the layout of the input ring:
//! `"time-antenna-channel"` for interleaved rings, which `channelize` produces, and `"antenna-channel-time"` for planar
//! rings. Frames whose parts are antennas are `"antenna-channel-time"` or `"antenna-time-channel"`, whatever the order
//! within a part is. Time as the last axis is fastest, because other orders are transposed first on a GPU.
//!
//! # Sums
//! Sums on the CPU are float64: exact for int8 and int16 samples. On a GPU, the sums of a burst are int32 for int8 samples,
//! otherwise float32; sums of bursts are float64. Visibilities of int8 samples are therefore exact on both sides until
//! they are rounded to float32. For other types, the error of a GPU is below 1e-5 of the largest visibility, or 1e-4 for
//! float16 samples, because tensor cores do not round sums to nearest.
//!
//! # Which frames go into an output
//! `integrate` divides the number of times of a frame, or is a multiple of it. Missing packets have the fill value of the
//! ring; with the default fill of zeros, missing antennas and times do not contribute. Outputs are flagged `INCOMPLETE`
//! then. The numbers of outputs, the treatment of missing frames (`gap`), and the counts of frames are those of
//! `power-spectrum`.
//!
//! # On a GPU
//! Int8 and float16 samples are multiplied on tensor cores, on GPUs of compute capability 8.0 (2020) and newer. Other types
//! and older GPUs use code without tensor cores. Rows of times are read fastest if they are multiples of 16 bytes. A burst
//! needs one launch, and one more for orders in which time is not the last axis.

mod cpu;
mod cuda;
mod shape;
#[cfg(test)]
mod tests;

use super::antennas::{Axes, complex_samples};
use super::grouping::{AtBoundary, Grouping, Groups, max_outputs};
use super::power_spectrum::{Gap, Partial};
use super::quantise::check_scale;
use super::{device, refused, require};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{InputFacts, Kernel, KernelContext, KernelError, KernelSpec, Side};
use daq_core::layout::Spread;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::units::Frequency;
use schemars::JsonSchema;
use serde::Deserialize;

use shape::Shape;

/// Maximum number of times whose products fit into an int32 sum of int8 samples: 65535 × 2 × 128² < 2^31.
const MAX_INT8_TIMES: usize = 65_535;

/// Registry entry of `correlate`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Correlate>(
    "correlate",
    "Computes visibilities: products of all pairs of antennas, integrated over time",
    "\
[kernel.NAME]
use = \"correlate\"
input = \"INPUT\"
output = \"OUTPUT\"
# Number of antennas (times polarisations); default: the channels of the input, with one frequency channel.
# antennas = 1
# Number of frequency channels per antenna; default: the channels of the input divided by `antennas`.
# channels = 1
# Axes of a frame, the slowest first; default: \"time-antenna-channel\" for interleaved rings, otherwise
# \"antenna-channel-time\". Also: \"antenna-time-channel\", \"channel-antenna-time\", \"channel-time-antenna\",
# \"time-channel-antenna\".
# axes = \"time-antenna-channel\"
# Number of times per output: a divisor or a multiple of the times of a frame; default: all times of a frame.
# integrate = 65536
# Type of the output: \"float32\", or \"int32\" for int8 samples.
# type = \"float32\"
# Factor for float32 outputs.
# scale = 1.0
# Frequency of channel 0, and distance between channels, for readers of the output.
# frequency = \"1.2 GHz\"
# spacing = \"200 kHz\"
# Frames with missing packets: \"use\" them with their fill values, or \"skip\" them and count them as failed.
# partial = \"use\"
# If a frame is missing inside an integration: \"restart\" the integration or \"continue\" it.
# gap = \"restart\"
",
);

/// The keys of a `correlate` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Samples, Scalar};
/// use daq_pipelines::kernels::Correlate;
///
/// // Four antennas with 64 channels each, 32 times.
/// let samples = Samples { scalar: Scalar::Int8, complex: true, channels: 256, ..Samples::default() };
/// let input = samples.layout(16384).unwrap();
/// let visibilities = Correlate { antennas: Some(4), ..Correlate::default() }.layout(&input)?;
/// assert_eq!((visibilities.channels, visibilities.points), (10, 64));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Correlate {
    /// Number of antennas, at least 1; an antenna with two polarisations counts as two. Default: the number of channels of
    /// the input ring, divided by `channels` if it is set.
    pub antennas: Option<u32>,
    /// Number of frequency channels per antenna, at least 1. Default: the number of channels of the input ring divided by
    /// `antennas`. `antennas` × `channels` must be the number of channels of the input ring, unless `axes` is set.
    pub channels: Option<u32>,
    /// Axes of an input frame, the slowest first: `"time-antenna-channel"` (default for interleaved rings, such as outputs
    /// of `channelize`), `"antenna-channel-time"` (default for planar rings), `"antenna-time-channel"`,
    /// `"channel-antenna-time"`, `"channel-time-antenna"` or `"time-channel-antenna"`.
    pub axes: Option<Axes>,
    /// Number of times per output: a divisor or a multiple of the number of times of a frame. Default: all times of one
    /// frame.
    pub integrate: Option<u64>,
    /// Type of the real and imaginary parts of the output: `"float32"` (default), or `"int32"` for int8 samples and at most
    /// 65535 times.
    #[serde(rename = "type")]
    pub output: VisibilityType,
    /// Factor for float32 outputs; default 1.0.
    pub scale: f64,
    /// Frequency of channel 0, such as `"1.2 GHz"`, for the frequency axis of the output. Does not change the data.
    pub frequency: Option<Frequency>,
    /// Distance between two channels, such as `"200 kHz"`, for the frequency axis of the output. Does not change the data.
    pub spacing: Option<Frequency>,
    /// Treatment of frames with missing packets: `"use"` (default) processes them with their fill values; `"skip"`
    /// leaves them out and counts them as failed.
    pub partial: Partial,
    /// Behaviour if a frame is missing inside an integration: `"restart"` (default) restarts the integration, so that
    /// an output consists of successive frames; `"continue"` goes on with the following frames. A new epoch always
    /// restarts the integration.
    pub gap: Gap,
}

impl Default for Correlate {
    fn default() -> Self {
        Self {
            antennas: None,
            channels: None,
            axes: None,
            integrate: None,
            output: VisibilityType::Float32,
            scale: 1.0,
            frequency: None,
            spacing: None,
            partial: Partial::Use,
            gap: Gap::Restart,
        }
    }
}

/// Type of the real and imaginary parts of visibilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VisibilityType {
    /// Float32.
    #[default]
    Float32,
    /// Int32, exact sums of int8 samples.
    Int32,
}

impl Correlate {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        let count = |key: &str, value: Option<u64>| {
            require(
                value != Some(0),
                key,
                format!("`{key}` cannot be 0"),
                "write at least 1, or remove the key",
            )
        };
        count("antennas", self.antennas.map(u64::from))?;
        count("channels", self.channels.map(u64::from))?;
        count("integrate", self.integrate)?;
        check_scale(self.scale)?;
        require(
            self.output == VisibilityType::Float32 || self.scale == 1.0,
            "scale",
            "`scale` cannot be set for int32 outputs, which are exact sums",
            "remove `scale`, or write type = \"float32\"",
        )
    }

    fn shape(&self, input: &Layout) -> Result<Shape, Problem> {
        complex_samples(input, "correlate", self.axes)?;
        self.check()?;
        let shape = Shape::new(self, input)?;
        require(
            self.output == VisibilityType::Float32
                || (input.scalar == Scalar::Int8 && shape.all_times() <= MAX_INT8_TIMES as u64),
            "type",
            format!(
                "the sum of {} products of {} samples does not fit into int32",
                shape.all_times(),
                input.scalar
            ),
            "write type = \"float32\"; int32 needs int8 samples and `integrate` of at most 65535",
        )?;
        Ok(shape)
    }

    fn output(&self, input: &Layout, shape: &Shape) -> Layout {
        Layout {
            scalar: match self.output {
                VisibilityType::Float32 => Scalar::Float32,
                VisibilityType::Int32 => Scalar::Int32,
            },
            complex: true,
            channels: super::parameters::small(shape.baselines()),
            points: shape.extents.channels,
            order: Order::Interleaved,
            axis: Axis::Frequency {
                start: self.frequency.map(|frequency| frequency.0),
                step: self.spacing.map(|spacing| spacing.0),
            },
            frame_rate: input
                .frame_rate
                .map(|rate| rate * shape.items as f64 / shape.each as f64),
            is_contiguous: input.is_contiguous,
        }
    }
}

impl KernelSpec for Correlate {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(self.output(input, &self.shape(input)?))
    }

    fn supports_share(&self, whole: &Layout, share: &Layout, by: Spread) -> Result<(), String> {
        let extents = |layout| self.shape(layout).map(|shape| shape.extents);
        let (all, some) = (extents(whole), extents(share));
        let (all, some) = (
            all.map_err(|why| why.message)?,
            some.map_err(|why| why.message)?,
        );
        all.check_share(&some, (whole, self.axes), by)
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let Ok(shape) = self.shape(input) else {
            return InputFacts::default();
        };
        InputFacts {
            runs_on_gpu: device::can_count(input)
                && device::can_count(&self.output(input, &shape))
                && shape.length <= MAX_INT8_TIMES,
            max_outputs: max_outputs(shape.items as u128, shape.each),
            memory: cpu::memory(&shape),
            device_memory: cuda::memory(input, &shape),
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let shape = self.shape(input).map_err(refused)?;
        let grouping = Grouping::new(Groups {
            input_bytes: input.frame_bytes(),
            items: shape.items,
            joined: None,
            each: shape.each,
            hop: shape.length,
            rate: input
                .rate_of_points(shape.extents.times)
                .filter(|rate| *rate > 0.0),
            skip_incomplete: self.partial == Partial::Skip,
            at_gap: match self.gap {
                Gap::Restart => AtBoundary::Restart,
                Gap::Continue => AtBoundary::Continue,
            },
            at_epoch: AtBoundary::Restart,
        });
        match context.side {
            Side::Cpu => cpu::build(self, input, grouping, shape),
            Side::Cuda(ordinal) => cuda::build(ordinal, self, input, grouping, shape),
        }
    }
}
