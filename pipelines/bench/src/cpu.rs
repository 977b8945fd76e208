//! Reads the CPU time of threads and processes.

use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::{Duration, Instant};

/// Nanoseconds per clock tick in `/proc/PID/stat`. USER_HZ is 100 on all supported systems.
const TICK_NS: u64 = 10_000_000;

/// Name of the emulated device's thread in this process.
const DEVICE_THREAD: &str = "daq-card";

/// CPU times at one point in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    at: Instant,
    process: Duration,
    /// CPU time of the device, and whether the CPU time of this process includes it.
    device: Option<Duration>,
    is_within: bool,
}

impl Spent {
    /// Reads the current CPU times. `device` is the process ID of the device; `None` if the device is a thread of this
    /// process.
    pub(super) fn now(device: Option<&str>) -> Self {
        Self {
            at: Instant::now(),
            process: of_process(),
            device: match device {
                None => of_threads("self", Some(DEVICE_THREAD)),
                Some(process) => of_threads(process, None),
            },
            is_within: device.is_none(),
        }
    }

    /// Returns the mean number of busy cores since `before`: first for daq without the device, then for the device.
    /// Both numbers are NaN if Linux does not report the CPU times.
    pub(super) fn since(&self, before: &Self) -> [f64; 2] {
        let took = self.seconds(before);
        let both = self.device.zip(before.device);
        let device = both.map_or(f64::NAN, |(after, before)| {
            after.saturating_sub(before).as_secs_f64()
        });
        let process = self.process.saturating_sub(before.process).as_secs_f64();
        let daq = if self.is_within {
            process - device
        } else {
            process
        };
        [daq.max(0.0) / took, device / took]
            .map(|cores| if device.is_nan() { f64::NAN } else { cores })
    }

    /// Returns the mean number of busy cores of this process since `before`.
    pub(super) fn alone(&self, before: &Self) -> f64 {
        self.process.saturating_sub(before.process).as_secs_f64() / self.seconds(before)
    }

    /// Returns the seconds since `before`.
    pub(super) fn seconds(&self, before: &Self) -> f64 {
        (self.at - before.at).as_secs_f64()
    }
}

/// Returns the CPU time that this process has used.
fn of_process() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the CPU time of the threads of `process` (a process ID or `self`). If `name` is given, includes only the
/// threads with this name. Returns `None` if `/proc` does not report the CPU time, or if no thread has this name.
pub(super) fn of_threads(process: &str, name: Option<&str>) -> Option<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut total = None;
    for task in tasks.flatten().map(|task| task.path()) {
        let comm = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.is_none_or(|name| comm.trim_end() == name)
            && let Some(time) = of_task(&task)
        {
            total = Some(total.unwrap_or_default() + time);
        }
    }
    total
}

fn of_task(task: &Path) -> Option<Duration> {
    let read = |file: &str| std::fs::read_to_string(task.join(file)).ok();
    let nanos = read("schedstat")
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .or_else(|| ticks(&read("stat")?).map(|ticks| ticks * TICK_NS));
    nanos.map(Duration::from_nanos)
}

/// Returns the clock ticks in user and kernel mode, which are fields 14 and 15 of a `stat` file. Field 2 is the
/// thread's name, which may contain any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_parsed_after_any_thread_name() {
        let stat = "7 (a) b 1) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn thread_is_found_by_name() {
        let thread = std::thread::Builder::new().name("daq-test-cpu".to_owned());
        let (wait, go) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel::<()>();
        let thread = thread
            .spawn(move || {
                begun.send(()).unwrap();
                go.recv().unwrap_err();
            })
            .unwrap();
        has_begun.recv().unwrap();
        assert!(of_threads("self", Some("daq-test-cpu")).is_some());
        assert!(of_threads("self", None).is_some());
        assert_eq!(of_threads("self", Some("no such name")), None);
        drop(wait);
        thread.join().unwrap();
        assert!(of_process() > Duration::ZERO);
    }
}
