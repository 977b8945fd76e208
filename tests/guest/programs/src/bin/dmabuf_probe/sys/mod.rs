//! Foreign calls of the probe. Only this module contains `unsafe`.

use daq_drivers::fpga::transports::dmabuf::Function;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// A base address register of a device, mapped from sysfs.
pub struct Bar {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and every access to it is volatile.
unsafe impl Send for Bar {}
// SAFETY: every access to the mapping is volatile. The device determines the order of concurrent writes.
unsafe impl Sync for Bar {}

impl Bar {
    /// Maps the file `path`, such as `/sys/bus/pci/devices/0000:00:05.0/resource0`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: Linux selects the address of the new mapping, so the mapping overlaps no other memory.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        Ok(Self {
            at: at.cast(),
            bytes,
        })
    }

    /// Returns the address of the 64-bit word at `offset`.
    fn word(&self, offset: usize) -> *mut u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: `offset` is inside of the mapping, as checked above.
        unsafe { self.at.add(offset) }.cast()
    }

    /// Returns the word at `offset`, which must be a multiple of 8.
    pub fn read(&self, offset: usize) -> u64 {
        // SAFETY: the word is aligned, and mapped as long as `self` lives. No reference to device memory is created.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Sets the word at `offset`, which must be a multiple of 8.
    pub fn write(&self, offset: usize, value: u64) {
        // SAFETY: the word is aligned, and mapped as long as `self` lives. No reference to device memory is created.
        unsafe { self.word(offset).write_volatile(value) }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: `open` created the mapping, and no other code uses it.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.bytes) };
    }
}

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// Creates host memory as a dma-buf. Returns the dma-buf, and the file through which the processor accesses the memory.
pub fn udmabuf(bytes: u64) -> io::Result<(OwnedFd, File)> {
    // _IOW('u', 0x42, struct udmabuf_create)
    const CREATE: libc::c_ulong = 0x4018_7542;
    let memory =
        rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/udmabuf")?;
    let create = UdmabufCreate {
        memfd: memory.as_raw_fd().cast_unsigned(),
        flags: 1,
        offset: 0,
        size: bytes,
    };
    // SAFETY: the call only reads `create`, which has the layout of the structure in linux/udmabuf.h.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    Ok((owned(fd)?, File::from(memory)))
}

/// Returns the file descriptor that a call has returned.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: Linux has just created the descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct bar_export` of tests/guest/modules/bar_exporter.
#[repr(C)]
struct BarExport {
    domain: u32,
    bus: u8,
    devfn: u8,
    bar: u16,
    flags: u32,
    reserved: u32,
}

/// Exports a BAR of a device as a dma-buf, with the test's exporter.
pub fn export_bar(device: Function, bar: u16, flags: u32) -> io::Result<OwnedFd> {
    let exporter = File::options()
        .read(true)
        .write(true)
        .open("/dev/bar_exporter")?;
    let export = BarExport {
        domain: device.domain,
        bus: device.bus,
        devfn: device.devfn,
        bar,
        flags,
        reserved: 0,
    };
    // SAFETY: the call only reads `export`, which has the layout of the structure in bar_exporter.h.
    owned(unsafe { libc::ioctl(exporter.as_raw_fd(), 0xDB00, &raw const export) })
}

/// Makes the test's exporter notify the importers of `memory` that the memory moves.
pub fn move_bar(memory: BorrowedFd<'_>) -> io::Result<()> {
    let exporter = File::options()
        .read(true)
        .write(true)
        .open("/dev/bar_exporter")?;
    // SAFETY: the call passes a descriptor by value and accesses no memory of this process.
    if unsafe { libc::ioctl(exporter.as_raw_fd(), 0xDB01, memory.as_raw_fd()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Size of the argument of a raw call in bytes. The module never reads more.
pub const ARGUMENT: usize = 4096;

/// The address to which a raw SEGS call writes.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// Address 0.
    Null,
    /// An address in the kernel's part of the address space.
    Kernel,
    /// The address of memory of the called function.
    Here,
}

/// Makes call number `call` of `/dev/daq_dmabuf` with any argument. `to` determines the address in the argument of
/// SEGS.
pub fn raw(file: impl AsFd, call: u8, argument: &mut [u8; ARGUMENT], to: To) -> Result<(), Errno> {
    const SEGS: u8 = 1;
    let mut room = [0_u64; 128];
    if call == SEGS {
        let to = match to {
            To::Null => 0,
            To::Kernel => 0xffff_ffff_8000_0000,
            To::Here => {
                let count =
                    u32::from_le_bytes([argument[12], argument[13], argument[14], argument[15]]);
                argument[12..16].copy_from_slice(&count.min(64).to_le_bytes());
                room.as_mut_ptr() as u64
            }
        };
        argument[16..24].copy_from_slice(&to.to_le_bytes());
    }
    let number = 0xDA00 | libc::c_ulong::from(call);
    // SAFETY: the module reads and writes at most one page of the argument, which has this size. SEGS writes 16 bytes
    // for each of at most 64 segments: either to `room`, which is large enough, or to an address that is not memory of
    // this process.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), number, argument.as_mut_ptr()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// Makes call number `call` with an argument at the address `at`, where this process has no memory.
pub fn raw_nowhere(file: impl AsFd, call: u8, at: NoMemory) -> Result<(), Errno> {
    let number = 0xDA00 | libc::c_ulong::from(call);
    let at: u64 = match at {
        NoMemory::Null => 0,
        NoMemory::Kernel => 0xffff_ffff_8000_0000,
    };
    // SAFETY: this process has no memory at these addresses, so the call cannot change its memory.
    if unsafe { libc::ioctl(file.as_fd().as_raw_fd(), number, at) } < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// Addresses at which this process has no memory.
#[derive(Clone, Copy, Debug)]
pub enum NoMemory {
    /// Address 0.
    Null,
    /// An address in the kernel's part of the address space.
    Kernel,
}
