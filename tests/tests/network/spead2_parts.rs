//! Tests frames of several SPEAD heaps. The sender is PyPI's spead2 with its defaults: items are in the first packet of a heap
//! only, and the first heap of each antenna also contains descriptors.

use daq_testkit::network::Recording;
use daq_testkit::{Daq, Outcome, Python, assert_contains, assert_counts, free_udp_port, python};
use serde_json::json;

const ANTENNAS: u64 = 4;
const FRAMES: u64 = 40;
const HEAP: u64 = 20_000;

/// Receives frames of all antennas with the keys `format`, and compares all bytes. `ports` is the number of ports to which the
/// antennas send. Returns what daq reported.
fn receive(python: &Python, counters: &str, ports: usize, format: &str) -> Outcome {
    let ports: Vec<_> = (0..ports).map(|_| free_udp_port()).collect();
    let listen: Vec<_> = ports
        .iter()
        .map(|port| format!("\"127.0.0.1:{port}\""))
        .collect();
    let format = format.replace("PORTS", &format!("{ports:?}"));
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.array]\ndriver = \"udp\"\nring = \"array\"\nlisten = [{}]\n\
         [source.array.format]\nkind = \"spead\"\n{format}\n\
         [ring.array]\nslot = {}\nslots = 64\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"array\"\npath = \"out\"\nbuffer = \"256 KiB\"\n",
        listen.join(", "),
        ANTENNAS * HEAP,
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let file = daq.path("sent");
    let job = json!({ "ports": ports, "file": file, "antennas": ANTENNAS, "frames": FRAMES, "heap": HEAP, "counters": counters });
    python.run(
        include_str!("../../python/spead2_antennas.py"),
        &[job.to_string()],
    );
    live.wait_count("sinks.disk.frames", FRAMES);
    let outcome = live.stop().ok();
    let sent = std::fs::read(&file).unwrap();
    let received = Recording::read(&daq.path("out"), "disk");
    assert_eq!(
        received.data.len(),
        sent.len(),
        "{:#}\n{}",
        outcome.report,
        outcome.stderr
    );
    assert!(received.data == sent, "{}", outcome.stderr);
    assert_counts!(outcome, "sources.array" =>
        rejected: 0, duplicates: 0, epochs: 1, bytes: sent.len() as u64, expected: outcome.count("sources.array.delivered")
    );
    let parts = outcome.report["sources"]["array"]["parts"]
        .as_object()
        .unwrap();
    assert_eq!(parts.len() as u64, ANTENNAS);
    let packets = outcome.count("sources.array.expected") / ANTENNAS;
    for (name, part) in parts {
        assert_eq!(
            (&part["expected"], &part["lost"]),
            (&json!(packets), &json!(0)),
            "{name}"
        );
    }
    outcome
}

#[test]
fn heaps_of_antennas_form_frames_by_their_items() {
    let format = "heap = 20000\nsamples = \"adc\"\nframe = { item = 0x1600, step = 4096 }\npart = { item = 0x4101, count = 4 }";
    let python = python!("spead2", "numpy");
    let outcome = receive(&python, "mixed", 1, format);
    assert_contains!(outcome.stderr => "detected heap = 20 kB", "20000 bytes at offset 700 of the 20700-byte heap payload");
}

#[test]
fn heaps_with_equal_counters_form_frames_by_their_ports() {
    let format = "heap = 20000\nsamples = 0x4301\npart = { from = \"port\", values = PORTS }";
    let python = python!("spead2", "numpy");
    receive(&python, "own", 4, format);
}

/// Each sender counts its heaps from 1, and all of them send at the same time to the same port.
#[test]
fn heaps_with_equal_counters_form_frames_by_their_senders() {
    let python = python!("spead2", "numpy");
    let format = "heap = 20000\nsamples = \"adc\"\nframe = { item = 0x1600, step = 4096 }\npart = { item = 0x4101, count = 4 }";
    receive(&python, "parallel", 1, format);
}

#[test]
fn wrong_name_of_samples_is_reported_with_the_names_of_the_sender() {
    let python = python!("spead2", "numpy");
    let port = free_udp_port();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.array]\ndriver = \"udp\"\nring = \"array\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.array.format]\nkind = \"spead\"\nsamples = \"acd\"\n\
         [ring.array]\nslot = {HEAP}\nslots = 64\n",
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let job = json!({ "ports": [port], "file": daq.path("sent"), "antennas": 1, "frames": 5, "heap": HEAP, "counters": "own" });
    python.run(
        include_str!("../../python/spead2_antennas.py"),
        &[job.to_string()],
    );
    live.wait_count("sources.array.rejected", 5 * 15);
    let outcome = live.stop();
    assert_contains!(outcome.stderr => "no heap has the item \"acd\"", "\"adc\" (0x4301)");
}
