//! Copies of memory.

use super::context;
use super::space::{self, Pieces, Space};
use super::stream::{Operation, Stream, Submitted};
use super::{In, driver, require};
use crate::attributes;
use crate::code::{ILLEGAL_ADDRESS, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::faults::{COPIES, OPTIONS, Outcome, PEER_COPIES};
use crate::report::{COUNTS, Direction};
use AddressKind::{Device, Either, Host};
use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

/// The type of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Memory of the device with this ordinal.
    Device(c_int),
    /// Host memory that is registered with the driver.
    Registered,
    /// Host memory that is not registered with the driver.
    Pageable,
}

/// The type of memory that a call declares for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// Host memory.
    Host,
    /// Memory that devices can access.
    Device,
    /// Any memory.
    Either,
}

/// The source or the destination of a copy.
#[derive(Clone, Copy, Debug)]
struct End {
    address: u64,
    /// Distance in bytes between the starts of consecutive rows.
    pitch: u64,
    memory: Memory,
}

/// A copy of `rows` rows of `width` bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The device that copies.
    by: &'static context::Device,
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

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ThreeDimensional {
    from: Side,
    to: Side,
    width: usize,
    rows: usize,
    slices: usize,
}

/// The source or the destination of a [`ThreeDimensional`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

impl Side {
    /// Returns the corner of slice `i`. A slice has `rows` rows of `width` bytes.
    fn slice(&self, i: usize, width: usize, rows: usize) -> Result<Corner> {
        let pitch = if self.pitch == 0 {
            self.x + width
        } else {
            self.pitch
        };
        let height = if self.height == 0 {
            self.y + rows
        } else {
            self.height
        };
        require(height >= self.y + rows && self.level == 0)?;
        Ok(Corner {
            x: self.x,
            y: self.y + (self.z + i) * height,
            kind: self.kind,
            host: self.host,
            device: self.device,
            array: self.array,
            pitch,
        })
    }
}

/// The source or the destination of a [`TwoDimensional`].
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
    /// Returns the type of the memory at an address. Fails if it differs from the declared type.
    fn at(
        space: &Space,
        by: &context::Device,
        (kind, address): (AddressKind, u64),
        bytes: usize,
        writes: bool,
    ) -> Result<Self> {
        if space.is_device(address) {
            require(kind != AddressKind::Host)?;
            let owner = space.device(by, address, bytes, writes)?.owner();
            return Ok(Self::Device(
                owner.map_or(by.ordinal, |owner| owner.ordinal),
            ));
        }
        require(address != 0)?;
        match space.registered_bytes(address, bytes)? {
            known if known == bytes => Ok(Self::Registered),
            0 if kind != AddressKind::Device => Ok(Self::Pageable),
            _ => Err(INVALID_VALUE),
        }
    }

    const fn is_device(self) -> bool {
        matches!(self, Self::Device(_))
    }
}

impl End {
    /// Returns the CPU addresses of the bytes. Fails if the memory was freed, or if the context of its device is broken.
    fn pieces(
        &self,
        space: &Space,
        by: &context::Device,
        bytes: usize,
        writes: bool,
    ) -> Result<Pieces> {
        match self.memory {
            Memory::Device(_) => {
                let pieces = space.device(by, self.address, bytes, writes)?;
                pieces.owner().map_or(Ok(()), context::Device::check)?;
                Ok(pieces)
            }
            Memory::Registered => {
                require(space.registered_bytes(self.address, bytes)? == bytes)?;
                Pieces::host(self.address, bytes)
            }
            Memory::Pageable => Pieces::host(self.address, bytes),
        }
    }
}

/// Returns the number of bytes from the start of the first to the end of the last of `rows` rows.
fn extent(pitch: u64, width: usize, rows: usize) -> Result<usize> {
    usize::try_from(pitch)
        .ok()
        .and_then(|pitch| pitch.checked_mul(rows - 1)?.checked_add(width))
        .ok_or(INVALID_VALUE)
}

/// Returns the CPU addresses of the bytes at an address that the device `by` accesses. Fails if the memory differs from
/// the declared type.
pub fn reach(
    space: &Space,
    by: &context::Device,
    at: (AddressKind, u64),
    bytes: usize,
    writes: bool,
) -> Result<Pieces> {
    let memory = Memory::at(space, by, at, bytes, writes)?;
    let pitch = 0;
    End {
        address: at.1,
        pitch,
        memory,
    }
    .pieces(space, by, bytes, writes)
}

