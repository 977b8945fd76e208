//! The CUDA sides of the built-in kernels, compared with their CPU sides (numbers and metadata) and with numpy.
//!
//! On a machine without a GPU the tests skip, and `kernels_compiled_for_cpu_pass` runs them all against a driver that runs device code on
//! the CPU. Nothing is read from the source tree, so that the binary can be carried to a machine with a GPU.

#![allow(clippy::unwrap_used)]

mod convert;
mod host;
mod numpy;
mod power_spectrum;
mod stats;
mod throughput;
mod trial;

use daq_core::gpu::driver::{self, Device};

/// The first GPU; without one the reason is printed.
fn device() -> Option<&'static Device> {
    match driver::probe() {
        Ok(_) => Some(Device::open(0).unwrap()),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}
