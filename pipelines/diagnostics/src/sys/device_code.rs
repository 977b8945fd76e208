//! Loading device code, for whose kernels someone must vouch.

use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads the PTX of a built-in kernel, called `name` in messages, to measure how long its launch takes.
pub(crate) fn launched(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from the .cu files beside the kernels (a test compares them). The module goes to
    // `bench::launch` alone, which passes the arguments that convert.cu declares, and addresses in memory that it
    // owns, keeps until its last mark is done, and uses on one stream.
    unsafe { Module::load(device, name, ptx) }
}

/// Loads the PTX of persistent kernels that answer doorbells, called `name` in messages.
pub(crate) fn answering(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from echo.cu (a test compares them). The module goes to `bench::echo` alone, which
    // passes the arguments that the file declares: addresses in mapped memory and in memory that it keeps until the
    // kernel has ended, or for ever where it does not end. The CPU stores to what such a kernel reads while it runs;
    // that is what it is for: words are loaded and stored whole on both sides, no reference is made to the memory, and
    // frames are stored before the doorbell that announces them and not again before the kernel's answer. Whatever a
    // kernel reads in between goes nowhere but to memory of the measurement or the check.
    unsafe { Module::load(device, name, ptx) }
}
