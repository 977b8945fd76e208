//! Options that benchmarks share, and the parsers of their values.

use super::BenchError;
use super::comparison::Comparison;
use daq_core::entry::Registry;
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::units::{ByteSize, Span, UnitError};
use daq_pipelines::console::Progress;
use std::num::ParseIntError;
use std::time::Duration;

/// Maximum size of a frame or a copy in bytes.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// Options of every benchmark.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    /// The entries that measured pipelines can use.
    #[arg(skip)]
    pub(super) registry: Registry,
    /// Shows which measurement runs.
    #[arg(skip)]
    pub(super) progress: Progress,
    /// CUDA device number of the GPU.
    #[arg(long, global = true, default_value_t = 0)]
    pub(super) device: u32,
    /// Number of rounds. The median is reported.
    #[arg(long, global = true, default_value = "5", value_parser = count::<1, { usize::MAX }>)]
    pub(super) rounds: usize,
    /// Duration of a measurement of throughput per method and round.
    #[arg(long, global = true, value_name = "TIME", default_value = "300 ms", value_parser = duration)]
    pub(super) window: Span,
}

impl Common {
    pub(super) fn open(&self) -> Result<&'static Device, CudaError> {
        Device::open(self.device)
    }

    /// Compares methods on scenarios, see [`Comparison::run`].
    pub(super) fn compare<'a, S, M, const N: usize>(
        &self,
        scenarios: &'a [S],
        methods: &'a [M],
        measure: impl FnMut(&'a S, &'a M) -> Result<Option<[f64; N]>, BenchError>,
    ) -> Result<Comparison<'a, S, M, N>, BenchError> {
        self.compare_in(self.rounds, false, scenarios, methods, measure)
    }

    /// Compares as [`compare`](Self::compare), with the arguments of [`Comparison::run`].
    pub(super) fn compare_in<'a, S, M, const N: usize>(
        &self,
        rounds: usize,
        is_rotated: bool,
        scenarios: &'a [S],
        methods: &'a [M],
        mut measure: impl FnMut(&'a S, &'a M) -> Result<Option<[f64; N]>, BenchError>,
    ) -> Result<Comparison<'a, S, M, N>, BenchError> {
        let steps = scenarios.len() * methods.len();
        self.progress.rounds(rounds, steps);
        Comparison::run(
            rounds,
            is_rotated,
            scenarios,
            methods,
            |scenario, method| {
                self.progress.step(None);
                measure(scenario, method)
            },
        )
    }
}

/// The frame sizes of a benchmark of staging.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct FrameSizes {
    /// Frame sizes.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8 KiB,64 KiB,1 MiB,4 MiB",
        value_parser = bytes::<1, MAX_BYTES, 1>
    )]
    pub(super) frames: Vec<usize>,
}

/// Parses a number from `MIN` to `MAX`.
pub(super) fn count<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .map_err(|error: ParseIntError| error.to_string())?;
    check_range(count, MIN, MAX, |limit| limit.to_string())
}

/// Parses a size from `MIN` to `MAX` bytes that is a multiple of `MULTIPLE`.
pub(super) fn bytes<const MIN: usize, const MAX: usize, const MULTIPLE: usize>(
    text: &str,
) -> Result<usize, String> {
    let ByteSize(bytes) = text.parse().map_err(|error: UnitError| error.to_string())?;
    let shown = |bytes: usize| ByteSize(bytes as u64).to_string();
    let bytes = check_range(
        usize::try_from(bytes).unwrap_or(usize::MAX),
        MIN,
        MAX,
        shown,
    )?;
    if bytes.is_multiple_of(MULTIPLE) {
        return Ok(bytes);
    }
    let (multiple, next) = (shown(MULTIPLE), shown(bytes.next_multiple_of(MULTIPLE)));
    Err(format!(
        "the size must be a multiple of {multiple}; use {next}"
    ))
}

/// Returns `value` if it is from `min` to `max`.
pub(super) fn check_range<T: PartialOrd>(
    value: T,
    min: T,
    max: T,
    shown: impl Fn(T) -> String,
) -> Result<T, String> {
    if (&min..=&max).contains(&&value) {
        Ok(value)
    } else if value < min {
        Err(format!("the minimum is {}", shown(min)))
    } else {
        Err(format!("the maximum is {}", shown(max)))
    }
}

/// Parses a time that is longer than zero.
pub(super) fn duration(text: &str) -> Result<Span, String> {
    match text.parse().map_err(|error: UnitError| error.to_string())? {
        Span(Duration::ZERO) => Err("the time must be longer than zero; try 1 s".to_owned()),
        span => Ok(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_outside_their_range_are_rejected() {
        assert_eq!(count::<1, 32>("32"), Ok(32));
        assert_eq!(count::<1, 32>("0").unwrap_err(), "the minimum is 1");
        assert_eq!(count::<1, 32>("33").unwrap_err(), "the maximum is 32");
        assert!(count::<1, 32>("-1").is_err());
        let size = bytes::<64, MAX_BYTES, 64>;
        assert_eq!(size("1 KiB"), Ok(1024));
        assert_eq!(size("0 B").unwrap_err(), "the minimum is 64 B");
        assert_eq!(size("65 MiB").unwrap_err(), "the maximum is 64 MiB");
        let error = size("100 B").unwrap_err();
        assert_eq!(error, "the size must be a multiple of 64 B; use 128 B");
        assert_eq!(duration("1 s"), Ok(Span(Duration::from_secs(1))));
        assert!(duration("0 s").unwrap_err().contains("longer than zero"));
    }
}
