//! `power-spectrum`: averaged power at each frequency.
//!
//! The points of a frame are cut into blocks of `size`, each block is multiplied by the window and transformed,
//! and `integrate` successive spectra are averaged into one output. For one channel, with `x` the points of one
//! frame as an array, `N` the `size`, `w` the window and no overlap, the output of a whole frame is, in numpy,
//!
//! ```python
//! # real input: N // 2 + 1 bins from 0 Hz to half the rate
//! p = (abs(np.fft.rfft(x[:len(x) // N * N].reshape(-1, N) * w)) ** 2).mean(axis=0) / w.sum() ** 2
//! # complex input: N bins, negative frequencies first
//! p = np.fft.fftshift((abs(np.fft.fft(x[:len(x) // N * N].reshape(-1, N) * w)) ** 2).mean(axis=0)) / w.sum() ** 2
//! ```
//!
//! | `scaling` | instead of `/ w.sum() ** 2` | unit |
//! |---|---|---|
//! | `"power"` | | square of the samples' unit |
//! | `"density"` | `/ (rate * (w ** 2).sum())` | the same per Hz |
//! | `"db"` | `10 * np.log10(… / w.sum() ** 2)` | dB relative to 1 |
//! | `"none"` | nothing | |
//! | `"one-sided"` | `* d / w.sum() ** 2` | as `"power"` |
//! | `"one-sided-density"` | `* d / (rate * (w ** 2).sum())` | as `"density"` |
//!
//! A complex tone of amplitude `A` in the middle of a bin gives `A ** 2` in `"power"`. Real input has equal powers at
//! `f` and `-f`, of which the output has the bins from 0 Hz on. By default the spectrum is two-sided: each bin has the
//! power of its own frequency alone, so a real tone of amplitude `A` gives `A ** 2 / 4`. The one-sided scalings add the
//! power of the negative frequencies: `d` is 2, except that it is 1 in the first bin and, for even `N`, in the last. A
//! real tone gives `A ** 2 / 2`, its mean square. Complex input has no one-sided spectrum.
//!
//! With `detrend = "constant"`, the mean of each block is subtracted from the block before the window. In terms of scipy,
//! real input with `integrate` left out gives
//!
//! ```python
//! scipy.signal.welch(x, rate, w, N, noverlap, detrend="constant", scaling="density")      # "one-sided-density"
//! scipy.signal.welch(x, rate, w, N, noverlap, detrend="constant", scaling="spectrum")     # "one-sided"
//! # "density" and "power": with return_onesided=False, the bins [:N // 2 + 1]
//! # detrend = "none": with detrend=False
//! ```
//!
//! | `window` | `w`, with `t = 2 * np.pi * np.arange(N) / N` (periodic, as `scipy.signal.get_window` gives) |
//! |---|---|
//! | `"hann"` | `0.5 - 0.5 * np.cos(t)` |
//! | `"hamming"` | `0.54 - 0.46 * np.cos(t)` |
//! | `"blackman-harris"` | `0.35875 - 0.48829 * np.cos(t) + 0.14128 * np.cos(2 * t) - 0.01168 * np.cos(3 * t)` |
//! | `"rectangular"` | `np.ones(N)` |
//!
//! Samples are taken as float32 without scaling, transforms and outputs are float32, averages are kept in float64.
//! The error of a bin is below 1e-5 of the bin or of the spectrum's mean, whichever is larger: a float32 transform
//! says less of bins far below the mean. Decibels are compared as power.
//!
//! # Which frames go into an output
//! Spectra never cross the end of a frame: points that are left over there are unused. `integrate` counts
//! spectra and may end inside a frame or span many. A frame is `accumulating` until the output that contains its last
//! spectrum is finished. Where the input's epoch changes, or where a frame is missing (with `gap = "restart"`), what
//! has been integrated is dropped and its frames count as `failed`.
//!
//! An output has the epoch of its first frame and the time of its first sample; its number is that of its first
//! spectrum (frame number × spectra in a frame + place in the frame) divided by `integrate`, rounded down. So
//! numbers grow by one while nothing is missing, and by more where at least one output's worth of spectra is.
//! Its flags are those of all its frames, and `INCOMPLETE` also where a frame was skipped or missing inside.
//!
//! # On a GPU
//! The CUDA side takes a `size` of 2 to 2^20 without a prime factor above 7; with other sizes the kernel stays on the
//! CPU. Its transforms are its own, in float32 with roots computed in float64, and sums are kept in float64 as on the
//! CPU; records of outputs are the same. Sizes up to 5120, and up to 8192 where 2 is the only prime factor and the GPU
//! gives a block 68 KiB of shared memory, are transformed there, in one launch for as many spectra of a burst as fit
//! into 32 MiB of partial sums; longer ones in two launches, by way of 32 MiB of work space. One more launch puts the
//! partial sums together.

