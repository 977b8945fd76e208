//! The storage of device memory, which is not mapped at a device address.

use super::bar::BAR;
use super::context::{self, Device};
use crate::code::{OUT_OF_MEMORY, Result};
use crate::faults::OPTIONS;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fill value of allocated memory, so that reads of unwritten memory are detected.
pub const POISON: u8 = 0xa5;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static ALIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The storage of one allocation of device memory: a memory file or a piece of another device's BAR, with a mapping
/// that only this library knows.
#[derive(Debug)]
pub struct Physical {
    /// The device that the memory belongs to.
    pub device: &'static Device,
    /// Size of the memory in bytes.
    pub bytes: usize,
    file: OwnedFd,
    /// Offset in the file at which the mapping starts.
    begin: usize,
    /// Address at which the mapping starts.
    base: usize,
    /// Number of bytes in the file and the mapping before the memory.
    lead: usize,
}

/// Returns the number of allocations and their total size in bytes.
pub fn alive() -> (usize, usize) {
    (
        ALIVE.load(Ordering::Acquire),
        ALIVE_BYTES.load(Ordering::Acquire),
    )
}

impl Physical {
    /// Allocates `bytes` bytes of device memory, `lead` bytes after the start of a page. Pages of its device address
    /// then match pages of the file.
    pub fn new(ordinal: i32, bytes: usize, lead: usize) -> Result<Arc<Self>> {
        let device = context::device(ordinal)?;
        let take = |used: usize| {
            used.checked_add(bytes)
                .filter(|used| *used <= OPTIONS.memory)
        };
        device
            .used
            .try_update(Ordering::AcqRel, Ordering::Acquire, take)
            .map_err(|_| OUT_OF_MEMORY)?;
        if let Some((file, begin, base)) = make(lead + bytes) {
            ALIVE.fetch_add(1, Ordering::AcqRel);
            ALIVE_BYTES.fetch_add(bytes, Ordering::AcqRel);
            Ok(Arc::new(Self {
                device,
                bytes,
                file,
                begin,
                base,
                lead,
            }))
        } else {
            device.used.fetch_sub(bytes, Ordering::AcqRel);
            Err(OUT_OF_MEMORY)
        }
    }

    /// Returns the CPU address of the byte at `offset`.
    pub const fn at(&self, offset: usize) -> usize {
        self.base + self.lead + offset
    }

    /// Returns the position in the file of the byte at `offset`.
    pub const fn in_file(&self, offset: usize) -> usize {
        self.begin + self.lead + offset
    }

    /// Returns the file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped this range, and this value owns the mapping. Every user holds an `Arc` of this
        // value, so no user is left.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.lead + self.bytes) };
        if let Some(bar) = &*BAR {
            bar.give(self.begin);
        }
        self.device.used.fetch_sub(self.bytes, Ordering::AcqRel);
        ALIVE.fetch_sub(1, Ordering::AcqRel);
        ALIVE_BYTES.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Creates a file with `bytes` bytes of memory that are filled with [`POISON`]. Returns the file, the offset of the
/// bytes in it, and the address of their mapping.
fn make(bytes: usize) -> Option<(OwnedFd, usize, usize)> {
    let (file, begin) = match &*BAR {
        Some(bar) => bar.take(bytes)?,
        None => (file(bytes)?, 0),
    };
    if let Some(base) = map(&file, begin, bytes) {
        return Some((file, begin, base));
    }
    if let Some(bar) = &*BAR {
        bar.give(begin);
    }
    None
}

/// Creates a memory file of `bytes` bytes.
fn file(bytes: usize) -> Option<OwnedFd> {
    // SAFETY: the name is NUL-terminated; the call has no other precondition.
    let file = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: `memfd_create` has just opened the descriptor, and no other code uses it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let length = libc::off_t::try_from(bytes).ok()?;
    // SAFETY: the descriptor is open; the file is not mapped yet.
    (unsafe { libc::ftruncate(file.as_raw_fd(), length) } == 0).then_some(file)
}

/// Maps `bytes` unused bytes of a file, starting at offset `begin`, and fills them with [`POISON`].
fn map(file: &OwnedFd, begin: usize, bytes: usize) -> Option<usize> {
    let begin = libc::off_t::try_from(begin).ok()?;
    let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let file = file.as_raw_fd();
    // SAFETY: the descriptor is open; a new mapping at an address that Linux selects does not overlap other memory.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, sharing, file, begin) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: `bytes` bytes were just mapped at `base` for writing. No other code uses them, because the file is new or
    // this piece of the file was reserved for this allocation.
    unsafe { ptr::write_bytes(base.cast::<u8>(), POISON, bytes) };
    Some(base as usize)
}
