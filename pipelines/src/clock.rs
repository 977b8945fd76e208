//! The state of the clocks that timestamps refer to: the system clock, and the PTP clocks of network cards.

pub use crate::sys::clock::{ClockState, PtpOffset, state};
use std::io;
use std::path::Path;

/// Directory of the PTP clocks in sysfs.
pub const PTP_CLASS: &str = "/sys/class/ptp";
/// Maximum deviation from a whole number of seconds, in nanoseconds, of a PTP clock that a time daemon sets.
const MAX_DEVIATION_NS: i64 = 1_000_000;

/// A PTP clock, usually of a network card.
#[derive(Debug)]
pub struct PtpClock {
    /// Name of the device, such as `ptp0`.
    pub name: String,
    /// Name that the driver gives the clock.
    pub driver: String,
    /// The clock's offset from the system clock, or why it cannot be read.
    pub offset: io::Result<PtpOffset>,
}

impl PtpOffset {
    /// Returns the nearest whole number of seconds, which is TAI − UTC (37 s since 2017) for a clock in TAI and 0 for a clock
    /// in UTC, and the rest in nanoseconds. Returns `None` if the rest is more than a millisecond, because then no time
    /// daemon sets the clock.
    pub const fn scale(&self) -> Option<(i64, i64)> {
        const SECOND: i64 = 1_000_000_000;
        let rest = (self.ns + SECOND / 2).rem_euclid(SECOND) - SECOND / 2;
        if rest.abs() <= MAX_DEVIATION_NS {
            Some(((self.ns - rest) / SECOND, rest))
        } else {
            None
        }
    }
}

/// Returns the PTP clocks of this machine, in the order of their names.
pub fn ptp_clocks() -> Vec<PtpClock> {
    let Ok(entries) = std::fs::read_dir(PTP_CLASS) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let clock = |name: String| {
        let driver = std::fs::read_to_string(format!("{PTP_CLASS}/{name}/clock_name"));
        PtpClock {
            driver: driver.unwrap_or_default().trim().to_owned(),
            offset: PtpOffset::read(&Path::new("/dev").join(&name)),
            name,
        }
    };
    names.into_iter().map(clock).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_names_time_scale_of_clock() {
        let scale = |ns| PtpOffset { ns, delay_ns: 900 }.scale();
        assert_eq!(scale(37_000_000_012), Some((37, 12)));
        assert_eq!(scale(36_999_999_900), Some((37, -100)));
        assert_eq!(scale(-250), Some((0, -250)));
        assert_eq!(scale(-37_000_000_250), Some((-37, -250)));
        assert_eq!(scale(37_400_000_000), None);
        assert_eq!(scale(-1_700_000_000_000_000_000), Some((-1_700_000_000, 0)));
    }
}
