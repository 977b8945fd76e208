//! Tests `daq bench fpga`, without a GPU and with the simulated driver, on which every path to a GPU exists.

use daq_testkit::{Daq, Simulated};
use serde_json::Value;

const SHORT: &str = "bench fpga --rounds 1 --window 5ms --round-trips 8 --frames 64KiB --json";

fn tables(daq: &Daq) -> Vec<Value> {
    let done = daq.cli_line(SHORT).ok();
    let tables = done.json();
    tables.as_array().unwrap().clone()
}

/// Returns the row whose name starts with `name`.
fn row<'a>(table: &'a Value, column: &str, name: &str) -> &'a Value {
    let mut rows = table["rows"].as_array().unwrap().iter();
    let found = rows.find(|row| row[column].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("no row {name:?} in {table:#}"))
}

fn is_measured(table: &Value, method: &str) -> bool {
    let row = row(table, "method", method);
    let mut figures = ["GB/s", "frames/s"].iter();
    figures.all(|name| row[*name].as_f64().is_some_and(|figure| figure > 0.0))
}

fn moves(tables: &[Value], method: &str) {
    // The last table lists what was not measured, with the reasons.
    let (first, last) = (&tables[0], &tables[tables.len() - 1]);
    assert!(is_measured(first, method), "{method}: {first:#}\n{last:#}");
}

#[test]
fn bench_fpga_host_rings_are_measured() {
    let tables = tables(&Daq::new("").env("CUDA_VISIBLE_DEVICES", ""));
    for method in ["baseline copy", "xdma in this", "xdma in another"] {
        moves(&tables, method);
    }
    let last = tables.last().unwrap();
    assert_eq!(last["title"], "not measured");
    row(last, "methods", "all methods that use a GPU");
}

#[test]
fn bench_fpga_gpu_rings_and_kernel_are_measured() {
    let simulated = Simulated::new("").with_gdr("").with_compiler();
    let daq = simulated.on(Daq::new(""));
    // LitePCIe does not support backpressure. If other programs use the CPU, the device may overwrite every frame, so
    // try several times.
    let mut attempts = (0..8).map(|_| tables(&daq));
    let is_complete = |tables: &Vec<Value>| is_measured(&tables[0], "litepcie");
    let tables = attempts.find(is_complete);
    let tables = tables.expect("LitePCIe was not measured in eight attempts");
    for method in [
        "xdma in another",
        "xdma → host ring",
        "xdma → GPU ring",
        "litepcie",
    ] {
        moves(&tables, method);
    }
    for method in ["staged", "direct, the CPU", "direct, the card"] {
        let row = row(&tables[1], "method", method);
        assert!(row["p50"].as_f64().unwrap() > 0.0, "{row:#}");
    }
}
