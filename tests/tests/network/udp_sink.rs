//! Tests the sink `udp`. PyPI's `spead2`, a second daq, and tcpdump receive its packets.

use crate::veth::{FAR, NEAR, ip, wire};
use daq_testkit::network::recording;
use daq_testkit::{
    Daq, Live, Outcome, assert_contains, assert_counts, free_udp_port, program, python, skip,
    wait_until,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const RECEIVE: &str = include_str!("../../python/spead2_receive.py");

/// Frames that the sink sends, and which a sink `file` writes too.
struct Sent {
    frames: u64,
    slot: usize,
    /// Additional keys of the source.
    source: &'static str,
}

const PLAIN: Sent = Sent {
    frames: 40,
    slot: 65536,
    source: "samples = { type = \"int16\", channels = 4 }\nnoise = 0.1\npacket = \"2 KiB\"",
};

impl Sent {
    /// Returns a source, its ring, a sink `disk`, and the sink `tx` with `sink`.
    fn config(&self, sink: &str) -> String {
        let Self {
            frames,
            slot,
            source,
        } = self;
        format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npace = \"free\"\n\
             frames = {frames}\n{source}\n[ring.raw]\nmemory = \"host\"\nslot = {slot}\nslots = 16\n\
             [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"256 KiB\"\n\
             [sink.tx]\ndriver = \"udp\"\ninput = \"raw\"\n{sink}\n"
        )
    }

    /// Sends all frames. Returns the bytes of all frames and the outcome, whose ledger must balance.
    fn send(&self, sink: &str) -> (Vec<u8>, Outcome) {
        let daq = Daq::new(&self.config(sink));
        let outcome = daq.run(&[]).ok();
        let data = daq.data("out");
        (data, outcome)
    }
}

fn sink_count(outcome: &Outcome, key: &str) -> u64 {
    outcome.count(&format!("sinks.tx.{key}"))
}

/// Reads the line `ready` of a script, and returns the reader of its output.
fn ready(child: &mut Child) -> BufReader<impl Read + use<>> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    output
}

fn result(mut output: BufReader<impl Read>, mut child: Child) -> Value {
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"))
}

#[test]
fn spead2_receives_heaps_with_default_settings() {
    let python = python!("spead2", "numpy");
    let directory = tempfile::tempdir().unwrap();
    for (name, source, format, kinds, has_time) in [
        (
            "int16",
            PLAIN.source,
            "",
            json!([["<i2", "(8192, 4)"]]),
            false,
        ),
        (
            "planar",
            "samples = { type = \"float32\", channels = 4, order = \"planar\", rate = \"1 MHz\" }\nnoise = 0.1",
            "address_bits = 48\ntimestamp = { item = 0x1600, tick = \"1 ns\" }",
            json!([["<f4", "(4, 4096)"]]),
            true,
        ),
        (
            "complex",
            "samples = { type = \"float32\", complex = true }\nnoise = 0.1",
            "packet = 8192\nheap_step = 4",
            json!([["<c8", "(8192,)"]]),
            false,
        ),
        (
            "complex integers",
            "samples = { type = \"int8\", complex = true, channels = 2 }\nnoise = 0.1",
            "",
            json!([["|i1", "(16384, 2, 2)"]]),
            false,
        ),
    ] {
        let port = free_udp_port();
        let file = directory.path().join(name);
        let job = json!({ "port": port, "file": file }).to_string();
        let mut child = python.spawn(RECEIVE, &[job]);
        let output = ready(&mut child);
        let sent = Sent { source, ..PLAIN };
        // The receiver is written in Python and stores few heaps.
        let (data, outcome) = sent.send(&format!(
            "to = \"127.0.0.1:{port}\"\nrate = \"100 Mbit/s\"\n[sink.tx.format]\nkind = \"spead\"\n{format}"
        ));
        let received = result(output, child);
        assert_eq!(received["kinds"], kinds, "{name}");
        assert!(std::fs::read(&file).unwrap() == data, "{name}: {received}");
        let step = if format.contains("heap_step") { 4 } else { 1 };
        let counters: Vec<_> = (0..sent.frames).map(|n| n * step).collect();
        assert_eq!(received["counters"], json!(counters), "{name}");
        let times = received["times"].as_array().unwrap();
        assert_eq!(times.iter().all(Value::is_u64), has_time, "{name}");
        if has_time {
            let step = times[1].as_u64().unwrap() - times[0].as_u64().unwrap();
            assert_eq!(step, 4_096_000, "{name}");
        }
        // The statistics of spead2 must agree with the ledger. They include the descriptors. The end of the stream counts as a
        // packet, but not as a heap.
        let control = sink_count(&outcome, "control_packets");
        let stats = &received["stats"];
        assert_eq!(stats["heaps"], sent.frames + control - 1, "{received}");
        assert_eq!(stats["incomplete_heaps_evicted"], 0, "{received}");
        assert_eq!(stats["incomplete_heaps_flushed"], 0, "{received}");
        let packets = sink_count(&outcome, "sent_packets");
        assert_eq!(stats["packets"], packets + control, "{name}: {received}");
        assert_counts!(outcome, "sinks.tx" =>
            frames: sent.frames, packets: packets, absent_packets: 0, lost: 0, undeliverable: 0
        );
        assert_eq!(sink_count(&outcome, "bytes"), data.len() as u64);
    }
}

