//! `beamform` forms beams: weighted sums of the samples of antennas.
//!
//! With `x` as an array of (antenna, channel, time) and `w` as an array of weights (beam, channel, antenna), an output is, in
//! numpy,
//!
//! ```python
//! y = np.einsum("bca,act->bct", w, x) * scale                                          # detect = "none"
//! p = (abs(y) ** 2).reshape(beams, channels, -1, integrate).sum(axis=-1)               # detect = "power"
//! ```
//!
//! Weights are not conjugated. Beams are complex float32, float16, int16 or int8; powers are float32, and their factor is
//! `scale`, not its square. The array of an output is beam × channel × time: channel `b * channels + c` of the output ring is
//! channel `c` of beam `b`, and the order is planar. Each input frame gives one output frame with the same metadata.
//!
//! # Weights
//! `weights` is an NPY file with a complex array of (beam, antenna) for all channels, or of (beam, channel, antenna).
//! Without this file, all weights are `1 / antennas`. `delays` is an NPY file with a real array of (beam, antenna) in seconds,
//! by which each antenna is delayed. The weights, such as calibration factors, are multiplied by the phases of the delays:
//!
//! ```python
//! w = w * np.exp(-2j * np.pi * f[:, None] * delays[:, None, :])    # f: frequencies of the channels in Hz
//! ```
//!
//! A wave from the direction `d` (a unit vector) reaches an antenna at the position `r` earlier by `(r @ d) / c` than the
//! origin, so `delays = directions @ positions.T / 299792458.0` points beams in these directions. Files are read at startup
//! only; restart daq to change weights.
//!
//! For int8 and float16 samples, the weights of a kernel are divided by the largest one and rounded to float16 (a relative
//! error of up to 2^-11), on the CPU and on GPUs, because tensor cores multiply float16 numbers. For int16 and float32 samples,
//! weights are float32. Sums are float64 on the CPU and float32 on GPUs. Their difference is below 1e-5 of the largest beam.
//!
//! # Input
//! The order of the input, and the keys `antennas`, `channels` and `axes`, are those of `correlate`. Missing packets have the
//! fill value of the ring; with the default fill of zeros, missing antennas do not contribute. The output has the flags of
//! the input. Frames that are too short count as `failed`.
//!
//! # On a GPU
//! Int8 and float16 samples are multiplied on tensor cores, on GPUs of compute capability 8.0 (2020) and newer. Other types
//! and older GPUs use code without tensor cores. A burst needs one launch, and one more for orders in which time is not the
//! last axis.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;
mod weights;

use super::antennas::{Axes, Extents, complex_samples};
use super::quantise::{OutputType, check_scale};
use super::{check_contents, device, refused, require};
use daq_core::check::{CheckContext, CheckReport, FileUse, NamedFile};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{
    InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec, Side,
};
use daq_core::layout::Spread;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::units::Frequency;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

const MAX_BEAMS: usize = 1 << 16;

/// Registry entry of `beamform`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Beamform>(
    "beamform",
    "Forms beams: weighted sums of the samples of antennas",
    "\
[kernel.NAME]
use = \"beamform\"
input = \"INPUT\"
output = \"OUTPUT\"
# Number of beams, at least 1.
# beams = 1
# Number of antennas (times polarisations); default: the channels of the input, with one frequency channel.
# antennas = 1
# Number of frequency channels per antenna; default: the channels of the input divided by `antennas`.
# channels = 1
# Axes of a frame, the slowest first; default: \"time-antenna-channel\" for interleaved rings, otherwise
# \"antenna-channel-time\". The other orders are those of `correlate`.
# axes = \"time-antenna-channel\"
# NPY file with complex weights of (beam, antenna) or (beam, channel, antenna), read at startup.
# weights = \"weights.npy\"
# NPY file with delays of (beam, antenna) in seconds, and the frequency of channel 0 and the distance between channels.
# The weights are multiplied by the phases of the delays. Without weights and delays, a beam is the mean of all antennas.
# delays = \"delays.npy\"
# frequency = \"1.2 GHz\"
# spacing = \"200 kHz\"
# \"none\", or \"power\": the squared magnitude of the beams.
# detect = \"none\"
# Number of times per sum of powers: a divisor of the times of a frame.
# integrate = 1
# Type of the beams' real and imaginary parts: \"float32\", \"float16\", \"int16\" or \"int8\".
# type = \"float32\"
# Factor for every output number.
# scale = 1.0
",
);

