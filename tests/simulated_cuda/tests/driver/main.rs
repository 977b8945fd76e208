//! The simulated driver, exercised through `cudarc` as daq exercises the real one.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod copies;
mod faults;
mod machine;
mod memory;
mod modules;
mod persistent;
mod safe;
mod streams;
mod sys;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Set in the process that runs the body of a test.
const ALONE: &str = "DAQ_SIMULATED_CUDA_TEST";

/// Runs the body of the test `name` in its own process, on the machine of `options`. Returns the result of that
/// process; nothing in that process itself.
fn alone(name: &str, options: &str, body: impl FnOnce()) -> Option<Alone> {
    if std::env::var_os(ALONE).is_some() {
        body();
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let executable = std::env::current_exe().unwrap();
    let library = executable.with_file_name("libdaq_simulated_cuda.so");
    assert!(
        library.is_file(),
        "{} is built with the tests",
        library.display()
    );
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&library, dir.path().join(name)).unwrap();
    }
    let report = dir.path().join("report.json");
    let output = Command::new(executable)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .env("LD_LIBRARY_PATH", dir.path())
        .env("DAQ_SIMULATED_CUDA", options)
        .env("DAQ_SIMULATED_CUDA_REPORT", &report)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let ran = text.contains("running 1 test") || !output.status.success();
    assert!(ran, "there is no test {name}: {text}");
    Some(Alone {
        output,
        report,
        _dir: dir,
    })
}

/// Like [`alone`], and the body must succeed. Returns the report.
fn passes(name: &str, options: &str, body: impl FnOnce()) -> Option<serde_json::Value> {
    let alone = alone(name, options, body)?;
    let stderr = String::from_utf8_lossy(&alone.output.stderr);
    assert!(alone.output.status.success(), "{stderr}");
    Some(alone.report())
}

/// A process that has ended.
struct Alone {
    output: Output,
    report: PathBuf,
    _dir: tempfile::TempDir,
}

impl Alone {
    fn report(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(&self.report).unwrap()).unwrap()
    }
}
