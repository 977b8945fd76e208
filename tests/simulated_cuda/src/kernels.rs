//! Kernels with an effect: host functions that replace kernel entries with the same name. All other kernels do nothing.

use crate::code::Result;
use crate::persistent;
use std::ops::Range;

/// A host function that replaces a kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The name of the entry.
    pub name: &'static str,
    /// Size of each parameter in bytes, at most 8.
    pub parameters: &'static [usize],
    /// The host function. It gets the values of the parameters and the number of blocks in x, y and z.
    pub run: fn(&dyn Memory, &[u64], [u32; 3]) -> Result,
    /// True for a persistent kernel, which runs until it is stopped.
    pub stays: bool,
}

/// Memory as accessed by kernels. An access to an invalid address returns the error that breaks a context.
pub trait Memory {
    /// Copies `bytes` bytes.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result;
    /// Fills `bytes` bytes with zeros.
    fn clear(&self, to: u64, bytes: usize) -> Result;
    /// Reads a word with acquire ordering.
    fn load(&self, word: u64) -> Result<u64>;
    /// Writes a word with release ordering.
    fn store(&self, word: u64, value: u64) -> Result;
    /// Returns the error that has broken the context since the kernel started, if any.
    fn check(&self) -> Result;
    /// Yields to other threads. Called when there is no work.
    fn rest(&self);
}

/// All kernels with an effect.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "daq_simulated_copy",
        parameters: &[8, 8, 8],
        run: |memory, values, _| memory.copy(values[0], values[1], size(values[2])?),
        stays: false,
    },
    // The entry that daq.cuh generates from a user's function. This replacement copies each frame unchanged, up to the
    // size of the output, and fills the rest of the output with zeros.
    Kernel {
        name: "daq_burst",
        parameters: &[8; 16],
        run: |memory, values, blocks| {
            // A launch without work has records without words.
            if values[9] == 0 {
                return Ok(());
            }
            let slot = |of: &[u64], i: u32| of[0] + (of[3] + u64::from(i)) % of[2] * of[1];
            (0..blocks[1]).try_for_each(|i| {
                let input = (slot(values, i), values[10]);
                give(memory, slot(&values[4..], i), input, 0..values[13])
            })
        },
        stays: false,
    },
    // The persistent variant of this entry.
    Kernel {
        name: "daq_persistent",
        parameters: &[8; 18],
        run: persistent::run,
        stays: true,
    },
    // Counts sentinels, to verify a data path.
    Kernel {
        name: "daq_verify",
        parameters: &[8; 6],
        run: |memory, values, _| {
            let [slot, bytes, written, seed, first, found] = *values else {
                return Err(crate::code::INVALID_VALUE);
            };
            for i in 0..bytes / 8 {
                let differs = memory.load(slot + 8 * i)? ^ sentinel(seed, first + i);
                let inside = written.saturating_sub(8 * i);
                let counter = if inside >= 8 {
                    (differs == 0).then_some(found)
                } else {
                    (differs >> (8 * inside) != 0).then_some(found + 8)
                };
                if let Some(counter) = counter {
                    memory.store(counter, memory.load(counter)? + 1)?;
                }
            }
            Ok(())
        },
        stays: false,
    },
];

fn sentinel(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes the range `part` of the output at `to`: the bytes of the input, followed by zeros.
pub fn give(memory: &dyn Memory, to: u64, (from, bytes): (u64, u64), part: Range<u64>) -> Result {
    let end = part.end.min(bytes).max(part.start);
    memory.copy(to + part.start, from + part.start, size(end - part.start)?)?;
    memory.clear(to + end, size(part.end - end)?)
}

fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| crate::code::ILLEGAL_ADDRESS)
}

/// Returns the host function of the entry `name`.
pub fn find(name: &str) -> Option<&'static Kernel> {
    let mut kernels = KERNELS.iter().chain(&crate::echo::KERNELS);
    kernels.find(|kernel| kernel.name == name)
}
