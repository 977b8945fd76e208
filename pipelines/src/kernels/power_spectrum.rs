//! `power-spectrum` computes the averaged power at each frequency.
//!
//! Each frame is cut into blocks of `size` points. Each block is multiplied by the window and transformed, and
//! `integrate` successive spectra are averaged into one output. For one channel, with `x` the points of one
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
//! `f` and `-f`; the output contains only the bins from 0 Hz upwards. By default the spectrum is two-sided: each bin
//! has the power of its own frequency alone, so a real tone of amplitude `A` gives `A ** 2 / 4`. The one-sided scalings
//! add the power of the negative frequencies: `d` is 2, except that `d` is 1 in the first bin and, for even `N`, in the
//! last. A real tone gives `A ** 2 / 2`, its mean square. Complex input has no one-sided spectrum.
//!
//! With `detrend = "constant"`, the mean of each block is subtracted before the window is applied. In terms of scipy,
//! real input without `integrate` gives
//!
//! ```python
//! scipy.signal.welch(x, rate, w, N, noverlap, detrend="constant", scaling="density")      # "one-sided-density"
//! scipy.signal.welch(x, rate, w, N, noverlap, detrend="constant", scaling="spectrum")     # "one-sided"
//! # "density" and "power": with return_onesided=False, the bins [:N // 2 + 1]
//! # detrend = "none": with detrend=False
//! ```
//!
//! The windows equal those of `scipy.signal.get_window(name, N)`, which are periodic; with `symmetric = true`, they equal
//! `get_window(name, N, fftbins=False)`.
//!
//! | `window` | name in scipy |
//! |---|---|
//! | `"hann"`, `"hamming"`, `"blackman"`, `"nuttall"`, `"flattop"` | the same |
//! | `"blackman-harris"`, `"rectangular"` | `"blackmanharris"`, `"boxcar"` |
//! | `{ kind = "kaiser", beta = β }` | `("kaiser", β)` |
//! | `{ kind = "gaussian", std = σ }` | `("gaussian", σ)`, σ in points |
//! | `{ kind = "tukey", alpha = α }` | `("tukey", α)` |
//!
//! `fft` is `nfft` of scipy: blocks of `size` points are padded with zeros to `fft` points. The window has `size` points,
//! and the bins are `rate / fft` apart. `average = "median"` is `average="median"` of `welch`: at each frequency, the
//! output is the median of the spectra, divided by its bias for Gaussian noise.
//!
//! Samples are converted to float32 without scaling. Transforms and outputs are float32, averages are float64. The
//! error of a bin is below 1e-5 of the bin or of the spectrum's mean, whichever is larger; bins far below the mean are
//! less exact, as in any float32 transform. Decibels are compared as power.
//!
//! With `pairs`, the output contains cross-spectra, which are complex: with `X` and `Y` the transforms of the channels of a
//! pair, the averages of `conj(X) * Y`, as in `scipy.signal.csd(x, y, …)`. The scalings are those of power.
//!
//! # Which frames go into an output
//! By default, spectra do not cross the end of a frame, so the remaining points at the end of a frame are unused. With
//! `continuous = true`, successive frames are one series of points: a block may start in one frame and end in a later
//! one. The series starts again after a missing or skipped frame and with a new epoch; the points before it that are not
//! yet in a spectrum are unused. The spectra of `n` whole frames are those of `welch(np.concatenate(frames), …)`.
//!
//! `integrate` counts spectra; an integration may end inside a frame or span several frames. A frame is `accumulating` until the output
//! that contains its last spectrum is finished. If the input's epoch changes, or if a frame is missing (with
//! `gap = "restart"`), the unfinished integration is dropped and its frames count as `failed`.
//!
//! An output has the epoch of its first frame and the time of its first sample. The number of an output is the number
//! of its first spectrum (frame number × spectra per frame + index in the frame; with continuous blocks, the number of its
//! first point divided by the distance of blocks, rounded down) divided by `integrate`, rounded down.
//! The numbers of successive outputs differ by one, or by more if at least the spectra of one output are missing. An
//! output has the flags of all its frames, and also `INCOMPLETE` if one of its frames was skipped or is missing.
//!
//! # On a GPU
//! The CUDA side supports transforms of 2 to 2^20 points without a prime factor above 7; with other sizes, with `pairs`, and
//! with medians of spectra that need more than 1 GiB, the kernel runs on the CPU. Transforms are float32 with roots computed
//! in float64, and the metadata of outputs is the same as on the CPU. Powers of two from 128 to 2^20 without padding have
//! code of their own: each thread keeps 16 points in registers, and float32 sums contain at most 64 spectra. Float32 sums of
//! other sizes carry the rounding error along. The sums of pieces are added in float64.
//!
//! Sizes up to 5120, and powers of two up to 8192 if the GPU has 68 KiB of shared memory per block, are transformed in
//! shared memory, in one launch for as many spectra of a burst as fit into 32 MiB of partial sums. Larger sizes take two
//! launches and 32 MiB of work space, 64 MiB for real samples. One more launch combines the partial sums, except where each
//! output is one piece. For medians, 64 MiB contain the spectra of the outputs in progress, or more if those of one output
//! need more. With continuous blocks, frames are first copied into one of two buffers of 64 MiB.

