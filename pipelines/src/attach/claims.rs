//! Checks the counts that clients report, so that no report of a client breaks the equation of its ledger.

use super::protocol::Progress;
use daq_core::ledger::ReaderLedger;

/// The counts that a client has reported so far. They never decrease, and their sum never exceeds the number of frames
/// between `first` and `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    first: u64,
    progress: Progress,
}

impl Claims {
    /// Returns the counts of a client that begins with frame `first`.
    pub(super) const fn new(first: u64) -> Self {
        Self {
            first,
            progress: Progress {
                position: first,
                read: 0,
                overrun: 0,
                discarded: 0,
                retired: None,
            },
        }
    }

    /// Returns the frame with which the client begins.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// Returns the first frame that the client has not retired; only for clients with a guarantee.
    pub(super) fn retired(&self) -> u64 {
        self.progress.retired.unwrap_or(self.first)
    }

    /// Accepts the counts of a client without a guarantee, or returns the rule that they break.
    pub(super) fn accept(&mut self, new: &Progress, published: u64) -> Result<(), String> {
        self.check(new, published)?;
        let Progress {
            position,
            read,
            overrun,
            discarded,
            ..
        } = *new;
        // The checked addition is also correct for counts near 2^64.
        let sum = read
            .checked_add(overrun)
            .and_then(|sum| sum.checked_add(discarded));
        if sum.is_none_or(|sum| sum > position - self.first) {
            return Err(format!(
                "it reported {read} frames read, {overrun} overrun and {discarded} discarded, but only {} frames from \
                 frame {} to `position` {position}",
                position - self.first,
                self.first
            ));
        }
        self.progress = *new;
        Ok(())
    }

    /// Accepts the counts of a client with a guarantee, or returns the rule that they break. Returns the number of frames
    /// read and the number of frames discarded since the last report.
    pub(super) fn accept_guaranteed(
        &mut self,
        new: &Progress,
        published: u64,
    ) -> Result<(u64, u64), String> {
        self.check(new, published)?;
        let retired = new.retired.unwrap_or(self.retired());
        if retired < self.retired() || retired > new.position {
            return Err(format!(
                "it reported `retired` {retired}, which is not between the last value {} and `position` {}",
                self.retired(),
                new.position
            ));
        }
        let sum = new.read.checked_add(new.discarded);
        if new.overrun != 0 || sum != Some(retired - self.first) {
            return Err(format!(
                "it reported {} frames read, {} discarded and {} overrun, but retired {} frames; `read + discarded` must \
                 equal `retired - first`",
                new.read,
                new.discarded,
                new.overrun,
                retired - self.first
            ));
        }
        let added = (
            new.read - self.progress.read,
            new.discarded - self.progress.discarded,
        );
        self.progress = Progress {
            retired: Some(retired),
            ..*new
        };
        Ok(added)
    }

    fn check(&self, new: &Progress, published: u64) -> Result<(), String> {
        let old = &self.progress;
        for (name, old, new) in [
            ("position", old.position, new.position),
            ("read", old.read, new.read),
            ("overrun", old.overrun, new.overrun),
            ("discarded", old.discarded, new.discarded),
        ] {
            if new < old {
                return Err(format!(
                    "it reported `{name}` {new} after {old}; counts must not decrease"
                ));
            }
        }
        if new.position > published {
            return Err(format!(
                "it reported `position` {}, but only {published} frames were published",
                new.position
            ));
        }
        Ok(())
    }

    /// Stores the counts in the ledger of a client without a guarantee.
    pub(super) fn store(&self, ledger: &ReaderLedger) {
        ledger.attached.set(self.first);
        ledger.leased.set(ReaderLedger::UNLIMITED);
        ledger.read.set(self.progress.read);
        ledger.overrun.set(self.progress.overrun);
        ledger.discarded.set(self.progress.discarded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::{ReaderReport, Report, RingLedger};
    use proptest::prelude::*;

    fn progress(position: u64, read: u64, overrun: u64, discarded: u64) -> Progress {
        Progress {
            position,
            read,
            overrun,
            discarded,
            retired: None,
        }
    }

    #[test]
    fn impossible_counts_are_rejected() {
        let mut claims = Claims::new(100);
        claims.accept(&progress(110, 5, 3, 2), 110).unwrap();
        for (wrong, why) in [
            (progress(109, 5, 3, 2), "`position` 109 after 110"),
            (progress(110, 4, 3, 2), "`read` 4 after 5"),
            (progress(121, 5, 3, 2), "only 120 frames were published"),
            (progress(112, 8, 3, 2), "only 12 frames from frame 100"),
            (
                progress(112, u64::MAX, 3, 2),
                "only 12 frames from frame 100",
            ),
        ] {
            let error = claims.accept(&wrong, 120).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        claims.accept(&progress(120, 15, 3, 2), 120).unwrap();
    }

    #[test]
    fn guaranteed_clients_account_for_every_retired_frame() {
        let mut claims = Claims::new(10);
        let with = |retired, progress| Progress {
            retired: Some(retired),
            ..progress
        };
        let mut accept = |progress| claims.accept_guaranteed(&progress, 20);
        assert_eq!(accept(with(13, progress(15, 2, 0, 1))), Ok((2, 1)));
        assert_eq!(accept(with(15, progress(16, 4, 0, 1))), Ok((2, 0)));
        for (wrong, why) in [
            (with(14, progress(16, 4, 0, 1)), "`retired` 14"),
            (with(17, progress(16, 6, 0, 1)), "`retired` 17"),
            (with(16, progress(16, 4, 0, 1)), "must equal"),
            (with(16, progress(16, 4, 1, 1)), "1 overrun"),
        ] {
            let error = accept(wrong).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..40_u64, Just(u64::MAX), any::<u64>()]
    }

    proptest! {
        #[test]
        fn equation_holds_for_any_reports(
            reports in prop::collection::vec((0..5_u64, [number(), number(), number(), number()]), 0..60),
        ) {
            let (ring, ledger) = (RingLedger::default(), ReaderLedger::default());
            let (mut published, first) = (10, 8);
            ring.capacity.set(4);
            ring.published.set(published);
            let mut claims = Claims::new(first);
            claims.store(&ledger);
            for (frames, [position, read, overrun, discarded]) in reports {
                published += frames;
                ring.published.set(published);
                // Most random counts would be rejected because they decrease.
                let old = claims.progress;
                let new = progress(
                    old.position.saturating_add(position % 8),
                    old.read.saturating_add(read),
                    old.overrun.saturating_add(overrun),
                    old.discarded.saturating_add(discarded),
                );
                if claims.accept(&new, published).is_ok() {
                    claims.store(&ledger);
                }
                let reader = ReaderReport::of(&ledger, "raw", &ring);
                let mut report = Report::default();
                report.readers.insert("client".to_owned(), reader);
                prop_assert_eq!(report.violations(), []);
            }
        }
    }
}
