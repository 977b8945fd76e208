//! The ioctls of the Linux module `daq_dmabuf`, documented in `kmod/daq_dmabuf/daq_dmabuf.h`, and the ioctl of `udmabuf`,
//! which creates a dma-buf from host memory.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Flag of [`Map::flags`]: the device reads the memory.
pub const TO_DEVICE: u32 = 1 << 0;
/// Flag of [`Map::flags`]: the device writes the memory.
pub const FROM_DEVICE: u32 = 1 << 1;
/// Value of [`State::state`]: the mapping was revoked.
pub const REVOKED: u32 = 1;

/// Argument of `DAQ_DMABUF_MAP`: `struct daq_dmabuf_map`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Map {
    /// Size of this structure in bytes; set by the function.
    pub argsz: u32,
    /// Any of [`TO_DEVICE`] and [`FROM_DEVICE`].
    pub flags: u32,
    /// File descriptor of the dma-buf.
    pub dmabuf_fd: RawFd,
    /// Eventfd that is signalled when the mapping is revoked; -1 for none.
    pub revoke_eventfd: RawFd,
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u8,
    /// Device number × 8 + function number.
    pub devfn: u8,
    /// Number of address bits of the DMA engine, 1 to 64; 0 to use the value that its driver has set.
    pub address_bits: u16,
    /// Output: handle of the mapping.
    pub handle: u32,
    /// Output: number of segments, each with consecutive bus addresses.
    pub segments: u32,
    /// Output: size of the dma-buf in bytes.
    pub size: u64,
}

/// A range of consecutive bus addresses: `struct daq_dmabuf_segment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// First bus address, as the device uses it.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Argument of `DAQ_DMABUF_SEGS`: `struct daq_dmabuf_segments`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Segments {
    argsz: u32,
    handle: u32,
    first: u32,
    count: u32,
    to: u64,
}

/// Argument of `DAQ_DMABUF_STATE`: `struct daq_dmabuf_state`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct State {
    /// Size of this structure in bytes; set by the function.
    pub argsz: u32,
    /// Handle of the mapping.
    pub handle: u32,
    /// Output: 0 or [`REVOKED`].
    pub state: u32,
    /// Output: reason for the revocation; 0 if the mapping is not revoked.
    pub reason: u32,
    /// Output: number of PCIe ports between the two devices; negative values are explained in `daq_dmabuf.h`.
    pub p2p_distance: i32,
    /// Reserved; must be 0.
    pub reserved: u32,
}

/// Argument of `DAQ_DMABUF_UNMAP`: `struct daq_dmabuf_unmap`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Unmap {
    argsz: u32,
    handle: u32,
}

/// Returns the request number of ioctl `n`: `_IO(0xDA, n)`.
const fn number(n: libc::c_ulong) -> libc::c_ulong {
    0xDA << 8 | n
}

const MAP: libc::c_ulong = number(0);
const SEGS: libc::c_ulong = number(1);
const STATE: libc::c_ulong = number(2);
const UNMAP: libc::c_ulong = number(3);

/// Returns the size of an ioctl argument in bytes, for the first member of the argument.
#[expect(
    clippy::cast_possible_truncation,
    reason = "all arguments are far smaller than 4 GiB"
)]
const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}

/// Calls the ioctl `call` on `file` with `argument`.
///
/// # Safety
/// - `T` must be the structure of `call` in `daq_dmabuf.h`.
/// - Its first member must be its size.
/// - If it contains an address, the module's writes to that address must be valid.
unsafe fn ioctl<T>(
    file: BorrowedFd<'_>,
    call: libc::c_ulong,
    argument: &mut T,
) -> Result<(), Errno> {
    // SAFETY:
    // - The descriptor is open, because it is borrowed.
    // - The module accesses only as many bytes of the argument as its first member states. The caller guarantees that
    //   this is its size.
    // - The argument is exclusively borrowed.
    // - If the file is not the module's, the call fails with `ENOTTY`, because no other driver uses this request type.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), call, std::ptr::from_mut(argument)) };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// Pins a dma-buf and maps it for a device (`DAQ_DMABUF_MAP`).
pub fn map(file: BorrowedFd<'_>, argument: &mut Map) -> Result<(), Errno> {
    argument.argsz = argsz::<Map>();
    // SAFETY: `Map` is the structure of this call and contains no address.
    unsafe { ioctl(file, MAP, argument) }
}

/// Reads the segments of a mapping, starting with number `first`, into `to` (`DAQ_DMABUF_SEGS`). Returns the number of
/// segments read.
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
    // SAFETY: `Segments` is the structure of this call. It contains the address of `to`, which is exclusively borrowed,
    // and the module writes at most `count` segments there.
    unsafe { ioctl(file, SEGS, &mut argument) }?;
    Ok(to.len().min(argument.count as usize))
}

/// Reads the state of a mapping (`DAQ_DMABUF_STATE`).
pub fn state(file: BorrowedFd<'_>, argument: &mut State) -> Result<(), Errno> {
    argument.argsz = argsz::<State>();
    // SAFETY: `State` is the structure of this call and contains no address.
    unsafe { ioctl(file, STATE, argument) }
}

/// Ends a mapping (`DAQ_DMABUF_UNMAP`).
pub fn unmap(file: BorrowedFd<'_>, handle: u32) -> Result<(), Errno> {
    let mut argument = Unmap {
        argsz: argsz::<Unmap>(),
        handle,
    };
    // SAFETY: `Unmap` is the structure of this call and contains no address.
    unsafe { ioctl(file, UNMAP, &mut argument) }
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// Creates a dma-buf of the first `bytes` bytes of `memory` (`UDMABUF_CREATE`). `device` must be `/dev/udmabuf`. The
/// bytes must be whole pages of a memfd that is sealed against shrinking.
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
    // SAFETY: the descriptor is open, because it is borrowed. The call only reads `create`, which is its structure. If
    // `device` is another file, the call fails with `ENOTTY`.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: Linux has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn struct_layouts_match_header() {
        // The sizes of the C structures on every 64-bit platform: no padding, and 64-bit members are aligned.
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
