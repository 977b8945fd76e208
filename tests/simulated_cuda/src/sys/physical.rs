//! Device memory itself: bytes that no device address of this process leads to.

use super::context::{self, Device};
use crate::code::{OUT_OF_MEMORY, Result};
use crate::faults::OPTIONS;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What fresh memory is full of: whoever reads what was never written shall notice.
pub const POISON: u8 = 0xa5;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static ALIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// One allocation of device memory: a file in memory, and a mapping of it that only this library knows.
#[derive(Debug)]
pub struct Physical {
    /// The device that it belongs to.
    pub device: &'static Device,
    /// Bytes of it.
    pub bytes: usize,
    file: OwnedFd,
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
        if let Some((file, base)) = map(lead + bytes) {
            ALIVE.fetch_add(1, Ordering::AcqRel);
            ALIVE_BYTES.fetch_add(bytes, Ordering::AcqRel);
            Ok(Arc::new(Self {
                device,
                bytes,
                file,
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
        self.lead + offset
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped so many bytes at `base`, this value owned the mapping, and whoever uses it holds
        // an `Arc` of this value.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.lead + self.bytes) };
        self.device.used.fetch_sub(self.bytes, Ordering::AcqRel);
        ALIVE.fetch_sub(1, Ordering::AcqRel);
        ALIVE_BYTES.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A file of `bytes` bytes in memory and where it is mapped, full of poison.
fn map(bytes: usize) -> Option<(OwnedFd, usize)> {
    // SAFETY: the name is a text that ends with a zero; the call has no other precondition.
    let file = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: `memfd_create` has just opened the descriptor, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let length = libc::off_t::try_from(bytes).ok()?;
    let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: the descriptor is open; a new mapping at an address of the system's choice takes nobody's memory.
    let base = unsafe {
        if libc::ftruncate(descriptor, length) != 0 {
            return None;
        }
        libc::mmap(ptr::null_mut(), bytes, protection, sharing, descriptor, 0)
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: `bytes` bytes were mapped there for writing a moment ago, and nobody else knows them.
    unsafe { ptr::write_bytes(base.cast::<u8>(), POISON, bytes) };
    Some((file, base as usize))
}
