//! Measuring a machine's copies, in well under a second a GPU.

use super::bare::Bare;
use super::profile::{Profile, Rates};
use crate::cuda::{CudaError, Device, Mark};
use crate::plan::Direction;
use crate::region::RegionError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The largest copy.
const LARGEST: usize = 64 << 20;
/// The sizes from which the chunk is chosen.
const SIZES: [usize; 7] = [
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];
/// Copies in flight while rates by size are measured.
const DEPTH: usize = 4;
/// Bytes moved for each size.
const VOLUME: usize = 128 << 20;
/// Times that each figure is taken; the best counts, for what disturbs a copy only makes it slower.
const TIMES: usize = 3;
/// The longest that a figure is taken: where the bus is slow, less than the volume does, and once.
const LIMIT: Duration = Duration::from_millis(20);
/// Copies that every figure needs.
const LEAST: usize = 4;
/// Small copies whose time is taken.
const SMALL: usize = 32;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// No memory to copy from.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The GPU refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Whether `copies` of `bytes` bytes, begun within `took`, are enough for a figure.
fn is_enough(copies: usize, bytes: usize, took: Duration) -> bool {
    copies >= LEAST && (copies * bytes >= VOLUME || took >= LIMIT)
}

/// Bytes a second of copies of `bytes` bytes with at most `depth` in flight.
fn rate(bare: &Bare, bytes: usize, depth: usize) -> Result<f64, CudaError> {
    let mut best = 0.0_f64;
    let mut marks: VecDeque<Arc<Mark>> = VecDeque::with_capacity(depth);
    let begun = Instant::now();
    for _ in 0..TIMES {
        let (start, mut copies) = (Instant::now(), 0);
        while !is_enough(copies, bytes, start.elapsed()) {
            if marks.len() == depth
                && let Some(oldest) = marks.pop_front()
            {
                Bare::wait(&oldest);
            }
            bare.begin(bare.walk(bytes), bytes)?;
            marks.push_back(bare.mark()?);
            copies += 1;
        }
        bare.finish()?;
        marks.clear();
        best = best.max((bytes * copies) as f64 / start.elapsed().as_secs_f64());
        if begun.elapsed() >= LIMIT {
            break;
        }
    }
    Ok(best)
}

/// How long a small copy takes from its call to its end.
fn latency(bare: &Bare) -> Result<Duration, CudaError> {
    let mut times = [Duration::ZERO; SMALL];
    for time in &mut times {
        let start = Instant::now();
        bare.begin(0, 4096)?;
        Bare::wait(&*bare.mark()?);
        *time = start.elapsed();
    }
    times.sort_unstable();
    Ok(times[SMALL / 2])
}

fn rates(bare: &Bare) -> Result<Rates, CudaError> {
    // The first copies set things up.
    bare.begin(0, LARGEST)?;
    bare.finish()?;
    let mut by_size = Vec::with_capacity(SIZES.len());
    for bytes in SIZES {
        by_size.push((bytes, rate(bare, bytes, DEPTH)?));
    }
    Ok(Rates {
        bytes_per_second: rate(bare, LARGEST, 2)?,
        latency_ns: u64::try_from(latency(bare)?.as_nanos()).unwrap_or(u64::MAX),
        by_size,
    })
}

/// Measures both directions of a GPU. Takes 128 MiB of memory meanwhile, half of it the GPU's.
pub fn measure(device: &'static Device) -> Result<Profile, MeasureError> {
    let mut bare = Bare::new(device, Direction::In, LARGEST, false)?;
    let inward = rates(&bare)?;
    bare.turn(Direction::Out);
    let outward = rates(&bare)?;
    Ok(Profile { inward, outward })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_bounded_by_volume_and_by_time_and_has_copies_enough() {
        let short = Duration::from_micros(10);
        assert!(!is_enough(VOLUME / SIZES[0] - 1, SIZES[0], short));
        assert!(is_enough(VOLUME / SIZES[0], SIZES[0], short));
        assert!(is_enough(LEAST, SIZES[0], LIMIT), "a slow bus");
        assert!(!is_enough(LEAST - 1, LARGEST, LIMIT * 10));
        assert!(is_enough(LEAST, LARGEST, short));
    }
}
