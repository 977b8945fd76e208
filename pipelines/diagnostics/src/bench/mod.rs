//! `daq bench` measures the copies of this machine, and compares the copy engine with these copies. Every round of a
//! run measures all methods one after another, and the medians of the rounds are reported. So the ratios of methods are
//! meaningful even if absolute values vary between runs.

mod apiperf;
mod bar;
mod copies;
mod cores;
mod cpu;
mod doorbell;
pub(crate) mod echo;
mod figures;
mod fpga;
mod harness;
mod launch;
mod persistent;
mod place;
mod rdma;
mod scratch;
mod staging;
mod table;

pub use apiperf::apiperf;
pub use copies::{bandwidth, latency};
pub use doorbell::{DoorbellArgs, doorbell};
pub use fpga::{FpgaArgs, fpga};
pub use launch::launch;
pub use persistent::{PersistentArgs, persistent};
pub(crate) use rdma::fixture::{Fixture, free_port};
pub use rdma::{Measured, RdmaArgs, Role, rdma};
pub(crate) use scratch::Scratch;
pub use staging::{StagingArgs, staging};
pub use table::Table;

use daq_core::gpu::bar_mapping::BarMappingError;
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::region::RegionError;
use daq_core::ring::RingError;
use daq_core::staging::{MeasureError, StagingError};
use std::time::{Duration, Instant};

/// Receives each table as soon as it is measured.
pub type Publish<'a> = &'a mut (dyn FnMut(Table) + Send);

/// Errors of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Memory cannot be allocated.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A ring cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The baseline copies cannot be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A mapping cannot be used.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
    /// A persistent kernel did not answer.
    #[error(
        "no answer from the kernel within {seconds} s: the doorbell was rung {rung} times, and the last answer was {seen}; the GPU may not see CPU stores to this memory"
    )]
    Silent {
        /// Number of times that the doorbell was rung.
        rung: u64,
        /// The last answer of the kernel.
        seen: u64,
        /// Timeout in seconds.
        seconds: u64,
    },
    /// The copy engine failed.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// A thread of the measurement failed.
    #[error("{0}")]
    Thread(String),
}

/// Options of every measurement.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// CUDA device number of the GPU.
    pub device: u32,
    /// Number of rounds; the median is reported.
    pub rounds: usize,
    /// Duration of each method's measurement per round.
    pub window: Duration,
}

impl Common {
    fn open(&self) -> Result<&'static Device, CudaError> {
        Device::open(self.device)
    }
}

/// Returns the median; 0 if there are no values.
fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Returns the `q`-quantile; 0 if there are no values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is an index into the values"
)]
fn quantile(figures: &[f64], q: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Calls `work` repeatedly for about the time `window`. Each call returns the number of bytes that it has transferred.
/// Returns the bytes per second.
fn rate(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let figures = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(median(&figures), 3.0);
        assert_eq!(
            (quantile(&figures, 0.0), quantile(&figures, 0.99)),
            (1.0, 5.0)
        );
        assert_eq!(median(&[]), 0.0);
    }
}
