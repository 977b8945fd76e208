//! VFIO calls that `vfio-ioctls` does not provide or whose results it does not expose, and calls of the guard process
//! on descriptors that it received. Numbers and structures are from `linux/vfio.h`.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vfio_bindings::bindings::vfio as bindings;
use vfio_ioctls::{VfioContainer, VfioDevice};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Returns the VFIO request number `_IO(';', 100 + n)`.
const fn request(n: libc::Ioctl) -> libc::Ioctl {
    ((b';' as libc::Ioctl) << 8) | (100 + n)
}
const DEVICE_GET_INFO: libc::Ioctl = request(7);
const DEVICE_RESET: libc::Ioctl = request(11);
const IOMMU_GET_INFO: libc::Ioctl = request(12);
const IOMMU_UNMAP_DMA: libc::Ioctl = request(14);

/// Maximum size in bytes of the IOMMU information from Linux; a larger size is an error.
const LARGEST_INFO: usize = 1 << 16;

/// Returns the container's file descriptor, which stays open as long as the container.
pub(crate) fn container_fd(container: &VfioContainer) -> BorrowedFd<'_> {
    // SAFETY: the container owns this descriptor and closes it only when it is dropped, which the borrow prevents.
    unsafe { BorrowedFd::borrow_raw(container.as_raw_fd()) }
}

/// Returns the device's file descriptor, which stays open as long as the device.
pub(crate) fn device_fd(device: &VfioDevice) -> BorrowedFd<'_> {
    // SAFETY: the device owns this descriptor and closes it only when it is dropped, which the borrow prevents.
    unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) }
}

/// Duplicates the descriptor `fd`. Returns `EBADF` if it is not open.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call accesses no memory of this process. A number that is not an open descriptor is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: Linux has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Wrapper of a device of the crate `vfio-ioctls`, which panics if a removed device is closed. The wrapper logs the failure
/// instead.
pub(crate) struct OpenDevice {
    device: ManuallyDrop<VfioDevice>,
}

impl OpenDevice {
    /// Wraps `device` until this value is dropped.
    pub(crate) const fn new(device: VfioDevice) -> Self {
        Self {
            device: ManuallyDrop::new(device),
        }
    }
}

impl Deref for OpenDevice {
    type Target = VfioDevice;

    fn deref(&self) -> &VfioDevice {
        &self.device
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: `drop` runs only once, and nothing uses the device afterwards.
        let device = unsafe { ManuallyDrop::take(&mut self.device) };
        // The crate looks up the group in sysfs again, where a removed device no longer exists.
        if catch_unwind(AssertUnwindSafe(|| drop(device))).is_err() {
            tracing::warn!("a device was removed while it was being closed");
        }
    }
}

/// Ends a mapping and returns its size in bytes. Afterwards a device can no longer write to the memory.
pub(crate) fn unmap(container: BorrowedFd<'_>, address: u64, bytes: u64) -> io::Result<u64> {
    let mut unmap = bindings::vfio_iommu_type1_dma_unmap {
        argsz: 24,
        iova: address,
        size: bytes,
        ..Default::default()
    };
    // SAFETY: the structure lives until the call returns and is the one that Linux fills. `argsz` is its size without
    // the bitmap, which no flag requests.
    checked(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_UNMAP_DMA, &raw mut unmap) })?;
    Ok(unmap.size)
}

/// Returns the I/O addresses that are valid for the container's devices, without those that the platform reserves, or
/// `None` if Linux does not report them.
pub(crate) fn valid_addresses(
    container: BorrowedFd<'_>,
) -> io::Result<Option<Vec<RangeInclusive<u64>>>> {
    let mut bytes = size_of::<bindings::vfio_iommu_type1_info>();
    loop {
        let mut info = vec![0u64; bytes.div_ceil(8)];
        let argsz = u32::try_from(info.len() * 8).map_err(|_| too_long(bytes))?;
        info[0] = u64::from(argsz);
        // SAFETY: Linux writes at most as many bytes as `argsz`, the first four bytes, states, and `info` has this
        // size. `info` is aligned for the structure, whose largest field has eight bytes.
        checked(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO, info.as_mut_ptr()) })?;
        let info: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let needed = word(&info, 0).unwrap_or(0) as usize;
        if needed <= info.len() {
            return Ok(ranges(&info));
        }
        if needed > LARGEST_INFO {
            return Err(too_long(needed));
        }
        bytes = needed;
    }
}

