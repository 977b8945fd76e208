//! Streams: ordered work on a device, and events that show its progress.

use super::device::Device;
use super::error::{CudaError, Doing};
use crate::gpu::Event;
use crate::sys::cuda::{self, RawEvent, RawStream};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::sys::cuda::{Block, Pitch, Rows};

/// An event of the driver.
struct Raw {
    device: &'static Device,
    event: RawEvent,
}

impl Raw {
    /// Creates an event. The caller must have entered the device's context.
    fn new(device: &'static Device, timed: bool) -> Result<Self, CudaError> {
        cuda::create_event(timed)
            .map(|event| Self { device, event })
            .doing(|| "creating an event".to_owned())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.device.enter_to_free("an event") {
            // SAFETY: the event was created in `new` and is not used anywhere else. The driver keeps an event alive
            // that is still on a stream.
            let _ = unsafe { cuda::destroy_event(self.event) };
        }
    }
}

/// A point on a stream. The event is done when all earlier work on the stream is done. Events of a
/// [timed](Stream::timed) stream also record the time.
///
/// The stream reuses an event when no other owner of the event is left.
pub struct StreamEvent {
    device: &'static Device,
    /// The event that [`Stream::begin`] records; only timed streams have this event.
    start: Option<Raw>,
    end: Raw,
    state: AtomicU32,
    /// The failure of the last work; locked only after failures.
    failure: Mutex<Option<CudaError>>,
}

const PENDING: u32 = 0;
const DONE: u32 = 1;
const FAILED: u32 = 2;

// SAFETY: events may be recorded, queried and freed from any thread; the driver has its own locks.
unsafe impl Send for StreamEvent {}
// SAFETY: the driver locks its own state, and the other fields are atomic or behind a mutex.
unsafe impl Sync for StreamEvent {}

impl StreamEvent {
    /// Returns the duration of the work on the device in milliseconds; `None` if the work is not timed, not done or
    /// failed.
    pub fn milliseconds(&self) -> Option<f32> {
        self.since(self.start.as_ref()?)
    }

    /// Returns the time on the device from the end of the work of `before` to the start of this work, in milliseconds.
    pub fn gap(&self, before: &Self) -> Option<f32> {
        self.device.enter().ok()?;
        let start = self.start.as_ref()?;
        // SAFETY: both events live as long as their owners.
        unsafe { cuda::elapsed(before.end.event, start.event) }.ok()
    }

    fn kept_failure(&self) -> MutexGuard<'_, Option<CudaError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the event for new work. The event must have no other owner.
    fn renew(&self) {
        if self.state.swap(PENDING, Ordering::AcqRel) == FAILED {
            *self.kept_failure() = None;
        }
    }

    fn since(&self, start: &Raw) -> Option<f32> {
        self.device.enter().ok()?;
        // SAFETY: both driver events live as long as `self`.
        unsafe { cuda::elapsed(start.event, self.end.event) }.ok()
    }
}

impl Event for StreamEvent {
    fn is_done(&self) -> bool {
        if self.state.load(Ordering::Acquire) != PENDING {
            return true;
        }
        let asked = self.device.enter().and_then(|()| {
            // SAFETY: the driver's event lives as long as `self`.
            unsafe { cuda::query_event(self.end.event) }
                .doing(|| format!("work on cuda:{}", self.device.ordinal()))
        });
        match asked {
            Ok(false) => return false,
            Ok(true) => self.state.store(DONE, Ordering::Release),
            Err(error) => {
                *self.kept_failure() = Some(error);
                self.state.store(FAILED, Ordering::Release);
            }
        }
        true
    }

    fn failure(&self) -> Option<CudaError> {
        (self.state.load(Ordering::Acquire) == FAILED)
            .then(|| self.kept_failure().clone())
            .flatten()
    }
}

impl fmt::Debug for StreamEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamEvent")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// A stream of one device, used by one thread at a time.
pub struct Stream {
    device: &'static Device,
    raw: RawStream,
    events: Box<[Arc<StreamEvent>]>,
    /// Index of the event that is used next, or that was started last.
    next: Cell<usize>,
}

// SAFETY: the driver lets any thread use a stream, and the `Cell` is moved together with the stream.
unsafe impl Send for Stream {}