#[test]
fn spead2_sees_missing_packets_as_incomplete_heaps() {
    let python = python!("spead2", "numpy");
    let directory = tempfile::tempdir().unwrap();
    let port = free_udp_port();
    let file = directory.path().join("heaps");
    let mut child = python.spawn(
        RECEIVE,
        &[json!({ "port": port, "file": file }).to_string()],
    );
    let output = ready(&mut child);
    // 32 packets of 2 KiB per frame: packets of the frames 3 and 10 are lost.
    let source = "samples = { type = \"int8\" }\npattern = \"counter\"\npacket = \"2 KiB\"\n\
                  faults = { lose = [100, \"330..333\"] }";
    let sent = Sent { source, ..PLAIN };
    let (data, outcome) = sent.send(&format!(
        "to = \"127.0.0.1:{port}\"\nrate = \"100 Mbit/s\"\n[sink.tx.format]\nkind = \"spead\"\npacket = 2048"
    ));
    let received = result(output, child);
    let counters: Vec<_> = (0..sent.frames).filter(|n| ![3, 10].contains(n)).collect();
    assert_eq!(received["counters"], json!(counters));
    assert_counts!(outcome, "sinks.tx" => packets: 40 * 32, absent_packets: 4, sent_packets: 40 * 32 - 4, lost: 0);
    let control = sink_count(&outcome, "control_packets");
    assert_eq!(received["stats"]["packets"], 40 * 32 - 4 + control);
    let frames = data.chunks(65536).enumerate();
    let whole: Vec<u8> = frames
        .filter(|(i, _)| ![3, 10].contains(i))
        .flat_map(|(_, frame)| frame.to_vec())
        .collect();
    assert!(std::fs::read(&file).unwrap() == whole);
}

