//! The examples in `configs/`: each is valid, and runs where it needs nobody else.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use daq_tests::{Daq, Done, configs, files, repository};
use serde_json::Value;

#[test]
fn every_example_is_valid() {
    let daq = Daq::new("");
    for path in configs() {
        let path = path.to_str().unwrap();
        let _ = daq.cli(&["check", "--no-hardware", path]).ok();
        let done = daq.cli(&["check", path]);
        if !lacks_gpu(path, &done) {
            let _ = done.ok();
        }
    }
}

/// Whether all that is wrong with `path` is that it needs a GPU and there is none.
fn lacks_gpu(path: &str, done: &Done) -> bool {
    let lacks = done.code == 78
        && done.stderr.contains("runs on a GPU only")
        && done.stderr.matches("error: ").count() == 1;
    if lacks {
        let why = done.stderr.lines().next().unwrap_or_default();
        eprintln!("skipped: {path}: {why}");
    }
    lacks
}

#[test]
fn every_example_runs_that_needs_nobody_else() {
    let mut ran = 0;
    for path in configs() {
        let daq = Daq::new(&std::fs::read_to_string(&path).unwrap());
        for code in files(&repository().join("configs/kernels"), ".cu") {
            let name = format!("configs/kernels/{}", code.file_name().unwrap().display());
            daq.write(&name, &std::fs::read_to_string(code).unwrap());
        }
        let done = daq.cli(&["plan", "--json", "daq.toml"]);
        if lacks_gpu(path.to_str().unwrap(), &done) {
            continue;
        }
        let plan: Value = serde_json::from_str(&done.ok().stdout).unwrap();
        let drivers: Vec<_> = plan["sources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|source| &source["driver"])
            .collect();
        if drivers.iter().any(|driver| *driver != "sim") {
            continue;
        }
        let _ = daq.run_a_while(&["--set", "http.listen=127.0.0.1:0"]);
        ran += 1;
    }
    assert!(ran > 0, "no example ran");
}
