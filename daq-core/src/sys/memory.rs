//! Memory mappings: creating, placing on NUMA nodes, locking and unmapping.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The NUMA policy "prefer this node, fall back to others" (`linux/mempolicy.h`).
const MPOL_PREFERRED: libc::c_int = 1;

/// Maps `bytes` of zeroed private memory; `huge` requests pages of the huge page pool.
pub fn map(bytes: usize, huge: bool) -> Result<NonNull<u8>, Errno> {
    let flags = if huge {
        MapFlags::PRIVATE | MapFlags::HUGETLB
    } else {
        MapFlags::PRIVATE
    };
    // SAFETY: with a null hint Linux chooses an address, so no existing mapping is replaced; nothing else refers to
    // the new memory.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }?;
    Ok(NonNull::new(address.cast()).expect("mmap never returns null for a null hint"))
}

/// Creates a file of `bytes` zeroes that exists only in memory. It is sealed against shrinking, so its users can rely
/// on its pages.
pub fn file(bytes: usize) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("daq", flags)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Maps the first `bytes` bytes of the file of a descriptor, shared with all other users that map it.
pub fn map_file(file: &impl AsFd, bytes: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: with a null hint Linux chooses an address, so no existing mapping is replaced. Others may write the
    // memory at any time, so it is returned as a pointer.
    let address = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    Ok(NonNull::new(address.cast()).expect("mmap never returns null for a null hint"))
}

/// Unmaps memory that [`map`] or [`map_file`] returned.
///
/// # Safety
/// `address` and `bytes` must be those of one call of [`map`] or [`map_file`], and must be unmapped only once.
/// No pointer of this process and no device may refer to the memory any more.
pub unsafe fn unmap(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller guarantees all requirements of this call.
    unsafe { rustix::mm::munmap(address.as_ptr().cast(), bytes) }
}

/// Requests transparent huge pages for a mapping.
pub fn advise_huge(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: MADV_HUGEPAGE changes how pages are backed, never their content; for a range that is not mapped it
    // returns ENOMEM.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, Advice::LinuxHugepage) }
}

/// Locks a mapping in memory.
pub fn lock(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: mlock reads and writes nothing; for a range that is not mapped it returns ENOMEM.
    unsafe { rustix::mm::mlock(address.as_ptr().cast(), bytes) }
}

/// Prefers NUMA node `node` for pages of a mapping that are not in use yet.
pub fn prefer_node(address: NonNull<u8>, bytes: usize, node: u32) -> Result<(), Errno> {
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