impl Stream {
    /// Creates a stream with `events` events, at least 1. The number of events limits the work in flight.
    pub fn new(device: &'static Device, events: usize) -> Result<Self, CudaError> {
        Self::with(device, events, false)
    }

    /// Creates a stream whose events record how long the work before them took.
    pub fn timed(device: &'static Device, events: usize) -> Result<Self, CudaError> {
        Self::with(device, events, true)
    }

    fn with(device: &'static Device, events: usize, timed: bool) -> Result<Self, CudaError> {
        device.enter()?;
        let mut made = Vec::with_capacity(events.max(1));
        for _ in 0..events.max(1) {
            made.push(Arc::new(StreamEvent {
                device,
                start: timed.then(|| Raw::new(device, true)).transpose()?,
                end: Raw::new(device, timed)?,
                state: AtomicU32::new(DONE),
                failure: Mutex::new(None),
            }));
        }
        let raw = cuda::create_stream()
            .doing(|| format!("creating a stream on cuda:{}", device.ordinal()))?;
        Ok(Self {
            device,
            raw,
            events: made.into(),
            next: Cell::new(0),
        })
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Whether an event is free. Without a free event no work may be submitted.
    pub fn has_free_event(&self) -> bool {
        Arc::strong_count(&self.events[self.next.get()]) == 1
    }

    /// Records the start of the work that the next [`record_event`](Self::record_event) ends.
    pub fn begin(&self) -> Result<(), CudaError> {
        self.device.enter()?;
        match &self.events[self.next.get()].start {
            // SAFETY: event and stream live as long as `self`.
            Some(start) => unsafe { cuda::record_event(start.event, self.raw) }
                .doing(|| self.what("recording the start of work on")),
            None => Ok(()),
        }
    }

    /// Records an event after all work submitted so far.
    ///
    /// # Panics
    /// If no event is [free](Self::has_free_event).
    pub fn record_event(&self) -> Result<Arc<StreamEvent>, CudaError> {
        let next = self.next.get();
        let event = &self.events[next];
        assert!(
            self.has_free_event(),
            "more work is in flight than the stream has events"
        );
        event.renew();
        self.device.enter()?;
        // SAFETY: event and stream live as long as `self`, and the previous use of the event has ended.
        unsafe { cuda::record_event(event.end.event, self.raw) }
            .doing(|| self.what("recording the end of work on"))?;
        self.next.set((next + 1) % self.events.len());
        Ok(event.clone())
    }

    /// Waits until all work on the stream is done. Not for the data path.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { cuda::synchronize_stream(self.raw) }.doing(|| self.what("waiting for work"))
    }

