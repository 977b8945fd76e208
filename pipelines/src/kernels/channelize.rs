//! `channelize` divides each input into frequency channels with a polyphase filter bank.
//!
//! With `x` the samples of one input (a channel of the input ring), `N` the key `channels`, `P` the key `taps` and `h`
//! the coefficients of the prototype filter, a transform has `L = N` points for complex samples and `L = 2 * N` points
//! for real samples. A new spectrum starts every `hop = L / oversampling` samples. In numpy and scipy, spectrum `m` is
//!
//! ```python
//! h = scipy.signal.firwin(L * P, cutoff / L, window=window)            # window-sinc filter, sum(h) == 1
//! t = np.arange(m * hop + hop - L * P, m * hop + hop)                  # numbers of the samples of the window
//! k = np.arange(-(N // 2), N - N // 2) if complex else np.arange(N)    # numbers of the channels
//! y[m] = (h * x[t] * np.exp(-2j * np.pi * np.outer(k, t) / L)).sum(axis=1) * scale
//! ```
//!
//! - Sample 0 is the first sample of frame 0 of the epoch. Because the exponential contains the number `t` of the sample,
//!   not its position in the window, the phases of an oversampled filter bank are continuous: a tone in the middle of a
//!   channel gives a constant output.
//! - A spectrum contains the samples up to the end of its own hop. The filter delays the signal by `(L * P - 1) / 2`
//!   samples. Timestamps are not corrected for this delay.
//! - A complex tone of amplitude `A` in the middle of a channel gives the amplitude `A * scale`, a real tone `A * scale / 2`.
//! - Complex samples have `N` channels from minus half the sample rate upwards, as `numpy.fft.fftshift` orders them. Real
//!   samples have `N` channels from 0 Hz up to but not including half the sample rate.
//! - The filter attenuates a signal at the edge between two channels by 6 dB with `cutoff = 1.0`.
//! - Sums and transforms are float32. The error is below 1e-5 of the RMS of the spectrum.
//!
//! # Output
//! Each frame gives one output frame with the same sequence number and timestamp. Its array is time × inputs × channels:
//! one complex number per spectrum, input and channel, and the channel varies fastest. In the layout of the output ring,
//! channel `a * N + c` is channel `c` of input `a`, the order is interleaved, and the sample rate is that of the spectra.
//!
//! With `type = "int8"` or `"int16"`, real and imaginary parts are rounded to the nearest integer, half to even, and
//! limited to ±127 or ±32767. A kernel `stats` with `clip = 127` behind it counts the limited numbers.
//!
//! # Missing data
//! The window of the first spectra of a frame reaches into earlier frames. If these frames are not available, because a
//! frame is missing or too short, or because an epoch begins, their samples count as zeros. The outputs that such a window
//! reaches into are flagged `INCOMPLETE`, and so are outputs with a window that contains missing packets. The flag of an
//! output is the union of the flags of all frames that its spectra depend on. Frames that are too short count as `failed`.
//!
//! # On a GPU
//! The CUDA side supports powers of two from 64 to 8192 channels, samples of the types int8, int16 and float32,
//! frames of at least `L` samples, and, for real samples, an even hop. Other cases run on the CPU. 8192 channels need a
//! GPU with more than 64 KiB of shared memory per block. A burst needs one launch and one more that keeps the last samples
//! for the next burst. Interleaved inputs need another launch, which copies them to planar frames.
//!
//! Without oversampling, a symmetric filter (that of every `window`) with a multiple of eight taps is computed faster, except
//! in blocks of threads that read more than one frame. Long frames have few such blocks.

mod continuity;
mod cpu;
pub(super) mod cuda;
mod prototype;
mod ratio;
#[cfg(test)]
mod tests;

use super::power_spectrum::{Window, WindowShape};
use super::quantise::{OutputType, check_scale};
use super::{
    check_contents, common_type, contiguous, device, not_empty, refused, require, transform,
};
use daq_core::check::{CheckContext, CheckReport, FileUse, NamedFile};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{
    InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec, Side,
};
use daq_core::layout::Spread;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

pub use ratio::Ratio;

/// Default number of channels; smaller frames use fewer.
const DEFAULT_CHANNELS: usize = 1024;
const MAX_CHANNELS: usize = 1 << 20;
const MAX_TAPS: usize = 1024;
/// The numbers of channels that the CUDA side supports: powers of two in this range.
const GPU_CHANNELS: std::ops::RangeInclusive<usize> = 64..=8192;

