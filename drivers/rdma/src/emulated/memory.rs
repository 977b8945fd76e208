//! Memory regions of an emulated NIC and their access rights.

use super::sys;
use crate::verbs::Access;
use daq_core::region::Region;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// One memory registration. A reference to this value may exist after the registration has ended, but then gives no
/// access to the memory.
#[derive(Debug)]
pub(super) struct Registration {
    region: Arc<Region>,
    pub access: Access,
    pub local: u32,
    pub remote: u32,
    /// Remote address of the first byte.
    pub base: u64,
    uses: Mutex<Uses>,
    unused: Condvar,
}

#[derive(Debug)]
struct Uses {
    has_ended: bool,
    now: u32,
}

/// Marks an access in progress. [`Registration::end`] waits until all of these are dropped.
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

    /// Ends the registration: waits for accesses in progress and makes later accesses fail.
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

    /// Returns the offset in the region of the peer's `address`; `None` if the `bytes` bytes starting there are not
    /// completely inside the region.
    pub(super) fn offset(&self, address: u64, bytes: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= self.region.bytes()).then_some(offset)
    }

    /// Calls [`sys::receive`] for this memory; fails if the registration has ended.
    pub(super) fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
    ) -> io::Result<usize> {
        let _using = self.begin()?;
        sys::receive(socket, &self.region, offset, bytes)
    }

    /// Calls [`sys::store`] for this memory; fails if the registration has ended.
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let _using = self.begin()?;
        sys::store(&self.region, offset, bytes)
    }
}

/// A range of registered memory, whose bounds were checked when the value was created.
#[derive(Clone, Debug)]
pub(super) struct MemorySlice {
    pub registration: Arc<Registration>,
    pub offset: usize,
    pub bytes: usize,
}

/// Sends `head` followed by the contents of `slices`, without the first `skip` bytes of this sequence. Never blocks.
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

/// The reason why nothing was sent.
#[derive(Debug)]
pub(super) enum SendError {
    /// The socket returned an error.
    Network(io::Error),
    /// The memory registration has ended.
    Memory,
}
