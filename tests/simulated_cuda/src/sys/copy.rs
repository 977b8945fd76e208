//! Copies.

use super::context::{self, Device};
use super::space::{self, Pieces, Space};
use super::stream::{Operation, Stream, Submitted};
use super::{In, call, require};
use crate::attributes;
use crate::code::{Code, ILLEGAL_ADDRESS, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::faults::{COPIES, Fate, OPTIONS};
use crate::report::{COUNTS, Direction};
use std::ffi::c_uint;
use std::time::{Duration, Instant};

/// What kind of memory an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Device,
    /// Host memory that the driver knows.
    Registered,
    /// Host memory that it does not know.
    Pageable,
}

/// What an address of a call is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Host memory.
    Host,
    /// Memory that devices reach.
    Device,
    /// Whatever it is.
    Either,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
struct End {
    address: u64,
    /// Bytes from the beginning of a row to that of the next.
    pitch: u64,
    memory: Memory,
}

/// A copy of `rows` rows of `width` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    to: End,
    from: End,
    width: usize,
    rows: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct TwoDimensional {
    from: Corner,
    to: Corner,
    width: usize,
    rows: usize,
}

/// One end of a [`TwoDimensional`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Corner {
    x: usize,
    y: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Memory {
    /// What kind of memory is at an address, which has to fit what it is said to be.
    fn at(space: &Space, said: Said, address: u64, bytes: usize, writes: bool) -> Result<Self> {
        if space.is_device(address) {
            require(said != Said::Host)?;
            space.device(address, bytes, writes)?;
            return Ok(Self::Device);
        }
        require(address != 0)?;
        match space.registered_bytes(address, bytes)? {
            known if known == bytes => Ok(Self::Registered),
            0 if said != Said::Device => Ok(Self::Pageable),
            _ => Err(INVALID_VALUE),
        }
    }

    const fn is_device(self) -> bool {
        matches!(self, Self::Device)
    }
}

impl End {
    /// Where the bytes are now, if they still are there.
    fn pieces(&self, space: &Space, bytes: usize, writes: bool) -> Result<Pieces> {
        match self.memory {
            Memory::Device => space.device(self.address, bytes, writes),
            Memory::Registered => {
                require(space.registered_bytes(self.address, bytes)? == bytes)?;
                Pieces::host(self.address, bytes)
            }
            Memory::Pageable => Pieces::host(self.address, bytes),
        }
    }
}

/// Bytes from the first to the last of `rows` rows.
fn extent(pitch: u64, width: usize, rows: usize) -> Result<usize> {
    usize::try_from(pitch)
        .ok()
        .and_then(|pitch| pitch.checked_mul(rows - 1)?.checked_add(width))
        .ok_or(INVALID_VALUE)
}

/// Where the bytes at an address are now, if it is what it is said to be.
pub fn reach(space: &Space, at: (Said, u64), bytes: usize, writes: bool) -> Result<Pieces> {
    let (said, address) = at;
    let memory = Memory::at(space, said, address, bytes, writes)?;
    let pitch = 0;
    End {
        address,
        pitch,
        memory,
    }
    .pieces(space, bytes, writes)
}

impl Copy {
    fn new(
        to: (Said, u64, u64),
        from: (Said, u64, u64),
        width: usize,
        rows: usize,
    ) -> Result<Self> {
        let space = space::lock();
        let end = |(said, address, pitch): (Said, u64, u64), writes| -> Result<End> {
            let bytes = extent(pitch, width, rows)?;
            let memory = Memory::at(&space, said, address, bytes, writes)?;
            Ok(End {
                address,
                pitch,
                memory,
            })
        };
        Ok(Self {
            to: end(to, true)?,
            from: end(from, false)?,
            width,
            rows,
        })
    }

    /// A copy of one row, if both ends are what they are said to be.
    pub fn linear(to: (Said, u64), from: (Said, u64), bytes: usize) -> Result<Self> {
        Self::new((to.0, to.1, 0), (from.0, from.1, 0), bytes, 1)
    }

