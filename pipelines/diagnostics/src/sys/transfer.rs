//! CUDA copies of CPU-mapped memory: a second method to access the same bytes.

use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{CudaError, Device, Stream};
use daq_core::region::{HostOptions, Region, RegionError};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes copied per step.
const PIECE: usize = 1 << 20;

/// Copies mapped memory as the device sees it, through its own pinned memory.
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

    /// Writes `from` at `offset` and waits.
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
            // SAFETY: the region has room for a piece and is used only here, by the thread that owns the stream,
            // between two waits for the stream. The target is inside the mapped memory, which the caller keeps; no
            // reference is made to either.
            unsafe {
                bounce.copy_from_nonoverlapping(NonNull::from(piece).cast(), piece.len());
                self.stream.copy_in(to, bounce.as_ptr(), piece.len())?;
            }
            self.stream.synchronize()?;
        }
        Ok(())
    }

    /// Reads into `to` from `offset` and waits.
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
            // SAFETY: as in `write`, in the opposite direction.
            unsafe { self.stream.copy_out(bounce.as_ptr(), from, piece.len()) }?;
            self.stream.synchronize()?;
            // SAFETY: the copy has ended, and the region has room for a piece.
            unsafe {
                bounce.copy_to_nonoverlapping(NonNull::from(&mut *piece).cast(), piece.len());
            }
        }
        Ok(())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // After an error, copies may still be in flight.
        let _ = self.stream.synchronize();
    }
}

fn address(mapped: &BarMapping, offset: usize, bytes: usize) -> u64 {
    let end = offset.checked_add(bytes);
    assert!(
        end.is_some_and(|end| end <= mapped.bytes()),
        "{bytes} bytes at {offset} of {}",
        mapped.bytes()
    );
    mapped.address() + offset as u64
}
