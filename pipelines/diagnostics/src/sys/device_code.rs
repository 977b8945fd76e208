//! Loads device code. The calls are unsafe because the Rust compiler cannot check kernels.

use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads the PTX of persistent kernels that answer doorbells. `name` is used in messages.
pub(crate) fn answering(
    device: &'static Device,
    name: &str,
    ptx: &[u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY:
    // - The code is compiled from echo.cu; a test compares them.
    // - Only `fixture::echo` receives the module. It passes the arguments that echo.cu declares.
    // - The addresses are in mapped memory, or in memory that `fixture::echo` keeps until the kernel has ended. If the
    //   kernel does not end, that memory is leaked.
    // - The CPU stores to memory that a running kernel reads. This is intended: both sides load and store whole words,
    //   and no reference to the memory exists.
    // - Frames are stored before the doorbell that announces them, and are not changed before the kernel's answer.
    // - A kernel writes values that it reads too early only to memory of the measurement or the check.
    unsafe { Module::load(device, name, ptx) }
}
