//! Measuring a machine's copies, in well under a second a GPU.

use super::profile::{Profile, Rates};
use crate::cuda::{CudaError, Device, Memory, Stream};
use crate::plan::Direction;
use crate::region::{HostOptions, Region, RegionError};
use crate::ring::Event;
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

/// What is copied between.
struct Bench {
    stream: Stream,
    host: Arc<Region>,
    memory: Memory,
    direction: Direction,
}

impl Bench {
    /// Begins a copy of `bytes` bytes from `offset` on, both below [`LARGEST`].
    fn copy(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        debug_assert!(offset + bytes <= LARGEST);
        let host = self.host.address().as_ptr().wrapping_add(offset);
        let device = self.memory.address() + offset as u64;
        // SAFETY: both regions have `LARGEST` bytes, belong to this bench alone and outlive every copy: each function
        // here waits for what it began. What the bytes are does not matter.
        unsafe {
            match self.direction {
                Direction::In => self.stream.copy_in(device, host, bytes),
                Direction::Out => self.stream.copy_out(host, device, bytes),
            }
        }
    }

    /// Bytes a second of `count` copies of `bytes` bytes with at most `depth` in flight.
    fn rate(&self, bytes: usize, count: usize, depth: usize) -> Result<f64, CudaError> {
        let mut best = 0.0_f64;
        for _ in 0..TIMES {
            let start = Instant::now();
            let mut marks = std::collections::VecDeque::with_capacity(depth);
            for i in 0..count {
                if marks.len() == depth {
                    wait(marks.pop_front());
                }
                self.copy(i * bytes % (LARGEST - bytes + 1) / 4096 * 4096, bytes)?;
                marks.push_back(self.stream.mark()?);
            }
            self.stream.synchronize()?;
            best = best.max((bytes * count) as f64 / start.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// How long a small copy takes from its call to its end.
    fn latency(&self) -> Result<Duration, CudaError> {
        let mut times = [Duration::ZERO; SMALL];
        for time in &mut times {
            let start = Instant::now();
            self.copy(0, 4096)?;
            wait(Some(self.stream.mark()?));
            *time = start.elapsed();
        }
        times.sort_unstable();
        Ok(times[SMALL / 2])
    }

    fn rates(&self) -> Result<Rates, CudaError> {
        // The first copies set things up.
        self.copy(0, LARGEST)?;
        self.stream.synchronize()?;
        let mut by_size = Vec::with_capacity(SIZES.len());
        for bytes in SIZES {
            by_size.push((bytes, self.rate(bytes, VOLUME / bytes, DEPTH)?));
        }
        Ok(Rates {
            bytes_per_second: self.rate(LARGEST, 2, 2)?,
            latency_ns: u64::try_from(self.latency()?.as_nanos()).unwrap_or(u64::MAX),
            by_size,
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // After an error copies may be under way.
        let _ = self.stream.synchronize();
    }
}

fn wait(mark: Option<Arc<crate::cuda::Mark>>) {
    if let Some(mark) = mark {
        while !mark.is_done() {
            std::hint::spin_loop();
        }
    }
}

/// Measures both directions of a GPU. Takes 128 MiB of memory meanwhile, half of it the GPU's.
pub fn measure(device: &'static Device) -> Result<Profile, MeasureError> {
    let host = Region::host(
        LARGEST,
        HostOptions {
            huge: true,
            ..HostOptions::default()
        },
    )?;
    host.pin(device)?;
    let mut bench = Bench {
        stream: Stream::new(device, DEPTH + 1)?,
        host,
        memory: Memory::with(device, LARGEST, crate::cuda::Backing::Plain)?,
        direction: Direction::In,
    };
    let inward = bench.rates()?;
    bench.direction = Direction::Out;
    let outward = bench.rates()?;
    Ok(Profile { inward, outward })
}