mod cpu;
mod cuda;
mod integration;
mod passes;
#[cfg(test)]
mod tests;
mod window;

use super::{Keys, device, not_empty};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{Kernel, KernelContext, KernelError, KernelSpec, Side};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use schemars::JsonSchema;
use serde::Deserialize;

pub use window::Window;

/// The length of transforms if none is given and frames have that many points.
const USUAL_SIZE: usize = 4096;

/// What `daq` knows of `power-spectrum`.
pub const ENTRY: KernelEntry = KernelEntry {
    name: "power-spectrum",
    summary: "Averages the power of windowed Fourier transforms at each frequency",
    example: "\
[kernel.NAME]
use = \"power-spectrum\"
input = \"INPUT\"
output = \"OUTPUT\"
# Points of one transform, at least 2; 4096 or, where frames are shorter, a whole frame if left out.
# size = 4096
# \"hann\", \"hamming\", \"blackman-harris\" or \"rectangular\".
# window = \"hann\"
# Part of a block that the next block of the same frame uses again, 0.0 to 0.9.
# overlap = 0.0
# Spectra averaged into one output; all of one frame if left out.
# integrate = 16
# \"power\", \"density\" (needs the rate of the samples), \"db\" or \"none\"; of real samples also \"one-sided\" and
# \"one-sided-density\", which contain the power of negative frequencies.
# scaling = \"power\"
# What is subtracted from each block before the window: \"none\", or \"constant\": its mean.
# detrend = \"none\"
# Frames with missing places: \"use\" them as they were filled, or \"skip\" them and count them as failed.
# partial = \"use\"
# Where a frame is missing inside an integration: \"restart\" it or \"continue\".
# gap = \"restart\"
",
    schema: || schemars::schema_for!(PowerSpectrum),
    parse: PowerSpectrum::parse,
};

/// The keys of a `power-spectrum` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Axis, Samples, Scalar};
/// use daq_core::units::Frequency;
/// use daq_pipelines::kernels::PowerSpectrum;
///
/// let samples = Samples { scalar: Scalar::Int16, rate: Some(Frequency(1e6)), ..Samples::default() };
/// let input = samples.layout(1 << 20).unwrap();
/// let spectra = PowerSpectrum { size: Some(1000), ..PowerSpectrum::default() }.layout(&input)?;
/// assert_eq!((spectra.scalar, spectra.points), (Scalar::Float32, 501));
/// assert_eq!(spectra.axis, Axis::Frequency { start: Some(0.0), step: Some(1000.0) });
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PowerSpectrum {
    /// Points of one transform, at least 2; any number, fastest where it has no prime factor above 7. Default:
    /// 4096, or the points of a frame where those are fewer.
    pub size: Option<usize>,
    /// What each block is multiplied by: `"hann"` (default), `"hamming"`, `"blackman-harris"` or
    /// `"rectangular"`.
    pub window: Window,
    /// Part of a block that the next block of the same frame uses again, 0.0 (default) to 0.9. Blocks start
    /// `size - round(size * overlap)` points apart, at least 1.
    pub overlap: f64,
    /// Spectra averaged into one output, at least 1. Default: all of one frame.
    pub integrate: Option<u64>,
    /// What the average is divided by: `"power"` (default), `"density"`, `"db"` or `"none"`; for real samples also
    /// `"one-sided"` and `"one-sided-density"`. Real samples have `size / 2 + 1` bins, from 0 Hz to half the sample rate.
    /// Their spectrum is two-sided by default: a tone of amplitude A has the power A²/4 at its positive frequency. The
    /// one-sided scalings double all bins but the first and, for an even `size`, the last, so that the tone has A²/2; in
    /// scipy they are `welch(scaling="spectrum")` and `welch(scaling="density")`.
    pub scaling: Scaling,
    /// What is subtracted from each block before the window: `"none"` (default), or `"constant"`: the mean of the block,
    /// which removes a constant offset.
    pub detrend: Detrend,
    /// What is done with frames that have missing places: `"use"` (default) them as they were filled, or
    /// `"skip"` them: their spectra do not go in, and they count as failed.
    pub partial: Partial,
    /// What is done where a frame is missing inside an integration: `"restart"` it (default), so that an
    /// output is of successive frames, or `"continue"` with the frames that come. A new epoch always restarts.
    pub gap: Gap,
}

