//! `stats` computes statistics of the values in each channel.
//!
//! The kernel writes one output per `every` frames (default 1), with the fields below for each channel. For complex
//! samples, real and imaginary parts both count as numbers of the channel. With `x` the numbers of one channel as a
//! float64 array without NaNs, the fields are, in numpy,
//!
//! | field | value |
//! |---|---|
//! | `count` | `x.size` |
//! | `min`, `max` | `x.min()`, `x.max()`; NaN without numbers |
//! | `mean` | `x.mean()`; NaN without numbers |
//! | `rms` | `np.sqrt((x ** 2).mean())`; NaN without numbers |
//! | `clip` | `(abs(x) >= clip).sum()`; without the key `clip`, numbers at the lowest or highest code of an integer
//! type, or infinite numbers of a float type |
//! | `hist_0`, `hist_1`, … | `np.histogram(x, bins, range)[0]` |
//!
//! NaNs are skipped and not counted, so missing packets are skipped with `fill = "nan"` on a ring of floats. Otherwise
//! missing packets count with their fill value.
//!
//! The number of an output is the number of its first frame divided by `every`, rounded down. A new epoch of the input
//! ends an output early, so no output contains frames of two epochs; `count` is the actual number of samples. Missing
//! frames do not end an output, but the output is flagged `INCOMPLETE`.
//!
//! Counts, extremes and histograms are identical on GPU and CPU. Sums are added in a different order, so the last
//! digits of `mean` and `rms` may differ. For 8-bit types only the codes are counted. Histograms of up to 8192 bins are
//! counted in shared memory, larger ones in GPU memory. A burst takes two launches, or more if frames are too short or
//! the histograms of all outputs exceed 16 MiB.

mod cpu;
mod cuda;
mod histogram;
#[cfg(test)]
mod tests;

use super::grouping::{AtBoundary, Grouping, Groups};
use super::{common_type, device, not_empty, refused, require};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::kernel::{InputFacts, Kernel, KernelContext, KernelError, KernelSpec, Side};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use histogram::Histogram;
use schemars::JsonSchema;
use serde::Deserialize;

/// Default number of bins of a histogram.
const DEFAULT_BINS: usize = 256;
/// Maximum number of bins of a histogram.
const MAX_BINS: usize = 65_536;
/// Names of the fields before the histogram.
const FIELDS: [&str; 6] = ["count", "min", "max", "mean", "rms", "clip"];

/// Registry entry of `stats`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Stats>(
    "stats",
    "Computes minimum, maximum, mean, RMS, clip count and histogram of each channel",
    "\
[kernel.NAME]
use = \"stats\"
input = \"INPUT\"
output = \"OUTPUT\"
# Number of frames per output.
# every = 1
# Magnitude from which a number counts as clipped; default for integers: the lowest and the highest code.
# clip = 32767.0
# Number of bins of the histogram, 0 for none; default: 256 for integers or if `range` is set, else 0.
# bins = 256
# Range of the histogram; default for integers: all codes. Float types have no default.
# range = [-32768.0, 32768.0]
",
);

/// The keys of a `stats` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Axis, Samples, Scalar};
/// use daq_pipelines::kernels::Stats;
///
/// let input = Samples { scalar: Scalar::Int8, channels: 2, ..Samples::default() }.layout(8192).unwrap();
/// let output = Stats { bins: Some(4), ..Stats::default() }.layout(&input)?;
/// let Axis::Fields(names) = &output.axis else { panic!("stats are fields") };
/// assert_eq!(names.join(" "), "count min max mean rms clip hist_0 hist_1 hist_2 hist_3");
/// assert_eq!((output.scalar, output.channels, output.points), (Scalar::Float64, 2, 10));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stats {
    /// Number of frames per output, at least 1 (default).
    pub every: u64,
    /// Magnitude from which a number counts as clipped; must be above 0. Default: the lowest and highest code of an
    /// integer type, infinite numbers of a float type.
    pub clip: Option<f64>,
    /// Number of bins of the histogram, at most 65536; 0 disables the histogram. Default: 256 for integer types or if
    /// `range` is set, else 0.
    pub bins: Option<usize>,
    /// Range `[low, high]` of the histogram. Bins are equally wide and contain their lower edge; the last bin also
    /// contains its upper edge. Numbers outside the range are in no bin. Default for integer types: from the lowest
    /// code to the highest code plus 1, so that 256 bins of an 8-bit type are one code each. Float types have no
    /// default.
    pub range: Option<[f64; 2]>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            every: 1,
            clip: None,
            bins: None,
            range: None,
        }
    }
}

