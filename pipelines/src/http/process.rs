//! Resource use of the process, with the metric names of the official Prometheus client libraries.

use crate::clock::{self, ClockState, PtpClock};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Values of the running process. Values that cannot be read are NaN, which Prometheus treats as unknown.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Processor time of all threads, user and system, in seconds.
    pub(super) cpu_seconds: f64,
    /// Resident memory in bytes.
    pub(super) resident_bytes: f64,
    /// Size of the address space in bytes.
    pub(super) virtual_bytes: f64,
    /// Memory locked with mlock, in bytes.
    pub(super) locked_bytes: f64,
    /// Number of threads.
    pub(super) threads: f64,
    /// Number of open file descriptors.
    pub(super) open_fds: f64,
    /// Maximum number of open file descriptors.
    pub(super) max_fds: f64,
    /// Number of log messages that were not written to stderr.
    pub(super) dropped_messages: f64,
    /// State of the system clock; `None` if Linux does not report it.
    pub(super) clock: Option<ClockState>,
    /// Names of the PTP clocks, and their offsets from the system clock in seconds.
    pub(super) ptp_offsets: Vec<(String, f64)>,
    /// Time at which the metrics were set up, in seconds since 1970.
    pub(super) started: f64,
}

impl Process {
    /// Reads the values from `/proc/self` with a few system calls.
    pub(super) fn read(started: f64) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let time = clock_gettime(ClockId::ProcessCPUTime);
        // One of the entries is the open directory itself.
        let open = fs::read_dir("/proc/self/fd")
            .map_or(f64::NAN, |entries| entries.count().saturating_sub(1) as f64);
        Self {
            cpu_seconds: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
            resident_bytes: field(&status, "VmRSS:") * 1024.0,
            virtual_bytes: field(&status, "VmSize:") * 1024.0,
            locked_bytes: field(&status, "VmLck:") * 1024.0,
            threads: field(&status, "Threads:"),
            open_fds: open,
            max_fds: getrlimit(Resource::Nofile)
                .current
                .map_or(f64::INFINITY, |limit| limit as f64),
            dropped_messages: crate::console::dropped() as f64,
            clock: clock::state().ok(),
            ptp_offsets: clock::ptp_clocks().into_iter().map(offset).collect(),
            started,
        }
    }
}

fn offset(clock: PtpClock) -> (String, f64) {
    let seconds = clock.offset.map(|offset| offset.ns as f64 / 1e9);
    (clock.name, seconds.unwrap_or(f64::NAN))
}

/// Returns the current time in seconds since 1970. Called once, when the metrics are set up.
pub(super) fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(f64::NAN, |since| since.as_secs_f64())
}

/// Parses the number after `name` at the start of a line of `/proc/PID/status`.
fn field(status: &str, name: &str) -> f64 {
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_metric_is_known_on_linux() {
        let process = Process::read(0.0);
        let page = 4096.0;
        assert!(process.resident_bytes > page, "{process:?}");
        assert!(
            process.virtual_bytes >= process.resident_bytes,
            "{process:?}"
        );
        assert!(
            process.threads >= 1.0 && process.open_fds >= 1.0,
            "{process:?}"
        );
        assert!(
            process.max_fds >= process.open_fds && process.locked_bytes >= 0.0,
            "{process:?}"
        );
    }

    #[test]
    fn open_files_are_counted() {
        // Other tests open and close files at the same time, so this test opens many more than they do.
        let before = Process::read(0.0).open_fds;
        let files: Vec<_> = (0..200)
            .map(|_| fs::File::open("/proc/self/status").unwrap())
            .collect();
        assert!(Process::read(0.0).open_fds >= before + 100.0);
        drop(files);
    }

    #[test]
    fn missing_process_field_is_nan() {
        assert_eq!(field("VmRSS:\t  120 kB\n", "VmRSS:"), 120.0);
        assert!(field("VmRSS:\t  120 kB\n", "VmSwap:").is_nan());
    }
}
