//! Determines which signals this process ignores, and exits if a signal repeats.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time after the first signal in which further ones are the same request: `timeout` of coreutils signals its child, and then
/// its process group, which contains the child.
const SAME_REQUEST: Duration = Duration::from_millis(100);

/// Returns whether `signal` is ignored, as under `nohup`.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all fields of `sigaction` are integers, nullable pointers or bit sets, so all-zero bytes are a valid
    // value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: with a null new action, the call only writes the current action to `action`, which is valid and writable.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Exits with 128 + `signal` if the signal arrives later than [`SAME_REQUEST`] after the first of the signals that share
/// `first`, which is 0 before one has arrived.
pub(crate) fn exit_on_repeat(signal: libc::c_int, first: Arc<AtomicU64>) -> io::Result<()> {
    let handler = move || {
        let now = monotonic().max(1);
        if let Err(begun) = first.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire)
            && u128::from(now.saturating_sub(begun)) > SAME_REQUEST.as_nanos()
        {
            signal_hook::low_level::exit(128 + signal);
        }
    };
    // SAFETY: signal-safety(7) allows what the handler does: it uses an atomic variable, reads the clock, and exits with
    // `_exit`. It neither allocates nor panics.
    unsafe { signal_hook::low_level::register(signal, handler) }?;
    Ok(())
}

/// Returns the time of the monotonic clock in nanoseconds.
fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid and writable. The call fails only for clocks that do not exist.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(part(time.tv_nsec))
}
