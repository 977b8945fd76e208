//! Copies with nothing around them: what a machine can do, and what engines are measured against.

use super::MeasureError;
use crate::gpu::Event;
use crate::gpu::driver::{Backing, CudaError, Device, Memory, Stream, StreamEvent};
use crate::region::{HostOptions, Region};
use crate::staging::Direction;
use std::cell::Cell;
use std::sync::Arc;

/// The most frames of one call of the driver's batched copy.
pub const BATCH: usize = 256;
/// Marks: copies in flight whose ends can be told apart.
const EVENTS: usize = 16;

/// A stretch of host memory, one of a GPU, and a stream that copies between them.
#[derive(Debug)]
pub struct BaselineCopy {
    stream: Stream,
    host: Arc<Region>,
    memory: Memory,
    bytes: usize,
    direction: Direction,
    /// Where the next copy of a [walk](Self::walk) begins.
    next: Cell<usize>,
    /// Lists of one batch.
    to: Vec<u64>,
    from: Vec<u64>,
    sizes: Vec<usize>,
}

impl BaselineCopy {
    /// Two stretches of `bytes` bytes, the host's pinned for CUDA or, with `pageable`, not.
    pub fn new(
        device: &'static Device,
        direction: Direction,
        bytes: usize,
        pageable: bool,
    ) -> Result<Self, MeasureError> {
        let options = HostOptions {
            huge: true,
            ..HostOptions::default()
        };
        let host = Region::host(bytes, options)?;
        if !pageable {
            host.pin(device)?;
        }
        Ok(Self {
            stream: Stream::new(device, EVENTS)?,
            host,
            memory: Memory::with(device, bytes, Backing::Plain)?,
            bytes,
            direction,
            next: Cell::new(0),
            to: Vec::with_capacity(BATCH),
            from: Vec::with_capacity(BATCH),
            sizes: Vec::with_capacity(BATCH),
        })
    }

    /// Copies the other way from now on.
    pub fn turn(&mut self, direction: Direction) {
        self.direction = direction;
    }

    /// The GPU.
    pub fn device(&self) -> &'static Device {
        self.stream.device()
    }

    /// Bytes of each stretch.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where `bytes` bytes lie behind those of the last call, from the start again where they do not fit: copies that
    /// walk like this come by all of the memory, whatever their size.
    ///
    /// # Panics
    /// If they fit nowhere.
    pub fn walk(&self, bytes: usize) -> usize {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes, more than all {}",
            self.bytes
        );
        let next = self.next.get();
        let at = if next + bytes <= self.bytes { next } else { 0 };
        self.next.set(at + bytes);
        at
    }

    fn ends(&self, offset: usize, bytes: usize) -> (*mut u8, u64) {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of {}", self.bytes);
        let host = self.host.address().as_ptr().wrapping_add(offset);
        (host, self.memory.address() + offset as u64)
    }

    /// Begins a copy of `bytes` bytes at `offset` in both stretches.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn begin(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        let (host, device) = self.ends(offset, bytes);
        // SAFETY: inside of both stretches, as just checked, which belong to `self` alone and are freed after all
        // copies have ended. What the bytes are does not matter.
        unsafe {
            match self.direction {
                Direction::In => self.stream.copy_in(device, host, bytes),
                Direction::Out => self.stream.copy_out(host, device, bytes),
            }
        }
    }

    /// Begins `count` copies of `bytes` bytes side by side from `offset` on with one call; false where the driver has
    /// no such call.
    ///
    /// # Panics
    /// If they do not fit, or are more than [`BATCH`].
    pub fn begin_batch(
        &mut self,
        offset: usize,
        bytes: usize,
        count: usize,
    ) -> Result<bool, CudaError> {
        assert!(count <= BATCH, "a batch of {count} copies");
        self.to.clear();
        self.from.clear();
        self.sizes.clear();
        for i in 0..count {
            let (host, device) = self.ends(offset + i * bytes, bytes);
            let (to, from) = match self.direction {
                Direction::In => (device, host as u64),
                Direction::Out => (host as u64, device),
            };
            self.to.push(to);
            self.from.push(from);
            self.sizes.push(bytes);
        }
        // SAFETY: as in `begin`.
        unsafe {
            self.stream
                .copy_batch(&mut self.to, &mut self.from, &mut self.sizes)
        }
    }

    /// Marks the end of what was begun.
    ///
    /// # Panics
    /// If 16 events are held.
    pub fn record_event(&self) -> Result<Arc<StreamEvent>, CudaError> {
        self.stream.record_event()
    }

    /// Waits until all copies have ended.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    /// Polls until a copy has ended.
    pub fn wait(event: &StreamEvent) {
        while !event.is_done() {
            std::hint::spin_loop();
        }
    }
}

impl Drop for BaselineCopy {
    fn drop(&mut self) {
        // After an error copies may be under way.
        let _ = self.stream.synchronize();
    }
}
