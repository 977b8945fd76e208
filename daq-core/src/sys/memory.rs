//! Anonymous mappings: reserve, place, lock, free.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The kernel's name for "prefer this node, fall back to others" (`linux/mempolicy.h`).
const MPOL_PREFERRED: libc::c_int = 1;

/// Maps `bytes` of zeroed private memory; `huge` asks for the kernel's hugepage pool.
pub fn map(bytes: usize, huge: bool) -> Result<NonNull<u8>, Errno> {
    let flags = if huge {
        MapFlags::PRIVATE | MapFlags::HUGETLB
    } else {
        MapFlags::PRIVATE
    };
    // SAFETY: a null hint lets the kernel choose an address, so no existing mapping is replaced; the
    // result is memory that nothing else refers to.
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

/// A file of `bytes` zeroes that exists in memory alone. Nobody can shorten it: whoever is given it may rely on its pages.
pub fn file(bytes: usize) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("daq", flags)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Maps the first `bytes` bytes of what a descriptor refers to, shared with everybody else who maps it.
pub fn map_file(file: &impl AsFd, bytes: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a null hint lets the kernel choose an address, so no existing mapping is replaced; that others may write
    // the memory at any time is why it is handed out as a pointer.
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

/// Unmaps what [`map`] or [`map_file`] returned.
///
/// # Safety
/// `address` and `bytes` come from one such call, are unmapped once, and nothing refers to the
/// memory any more: no pointer of ours, no device.
pub unsafe fn unmap(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: forwarded to the caller.
    unsafe { rustix::mm::munmap(address.as_ptr().cast(), bytes) }
}

/// Asks for transparent hugepages over a mapping.
pub fn advise_huge(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: MADV_HUGEPAGE changes how pages are backed, never their contents; a range that is not
    // mapped is answered with ENOMEM.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), bytes, Advice::LinuxHugepage) }
}

/// Locks a mapping in memory.
pub fn lock(address: NonNull<u8>, bytes: usize) -> Result<(), Errno> {
    // SAFETY: mlock reads and writes nothing; a range that is not mapped is answered with ENOMEM.
    unsafe { rustix::mm::mlock(address.as_ptr().cast(), bytes) }
}

/// Prefers NUMA node `node` for pages of a mapping that are not touched yet.
pub fn prefer_node(address: NonNull<u8>, bytes: usize, node: u32) -> Result<(), Errno> {
    let mut mask = [0_u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(Errno::INVAL);
    };
    *word = 1 << (node % 64);
    // SAFETY: mbind reads `mask`, whose 1024 bits outlive the call, and sets a policy on a range; a
    // range that is not mapped is answered with EFAULT.
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