/// Starts a second daq that receives `streams` (name, port and format) into the files `NAME-disk`.
fn receiver(streams: &[(&str, u16, &str)], slot: usize) -> (Daq, Live) {
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for (name, port, format) in streams {
        write!(
            text,
            "[source.{name}]\ndriver = \"udp\"\nring = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             [source.{name}.format]\n{format}\n[ring.{name}]\nmemory = \"host\"\nslot = {slot}\nslots = 64\n\
             [sink.{name}-disk]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        )
        .unwrap();
    }
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    (daq, live)
}

const RAW: &str = "kind = \"raw\"\nheader = 16\npayload = 2048\ntrailer = 4\n\
                   sequence = { offset = 2, bytes = 6 }\n";

#[test]
fn second_daq_receives_the_same_bytes() {
    for (name, format, packets) in [
        ("raw", RAW, 40 * 32),
        ("detected", "kind = \"spead\"", 0),
        (
            "fixed",
            "kind = \"spead\"\nheap = 65536\npacket = 8192\nfirst = 8184\naddress_bits = 48",
            40 * 9,
        ),
    ] {
        let port = free_udp_port();
        let (daq, mut live) = receiver(&[(name, port, format)], PLAIN.slot);
        let to =
            format!("to = \"127.0.0.1:{port}\"\nrate = \"400 Mbit/s\"\n[sink.tx.format]\n{format}");
        let (data, outcome) = PLAIN.send(&to);
        let sent = sink_count(&outcome, "sent_packets");
        assert!(packets == 0 || sent == packets, "{name}: {sent}");
        live.wait_count(&format!("sources.{name}.delivered"), sent);
        let received = live.stop().ok();
        let source = format!("sources.{name}");
        assert_counts!(received, &source => expected: sent, delivered: sent, rejected: 0, duplicates: 0, epochs: 1);
        assert_eq!(
            received.report["sources"][name]["lost"],
            json!({}),
            "{name}"
        );
        let control = received.count(&format!("{source}.control"));
        assert_eq!(control, sink_count(&outcome, "control_packets"), "{name}");
        let samples = recording(&daq, &format!("{name}-disk"));
        assert!(samples.data == data, "{name}: {} bytes", samples.data.len());
    }
}

#[test]
fn second_daq_sees_missing_packets_as_lost() {
    let port = free_udp_port();
    let (daq, mut live) = receiver(&[("raw", port, RAW)], PLAIN.slot);
    let source = "samples = { type = \"int8\" }\npattern = \"counter\"\npacket = \"2 KiB\"\n\
                  faults = { lose = [100, \"330..333\"] }";
    let sent = Sent { source, ..PLAIN };
    let (_, outcome) = sent.send(&format!(
        "to = \"127.0.0.1:{port}\"\nrate = \"400 Mbit/s\"\n[sink.tx.format]\n{RAW}"
    ));
    assert_counts!(outcome, "sinks.tx" => packets: 1280, absent_packets: 4, sent_packets: 1276);
    live.wait_count("sources.raw.delivered", 1276);
    let received = live.stop().ok();
    assert_counts!(received, "sources.raw" => expected: 1280, delivered: 1276);
    let missing = recording(&daq, "raw-disk").missing;
    assert_eq!(missing, [100 * 2048..101 * 2048, 330 * 2048..333 * 2048]);
}

#[test]
fn channels_go_to_their_receivers() {
    let ports = [free_udp_port(), free_udp_port()];
    let streams = [("low", ports[0], RAW), ("high", ports[1], RAW)];
    let (daq, mut live) = receiver(&streams, PLAIN.slot / 2);
    let (data, outcome) = PLAIN.send(&format!(
        "to = [\"127.0.0.1:{}\", \"127.0.0.1:{}\"]\nsplit = \"channels\"\nrate = \"400 Mbit/s\"\n[sink.tx.format]\n{RAW}",
        ports[0], ports[1]
    ));
    assert_counts!(outcome, "sinks.tx" => frames: 40, packets: 1280, sent_packets: 1280);
    for name in ["low", "high"] {
        live.wait_count(&format!("sources.{name}.delivered"), 640);
    }
    let _ = live.stop().ok();
    // 4 channels of int16, interleaved: 2 channels are 4 bytes of each point.
    for (i, name) in ["low-disk", "high-disk"].into_iter().enumerate() {
        let points = data.chunks(8);
        let expected: Vec<u8> = points
            .flat_map(|point| point[4 * i..][..4].to_vec())
            .collect();
        assert!(recording(&daq, name).data == expected, "{name}");
    }
}

#[test]
fn frames_on_a_gpu_are_staged() {
    let port = free_udp_port();
    let (daq, mut live) = receiver(&[("raw", port, RAW)], PLAIN.slot);
    let to = format!("to = \"127.0.0.1:{port}\"\nrate = \"400 Mbit/s\"\n[sink.tx.format]\n{RAW}");
    let text = PLAIN
        .config(&to)
        .replace("memory = \"host\"", "memory = \"cuda:0\"");
    let simulated = daq_testkit::Simulated::new("");
    let sender = simulated.on(Daq::new(&text));
    let outcome = sender.run(&[]).ok();
    assert_counts!(outcome, "sinks.tx" => frames: 40, sent_packets: 1280);
    live.wait_count("sources.raw.delivered", 1280);
    let _ = live.stop().ok();
    assert!(recording(&daq, "raw-disk").data == sender.data("out"));
}

#[test]
fn multicast_packets_have_configured_ttl_and_size() {
    let Some(tcpdump) = program("tcpdump") else {
        skip!("tcpdump is not installed");
    };
    let far = match wire(1, 9000) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("capture");
    let mut child = far.run(|| capture_udp(&tcpdump, &capture));
    // tcpdump prints that it listens when the capture is active.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_contains!(line => "listening on");
    let sink = format!(
        "to = [\"239.9.8.7:7148\", \"239.9.8.8:7148\"]\ninterface = \"{NEAR}\"\nttl = 7\nport = 5555\n\
         rate = \"200 Mbit/s\"\n[sink.tx.format]\nkind = \"spead\""
    );
    let (_, outcome) = PLAIN.send(&sink);
    let expected = sink_count(&outcome, "sent_packets") + sink_count(&outcome, "control_packets");
    let printed = || {
        let read = Command::new(&tcpdump)
            .args(["-n", "-v", "-r"])
            .arg(&capture)
            .output()
            .unwrap();
        String::from_utf8_lossy(&read.stdout).into_owned()
    };
    // A virtual interface passes messages of many packets to the other end; their lengths add up.
    let total = |text: &str, group: &str| -> u64 {
        let lines = text.lines();
        let lines = lines.filter(|line| line.contains(&format!("> {group}.7148")));
        lines
            .map(|line| {
                line.rsplit("length ")
                    .next()
                    .unwrap()
                    .trim()
                    .parse::<u64>()
                    .unwrap()
            })
            .sum()
    };
    let bytes: u64 = outcome.count("sinks.tx.bytes");
    wait_until("the capture contains all packets", || {
        let text = printed();
        total(&text, "239.9.8.7") + total(&text, "239.9.8.8") > bytes + 40 * expected
    });
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    child.wait().unwrap();
    let text = printed();
    assert!(
        text.lines()
            .filter(|line| line.contains("ttl"))
            .all(|line| line.contains("ttl 7,")),
        "{text}"
    );
    assert!(
        text.lines()
            .filter(|line| line.contains('>'))
            .all(|line| line.contains("10.77.0.1.5555 > 239.9.8.")),
        "{text}"
    );
}

fn capture_udp(tcpdump: &Path, file: &Path) -> Child {
    // The buffer holds all packets, in case that the machine stops tcpdump while they are sent.
    Command::new(tcpdump)
        .args(["-n", "-U", "-i", FAR, "-B", "65536", "-w"])
        .arg(file)
        .args(["udp", "and", "dst", "port", "7148"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn packets_that_linux_refuses_are_counted_and_the_run_ends() {
    let _far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    let to = "to = \"10.77.0.2:7148\"\nrate = \"20 Mbit/s\"\n[sink.tx.format]\nkind = \"spead\"";
    let daq = Daq::new(&PLAIN.config(to).replace("frames = 40\n", ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.tx.frames", 3);
    ip(&format!("link set {NEAR} down")).unwrap();
    live.wait_count("sinks.tx.refused_unreachable", 100);
    ip(&format!("link set {NEAR} up")).unwrap();
    let refused = live.report();
    let sent = |report: &Value| daq_testkit::ledger::count(report, "sinks.tx.sent_packets");
    live.wait_count("sinks.tx.sent_packets", sent(&refused) + 100);
    ip(&format!("link set {NEAR} mtu 1000")).unwrap();
    live.wait_count("sinks.tx.refused_other", 100);
    let outcome = live.stop();
    assert_contains!(outcome.stderr => "cannot send packets to 10.77.0.2:7148");
    assert!(sink_count(&outcome, "lost") > 0, "{:#}", outcome.report);
}

#[test]
fn packets_above_the_mtu_are_refused_at_startup() {
    let _far = match wire(1, 1500) {
        Ok(far) => far,
        Err(why) => skip!("{why}"),
    };
    for (sink, expected) in [
        (
            "to = \"10.77.0.2:7148\"\n[sink.tx.format]\nkind = \"spead\"\npacket = 8192",
            "of which 1472 bytes remain",
        ),
        (
            "to = \"192.0.2.1:7148\"\n[sink.tx.format]\nkind = \"spead\"",
            "there is no route to 192.0.2.1",
        ),
        (
            "to = \"239.1.1.1:7148\"\ninterface = \"nosuch0\"\n[sink.tx.format]\nkind = \"spead\"",
            "there is no interface nosuch0",
        ),
        (
            "to = \"10.77.0.2:7148\"\nsplit = \"channels\"\n[sink.tx.format]\nkind = \"raw\"\nheader = 8\n\
             payload = 1000\nsequence = { offset = 0, bytes = 8 }",
            "frames of 64 KiB cannot be divided into packets with 1 kB of payload",
        ),
    ] {
        let daq = Daq::new(&PLAIN.config(sink));
        let outcome = daq.run(&[]);
        assert_ne!(outcome.code, 0, "{sink}");
        assert_contains!(outcome.stderr => expected);
    }
}
