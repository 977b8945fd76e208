//! Loads device code. The calls are unsafe because the Rust compiler cannot check kernels.

use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads the PTX of a built-in kernel whose launch is measured. `name` is used in messages.
pub(crate) fn launched(
    device: &'static Device,
    name: &str,
    ptx: &[u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY:
    // - The code is compiled from the .cu files beside the kernels; a test compares them.
    // - Only `launch` receives the module. It passes the arguments that convert.cu declares.
    // - The addresses are in memory that `launch` owns, uses on one stream, and frees only after its last event
    //   is complete.
    unsafe { Module::load(device, name, ptx) }
}