    /// A copy between addresses as kernels see them.
    pub fn within_device(to: u64, from: u64, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        Self::linear((Said::Device, to), (Said::Device, from), bytes)
            .and_then(|copy| copy.transfer())
            .map_err(|_| ILLEGAL_ADDRESS)
    }

    /// Writes the first bytes of device memory.
    pub fn initialise(to: u64, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        let from = bytes.as_ptr() as u64;
        Self::linear((Said::Device, to), (Said::Host, from), bytes.len())?.transfer()
    }

    const fn bytes(&self) -> u64 {
        (self.width * self.rows) as u64
    }

    fn is_pageable(&self) -> bool {
        self.to.memory == Memory::Pageable || self.from.memory == Memory::Pageable
    }

    const fn direction(&self) -> Direction {
        match (self.from.memory.is_device(), self.to.memory.is_device()) {
            (false, true) => Direction::HostToDevice,
            (true, false) => Direction::DeviceToHost,
            (true, true) => Direction::DeviceToDevice,
            (false, false) => Direction::HostToHost,
        }
    }

    /// Does it, taking as long as the options say. Memory that has gone since it was submitted breaks the context.
    pub fn execute(&self, device: &Device) -> Result {
        match COPIES.begin() {
            Fate::Done => {}
            Fate::Fails(code) => return Err(code),
            Fate::Hangs => loop {
                std::thread::park();
            },
        }
        let started = Instant::now();
        let engine = match self.direction() {
            Direction::HostToDevice => 0,
            Direction::DeviceToHost => 1,
            Direction::DeviceToDevice | Direction::HostToHost => 2,
        };
        let is_modelled = OPTIONS.gbps > 0 || !OPTIONS.latency.is_zero();
        let engine = is_modelled.then(|| super::lock(&device.engines[engine]));
        let entered = Instant::now();
        self.transfer().map_err(|_| ILLEGAL_ADDRESS)?;
        if engine.is_some() {
            let moving = self
                .bytes()
                .checked_div(u64::from(OPTIONS.gbps))
                .unwrap_or(0);
            let moved = entered + Duration::from_nanos(moving);
            std::thread::sleep(moved.saturating_duration_since(Instant::now()));
            // Latency is no reason for others to wait.
            drop(engine);
            let done = (started + OPTIONS.latency).max(moved);
            std::thread::sleep(done.saturating_duration_since(Instant::now()));
        }
        COUNTS.copied(self.direction(), self.bytes());
        Ok(())
    }

    fn transfer(&self) -> Result {
        let (to, from) = {
            let space = space::lock();
            let extent = |end: &End| extent(end.pitch, self.width, self.rows);
            let to = self.to.pieces(&space, extent(&self.to)?, true)?;
            (to, self.from.pieces(&space, extent(&self.from)?, false)?)
        };
        for row in 0..self.rows as u64 {
            let start = |end: &End| usize::try_from(end.pitch * row).map_err(|_| INVALID_VALUE);
            let mut sources = from.part(start(&self.from)?, self.width);
            let mut source = (0, 0);
            for (mut to, mut bytes) in to.part(start(&self.to)?, self.width) {
                while bytes > 0 {
                    if source.1 == 0 {
                        source = sources.next().ok_or(INVALID_VALUE)?;
                    }
                    let length = bytes.min(source.1);
                    // SAFETY: `length` bytes are inside a piece on both sides. Pieces of device memory are mapped
                    // as long as they are held. Registered host memory is mapped as long as it is registered, and
                    // it was a moment ago; unregistered memory is mapped because its owner waits for this copy:
                    // callers of the driver guarantee that, as they do that no other code writes what is
                    // read or touching what is written. The two sides may overlap, which this copy allows.
                    unsafe { std::ptr::copy(source.0 as *const u8, to as *mut u8, length) };
                    (to, bytes) = (to + length, bytes - length);
                    source = (source.0 + length, source.1 - length);
                }
            }
        }
        Ok(())
    }

