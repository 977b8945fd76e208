//! What a device works on while leases of a reader are in flight.

use super::{Completion, Lease, Reader};
use crate::gpu::driver::CudaError;
use std::collections::VecDeque;

/// What a device works on, oldest first: one entry for each retired lease of one reader that is not
/// [`Completion::Immediate`]. After the first failure, all work counts as failed.
#[derive(Debug)]
pub struct WorkInFlight<W> {
    work: VecDeque<W>,
    failed: bool,
}

impl<W> WorkInFlight<W> {
    /// Creates an empty queue with room for `max` entries.
    pub fn new(max: usize) -> Self {
        Self {
            work: VecDeque::with_capacity(max),
            failed: false,
        }
    }

    /// Returns the number of leases that are not done.
    pub fn len(&self) -> usize {
        self.work.len()
    }

    /// Whether all work is done.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Whether a failure occurred.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Records a failure: work that ends later counts as failed, because slots before its slots were never filled.
    pub const fn fail(&mut self) {
        self.failed = true;
    }

    /// Adds `work`, and retires `lease` with `completion`, which is done when the work is done.
    pub fn push(&mut self, lease: Lease<'_>, completion: Completion, work: W) {
        lease.retire(completion);
        self.work.push_back(work);
    }

    /// Retires `lease`, whose first `read` frames count as read and the others as discarded. If leases before it are in
    /// flight, adds `work`, which ends after theirs.
    pub fn push_discarded(&mut self, lease: Lease<'_>, read: usize, work: W) {
        if !self.is_empty() {
            self.work.push_back(work);
        }
        lease.discard_after(read);
    }

    /// Passes all work that is done to `end`, with whether it failed, and frees the slots of its leases in `reader`.
    /// Returns the number of entries that ended, and the device failure that ended them. Never waits.
    pub fn reap(
        &mut self,
        reader: &mut Reader,
        mut end: impl FnMut(W, bool),
    ) -> (usize, Option<CudaError>) {
        let (mut failure, before) = (None, self.work.len());
        reader.reap_each(|completion| {
            if let Some(work) = self.work.pop_front() {
                failure = failure.take().or_else(|| completion.failure());
                self.failed |= failure.is_some();
                end(work, self.failed);
            }
        });
        (before - self.work.len(), failure)
    }
}
