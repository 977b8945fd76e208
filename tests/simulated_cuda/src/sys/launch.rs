//! Kernel launches.

use super::context::Device;
use super::copy::Copy;
use super::fill::Fill;
use super::module::{FUNCTIONS, Function};
use super::persistent::{self, Running};
use super::stream::{Operation, Stream, Submitted};
use super::{In, Out, driver, require};
use crate::attributes::{
    BLOCK, BLOCKS_MULTIPROCESSOR, GRID, MULTIPROCESSORS, SHARED_MULTIPROCESSOR, THREADS,
    THREADS_MULTIPROCESSOR,
};
use crate::code::{
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result,
};
use crate::faults::LAUNCHES;
use crate::kernels::{Kernel, Memory};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A launch with the values of its parameters.
#[derive(Clone, Debug)]
pub struct Launch {
    kernel: Option<&'static Kernel>,
    values: Vec<u64>,
    blocks: [u32; 3],
    /// Set for a persistent kernel.
    running: Option<Arc<Running>>,
}

/// The memory of the process as accessed by the kernels of a device.
struct Seen(&'static Device);

impl Memory for Seen {
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result {
        Copy::by_kernel(self.0, to, from, bytes)
    }

    fn clear(&self, to: u64, bytes: usize) -> Result {
        Fill::clear(self.0, to, bytes)
    }

    fn load(&self, word: u64) -> Result<u64> {
        persistent::load(self.0, word)
    }

    fn store(&self, word: u64, value: u64) -> Result {
        persistent::store(self.0, word, value)
    }

    fn check(&self) -> Result {
        self.0.check()
    }

    fn rest(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

impl Launch {
    /// Runs the launch in a stream.
    pub fn execute(&self, device: &'static Device) -> Result {
        LAUNCHES.begin().enact()?;
        self.kernel.map_or(Ok(()), |kernel| {
            (kernel.run)(&Seen(device), &self.values, self.blocks)
        })
    }

    /// Returns true for a persistent kernel, which runs until it is stopped.
    pub const fn stays(&self) -> bool {
        self.running.is_some()
    }

    /// Records that the launch was executed or cancelled.
    pub fn pass(&self) {
        if let Some(running) = &self.running {
            running.end();
        }
    }
}

/// Copies the values of the parameters. The kernel defines their sizes.
fn values(kernel: &Kernel, parameters: In<In<u8>>) -> Result<Vec<u64>> {
    let mut values = Vec::with_capacity(kernel.parameters.len());
    for (n, bytes) in kernel.parameters.iter().enumerate() {
        let parameter = parameters.at(n)?;
        let mut value = [0; 8];
        for (n, byte) in value.iter_mut().take(*bytes).enumerate() {
            *byte = parameter.at(n)?;
        }
        values.push(u64::from_le_bytes(value));
    }
    Ok(values)
}

/// Returns the maximum number of concurrent blocks per multiprocessor with this number of threads and bytes of shared
/// memory.
fn of_multiprocessor(function: &Function, threads: u32, shared: usize) -> u32 {
    /// Shared memory per block reserved for the system.
    const RESERVED: usize = 1024;
    const WARP: u32 = 32;
    let allowed = usize::try_from(function.shared.load(Ordering::Acquire)).unwrap_or(0);
    if threads > THREADS || shared > allowed {
        return 0;
    }
    let by_threads = THREADS_MULTIPROCESSOR / threads.next_multiple_of(WARP);
    let all = usize::try_from(SHARED_MULTIPROCESSOR).unwrap_or(0);
    let by_shared = u32::try_from(all / (shared + RESERVED)).unwrap_or(u32::MAX);
    by_threads.min(by_shared).min(BLOCKS_MULTIPROCESSOR)
}

/// Returns the maximum number of concurrent blocks on the whole device.
fn at_once(function: &Function, threads: u32, shared: usize) -> u64 {
    u64::from(of_multiprocessor(function, threads, shared)) * u64::from(MULTIPROCESSORS)
}

driver! {
    in_context(device) fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint,
        stream: usize,
        parameters: In<In<u8>>,
        extra: usize,
    ) {
        let function = FUNCTIONS.get(function)?;
        let stream = Stream::find(device, stream)?;
        if !std::ptr::eq(function.device, device) || !std::ptr::eq(stream.device, device) {
            return Err(INVALID_HANDLE);
        }
        let is_within = |sizes: [c_uint; 3], max: [c_uint; 3]| {
            (0..3).all(|n| (1..=max[n]).contains(&sizes[n]))
        };
        let block = [block_x, block_y, block_z];
        require(is_within([grid_x, grid_y, grid_z], GRID) && is_within(block, BLOCK))?;
        require(block_x * block_y * block_z <= THREADS)?;
        let max_shared = function.shared.load(Ordering::Acquire);
        require(i32::try_from(shared).is_ok_and(|shared| shared <= max_shared))?;
        if extra != 0 {
            // Parameters in a single buffer are not supported. Parameters in both forms together are invalid.
            return Err(if parameters.is_null() {
                NOT_SUPPORTED
            } else {
                INVALID_VALUE
            });
        }
        let kernel = function.kernel;
        let values = kernel.map_or(Ok(Vec::new()), |kernel| values(kernel, parameters))?;
        let stays = kernel.is_some_and(|kernel| kernel.stays);
        if stays {
            // All blocks of a cooperative launch must run at the same time, because blocks that wait for unstarted
            // blocks would deadlock.
            let at_once = at_once(&function, block_x * block_y * block_z, shared as usize);
            if u64::from(grid_x) * u64::from(grid_y) * u64::from(grid_z) > at_once {
                eprintln!(
                    "DAQ_SIMULATED_CUDA: the grid is too large; at most {at_once} blocks of this persistent kernel can run at the same time"
                );
                return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        let running = stays.then(|| Running::begin(device));
        let submitted = stream.submit(Operation::Launch(Launch {
            kernel,
            values,
            blocks: [grid_x, grid_y, grid_z],
            running: running.clone(),
        }));
        if !matches!(submitted, Ok(Submitted::Queued(_)))
            && let Some(running) = running
        {
            running.end();
        }
        submitted.map(|_| ())
    }

    in_context(_) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>,
        function: usize,
        threads: c_int,
        shared: usize,
    ) {
        let function = FUNCTIONS.get(function)?;
        let threads = u32::try_from(threads)
            .ok()
            .filter(|threads| *threads > 0)
            .ok_or(INVALID_VALUE)?;
        blocks.set(of_multiprocessor(&function, threads, shared).cast_signed())
    }
}
