//! Tests `daq selftest rdma` and `daq bench rdma` with emulated NICs, without a GPU and with the simulated driver.

use daq_testkit::{Daq, Done, Simulated, assert_contains};
use serde_json::{Value, json};

const SOFTWARE: [&str; 5] = ["selftest", "rdma", "--nics", "emulated", "--json"];

/// Returns the result and the details of the check with this name.
fn outcome<'a>(report: &'a Value, check: &str) -> (&'a str, &'a str) {
    let mut results = report["results"].as_array().unwrap().iter();
    let found = results.find(|result| result["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no check {check} in {report:#}"));
    (
        found["outcome"].as_str().unwrap(),
        found["detail"].as_str().unwrap(),
    )
}

/// Checks that do not need a GPU.
const HOST: [&str; 9] = [
    "port",
    "register-host",
    "write-host",
    "send",
    "wrong-key",
    "no-receive",
    "reconnect",
    "unreliable",
    "stream-host",
];

#[test]
fn selftest_on_emulated_nic_passes() {
    let report = Daq::new("")
        .env("CUDA_VISIBLE_DEVICES", "")
        .cli(&SOFTWARE)
        .ok()
        .json();
    for check in HOST {
        assert_eq!(outcome(&report, check).0, "ok", "{report:#}");
    }
    for check in ["register-dma-buf", "write-to-gpu", "stream-direct"] {
        let (outcome, why) = outcome(&report, check);
        assert_eq!(outcome, "skipped", "{report:#}");
        assert!(why.contains("no GPU"), "{why}");
    }
    let (_, text) = outcome(&report, "stream-host");
    assert!(text.contains("no loss in "), "{text}");
    assert_eq!(report["failed"], 0, "{report:#}");
    assert!(!report["findings"].as_array().unwrap().is_empty());
}

#[test]
fn selftest_gpu_memory_refused_by_nic_is_reported() {
    let simulated = Simulated::new("").with_gdr("");
    let done = simulated.on(Daq::new("")).cli_line(
        "selftest rdma --nics emulated?dma-buf=95 \
         --check register-gpu,register-dma-buf,write-to-gpu,stream-staged --json",
    );
    let report = done.ok().json();
    for check in ["register-gpu", "register-dma-buf", "write-to-gpu"] {
        let (outcome, why) = outcome(&report, check);
        assert_eq!(outcome, "skipped", "{report:#}");
        assert!(!why.contains("no GPU"), "{why}");
    }
    let (_, why) = outcome(&report, "register-gpu");
    assert!(why.contains("nvidia-peermem"), "{why}");
    assert_eq!(outcome(&report, "stream-staged").0, "ok", "{report:#}");
}

#[test]
fn selftest_on_failing_nic_fails() {
    let arguments = "selftest rdma --nics emulated?down --check port,send --json";
    let done = Daq::new("").cli_line(arguments);
    assert_eq!(done.code, 1, "{done:?}");
    let report = done.json();
    for check in ["port", "send"] {
        let (outcome, why) = outcome(&report, check);
        assert_eq!(outcome, "failed", "{report:#}");
        assert!(why.contains("down"), "{why}");
    }
}

/// Returns a row of a table by its first column.
fn row<'a>(table: &'a Value, name: &str) -> &'a Value {
    let mut rows = table["rows"].as_array().unwrap().iter();
    let found = rows.find(|row| row["method"] == name);
    found.unwrap_or_else(|| panic!("no row {name:?} in {table:#}"))
}

/// Returns why a path was not measured. Each reason is printed once, with all paths to which it applies.
fn refusal<'a>(tables: &'a [Value], method: &str) -> &'a str {
    let last = tables.last().unwrap();
    assert_eq!(last["title"], "not measured");
    let mut rows = last["rows"].as_array().unwrap().iter();
    let found = rows.find(|row| {
        row["methods"]
            .as_str()
            .unwrap()
            .split("; ")
            .any(|one| one == method)
    });
    let found = found.unwrap_or_else(|| panic!("{method:?} is not listed as refused in {last:#}"));
    found["reason"].as_str().unwrap()
}

const SHORT: &str =
    "bench rdma --nics emulated --rounds 1 --window 5ms --round-trips 8 --sizes 64B,64KiB --json";

/// Returns the tables that were printed.
fn tables(done: &Done) -> Vec<Value> {
    done.json().as_array().unwrap().clone()
}