impl Stats {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        require(
            self.every > 0,
            "every",
            "`every` cannot be 0",
            "write at least 1",
        )?;
        require(
            self.clip.is_none_or(|clip| clip > 0.0),
            "clip",
            "`clip` must be above 0",
            "write the smallest magnitude that counts as clipped",
        )?;
        require(
            self.bins.is_none_or(|bins| bins <= MAX_BINS),
            "bins",
            "`bins` is above the maximum number of bins of a histogram",
            format!("write at most {MAX_BINS}"),
        )?;
        let Some([low, high]) = self.range else {
            return Ok(());
        };
        require(
            low.is_finite() && high.is_finite() && low < high && (high - low).is_finite(),
            "range",
            format!("[{low}, {high}] is not a range"),
            "write two numbers, the lower one first",
        )
    }
}

/// The bins of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bins {
    count: usize,
    low: f64,
    high: f64,
}

/// Returns the lowest and the highest code of an integer type.
fn codes(scalar: Scalar) -> Option<(f64, f64)> {
    scalar.range().map(|(low, high)| (low as f64, high as f64))
}

impl Stats {
    fn histogram(&self, scalar: Scalar) -> Result<Option<Bins>, Problem> {
        let range = self
            .range
            .or_else(|| codes(scalar).map(|(low, high)| [low, high + 1.0]));
        match (self.bins, range) {
            (Some(0), _) | (None, None) => Ok(None),
            (bins, Some([low, high])) => Ok(Some(Bins {
                count: bins.unwrap_or(DEFAULT_BINS),
                low,
                high,
            })),
            (Some(_), None) => Err(Problem::at(
                "bins",
                format!(
                    "a histogram of {scalar} needs `range`, because the type has no default range"
                ),
            )
            .help("add a line such as `range = [-1.0, 1.0]`")),
        }
    }

    /// Returns the limits of the clipping test. Numbers at or below the first limit, or at or above the second, are
    /// clipped.
    fn limits(&self, scalar: Scalar) -> (f64, f64) {
        let magnitude = self.clip.map(|clip| (-clip, clip));
        magnitude
            .or(codes(scalar))
            .unwrap_or((f64::NEG_INFINITY, f64::INFINITY))
    }
}

impl KernelSpec for Stats {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        not_empty(input)?;
        common_type(input, "stats")?;
        self.check()?;
        let bins = self.histogram(input.scalar)?.map_or(0, |bins| bins.count);
        let names: Vec<_> = FIELDS
            .iter()
            .map(ToString::to_string)
            .chain((0..bins).map(|i| format!("hist_{i}")))
            .collect();
        Ok(Layout {
            scalar: Scalar::Float64,
            complex: false,
            channels: input.channels,
            points: names.len(),
            order: Order::Planar,
            axis: Axis::Fields(names),
            frame_rate: input.frame_rate.map(|rate| rate / self.every as f64),
            is_contiguous: input.is_contiguous,
        })
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let bins = self.histogram(input.scalar).ok().flatten();
        let bins = bins.map_or(0, |bins| bins.count);
        InputFacts {
            runs_on_gpu: device::can_count(input),
            memory: input.channels as usize * (bins + FIELDS.len()) * 8
                + bins * 8
                + cpu::WORK_BYTES,
            device_memory: cuda::memory(input, bins),
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let bins = self.histogram(input.scalar).map_err(refused)?;
        let integers = codes(input.scalar).is_some();
        let histogram = bins.map(|bins| Histogram::new(bins, integers));
        let limits = self.limits(input.scalar);
        let grouping = Grouping::new(Groups {
            input_bytes: input.frame_bytes(),
            items: 1,
            joined: None,
            each: self.every.max(1),
            hop: 0,
            rate: None,
            skip_incomplete: false,
            at_gap: AtBoundary::Continue,
            at_epoch: AtBoundary::Finish,
        });
        match context.side {
            Side::Cpu => cpu::build(input, grouping, limits, histogram),
            Side::Cuda(ordinal) => {
                cuda::build(ordinal, input, grouping, limits, histogram.as_ref())
            }
        }
    }
}
