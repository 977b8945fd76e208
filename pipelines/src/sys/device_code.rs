//! Loading device code, for whose kernels someone must vouch.

use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads a built-in kernel's PTX, called `name` in messages.
pub(crate) fn built_in(
    device: &'static Device,
    name: &str,
    ptx: &'static [u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the code is compiled from the .cu files beside the kernels (a test compares them). Their kernels touch
    // only shared memory of their own and what their arguments lead to. The module goes to their host sides alone,
    // which pass the arguments that the .cu files declare, and addresses of the slots of a burst, which are leased
    // until its mark is done, of the slots for its output, which are reserved as long, and of memory that the host
    // side owns, keeps until its last mark is done, and uses on one stream. The host sides compute grids and counts so
    // that every index is inside, which the tests run through on the host.
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
    // read, one output slot of the declared length to write, and their parameters. The module goes to `kernels::file`
    // alone, which passes the arguments of the entry that the header makes: slots that are leased or reserved until
    // the mark of the burst is done, or a kernel that stays has given its credit, and records in memory that it owns
    // and keeps as long. What a kernel that stays reads the CPU stores while it runs: before the doorbell that announces
    // it, and not again before the credit. Code compiled with another header is detected by the header's version before
    // anything of it runs, and code whose entry declares other arguments is refused when it is launched, where the
    // driver knows them.
    unsafe { Module::load(device, name, image) }
}
