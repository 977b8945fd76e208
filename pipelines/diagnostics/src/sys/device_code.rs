//! Loading device code. These calls are unsafe because the compiler cannot check the kernels.

use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads the PTX of a built-in kernel, called `name` in messages, to measure how long its launch takes.
pub(crate) fn launched(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from the .cu files beside the kernels (a test compares them). Only `bench::launch`
    // gets the module. It passes the arguments that convert.cu declares, with addresses in memory that it owns, keeps
    // until its last event is complete, and uses on one stream.
    unsafe { Module::load(device, name, ptx) }
}

/// Loads the PTX of persistent kernels that answer doorbells, called `name` in messages.
pub(crate) fn answering(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from echo.cu (a test compares them). Only `bench::echo` gets the module. It passes
    // the arguments that the file declares: addresses in mapped memory and in memory that it keeps until the kernel has
    // ended, or leaks if the kernel does not end. The CPU stores to memory that such a kernel reads while it runs. This
    // is intended: both sides load and store whole words, no reference is made to the memory, and frames are stored
    // before the doorbell that announces them and not again before the kernel's answer. Values that a kernel reads in
    // between are only written to memory of the measurement or the check.
    unsafe { Module::load(device, name, ptx) }
}
