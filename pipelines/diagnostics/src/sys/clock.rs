//! State of the system clock: adjtimex(2), read only.

use std::io;
use std::mem::MaybeUninit;

/// State of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockState {
    /// Whether a time daemon disciplines it.
    pub(crate) synchronised: bool,
    /// Maximum error that Linux assumes, in microseconds.
    pub(crate) max_error_us: i64,
    /// TAI − UTC in seconds as set by the clock daemon; 0 means not set.
    pub(crate) tai_offset: i32,
}

/// Reads the state of the system clock. Needs no privilege and changes nothing.
///
/// # Errors
/// The system call's error, for example because a container forbids the call.
pub(crate) fn state() -> io::Result<ClockState> {
    let mut timex = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: adjtimex reads `modes`, which is 0 ("change nothing"), and fills the structure, which is valid,
    // aligned, of the C type the call wants, and lives until the call returns.
    let answer = unsafe { libc::adjtimex(timex.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the structure consists of integers, for which the zeroes it began with are valid, and the call
    // has succeeded.
    let timex = unsafe { timex.assume_init() };
    Ok(ClockState {
        synchronised: answer != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0,
        max_error_us: timex.maxerror,
        tai_offset: timex.tai,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_readable() {
        match state() {
            Ok(state) => assert!(state.max_error_us >= 0, "{state:?}"),
            Err(error) => eprintln!("skipped: adjtimex is forbidden here: {error}"),
        }
    }
}
