//! Loading device code.

use daq_core::cuda::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads code that the user wrote, PTX or a cubin, called `name` in messages.
pub(crate) fn user_code(
    device: &'static Device,
    name: &str,
    image: &[u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: that kernels touch nothing but what their arguments lead to is the promise of the person who named the
    // file in the configuration, as with any plug-in: daq.cuh, which is their contract, gives them one input slot to
    // read, one output slot of the declared length to write, and their parameters. The arguments of the entry that
    // the header makes are those that `kernels::file` passes; code made with another header is told by the header's
    // version before anything of it runs.
    unsafe { Module::load(device, name, image) }
}