mod cpu;
mod cross;
mod cuda;
mod median;
mod passes;
#[cfg(test)]
mod tests;
mod window;

use super::grouping::{AtBoundary, Grouping, Groups, Joined, max_items, max_outputs};
use super::{
    LONGER_FRAMES, common_type, contiguous, device, not_empty, parameters, refused, require,
    transform,
};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{
    InputFacts, Kernel, KernelContext, KernelError, KernelFacts, KernelSpec, Side,
};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use schemars::JsonSchema;
use serde::Deserialize;

pub use window::{Window, WindowShape};

/// Maximum default length of transforms; frames with fewer points use their number of points.
const DEFAULT_SIZE: usize = 4096;
/// Maximum number of points of a padded transform.
const MAX_FFT: usize = 1 << 28;
/// Maximum size of the spectra of one output whose median is computed.
const MAX_MEDIAN_BYTES: u128 = 8 << 30;

/// Registry entry of `power-spectrum`.
pub const ENTRY: KernelEntry = KernelEntry::of::<PowerSpectrum>(
    "power-spectrum",
    "Averages the power of windowed Fourier transforms at each frequency",
    "\
[kernel.NAME]
use = \"power-spectrum\"
input = \"INPUT\"
output = \"OUTPUT\"
# Number of points of one transform, at least 2; default: 4096, or the points of a frame if there are fewer.
# size = 4096
# Number of points of the transform, if blocks are padded with zeros; default: as `size`.
# fft = 8192
# \"hann\", \"hamming\", \"blackman\", \"blackman-harris\", \"nuttall\", \"flattop\" or \"rectangular\"; or a window with a parameter:
# { kind = \"kaiser\", beta = 14.0 }, { kind = \"gaussian\", std = 500.0 } or { kind = \"tukey\", alpha = 0.25 }.
# window = \"hann\"
# Fraction of a block that overlaps with the next block of the same frame, 0.0 to 0.9.
# overlap = 0.0
# true: blocks continue across the ends of frames; false: points at the end of a frame that do not fill a block are unused.
# continuous = false
# Number of spectra averaged into one output; default: all spectra of one frame.
# integrate = 16
# \"mean\" of the spectra, or \"median\", which is robust against bursts of interference.
# average = \"mean\"
# Pairs of channels; the output contains their cross-spectra, which are complex, instead of the spectra of all channels.
# pairs = [[0, 1], [0, 2]]
# \"power\", \"density\" (requires the sample rate), \"db\" or \"none\"; for real samples also \"one-sided\" and
# \"one-sided-density\", which contain the power of negative frequencies.
# scaling = \"power\"
# Value subtracted from each block before the window: \"none\", or \"constant\" (the mean of the block).
# detrend = \"none\"
# Frames with missing packets: \"use\" them with their fill values, or \"skip\" them and count them as failed.
# partial = \"use\"
# If a frame is missing inside an integration: \"restart\" the integration or \"continue\" it.
# gap = \"restart\"
",
);

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
    /// Number of points of one transform, at least 2; fastest without prime factors above 7. Default: 4096, or the
    /// points of a frame if there are fewer.
    pub size: Option<usize>,
    /// Number of points of the transform, at least `size`. Each block is padded with zeros, so that the bins are closer to
    /// each other. Default: `size`. In scipy: `nfft`.
    pub fft: Option<usize>,
    /// Window by which each block is multiplied: `"hann"` (default), `"hamming"`, `"blackman"`, `"blackman-harris"`,
    /// `"nuttall"`, `"flattop"` or `"rectangular"`; or a table: `{ kind = "kaiser", beta = 14.0 }`,
    /// `{ kind = "gaussian", std = 500.0 }` (in points) or `{ kind = "tukey", alpha = 0.25 }`. In a table,
    /// `symmetric = true` selects a symmetric window instead of a periodic one, for all kinds.
    pub window: Window,
    /// Fraction of a block that overlaps with the next block of the same frame, 0.0 (default) to 0.9. Blocks start
    /// `size - round(size * overlap)` points apart, at least 1.
    pub overlap: f64,
    /// Whether blocks continue across the ends of frames. If false (default), the points at the end of a frame that do not
    /// fill a block are unused. If true, frames that follow each other are one series of points, and blocks can be longer
    /// than a frame. Where a frame is missing or skipped, and where an epoch starts, the next block starts with the next
    /// frame.
    pub continuous: bool,
    /// Number of spectra averaged into one output, at least 1. Default: all spectra of one frame.
    pub integrate: Option<u64>,
    /// How the spectra of an output are combined: `"mean"` (default), or `"median"`, which bursts of interference hardly
    /// change. The median is divided by its bias for Gaussian noise, as in scipy, so that both give the same power for
    /// noise. It needs memory for all spectra of an output.
    pub average: Average,
    /// Pairs of channels, counted from 0, whose cross-spectra are computed: the averages of `conj(X) * Y`, where `X` is the
    /// transform of the first channel and `Y` that of the second. The output is complex and has one channel for each pair.
    /// In scipy: `csd(x, y)`. By default, the output contains the power spectra of all channels.
    pub pairs: Vec<[u32; 2]>,
    /// Normalisation of the average: `"power"` (default), `"density"`, `"db"` or `"none"`; for real samples also
    /// `"one-sided"` and `"one-sided-density"`. Real samples have `size / 2 + 1` bins, from 0 Hz to half the sample
    /// rate. Their spectrum is two-sided by default: a tone of amplitude A has the power A²/4 at its positive
    /// frequency. The one-sided scalings double all bins except the first and, for an even `size`, the last, so that
    /// the tone has the power A²/2. In scipy, these scalings are `welch(scaling="spectrum")` and
    /// `welch(scaling="density")`.
    pub scaling: Scaling,
    /// Value subtracted from each block before the window: `"none"` (default), or `"constant"`: the mean of the block,
    /// which removes a constant offset.
    pub detrend: Detrend,
    /// Treatment of frames with missing packets: `"use"` (default) processes them with their fill values; `"skip"`
    /// leaves their spectra out and counts them as failed.
    pub partial: Partial,
    /// Behaviour if a frame is missing inside an integration: `"restart"` (default) restarts the integration, so that
    /// an output consists of successive frames; `"continue"` goes on with the following frames. A new epoch always
    /// restarts the integration.
    pub gap: Gap,
}

