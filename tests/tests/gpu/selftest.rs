//! Tests `daq selftest gpu`, `daq bench doorbell` and `daq bench copy` on the simulated driver.

use daq_testkit::{Daq, Simulated, assert_contains};
use serde_json::Value;

/// The time limit is long, because kernels on a slow machine may need long to stop.
const PATIENT: [&str; 4] = ["selftest", "gpu", "--limit", "60s"];

fn daq(simulated: &Simulated) -> Daq {
    simulated.on(Daq::new(""))
}

fn with<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more].concat()
}

/// Returns the names that `--list` prints.
fn names() -> Vec<String> {
    let done = Daq::new("").cli(&["selftest", "gpu", "--list", "--json"]);
    let list = done.ok().json();
    let names = list.as_array().unwrap().iter();
    names
        .map(|check| check["check"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn selftest_on_working_memory_passes() {
    let simulated = Simulated::new("").with_gdr("");
    let done = daq(&simulated).cli(&with(&PATIENT, &["--backend", "gdrapi,host", "--json"]));
    let report = done.ok().json();
    assert_eq!(report["failed"], 0, "{report:#}");
    let results = report["results"].as_array().unwrap();
    for (backend, memory) in [
        ("gdrapi", "cuMemAlloc"),
        ("gdrapi", "cuMemCreate"),
        ("host", "backend's own"),
    ] {
        let mut checks = Vec::new();
        for result in results {
            if result["backend"] != backend || result["memory"] != memory {
                continue;
            }
            checks.push(result["check"].as_str().unwrap().to_owned());
            let is_skipped = backend == "host" && result["check"] == "double-map";
            let outcome = if is_skipped { "skipped" } else { "ok" };
            assert_eq!(result["outcome"], outcome, "{result:#}");
            assert_eq!(result["detail"].is_string(), is_skipped, "{result:#}");
        }
        assert_eq!(checks, names(), "{backend}, {memory}");
    }
    assert_eq!(results.len(), 3 * names().len());
    // No call may have blocked while a persistent kernel was running.
    assert_eq!(simulated.report()["blocked"], 0);
}

#[test]
fn selftest_unmappable_memory_is_skipped_with_reason() {
    let simulated = Simulated::new("");
    let all = with(&PATIENT, &["--check", "edges,fork"]);
    let done = daq(&simulated).cli(&with(&all, &["--json"])).ok();
    let report = done.json();
    let results = report["results"].as_array().unwrap();
    let of = |backend: &str| -> Vec<_> {
        let results = results.iter();
        results
            .filter(|result| result["backend"] == backend)
            .collect()
    };
    for backend in ["gdrapi", "dma-buf", "vulkan", "host"] {
        for result in of(backend) {
            let is_map = result["check"] == "map";
            assert_eq!(result["outcome"] == "skipped", is_map, "{result:#}");
            assert_ne!(result["detail"].as_str(), Some(""), "{result:#}");
        }
    }
    assert_eq!(of("host").len(), 2);
    let kinds = of("dma-buf");
    assert_eq!(
        (&kinds[0]["memory"], &kinds[1]["memory"]),
        (&"cuMemAlloc".into(), &"cuMemCreate".into())
    );
    let text = daq(&simulated).cli(&all).ok().stdout;
    assert_contains!(text =>
        "  ok       edges               host, backend's own\n",
        "  ok       fork                host, backend's own\n",
        "  skipped  map                 vulkan, backend's own ", "2 ok, 0 failed, "
    );
}

/// If a kernel ends with an error, the report must name the failed check, and the exit code must be set.
#[test]
fn selftest_failure_is_named() {
    let simulated = Simulated::new("fail-async=launch@1:700");
    let done = daq(&simulated).cli(&with(
        &PATIENT,
        &["--backend", "host", "--check", "persistent-stop,data"],
    ));
    assert_eq!(done.code, 1, "{done:?}");
    let failed = "  FAILED   persistent-stop     host, backend's own   expected no error, got: ";
    assert!(done.stdout.contains(failed), "{done:?}");
    assert!(done.stdout.contains("  ok       data "), "{done:?}");
}

/// If a kernel does not stop, only its own check fails.
#[test]
fn selftest_after_leaked_device_skips_rest() {
    let simulated = Simulated::new("hang=launch@1");
    let checks = [
        "--backend",
        "host",
        "--check",
        "kernel-sees,persistent-stop,data,lost",
    ];
    let done = daq(&simulated).cli(&with(&with(&PATIENT, &checks), &["--json"]));
    assert_eq!(done.code, 1, "{done:?}");
    let report = done.json();
    let results: Vec<_> = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["check"].as_str(), result["outcome"].as_str()))
        .collect();
    assert_eq!(
        results,
        [
            (Some("data"), Some("ok")),
            (Some("kernel-sees"), Some("failed")),
            (Some("persistent-stop"), Some("skipped")),
            (Some("lost"), Some("ok")),
        ]
    );
    let why = report["results"][2]["detail"].as_str().unwrap();
    assert_contains!(why => "lost during check kernel-sees with host");
}

#[test]
fn selftest_without_gpu_checks_nothing() {
    for simulated in [Simulated::new("gpus=0"), Simulated::new("no-init=100")] {
        for arguments in [
            &["selftest", "gpu"][..],
            &["bench", "doorbell"],
            &["bench", "copy", "--mode", "mapping"],
            &["bench", "copy", "--mode", "launch"],
            &["bench", "persistent"],
        ] {
            let done = daq(&simulated).cli(arguments);
            assert_eq!(done.code, 69, "{done:?}");
            assert!(done.stderr.starts_with("error: "), "{done:?}");
        }
    }
}

#[test]
fn selftest_unknown_check_is_rejected() {
    let done = Daq::new("").cli(&["selftest", "gpu", "--check", "dta"]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.contains("word-order"), "{done:?}");
}

#[test]
fn bench_copy_rejects_options_of_other_modes() {
    for (mode, option, value) in [
        ("bandwidth", "--kernels", "2"),
        ("latency", "--bursts", "9"),
        ("mapping", "--stores", "4 B"),
        ("launch", "--sizes", "4 KiB"),
    ] {
        let done = Daq::new("").cli(&["bench", "copy", "--mode", mode, option, value]);
        assert_eq!(done.code, 64, "{done:?}");
        let error = format!("error: {option} has no effect with --mode {mode}; ");
        assert!(done.stderr.starts_with(&error), "{done:?}");
    }
}

/// Returns the rows of the table whose title contains `title`.
fn rows<'a>(tables: &'a Value, title: &str) -> &'a Vec<Value> {
    let mut tables = tables.as_array().unwrap().iter();
    let has_title = |table: &&Value| table["title"].as_str().unwrap().contains(title);
    let table = tables.find(has_title).unwrap();
    table["rows"].as_array().unwrap()
}

