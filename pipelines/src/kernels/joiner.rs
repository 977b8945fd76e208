//! Joins frames in GPU memory to one series of points, for items that continue across the ends of frames.

use super::parameters::{Joining, small};
use daq_core::gpu::driver::{self, Backing, Device, Function, Grid, Memory, Module};
use daq_core::kernel::KernelError;
use daq_core::layout::{Layout, Order};
use daq_core::ring::Slice;
use std::sync::Arc;

/// Preferred number of bytes per buffer. A buffer has space for at least one frame.
const BUFFER_BYTES: usize = 64 << 20;
const THREADS: u32 = 256;
/// Number of bytes that a block copies.
const BLOCK_BYTES: usize = 16 << 10;

/// Two buffers of points. Frames are appended to one of them. When it is full, the points that are still needed are copied to
/// the other one, which becomes the buffer for the next frames.
pub(super) struct Joiner {
    buffers: [Memory; 2],
    function: Function,
    /// Number of points per frame, and per row of a buffer.
    points: usize,
    capacity: usize,
    /// Number of rows of a frame: channels in planar order, otherwise 1. Number of bytes of a point in a row.
    rows: usize,
    point_bytes: usize,
    /// Number of points in the current buffer, with frames that are not copied yet.
    length: usize,
    /// Frames of the burst that are not copied yet: the first, and their number. Their points are the last of the buffer.
    waiting: (usize, usize),
    /// Index in the buffer of the first point of the next item.
    start: usize,
}

/// Returns the number of points of a buffer; items have at most `size` points.
fn capacity(input: &Layout, size: usize) -> usize {
    let frames = (BUFFER_BYTES / input.frame_bytes()).max(1);
    size + frames * input.points
}

/// Returns the size of both buffers in bytes.
pub(super) fn memory(input: &Layout, size: usize) -> usize {
    2 * capacity(input, size) * (input.frame_bytes() / input.points)
}

impl Joiner {
    pub(super) fn new(
        device: &'static Device,
        module: &Arc<Module>,
        input: &Layout,
        size: usize,
    ) -> Result<Self, KernelError> {
        let rows = match input.order {
            Order::Planar => input.channels as usize,
            Order::Interleaved => 1,
        };
        let buffer = || Memory::with(device, memory(input, size) / 2, Backing::Plain);
        Ok(Self {
            buffers: [buffer()?, buffer()?],
            function: module.function("power_spectrum_join")?,
            points: input.points,
            capacity: capacity(input, size),
            rows,
            point_bytes: input.frame_bytes() / input.points / rows,
            length: 0,
            waiting: (0, 0),
            start: 0,
        })
    }

    /// Returns the number of points between two channels in planar order.
    pub(super) const fn channel_points(&self) -> usize {
        self.capacity
    }

    pub(super) const fn has_space(&self) -> bool {
        self.length + self.points <= self.capacity
    }

    /// Continues with the other buffer, and copies the last `tail` points to it. The waiting frames must have been copied.
    pub(super) fn turn(&mut self, stream: &driver::Stream, tail: usize) -> Result<(), KernelError> {
        self.buffers.swap(0, 1);
        let from = Slice {
            base: self.buffers[1].address() + ((self.length - tail) * self.point_bytes) as u64,
            stride: 0,
            slots: 1,
            first: 0,
            len: 1,
        };
        self.length = tail;
        if tail == 0 {
            return Ok(());
        }
        self.copy(stream, &from, [tail, self.capacity], 0, 1)
    }

    /// Appends frame `i` of the burst `from`. The next item begins `tail` points before the frame. The frames before it must be
    /// copied first if frame `i` does not follow them in the burst.
    pub(super) fn push(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        i: usize,
        tail: usize,
    ) -> Result<(), KernelError> {
        let (first, count) = self.waiting;
        if first + count == i && count > 0 {
            self.waiting.1 += 1;
        } else {
            self.flush(stream, from)?;
            self.waiting = (i, 1);
        }
        self.start = self.length - tail;
        self.length += self.points;
        Ok(())
    }

    /// Copies the waiting frames of the burst `from`.
    pub(super) fn flush(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
    ) -> Result<(), KernelError> {
        let (first, count) = std::mem::take(&mut self.waiting);
        if count == 0 {
            return Ok(());
        }
        let at = self.length - count * self.points;
        self.copy(stream, &from.after(first), [self.points; 2], at, count)
    }

    /// Returns the index in the buffer of the first point of the next item.
    pub(super) const fn start(&self) -> usize {
        self.start
    }

    /// Returns the points of the current buffer from `point` on, as a ring of one slot.
    pub(super) fn slice(&self, point: usize) -> Slice {
        Slice {
            base: self.buffers[0].address() + (point * self.point_bytes) as u64,
            stride: 0,
            slots: 1,
            first: 0,
            len: 1,
        }
    }

    /// Copies `count` frames of `points` points per row to the current buffer. The rows of a frame are `pitch` points apart.
    fn copy(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        [points, pitch]: [usize; 2],
        at: usize,
        count: usize,
    ) -> Result<(), KernelError> {
        let bytes = |points: usize| (points * self.point_bytes) as u64;
        let to = self.buffers[0].address() + bytes(at);
        let (row, from_pitch, to_pitch) = (bytes(points), bytes(pitch), bytes(self.capacity));
        let addresses = [from.base, from.stride as u64, to, row, from_pitch, to_pitch];
        let aligned = addresses
            .iter()
            .fold(16, |bits, address| bits | address)
            .trailing_zeros();
        let chunks = row.div_ceil(BLOCK_BYTES as u64);
        let parameters = Joining {
            from: from.into(),
            to,
            row,
            from_pitch,
            to_pitch,
            rows: small(self.rows),
            word: 1 << aligned,
        };
        let blocks = count as u64 * self.rows as u64 * chunks;
        self.function.launch(
            stream,
            &Grid::line(small(blocks), THREADS),
            &parameters.arguments(),
        )?;
        Ok(())
    }
}
