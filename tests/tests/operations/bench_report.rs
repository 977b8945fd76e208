//! Opens the reports of benchmarks, and the drawings of the documents, in Chromium without a network.

use super::page::has_browser;
use daq_testkit::{Daq, Simulated, assert_contains, files, repository, skip};
use std::path::PathBuf;
use std::process::Command;

/// Runs `tests/python/charts.py` on the files. The screenshots are in `target/charts`.
fn look(files: &[PathBuf]) {
    let output = Command::new("python3")
        .arg(repository().join("tests/python/charts.py"))
        .arg(repository().join("target/charts"))
        .args(files)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Benchmarks and the title of a chart that each of them draws.
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
fn reports_of_benchmarks_open_without_network() {
    // The benchmark of staging allocates 256 MiB for each ring and for the baseline.
    let simulated = Simulated::new("memory=2GiB").with_gdr("").with_compiler();
    let daq = simulated.on(Daq::new(""));
    let mut reports = Vec::new();
    for (name, line, title) in BENCHMARKS {
        let report = daq.path(&format!("bench-{name}.html"));
        let line = format!("bench {line} --report {}", report.display());
        let done = daq.cli_line(&line).ok();
        let html = std::fs::read_to_string(&report).unwrap();
        assert_contains!(html => title; "{name}: {}", done.stdout);
        assert_contains!(html => "<dt>Linux</dt>"; "{name}");
        // Every printed table is in the report.
        for title in done
            .stdout
            .split("\n\n")
            .filter_map(|table| table.lines().next())
        {
            let title = title.replace('>', "&gt;").replace('\'', "&#39;");
            assert!(html.contains(&title), "{name}: {title}");
        }
        reports.push(report);
    }
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    look(&reports);
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

#[test]
fn report_that_cannot_be_written_fails_before_the_measurement() {
    let daq = Daq::new("");
    let done = daq.cli_line("bench rdma --nics emulated --report missing/out.html");
    assert_eq!((done.code, &*done.stdout), (74, ""));
    assert_contains!(done.stderr => "the directory missing does not exist; create it: mkdir -p missing");
    let done = daq.cli_line("bench rdma --listen 127.0.0.1:0 --report out.html");
    assert_eq!(done.code, 64);
    assert_contains!(done.stderr => "set --report on the side with --to");
}

#[test]
fn failed_benchmark_keeps_the_last_report() {
    let daq = Daq::new("").env("CUDA_VISIBLE_DEVICES", "");
    let report = daq.write("out.html", "the last report");
    assert_eq!(daq.cli_line("bench staging --report out.html").code, 69);
    assert_eq!(std::fs::read_to_string(report).unwrap(), "the last report");
}
