//! `daq bench fpga`: without a GPU, and on the simulated driver, where every way to a GPU is there.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use daq_tests::{Daq, Simulated};
use serde_json::Value;

const SHORT: [&str; 11] = [
    "bench", "fpga", "--rounds", "1", "--window", "5ms", "--trips", "8", "--frames", "64KiB",
    "--json",
];

fn tables(daq: &Daq) -> Vec<Value> {
    let done = daq.cli(&SHORT).ok();
    let tables: Value = serde_json::from_str(&done.stdout).unwrap();
    tables.as_array().unwrap().clone()
}

/// The row of a way, by the beginning of its name.
fn row<'a>(table: &'a Value, column: &str, name: &str) -> &'a Value {
    let mut rows = table["rows"].as_array().unwrap().iter();
    let found = rows.find(|row| row[column].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("no row {name:?} in {table:#}"))
}

fn moves(table: &Value, way: &str) {
    let row = row(table, "way", way);
    assert!(row["GB/s"].as_f64().unwrap() > 0.0, "{row:#}");
    assert!(row["frames/s"].as_f64().unwrap() > 0.0, "{row:#}");
}

#[test]
fn cards_here_and_in_another_process_fill_host_rings() {
    let tables = tables(&Daq::new("").env("CUDA_VISIBLE_DEVICES", ""));
    for way in ["one thread", "xdma in this", "xdma in another"] {
        moves(&tables[0], way);
    }
    let last = tables.last().unwrap();
    assert_eq!(last["title"], "not measured");
    row(last, "way", "all that goes to a GPU");
}

#[test]
fn cards_fill_rings_on_a_gpu_and_a_kernel_sees_their_frames() {
    let simulated = Simulated::new("").with_gdr("").with_compiler();
    let tables = tables(&simulated.on(Daq::new("")));
    for way in [
        "xdma in another",
        "xdma → host ring",
        "xdma → GPU ring",
        "litepcie",
    ] {
        moves(&tables[0], way);
    }
    for way in ["staged", "direct, the CPU", "direct, the card"] {
        let row = row(&tables[1], "way", way);
        assert!(row["p50"].as_f64().unwrap() > 0.0, "{row:#}");
    }
}
