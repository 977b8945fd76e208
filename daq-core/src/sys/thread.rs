//! CPU affinity and timer precision of the current thread.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Restricts the calling thread to `core`.
pub fn pin(core: usize) -> Result<(), Errno> {
    if core >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
}

/// Makes sleeps of the calling thread end on time. By default, Linux may extend them by up to 50 µs.
pub fn wake_on_time() {
    // SAFETY: the call only sets the timer slack of the calling thread; 1 ns is the minimum.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Returns the CPU core on which the calling thread currently runs.
pub(crate) fn current_core() -> usize {
    rustix::thread::sched_getcpu()
}

/// Returns the CPU cores that the calling thread may run on, in ascending order.
pub(crate) fn allowed_cores() -> Vec<usize> {
    rustix::thread::sched_getaffinity(None)
        .map(|set| {
            (0..CpuSet::MAX_CPU)
                .filter(|core| set.is_set(*core))
                .collect()
        })
        .unwrap_or_default()
}
