//! Fills memory with a pattern.

use super::space::{self, Pieces, Space};
use super::stream::{Operation, Stream};
use super::{call, context, require};
use crate::code::{Code, ILLEGAL_ADDRESS, INVALID_VALUE, Result};
use crate::report::COUNTS;
use std::ffi::{c_uchar, c_uint};
use std::sync::atomic::Ordering;

/// A range to fill.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    address: u64,
    bytes: usize,
    pattern: [u8; 4],
}

impl Fill {
    /// Submits a fill of `count` values of `width` bytes each to a stream.
    fn submit(address: u64, pattern: [u8; 4], width: usize, count: usize, stream: usize) -> Result {
        let bytes = count.checked_mul(width).ok_or(INVALID_VALUE)?;
        require(address.is_multiple_of(width as u64))?;
        if bytes == 0 {
            return Ok(());
        }
        let fill = Self {
            address,
            bytes,
            pattern,
        };
        fill.pieces(&space::lock())?;
        let stream = Stream::find(context::current()?, stream)?;
        stream.submit(Operation::Fill(fill)).map(|_| ())
    }

    /// Fills `bytes` bytes with zeros now.
    pub fn clear(address: u64, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        let pattern = [0; 4];
        Self {
            address,
            bytes,
            pattern,
        }
        .write()
    }

    fn pieces(&self, space: &Space) -> Result<Pieces> {
        if space.is_device(self.address) {
            return space.device(self.address, self.bytes, true);
        }
        require(space.registered_bytes(self.address, self.bytes)? == self.bytes)?;
        Pieces::host(self.address, self.bytes)
    }

    /// Fills the range. Memory freed since the submission breaks the context.
    pub fn execute(&self) -> Result {
        self.write()?;
        COUNTS.fills.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self) -> Result {
        let pieces = self.pieces(&space::lock()).map_err(|_| ILLEGAL_ADDRESS)?;
        // Every piece starts at a multiple of the value size, because pieces are parts of allocations or whole
        // granules.
        let block = self.pattern.repeat(1024);
        for (address, bytes) in pieces.part(0, self.bytes) {
            for start in (0..bytes).step_by(block.len()) {
                let length = block.len().min(bytes - start);
                // SAFETY:
                // - `length` bytes from `start` on are inside a piece.
                // - Pieces of device memory are mapped as long as they are held. Registered host memory is mapped as
                //   long as it is registered, which callers of the driver guarantee.
                // - `block` contains at least `length` bytes and is not accessed by other code.
                unsafe {
                    let to = (address as *mut u8).add(start);
                    to.copy_from_nonoverlapping(block.as_ptr(), length);
                }
            }
        }
        Ok(())
    }
}

/// Fills device memory asynchronously.
#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: u64, value: c_uchar, count: usize) -> Code {
    call!(cuMemsetD8_v2).in_context(|_| Fill::submit(address, [value; 4], 1, count, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: c_uchar, count: usize, stream: usize) -> Code {
    call!(cuMemsetD8Async).in_context(|_| Fill::submit(address, [value; 4], 1, count, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(address: u64, value: c_uint, count: usize, stream: usize) -> Code {
    call!(cuMemsetD32Async)
        .in_context(|_| Fill::submit(address, value.to_ne_bytes(), 4, count, stream))
}
