//! Kernels that do something: host functions that stand in for entries, by name. Every other entry does nothing.

use crate::code::Result;

/// A host function that stands in for a kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The name of the entry.
    pub name: &'static str,
    /// Bytes of each of its parameters, at most 8.
    pub parameters: &'static [usize],
    /// What it does with the values of the parameters and the blocks in x, y and z.
    pub run: fn(&dyn Memory, &[u64], [u32; 3]) -> Result,
}

/// Memory as kernels see it. An address that leads nowhere is the error that breaks a context.
pub trait Memory {
    /// Copies `bytes` bytes.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result;
}

/// All of them.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "daq_simulated_copy",
        parameters: &[8, 8, 8],
        run: |memory, values, _| memory.copy(values[0], values[1], size(values[2])?),
    },
    // What daq.cuh makes of a function of the user's: here one that gives each frame as it is, as far as the output
    // has room.
    Kernel {
        name: "daq_burst",
        parameters: &[8; 16],
        run: |memory, values, blocks| {
            let slot = |of: &[u64], i: u32| of[0] + (of[3] + u64::from(i)) % of[2] * of[1];
            let bytes = size(values[10].min(values[13]))?;
            (0..blocks[1])
                .try_for_each(|i| memory.copy(slot(&values[4..], i), slot(values, i), bytes))
        },
    },
];

fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| crate::code::ILLEGAL_ADDRESS)
}

/// The host function for the entry `name`.
pub fn find(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}
