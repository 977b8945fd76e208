//! Loading device code, for whose kernels someone must vouch.

use daq_core::cuda::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads a built-in kernel's PTX, called `name` in messages.
pub(crate) fn built_in(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from the .cu files beside the kernels (a test compares them). Their kernels touch
    // only shared memory of their own and what their arguments lead to: the slots of a burst, which are leased, the
    // slots for its output, which are reserved, and memory that the kernel's host side owns. The host sides compute
    // grids and counts so that every index is inside, which the tests run through on the host.
    unsafe { Module::load(device, name, ptx) }
}

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
