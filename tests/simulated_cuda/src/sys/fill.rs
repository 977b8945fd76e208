//! Fills memory with a pattern.

use super::space::{self, Pieces, Space};
use super::stream::{Operation, Stream};
use super::{context, driver, require};
use crate::code::{ILLEGAL_ADDRESS, Result};
use crate::report::COUNTS;
use std::ffi::{c_uchar, c_uint};
use std::sync::atomic::Ordering;

/// A range to fill with a value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The device that fills.
    by: &'static context::Device,
    address: u64,
    bytes: usize,
    /// The bytes that are repeated from `address` on.
    pattern: [u8; 4],
}

impl Fill {
    /// Submits a fill of `bytes` bytes to a stream.
    fn submit(
        by: &'static context::Device,
        address: u64,
        pattern: [u8; 4],
        bytes: usize,
        stream: usize,
    ) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        let fill = Self {
            by,
            address,
            bytes,
            pattern,
        };
        fill.pieces(&space::lock())?;
        let stream = Stream::find(by, stream)?;
        stream.submit(Operation::Fill(fill)).map(|_| ())
    }

    /// Submits fills of `rows` rows of `width` bytes to a stream.
    fn submit_rows(
        by: &'static context::Device,
        (address, pitch): (u64, usize),
        pattern: [u8; 4],
        (width, rows): (usize, usize),
        stream: usize,
    ) -> Result {
        require(rows <= 1 || pitch >= width)?;
        (0..rows as u64).try_for_each(|row| {
            let address = address + row * pitch as u64;
            Self::submit(by, address, pattern, width, stream)
        })
    }

    /// Fills `bytes` bytes with zeros now, as a kernel of the device `by` does.
    pub fn clear(by: &'static context::Device, address: u64, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        Self {
            by,
            address,
            bytes,
            pattern: [0; 4],
        }
        .write()
    }

    fn pieces(&self, space: &Space) -> Result<Pieces> {
        if space.is_device(self.address) {
            return space.device(self.by, self.address, self.bytes, true);
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
        let mut values = self.pattern.iter().copied().cycle();
        let is_uniform = self.pattern == [self.pattern[0]; 4];
        for (address, bytes) in pieces.part(0, self.bytes) {
            // SAFETY:
            // - `bytes` bytes from `address` on are a piece.
            // - Pieces of device memory are mapped as long as they are held. Registered host memory is mapped as long as
            //   it is registered, which callers of the driver guarantee.
            unsafe {
                if is_uniform {
                    std::ptr::write_bytes(address as *mut u8, self.pattern[0], bytes);
                } else {
                    for (at, value) in (address..address + bytes).zip(&mut values) {
                        std::ptr::write(at as *mut u8, value);
                    }
                }
            }
        }
        Ok(())
    }
}

driver! {
    /// Fills device memory asynchronously.
    in_context(device) fn cuMemsetD8_v2(address: u64, value: c_uchar, bytes: usize) {
        Fill::submit(device, address, [value; 4], bytes, 0)
    }

    in_context(device) fn cuMemsetD8Async(address: u64, value: c_uchar, bytes: usize, stream: usize) {
        Fill::submit(device, address, [value; 4], bytes, stream)
    }

    in_context(device) fn cuMemsetD2D8Async(address: u64, pitch: usize, value: c_uchar, width: usize, rows: usize, stream: usize) {
        Fill::submit_rows(device, (address, pitch), [value; 4], (width, rows), stream)
    }

    in_context(device) fn cuMemsetD2D32Async(address: u64, pitch: usize, value: c_uint, words: usize, rows: usize, stream: usize) {
        require(address.is_multiple_of(4) && (rows == 1 || pitch.is_multiple_of(4)))?;
        Fill::submit_rows(device, (address, pitch), value.to_le_bytes(), (words * 4, rows), stream)
    }
}