fn too_long(bytes: usize) -> io::Error {
    io::Error::other(format!(
        "Linux returned {bytes} bytes of IOMMU information; at most {LARGEST_INFO} are supported"
    ))
}

/// Returns the address ranges in a `vfio_iommu_type1_info` and the capabilities after it.
fn ranges(info: &[u8]) -> Option<Vec<RangeInclusive<u64>>> {
    if word(info, 4)? & bindings::VFIO_IOMMU_INFO_CAPS == 0 {
        return None;
    }
    let mut at = word(info, 16)? as usize;
    // Each capability begins with its kind (u16), its version (u16) and the offset of the next capability (u32).
    while at != 0 {
        let kind = word(info, at)? & 0xffff;
        if kind == bindings::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            let count = word(info, at + 8)? as usize;
            return (0..count)
                .map(|n| {
                    let range = at + 16 + n * 16;
                    Some(long(info, range)?..=long(info, range + 8)?)
                })
                .collect();
        }
        let next = word(info, at + 4)? as usize;
        if next <= at {
            return None;
        }
        at = next;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns whether Linux can reset this device alone.
pub(crate) fn can_reset(device: BorrowedFd<'_>) -> io::Result<bool> {
    let mut info = bindings::vfio_device_info {
        argsz: 24,
        ..Default::default()
    };
    const { assert!(size_of::<bindings::vfio_device_info>() == 24) };
    // SAFETY: the structure lives until the call returns, and `argsz` is its size.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_INFO, &raw mut info) })?;
    Ok(info.flags & bindings::VFIO_DEVICE_FLAGS_RESET != 0)
}

/// Resets the device. Linux saves and restores its configuration space.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call accesses no memory of this process.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_RESET) })
}

/// Creates an eventfd for an interrupt. Returns it twice: as the type for VFIO, and as a descriptor to wait on.
pub(crate) fn event() -> io::Result<(EventFd, OwnedFd)> {
    let given = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
    let waited = given.try_clone()?.into_raw_fd();
    // SAFETY: the descriptor was just duplicated, and its previous owner has released it.
    Ok((given, unsafe { OwnedFd::from_raw_fd(waited) }))
}

/// Makes this process ignore the signals with which a terminal or a service manager ends processes.
pub(crate) fn ignore_signals() {
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGPIPE,
    ] {
        // SAFETY: `SIG_IGN` runs no code of this process, and the signal numbers are valid.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a `vfio_iommu_type1_info` with the given capabilities: kind, next and body.
    fn info(flags: u32, capabilities: &[(u32, Vec<u64>)]) -> Vec<u8> {
        let mut info = [24, flags, 0, 0, 24, 0].map(u32::to_ne_bytes).concat();
        for (n, (kind, body)) in capabilities.iter().enumerate() {
            let next = info.len() + 8 + body.len() * 8;
            let is_last = n + 1 == capabilities.len();
            let next = if is_last {
                0
            } else {
                u32::try_from(next).unwrap()
            };
            info.extend([*kind | 1 << 16, next].map(u32::to_ne_bytes).concat());
            info.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        }
        info
    }

    #[test]
    fn iova_ranges_are_found_after_other_capabilities() {
        let body = vec![2, 0, 0xfedf_ffff, 0xfef0_0000, u64::MAX];
        let found = ranges(&info(2, &[(3, vec![65535]), (1, body.clone())]));
        assert_eq!(found, Some(vec![0..=0xfedf_ffff, 0xfef0_0000..=u64::MAX]));
        assert_eq!(ranges(&info(1, &[(1, body)])), None, "no capabilities");
        assert_eq!(ranges(&info(2, &[(3, vec![65535])])), None);
    }

    #[test]
    fn truncated_or_cyclic_capabilities_are_ignored() {
        let whole = info(2, &[(1, vec![1, 0, 4095])]);
        assert!(ranges(&whole).is_some());
        for bytes in 0..whole.len() {
            assert_eq!(ranges(&whole[..bytes]), None, "{bytes} bytes");
        }
        let mut circle = info(2, &[(3, vec![0]), (3, vec![0])]);
        circle[28] = 24;
        assert_eq!(ranges(&circle), None);
    }

    #[test]
    fn foreign_descriptor_is_rejected() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&file);
        assert!(unmap(fd, 0, 4096).is_err());
        assert!(valid_addresses(fd).is_err());
        assert!(can_reset(fd).is_err());
        assert!(reset(fd).is_err());
        assert!(duplicate(-1).is_err());
        assert!(duplicate(file.as_raw_fd()).is_ok());
    }
}
