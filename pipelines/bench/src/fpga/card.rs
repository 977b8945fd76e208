//! Emulated devices for measurements: one that runs in another process, and one that records timestamps.

use crate::BenchError;
use daq_emulators::{EmulatedDevice, EmulatedDeviceEntry, Fault, Host, Identity, Step, in_process};
use daq_pipelines::program::companion;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A child process that runs `daq emulate xdma` and ends when its first client disconnects.
pub(super) struct DeviceProcess(Child);

impl DeviceProcess {
    /// Starts the process. Returns when the process listens at `socket`.
    pub(super) fn start(socket: &Path) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Thread(format!("cannot start `daq emulate`: {why}"));
        let child = Command::new(companion("daq"))
            .args(["emulate", "xdma", "--once", "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                failed(format!(
                    "{error}; the program daq must be beside daq-bench or in PATH"
                ))
            })?;
        let mut served = Self(child);
        let is_ready = served.0.stdout.take().is_some_and(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.any(|line| line.starts_with("listening on "))
        });
        if is_ready {
            Ok(served)
        } else {
            Err(failed(
                "the process ended before it opened its socket".to_owned(),
            ))
        }
    }

    /// Returns the process ID as text, for paths below `/proc`.
    pub(super) fn process(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        // The process has already ended if a client connected and disconnected.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The times at which the last bytes of the transfers' payloads were written, one per transfer. Only one timed device
/// runs at a time.
static MARKS: Mutex<Vec<Instant>> = Mutex::new(Vec::new());

/// The registry entry of an emulated XDMA device that records a timestamp after the last byte of each payload, before it
/// reports completion.
pub(super) const TIMED: EmulatedDeviceEntry = EmulatedDeviceEntry {
    name: "timed",
    summary: "XDMA that records when it has written each payload",
    faults: &[],
    build: |options| {
        Ok(Box::new(TimedDevice(daq_emulators::build(
            "xdma", options,
        )?)))
    },
    check_sequence: |_, _| Ok(()),
    open: in_process::open,
};

fn marks() -> MutexGuard<'static, Vec<Instant>> {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves memory for `count` timestamps, so that the measurement allocates no memory.
pub(super) fn reserve_marks(count: usize) {
    *marks() = Vec::with_capacity(count);
}

/// Removes and returns all timestamps in the order of the transfers.
pub(super) fn take_marks() -> Vec<Instant> {
    std::mem::take(&mut *marks())
}

struct TimedDevice(Box<dyn EmulatedDevice>);

/// The host interface of a device that records timestamps.
struct TimedHost<'a>(&'a dyn Host);

/// Size in bytes of the result that XDMA writes after a transfer's payload. Every piece of a payload is larger, so the
/// size identifies the result.
const RESULT_BYTES: usize = 8;

impl Host for TimedHost<'_> {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() == RESULT_BYTES {
            let now = Instant::now();
            marks().push(now);
        }
        self.0.write(address, bytes)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.0.read(address, bytes)
    }

    fn interrupt(&self, vector: u16) {
        self.0.interrupt(vector);
    }
}

impl EmulatedDevice for TimedDevice {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        self.0.read(bar, offset)
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host) {
        self.0.write(bar, offset, value, &TimedHost(host));
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        self.0.step(&TimedHost(host))
    }
}
