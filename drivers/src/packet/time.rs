//! The time scale of timestamps in ticks, and times that are continued when their field wraps.

use daq_core::frame::{Clock, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

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
        self.wide_ns(u128::from(ticks))
    }

    /// Converts more ticks than a field can contain, as [`ns`](Self::ns) does.
    #[inline]
    fn wide_ns(&self, ticks: u128) -> u64 {
        let scaled = ticks.saturating_mul(u128::from(self.nanoseconds));
        u64::try_from(scaled / u128::from(self.ticks.max(1)))
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

/// 2040-01-01T00:00:00Z in nanoseconds since 1970.
const YEAR_2040: u64 = 2_208_988_800_000_000_000;
/// The offset between the times and the host's clock is unknown.
const UNKNOWN: i64 = i64::MIN;
/// Number of clocks.
const CLOCKS: usize = 9;
/// No packet had a time.
const NEVER: u64 = u64::MAX;

/// Continues the times of a field that wraps. All clones share what is known, so the threads of a source agree.
///
/// A time is the one nearest to what the previous packets and the host's clock predict. If the origin is known, the first time is
/// the one nearest to the host's clock; otherwise it is the value of the field.
#[derive(Clone, Debug)]
pub struct TimeWrap {
    /// Number of ticks after which the field repeats.
    period: u128,
    period_ns: f64,
    /// Whether the configuration declares the number of bits.
    is_declared: bool,
    shared: Arc<Reference>,
}

/// The time of a previous packet.
#[derive(Debug)]
struct Reference {
    /// Time of the packet minus the time at which it was received, in nanoseconds, or [`UNKNOWN`]; for each clock of receive times,
    /// because the clock of a NIC may differ from that of the host.
    offsets: [AtomicI64; CLOCKS],
    /// Time of the packet in nanoseconds, or [`NEVER`].
    latest: AtomicU64,
}

impl TimeWrap {
    /// Returns the state of a field that repeats after `period` ticks of `scale`, or `None` if it does not repeat within 292
    /// years.
    pub fn new(scale: &TimeScale, period: u128) -> Option<Self> {
        let period_ns = period as f64 * scale.nanoseconds as f64 / scale.ticks.max(1) as f64;
        (period > 0 && period_ns < i64::MAX as f64).then(|| Self {
            period,
            period_ns,
            is_declared: false,
            shared: Arc::new(Reference {
                offsets: [const { AtomicI64::new(UNKNOWN) }; CLOCKS],
                latest: AtomicU64::new(NEVER),
            }),
        })
    }

    /// Sets whether the configuration declares the number of bits, so that the times are meant to repeat.
    #[must_use]
    pub fn declared(self, is_declared: bool) -> Self {
        Self {
            is_declared,
            ..self
        }
    }

    /// Returns the same field without knowledge of previous packets, for another run.
    #[must_use]
    pub fn restarted(&self, scale: &TimeScale) -> Option<Self> {
        Self::new(scale, self.period).map(|wrap| wrap.declared(self.is_declared))
    }

    /// Returns the time after which the field repeats, if it cannot contain the dates of the next years, and the configuration does
    /// not declare its number of bits. Such times should not be sent.
    pub fn too_short(&self, scale: &TimeScale) -> Option<Duration> {
        let last = scale.origin_ns.unwrap_or(0) as f64 + self.period_ns;
        let is_short = !self.is_declared && last < YEAR_2040 as f64;
        let seconds = self.period_ns / 1e9;
        let rounded = if seconds < 1.0 {
            seconds
        } else {
            seconds.round()
        };
        is_short.then(|| Duration::from_secs_f64(rounded))
    }

    /// Returns the time in nanoseconds of a packet with `ticks` that was received at `received`.
    #[inline]
    pub fn ns(&self, scale: &TimeScale, ticks: u64, received: Timestamp) -> u64 {
        let wrapped = scale.ns(ticks);
        let has_clock = received.clock != Clock::None;
        let offset = self.offset_of(received.clock).load(Ordering::Relaxed);
        let predicted = if has_clock && offset != UNKNOWN {
            received.ns.saturating_add_signed(offset)
        } else {
            self.nearby(scale, wrapped, received)
        };
        let ns = self.nearest(scale, ticks, wrapped, predicted);
        let deviation = difference(ns, predicted);
        let is_first =
            offset == UNKNOWN && (has_clock || self.shared.latest.load(Ordering::Relaxed) == NEVER);
        if is_first || deviation.abs() > self.period_ns / 64.0 {
            return self.learn(scale, (ticks, ns), (offset, deviation), received);
        }
        ns
    }

    /// Returns the offset for receive times of `clock`.
    #[inline]
    fn offset_of(&self, clock: Clock) -> &AtomicI64 {
        &self.shared.offsets[clock as usize % CLOCKS]
    }

    /// Returns a time near that of the packet, if no packet was received with a time of the host's clock.
    #[cold]
    fn nearby(&self, scale: &TimeScale, wrapped: u64, received: Timestamp) -> u64 {
        match self.shared.latest.load(Ordering::Relaxed) {
            NEVER if scale.origin_ns.is_some() && received.clock != Clock::None => {
                match received.clock {
                    // Clocks of network cards often count TAI, or the time since the card started.
                    Clock::Hardware => host_ns(),
                    _ => received.ns,
                }
            }
            NEVER => wrapped,
            latest => latest,
        }
    }

    /// Returns the time of `ticks`, which are at `wrapped` without whole periods, that is nearest to `predicted`.
    #[inline]
    fn nearest(&self, scale: &TimeScale, ticks: u64, wrapped: u64, predicted: u64) -> u64 {
        let periods = (difference(predicted, wrapped) / self.period_ns).round();
        if periods < 1.0 {
            return wrapped;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; saturates"
        )]
        let periods = periods as u128;
        scale.wide_ns(u128::from(ticks).saturating_add(self.period.saturating_mul(periods)))
    }

    /// Stores the time `ns` of a packet, and returns it, or the time that follows from a packet of another thread.
    ///
    /// A known offset follows slowly, because a single damaged time must not change it, and senders may differ.
    #[cold]
    fn learn(
        &self,
        scale: &TimeScale,
        (ticks, ns): (u64, u64),
        (offset, deviation): (i64, f64),
        received: Timestamp,
    ) -> u64 {
        if received.clock != Clock::None {
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            let new = if offset == UNKNOWN {
                ns.wrapping_sub(received.ns).cast_signed()
            } else {
                offset.saturating_add((deviation / 16.0) as i64)
            };
            let new = new.max(UNKNOWN + 1);
            let stored = self.offset_of(received.clock);
            let result = stored.compare_exchange(offset, new, Ordering::Relaxed, Ordering::Relaxed);
            if result.is_err() && offset == UNKNOWN {
                return self.ns(scale, ticks, received);
            }
        }
        self.shared.latest.store(ns, Ordering::Relaxed);
        ns
    }
}

