//! Reads the state of the system clock with adjtimex(2), and the offset of PTP clocks.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Number of readings of a PTP clock. The reading with the shortest delay is used.
const READINGS: usize = 10;
/// `PTP_MAX_SAMPLES` of `linux/ptp_clock.h`.
const MAX_READINGS: usize = 25;
/// `PTP_SYS_OFFSET` of `linux/ptp_clock.h`: `_IOW('=', 5, struct ptp_sys_offset)`.
const PTP_SYS_OFFSET: libc::c_ulong = 1 << 30 | 832 << 16 | 0x3d << 8 | 5;

/// `struct ptp_clock_time` of `linux/ptp_clock.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct ClockTime {
    seconds: i64,
    nanoseconds: u32,
    reserved: u32,
}

/// `struct ptp_sys_offset` of `linux/ptp_clock.h`. `times` are alternating readings of the system clock and of the PTP
/// clock; the first and the last are of the system clock.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct SysOffset {
    readings: u32,
    reserved: [u32; 3],
    times: [ClockTime; 2 * MAX_READINGS + 1],
}
const _: () = assert!(size_of::<SysOffset>() == 832);

/// The offset of a PTP clock from the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtpOffset {
    /// PTP clock minus system clock, in nanoseconds.
    pub ns: i64,
    /// Time between the two readings of the system clock around the reading of the PTP clock, in nanoseconds. The offset
    /// is exact to half of it.
    pub delay_ns: i64,
}

impl PtpOffset {
    /// Reads the offset of the clock `device`, such as `/dev/ptp0`. Needs read access to the device and changes nothing.
    ///
    /// # Errors
    /// The error of opening the device or of the system call.
    pub fn read(device: &Path) -> io::Result<Self> {
        let file = File::open(device)?;
        let mut offset = SysOffset {
            readings: u32::try_from(READINGS).unwrap_or(1),
            reserved: [0; 3],
            times: [ClockTime::default(); 2 * MAX_READINGS + 1],
        };
        // SAFETY: the request reads and writes one `struct ptp_sys_offset`, which is valid, aligned, and lives until the
        // call returns. The number of readings is at most the maximum for which the structure has room.
        let answer = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                PTP_SYS_OFFSET as _,
                std::ptr::from_mut(&mut offset),
            )
        };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::of(&offset.times[..=2 * READINGS])
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the times are out of range"))
    }

    /// Returns the offset in the reading with the shortest delay.
    fn of(times: &[ClockTime]) -> Option<Self> {
        let ns = |time: &ClockTime| {
            let whole = time.seconds.checked_mul(1_000_000_000)?;
            whole.checked_add(time.nanoseconds.into())
        };
        let reading = |of: &[ClockTime]| {
            let [before, clock, after] = of else {
                return None;
            };
            let (before, clock, after) = (ns(before)?, ns(clock)?, ns(after)?);
            // The clock was set meanwhile if the delay is negative.
            let delay_ns = after
                .checked_sub(before)
                .filter(|delay_ns| *delay_ns >= 0)?;
            Some(Self {
                ns: clock.checked_sub(before.checked_add(delay_ns / 2)?)?,
                delay_ns,
            })
        };
        times
            .windows(3)
            .step_by(2)
            .filter_map(reading)
            .min_by_key(|reading| reading.delay_ns)
    }
}

/// State of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// Whether a time daemon synchronises the clock.
    pub synchronised: bool,
    /// Maximum error that Linux assumes, in microseconds.
    pub max_error_us: i64,
    /// Error that the time daemon estimates, in microseconds.
    pub estimated_error_us: i64,
    /// TAI - UTC in seconds, as set by the time daemon; 0 means that the offset is not set.
    pub tai_offset: i32,
}

/// Reads the state of the system clock. Needs no privilege and changes nothing.
///
/// # Errors
/// The system call's error, for example because a container forbids the call.
pub fn state() -> io::Result<ClockState> {
    let mut timex = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: `modes` is 0, so adjtimex changes nothing and only fills the structure. The structure is valid, aligned,
    // has the C type that the call expects, and lives until the call returns.
    let answer = unsafe { libc::adjtimex(timex.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the structure was zeroed and consists of integers, for which zero is a valid value. The call has
    // succeeded.
    let timex = unsafe { timex.assume_init() };
    Ok(ClockState {
        synchronised: answer != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0,
        max_error_us: timex.maxerror,
        estimated_error_us: timex.esterror,
        tai_offset: timex.tai,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_with_shortest_delay_is_used() {
        let time = |ns: i64| ClockTime {
            seconds: ns.div_euclid(1_000_000_000),
            nanoseconds: u32::try_from(ns.rem_euclid(1_000_000_000)).unwrap(),
            reserved: 0,
        };
        // Delays of 3000, 800 and 5000 ns; a clock in TAI that is 10 ns ahead.
        let tai = 37_000_000_010;
        let times = [0, tai + 2000, 3000, tai + 3400, 3800, tai + 9000, 8800].map(time);
        let expected = PtpOffset {
            ns: tai,
            delay_ns: 800,
        };
        assert_eq!(PtpOffset::of(&times), Some(expected));
        let wild = ClockTime {
            seconds: i64::MAX,
            ..ClockTime::default()
        };
        assert_eq!(PtpOffset::of(&[wild; 3]), None);
        assert_eq!(PtpOffset::of(&[]), None);
    }

    #[test]
    fn devices_without_clock_are_errors() {
        for path in ["/dev/null", "/dev/no-such-clock"] {
            assert!(PtpOffset::read(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn clock_is_readable() {
        match state() {
            Ok(state) => assert!(state.max_error_us >= 0, "{state:?}"),
            Err(error) => eprintln!("skipped: adjtimex is forbidden here: {error}"),
        }
    }
}
