//! Loads device code. The calls are unsafe because the Rust compiler cannot check kernels.

use crate::kernels::Code;
use daq_core::gpu::driver::{CudaError, Device, Module};
use std::sync::Arc;

/// Loads the PTX of a built-in kernel, [with `known` values](Code::with_values).
pub(crate) fn built_in(
    device: &'static Device,
    code: &Code,
    known: &[(&'static str, u32)],
) -> Result<Arc<Module>, CudaError> {
    let ptx = code.with_values(known);
    // SAFETY: the code is compiled from the .cu files beside the kernels (a test compares them). These kernels access only
    // their own shared memory and the memory that their arguments point to. Only their host sides get the module. They
    // pass the fields of the structures in `kernels::parameters`, from which the declarations of the .cu files are
    // generated. The `known` values are those of the fields with the same names at every launch, because the only host
    // side that has any, `channelize`, builds both from the same variables. The addresses in them are those of the slots of
    // a burst, which are leased until its event is complete, of its output slots, which are reserved as long, and of memory
    // that the host side owns, keeps until its last event is complete, and uses on one stream. The host sides compute grids
    // and counts so that every index is in range; tests run this code on the host.
    unsafe { Module::load(device, code.name(), ptx.as_bytes()) }
}

/// Loads PTX or a cubin that the user wrote. `name` is used in messages.
pub(crate) fn user_code(
    device: &'static Device,
    name: &str,
    image: &[u8],
) -> Result<Arc<Module>, CudaError> {
    // SAFETY: the person who names the file in the configuration vouches that its kernels access only the memory that
    // their arguments point to, as with any plug-in. The contract is daq.cuh: one input slot to read, one output slot
    // of the declared length to write, and the parameters. Only `kernels::file` gets the module. It passes the
    // arguments of the entry that the header defines: slots that are leased or reserved until the burst's event is
    // complete or a persistent kernel has returned its credit, and records in memory that it owns and keeps as long.
    // The CPU stores what a persistent kernel reads while the kernel runs: before the doorbell that announces it, and
    // not again before the credit. Code compiled with another header is detected by the header's version before it
    // runs, and code whose entry declares other arguments is rejected at launch if the driver knows them.
    unsafe { Module::load(device, name, image) }
}
