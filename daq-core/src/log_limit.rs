//! Limits how often one kind of message is logged.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Shortest time between two messages, in milliseconds.
const INTERVAL_MS: u64 = 5000;

/// Limits how often one kind of message is logged: the first message immediately, then at most one message every 5 s.
///
/// Every message that the network, a client or a peer can cause must use a limit, so that no other host or client can
/// fill the log. The limit uses no lock.
///
/// ```
/// let limit = daq_core::log_limit::LogLimit::new();
/// let mut logged = 0;
/// for _ in 0..1000 {
///     limit.run(|_suppressed| logged += 1);
/// }
/// assert_eq!(logged, 1);
/// ```
#[derive(Debug, Default)]
pub struct LogLimit {
    /// Earliest time of the next message, in milliseconds since the first use of any limit.
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

/// The number of messages suppressed since the last logged message. Its `Display` output is the end of a sentence, or
/// empty if the number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 similar message suppressed)"),
            count => write!(f, " ({count} similar messages suppressed)"),
        }
    }
}

impl LogLimit {
    /// Creates a limit that allows the first message immediately.
    pub const fn new() -> Self {
        Self {
            next_ms: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Calls `log` if a message may be logged now. Otherwise counts the message as suppressed.
    pub fn run(&self, log: impl FnOnce(Suppressed)) {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_millis();
        if let Some(suppressed) = self.allow(u64::try_from(now).unwrap_or(u64::MAX)) {
            log(suppressed);
        }
    }

    fn allow(&self, now_ms: u64) -> Option<Suppressed> {
        let next = self.next_ms.load(Ordering::Relaxed);
        let later = now_ms.saturating_add(INTERVAL_MS);
        let is_first = now_ms >= next
            && self
                .next_ms
                .compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_first {
            return Some(Suppressed(self.suppressed.swap(0, Ordering::Relaxed)));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_logged_once_per_interval_with_suppressed_count() {
        let limit = LogLimit::new();
        assert_eq!(
            limit.allow(0),
            Some(Suppressed(0)),
            "the first message is logged at once"
        );
        for now in 1..=100 {
            assert_eq!(limit.allow(now), None);
        }
        assert_eq!(limit.allow(INTERVAL_MS), Some(Suppressed(100)));
        assert_eq!(limit.allow(INTERVAL_MS + 1), None);
        assert_eq!(limit.allow(10 * INTERVAL_MS), Some(Suppressed(1)));
        assert_eq!(limit.allow(20 * INTERVAL_MS), Some(Suppressed(0)));
    }

    #[test]
    fn suppressed_count_is_logged_only_if_nonzero() {
        let shown = [0, 1, 2].map(|count| Suppressed(count).to_string());
        assert_eq!(
            shown,
            [
                "",
                " (1 similar message suppressed)",
                " (2 similar messages suppressed)"
            ]
        );
    }
}
