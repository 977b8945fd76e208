//! Draws pages from the results of benchmarks, and opens them and the drawings of the documents in Chromium without a
//! network.

use super::page::has_browser;
use daq_testkit::{Daq, Python, Simulated, assert_contains, files, repository, skip};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs `tests/python/charts.py` on the files. The screenshots are in `target/charts`.
fn look(files: &[PathBuf]) {
    let output = Command::new("python3")
        .arg(repository().join("tests/python/charts.py"))
        .arg(repository().join("target/charts"))
        .args(files)
        .output()
        .unwrap();
    assert_success(&output);
}

fn assert_success(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

/// Returns the command that draws charts.
fn charts(python: &Python) -> Command {
    let mut command = Command::new(python.path());
    command.arg(repository().join("pipelines/bench/charts.py"));
    command
}

/// Benchmarks and the title of a chart of each.
const BENCHMARKS: [(&str, &str, &str); 6] = [
    (
        "staging",
        "staging --rounds 1 --window 5ms --rings 1 --frames 64KiB,1MiB",
        "Copies to the GPU",
    ),
    (
        "copy",
        "copy --mode latency --rounds 1 --window 5ms --stores 64B,4KiB --sizes 64B,4KiB,64KiB",
        "Copies of single frames to the GPU",
    ),
    (
        "doorbell",
        "doorbell --rounds 1 --round-trips 200",
        "From a CPU store to the answer of the GPU",
    ),
    (
        "fpga",
        "fpga --rounds 1 --window 5ms --round-trips 30 --frames 64KiB,1MiB",
        "From the last byte of a payload to a persistent kernel",
    ),
    (
        "rdma",
        "rdma --rounds 1 --window 5ms --round-trips 100 --nics emulated --sizes 64B,4KiB,1MiB",
        "Latency of queue pairs: half a round trip",
    ),
    (
        "tcp",
        "tcp --rounds 1 --window 5ms --connections 2 --sizes 64B,4KiB,1MiB",
        "Throughput over TCP",
    ),
];

#[test]
fn pages_of_benchmarks_open_without_network() {
    let python = match Python::with(&["matplotlib"]) {
        Ok(python) => python,
        Err(why) => skip!("{why}"),
    };
    // The benchmark of staging allocates 256 MiB for each ring and for the baseline.
    let simulated = Simulated::new("memory=2GiB").with_gdr("").with_compiler();
    let daq = simulated.on(Daq::new(""));
    let mut pages = Vec::new();
    for (name, line, chart) in BENCHMARKS {
        let done = daq.cli_line(&format!("bench {line} --json")).ok();
        let result = daq.write(&format!("{name}.json"), &done.stdout);
        let page = daq.path(&format!("bench-{name}.html"));
        let mut command = charts(&python);
        assert_success(&command.arg("page").args([&result, &page]).output().unwrap());
        let html = std::fs::read_to_string(&page).unwrap();
        assert_contains!(html => &format!("<title>{chart}</title>"); "{name}: {}", done.stdout);
        for table in done.json().as_array().unwrap() {
            let title = table["title"].as_str().unwrap();
            let title = title.replace('>', "&gt;").replace('\'', "&#x27;");
            assert_contains!(html => &format!("<h2>{title}</h2>"); "{name}");
        }
        pages.push(page);
    }
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    look(&pages);
}

#[test]
fn drawings_of_documents_equal_the_tables() {
    let python = match Python::with(&["matplotlib"]) {
        Ok(python) => python,
        Err(why) => skip!("{why}"),
    };
    let mut command = charts(&python);
    assert_success(&command.args(["benchmarks", "--check"]).output().unwrap());
}

#[test]
fn drawings_of_documents_are_readable_in_all_sizes() {
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    let drawings = files(&repository().join("docs/src/images"), ".svg");
    assert!(drawings.len() >= 8, "{drawings:?}");
    look(&drawings);
}
