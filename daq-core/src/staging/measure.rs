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

/// Bytes a second of `count` copies of `bytes` bytes with at most `depth` in flight.
fn rate(bare: &Bare, bytes: usize, count: usize, depth: usize) -> Result<f64, CudaError> {
    let mut best = 0.0_f64;
    let mut marks: VecDeque<Arc<Mark>> = VecDeque::with_capacity(depth);
    for _ in 0..TIMES {
        let start = Instant::now();
        for i in 0..count {
            if marks.len() == depth
                && let Some(oldest) = marks.pop_front()
            {
                Bare::wait(&oldest);
            }
            bare.begin(i * bytes % (LARGEST - bytes + 1) / 4096 * 4096, bytes)?;
            marks.push_back(bare.mark()?);
        }
        bare.finish()?;
        marks.clear();
        best = best.max((bytes * count) as f64 / start.elapsed().as_secs_f64());
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
        by_size.push((bytes, rate(bare, bytes, VOLUME / bytes, DEPTH)?));
    }
    Ok(Rates {
        bytes_per_second: rate(bare, LARGEST, 2, 2)?,
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
