//! Limits the log messages about rejected senders, which retry until their configuration is corrected.

use daq_core::log_limit::{LogLimit, Suppressed};
use std::collections::VecDeque;

/// Maximum number of rejections that are remembered.
const REMEMBERED: usize = 32;

/// The rejections that were logged: each reason is logged once per host, until this host connects.
#[derive(Debug, Default)]
pub(super) struct RejectionLog {
    /// Host and reason of each rejection that was logged.
    logged: VecDeque<(String, String)>,
    limit: LogLimit,
}

impl RejectionLog {
    /// Calls `log` if the rejection of `peer` with this reason was not logged before.
    pub(super) fn run(&mut self, peer: &str, why: &str, log: impl FnOnce(Suppressed)) {
        let host = host(peer);
        if self
            .logged
            .iter()
            .any(|known| (&*known.0, &*known.1) == (host, why))
        {
            return;
        }
        let logged = &mut self.logged;
        self.limit.run(|suppressed| {
            log(suppressed);
            logged.truncate(REMEMBERED - 1);
            logged.push_front((host.to_owned(), why.to_owned()));
        });
    }

    /// Drops the rejections of the host of `peer`, which has connected.
    pub(super) fn forget(&mut self, peer: &str) {
        self.logged.retain(|(known, _)| known != host(peer));
    }
}

/// Returns the address without the port, which differs between connections of a host.
fn host(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_logged_once_per_host_until_it_connects() {
        let mut rejections = RejectionLog::default();
        let mut run = |peer: &str, why: &str, forget: bool| {
            let mut is_logged = false;
            // Only the limit per host and reason is tested here.
            rejections.limit = LogLimit::new();
            rejections.run(peer, why, |_| is_logged = true);
            if forget {
                rejections.forget(peer);
            }
            is_logged
        };
        assert!(run("10.0.0.1:1", "transport", false));
        assert!(!run("10.0.0.1:2", "transport", false));
        assert!(run("10.0.0.1:3", "rails", false));
        assert!(run("10.0.0.2:1", "transport", true));
        assert!(run("10.0.0.2:1", "transport", false));
        assert!(!run("10.0.0.1:9", "rails", true));
        assert!(run("10.0.0.1:9", "rails", false));
        for i in 0..2 * REMEMBERED {
            assert!(run("10.0.0.3:1", &i.to_string(), false));
        }
        assert!(run("10.0.0.1:9", "rails", false));
        assert_eq!(rejections.logged.len(), REMEMBERED);
    }
}