/// The keys of a `beamform` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Samples, Scalar};
/// use daq_pipelines::kernels::Beamform;
///
/// // Four antennas with 64 channels each, 32 times.
/// let samples = Samples { scalar: Scalar::Int8, complex: true, channels: 256, ..Samples::default() };
/// let input = samples.layout(16384).unwrap();
/// let output = Beamform { antennas: Some(4), beams: 3, ..Beamform::default() }.layout(&input)?;
/// assert_eq!((output.channels, output.points), (3 * 64, 32));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Beamform {
    /// Number of beams, 1 (default) to 65536.
    pub beams: usize,
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
    /// NPY file with the weights: a complex64 or complex128 array of (beam, antenna) or (beam, channel, antenna). The file
    /// is read at startup only. Without `weights`, all weights are 1 / `antennas`.
    pub weights: Option<PathBuf>,
    /// NPY file with the delays of the antennas in seconds: a float32 or float64 array of (beam, antenna). The weights are
    /// multiplied by the phases of the delays. Requires `frequency`, and `spacing` if there are several channels. The file is read at startup only.
    pub delays: Option<PathBuf>,
    /// Frequency of channel 0, such as `"1.2 GHz"`, for `delays`.
    pub frequency: Option<Frequency>,
    /// Distance between two channels, such as `"200 kHz"`, for `delays`.
    pub spacing: Option<Frequency>,
    /// `"none"` (default): the output is the beams. `"power"`: the output is the squared magnitude of the beams, summed over
    /// `integrate` times.
    pub detect: Detect,
    /// Number of times per sum of powers: a divisor of the number of times of a frame; default 1. Only with
    /// `detect = "power"`.
    pub integrate: usize,
    /// Type of the real and imaginary parts of the beams: `"float32"` (default), `"float16"`, `"int16"` or `"int8"`. Integers
    /// are rounded, and limited to ±32767 or ±127. Powers are always float32.
    #[serde(rename = "type")]
    pub output: OutputType,
    /// Factor for every output number; default 1.0.
    pub scale: f64,
}

impl Default for Beamform {
    fn default() -> Self {
        Self {
            beams: 1,
            antennas: None,
            channels: None,
            axes: None,
            weights: None,
            delays: None,
            frequency: None,
            spacing: None,
            detect: Detect::None,
            integrate: 1,
            output: OutputType::Float32,
            scale: 1.0,
        }
    }
}

/// What is computed from the beams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Detect {
    /// Nothing: the output is the beams.
    #[default]
    None,
    /// The squared magnitude.
    Power,
}

