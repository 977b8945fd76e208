//! Tests of the simulated driver through `cudarc`, which is how daq uses the real driver.

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

/// Environment variable that is set in the process that runs the body of a test.
const ALONE: &str = "DAQ_SIMULATED_CUDA_TEST";

/// Calls [`run_alone`] with the name of the calling test.
macro_rules! alone {
    ($options:expr, $body:expr) => {
        $crate::run_alone($crate::this_test!(), $options, $body)
    };
}
pub(crate) use alone;

/// Calls [`run_and_pass`] with the name of the calling test.
macro_rules! passes {
    ($options:expr, $body:expr) => {
        $crate::run_and_pass($crate::this_test!(), $options, $body)
    };
}
pub(crate) use passes;

/// Returns the name of the calling test.
macro_rules! this_test {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let (_, name) = name.split_once("::").unwrap();
        name.strip_suffix("::here").unwrap()
    }};
}
pub(crate) use this_test;

/// Runs the body of the test `name` in a separate process with the simulated machine of `options`. Returns the result
/// of that process. Returns `None` in that process itself.
fn run_alone(name: &str, options: &str, body: impl FnOnce()) -> Option<Alone> {
    if std::env::var_os(ALONE).is_some() {
        body();
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let executable = std::env::current_exe().unwrap();
    let library = executable.with_file_name("libdaq_simulated_cuda.so");
    assert!(
        library.is_file(),
        "{} must be built together with the tests",
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
    assert!(ran, "test {name} does not exist: {text}");
    Some(Alone {
        output,
        report,
        _dir: dir,
    })
}

/// Runs a body as [`run_alone`] does, and checks that it succeeds. Returns the report.
fn run_and_pass(name: &str, options: &str, body: impl FnOnce()) -> Option<serde_json::Value> {
    let alone = run_alone(name, options, body)?;
    let stderr = String::from_utf8_lossy(&alone.output.stderr);
    assert!(alone.output.status.success(), "{stderr}");
    Some(alone.report())
}

/// The result of a process that has ended.
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
