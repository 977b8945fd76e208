//! Send times of packets at a limited rate.

use daq_net::send::Pace;
use std::time::Duration;

/// Duration of a burst, after which the sender sleeps.
const BURST_NS: f64 = 500_000.0;
/// Maximum size of a burst in bytes.
const MAX_BURST: f64 = 262_144.0;
/// Maximum delay that is made up for by a higher rate. A longer delay, such as a pause of the input, is not.
const CREDIT_NS: u64 = 2_000_000;

/// The schedule of a sender with a limited rate. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    ns_per_byte: f64,
    /// Time at which the next packet is due.
    due_ns: u64,
    /// Send time after the last packet. Later packets must not have earlier send times, or `fq` would reorder them.
    end_ns: u64,
}

impl Pacer {
    /// Creates a schedule with `rate` bits per second.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            ns_per_byte: 8e9 / rate,
            due_ns: 0,
            end_ns: 0,
        }
    }

    /// Returns the maximum number of bytes of a burst. A burst contains at least one packet.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and `MAX_BURST`"
    )]
    pub(super) fn burst(&self) -> usize {
        (BURST_NS / self.ns_per_byte).min(MAX_BURST) as usize
    }

    /// Returns how long to wait at `now_ns` until the next packet is due, or the send times of the packets from now on.
    pub(super) fn next(&mut self, now_ns: u64) -> Result<Pace, Duration> {
        if self.due_ns > now_ns {
            return Err(Duration::from_nanos(self.due_ns - now_ns));
        }
        self.due_ns = self.due_ns.max(now_ns.saturating_sub(CREDIT_NS));
        Ok(Pace {
            start_ns: now_ns.max(self.end_ns),
            ns_per_byte: self.ns_per_byte,
        })
    }

    /// Records that `bytes` bytes were sent with the send times `pace`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; saturates"
    )]
    pub(super) fn sent(&mut self, pace: Pace, bytes: usize) {
        self.end_ns = pace.after(bytes);
        self.due_ns = self
            .due_ns
            .saturating_add((bytes as f64 * self.ns_per_byte) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_does_not_drift_if_sleeps_are_too_long() {
        // 80 Mbit/s: 100 ns per byte.
        let mut pacer = Pacer::new(80e6);
        assert_eq!(pacer.burst(), 5000);
        let (mut now, mut sent, mut last) = (1_000_000_000, 0, 0);
        let start = now;
        while now < start + 1_000_000_000 {
            match pacer.next(now) {
                Ok(pace) => {
                    assert!(pace.start_ns >= now.max(last));
                    last = pace.after(1500);
                    pacer.sent(pace, 1500);
                    sent += 1500;
                }
                Err(wait) => now += u64::try_from(wait.as_nanos()).unwrap() + 60_000,
            }
        }
        // The credit at the start allows 2 ms more.
        let expected = (now - start) / 100;
        assert!(sent >= expected && sent <= expected + 21_500, "{sent}");
    }

    #[test]
    fn pause_of_input_gives_no_long_burst() {
        let mut pacer = Pacer::new(80e6);
        let mut burst = |now| {
            let mut sent = 0;
            while let Ok(pace) = pacer.next(now) {
                pacer.sent(pace, 1000);
                sent += 1000;
            }
            sent
        };
        assert!(burst(5_000_000_000) <= 21_000);
        assert_eq!(burst(5_000_000_000), 0);
        assert!(burst(9_000_000_000) <= 21_000);
    }

    #[test]
    fn low_rates_send_single_packets() {
        let mut pacer = Pacer::new(8.0);
        assert_eq!(pacer.burst(), 0);
        let pace = pacer.next(10_000_000_000).unwrap();
        pacer.sent(pace, 1);
        let wait = pacer.next(10_000_000_000).unwrap_err();
        assert_eq!(wait, Duration::from_millis(998));
    }
}
