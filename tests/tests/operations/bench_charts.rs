//! Draws pages from the results of benchmarks, and opens them and the drawings of the documents in Chromium without a
//! network.

use super::page::has_browser;
use daq_testkit::{Daq, Python, Simulated, assert_contains, files, repository, skip};
use serde_json::{Value, json};
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

/// Returns a table in the format of `daq bench --json`, with a chart of rows, or with one over sizes, whose largest figure is `largest`.
fn table(largest: f64, over_sizes: bool) -> Value {
    let figures = [
        ("daq", 0.01, 1.0),
        ("other", 0.9, 0.97),
        ("third", 0.3, 0.4),
    ];
    let rows = figures.iter().flat_map(|&(method, p50, p99)| {
        let sizes = if over_sizes { &["64 B", "1 MiB"][..] } else { &["64 B"] };
        let row = move |size| json!({"method": method, "size": size, "p50": p50 * largest, "p99": p99 * largest});
        sizes.iter().map(row)
    });
    let across = over_sizes.then_some("size");
    json!({
        "title": format!("Up to {largest}"),
        "rows": rows.collect::<Vec<_>>(),
        "charts": [{
            "title": format!("Up to {largest}"), "x": across, "methods": ["method"], "figures": ["p50"], "only": [],
            "own": ["daq"], "unit": "us", "better": "lower", "label": across, "ceilings": [],
        }],
    })
}

#[test]
fn figures_of_any_magnitude_are_inside_of_the_drawing() {
    let python = match Python::with(&["matplotlib"]) {
        Ok(python) => python,
        Err(why) => skip!("{why}"),
    };
    if !has_browser() {
        skip!("python3 and Chromium are not installed (Debian packages python3 and chromium)")
    }
    let daq = Daq::new("");
    // The last label of an axis can be near its end, as for 4110 and 10250.
    let largest = [
        0.0, 4e-5, 0.004, 0.9995, 9.99, 83.5, 999.6, 4110.0, 8350.0, 9999.6, 10_250.0, 83_500.0,
        99_999.0, 835_000.0, 999_600.0, 2.5e8,
    ];
    let tables: Value = largest
        .iter()
        .flat_map(|&largest| [table(largest, false), table(largest, true)])
        .collect();
    let result = daq.write("any.json", &tables.to_string());
    let page = daq.path("bench-any.html");
    assert_success(
        &charts(&python)
            .arg("page")
            .args([&result, &page])
            .output()
            .unwrap(),
    );
    let html = std::fs::read_to_string(&page).unwrap();
    for figure in ["40µ", "0.004", "8350", "10k", "83.5k", "100k", "1M", "250M"] {
        assert_contains!(html => &format!(" – {figure}<"));
    }
    look(&[page]);
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