#[test]
fn bench_rdma_both_sides_local_measures() {
    let done = Daq::new("")
        .env("CUDA_VISIBLE_DEVICES", "")
        .cli_line(SHORT)
        .ok();
    let tables = tables(&done);
    for method in ["queue pair alone, host → host", "ring to ring, host → host"] {
        let row = row(&tables[0], method);
        assert!(row["MB/s"].as_f64().unwrap() > 0.0, "{row:#}");
        assert!(row["× queue pair alone"].as_f64().unwrap() > 0.0, "{row:#}");
    }
    let times = row(&tables[1], "queue pair alone, host → host");
    let [p50, p99] = ["p50 µs", "p99 µs"].map(|name| times[name].as_f64().unwrap());
    assert!(p50 > 0.0 && p99 >= p50, "{times:#}");
    let why = refusal(&tables, "queue pair alone, host → GPU");
    assert!(why.contains("CUDA"), "{why}");
}

#[test]
fn bench_rdma_gpu_refused_by_nic_is_staged() {
    let simulated = Simulated::new("").with_gdr("");
    let tables = tables(&simulated.on(Daq::new("")).cli_line(SHORT).ok());
    for ends in ["host → GPU", "GPU → host", "GPU → GPU"] {
        let row = row(&tables[0], &format!("ring to ring, {ends}, staged"));
        assert!(row["MB/s"].as_f64().unwrap() > 0.0, "{row:#}");
    }
    refusal(&tables, "queue pair alone, host → GPU");
    refusal(&tables, "ring to ring, GPU → GPU, direct");
}

#[test]
fn bench_rdma_unmeasured_result_is_not_saved() {
    let simulated = Simulated::new("").with_gdr("");
    let daq = simulated.on(Daq::new(""));
    let kept = daq.cli_line(&format!("{SHORT} --keep"));
    assert_eq!(kept.code, 69, "{kept:?}");
    assert!(kept.stderr.contains("nothing to keep"), "{kept:?}");
}

/// The properties on which the measurement of an emulated NIC depends, if no module lets NICs access GPU memory.
const BASIS: &str = "?|firmware ?|peer memory false";

/// The path of the sink's frames must depend on the frame size from which host memory was measured as faster.
#[test]
fn bench_rdma_saved_result_selects_sink_path() {
    let simulated = Simulated::new("");
    let daq = simulated.on(Daq::new(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = 4096\n\
         samples = { type = \"float32\" }\n\
         [ring.raw]\nmemory = \"cuda:0\"\nslot = 4096\nslots = 16\n\
         [kernel.more]\nuse = \"convert\"\ninput = \"raw\"\noutput = \"made\"\n\
         [ring.made]\nmemory = \"cuda:0\"\nslots = 16\n\
         [sink.far]\ndriver = \"stream\"\ntransport = \"rdma\"\ninput = \"made\"\nto = \"127.0.0.1:7471\"\nnics = [\"emulated\"]\n",
    ));
    let state = daq.path("state");
    let state = state.to_str().unwrap();
    let _ = daq.cli(&["tune", "--state-dir", state]).ok();
    let file = format!("{state}/staging.json");
    let mut known: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut planned = |card: Option<Value>| {
        let known_of =
            |from: &Value| json!({ "staged_from": from, "max_bytes": 1 << 20, "basis": BASIS });
        for (_, profile) in known["gpus"].as_object_mut().unwrap() {
            let cards = card
                .iter()
                .map(|from| ("emulated".to_owned(), known_of(from)));
            profile["cards"] = cards.collect();
        }
        std::fs::write(&file, known.to_string()).unwrap();
        let plan = daq
            .cli(&["plan", "daq.toml", "--json", "--state-dir", state])
            .ok()
            .json();
        let sink = &plan["sinks"][0];
        (sink["input"].as_str().unwrap().to_owned(), plan)
    };
    let (input, plan) = planned(None);
    assert_eq!(input, "made@host", "{plan:#}");
    assert_contains!(plan.to_string() => "daq bench rdma --keep");
    assert_eq!(planned(Some(4096.into())).0, "made@host");
    let (input, plan) = planned(Some(8192.into()));
    assert_eq!(input, "made");
    let why = plan["sinks"][0]["notes"][0].as_str().unwrap();
    assert!(why.contains("only for frames of 8 KiB or more"), "{why}");
    assert_eq!(planned(Some(Value::Null)).0, "made");
}
