//! Kernels that do something: host functions that stand in for entries, by name. Every other entry does nothing.

use crate::code::Result;

/// A host function that stands in for a kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The name of the entry.
    pub name: &'static str,
    /// Bytes of each of its parameters, at most 8.
    pub parameters: &'static [usize],
    /// What it does with the values of the parameters.
    pub run: fn(&dyn Memory, &[u64]) -> Result,
}

/// Memory as kernels see it. An address that leads nowhere is the error that breaks a context.
pub trait Memory {
    /// Copies `bytes` bytes.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result;
}

/// All of them.
pub const KERNELS: &[Kernel] = &[Kernel {
    name: "daq_simulated_copy",
    parameters: &[8, 8, 8],
    run: |memory, values| {
        let bytes = usize::try_from(values[2]).map_err(|_| crate::code::ILLEGAL_ADDRESS)?;
        memory.copy(values[0], values[1], bytes)
    },
}];

/// The host function for the entry `name`.
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}
