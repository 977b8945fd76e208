//! Copies on a CUDA stream.

use super::{CopyMethod, host};
use crate::gpu::driver::{Block, CudaError, Device, Rows, Stream};
use crate::ring::Completion;
use crate::staging::{Direction, StagingError};
use std::fmt;

/// The memories between which a [`CopyStream`] copies.
pub trait StreamPath: fmt::Debug + Send {
    /// Starts a copy of rows on `stream`.
    ///
    /// # Safety
    /// The requirements of [`CopyMethod::copy`] apply.
    unsafe fn copy(&self, stream: &Stream, to: u64, from: u64, rows: Rows)
    -> Result<(), CudaError>;

    /// Returns the GPU that is written, if it is another one than the stream's.
    fn target(&self) -> Option<&'static Device> {
        None
    }
}

/// Copies between host memory and the stream's GPU.
impl StreamPath for Direction {
    unsafe fn copy(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        rows: Rows,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees all requirements for each row; the direction determines which address is in
        // host memory.
        unsafe {
            match (self, rows.count) {
                (Self::In, 1) => stream.copy_in(to, host(from), rows.bytes),
                (Self::Out, 1) => stream.copy_out(host(to), from, rows.bytes),
                (Self::In, _) => stream.copy_rows_in(to, host(from), rows),
                (Self::Out, _) => stream.copy_rows_out(host(to), from, rows),
            }
        }
    }
}

/// A CUDA stream that copies along one path.
#[derive(Debug)]
pub struct CopyStream<P = Direction> {
    stream: Stream,
    path: P,
}

impl<P: StreamPath> CopyStream<P> {
    /// Creates a stream for up to `depth` copies in flight.
    pub fn new(device: &'static Device, path: P, depth: usize) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(device, depth)?,
            path,
        })
    }
}

impl<P: StreamPath> CopyMethod for CopyStream<P> {
    unsafe fn copy(&self, to: u64, from: u64, rows: Rows) -> Result<(), StagingError> {
        // SAFETY: the caller guarantees all requirements of this call.
        Ok(unsafe { self.path.copy(&self.stream, to, from, rows) }?)
    }

    unsafe fn copy_block(&self, to: u64, from: u64, block: Block) -> Result<(), StagingError> {
        // SAFETY: the caller guarantees all requirements of this call.
        Ok(unsafe { self.stream.copy_block(to, from, block) }?)
    }

    fn record_event(&self) -> Result<Completion, StagingError> {
        Ok(Completion::Event(self.stream.record_event()?))
    }

    fn has_room(&self) -> bool {
        self.stream.has_free_event()
    }

    fn settle(&self) {
        // The failure that caused this call has already been reported.
        let _ = self.stream.synchronize();
    }

    fn leak(&self) {
        self.stream.device().mark_hung();
        // Work that never ends may also write to the memory of the other GPU.
        if let Some(target) = self.path.target() {
            target.mark_hung();
        }
    }
}