/// What an averaged spectrum is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// The square of the window's sum: the power of a tone.
    #[default]
    Power,
    /// The sample rate times the sum of the window's squares: power per Hz.
    Density,
    /// As `power`, in decibels relative to 1; no power at all is minus infinity.
    Db,
    /// Nothing: the mean of the squared magnitudes.
    None,
    /// As `power`, with the power of negative frequencies added.
    OneSided,
    /// As `density`, with the power of negative frequencies added.
    OneSidedDensity,
}

impl Scaling {
    const fn is_one_sided(self) -> bool {
        matches!(self, Self::OneSided | Self::OneSidedDensity)
    }
}

/// What is subtracted from each block before the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Detrend {
    /// Nothing.
    #[default]
    None,
    /// The mean of the block.
    Constant,
}

/// What is done with frames that have missing places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Partial {
    /// They go in as they were filled; the output is flagged.
    #[default]
    Use,
    /// They are left out and count as failed.
    Skip,
}

/// What is done where a frame is missing inside an integration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gap {
    /// Restarts the integration. Frames in it count as failed.
    #[default]
    Restart,
    /// The integration goes on with the frames that come; the output is flagged.
    Continue,
}

impl Keys for PowerSpectrum {
    fn check(&self) -> Result<(), Problem> {
        if let Some(size) = self.size
            && size < 2
        {
            return Err(Problem::at(
                "size",
                format!("a transform of {size} points has no frequencies"),
            )
            .help("give at least 2"));
        }
        if !(0.0..=0.9).contains(&self.overlap) {
            return Err(Problem::at(
                "overlap",
                format!("an overlap of {} is out of range", self.overlap),
            )
            .help("give a number from 0.0 to 0.9"));
        }
        if self.integrate == Some(0) {
            return Err(
                Problem::at("integrate", "an average of 0 spectra is nothing")
                    .help("give at least 1, or leave it out to average all spectra of a frame"),
            );
        }
        Ok(())
    }
}

/// The shape of the work for one input.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// Points of one transform.
    size: usize,
    /// Points between the starts of two blocks.
    hop: usize,
    /// Spectra of one channel in one frame, at least 1.
    spectra: usize,
    /// Spectra of one channel in one output.
    integrate: u64,
    /// Points of one channel in one output.
    bins: usize,
    /// Bins from 1 to below this one are doubled; 0 for none.
    doubled: usize,
}

