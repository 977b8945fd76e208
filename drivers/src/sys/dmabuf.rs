//! The ioctls of the Linux module `daq_dmabuf`, documented in `kmod/daq_dmabuf/daq_dmabuf.h`, and the ioctl of `udmabuf`,
//! which creates a dma-buf from host memory.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The device reads the memory, of [`Map::flags`].
pub const TO_DEVICE: u32 = 1 << 0;
/// The device writes the memory, of [`Map::flags`].
pub const FROM_DEVICE: u32 = 1 << 1;
/// The mapping was revoked, of [`State::state`].
pub const REVOKED: u32 = 1;

/// `struct daq_dmabuf_map`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Map {
    /// Bytes of this argument; set by the call.
    pub argsz: u32,
    /// [`TO_DEVICE`], [`FROM_DEVICE`].
    pub flags: u32,
    /// The dma-buf.
    pub dmabuf_fd: RawFd,
    /// Signalled at revocation; -1 for none.
    pub revoke_eventfd: RawFd,
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u8,
    /// Device number · 8 + function.
    pub devfn: u8,
    /// Address bits of the engine, 1 to 64; 0 for what its driver said.
    pub address_bits: u16,
    /// Out: the mapping.
    pub handle: u32,
    /// Out: pieces of consecutive bus addresses.
    pub segments: u32,
    /// Out: bytes of the dma-buf.
    pub size: u64,
}

/// `struct daq_dmabuf_segment`: consecutive bus addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// The first, as the device sees it.
    pub address: u64,
    /// How many there are.
    pub bytes: u64,
}

/// `struct daq_dmabuf_segments`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Segments {
    argsz: u32,
    handle: u32,
    first: u32,
    count: u32,
    to: u64,
}

/// `struct daq_dmabuf_state`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct State {
    /// Bytes of this argument; set by the call.
    pub argsz: u32,
    /// The mapping.
    pub handle: u32,
    /// Out: 0, or [`REVOKED`].
    pub state: u32,
    /// Out: why it was revoked, 0 while live.
    pub reason: u32,
    /// Out: ports between the two devices, or less than 0 (see `daq_dmabuf.h`).
    pub p2p_distance: i32,
    /// 0.
    pub reserved: u32,
}

/// `struct daq_dmabuf_unmap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Unmap {
    argsz: u32,
    handle: u32,
}

/// The number of call `n`: `_IO(0xDA, n)`.
const fn number(n: libc::c_ulong) -> libc::c_ulong {
    0xDA << 8 | n
}

const MAP: libc::c_ulong = number(0);
const SEGS: libc::c_ulong = number(1);
const STATE: libc::c_ulong = number(2);
const UNMAP: libc::c_ulong = number(3);

/// The size of an argument, as it says itself.
#[expect(
    clippy::cast_possible_truncation,
    reason = "arguments are some ten bytes"
)]
const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}

/// Calls `call` of `file` with `argument`.
///
/// # Safety
/// `T` must be the structure of `call` in `daq_dmabuf.h`, its first member the size of it, and where it holds an address,
/// that must be valid for what the module writes there.
unsafe fn ioctl<T>(
    file: BorrowedFd<'_>,
    call: libc::c_ulong,
    argument: &mut T,
) -> Result<(), Errno> {
    // SAFETY: the descriptor is open while borrowed. The module reads and writes no more of the argument than its first
    // member says, which is its size by the caller's promise, and it is exclusively borrowed. Other files than the
    // module's answer ENOTTY to numbers of this type.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), call, std::ptr::from_mut(argument)) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// `DAQ_DMABUF_MAP`: pins a dma-buf and maps it for a device.
pub fn map(file: BorrowedFd<'_>, argument: &mut Map) -> Result<(), Errno> {
    argument.argsz = argsz::<Map>();
    // SAFETY: `Map` is the structure of this call and holds no address.
    unsafe { ioctl(file, MAP, argument) }
}

/// `DAQ_DMABUF_SEGS`: reads segments of a mapping from `first` on into `to`; returns how many there were.
pub fn segments(
    file: BorrowedFd<'_>,
    handle: u32,
    first: u32,
    to: &mut [Segment],
) -> Result<usize, Errno> {
    let mut argument = Segments {
        argsz: argsz::<Segments>(),
        handle,
        first,
        count: u32::try_from(to.len()).unwrap_or(u32::MAX),
        to: to.as_mut_ptr() as u64,
    };
    // SAFETY: `Segments` is the structure of this call; its address is that of `to`, exclusively borrowed, of which the
    // module writes `count` segments at most.
    unsafe { ioctl(file, SEGS, &mut argument) }?;
    Ok(to.len().min(argument.count as usize))
}

/// `DAQ_DMABUF_STATE`: what has become of a mapping.
pub fn state(file: BorrowedFd<'_>, argument: &mut State) -> Result<(), Errno> {
    argument.argsz = argsz::<State>();
    // SAFETY: `State` is the structure of this call and holds no address.
    unsafe { ioctl(file, STATE, argument) }
}

/// `DAQ_DMABUF_UNMAP`: gives a mapping back.
pub fn unmap(file: BorrowedFd<'_>, handle: u32) -> Result<(), Errno> {
    let mut argument = Unmap {
        argsz: argsz::<Unmap>(),
        handle,
    };
    // SAFETY: `Unmap` is the structure of this call and holds no address.
    unsafe { ioctl(file, UNMAP, &mut argument) }
}

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE` of `device`, which is `/dev/udmabuf`: the first `bytes` bytes of `memory` as a dma-buf. They are whole
/// pages of a memfd that is sealed against being shortened.
pub fn udmabuf(
    device: BorrowedFd<'_>,
    memory: BorrowedFd<'_>,
    bytes: u64,
) -> Result<OwnedFd, Errno> {
    // _IOW('u', 0x42, struct udmabuf_create)
    const CREATE: libc::c_ulong = 0x4018_7542;
    const CLOEXEC: u32 = 1;
    let create = UdmabufCreate {
        memfd: memory.as_raw_fd().cast_unsigned(),
        flags: CLOEXEC,
        offset: 0,
        size: bytes,
    };
    // SAFETY: the descriptor is open while borrowed; the call reads `create`, its structure, and writes nothing. Other
    // files than udmabuf's answer ENOTTY.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel just made it for us, no one else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn struct_layouts_match_header() {
        // As the C compiler has them on every 64-bit machine: no padding, 64-bit members aligned.
        assert_eq!(argsz::<Map>(), 40);
        assert_eq!(offset_of!(Map, devfn), 21);
        assert_eq!(offset_of!(Map, size), 32);
        assert_eq!(argsz::<Segment>(), 16);
        assert_eq!(argsz::<Segments>(), 24);
        assert_eq!(offset_of!(Segments, to), 16);
        assert_eq!(argsz::<State>(), 24);
        assert_eq!(argsz::<Unmap>(), 8);
        assert_eq!(argsz::<UdmabufCreate>(), 24);
    }
}