impl Beamform {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        require(
            (1..=MAX_BEAMS).contains(&self.beams),
            "beams",
            format!("`beams` cannot be {}", self.beams),
            "write 1 to 65536",
        )?;
        for (key, value) in [("antennas", self.antennas), ("channels", self.channels)] {
            require(
                value != Some(0),
                key,
                format!("`{key}` cannot be 0"),
                "write at least 1, or remove the key",
            )?;
        }
        require(
            self.delays.is_none() || self.frequency.is_some(),
            "delays",
            "the weights of delays depend on the frequency, which is not known",
            "set `frequency` to the frequency of channel 0, and `spacing` to the distance between channels",
        )?;
        let detects = self.detect == Detect::Power;
        require(
            self.integrate == 1 || (detects && self.integrate > 0),
            "integrate",
            format!("`integrate` cannot be {}", self.integrate),
            "write at least 1, and set detect = \"power\" for more",
        )?;
        require(
            self.output == OutputType::Float32 || !detects,
            "type",
            "powers are float32",
            "remove `type`, or remove `detect`",
        )?;
        check_scale(self.scale)
    }

    fn extents(&self, input: &Layout) -> Result<Extents, Problem> {
        complex_samples(input, "beamform", self.axes)?;
        self.check()?;
        let extents = Extents::new(self.antennas, self.channels, self.axes, input)?;
        require(
            extents.times.is_multiple_of(self.integrate),
            "integrate",
            format!(
                "`integrate` is {}, but a frame has {} times",
                self.integrate, extents.times
            ),
            "write a divisor of the number of times of a frame",
        )?;
        require(
            self.delays.is_none() || self.spacing.is_some() || extents.channels == 1,
            "spacing",
            "the weights of delays depend on the frequencies of the channels, which are not known",
            "set `spacing` to the distance between channels",
        )?;
        require(
            self.beams
                .checked_mul(extents.channels)
                .is_some_and(|all| u32::try_from(all).is_ok()),
            "beams",
            format!(
                "{} beams with {} channels each are too many",
                self.beams, extents.channels
            ),
            "lower `beams`",
        )?;
        Ok(extents)
    }

    fn output(&self, input: &Layout, extents: &Extents) -> Layout {
        let points = extents.times / self.integrate;
        Layout {
            scalar: match self.detect {
                Detect::None => self.output.scalar(),
                Detect::Power => Scalar::Float32,
            },
            complex: self.detect == Detect::None,
            channels: super::parameters::small(self.beams * extents.channels),
            points,
            order: Order::Planar,
            axis: Axis::Time {
                rate: input.rate_of_points(points),
            },
            frame_rate: input.frame_rate,
            is_contiguous: input.is_contiguous_in(points),
        }
    }
}

/// Returns whether weights are rounded to float16 for samples of this type.
const fn rounds_weights(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::Int8 | Scalar::Float16)
}

impl KernelSpec for Beamform {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(self.output(input, &self.extents(input)?))
    }

    fn facts(&self) -> KernelFacts {
        let named = [("weights", &self.weights), ("delays", &self.delays)];
        let file = |(key, path): (&str, &Option<PathBuf>)| {
            Some(NamedFile::new(key, path.as_ref()?, FileUse::Reads))
        };
        KernelFacts {
            files: named.into_iter().filter_map(file).collect(),
            ..KernelFacts::default()
        }
    }

    fn check_files(&self, context: &CheckContext<'_>) -> CheckReport {
        check_contents(&self.facts().files, context, |input| {
            let extents = self.extents(input).map_err(refused)?;
            weights::Weights::read(
                self,
                &extents,
                rounds_weights(input.scalar),
                context.directory,
            )?;
            Ok(())
        })
    }

    fn supports_share(&self, whole: &Layout, share: &Layout, by: Spread) -> Result<(), String> {
        let (all, some) = (self.extents(whole), self.extents(share));
        let (all, some) = (
            all.map_err(|why| why.message)?,
            some.map_err(|why| why.message)?,
        );
        all.check_share(&some, (whole, self.axes), by)?;
        if self.beams > 1 {
            return Err("a share has some of the channels of each beam, but the output has one beam after the other; use one \
                        kernel per beam with `beams = 1`".to_owned());
        }
        if self.delays.is_some() {
            return Err("the weights of `delays` depend on the frequencies of the channels, which differ between shares".to_owned());
        }
        Ok(())
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let Ok(extents) = self.extents(input) else {
            return InputFacts::default();
        };
        let weights = self.beams * extents.antennas * extents.channels * 8;
        InputFacts {
            runs_on_gpu: device::can_count(input)
                && device::can_count(&self.output(input, &extents))
                && cuda::fits(self, &extents),
            memory: weights + cpu::memory(&extents),
            device_memory: cuda::memory(self, input, &extents),
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let extents = self.extents(input).map_err(refused)?;
        let weights = weights::Weights::read(
            self,
            &extents,
            rounds_weights(input.scalar),
            &context.directory,
        )?;
        match context.side {
            Side::Cpu => cpu::build(self, input, extents, weights),
            Side::Cuda(ordinal) => cuda::build(ordinal, self, input, &extents, &weights),
        }
    }
}
