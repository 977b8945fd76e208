//! Schedules the replay of recorded packets.

use super::keys::Speed;
use std::time::{Duration, Instant};

/// Maximum step back of the recorded time, in nanoseconds, that is treated as a packet out of order. After a larger step, the
/// source assumes that the clock was set.
const MAX_STEP_BACK: u64 = 1_000_000_000;

/// Maps recorded times to the clock of this run. The mapping is absolute, so a replay that falls behind catches up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timetable {
    /// Speed factor; `None` for as fast as possible.
    speed: Option<f64>,
    /// A time of this run, and the corresponding recorded time in nanoseconds.
    origin: Option<(Instant, u64)>,
    /// The latest recorded time seen.
    latest: u64,
}

impl Timetable {
    pub(super) const fn new(speed: Speed) -> Self {
        let speed = match speed {
            Speed::Times(times) => Some(times),
            Speed::Free => None,
        };
        Self {
            speed,
            origin: None,
            latest: 0,
        }
    }

    /// Restarts the mapping, so that the next packet is due immediately.
    pub(super) const fn restart(&mut self) {
        self.origin = None;
    }

    /// Returns whether recorded times are ignored.
    pub(super) const fn is_free(&self) -> bool {
        self.speed.is_none()
    }

    /// Returns the time from `now` until data recorded at `ns` is due, or `None` if it is due now. The first packet is
    /// due immediately.
    pub(super) fn wait(&mut self, ns: u64, now: Instant) -> Option<Duration> {
        let speed = self.speed?;
        let (start, first) = match self.origin {
            Some(origin) if ns.saturating_add(MAX_STEP_BACK) >= self.latest => origin,
            _ => {
                self.origin = Some((now, ns));
                self.latest = ns;
                return None;
            }
        };
        self.latest = self.latest.max(ns);
        let after = Duration::from_nanos(ns.saturating_sub(first)).as_secs_f64() / speed;
        let after = Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX);
        let wait = after.saturating_sub(now.saturating_duration_since(start));
        (!wait.is_zero()).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_scaled_and_absolute() {
        let now = Instant::now();
        let mut table = Timetable::new(Speed::Times(2.0));
        assert_eq!(table.wait(5_000_000_000, now), None);
        assert_eq!(
            table.wait(6_000_000_000, now),
            Some(Duration::from_millis(500))
        );
        assert_eq!(
            table.wait(6_000_000_000, now + Duration::from_millis(400)),
            Some(Duration::from_millis(100))
        );
        assert_eq!(
            table.wait(6_000_000_000, now + Duration::from_millis(700)),
            None
        );
        assert_eq!(
            table.wait(7_000_000_000, now + Duration::from_millis(700)),
            Some(Duration::from_millis(300))
        );
    }

    #[test]
    fn clock_set_back_restarts_the_mapping() {
        let now = Instant::now();
        let mut table = Timetable::new(Speed::Times(1.0));
        assert_eq!(table.wait(50_000_000_000, now), None);
        // First a packet out of order, then a clock that was set back.
        assert_eq!(table.wait(49_500_000_000, now), None);
        assert_eq!(
            table.wait(50_001_000_000, now),
            Some(Duration::from_millis(1))
        );
        assert_eq!(table.wait(1_000_000_000, now), None);
        assert_eq!(
            table.wait(1_001_000_000, now),
            Some(Duration::from_millis(1))
        );
    }

    #[test]
    fn free_speed_never_waits() {
        let now = Instant::now();
        let mut table = Timetable::new(Speed::Free);
        assert!(table.is_free());
        assert_eq!(
            (table.wait(0, now), table.wait(u64::MAX, now)),
            (None, None)
        );
    }
}
