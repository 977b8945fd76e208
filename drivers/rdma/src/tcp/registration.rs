//! Memory that queue pairs over TCP may access.

use crate::verbs::Access;
use daq_core::region::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One memory registration. A reference to this value may exist after the registration has ended, but then gives no
/// access to the memory.
#[derive(Debug)]
pub(super) struct Registration {
    region: Arc<Region>,
    pub(super) access: Access,
    pub(super) rkey: u32,
    /// Remote address of the first byte.
    base: u64,
    has_ended: AtomicBool,
    /// Number of accesses in progress.
    uses: AtomicU32,
}

impl Registration {
    pub(super) const fn new(region: Arc<Region>, access: Access, rkey: u32, base: u64) -> Self {
        Self {
            region,
            access,
            rkey,
            base,
            has_ended: AtomicBool::new(false),
            uses: AtomicU32::new(0),
        }
    }

    /// Starts an access to the region. Returns false if the registration has ended; otherwise the caller must call
    /// [`finish`](Self::finish) after the access.
    pub(super) fn begin(&self) -> bool {
        // The use is counted before the flag is read, and `end` sets the flag before it reads the count. So either this
        // access fails, or `end` waits for it.
        self.uses.fetch_add(1, Ordering::SeqCst);
        let may_access = !self.has_ended.load(Ordering::SeqCst);
        if !may_access {
            self.finish();
        }
        may_access
    }

    /// Ends an access that was started.
    pub(super) fn finish(&self) {
        self.uses.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the memory, which may be accessed only between [`begin`](Self::begin) and [`finish`](Self::finish).
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// Ends the registration: makes later accesses fail, and waits for accesses in progress, which never block.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        while self.uses.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Returns the offset in the region of the peer's `address`; `None` if the `bytes` bytes starting there are not
    /// completely inside the region.
    pub(super) fn offset(&self, address: u64, bytes: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = offset.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.region.bytes()).then_some(offset)
    }
}
