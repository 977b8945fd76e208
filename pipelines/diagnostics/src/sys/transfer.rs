//! Copies CPU-mapped memory with CUDA, as a second method to access the same bytes.

use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{CudaError, Device, Stream};
use daq_core::region::{HostOptions, Region, RegionError};
use std::ptr::NonNull;
use std::sync::Arc;

/// Number of bytes that are copied per step.
const PIECE: usize = 1 << 20;

/// Copies bytes from and to mapped memory with the GPU, through a separate pinned buffer.
#[derive(Debug)]
pub(crate) struct Transfer {
    stream: Stream,
    bounce: Arc<Region>,
}

impl Transfer {
    pub(crate) fn new(device: &'static Device) -> Result<Self, RegionError> {
        let bounce = Region::host(PIECE, HostOptions::default())?;
        bounce.pin(device)?;
        Ok(Self {
            stream: Stream::new(device, 1)?,
            bounce,
        })
    }

    /// Writes `from` to the mapped memory at `offset`, and waits until the copy is complete.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub(crate) fn write(
        &self,
        mapped: &BarMapping,
        offset: usize,
        from: &[u8],
    ) -> Result<(), CudaError> {
        for (i, piece) in from.chunks(PIECE).enumerate() {
            let to = address(mapped, offset + i * PIECE, piece.len());
            let bounce = self.bounce.address();
            // SAFETY:
            // - The pinned region has room for a piece. Only the thread that owns the stream uses it, between two waits
            //   for the stream.
            // - The target is inside the mapped memory, which the caller keeps. No reference to either memory exists.
            unsafe {
                bounce.copy_from_nonoverlapping(NonNull::from(piece).cast(), piece.len());
                self.stream.copy_in(to, bounce.as_ptr(), piece.len())?;
            }
            self.stream.synchronize()?;
        }
        Ok(())
    }

    /// Reads the mapped memory at `offset` into `to`, and waits until the copy is complete.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub(crate) fn read(
        &self,
        mapped: &BarMapping,
        offset: usize,
        to: &mut [u8],
    ) -> Result<(), CudaError> {
        for (i, piece) in to.chunks_mut(PIECE).enumerate() {
            let from = address(mapped, offset + i * PIECE, piece.len());
            let bounce = self.bounce.address();
            // SAFETY: the same invariants hold as in `write`, with source and target exchanged.
            unsafe { self.stream.copy_out(bounce.as_ptr(), from, piece.len()) }?;
            self.stream.synchronize()?;
            // SAFETY: the copy is complete, and the pinned region has room for a piece.
            unsafe {
                bounce.copy_to_nonoverlapping(NonNull::from(&mut *piece).cast(), piece.len());
            }
        }
        Ok(())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // After an error, copies may still be in flight, so wait for them before the memory is freed.
        let _ = self.stream.synchronize();
    }
}

fn address(mapped: &BarMapping, offset: usize, bytes: usize) -> u64 {
    let end = offset.checked_add(bytes);
    assert!(
        end.is_some_and(|end| end <= mapped.bytes()),
        "{bytes} bytes at offset {offset} exceed the mapping of {} bytes",
        mapped.bytes()
    );
    mapped.address() + offset as u64
}
