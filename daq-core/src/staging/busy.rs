//! The time with copies in flight.

use crate::ledger::CopyLedger;
use std::time::Instant;

/// Counts the copies in flight, and the time with at least one of them.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Time since which at least one copy has been in flight, and whose time up to then is counted.
    since: Option<Instant>,
}

impl Busy {
    /// Counts `in_flight` copies in flight after one has started.
    pub(super) fn started(&mut self, ledger: &CopyLedger, in_flight: usize) {
        ledger.in_flight.set(in_flight as u64);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Counts `in_flight` copies in flight after others have ended, and the time up to now.
    pub(super) fn ended(&mut self, ledger: &CopyLedger, in_flight: usize) {
        ledger.in_flight.set(in_flight as u64);
        let now = Instant::now();
        if let Some(since) = self.since {
            let busy = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            ledger.busy_ns.add(busy);
            self.since = (in_flight > 0).then_some(now);
        }
    }
}
