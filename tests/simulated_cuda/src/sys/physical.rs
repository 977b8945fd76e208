//! Device memory itself: bytes that no device address of this process leads to.

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

/// One allocation of device memory: a file in memory, or a piece of another device's, and a mapping of it that only this
/// library knows.
#[derive(Debug)]
pub struct Physical {
    /// The device that it belongs to.
    pub device: &'static Device,
    /// Bytes of it.
    pub bytes: usize,
    file: OwnedFd,
    /// Where in the file the mapping begins.
    begin: usize,
    /// Where the mapping begins.
    base: usize,
    /// Bytes of file and mapping before the memory.
    lead: usize,
}

/// How many allocations live, and their bytes.
pub fn alive() -> (usize, usize) {
    (
        ALIVE.load(Ordering::Acquire),
        ALIVE_BYTES.load(Ordering::Acquire),
    )
}

impl Physical {
    /// Takes `bytes` bytes of the memory of a device, which begin `lead` bytes behind a page: pages of its address are
    /// then pages of its file.
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

    /// Where the byte at `offset` is.
    pub const fn at(&self, offset: usize) -> usize {
        self.base + self.lead + offset
    }

    /// Where the byte at `offset` is in the file.
    pub const fn in_file(&self, offset: usize) -> usize {
        self.begin + self.lead + offset
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped so many bytes at `base`, this value owned the mapping, and every user holds
        // an `Arc` of this value.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.lead + self.bytes) };
        if let Some(bar) = &*BAR {
            bar.give(self.begin);
        }
        self.device.used.fetch_sub(self.bytes, Ordering::AcqRel);
        ALIVE.fetch_sub(1, Ordering::AcqRel);
        ALIVE_BYTES.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A file with `bytes` bytes of memory full of poison: the file, where in it they begin, and where they are mapped.
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

/// A file of `bytes` bytes in memory.
fn file(bytes: usize) -> Option<OwnedFd> {
    // SAFETY: the name is a text that ends with a zero; the call has no other precondition.
    let file = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: `memfd_create` has just opened the descriptor, and no other code has it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let length = libc::off_t::try_from(bytes).ok()?;
    // SAFETY: the descriptor is open; the file is not mapped yet.
    (unsafe { libc::ftruncate(file.as_raw_fd(), length) } == 0).then_some(file)
}

/// Maps `bytes` bytes of a file from `begin` on, which are otherwise unused, and fills them with poison.
fn map(file: &OwnedFd, begin: usize, bytes: usize) -> Option<usize> {
    let begin = libc::off_t::try_from(begin).ok()?;
    let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let file = file.as_raw_fd();
    // SAFETY: the descriptor is open; a new mapping at an address of the system's choice overlaps no other memory.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, sharing, file, begin) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: `bytes` bytes were mapped there for writing a moment ago, and no other code uses them: the file is new, or
    // the piece of it was reserved for this allocation.
    unsafe { ptr::write_bytes(base.cast::<u8>(), POISON, bytes) };
    Some(base as usize)
}