/// Returns `a - b`.
#[inline]
fn difference(a: u64, b: u64) -> f64 {
    a.wrapping_sub(b).cast_signed() as f64
}

/// Returns the time of the host's clock.
fn host_ns() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECONDS: TimeScale = TimeScale {
        nanoseconds: 1000,
        ticks: 1,
        origin_ns: None,
    };

    fn wrap(scale: &TimeScale, bits: u32) -> TimeWrap {
        TimeWrap::new(scale, 1 << bits).unwrap()
    }

    fn at(ns: u64) -> Timestamp {
        Timestamp {
            ns,
            clock: Clock::Kernel,
        }
    }

    /// The clock of a network card may count TAI or from its start, so the first time is near that of the host.
    #[test]
    fn first_time_follows_the_clock_of_the_host() {
        let scale = TimeScale {
            origin_ns: Some(0),
            ..MICROSECONDS
        };
        let period = 1000 << 32;
        let received = Timestamp {
            ns: 1_000_000_000,
            clock: Clock::Hardware,
        };
        let time = wrap(&scale, 32).ns(&scale, 5, received);
        assert!(host_ns().abs_diff(time) <= period, "{time}");
        assert_eq!(time % period, 5000);
    }

    /// Returns the times of packets every `step` ticks whose field has `bits` bits. Their receive times are known or not.
    fn continued(scale: &TimeScale, bits: u32, start: u64, step: u64, has_clock: bool) -> Vec<u64> {
        let wrap = wrap(scale, bits);
        let time = |i: u64| {
            let ticks = start + i * step;
            let received = if has_clock {
                at(1_700_000_000_000_000_000 + scale.ns(i * step))
            } else {
                Timestamp::default()
            };
            wrap.ns(scale, ticks & ((1 << bits) - 1), received)
        };
        (0..1000).map(time).collect()
    }

    #[test]
    fn times_continue_when_their_field_wraps() {
        for bits in [8, 16, 32, 40] {
            for has_clock in [false, true] {
                let step = (1 << bits) / 5;
                let start = (1 << bits) - step;
                let found = continued(&MICROSECONDS, bits, start, step, has_clock);
                let expected: Vec<_> = (0..1000).map(|i| (start + i * step) * 1000).collect();
                assert!(
                    found == expected,
                    "{bits} bits, {has_clock}: {:?}",
                    &found[..9]
                );
            }
        }
    }

    #[test]
    fn first_time_with_an_origin_is_near_the_clock_of_the_host() {
        let origin = 1_700_000_000_000_000_000;
        let scale = TimeScale {
            origin_ns: Some(origin),
            ..MICROSECONDS
        };
        let wrap = wrap(&scale, 32);
        let now = origin + 7 * 86_400_000_000_000 + 5000;
        let ticks = (now - origin) / 1000;
        let found = wrap.ns(&scale, ticks & 0xffff_ffff, at(now + 3_000_000_000));
        assert_eq!(found, now);
        // No time is before the origin.
        let found = TimeWrap::new(&scale, 1 << 32).unwrap().ns(&scale, 7, at(5));
        assert_eq!(found, origin + 7000);
    }

    /// A NIC stamps only some packets, and its clock is 37 s ahead of the host's.
    #[test]
    fn receive_times_of_two_clocks_do_not_disturb_each_other() {
        let scale = TimeScale {
            nanoseconds: 1,
            ..MICROSECONDS
        };
        let wrap = wrap(&scale, 32);
        for i in 0..2000_u64 {
            let ns = 5_000_000_000 + i * 10_000_000;
            let (ahead, clock) = if i % 3 == 0 {
                (37_000_000_000, Clock::Hardware)
            } else {
                (0, Clock::Kernel)
            };
            let received = Timestamp {
                ns: 1_700_000_000_000_000_000 + ns + ahead,
                clock,
            };
            let found = wrap.ns(&scale, ns & 0xffff_ffff, received);
            assert_eq!(found, 705_032_704 + i * 10_000_000, "packet {i}");
        }
    }

    #[test]
    fn pauses_longer_than_the_field_are_bridged_by_the_clock_of_the_host() {
        let wrap = wrap(&MICROSECONDS, 16);
        let mut ticks = 60_000_u64;
        for pause in [100, 70_000, 40_000, 1_000_000, 65_536] {
            ticks += pause;
            let received = at(9_000_000_000_000 + ticks * 1000 + 300);
            let first = wrap.ns(&MICROSECONDS, 100, at(9_000_000_000_000 + 100_300));
            assert_eq!(first, 100_000);
            let found = wrap.ns(&MICROSECONDS, ticks & 0xffff, received);
            assert_eq!(found, ticks * 1000);
        }
    }

    #[test]
    fn late_damaged_and_unsynchronised_times_do_not_move_the_reference() {
        let wrap = wrap(&MICROSECONDS, 16);
        let time = |sensor: u64, received: u64| {
            wrap.ns(
                &MICROSECONDS,
                sensor & 0xffff,
                at(1_000_000_000 + received * 1000),
            )
        };
        assert_eq!(time(65_000, 0), 65_000_000);
        assert_eq!(time(66_000, 1000), 66_000_000);
        assert_eq!(time(65_100, 1001), 65_100_000);
        // Three senders, whose clocks differ by 0.4 of the field.
        for i in 0..200_u64 {
            let offsets = [0, 26_000, 52_000].map(|offset| {
                let sensor = 66_000 + i * 500;
                time(sensor + offset, 1000 + i * 500).cast_signed() - (sensor * 1000).cast_signed()
            });
            assert_eq!(offsets, [0, 26_000_000, 52_000_000 - (65_536_000)], "{i}");
        }
    }

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
