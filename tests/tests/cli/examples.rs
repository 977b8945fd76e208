//! Tests the examples in `configs/`. Each must be valid, and must run if it needs no other host.

use daq_testkit::{Daq, Done, assert_counts, configs, files, repository};
use serde_json::Value;
use std::net::TcpListener;

#[test]
fn examples_all_pass_check() {
    let daq = Daq::new("");
    write_kernels(&daq);
    for path in configs() {
        let path = path.to_str().unwrap();
        let _ = daq.cli(&["check", "--no-hardware", path]).ok();
        let done = daq.cli(&["check", path]);
        if !lacks_gpu(path, &done) {
            let _ = done.ok();
        }
    }
}

/// Writes the kernels of the examples to the paths that the examples name.
fn write_kernels(daq: &Daq) {
    for code in files(&repository().join("configs/kernels"), ".cu") {
        let name = format!("configs/kernels/{}", code.file_name().unwrap().display());
        daq.write(&name, &std::fs::read_to_string(code).unwrap());
    }
}

/// Returns whether the missing GPU is the only error of `path`.
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
fn examples_without_peer_run() {
    let mut ran = 0;
    for path in configs() {
        let daq = Daq::new(&std::fs::read_to_string(&path).unwrap());
        write_kernels(&daq);
        let done = daq.cli(&["plan", "--json", "daq.toml"]);
        if lacks_gpu(path.to_str().unwrap(), &done) {
            continue;
        }
        let plan: Value = serde_json::from_str(&done.ok().stdout).unwrap();
        let drivers = |kind: &str| -> Vec<Value> {
            let all = plan[kind].as_array().unwrap().iter();
            all.map(|one| one["driver"].clone()).collect()
        };
        let needs_a_sender = drivers("sources").iter().any(|driver| *driver != "sim");
        let needs_a_receiver = drivers("sinks").iter().any(|driver| *driver == "stream");
        // The sink `udp` needs no receiver.
        if needs_a_sender || needs_a_receiver {
            continue;
        }
        let _ = daq.run_a_while(&["--set", "http.listen=127.0.0.1:0"]);
        ran += 1;
    }
    assert!(ran > 0, "no example ran");
}

#[test]
fn examples_stream_pair_connects() {
    let read =
        |name: &str| std::fs::read_to_string(repository().join("configs").join(name)).unwrap();
    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let http = ["--set", "http.listen=127.0.0.1:0", "--set"];
    let receiver = Daq::new(&read("stream-receive.toml"));
    let listen = format!("source.antenna.listen={address}");
    let mut received = receiver.spawn(&[&http[..], &[&listen]].concat());
    received.wait_log("serving");
    let sender = Daq::new(&read("stream-send.toml"));
    let to = format!("sink.remote.to={address}");
    let sent = sender
        .run(&[&http[..], &[&to, "--frames", "voltages=20"]].concat())
        .ok();
    let frames = sent.count("sinks.remote.frames");
    assert!(frames >= 20, "{:#}", sent.report);
    received.wait_count("sinks.voltages-on-disk.frames", frames);
    let outcome = received.stop().ok();
    assert_counts!(outcome, "sources.antenna" => delivered: frames);
}