#[test]
fn bench_doorbell_reports_round_trips_by_path_and_kernel() {
    let simulated = Simulated::new("").with_gdr("");
    let arguments = ["bench", "doorbell", "--rounds", "2", "--round-trips", "16"];
    let sizes = ["--sizes", "64 B", "--frames", "100 B", "--json"];
    let done = daq(&simulated).cli(&with(&arguments, &sizes));
    let tables = done.ok().json();
    let figure = |row: &Value, column: &str| {
        row[column]
            .as_f64()
            .unwrap_or_else(|| panic!("{column}: {row:#}"))
    };
    let trips = rows(&tables, "microseconds from a CPU store");
    let methods: Vec<_> = trips
        .iter()
        .map(|row| format!("{}: {}", row["method"], row["kernel"]).replace('"', ""))
        .collect();
    assert_eq!(
        methods,
        [
            "doorbell by gdrapi: acquire, release",
            "doorbell by gdrapi: acquire",
            "doorbell by gdrapi: relaxed",
            "doorbell by gdrapi: 4 warps",
            "doorbell in host memory: acquire, release",
            "doorbell in host memory: acquire",
            "doorbell in host memory: relaxed",
            "doorbell in host memory: 4 warps",
            "empty launch + synchronise: –",
            "copy of 8 bytes + launch + synchronise: –",
            "cuStreamWriteValue32 + synchronise: –",
        ]
    );
    for row in &trips[..10] {
        assert!(figure(row, "p50") > 0.0 && figure(row, "p50") <= figure(row, "p99"));
        assert!(figure(row, "p99") <= figure(row, "p99.9"));
        assert!(figure(row, "p99 ÷ p50") >= 1.0 && figure(row, "× host p50") > 0.0);
    }
    // The simulated driver does not support the call.
    assert!(trips[10]["p50"].is_null(), "{:#}", trips[10]);
    let refused = rows(&tables, "no doorbell");
    let refused: Vec<_> = refused
        .iter()
        .map(|row| row["reason"].as_str().unwrap().split(':').next().unwrap())
        .collect();
    assert_eq!(refused, ["dma-buf", "vulkan"]);
    let ratios = rows(&tables, "for each doorbell");
    assert!(figure(&ratios[0], "÷ host memory") > 0.0);
    assert_eq!(ratios[1]["÷ host memory"], 1.0);
    for (title, methods) in [
        (
            "a kernel reads the frame and replies",
            [
                "stores and doorbell by gdrapi",
                "copy + launch + synchronise",
            ],
        ),
        (
            "until CPU stores",
            ["stores by gdrapi", "cuMemcpyHtoDAsync + synchronise"],
        ),
    ] {
        let rows = rows(&tables, title);
        let reported: Vec<_> = rows
            .iter()
            .map(|row| row["method"].as_str().unwrap())
            .collect();
        assert_eq!(reported, methods);
        assert!(rows.iter().all(|row| figure(row, "p50") > 0.0));
    }
    let rates = rows(&tables, "million frames");
    let batches: Vec<_> = rates
        .iter()
        .map(|row| figure(row, "frames per doorbell"))
        .collect();
    assert_eq!(batches, [1.0, 8.0, 32.0, 128.0]);
    assert!(rates.iter().all(|row| figure(row, "million/s") > 0.0));
    assert_eq!(simulated.report()["blocked"], 0);
}

