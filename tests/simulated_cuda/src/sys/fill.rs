//! Fills memory with a pattern.

use super::space::{self, Pieces, Space};
use super::stream::{Operation, Stream};
use super::{context, driver, require};
use crate::code::{ILLEGAL_ADDRESS, Result};
use crate::report::COUNTS;
use std::ffi::c_uchar;
use std::sync::atomic::Ordering;

/// A range to fill with a value.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The device that fills.
    by: &'static context::Device,
    address: u64,
    bytes: usize,
    value: u8,
}

impl Fill {
    /// Submits a fill of `bytes` bytes to a stream.
    fn submit(
        by: &'static context::Device,
        address: u64,
        value: u8,
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
            value,
        };
        fill.pieces(&space::lock())?;
        let stream = Stream::find(by, stream)?;
        stream.submit(Operation::Fill(fill)).map(|_| ())
    }

    /// Fills `bytes` bytes with zeros now, as a kernel of the device `by` does.
    pub fn clear(by: &'static context::Device, address: u64, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        let value = 0;
        Self {
            by,
            address,
            bytes,
            value,
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
        for (address, bytes) in pieces.part(0, self.bytes) {
            // SAFETY:
            // - `bytes` bytes from `address` on are a piece.
            // - Pieces of device memory are mapped as long as they are held. Registered host memory is mapped as long as
            //   it is registered, which callers of the driver guarantee.
            unsafe { std::ptr::write_bytes(address as *mut u8, self.value, bytes) };
        }
        Ok(())
    }
}

driver! {
    /// Fills device memory asynchronously.
    in_context(device) fn cuMemsetD8_v2(address: u64, value: c_uchar, bytes: usize) {
        Fill::submit(device, address, value, bytes, 0)
    }

    in_context(device) fn cuMemsetD8Async(address: u64, value: c_uchar, bytes: usize, stream: usize) {
        Fill::submit(device, address, value, bytes, stream)
    }
}