/// Normalisation of an averaged spectrum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Divides by the square of the window's sum: the power of a tone.
    #[default]
    Power,
    /// Divides by the sample rate times the sum of the window's squares: power per Hz.
    Density,
    /// As `power`, in decibels relative to 1; zero power gives minus infinity.
    Db,
    /// No normalisation: the mean of the squared magnitudes.
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

/// How the spectra of an output are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Average {
    /// The mean at each frequency.
    #[default]
    Mean,
    /// The median at each frequency, divided by its bias.
    Median,
}

/// Value subtracted from each block before the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Detrend {
    /// Subtracts nothing.
    #[default]
    None,
    /// Subtracts the mean of the block.
    Constant,
}

/// Treatment of frames with missing packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Partial {
    /// Processes the frames with their fill values; the output is flagged.
    #[default]
    Use,
    /// Skips the frames and counts them as failed.
    Skip,
}

/// Behaviour if a frame is missing inside an integration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gap {
    /// Restarts the integration. The frames of the incomplete integration count as failed.
    #[default]
    Restart,
    /// Continues with the following frames; the output is flagged.
    Continue,
}

/// Checks the number of points of a transform of blocks of `size` points.
fn check_fft(fft: usize, size: usize) -> Result<(), Problem> {
    require(
        (size..=MAX_FFT).contains(&fft),
        "fft",
        format!("`fft` is {fft}, but a block has {size} points"),
        format!("write a number from {size} to {MAX_FFT}, or remove the key"),
    )
}

impl PowerSpectrum {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        let size = self.size.unwrap_or(DEFAULT_SIZE);
        require(
            size >= 2,
            "size",
            format!("`size` is {size}, but a transform must have at least 2 points"),
            "write at least 2",
        )?;
        if let (Some(fft), Some(size)) = (self.fft, self.size) {
            check_fft(fft, size)?;
        }
        require(
            (0.0..=0.9).contains(&self.overlap),
            "overlap",
            format!("`overlap` cannot be {}", self.overlap),
            "write a number from 0.0 to 0.9",
        )?;
        require(
            self.integrate != Some(0),
            "integrate",
            "`integrate` cannot be 0",
            "write at least 1, or remove the key to average all spectra of a frame",
        )
    }
}

