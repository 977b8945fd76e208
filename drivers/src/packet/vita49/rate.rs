//! Detects that a sender uses another sample rate than the configured one, so that its packets must not be mixed with others.
//!
//! The sender states its rate in context packets. Without them, the timestamps show it: the packets of a stream follow each other,
//! so packets that advance by a constant time that is not a whole number of packets have another rate.

use super::grid::{Samples, distance};
use super::prologue::Stamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of packets in a row that show another rate.
const CONFIRM: u32 = 8;

/// The sample rate that packets show, for one thread.
#[derive(Clone, Debug)]
pub(super) struct RateWatch {
    samples: Samples,
    /// The last observed packet.
    last: Option<(Stamp, u8)>,
    /// Units by which the packets before it advanced.
    advance: i128,
    /// Number of packets in a row that advanced by this.
    packets: u32,
    /// Whether a context packet stated another rate than the configured one, after it had stated a different one. For all
    /// threads.
    is_stated: Arc<AtomicBool>,
    /// How often a context packet stated that the configured rate is back. For all threads.
    returns: Arc<AtomicU64>,
    /// The number of returns that this thread has seen.
    seen_returns: u64,
}

impl RateWatch {
    pub(super) fn new(samples: Samples) -> Self {
        Self {
            samples,
            last: None,
            advance: 0,
            packets: 0,
            is_stated: Arc::default(),
            returns: Arc::default(),
            seen_returns: 0,
        }
    }

    /// Returns whether the packets have another rate.
    #[inline]
    pub(super) fn is_other(&self) -> bool {
        self.packets >= CONFIRM || self.is_stated.load(Ordering::Relaxed)
    }

    /// Uses the rate in Hz of a context packet. `before` is that of the previous one.
    pub(super) fn state(&self, before: Option<f64>, stated: Option<f64>) {
        let Some(stated) = stated else { return };
        let declared = self.samples.per_million_seconds as f64 / 1e6;
        let is_declared = (stated - declared).abs() <= declared * 1e-6;
        if is_declared {
            if self.is_stated.swap(false, Ordering::Relaxed) {
                self.returns.fetch_add(1, Ordering::Release);
            }
        } else if before.is_some_and(|before| (stated - before).abs() > before * 1e-6) {
            self.is_stated.store(true, Ordering::Relaxed);
        }
    }

    /// Examines a packet that is off the grid, or whose count disagrees with its timestamp, or that follows such packets.
    #[cold]
    pub(super) fn observe(&mut self, stamp: &Stamp, count: u8) {
        let returns = self.returns.load(Ordering::Acquire);
        if std::mem::replace(&mut self.seen_returns, returns) != returns {
            // The advance of the first packet of the configured rate is the length of the packet before it. If another packet of the
            // old rate follows, it confirms this rate.
            (self.last, self.packets) = (None, self.packets.min(CONFIRM - 1));
        }
        let last = self.last.replace((*stamp, count));
        let Some(axis) = self.samples.axis(stamp) else {
            return;
        };
        let next = last.filter(|(before, number)| {
            number.wrapping_add(1) & 0xf == count
                && (before.reference, before.unit) == (stamp.reference, stamp.unit)
        });
        let Some((before, _)) = next else {
            return;
        };
        let advance = distance(&axis, &before, stamp);
        // Both timestamps may be rounded.
        let is_near = |other: i128| (advance - other).abs() <= 2 * axis.tolerance;
        let whole = (advance + axis.period / 2) / axis.period.max(1) * axis.period;
        let is_same = self.packets == 0 || is_near(self.advance);
        if advance <= 0 || is_near(whole) && whole > 0 || !is_same {
            self.packets = 0;
        } else {
            self.packets += 1;
        }
        self.advance = advance;
    }
}

#[cfg(test)]
mod tests {
    use super::super::prologue::{Fraction, Seconds};
    use super::*;

    fn stamp(ps: u64) -> Stamp {
        Stamp {
            reference: Seconds::Utc,
            unit: Fraction::Picoseconds,
            seconds: 1_700_000_000 + u32::try_from(ps / 1_000_000_000_000).unwrap(),
            fraction: ps % 1_000_000_000_000,
        }
    }

    /// Returns whether packets of 250 samples at `rate` Hz are of another rate than 25 kHz.
    fn is_other(rate: u64) -> bool {
        let mut watch = RateWatch::new(Samples {
            per_packet: 250,
            per_million_seconds: 25_000_000_000,
            tolerance: None,
        });
        for i in 0..40 {
            let ps = i * 250 * 1_000_000_000_000 / rate;
            watch.observe(&stamp(ps), u8::try_from(i % 16).unwrap());
        }
        watch.is_other()
    }

    #[test]
    fn constant_advance_shows_another_rate() {
        for rate in [50_000, 30_000, 24_000, 100_000, 26_000] {
            assert!(is_other(rate), "{rate}");
        }
        // A slower rate cannot be distinguished from a sender that skips samples.
        for rate in [25_000, 12_500, 5_000] {
            assert!(!is_other(rate), "{rate}");
        }
    }

    #[test]
    fn restart_and_lost_packets_do_not_show_another_rate() {
        let mut watch = RateWatch::new(Samples {
            per_packet: 250,
            per_million_seconds: 25_000_000_000,
            tolerance: None,
        });
        let mut ps = 0;
        for i in 0..200_u64 {
            // Every tenth packet begins another grid.
            ps += 10_000_000_000 + u64::from(i % 10 == 0) * 3_333_000_000;
            watch.observe(&stamp(ps), u8::try_from(i % 16).unwrap());
            assert!(!watch.is_other());
        }
    }

    #[test]
    fn changed_rate_of_the_context_counts_until_it_changes_back() {
        let mut watch = RateWatch::new(Samples {
            per_packet: 250,
            per_million_seconds: 25_000_000_000,
            tolerance: None,
        });
        // A context that never stated the configured rate may be wrong.
        watch.state(None, Some(24_000.0));
        assert!(!watch.is_other());
        watch.state(Some(24_000.0), Some(25_000.0));
        assert!(!watch.is_other());
        watch.state(Some(25_000.0), Some(50_000.0));
        assert!(watch.is_other());
        watch.state(Some(50_000.0), None);
        watch.state(Some(50_000.0), Some(50_000.0));
        assert!(watch.is_other());
        // The packets of the other rate, and the first one after them, advance by half of a packet.
        for i in 0..20_u8 {
            watch.observe(&stamp(u64::from(i) * 5_000_000_000), i % 16);
        }
        watch.state(Some(50_000.0), Some(25_000.0));
        watch.observe(&stamp(100_000_000_000), 20 % 16);
        assert!(!watch.is_other());
    }
}