/// Registry entry of `channelize`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Channelize>(
    "channelize",
    "Divides samples into frequency channels with a polyphase filter bank",
    "\
[kernel.NAME]
use = \"channelize\"
input = \"INPUT\"
output = \"OUTPUT\"
# Number of channels per input, 2 to 1048576; default: 1024, or fewer if frames are short.
# channels = 64
# Number of taps per channel, 1 to 1024: the filter has channels × taps coefficients, twice as many for real samples.
# taps = 8
# Window of the prototype filter, as for `power-spectrum`, but always symmetric; also { kind = \"kaiser\", beta = 8.0 }.
# window = \"hamming\"
# Frequency with 6 dB attenuation, as a multiple of half the distance between channels.
# cutoff = 1.0
# NPY file with the coefficients of the prototype filter, instead of `window` and `cutoff`.
# coefficients = \"filter.npy\"
# Output rate as a multiple of the distance between channels, \"1\" to \"64\", for example \"4/3\" or \"32/27\".
# oversampling = \"1\"
# Type of the output's real and imaginary parts: \"float32\", \"int16\" or \"int8\".
# type = \"float32\"
# Factor for every output number.
# scale = 1.0
",
);

/// The keys of a `channelize` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Order, Samples, Scalar};
/// use daq_pipelines::kernels::Channelize;
///
/// // Two real inputs, 4096 samples each.
/// let input = Samples { scalar: Scalar::Int16, channels: 2, ..Samples::default() }.layout(16384).unwrap();
/// let output = Channelize { channels: Some(64), ..Channelize::default() }.layout(&input)?;
/// assert_eq!((output.scalar, output.complex), (Scalar::Float32, true));
/// // A spectrum every 128 samples, with 64 channels of each input.
/// assert_eq!((output.points, output.channels, output.order), (32, 128, Order::Interleaved));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Channelize {
    /// Number of channels per input, 2 to 1048576. Default: 1024, or the largest power of two below it with which a frame
    /// has a whole number of spectra.
    pub channels: Option<usize>,
    /// Number of taps per channel, 1 to 1024; default 8. The prototype filter has `channels * taps` coefficients, for real
    /// samples `2 * channels * taps`.
    pub taps: usize,
    /// Window of the prototype filter, which is a window-sinc filter: `"hamming"` (default) or another window of
    /// `power-spectrum`, such as `"hann"` or `{ kind = "kaiser", beta = 8.0 }`. It is symmetric, as in
    /// `scipy.signal.firwin`.
    pub window: Window,
    /// Frequency at which the filter attenuates by 6 dB, as a multiple of half the distance between two channels; above 0,
    /// default 1.0: the edge of the channel.
    pub cutoff: f64,
    /// NPY file with the coefficients of the prototype filter, in the order of the samples, instead of a filter from
    /// `window` and `cutoff`: an array of float32 or float64 with one dimension. The file is read at startup only.
    pub coefficients: Option<PathBuf>,
    /// Output rate of a channel as a multiple of the distance between two channels: a fraction from `"1"` (default,
    /// critically sampled) to `"64"`, for example `"4/3"` or `"32/27"`. A spectrum starts every L / oversampling samples,
    /// where L is `channels` for complex samples and `2 * channels` for real samples. This number must be an integer that
    /// divides the number of samples of a frame.
    pub oversampling: Ratio,
    /// Type of the real and imaginary parts of the output: `"float32"` (default), `"float16"`, `"int16"` or `"int8"`. Integers
    /// are rounded, and limited to ±32767 or ±127.
    #[serde(rename = "type")]
    pub output: OutputType,
    /// Factor for every output number; default 1.0.
    pub scale: f64,
}

impl Default for Channelize {
    fn default() -> Self {
        Self {
            channels: None,
            taps: 8,
            window: WindowShape::Hamming.into(),
            cutoff: 1.0,
            coefficients: None,
            oversampling: Ratio::ONE,
            output: OutputType::Float32,
            scale: 1.0,
        }
    }
}

/// Sizes derived from the keys and the input layout.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// Number of channels per input.
    channels: usize,
    /// Number of points of a transform.
    size: usize,
    taps: usize,
    /// Number of samples between the starts of two spectra.
    hop: usize,
    /// Number of spectra per frame.
    spectra: usize,
    inputs: usize,
    /// Number of samples per input and frame.
    points: usize,
}

impl Shape {
    /// Returns the number of samples of earlier frames that the first spectrum of a frame contains.
    const fn history(&self) -> usize {
        self.size * self.taps - self.hop
    }

    const fn is_oversampled(&self) -> bool {
        self.hop != self.size
    }
}

