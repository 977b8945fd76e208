//! Times calls and summarises the times.

use daq_core::gpu::driver::CudaError;
use daq_core::staging::BaselineCopy;
use std::time::{Duration, Instant};

/// The median, the 99th and the 99.9th percentile of a sample.
pub(super) type Percentiles = [f64; 3];

/// Returns the median; NaN if there are no values.
pub(super) fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Returns the percentiles of a sample; NaN if there are no values.
pub(super) fn percentiles(times: &[f64]) -> Percentiles {
    let sorted = sorted(times);
    [0.5, 0.99, 0.999].map(|q| at(&sorted, q))
}

/// Returns the `q`-quantile; NaN if there are no values.
fn quantile(figures: &[f64], q: f64) -> f64 {
    at(&sorted(figures), q)
}

fn sorted(figures: &[f64]) -> Vec<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the `q`-quantile of sorted values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is an index into the values"
)]
fn at(sorted: &[f64], q: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Returns the microseconds since `start`.
pub(super) fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// Returns the duration of each of `count` calls in microseconds. The `warm_up` calls before them are not measured.
pub(super) fn times<E>(
    warm_up: usize,
    count: usize,
    mut work: impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let mut times = Vec::with_capacity(count);
    for i in 0..warm_up + count {
        let start = Instant::now();
        work()?;
        let time = micros_since(start);
        if i >= warm_up {
            times.push(time);
        }
    }
    Ok(times)
}

/// Calls `work` repeatedly for about the time `window`. Each call returns the number of bytes that it has transferred.
/// Returns the bytes per second.
pub(super) fn rate(
    window: Duration,
    mut work: impl FnMut() -> Result<usize, CudaError>,
    finish: impl FnOnce() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < window {
        bytes += work()?;
    }
    finish()?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// Returns the rate of raw copies in bytes per second. Each of `copies` starts `count` copies of `bytes` bytes, then all are
/// awaited; this is repeated for about the time `window`.
pub(super) fn copy_rate(
    copies: &[&BaselineCopy],
    (bytes, count): (usize, usize),
    window: Duration,
) -> Result<f64, CudaError> {
    let begin = || {
        let mut copies = copies.iter();
        copies.try_for_each(|copy| copy.begin(copy.walk(bytes), bytes))
    };
    let finish = || copies.iter().try_for_each(|copy| copy.finish());
    // The first copy is not measured.
    begin()?;
    finish()?;
    let work = || {
        for _ in 0..count {
            begin()?;
        }
        finish().map(|()| count * bytes * copies.len())
    };
    rate(window, work, finish)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let figures = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(median(&figures), 3.0);
        assert_eq!(percentiles(&figures), [3.0, 5.0, 5.0]);
        assert_eq!(quantile(&figures, 0.0), 1.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn warm_up_calls_are_not_measured() {
        let mut calls = 0;
        let measured = times(2, 3, || {
            calls += 1;
            Ok::<_, ()>(())
        });
        assert_eq!((measured.unwrap().len(), calls), (3, 5));
    }
}