    /// Copies `bytes` bytes of host memory to device memory.
    ///
    /// # Safety
    /// Until the next [event](Self::record_event) is done, both ranges must stay allocated, nothing else may
    /// write the source, and nothing else may read or write the target. If the copy is [recorded](Self::record), this
    /// applies until the graph is dropped and the event after its last replay is done.
    pub unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_in_async(to, from, bytes, self.raw) }.doing(|| self.what("copying to"))
    }

    /// Copies `bytes` bytes of device memory to the host.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply.
    pub unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_out_async(to, from, bytes, self.raw) }
            .doing(|| self.what("copying from"))
    }

    /// Copies device memory to device memory.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply.
    pub unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_within_async(to, from, bytes, self.raw) }
            .doing(|| self.what("copying within"))
    }

    /// Copies rows of the stream's device to the device `peer`. Contiguous rows are one copy.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply to every row. The stream's device must have
    /// [access](super::Memory::grant) to the target.
    pub(crate) unsafe fn copy_to_peer(
        &self,
        peer: &Device,
        to: u64,
        from: u64,
        rows: Rows,
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of these calls.
        let started = unsafe {
            if rows.is_contiguous() {
                cuda::copy_within_async(to, from, rows.count * rows.bytes, self.raw)
            } else {
                cuda::copy_rows_within_async(to, from, rows, self.raw)
            }
        };
        started.doing(|| {
            let to = peer.ordinal();
            format!("copying from cuda:{} to cuda:{to}", self.device.ordinal())
        })
    }

    /// Copies rows of host memory to device memory.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply to every row.
    pub(crate) unsafe fn copy_rows_in(
        &self,
        to: u64,
        from: *const u8,
        rows: Rows,
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_rows_in_async(to, from, rows, self.raw) }
            .doing(|| self.what("copying rows to"))
    }

    /// Copies rows of device memory to the host.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply to every row.
    pub(crate) unsafe fn copy_rows_out(
        &self,
        to: *mut u8,
        from: u64,
        rows: Rows,
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_rows_out_async(to, from, rows, self.raw) }
            .doing(|| self.what("copying rows from"))
    }

    /// Copies a block between any memories that the device can access.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply to every row.
    pub(crate) unsafe fn copy_block(
        &self,
        to: u64,
        from: u64,
        block: Block,
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe { cuda::copy_block_async(to, from, block, self.raw) }
            .doing(|| self.what("copying a block on"))
    }

    /// Fills rows of device memory with a pattern of four bytes.
    ///
    /// # Safety
    /// Until the next [event](Self::record_event) is done, the rows must stay allocated on this device, and nothing else may
    /// read or write them. If the bytes of `pattern` differ, address, pitch and length of the rows must be multiples of 4.
    pub(crate) unsafe fn fill_rows(
        &self,
        to: u64,
        pattern: [u8; 4],
        rows: Rows,
    ) -> Result<(), CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe {
            cuda::fill_rows_async(to, pattern, (rows.bytes, rows.count, rows.pitch), self.raw)
        }
        .doing(|| self.what("filling memory of"))
    }

    /// Starts many copies with one call; returns false if the driver does not have this call.
    ///
    /// # Safety
    /// The requirements of [`copy_in`](Self::copy_in) apply to every pair. The lists have the same length.
    pub(crate) unsafe fn copy_batch(
        &self,
        to: &mut [u64],
        from: &mut [u64],
        bytes: &mut [usize],
    ) -> Result<bool, CudaError> {
        self.device.enter()?;
        // SAFETY: the caller guarantees all requirements of this call.
        match unsafe { cuda::copy_batch_async(to, from, bytes, self.raw) } {
            None => Ok(false),
            Some(result) => result
                .map(|()| true)
                .doing(|| self.what("copying a batch on")),
        }
    }

    /// Sets `bytes` bytes of `memory` from `offset` on to `byte`.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn fill(
        &self,
        memory: &super::Memory,
        offset: usize,
        byte: u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= memory.bytes()),
            "the range is outside the memory"
        );
        self.device.enter()?;
        // SAFETY: the range is inside the memory, as just checked. `Memory` must not be dropped while work uses it.
        unsafe { cuda::fill_async(memory.address() + offset as u64, byte, bytes, self.raw) }
            .doing(|| self.what("setting memory of"))
    }

    /// Writes the word at `offset` of `memory`; returns false if the driver does not have this call.
    ///
    /// # Panics
    /// If the word is not inside the memory, or `offset` is not a multiple of 4.
    pub fn write_word(
        &self,
        memory: &super::Memory,
        offset: usize,
        value: u32,
    ) -> Result<bool, CudaError> {
        let end = offset.checked_add(4);
        assert!(
            offset.is_multiple_of(4) && end.is_some_and(|end| end <= memory.bytes()),
            "the range is outside the memory"
        );
        self.device.enter()?;
        let address = memory.address() + offset as u64;
        // SAFETY: the range is inside the memory, as just checked. `Memory` must not be dropped while work uses it.
        match unsafe { cuda::write_word(self.raw, address, value) } {
            None => Ok(false),
            Some(result) => result
                .map(|()| true)
                .doing(|| self.what("writing a word on")),
        }
    }

    pub(super) const fn raw(&self) -> RawStream {
        self.raw
    }

    pub(super) fn what(&self, doing: &str) -> String {
        format!("{doing} cuda:{}", self.device.ordinal())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.enter_to_free("a stream") {
            // SAFETY: the stream was created in `with` and is not used anywhere else. The driver completes its work.
            let _ = unsafe { cuda::destroy_stream(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.device.ordinal())
            .finish_non_exhaustive()
    }
}