impl Channelize {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        let channels = self.channels.unwrap_or(DEFAULT_CHANNELS);
        require(
            (2..=MAX_CHANNELS).contains(&channels),
            "channels",
            format!("`channels` cannot be {channels}"),
            "write 2 to 1048576; the GPU supports powers of two from 64 to 8192",
        )?;
        require(
            (1..=MAX_TAPS).contains(&self.taps),
            "taps",
            format!("`taps` cannot be {}", self.taps),
            "write 1 to 1024; 4 to 16 are usual, 1 gives a windowed Fourier transform",
        )?;
        require(
            self.cutoff > 0.0 && self.cutoff <= 64.0,
            "cutoff",
            format!("`cutoff` cannot be {}", self.cutoff),
            "write a number above 0, such as 1.0 for the edge of a channel",
        )?;
        check_scale(self.scale)
    }

    /// Returns the number of points of a transform and the hop; `None` if the hop is not an integer.
    const fn transform(&self, channels: usize, complex: bool) -> Option<(usize, usize)> {
        let size = if complex { channels } else { 2 * channels };
        match self.oversampling.divide(size) {
            Some(hop) => Some((size, hop)),
            None => None,
        }
    }

    fn channels(&self, input: &Layout) -> usize {
        self.channels.unwrap_or_else(|| {
            let powers = (1..=DEFAULT_CHANNELS.ilog2()).rev().map(|power| 1 << power);
            let fits = |channels: &usize| {
                self.transform(*channels, input.complex)
                    .is_some_and(|(_, hop)| input.points.is_multiple_of(hop))
            };
            powers.into_iter().find(fits).unwrap_or(2)
        })
    }

    fn shape(&self, input: &Layout) -> Result<Shape, Problem> {
        not_empty(input)?;
        common_type(input, "channelize")?;
        self.check()?;
        require(
            // The samples of a camera's lines may be transformed like samples over time.
            matches!(input.axis, Axis::Time { .. } | Axis::Pixels(_)),
            "input",
            format!("the input's frames ({input}) are not samples over time"),
            "use a ring that a source or a `convert` kernel fills",
        )?;
        contiguous(input, "`channelize`")?;
        let channels = self.channels(input);
        let (size, hop) = self.transform(channels, input.complex).ok_or_else(|| {
            let size = if input.complex { channels } else { 2 * channels };
            Problem::at(
                "oversampling",
                format!(
                    "spectra would start every {size} / ({}) samples, which is not an integer",
                    self.oversampling
                ),
            )
            .help("choose `channels` as a multiple of the first number of the fraction, or another fraction")
        })?;
        require(
            input.points.is_multiple_of(hop),
            "input",
            format!(
                "a frame of {} samples is not a whole number of spectra, which start every {hop} samples",
                input.points
            ),
            format!(
                "set the `slot` of the input ring so that a frame has a multiple of {hop} samples per input, or change \
                 `channels` or `oversampling`"
            ),
        )?;
        let inputs = input.channels as usize;
        require(
            inputs
                .checked_mul(channels)
                .is_some_and(|all| u32::try_from(all).is_ok()),
            "channels",
            format!("{inputs} inputs with {channels} channels each are too many"),
            "lower `channels`",
        )?;
        Ok(Shape {
            channels,
            size,
            taps: self.taps,
            hop,
            spectra: input.points / hop,
            inputs,
            points: input.points,
        })
    }

    fn output(&self, input: &Layout, shape: &Shape) -> Layout {
        Layout {
            scalar: self.output.scalar(),
            complex: true,
            channels: super::parameters::small(shape.inputs * shape.channels),
            points: shape.spectra,
            order: Order::Interleaved,
            axis: Axis::Time {
                rate: input.sample_rate().map(|rate| rate / shape.hop as f64),
            },
            frame_rate: input.frame_rate,
            is_contiguous: true,
        }
    }
}

impl KernelSpec for Channelize {
    fn supports_share(&self, whole: &Layout, share: &Layout, _: Spread) -> Result<(), String> {
        if share.points < whole.points {
            return Err("the filter needs the samples before those of the share".to_owned());
        }
        Ok(())
    }

    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(self.output(input, &self.shape(input)?))
    }

    fn facts(&self) -> KernelFacts {
        let file = |path| NamedFile::new("coefficients", path, FileUse::Reads);
        let before = "the filter needs the last samples of the frame before";
        KernelFacts {
            files: self.coefficients.iter().map(file).collect(),
            spread_frames: Err(before.to_owned()),
            ..KernelFacts::default()
        }
    }

    fn check_files(&self, context: &CheckContext<'_>) -> CheckReport {
        check_contents(&self.facts().files, context, |input| {
            let shape = self.shape(input).map_err(refused)?;
            prototype::coefficients(self, &shape, context.directory)?;
            Ok(())
        })
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let Ok(shape) = self.shape(input) else {
            return InputFacts::default();
        };
        let device_memory = cuda::memory(input, &shape);
        InputFacts {
            runs_on_gpu: GPU_CHANNELS.contains(&shape.channels)
                && shape.channels.is_power_of_two()
                && shape.points >= shape.size
                && (input.complex || shape.hop.is_multiple_of(2))
                && matches!(input.scalar, Scalar::Int8 | Scalar::Int16 | Scalar::Float32)
                && device::can_count(input)
                && device::can_count(&self.output(input, &shape))
                && device_memory < device::MAX_BYTES,
            memory: (shape.history() + shape.points) * shape.inputs * 8
                + shape.size * shape.taps * 4
                + transform::bytes(shape.size),
            device_memory,
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let shape = self.shape(input).map_err(refused)?;
        let coefficients = prototype::coefficients(self, &shape, &context.directory)?;
        match context.side {
            Side::Cpu => cpu::build(self, input, shape, coefficients),
            Side::Cuda(ordinal) => cuda::build(ordinal, self, input, shape, &coefficients),
        }
    }
}
