//! A warning about CPU cores that store to a GPU on a remote NUMA node.

use crate::gpu::driver::Device;
use crate::thread::current_core;
use crate::topology::{Topology, pci};
use std::path::Path;

/// Logs a warning if the calling thread's core is on another NUMA node than the GPU, because its stores then cross the
/// processor interconnect. `remedy` names the configuration key for the core, such as `[staging] cores`. The function
/// reads files, so it should be called only when a thread starts.
pub fn warn_if_remote_numa(device: &'static Device, remedy: &str) {
    let sys = Path::new("/sys");
    let gpu = pci::facts(sys, &device.identity().pci).node;
    if let Some(far) = Topology::read(sys).remote_node(current_core(), gpu) {
        tracing::warn!(
            "core {} stores to cuda:{}, but {far}; set `{remedy}` to cores of NUMA node {}",
            far.core,
            device.ordinal(),
            far.gpu
        );
    }
}
