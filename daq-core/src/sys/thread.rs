//! The core and the timer of the current thread.

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

/// Makes sleeps of the calling thread end on time: by default Linux may extend them by up to 50 µs.
pub fn wake_on_time() {
    // SAFETY: sets a number of the calling thread; 1 ns is the minimum slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// The core on which the calling thread currently runs.
pub fn current_core() -> usize {
    rustix::thread::sched_getcpu()
}

/// The cores that the calling thread may run on, ascending.
pub fn allowed_cores() -> Vec<usize> {
    rustix::thread::sched_getaffinity(None)
        .map(|set| {
            (0..CpuSet::MAX_CPU)
                .filter(|core| set.is_set(*core))
                .collect()
        })
        .unwrap_or_default()
}
