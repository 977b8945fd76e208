//! The account of one call of a kernel: which frames went where.

use daq_core::kernel::Submitted;
use daq_core::ring::Completion;

/// Counts frames as they are settled, so that every frame is counted once.
///
/// ```text
///   frame ──▶ take ───────────────────────────▶ consumed
///        ├──▶ fail ───────────────────────────▶ failed
///        └──▶ hold ──▶ accumulating ──▶ release ──▶ consumed, or released in a later call
///                              └──▶ drop ─────▶ failed, or dropped in a later call
/// ```
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Frames held since an earlier call.
    before: u64,
    /// Frames of this call that are held.
    accumulated: u64,
    consumed: u64,
    failed: u64,
    released: u64,
    dropped: u64,
}

impl Account {
    /// The frame's content is in finished outputs.
    pub(super) const fn take(&mut self) {
        self.consumed += 1;
    }

    /// The frame cannot be processed.
    pub(super) const fn fail(&mut self) {
        self.failed += 1;
    }

    /// The frame waits for an output to come.
    pub(super) const fn hold(&mut self) {
        self.accumulated += 1;
    }

    /// An output with all frames held so far is finished.
    pub(super) const fn release_accumulated(&mut self) {
        self.consumed += self.accumulated;
        self.released += self.before;
        (self.accumulated, self.before) = (0, 0);
    }

    /// No output will contain the frames held so far.
    pub(super) const fn drop_accumulated(&mut self) {
        self.failed += self.accumulated;
        self.dropped += self.before;
        (self.accumulated, self.before) = (0, 0);
    }

    /// Ends the call; what is held is carried into the next.
    pub(super) fn submit(&mut self) -> Submitted {
        let Self {
            before,
            accumulated,
            consumed,
            failed,
            released,
            dropped,
        } = std::mem::take(self);
        self.before = before + accumulated;
        Submitted {
            consumed,
            accumulating: accumulated,
            failed,
            released,
            dropped,
            completion: Completion::Immediate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulating_frames_are_counted_by_later_call() {
        let mut account = Account::default();
        account.take();
        account.hold();
        account.hold();
        let first = account.submit();
        assert_eq!(
            (first.consumed, first.accumulating, first.released),
            (1, 2, 0)
        );
        account.hold();
        account.release_accumulated();
        account.hold();
        let second = account.submit();
        assert_eq!(
            (second.consumed, second.accumulating, second.released),
            (1, 1, 2)
        );
        account.fail();
        account.drop_accumulated();
        let third = account.submit();
        assert_eq!((third.consumed, third.failed, third.dropped), (0, 1, 1));
    }
}
