//! Launches.

use super::copy::Copy;
use super::module::FUNCTIONS;
use super::stream::{Operation, Stream};
use super::{In, Out, call, require};
use crate::attributes::{
    BLOCK, BLOCKS_MULTIPROCESSOR, GRID, SHARED_MULTIPROCESSOR, THREADS, THREADS_MULTIPROCESSOR,
};
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::faults::{Fate, LAUNCHES};
use crate::kernels::{Kernel, Memory};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// A launch with the values of its parameters.
#[derive(Clone, Debug)]
pub struct Launch {
    kernel: Option<&'static Kernel>,
    values: Vec<u64>,
    blocks: [u32; 3],
}

/// The memory of the process as its devices see it.
struct Devices;

impl Memory for Devices {
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result {
        Copy::within_device(to, from, bytes)
    }
}

impl Launch {
    /// Does it.
    pub fn execute(&self) -> Result {
        match LAUNCHES.begin() {
            Fate::Done => self.kernel.map_or(Ok(()), |kernel| {
                (kernel.run)(&Devices, &self.values, self.blocks)
            }),
            Fate::Fails(code) => Err(code),
            Fate::Hangs => loop {
                std::thread::park();
            },
        }
    }
}

/// A function of the host with what it is called with.
#[derive(Clone, Copy, Debug)]
pub struct HostFunction {
    function: extern "C" fn(usize),
    argument: usize,
}

impl HostFunction {
    /// Calls it.
    pub fn execute(self) {
        (self.function)(self.argument);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<extern "C" fn(usize)>,
    argument: usize,
) -> Code {
    call!(cuLaunchHostFunc).in_context(|device| {
        let function = function.ok_or(INVALID_VALUE)?;
        let operation = Operation::Host(HostFunction { function, argument });
        Stream::find(device, stream)?.submit(operation).map(|_| ())
    })
}

/// The values of the parameters, of as many bytes as the kernel says.
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

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: usize,
    parameters: In<In<u8>>,
    extra: usize,
) -> Code {
    call!(cuLaunchKernel).in_context(|device| {
        let function = FUNCTIONS.get(function)?;
        let stream = Stream::find(device, stream)?;
        if !std::ptr::eq(function.device, device) || !std::ptr::eq(stream.device, device) {
            return Err(INVALID_HANDLE);
        }
        let is_within = |sizes: [c_uint; 3], most: [c_uint; 3]| {
            sizes
                .iter()
                .zip(most)
                .all(|(size, most)| (1..=most).contains(size))
        };
        let block = [block_x, block_y, block_z];
        require(is_within([grid_x, grid_y, grid_z], GRID) && is_within(block, BLOCK))?;
        require(block_x * block_y * block_z <= THREADS)?;
        require(
            i32::try_from(shared)
                .is_ok_and(|shared| shared <= function.shared.load(Ordering::Acquire)),
        )?;
        if extra != 0 {
            // Parameters in one buffer; both forms together are wrong.
            return Err(if parameters.is_null() {
                NOT_SUPPORTED
            } else {
                INVALID_VALUE
            });
        }
        let kernel = function.kernel;
        let values = kernel.map_or(Ok(Vec::new()), |kernel| values(kernel, parameters))?;
        stream
            .submit(Operation::Launch(Launch {
                kernel,
                values,
                blocks: [grid_x, grid_y, grid_z],
            }))
            .map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<c_int>,
    function: usize,
    threads: c_int,
    shared: usize,
) -> Code {
    /// What each block takes for the system.
    const RESERVED: usize = 1024;
    const WARP: u32 = 32;
    call!(cuOccupancyMaxActiveBlocksPerMultiprocessor).in_context(|_| {
        let function = FUNCTIONS.get(function)?;
        let threads = u32::try_from(threads)
            .ok()
            .filter(|threads| *threads > 0)
            .ok_or(INVALID_VALUE)?;
        let allowed = usize::try_from(function.shared.load(Ordering::Acquire)).unwrap_or(0);
        if threads > THREADS || shared > allowed {
            return blocks.set(0);
        }
        let by_threads = THREADS_MULTIPROCESSOR / threads.next_multiple_of(WARP);
        let all = usize::try_from(SHARED_MULTIPROCESSOR).unwrap_or(0);
        let by_shared = u32::try_from(all / (shared + RESERVED)).unwrap_or(u32::MAX);
        blocks.set(
            by_threads
                .min(by_shared)
                .min(BLOCKS_MULTIPROCESSOR)
                .cast_signed(),
        )
    })
}