impl Copy {
    fn new(
        by: &'static context::Device,
        to: (AddressKind, u64, u64),
        from: (AddressKind, u64, u64),
        width: usize,
        rows: usize,
    ) -> Result<Self> {
        let space = space::lock();
        let end = |(kind, address, pitch): (AddressKind, u64, u64), writes| -> Result<End> {
            // NVIDIA's driver checks the bytes up to the pitch also after the last row of unified memory.
            let pitched = usize::try_from(pitch).unwrap_or(usize::MAX);
            let last = if kind == Either {
                width.max(pitched)
            } else {
                width
            };
            let bytes = extent(pitch, last, rows)?;
            let memory = Memory::at(&space, by, (kind, address), bytes, writes)?;
            Ok(End {
                address,
                pitch,
                memory,
            })
        };
        Ok(Self {
            by,
            to: end(to, true)?,
            from: end(from, false)?,
            width,
            rows,
        })
    }

    /// Creates a copy of one row. Fails if the memory of either side differs from its declared type.
    pub fn linear(
        by: &'static context::Device,
        to: (AddressKind, u64),
        from: (AddressKind, u64),
        bytes: usize,
    ) -> Result<Self> {
        Self::new(by, (to.0, to.1, 0), (from.0, from.1, 0), bytes, 1)
    }

    /// Copies between device addresses, as a kernel of the device `by` does.
    pub fn by_kernel(by: &'static context::Device, to: u64, from: u64, bytes: usize) -> Result {
        if bytes == 0 {
            return Ok(());
        }
        Self::linear(by, (Device, to), (Device, from), bytes)
            .and_then(|copy| copy.transfer())
            .map_err(|_| ILLEGAL_ADDRESS)
    }

    /// Writes the initial contents of memory of the device `by`.
    pub fn initialise(by: &'static context::Device, to: u64, bytes: &[u8]) -> Result {
        if bytes.is_empty() {
            return Ok(());
        }
        let from = bytes.as_ptr() as u64;
        Self::linear(by, (Device, to), (Host, from), bytes.len())?.transfer()
    }

    const fn bytes(&self) -> u64 {
        (self.width * self.rows) as u64
    }

    fn is_pageable(&self) -> bool {
        self.to.memory == Memory::Pageable || self.from.memory == Memory::Pageable
    }

    fn direction(&self) -> Direction {
        if let (Memory::Device(from), Memory::Device(to)) = (self.from.memory, self.to.memory)
            && from != to
        {
            return Direction::Peer;
        }
        match (self.from.memory.is_device(), self.to.memory.is_device()) {
            (false, true) => Direction::HostToDevice,
            (true, false) => Direction::DeviceToHost,
            (true, true) => Direction::DeviceToDevice,
            (false, false) => Direction::HostToHost,
        }
    }

