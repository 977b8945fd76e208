//! Memory mappings: creating, placing on NUMA nodes, locking and unmapping.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The NUMA policy "prefer this node, fall back to others" (`linux/mempolicy.h`).
const MPOL_PREFERRED: libc::c_int = 1;

/// The error for memory that could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot allocate {bytes} bytes of memory: {source}; lower `slots` or `slot` of the ring, or raise `ulimit -v`"
)]
pub struct MapError {
    /// Number of bytes requested.
    pub bytes: usize,
    /// The error of the system call.
    pub source: Errno,
}

/// A mapping of this process, which is unmapped when it is dropped. Its owner drops it only when no pointer and no device
/// uses the memory any more.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value refers to plain memory behind a pointer that never changes, and any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: the pointer never changes, and this type does not access the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of zeroed private memory; `huge` requests pages of the huge page pool.
    pub(crate) fn anonymous(bytes: usize, huge: bool) -> Result<Self, MapError> {
        let flags = if huge {
            MapFlags::PRIVATE | MapFlags::HUGETLB
        } else {
            MapFlags::PRIVATE
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null hint Linux chooses an address, so no existing mapping is replaced; nothing else refers to
        // the new memory.
        let address = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, access, flags) };
        Self::checked(address, bytes)
    }

    /// Maps the first `bytes` bytes of the file of a descriptor, shared with all other users that map it.
    pub(crate) fn of_file(file: &impl AsFd, bytes: usize) -> Result<Self, MapError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null hint Linux chooses an address, so no existing mapping is replaced. Others may write the
        // memory at any time, so it is accessed only through pointers.
        let address =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        Self::checked(address, bytes)
    }

    fn checked(address: Result<*mut libc::c_void, Errno>, bytes: usize) -> Result<Self, MapError> {
        let address = address.map_err(|source| MapError { bytes, source })?;
        let address = NonNull::new(address.cast());
        Ok(Self {
            address: address.expect("mmap never returns null for a null hint"),
            bytes,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping that was created above. The owner guarantees that nothing
        // uses the memory any more.
        let result = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "unmapping memory failed: {result:?}");
    }
}

/// Creates a file of `bytes` zeroes that exists only in memory; `huge` requests pages of the huge page pool. The file is
/// sealed against shrinking, so its users can rely on its pages.
pub(crate) fn file(bytes: usize, huge: bool) -> Result<OwnedFd, Errno> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let file = rustix::fs::memfd_create("daq", flags)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Returns a descriptor of the file behind `file` that allows only reading. From now on, no process can write the file or map
/// it for writing; existing mappings are not affected.
pub(crate) fn read_only(file: &impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::GROW)?;
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Requests transparent huge pages for a mapping.
pub(crate) fn advise_huge(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: MADV_HUGEPAGE changes how pages are backed, never their content; for a range that is not mapped it
    // returns ENOMEM.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, Advice::LinuxHugepage) }
}

/// Returns whether Linux uses transparent huge pages for files in memory, for which it has a setting of its own.
pub(crate) fn has_huge_shared_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]") && !setting.contains("[deny]"))
}

/// Locks a mapping in memory.
pub(crate) fn lock(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: mlock reads and writes nothing; for a range that is not mapped it returns ENOMEM.
    unsafe { rustix::mm::mlock(address.as_ptr().cast(), bytes) }
}

/// Prefers NUMA node `node` for pages of a mapping that are not in use yet.
pub(crate) fn prefer_node(address: NonNull<u8>, bytes: usize, node: u32) -> Result<(), Errno> {
    let mut mask = [0_u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(Errno::INVAL);
    };
    *word = 1 << (node % 64);
    // SAFETY: mbind reads `mask`, whose 1024 bits outlive the call, and sets a policy for a range; for a range that
    // is not mapped it returns EFAULT.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address.as_ptr(),
            bytes,
            MPOL_PREFERRED,
            mask.as_ptr(),
            mask.len() * 64,
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
