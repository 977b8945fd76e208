//! `daq bench`: what this machine's copies can do, and what of it the staging engine reaches. The ways are measured
//! in turn, in several rounds of one run, and medians are shown, so that their ratios mean something even where
//! absolute figures move.

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

/// Where a table goes as soon as it is measured.
pub type Publish<'a> = &'a mut (dyn FnMut(Table) + Send);

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The GPU refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// No memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The bare copies could not be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A mapping cannot be used.
    #[error(transparent)]
    BarMapping(#[from] BarMappingError),
    /// A kernel that stays gave no answer.
    #[error(
        "the kernel that was rung {rung} times has answered {seen} within {seconds} s; does the GPU see what the CPU stores there?"
    )]
    Silent {
        /// The doorbell's word.
        rung: u64,
        /// The last one that it answered.
        seen: u64,
        /// Seconds.
        seconds: u64,
    },
    /// The staging engine failed.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// A thread of the measurement failed.
    #[error("{0}")]
    Thread(String),
}

/// Arguments of every measurement.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// Rounds, of which medians are taken.
    pub rounds: usize,
    /// How long each way is measured a round.
    pub window: Duration,
}

impl Common {
    fn open(&self) -> Result<&'static Device, CudaError> {
        Device::open(self.device)
    }
}

/// The middle of some figures; 0 of none.
fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// The figure that a part `q` of them does not exceed; 0 of none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into the figures"
)]
fn quantile(figures: &[f64], q: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Runs `work` again and again for about `window` and gives bytes a second, by the bytes that each call says.
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
