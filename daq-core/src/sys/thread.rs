//! Where the current thread runs and how it is named.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Runs the calling thread on `core` alone.
pub fn pin(core: usize) -> Result<(), Errno> {
    if core >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
}

/// Lets sleeps of the calling thread end on time: by default the kernel lets them last up to 50 us longer.
pub fn wake_on_time() {
    // SAFETY: sets a number of the calling thread; 1 ns is the least slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// The core that the calling thread runs on now.
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
