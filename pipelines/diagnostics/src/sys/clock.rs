//! Reads the state of the system clock with adjtimex(2).

use std::io;
use std::mem::MaybeUninit;

/// State of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockState {
    /// Whether a time daemon synchronises the clock.
    pub(crate) synchronised: bool,
    /// Maximum error that Linux assumes, in microseconds.
    pub(crate) max_error_us: i64,
    /// TAI - UTC in seconds, as set by the time daemon; 0 means that the offset is not set.
    pub(crate) tai_offset: i32,
}

/// Reads the state of the system clock. Needs no privilege and changes nothing.
///
/// # Errors
/// The system call's error, for example because a container forbids the call.
pub(crate) fn state() -> io::Result<ClockState> {
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
