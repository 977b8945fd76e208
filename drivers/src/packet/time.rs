//! The time scale of timestamps in ticks.

use daq_core::frame::Clock;

/// Conversion of a sender's timestamp in ticks to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// Duration of `ticks` ticks in nanoseconds, at least 1.
    pub nanoseconds: u64,
    /// Number of ticks in `nanoseconds`, at least 1.
    pub ticks: u64,
    /// Nanoseconds from 1970-01-01T00:00:00Z to tick 0; `None` if unknown.
    pub origin_ns: Option<u64>,
}

impl TimeScale {
    /// Converts `ticks` to nanoseconds, rounded down. Times beyond the year 2554 saturate.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        let scaled =
            u128::from(ticks) * u128::from(self.nanoseconds) / u128::from(self.ticks.max(1));
        u64::try_from(scaled)
            .unwrap_or(u64::MAX)
            .saturating_add(self.origin_ns.unwrap_or(0))
    }

    /// Converts nanoseconds to ticks, rounded up, so that ticks of at least 1 ns keep their value when they are converted to
    /// nanoseconds and back. Times before tick 0 are 0.
    pub fn ticks_at(&self, ns: u64) -> u64 {
        let since = u128::from(ns.saturating_sub(self.origin_ns.unwrap_or(0)));
        let ticks = (since * u128::from(self.ticks)).div_ceil(u128::from(self.nanoseconds.max(1)));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Converts `ticks` after `seconds` whole seconds to nanoseconds, rounded down: a timestamp in two parts. Times beyond
    /// the year 2554 saturate.
    #[inline]
    pub fn ns_after(&self, seconds: u64, ticks: u64) -> u64 {
        self.ns(ticks)
            .saturating_add(seconds.saturating_mul(1_000_000_000))
    }

    /// Converts nanoseconds to whole seconds and the ticks after them, rounded up: the reverse of [`ns_after`](Self::ns_after)
    /// for ticks of at least 1 ns.
    pub fn parts_at(&self, ns: u64) -> (u64, u64) {
        let seconds = ns / 1_000_000_000;
        let ticks = self.ticks_at(ns % 1_000_000_000);
        if self.ns(ticks) < 1_000_000_000 {
            (seconds, ticks)
        } else {
            (seconds + 1, 0)
        }
    }

    /// Returns the clock that the converted timestamps refer to.
    pub const fn clock(&self) -> Clock {
        match self.origin_ns {
            Some(_) => Clock::SensorUtc,
            None => Clock::Sensor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_survive_conversion_to_nanoseconds() {
        for (nanoseconds, ticks, origin_ns) in [
            (1, 1, None),
            (8, 1, Some(1_700_000_000_000_000_000)),
            (1_000_000_000, 156_250_000, None),
            (1_000_000_000, 3, Some(5)),
        ] {
            let scale = TimeScale {
                nanoseconds,
                ticks,
                origin_ns,
            };
            for tick in [0, 1, 2, 7, 1 << 30] {
                assert_eq!(scale.ticks_at(scale.ns(tick)), tick, "{scale:?}");
            }
        }
    }

    #[test]
    fn fast_clock_ticks_do_not_drift() {
        let scale = TimeScale {
            nanoseconds: 1_000_000_000,
            ticks: 1_712_000_000,
            origin_ns: Some(5),
        };
        assert_eq!(scale.ns(1_712_000_000 * 1000), 1_000_000_000_005);
        assert_eq!(scale.ns(u64::MAX), 10_774_967_332_774_270_803 + 5);
        assert_eq!(
            TimeScale {
                nanoseconds: 1000,
                ticks: 1,
                origin_ns: None
            }
            .ns(u64::MAX),
            u64::MAX
        );
    }
}
