//! Compares the CUDA implementations of the built-in kernels with their CPU implementations (numbers and metadata) and
//! with numpy.
//!
//! Without a GPU the tests are skipped, and `kernels_compiled_for_cpu_pass` runs them with a driver that executes device
//! code on the CPU. The binary reads nothing from the source tree, so it can be copied to a machine with a GPU.

#![allow(clippy::unwrap_used)]

mod beamform;
mod channelize;
mod convert;
mod correlate;
mod host;
mod numpy;
mod power_spectrum;
mod scipy;
mod select;
mod stats;
mod throughput;
mod trial;

use daq_core::gpu::driver::{self, Device};

/// Returns the first GPU. If there is no GPU, prints the reason.
fn device() -> Option<&'static Device> {
    match driver::probe() {
        Ok(_) => Some(Device::open(0).unwrap()),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}