/// Sizes derived from the keys and the input layout.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// Number of points of one block.
    size: usize,
    /// Number of points of one transform: of a block and the zeros after it.
    fft: usize,
    /// Number of points between the starts of successive blocks.
    hop: usize,
    /// Number of spectra of one channel in one frame, at least 1.
    spectra: usize,
    /// Number of spectra of one channel in one output.
    integrate: u64,
    /// Number of points of one channel in one output.
    bins: usize,
    /// Bins 1 to `doubled` - 1 are doubled. If 0, no bin is doubled.
    doubled: usize,
    /// Number of channels of an output.
    rows: usize,
}

impl Shape {
    const fn is_padded(&self) -> bool {
        self.fft > self.size
    }

    /// Returns the number of spectra of one output, if their median is computed.
    fn history(&self) -> usize {
        usize::try_from(self.integrate).unwrap_or(usize::MAX)
    }
}

impl PowerSpectrum {
    fn shape(&self, input: &Layout) -> Result<Shape, Problem> {
        not_empty(input)?;
        common_type(input, "power-spectrum")?;
        self.check()?;
        require(
            // The samples of a camera's lines may be transformed like samples over time.
            matches!(input.axis, Axis::Time { .. } | Axis::Pixels(_)),
            "input",
            format!("the input's frames ({input}) are not samples over time"),
            "use a ring that a source or a `convert` kernel fills",
        )?;
        if self.continuous {
            contiguous(input, "`continuous = true`")?;
        }
        let points = input.points;
        let size = self.size.unwrap_or(DEFAULT_SIZE.min(points));
        require(
            self.continuous || size <= points,
            "size",
            format!("a block of {size} points is longer than a frame of {points} points"),
            format!("set `continuous = true`, lower `size`, or {LONGER_FRAMES}"),
        )?;
        require(
            size >= 2,
            "input",
            "a frame of the input has 1 point, but a spectrum needs at least 2",
            LONGER_FRAMES,
        )?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is between 0 and 0.9 * `size`"
        )]
        let again = (size as f64 * self.overlap).round() as usize;
        let hop = (size - again).max(1);
        // With continuous blocks, the mean number of spectra that end in a frame, rounded down.
        let spectra = if self.continuous {
            (points / hop).max(1)
        } else {
            (points - size) / hop + 1
        };
        let integrate = self.integrate.unwrap_or(spectra as u64);
        let fft = self.fft.unwrap_or(size);
        check_fft(fft, size)?;
        let bins = if input.complex { fft } else { fft / 2 + 1 };
        let is_one_sided = self.scaling.is_one_sided();
        require(
            !(is_one_sided && input.complex),
            "scaling",
            "complex samples have no one-sided spectrum",
            "write \"power\" or \"density\": positive and negative frequencies have separate bins",
        )?;
        // 0 Hz has no negative counterpart. For even sizes, half the sample rate has no counterpart either.
        let doubled = if is_one_sided { fft.div_ceil(2) } else { 0 };
        let rows = self.rows(input)?;
        if self.average == Average::Median {
            let bytes = u128::from(integrate) * bins as u128 * u128::from(input.channels) * 4;
            require(
                bytes <= MAX_MEDIAN_BYTES,
                "average",
                format!("the median of {integrate} spectra needs {bytes} bytes"),
                "lower `integrate`, or use \"mean\"",
            )?;
        }
        Ok(Shape {
            size,
            fft,
            hop,
            spectra,
            integrate,
            bins,
            doubled,
            rows,
        })
    }

    /// Returns the number of channels of an output: of pairs, or of channels of the input.
    fn rows(&self, input: &Layout) -> Result<usize, Problem> {
        if self.pairs.is_empty() {
            return Ok(input.channels as usize);
        }
        if let Some(wrong) = self
            .pairs
            .iter()
            .flatten()
            .find(|channel| **channel >= input.channels)
        {
            return Err(Problem::at(
                "pairs",
                format!(
                    "channel {wrong} does not exist; the input has {} channels",
                    input.channels
                ),
            )
            .help("channels are counted from 0"));
        }
        require(
            self.scaling != Scaling::Db,
            "scaling",
            "cross-spectra are complex and cannot be in decibels",
            "write \"power\" or \"density\"",
        )?;
        require(
            self.average == Average::Mean,
            "average",
            "cross-spectra cannot be averaged by their median",
            "write \"mean\", or remove `pairs`",
        )?;
        Ok(self.pairs.len())
    }

    /// Returns the factor by which the mean of squared magnitudes is multiplied.
    fn factor(&self, size: usize, rate: Option<f64>) -> Result<f64, Problem> {
        let sum = self.window.sum(size, |w| w);
        Ok(match self.scaling {
            Scaling::Power | Scaling::Db | Scaling::OneSided => 1.0 / (sum * sum),
            Scaling::None => 1.0,
            Scaling::Density | Scaling::OneSidedDensity => {
                let rate = rate.filter(|rate| *rate > 0.0).ok_or_else(|| {
                    Problem::at(
                        "scaling",
                        "a density needs the sample rate, which is not known",
                    )
                    .help("set `rate` in the source's `samples`, or use \"power\" or \"one-sided\"")
                })?;
                1.0 / (rate * self.window.sum(size, |w| w * w))
            }
        })
    }
}

