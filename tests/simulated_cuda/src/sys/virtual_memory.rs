//! Virtual memory management: memory and addresses are allocated separately. No current context is required.

use super::memory::duplicate;
use super::physical::Physical;
use super::space::{self, Access, GRANULARITY};
use super::table::Table;
use super::{In, Out, driver, require};
use crate::code::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::faults::OPTIONS;
use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort};
use std::sync::Arc;

/// Handle type: memory can be shared as a file descriptor.
const POSIX_FILE: c_uint = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    win32: usize,
    compression: c_uchar,
    rdma: c_uchar,
    usage: c_ushort,
    reserved: [c_uchar; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Grant {
    location: Location,
    access: c_uint,
}

/// Memory that was allocated without an address.
#[derive(Debug)]
struct Made {
    memory: Arc<Physical>,
    handles: c_uint,
}

static MADE: Table<Made> = Table::new();

impl Location {
    /// Returns the device of the location.
    fn device(self) -> Result<c_int> {
        require(self.kind == 1)?;
        Ok(super::context::device(self.id)?.ordinal)
    }
}

impl Properties {
    /// Checks that such memory is supported and returns its device.
    fn check(&self) -> Result<c_int> {
        require(self.kind == 1 && self.win32 == 0 && self.usage == 0 && self.reserved == [0; 4])?;
        let ordinal = self.location.device()?;
        let can_share = self.handles == 0 || self.handles == POSIX_FILE && OPTIONS.posix_fd;
        if !OPTIONS.vmm || !can_share || self.rdma != 0 && !OPTIONS.rdma || self.compression != 0 {
            return Err(NOT_SUPPORTED);
        }
        Ok(ordinal)
    }
}

/// Returns `INVALID_VALUE` unless `bytes` is a positive multiple of the granularity.
fn whole(bytes: usize) -> Result {
    require(bytes > 0 && bytes.is_multiple_of(GRANULARITY))
}

driver! {
    initialised() fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, option: c_uint) {
        require(option <= 1)?;
        properties.get()?.check()?;
        out.set(GRANULARITY)
    }

    initialised() fn cuMemCreate(handle: Out<usize>, bytes: usize, properties: In<Properties>, flags: c_ulonglong) {
        let properties = properties.get()?;
        let ordinal = properties.check()?;
        require(flags == 0 && !handle.is_null())?;
        whole(bytes)?;
        let memory = Physical::new(ordinal, bytes, 0)?;
        handle.set(MADE.insert(Arc::new(Made {
            memory,
            handles: properties.handles,
        })))
    }

    /// Releases the handle. The memory is freed when no mapping is left.
    initialised() fn cuMemRelease(handle: usize) {
        MADE.remove(handle).map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    initialised() fn cuMemAddressReserve(
        address: Out<u64>,
        bytes: usize,
        alignment: usize,
        _hint: u64,
        flags: c_ulonglong,
    ) {
        if !OPTIONS.vmm {
            return Err(NOT_SUPPORTED);
        }
        require(
            flags == 0 && !address.is_null() && (alignment == 0 || alignment.is_power_of_two()),
        )?;
        whole(bytes)?;
        address.set(space::lock().reserve(bytes, alignment)?)
    }

    initialised() fn cuMemAddressFree(address: u64, bytes: usize) {
        space::lock().unreserve(address, bytes)
    }

    initialised() fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: usize, flags: c_ulonglong) {
        let made = MADE.get(handle).map_err(|_| INVALID_VALUE)?;
        whole(bytes)?;
        // The driver's manual requires an offset of 0.
        require(flags == 0 && offset == 0 && address.is_multiple_of(GRANULARITY as u64))?;
        require(bytes <= made.memory.bytes)?;
        space::lock().map(address, bytes, Arc::clone(&made.memory), offset)
    }

    initialised().alone fn cuMemUnmap(address: u64, bytes: usize) {
        space::lock().unmap(address, bytes)
    }

    initialised() fn cuMemSetAccess(address: u64, bytes: usize, grants: In<Grant>, count: usize) {
        require(count > 0)?;
        for n in 0..count {
            let grant = grants.at(n)?;
            let ordinal = grant.location.device()?;
            let access = match grant.access {
                0 => Access::None,
                1 => Access::Read,
                3 => Access::ReadWrite,
                _ => return Err(INVALID_VALUE),
            };
            space::lock().set_access(address, bytes, super::context::device(ordinal)?, access)?;
        }
        Ok(())
    }

    initialised() fn cuMemExportToShareableHandle(out: Out<c_int>, handle: usize, kind: c_uint, flags: c_ulonglong) {
        let made = MADE.get(handle).map_err(|_| INVALID_VALUE)?;
        require(flags == 0 && kind == POSIX_FILE && made.handles == POSIX_FILE)?;
        duplicate(made.memory.file(), &out)
    }
}