    /// Appends it to a stream; waits for it where the driver would.
    fn submit(self, stream: usize, waits: bool) -> Result {
        submit_to(
            &Stream::find(context::current()?, stream)?,
            Operation::Copy(self),
            &[self],
            waits,
        )
    }
}

/// Appends `operation`, which does `copies`; waits for it where the driver would.
pub fn submit_to(
    stream: &std::sync::Arc<Stream>,
    operation: Operation,
    copies: &[Copy],
    waits: bool,
) -> Result {
    let mut waits = waits;
    for copy in copies.iter().filter(|copy| copy.is_pageable()) {
        COUNTS.unregistered(copy.bytes());
        waits = true;
    }
    match stream.submit(operation)? {
        Submitted::Queued(nth) if waits => stream.wait_for(nth),
        _ => Ok(()),
    }
}

fn copy(to: (Said, u64), from: (Said, u64), bytes: usize, stream: usize, waits: bool) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    Copy::linear(to, from, bytes)?.submit(stream, waits)
}

/// As [`copy`], in the default stream. Only what touches the host is waited for.
fn copy_now(to: (Said, u64), from: (Said, u64), bytes: usize) -> Result {
    copy(
        to,
        from,
        bytes,
        0,
        to.0 == Said::Host || from.0 == Said::Host,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    call!(cuMemcpyHtoD_v2).in_context(|_| copy_now((Said::Device, to), (Said::Host, from), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> Code {
    call!(cuMemcpyDtoH_v2).in_context(|_| copy_now((Said::Host, to), (Said::Device, from), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    call!(cuMemcpyDtoD_v2).in_context(|_| copy_now((Said::Device, to), (Said::Device, from), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call!(cuMemcpyHtoDAsync_v2)
        .in_context(|_| copy((Said::Device, to), (Said::Host, from), bytes, stream, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call!(cuMemcpyDtoHAsync_v2)
        .in_context(|_| copy((Said::Host, to), (Said::Device, from), bytes, stream, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call!(cuMemcpyDtoDAsync_v2).in_context(|_| {
        copy(
            (Said::Device, to),
            (Said::Device, from),
            bytes,
            stream,
            false,
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call!(cuMemcpyAsync).in_context(|_| {
        copy(
            (Said::Either, to),
            (Said::Either, from),
            bytes,
            stream,
            false,
        )
    })
}

impl Corner {
    /// Where the rows begin.
    fn end(&self, width: usize, rows: usize) -> Result<(Said, u64, u64)> {
        let (said, base) = match self.kind {
            1 => (Said::Host, self.host),
            2 => (Said::Device, self.device),
            3 => return Err(NOT_SUPPORTED),
            4 => (Said::Either, self.device),
            _ => return Err(INVALID_VALUE),
        };
        // A pitch of 0 is none: the rows follow each other.
        let pitch = if self.pitch == 0 {
            self.x + width
        } else {
            self.pitch
        } as u64;
        let is_wide = self
            .x
            .checked_add(width)
            .is_some_and(|end| end as u64 <= pitch);
        require(pitch <= attributes::PITCH && (is_wide || rows == 1))?;
        let skipped = pitch
            .checked_mul(self.y as u64)
            .and_then(|y| y.checked_add(self.x as u64));
        let start = skipped
            .and_then(|skipped| base.checked_add(skipped))
            .ok_or(INVALID_VALUE)?;
        Ok((said, start, pitch))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: In<TwoDimensional>, stream: usize) -> Code {
    call!(cuMemcpy2DAsync_v2).in_context(|_| {
        let TwoDimensional {
            from,
            to,
            width,
            rows,
        } = copy.get()?;
        if width == 0 || rows == 0 {
            return Ok(());
        }
        let (to, from) = (to.end(width, rows)?, from.end(width, rows)?);
        Copy::new(to, from, width, rows)?.submit(stream, false)
    })
}