/// Arguments of a short `bench persistent`.
const PERSISTENT: &str = "bench persistent --rounds 1 --round-trips 20 --window 60ms --frames 64B";

#[test]
fn bench_persistent_measures_runtime() {
    let simulated = Simulated::new("memory=1GiB").with_gdr("").with_compiler();
    let done = daq(&simulated).cli_line(&format!("{PERSISTENT} --json"));
    let tables = done.ok().json();
    assert_eq!(tables.as_array().unwrap().len(), 4, "{tables:#}");
    let text = |rows: &[Value], column: &str| -> Vec<String> {
        let texts = rows.iter().map(|row| row[column].as_str().unwrap());
        texts.map(str::to_owned).collect()
    };
    let is_there = |rows: &[Value], column: &str| {
        for row in rows {
            let figure = row[column].as_f64();
            assert!(
                figure.is_some_and(|figure| figure >= 0.0),
                "{column}: {row:#}"
            );
        }
    };
    let trips = rows(&tables, "from a frame's commit to its result");
    assert_eq!(text(trips, "frame"), ["64 B"; 3]);
    assert_eq!(
        text(trips, "method"),
        [
            "persistent, one thread",
            "persistent, two threads",
            "copy + launch + synchronise",
        ]
    );
    for column in ["p50", "p99", "p99.9", "÷ copy + launch"] {
        is_there(trips, column);
    }
    is_there(&trips[..1], "host part");
    assert!(trips[1]["host part"].is_null(), "{:#}", trips[1]);
    let beside = rows(&tables, "copied at full rate");
    assert_eq!(
        text(&beside[1..], "longest chunk"),
        ["1 MiB", "512 KiB", "256 KiB"]
    );
    for column in [
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "copies GB/s",
        "alone GB/s",
        "÷ best",
    ] {
        is_there(beside, column);
    }
    let rates = rows(&tables, "million frames");
    let numbers = |column: &str| -> Vec<f64> {
        let numbers = rates.iter().map(|row| row[column].as_f64().unwrap());
        numbers.collect()
    };
    assert_eq!(numbers("kernels"), [1.0, 1.0, 1.0, 1.0, 2.0, 4.0]);
    assert_eq!(
        numbers("concurrent frames"),
        [1.0, 8.0, 32.0, 64.0, 8.0, 8.0]
    );
    is_there(rates, "million/s");
    assert_eq!(simulated.report()["blocked"], 0);
}

/// If the runtime fails, the reason is printed instead of results. Earlier measurements are still printed.
#[test]
fn bench_persistent_failure_replaces_figures() {
    // The kernel fails in the frames that another thread publishes.
    let simulated = Simulated::new("memory=1GiB,fail-async=persistent@60:700")
        .with_gdr("")
        .with_compiler();
    let done = daq(&simulated).cli_line(PERSISTENT);
    assert_eq!(done.code, 69, "{done:?}");
    assert!(
        done.stderr.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{done:?}"
    );
    assert!(!done.stdout.contains("simulated"), "{done:?}");
}

#[test]
fn bench_copy_reports_mapping_cost_by_step() {
    let simulated = Simulated::new("");
    let arguments = [
        "bench", "copy", "--mode", "mapping", "--rounds", "2", "--json",
    ];
    let done = daq(&simulated).cli(&with(&arguments, &["--sizes", "64 KiB,1 MiB"]));
    let tables = done.ok().json();
    let made = rows(&tables, "milliseconds to allocate");
    let bytes: Vec<_> = made
        .iter()
        .map(|row| (row["backend"].as_str(), row["bytes"].as_str()))
        .collect();
    assert_eq!(
        bytes,
        [
            (Some("host"), Some("64 KiB")),
            (Some("host"), Some("1 MiB"))
        ]
    );
    for step in ["allocate", "pin", "map", "all", "unmap + free"] {
        assert!(made[0][step].is_number(), "{step}: {:#}", made[0]);
    }
    let refused = rows(&tables, "allocations that failed");
    assert_eq!(refused.len(), 3, "{refused:#?}");
    assert!(refused.iter().all(|row| row["smallest size"] == "64 KiB"));
}
