//! The state directory, in which counters survive a killed process.

use daq_core::ledger::{CounterFile, CounterFileError, LastRun};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Opens the counter file. If the file cannot be opened, keeps the counters in memory. Also returns the last run if
/// that run ended uncleanly.
pub(super) fn counter_file(directory: Option<&Path>, file: &str) -> (CounterFile, Option<LastRun>) {
    let Some(directory) = directory else {
        tracing::warn!(
            "no state directory (HOME and XDG_STATE_HOME are not set): counters stay in memory and are lost if the process is killed"
        );
        return (CounterFile::in_memory(), None);
    };
    let path = directory.join(file);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let start = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let mut last = None;
    let made = std::fs::create_dir_all(directory)
        .map_err(|source| CounterFileError::File {
            path: directory.to_owned(),
            source,
        })
        .and_then(|()| {
            last = LastRun::read(&path).filter(|last| !last.ended);
            with_retry(|| CounterFile::in_file(&path, std::process::id(), start))
        });
    match made {
        Ok(counter_file) => (counter_file, last),
        Err(error @ CounterFileError::Busy { .. }) => {
            tracing::warn!(
                "{error}; counters of this run stay in memory and are lost if the process is killed"
            );
            (CounterFile::in_memory(), None)
        }
        Err(error) => {
            tracing::warn!(
                "{error}; counters stay in memory and are lost if the process is killed"
            );
            (CounterFile::in_memory(), last)
        }
    }
}

/// Retries to open the file for 1 s, because a process that was just killed may still hold the lock on the file.
fn with_retry(
    open: impl Fn() -> Result<CounterFile, CounterFileError>,
) -> Result<CounterFile, CounterFileError> {
    for _ in 0..20 {
        match open() {
            Err(CounterFileError::Busy { .. }) => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
    open()
}

/// Returns the name of a pipeline's counter file. The name depends on the configuration's path, so that pipelines with
/// the same name in different files use different counter files.
pub(super) fn file_name(pipeline: &str, configuration: &Path) -> String {
    let place = configuration
        .canonicalize()
        .unwrap_or_else(|_| configuration.to_owned());
    // FNV-1a is used because its result is the same on every machine and in every version.
    let hash = place
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{pipeline}-{hash:016x}.ledger")
}

/// Logs the counters of a run that was killed.
pub(super) fn log_last_run(last: &LastRun) {
    tracing::warn!(
        "the last run (process {}) did not end cleanly; its counters were:",
        last.pid
    );
    for (name, source) in last.sources() {
        tracing::warn!("  source {name}: {}", source.loss());
    }
    for line in counted(last) {
        tracing::warn!("  {line}");
    }
}

/// Formats all counters of the last run that are above 0, with one line per component. For gauges, the last value is
/// shown.
fn counted(last: &LastRun) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut owner = "";
    for (name, value) in last.counters.iter().filter(|(_, value)| *value > 0) {
        let (component, counter) = name.rsplit_once('.').unwrap_or(("", name));
        match lines.last_mut() {
            Some(line) if component == owner => line.push_str(&format!(", {counter} {value}")),
            _ => lines.push(format!("{component}: {counter} {value}")),
        }
        owner = component;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::{CopyLedger, KernelLedger, ReaderLedger, RingLedger};

    #[test]
    fn unclean_exit_reports_copies_and_gpus() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("telescope.ledger");
        let counter_file = CounterFile::in_file(&path, 7, 1).unwrap();
        let ring = RingLedger::on(&counter_file, "ring.raw").unwrap();
        let copy = CopyLedger::on(&counter_file, "copy.raw").unwrap();
        let reader = ReaderLedger::on(&counter_file, "reader.copy to raw").unwrap();
        let kernel = KernelLedger::on(&counter_file, "kernel.beam").unwrap();
        ring.published.add(3);
        copy.started.add(5);
        copy.frames.add(3);
        copy.sizes.of(4 << 20).add(2);
        copy.in_flight.set(1);
        reader.leased.set(ReaderLedger::UNLIMITED);
        reader.read.add(3);
        kernel.input.add(3);
        kernel.device.launches.add(2);
        let last = LastRun::read(&path).unwrap();
        assert_eq!(
            counted(&last),
            [
                "ring.raw: published 3",
                "copy.raw: started 5, frames 3, in_flight 1, size_4m 2",
                "reader.copy to raw: read 3",
                "kernel.beam: launches 2, input 3",
            ]
        );
    }
}
