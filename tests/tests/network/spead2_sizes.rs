//! Tests SPEAD heaps that differ in size. The sender is PyPI's spead2 with its defaults.

use daq_testkit::network::Recording;
use daq_testkit::{Daq, assert_contains, assert_counts, free_udp_port, python};
use serde_json::json;

const HEAPS: u64 = 300;
const MAX: u64 = 20_000;

/// Receives heaps of up to [`MAX`] bytes with the keys `format`, and compares all bytes and counts.
fn receive(format: &str, descriptors: &str) {
    let python = python!("spead2", "numpy");
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.detector]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.detector.format]\nkind = \"spead\"\nmax_heap = {MAX}\n{format}\n\
         [ring.raw]\nslots = {HEAPS}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\n",
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let file = daq.path("sent");
    let job = json!({ "port": port, "file": file, "heaps": HEAPS, "max": MAX, "alike": 3, "descriptors": descriptors });
    python.run(
        include_str!("../../python/spead2_sizes.py"),
        &[job.to_string()],
    );
    let is_first_described = descriptors == "default";
    let frames = HEAPS - u64::from(is_first_described);
    live.wait_count("sinks.disk.frames", frames);
    let outcome = live.stop().ok();
    let sent = std::fs::read(&file).unwrap();
    let received = Recording::read(&daq.path("out"), "disk");
    assert!(
        received.data == sent,
        "{:#}\n{}",
        outcome.report,
        outcome.stderr
    );
    assert_counts!(outcome, "sources.detector" =>
        rejected: 0, duplicates: 0, epochs: 1, incomplete: 0, bytes: sent.len() as u64,
        expected: outcome.count("sources.detector.delivered")
    );
    assert_counts!(outcome, "sinks.disk" => frames: frames, bytes: sent.len() as u64);
    assert_contains!(outcome.stderr => "contains descriptors, so it is not a frame");
}

#[test]
fn heaps_of_any_size_are_frames_of_their_own_size() {
    receive("packet = 1432\nfirst = 1416", "own");
}

#[test]
fn packet_sizes_of_heaps_that_differ_in_size_are_detected() {
    receive("", "own");
}

#[test]
fn heap_with_samples_and_descriptors_is_control() {
    receive("", "default");
}

#[test]
fn heaps_that_differ_in_size_are_reported_without_max_heap() {
    let python = python!("spead2", "numpy");
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.detector]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.detector.format]\nkind = \"spead\"\n\
         [ring.raw]\nslot = \"32 KiB\"\nslots = 64\n",
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let job = json!({ "port": port, "file": daq.path("sent"), "heaps": HEAPS, "max": MAX, "alike": 1, "descriptors": "own" });
    python.run(
        include_str!("../../python/spead2_sizes.py"),
        &[job.to_string()],
    );
    let outcome = live.stop();
    assert_contains!(outcome.stderr => "different sizes of up to 20000 bytes: set `max_heap`");
}
