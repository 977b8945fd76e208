//! Cores that store to a GPU of another node.

use crate::gpu::driver::Device;
use crate::thread::current_core;
use crate::topology::{Topology, pci};
use std::path::Path;

/// A word in the log if the calling thread's core is on another NUMA node than the GPU: its stores then cross from one
/// processor to the other. `remedy` says how the core is chosen, as in `[staging] cores`. For a thread's start: it
/// reads files.
pub fn warn_if_remote_numa(device: &'static Device, remedy: &str) {
    let sys = Path::new("/sys");
    let gpu = pci::facts(sys, &device.identity().pci).node;
    if let Some(far) = Topology::read(sys).far(current_core(), gpu) {
        tracing::warn!(
            "core {} stores to cuda:{}, and {far}: give `{remedy}` cores of node {}",
            far.core,
            device.ordinal(),
            far.gpu
        );
    }
}
