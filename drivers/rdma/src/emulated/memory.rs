//! Memory regions of an emulated NIC and their access rights.

use super::sys;
use crate::verbs::Access;
use daq_core::region::Region;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// One registration. It may be held after its key was dropped, but not used.
#[derive(Debug)]
pub(super) struct Registration {
    region: Arc<Region>,
    pub access: Access,
    pub local: u32,
    pub remote: u32,
    /// How the peer names the first byte.
    pub base: u64,
    uses: Mutex<Uses>,
    unused: Condvar,
}

#[derive(Debug)]
struct Uses {
    has_ended: bool,
    now: u32,
}

/// While it lives, the key's dropping waits.
struct Use<'a>(&'a Registration);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let mut uses = self.0.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.now -= 1;
        if uses.now == 0 {
            self.0.unused.notify_all();
        }
    }
}

impl Registration {
    pub(super) fn new(
        region: Arc<Region>,
        access: Access,
        (local, remote): (u32, u32),
        base: u64,
    ) -> Self {
        Self {
            region,
            access,
            local,
            remote,
            base,
            uses: Mutex::new(Uses {
                has_ended: false,
                now: 0,
            }),
            unused: Condvar::new(),
        }
    }

    /// Ends it: waits for what is under way, none begins later.
    pub(super) fn end(&self) {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.has_ended = true;
        while uses.now > 0 {
            uses = self
                .unused
                .wait(uses)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn begin(&self) -> io::Result<Use<'_>> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if uses.has_ended {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        uses.now += 1;
        Ok(Use(self))
    }

    /// Where `bytes` bytes from the peer's `address` on lie, if they are all inside.
    pub(super) fn offset(&self, address: u64, bytes: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region.bytes()).then_some(offset)
    }

    /// As [`sys::receive`].
    pub(super) fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
    ) -> io::Result<usize> {
        let _using = self.begin()?;
        sys::receive(socket, &self.region, offset, bytes)
    }

    /// As [`sys::store`].
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let _using = self.begin()?;
        sys::store(&self.region, offset, bytes)
    }
}

/// A part of registered memory, bounds checked when it was made.
#[derive(Clone, Debug)]
pub(super) struct MemorySlice {
    pub registration: Arc<Registration>,
    pub offset: usize,
    pub bytes: usize,
}

/// Sends `head` and then what lies at `slices`, without the first `skip` bytes of all that; never waits.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    slices: &[MemorySlice],
    skip: usize,
) -> Result<usize, SendError> {
    let mut left = skip.saturating_sub(head.len());
    let head = &head[skip.min(head.len())..];
    let mut using = Vec::with_capacity(slices.len());
    let mut sges = Vec::with_capacity(slices.len());
    for slice in slices {
        let passed = left.min(slice.bytes);
        left -= passed;
        if passed < slice.bytes {
            let registration = &*slice.registration;
            using.push(registration.begin().map_err(|_| SendError::Memory)?);
            sges.push((
                &*registration.region,
                slice.offset + passed,
                slice.bytes - passed,
            ));
        }
    }
    sys::send(socket, head, &sges).map_err(SendError::Network)
}

/// Why nothing was sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The socket did not take it.
    Network(io::Error),
    /// The memory's key was dropped.
    Memory,
}
