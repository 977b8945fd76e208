//! Tests the history of the ledgers over HTTP, that a restarted daemon continues it, and latencies.

use super::sender::Sender;
use daq_testkit::{Daq, Live, ledger, wait_for};
use serde_json::Value;
use std::path::PathBuf;

/// A source that loses packets on the wire, and a reader that blocks its ring.
const LOSSY: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
packet = 1024
pace = "80 Mbit/s"
backpressure = false

[source.adc.faults]
loss = 0.01

[ring.raw]
slot = "16 KiB"
slots = 8

[sink.slow]
driver = "null"
input = "raw"
delay = "20 ms"

[http]
listen = "127.0.0.1:0"
"#;

fn history(live: &mut Live, query: &str) -> Value {
    let answer = live.get(&format!("/history?{query}"));
    assert_eq!(answer.code, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// Returns the sum of a column.
fn total(column: &Value) -> u64 {
    let numbers = column.as_array().into_iter().flatten();
    numbers.filter_map(Value::as_u64).sum()
}

/// Returns the path of the file that keeps the history.
fn file_of(daq: &Daq) -> PathBuf {
    let entries = std::fs::read_dir(daq.path("state/daq")).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_history = |path: &PathBuf| path.to_string_lossy().ends_with(".history.json");
    paths.find(is_history).unwrap()
}

#[test]
fn history_contains_losses_by_cause_and_blocking_reader() {
    let daq = Daq::new(LOSSY);
    let mut live = daq.spawn(&[]);
    let (answer, adc) = wait_for("losses in the history", || {
        let answer = history(&mut live, "span=10m");
        let adc = answer["sources"]["adc"].clone();
        let has = |group: &str, name: &str| total(&adc[group][name]) > 0;
        (has("lost", "wire_gap") && has("lost", "ring_full") && has("blocked", "slow"))
            .then_some((answer, adc))
    });
    let report = live.report();
    // The history was read before the report, and has only complete buckets.
    for (column, path) in [
        ("expected", "sources.adc.expected"),
        ("delivered", "sources.adc.delivered"),
        ("bytes", "sources.adc.bytes"),
    ] {
        let (past, now) = (total(&adc[column]), ledger::count(&report, path));
        assert!(0 < past && past <= now, "{column}: {past} of {now}");
    }
    assert_eq!(adc["expected"].as_array().unwrap().len(), 600);
    assert!(
        adc["expected"][0].is_null(),
        "daq did not run 10 minutes ago"
    );
    assert!(total(&answer["rings"]["raw"]["ring_full"]) > 0);
    assert_eq!(answer["marks"][0]["kind"], "start");
    let sentence = adc["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("losing data: "), "{sentence}");
    assert!(
        sentence.contains("`slow` blocked the full ring"),
        "{sentence}"
    );
    assert!(adc["complete_since"].is_null());
    let _ = live.stop().ok();
}

#[test]
fn restarted_daemon_continues_the_history_of_the_day() {
    let daq = Daq::new(LOSSY);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.ring_full", 1);
    let first = live.stop().ok();
    // The file is complete although the run was shorter than a minute.
    let saved: Value = serde_json::from_slice(&std::fs::read(file_of(&daq)).unwrap()).unwrap();
    let expected = ledger::count(&first.report, "sources.adc.expected");
    assert_eq!(
        total(&saved["minutes"]["sources"]["adc"]["expected"]),
        expected
    );
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.expected", 1);
    let day = history(&mut live, "span=24h");
    let marks = day["marks"].as_array().unwrap();
    let kinds: Vec<_> = marks.iter().map(|mark| mark["kind"].as_str()).collect();
    assert_eq!(kinds, ["start", "stop", "restart"].map(Some));
    live.kill();
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let day = history(&mut live, "span=24h");
    let last = day["marks"].as_array().unwrap().last().unwrap();
    // The killed run was shorter than a minute, so the file is that of the first run.
    assert_eq!(last["kind"], "restart", "{day:#}");
    let _ = live.stop().ok();
}

#[test]
fn damaged_history_is_ignored_with_one_warning() {
    let daq = Daq::new(LOSSY);
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.expected", 1);
    let _ = live.stop().ok();
    let path = file_of(&daq);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&path, bytes).unwrap();
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.expected", 1);
    assert_eq!(history(&mut live, "span=24h")["marks"][0]["kind"], "start");
    let outcome = live.stop().ok();
    let warnings = outcome.stderr.matches("cannot use the history in").count();
    assert_eq!(warnings, 1, "{}", outcome.stderr);
    serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
}

#[test]
fn latencies_are_measured_from_arrival_to_the_end_of_the_sink() {
    let mut sender = Sender::new();
    let daq = Daq::new(&format!(
        r#"{}
[ring.raw]
slot = "4 KiB"
slots = 64

[sink.drop]
driver = "null"
input = "raw"

[http]
listen = "127.0.0.1:0"
"#,
        sender.source("adc", "raw")
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let report = wait_for("measured frames", || {
        sender.send(64);
        let report = live.report();
        let is_measured = |path| ledger::count(&report, path) > 0;
        (is_measured("rings.raw.latency.count") && is_measured("readers.drop.latency.count"))
            .then_some(report)
    });
    for latency in [
        &report["rings"]["raw"]["latency"],
        &report["readers"]["drop"]["latency"],
    ] {
        let us = |key: &str| latency[key].as_f64().unwrap();
        assert!(
            us("p50_us") > 0.0 && us("p50_us") <= us("p99_us"),
            "{latency}"
        );
        assert!(us("p99_us") <= us("max_us"), "{latency}");
    }
    let metrics = live.get("/metrics").body;
    for series in [
        "daq_ring_latency_seconds_bucket{ring=\"raw\",le=\"+Inf\"}",
        "daq_reader_latency_seconds_count{reader=\"drop\",ring=\"raw\"}",
    ] {
        assert!(metrics.contains(series), "{series} is not in\n{metrics}");
    }
    let _ = live.stop().ok();
}