impl PowerSpectrum {
    fn shape(&self, input: &Layout) -> Result<Shape, Problem> {
        not_empty(input)?;
        self.check()?;
        if !matches!(input.axis, Axis::Time { .. }) {
            return Err(Problem::at(
                "input",
                format!("its frames ({input}) are not samples in time"),
            )
            .help("take the ring that a source or a `convert` kernel fills"));
        }
        let size = self.size.unwrap_or(USUAL_SIZE.min(input.points));
        if size > input.points {
            return Err(Problem::at(
                "size",
                format!("{size} points are more than a frame's {}", input.points),
            )
            .help(
                "spectra do not cross frames: lower `size`, or raise the `slot` of the input ring",
            ));
        }
        if size < 2 {
            return Err(
                Problem::at("input", "its frames hold 1 point, a spectrum needs 2")
                    .help("raise the `slot` of the input ring"),
            );
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 0.9 of `size`"
        )]
        let again = (size as f64 * self.overlap).round() as usize;
        let hop = (size - again).max(1);
        let spectra = (input.points - size) / hop + 1;
        let integrate = self.integrate.unwrap_or(spectra as u64);
        let bins = if input.complex { size } else { size / 2 + 1 };
        let is_one_sided = self.scaling.is_one_sided();
        if is_one_sided && input.complex {
            let message = "complex samples have no one-sided spectrum";
            return Err(Problem::at("scaling", message)
                .help("write \"power\" or \"density\": positive and negative frequencies are bins of their own"));
        }
        // Neither 0 Hz nor, for even sizes, half the rate has a negative counterpart.
        let doubled = if is_one_sided { size.div_ceil(2) } else { 0 };
        Ok(Shape {
            size,
            hop,
            spectra,
            integrate,
            bins,
            doubled,
        })
    }

    /// What the mean of squared magnitudes is multiplied by.
    fn factor(&self, size: usize, rate: Option<f64>) -> Result<f64, Problem> {
        let sum = self.window.sum(size, |w| w);
        Ok(match self.scaling {
            Scaling::Power | Scaling::Db | Scaling::OneSided => 1.0 / (sum * sum),
            Scaling::None => 1.0,
            Scaling::Density | Scaling::OneSidedDensity => {
                let rate = rate.filter(|rate| *rate > 0.0).ok_or_else(|| {
                    Problem::at(
                        "scaling",
                        "a density is per Hz, and the rate of the samples is not known",
                    )
                    .help("give the source's `samples` a `rate`, or choose \"power\" or \"one-sided\"")
                })?;
                1.0 / (rate * self.window.sum(size, |w| w * w))
            }
        })
    }
}

impl KernelSpec for PowerSpectrum {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        let shape = self.shape(input)?;
        let rate = input.sample_rate();
        self.factor(shape.size, rate)?;
        let step = rate.map(|rate| rate / shape.size as f64);
        // The places that numpy.fft.fftshift gives: size / 2 rounded down are negative.
        let below = if input.complex { shape.size / 2 } else { 0 };
        let start = step.map(|step| {
            if below == 0 {
                0.0
            } else {
                -(below as f64) * step
            }
        });
        Ok(Layout {
            scalar: Scalar::Float32,
            complex: false,
            channels: input.channels,
            points: shape.bins,
            order: Order::Planar,
            axis: Axis::Frequency { start, step },
            frame_rate: input
                .frame_rate
                .map(|rate| rate / self.frames_per_output(input)),
        })
    }

    fn frames_per_output(&self, input: &Layout) -> f64 {
        self.shape(input)
            .map_or(1.0, |shape| shape.integrate as f64 / shape.spectra as f64)
    }

    fn memory(&self, input: &Layout) -> usize {
        // Sums in float64, window and two real blocks in float32, the complex block, and the factors and work
        // space of the transform, which for awkward sizes are about eight complex numbers a point.
        self.shape(input).map_or(0, |shape| {
            shape.size * (input.channels as usize * 8 + 3 * 4 + 9 * 8)
        })
    }

    fn device_memory(&self, input: &Layout) -> usize {
        self.shape(input)
            .map_or(0, |shape| cuda::memory(self, input, &shape))
    }

    fn has(&self, input: &Layout, side: Side) -> bool {
        let fits = |shape: Shape| device::can_count(input) && passes::has(shape.size);
        side == Side::Cpu || self.shape(input).is_ok_and(fits)
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let refused = |problem: Problem| KernelError::Refused(problem.to_string());
        let shape = self.shape(input).map_err(refused)?;
        let factor = self
            .factor(shape.size, input.sample_rate())
            .map_err(refused)?;
        match context.side {
            Side::Cpu => Ok(cpu::build(self, input, shape, factor)),
            Side::Cuda(ordinal) => cuda::build(ordinal, self, input, shape, factor),
        }
    }
}
