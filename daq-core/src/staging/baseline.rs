//! Copies without a pipeline, which measure the machine's baseline performance for comparison with the copy engine
//! thread.

use super::methods::BetweenGpus;
use super::{MeasureError, StreamPath};
use crate::gpu::Event;
use crate::gpu::driver::{Backing, CudaError, Device, Memory, Rows, Stream, StreamEvent};
use crate::region::{HostOptions, Region};
use crate::staging::Direction;
use std::cell::Cell;
use std::sync::Arc;

/// Maximum number of copies in one call of the driver's batched copy.
pub const BATCH: usize = 256;
/// Number of events, which is the maximum number of copies in flight whose ends can be detected separately.
const EVENTS: usize = 16;

/// The memory that the buffer on the GPU is copied from or to.
#[derive(Debug)]
enum Other {
    /// Host memory, and the direction of copies.
    Host(Arc<Region>, Direction),
    /// Memory of another GPU, which is written.
    Target(Memory),
    /// Memory of another GPU, which is read.
    Source(Memory),
}

/// A buffer on a GPU, a buffer in host memory or on another GPU, and a stream that copies between them.
#[derive(Debug)]
pub struct BaselineCopy {
    stream: Stream,
    other: Other,
    memory: Memory,
    bytes: usize,
    /// Offset of the next copy of a [walk](Self::walk).
    next: Cell<usize>,
    /// Argument lists of one batch.
    to: Vec<u64>,
    from: Vec<u64>,
    sizes: Vec<usize>,
}

impl BaselineCopy {
    /// Allocates two buffers of `bytes` bytes. The host buffer is pinned for CUDA unless `pageable`.
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
        let memory = Memory::with(device, bytes, Backing::Plain)?;
        Ok(Self::with(
            device,
            memory,
            Other::Host(host, direction),
            bytes,
        )?)
    }

    /// Allocates a buffer of `bytes` bytes on each of two GPUs, for copies from `from` to `to`. The copies run on the stream
    /// of `from`, or with `pull` on the stream of `to`.
    ///
    /// # Errors
    /// If the GPUs cannot access each other's memory.
    pub fn between_gpus(
        from: &'static Device,
        to: &'static Device,
        bytes: usize,
        pull: bool,
    ) -> Result<Self, CudaError> {
        let (by, other) = if pull { (to, from) } else { (from, to) };
        let (memory, peer) = (Memory::new(by, bytes)?, Memory::new(other, bytes)?);
        peer.grant(by)?;
        let other = if pull {
            Other::Source(peer)
        } else {
            Other::Target(peer)
        };
        Self::with(by, memory, other, bytes)
    }

    fn with(
        device: &'static Device,
        memory: Memory,
        other: Other,
        bytes: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(device, EVENTS)?,
            other,
            memory,
            bytes,
            next: Cell::new(0),
            to: Vec::with_capacity(BATCH),
            from: Vec::with_capacity(BATCH),
            sizes: Vec::with_capacity(BATCH),
        })
    }

    /// Sets the direction of the following copies. Has no effect on copies between GPUs.
    pub fn turn(&mut self, direction: Direction) {
        if let Other::Host(_, turned) = &mut self.other {
            *turned = direction;
        }
    }

    /// Returns the memory that is written and the memory that is read; `None` if either is host memory.
    pub(super) const fn on_gpus(&self) -> Option<(&Memory, &Memory)> {
        match &self.other {
            Other::Host(..) => None,
            Other::Target(target) => Some((target, &self.memory)),
            Other::Source(source) => Some((&self.memory, source)),
        }
    }

    /// Returns the GPU.
    pub fn device(&self) -> &'static Device {
        self.stream.device()
    }

    /// Returns the size of each buffer in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the offset of the next `bytes` bytes after the bytes of the last call, or 0 if these bytes do not fit
    /// into the buffers. With these offsets, copies of any size use all of the memory.
    ///
    /// # Panics
    /// If `bytes` exceeds the size of the buffers.
    pub fn walk(&self, bytes: usize) -> usize {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes exceed the buffers of {} bytes",
            self.bytes
        );
        let next = self.next.get();
        let at = if next + bytes <= self.bytes { next } else { 0 };
        self.next.set(at + bytes);
        at
    }

    /// Returns the addresses of target and source of a copy.
    fn ends(&self, offset: usize, bytes: usize) -> (u64, u64) {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        assert!(
            fits,
            "{bytes} bytes at offset {offset} exceed the buffers of {} bytes",
            self.bytes
        );
        let device = self.memory.address() + offset as u64;
        match &self.other {
            Other::Host(host, direction) => {
                let host = host.address().as_ptr().wrapping_add(offset) as u64;
                match direction {
                    Direction::In => (device, host),
                    Direction::Out => (host, device),
                }
            }
            Other::Target(target) => (target.address() + offset as u64, device),
            Other::Source(source) => (device, source.address() + offset as u64),
        }
    }

    /// Starts a copy of `bytes` bytes at `offset` in both buffers.
    ///
    /// # Panics
    /// If the range does not fit into the buffers.
    pub fn begin(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        let (to, from) = self.ends(offset, bytes);
        let rows = Rows::one(bytes);
        // SAFETY: the range is inside both buffers, as just checked. Only `self` uses the buffers, and they are freed
        // after all copies have ended. The stream's GPU has access to the memory of the other GPU.
        unsafe {
            match &self.other {
                Other::Host(_, direction) => direction.copy(&self.stream, to, from, rows),
                Other::Target(other) | Other::Source(other) => {
                    let to_gpu = BetweenGpus { to: other.device() };
                    to_gpu.copy(&self.stream, to, from, rows)
                }
            }
        }
    }

    /// Starts `count` contiguous copies of `bytes` bytes from `offset` on with one call; returns false if the driver
    /// does not have this call.
    ///
    /// # Panics
    /// If the copies do not fit into the buffers, or `count` exceeds [`BATCH`].
    pub fn begin_batch(
        &mut self,
        offset: usize,
        bytes: usize,
        count: usize,
    ) -> Result<bool, CudaError> {
        assert!(
            count <= BATCH,
            "a batch can have at most {BATCH} copies, but {count} were given"
        );
        self.to.clear();
        self.from.clear();
        self.sizes.clear();
        for i in 0..count {
            let (to, from) = self.ends(offset + i * bytes, bytes);
            self.to.push(to);
            self.from.push(from);
            self.sizes.push(bytes);
        }
        // SAFETY: all ranges are inside both buffers, as just checked. Only `self` uses the buffers, and they are freed
        // after all copies have ended.
        unsafe {
            self.stream
                .copy_batch(&mut self.to, &mut self.from, &mut self.sizes)
        }
    }

    /// Records the end of all copies started so far.
    ///
    /// # Panics
    /// If 16 events are in use.
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
        // After an error, copies may still be in flight.
        let _ = self.stream.synchronize();
    }
}