    /// Executes the copy, with the duration that the options require. Memory freed since the submission breaks the
    /// context.
    pub fn execute(&self, device: &context::Device) -> Result {
        COPIES.begin().enact()?;
        let outcome = match self.direction() {
            Direction::Peer => PEER_COPIES.begin(),
            _ => Outcome::Done,
        };
        outcome.enact()?;
        let started = Instant::now();
        let engine = match self.direction() {
            Direction::HostToDevice => 0,
            Direction::DeviceToHost => 1,
            Direction::DeviceToDevice | Direction::HostToHost | Direction::Peer => 2,
        };
        let is_modelled = OPTIONS.gbps > 0 || !OPTIONS.latency.is_zero();
        let engine = is_modelled.then(|| super::lock(&device.engines[engine]));
        let entered = Instant::now();
        self.transfer().map_err(|_| ILLEGAL_ADDRESS)?;
        if outcome == Outcome::Corrupts {
            let to = self.to.address;
            Self::linear(self.by, (Device, to), (Device, to + 1), 1)?.transfer()?;
        }
        if engine.is_some() {
            let moving = self
                .bytes()
                .checked_div(u64::from(OPTIONS.gbps))
                .unwrap_or(0);
            let moved = entered + Duration::from_nanos(moving);
            std::thread::sleep(moved.saturating_duration_since(Instant::now()));
            // The latency must not delay copies of other streams, so the engine is released before.
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
            let to = self.to.pieces(&space, self.by, extent(&self.to)?, true)?;
            let from = extent(&self.from)?;
            (to, self.from.pieces(&space, self.by, from, false)?)
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
                    // SAFETY:
                    // - On both sides, `length` bytes are inside a piece.
                    // - Pieces of device memory are mapped as long as they are held.
                    // - Registered host memory is mapped as long as it is registered, which was just checked.
                    //   Unregistered host memory is mapped because its owner waits for this copy.
                    // - Callers of the driver guarantee this, and that no other code accesses the memory in conflict
                    //   with this copy.
                    // - The two sides may overlap, which `ptr::copy` allows.
                    unsafe { std::ptr::copy(source.0 as *const u8, to as *mut u8, length) };
                    (to, bytes) = (to + length, bytes - length);
                    source = (source.0 + length, source.1 - length);
                }
            }
        }
        Ok(())
    }

    /// Appends the copy to a stream. Waits for it if `waits` is true or the host memory is pageable.
    fn submit(self, stream: usize, waits: bool) -> Result {
        submit_to(
            &Stream::find(self.by, stream)?,
            Operation::Copy(self),
            &[self],
            waits,
        )
    }
}

/// Appends `operation`, which consists of `copies`. Waits for it if `waits` is true or any host memory is pageable.
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

/// Submits a copy to a stream. Without a stream, copies in the default stream and waits.
fn copy(
    by: &'static context::Device,
    to: (AddressKind, u64),
    from: (AddressKind, u64),
    bytes: usize,
    stream: Option<usize>,
) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    Copy::linear(by, to, from, bytes)?.submit(stream.unwrap_or(0), stream.is_none())
}

impl Corner {
    /// Returns the declared type of the memory, the address of the first row, and the pitch.
    fn end(&self, width: usize, rows: usize) -> Result<(AddressKind, u64, u64)> {
        let (kind, base) = match self.kind {
            1 => (Host, self.host),
            2 => (Device, self.device),
            // Memory of any type at a unified address.
            4 => (Either, self.device),
            _ => return Err(NOT_SUPPORTED),
        };
        // A pitch of 0 means that the rows are contiguous.
        let pitch = if self.pitch == 0 {
            self.x + width
        } else {
            self.pitch
        } as u64;
        let is_wide = self
            .x
            .checked_add(width)
            .is_some_and(|end| end as u64 <= pitch);
        // For unified addresses, the pitch must not be smaller than a row, even for one row.
        require(pitch <= attributes::PITCH && (is_wide || rows == 1 && kind != Either))?;
        let skipped = pitch
            .checked_mul(self.y as u64)
            .and_then(|y| y.checked_add(self.x as u64));
        let start = skipped
            .and_then(|skipped| base.checked_add(skipped))
            .ok_or(INVALID_VALUE)?;
        Ok((kind, start, pitch))
    }
}

driver! {
    in_context(device) fn cuMemcpy2DAsync_v2(copy: In<TwoDimensional>, stream: usize) {
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
        Copy::new(device, to, from, width, rows)?.submit(stream, false)
    }

    in_context(device) fn cuMemcpy3DAsync_v2(copy: In<ThreeDimensional>, stream: usize) {
        let ThreeDimensional {
            from,
            to,
            width,
            rows,
            slices,
        } = copy.get()?;
        if width == 0 || rows == 0 {
            return Ok(());
        }
        (0..slices).try_for_each(|i| {
            let to = to.slice(i, width, rows)?.end(width, rows)?;
            let from = from.slice(i, width, rows)?.end(width, rows)?;
            Copy::new(device, to, from, width, rows)?.submit(stream, false)
        })
    }

    in_context(device) fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(device, (Device, to), (Host, from), bytes, None)
    }

    in_context(device) fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy(device, (Host, to), (Device, from), bytes, None)
    }

    in_context(device) fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(device, (Device, to), (Host, from), bytes, Some(stream))
    }

    in_context(device) fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(device, (Host, to), (Device, from), bytes, Some(stream))
    }

    in_context(device) fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(device, (Device, to), (Device, from), bytes, Some(stream))
    }
}