impl KernelSpec for PowerSpectrum {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn facts(&self) -> KernelFacts {
        let reason = "with `continuous`, blocks begin in one frame and end in the next";
        KernelFacts {
            spread_frames: if self.continuous {
                Err(reason.to_owned())
            } else {
                Ok(())
            },
            ..KernelFacts::default()
        }
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        let shape = self.shape(input)?;
        let spectra = if self.continuous {
            input.points as f64 / shape.hop as f64
        } else {
            shape.spectra as f64
        };
        let rate = input.sample_rate();
        self.factor(shape.size, rate)?;
        let step = rate.map(|rate| rate / shape.fft as f64);
        // As in numpy.fft.fftshift, the first `fft / 2` (rounded down) frequencies are negative.
        let below = if input.complex { shape.fft / 2 } else { 0 };
        let start = step.map(|step| {
            if below == 0 {
                0.0
            } else {
                -(below as f64) * step
            }
        });
        Ok(Layout {
            scalar: Scalar::Float32,
            complex: !self.pairs.is_empty(),
            channels: parameters::small(shape.rows),
            points: shape.bins,
            order: Order::Planar,
            axis: Axis::Frequency { start, step },
            frame_rate: input
                .frame_rate
                .map(|rate| rate / (shape.integrate as f64 / spectra)),
            is_contiguous: input.is_contiguous,
        })
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let Ok(shape) = self.shape(input) else {
            return InputFacts::default();
        };
        let channels = input.channels as usize;
        let sums = match self.average {
            Average::Mean => shape.fft * (channels * 8 + self.pairs.len() * 16),
            Average::Median => shape.history() * channels * shape.bins * 4,
        };
        let (items, joined) = if self.continuous {
            let joined = cpu::joined_points(input, &shape) * (input.frame_bytes() / input.points);
            let items = max_items(1, input.points as u64, shape.hop as u64);
            (items, joined)
        } else {
            (shape.spectra as u128, 0)
        };
        let runs_on_gpu = device::can_count(input)
            && passes::has(shape.fft)
            && cuda::has_space(self, input, &shape)
            && self.pairs.is_empty();
        InputFacts {
            runs_on_gpu,
            max_outputs: max_outputs(items, shape.integrate),
            // Float64 sums or the spectra of one output, the float32 window and two blocks of real samples, and the transform.
            memory: sums + joined + shape.size * 3 * 4 + transform::bytes(shape.fft),
            device_memory: if runs_on_gpu {
                cuda::memory(self, input, &shape)
            } else {
                0
            },
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let shape = self.shape(input).map_err(refused)?;
        let factor = self
            .factor(shape.size, input.sample_rate())
            .map_err(refused)?;
        let grouping = Grouping::new(Groups {
            input_bytes: input.frame_bytes(),
            items: shape.spectra,
            joined: self.continuous.then_some(Joined {
                points: input.points,
                size: shape.size,
            }),
            each: shape.integrate,
            hop: shape.hop,
            rate: input.sample_rate().filter(|rate| *rate > 0.0),
            skip_incomplete: self.partial == Partial::Skip,
            at_gap: match self.gap {
                Gap::Restart => AtBoundary::Restart,
                Gap::Continue => AtBoundary::Continue,
            },
            at_epoch: AtBoundary::Restart,
        });
        match context.side {
            Side::Cpu => cpu::build(self, input, grouping, shape, factor),
            Side::Cuda(ordinal) => cuda::build(ordinal, self, input, grouping, shape, factor),
        }
    }
}
