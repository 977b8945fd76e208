//! `daq bench` measures this machine: each benchmark compares methods on scenarios.

mod bar;
mod comparison;
mod copies;
mod cores;
mod cpu;
mod doorbell;
pub(crate) mod echo;
mod figures;
mod fpga;
mod harness;
mod launch;
mod mapping;
mod persistent;
mod pipeline;
mod place;
mod rdma;
mod scratch;
mod staging;
mod table;

pub use copies::{bandwidth, latency};
pub use doorbell::{DoorbellArgs, doorbell};
pub use fpga::{FpgaArgs, fpga};
pub use launch::launch;
pub use mapping::mapping;
pub use persistent::{PersistentArgs, persistent};
pub(crate) use pipeline::{Environment, free_port};
pub use rdma::{Measured, RdmaArgs, Role, rdma};
pub(crate) use scratch::Scratch;
pub use staging::{StagingArgs, staging};
pub use table::Table;

use daq_core::entry::Registry;
use daq_core::gpu::bar_mapping::BarMappingError;
use daq_core::gpu::driver::{CudaError, Device};
use daq_core::region::RegionError;
use daq_core::ring::RingError;
use daq_core::staging::{MeasureError, StagingError};
use std::time::Duration;

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
#[derive(Clone, Debug)]
pub struct Common {
    /// The entries that measured pipelines can use.
    pub registry: Registry,
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
