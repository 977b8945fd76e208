//! Tests that `daq bench` runs the program daq-bench, or names the command that installs it.

use daq_testkit::{Daq, assert_contains, binary};
use std::path::Path;
use std::process::Command;

#[test]
fn benchmarks_are_a_program_of_their_own() {
    let daq = Daq::new("");
    let help = daq.cli(&["bench", "--help"]).ok().stdout;
    let script = daq.cli(&["completions", "bash"]).ok().stdout;
    let list = help.split("Commands:").nth(1).unwrap();
    let list = list.split("Options:").next().unwrap();
    let names = list.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!["", "help"].contains(&name)).then_some(name)
    });
    let names: Vec<_> = names.collect();
    assert!(names.contains(&"tcp"), "{help}");
    assert_contains!(script => &format!("\"{}", names.join(" ")));

    // Beside a copy of daq there is no daq-bench, so PATH decides.
    // Another process copies it: processes that concurrent tests start would inherit the file while it is open for writing, and then
    // it cannot be run.
    let mut copy = Command::new("cp");
    copy.arg(binary()).arg(daq.path("daq"));
    assert!(copy.status().unwrap().success());
    let run = |path: &Path| {
        let output = daq
            .prepare(&mut Command::new(daq.path("daq")))
            .args(["bench", "tcp", "--rounds", "0"])
            .env("PATH", path)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), stderr)
    };
    let (code, stderr) = run(Path::new("/nonexistent"));
    assert_eq!(code, 69, "{stderr}");
    assert_contains!(stderr => "daq-bench", "cargo install --path pipelines/bench");
    let (code, stderr) = run(binary().parent().unwrap());
    assert_eq!(code, 64, "{stderr}");
    assert_contains!(stderr => "the minimum is 1");

    let output = Command::new(binary().with_file_name("daq-bench"))
        .arg("tcp")
        .env("DAQ_BENCH_CALLER_VERSION", "0.0.1")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert_contains!(stderr => "daq has version 0.0.1", "install the same version of both");
}
