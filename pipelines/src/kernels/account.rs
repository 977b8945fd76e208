//! Counts the frames of one call of a kernel.

use daq_core::kernel::Submitted;
use daq_core::ring::Completion;

/// Counts each frame of a call exactly once.
///
/// ```text
///   frame ──▶ take ───────────────────────────▶ consumed
///        ├──▶ fail ───────────────────────────▶ failed
///        ├──▶ filter ─────────────────────────▶ filtered
///        └──▶ hold ──▶ accumulating ──▶ release ──▶ consumed, or released in a later call
///                              └──▶ drop ─────▶ failed, or dropped in a later call
/// ```
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Number of frames accumulated in earlier calls.
    before: u64,
    /// Number of frames of this call that are accumulated.
    accumulated: u64,
    consumed: u64,
    failed: u64,
    filtered: u64,
    released: u64,
    dropped: u64,
}

impl Account {
    /// Counts a frame whose content is only in outputs that are already finished.
    pub(super) const fn take(&mut self) {
        self.consumed += 1;
    }

    /// Counts a frame that cannot be processed.
    pub(super) const fn fail(&mut self) {
        self.failed += 1;
    }

    /// Counts a frame that the kernel's configuration excludes.
    pub(super) const fn filter(&mut self) {
        self.filtered += 1;
    }

    /// Counts a frame whose output is not finished yet.
    pub(super) const fn hold(&mut self) {
        self.accumulated += 1;
    }

    /// Counts all accumulated frames as consumed, because the output that contains them is finished.
    pub(super) const fn release_accumulated(&mut self) {
        self.consumed += self.accumulated;
        self.released += self.before;
        (self.accumulated, self.before) = (0, 0);
    }

    /// Counts all accumulated frames as failed, because no output will contain them.
    pub(super) const fn drop_accumulated(&mut self) {
        self.failed += self.accumulated;
        self.dropped += self.before;
        (self.accumulated, self.before) = (0, 0);
    }

    /// Ends the call and returns its counts. The number of accumulated frames is kept for the next call.
    pub(super) fn submit(&mut self) -> Submitted {
        let Self {
            before,
            accumulated,
            consumed,
            failed,
            filtered,
            released,
            dropped,
        } = std::mem::take(self);
        self.before = before + accumulated;
        Submitted {
            consumed,
            accumulating: accumulated,
            failed,
            filtered,
            released,
            dropped,
            completion: Completion::Immediate,
        }
    }
}

#[cfg(test)]
mod tests;
