//! Tests the replay of captures from other tools and of daq's own recordings.

use daq_drivers::packet::pcap::Capture;
use daq_drivers::sys::send::Sender;
use daq_testkit::loopback::{self, Queue};
use daq_testkit::network::{Recording, payload, recording};
use daq_testkit::{
    Daq, Outcome, TIMEOUT, assert_counts, files, free_udp_port, ledger, program, python, skip,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Payload bytes per packet. The next constants are the packets per frame, the number of packets sent, and the number
/// of the first packet.
const PAYLOAD: usize = 1000;
const PACKETS_PER_FRAME: usize = 10;
const PACKETS: u64 = 1500;
const FORMAT: &str = "kind = \"raw\"\nheader = 8\npayload = 1000\nsequence = { offset = 4, bytes = 4, endian = \"little\" }";

fn ring_and_sink() -> String {
    let frame = PAYLOAD * PACKETS_PER_FRAME;
    format!(
        "[ring.raw]\nmemory = \"host\"\nslot = {frame}\nslots = 512\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"256 KiB\"\nsegment = \"500 kB\"\n"
    )
}

fn live_config(port: u16) -> String {
    let rest = ring_and_sink();
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         [source.adc.format]\n{FORMAT}\n{rest}"
    )
}

/// Returns a configuration that replays `path` with the additional keys `keys`. `format` is needed unless `path` is a
/// recording of daq.
fn replay_config(path: &Path, keys: &str, format: &str) -> String {
    let (rest, path) = (ring_and_sink(), path.display());
    format!(
        "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"{path}\"\n{keys}\n{format}\n{rest}"
    )
}

/// Returns datagrams of which some are lost, reordered, duplicated or invalid. The last frame is complete.
fn datagrams() -> Vec<Vec<u8>> {
    let packet = |n: u64| {
        let mut packet = (n << 32).to_le_bytes().to_vec();
        packet.resize(8 + PAYLOAD, 0);
        payload(1, n, &mut packet[8..]);
        packet
    };
    (0..PACKETS)
        .flat_map(|n| match n {
            17 | 18 | 31 | 400..412 => vec![],
            30 => vec![packet(31), packet(30)],
            700 => vec![packet(700), packet(700), vec![0; 99]],
            _ => vec![packet(n)],
        })
        .collect()
}

/// Number of packets that are lost.
const LOST: u64 = 14;

/// Starts tcpdump. Returns the reason if that is not possible.
fn tcpdump(port: u16, packets: usize, to: &Path) -> Result<Child, String> {
    let program = program("tcpdump").ok_or("tcpdump is not installed; tests/run installs it")?;
    let mut command = Command::new(program);
    command
        .args("-i lo -n -U -B 32768 -s 0 -c".split(' '))
        .args([&packets.to_string(), "-w"])
        .arg(to);
    if rustix::process::geteuid().is_root() {
        // Without this option, tcpdump changes to a user that cannot write the file.
        command.args(["-Z", "root"]);
    }
    command
        .arg(format!("udp dst port {port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|why| why.to_string())?;
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("listening on") {
        if stderr.read_line(&mut text).unwrap() == 0 {
            let _ = child.wait();
            return Err(format!("tcpdump cannot capture packets: {text}"));
        }
    }
    // Read the remaining output, so that tcpdump does not block.
    std::thread::spawn(move || stderr.read_to_string(&mut String::new()));
    Ok(child)
}

/// Waits until tcpdump has written the captured packets to the file.
fn captured(mut tcpdump: Child) {
    let start = Instant::now();
    while tcpdump.try_wait().unwrap().is_none() {
        if start.elapsed() > TIMEOUT {
            let _ = tcpdump.kill();
            let _ = tcpdump.wait();
            panic!("tcpdump has not captured all packets");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Runs daq with a `udp` source and [`datagrams`]. Returns what it received and recorded, to compare replays with.
fn live_run(port: u16) -> (Daq, Outcome) {
    let daq = Daq::new(&live_config(port));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    let mut sender =
        Sender::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), false, None).unwrap();
    for some in datagrams().chunks(32) {
        for packet in some {
            sender.send(packet).unwrap();
        }
        Queue::drained(port);
    }
    live.wait_count("sources.adc.expected", PACKETS);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" =>
        expected: PACKETS, delivered: PACKETS - LOST, duplicates: 1, rejected: 1
    );
    (daq, outcome)
}

fn assert_same(what: &str, replayed: &Recording, live: &Recording) {
    let (a, b) = (replayed.data.len(), live.data.len());
    assert!(
        replayed.data == live.data,
        "{what}: the replay and the live run recorded different bytes; {a} bytes in the replay, {b} bytes in the live run"
    );
    assert_eq!(replayed.missing, live.missing, "{what}");
}

#[test]
fn replay_of_tcpdump_capture_delivers_packets() {
    let port = free_udp_port();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("capture.pcap");
    let sent = datagrams();
    let tcpdump = match tcpdump(port, sent.len(), &file) {
        Ok(child) => child,
        Err(why) => skip!("{why}"),
    };
    let (daq, live) = live_run(port);
    captured(tcpdump);
    // First check the bytes of the capture, without a pipeline.
    let mut capture = Capture::open(&file).unwrap();
    for packet in &sent {
        let datagram = capture
            .next()
            .unwrap()
            .expect("the capture must contain every packet that was sent");
        assert_eq!(datagram.destination.port(), port);
        assert!(
            datagram.payload[..] == packet[..],
            "the capture contains wrong bytes"
        );
    }
    assert!(capture.next().unwrap().is_none());
    let recorded = recording(&daq, "disk");
    for keys in [
        "speed = \"free\"",
        "",
        "speed = 4.0",
        "speed = \"free\"\nport = PORT",
    ] {
        let keys = keys.replace("PORT", &port.to_string());
        let again = Daq::new(&replay_config(
            &file,
            &keys,
            &format!("[source.adc.format]\n{FORMAT}"),
        ));
        let outcome = again.run(&[]).ok();
        for key in [
            "expected",
            "delivered",
            "lost",
            "bytes",
            "duplicates",
            "rejected",
            "epochs",
        ] {
            let (replayed, received) = (
                &outcome.report["sources"]["adc"][key],
                &live.report["sources"]["adc"][key],
            );
            assert_eq!(
                replayed, received,
                "{key} with {keys:?}: {:#}",
                outcome.report
            );
        }
        assert_same(&keys, &recording(&again, "disk"), &recorded);
    }
    // The capture has no packets for another port.
    let keys = "speed = \"free\"\nport = 9";
    let again = Daq::new(&replay_config(
        &file,
        keys,
        &format!("[source.adc.format]\n{FORMAT}"),
    ));
    assert_eq!(again.run(&[]).ok().count("sources.adc.expected"), 0);
}

/// Tests a sender that passes many datagrams per call to Linux. A live run and tcpdump both receive them; a record of
/// tcpdump then contains the same number of datagrams. The sender sends `frames` frames of `slot` bytes in `sends`
/// calls.
fn is_replayed_as_sent(kind: &str, format: &str, slot: usize, sends: usize, frames: u64) {
    let python = python!("spead2", "numpy");
    let port = free_udp_port();
    let format = format!("[source.adc.format]\n{format}");
    let rest = ring_and_sink().replace("slot = 10000", &format!("slot = {slot}"));
    let live_daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n{format}\n{rest}"
    ));
    let capture = live_daq.path("capture.pcap");
    let tcpdump = match tcpdump(port, sends, &capture) {
        Ok(child) => child,
        Err(why) => skip!("{why}"),
    };
    let mut live = live_daq.spawn(&[]);
    live.wait_ready();
    let sent = live_daq.path("sent");
    let arguments = [
        kind.to_owned(),
        port.to_string(),
        sent.display().to_string(),
    ];
    python.run(include_str!("../../../python/segment_send.py"), &arguments);
    captured(tcpdump);
    live.wait_count("sinks.disk.frames", frames);
    let mut received = vec![(live.stop().ok(), recording(&live_daq, "disk"))];
    let mut records = Capture::open(&capture).unwrap();
    let mut longest = 0;
    while let Some(record) = records.next().unwrap() {
        longest = longest.max(record.payload.len());
    }
    assert!(
        longest > 10_000,
        "at least one record of {kind} must contain several datagrams"
    );
    for keys in [
        "speed = \"free\"",
        "speed = \"free\"\nbackpressure = false",
        "",
    ] {
        let path = capture.display();
        let again = Daq::new(&format!(
            "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"{path}\"\n{keys}\n{format}\n{rest}"
        ));
        let outcome = again.run(&[]).ok();
        let is_split = outcome.stderr.contains("contain several datagrams each");
        assert!(is_split, "{}", outcome.stderr);
        received.push((outcome, recording(&again, "disk")));
    }
    let sent = std::fs::read(&sent).unwrap();
    for (outcome, file) in received {
        let output = format!("{kind}: {:#}\n{}", outcome.report, outcome.stderr);
        let n = |key: &str| outcome.count(&format!("sources.adc.{key}"));
        assert_counts!(outcome, "sources.adc" =>
            expected: n("delivered"), rejected: 0, duplicates: 0, epochs: 1; "{output}"
        );
        assert!(
            file.data == sent,
            "the file of {output} contains wrong bytes"
        );
    }
}

#[test]
fn replay_of_raw_gso_capture_is_byte_identical() {
    is_replayed_as_sent("raw", FORMAT, PAYLOAD * PACKETS_PER_FRAME, 60, 103);
}

#[test]
fn replay_of_spead_gso_capture_is_byte_identical() {
    is_replayed_as_sent("spead", "kind = \"spead\"", 60_000, 40, 40);
}

#[test]
fn replay_of_recording_with_gaps_keeps_gaps() {
    let (daq, live) = live_run(free_udp_port());
    let recorded = recording(&daq, "disk");
    assert_eq!(
        recorded.data.len(),
        usize::try_from(PACKETS).unwrap() * PAYLOAD
    );
    let again = Daq::new(&replay_config(&daq.path("out"), "speed = \"free\"", ""));
    let outcome = again.run(&[]).ok();
    assert_same("free", &recording(&again, "disk"), &recorded);
    let (replayed, received) = (
        ledger::lost(&outcome.report, "adc"),
        ledger::lost(&live.report, "adc"),
    );
    assert_eq!(replayed, received, "{:#}", outcome.report);
}

/// Two runs of daq write frames with the same numbers to one directory. Each run is an epoch of the replay.
#[test]
fn runs_in_one_directory_are_epochs_of_the_replay() {
    let (daq, live) = live_run(free_udp_port());
    let recorded = recording(&daq, "disk");
    let twice = Daq::new(&replay_config(&daq.path("out"), "speed = \"free\"", ""));
    for _ in 0..2 {
        let _ = twice.run(&[]).ok();
    }
    let again = Daq::new(&replay_config(&twice.path("out"), "speed = \"free\"", ""));
    let outcome = again.run(&[]).ok();
    assert_counts!(outcome, "sources.adc" =>
        expected: 2 * PACKETS, delivered: 2 * (PACKETS - LOST), duplicates: 0, rejected: 0, epochs: 2
    );
    let lost = |outcome: &Outcome| ledger::lost(&outcome.report, "adc");
    assert_eq!(lost(&outcome), 2 * lost(&live), "{:#}", outcome.report);
    let data = recording(&again, "disk").data;
    assert!(data == recorded.data.repeat(2), "the runs have other bytes");
}

/// Returns the packets in the recording `dir` by their epoch and time in nanoseconds, without those that are missing.
fn packets_by_time(dir: &Path) -> BTreeMap<(u64, u64), Vec<u8>> {
    let mut packets = BTreeMap::new();
    for path in files(dir, ".sigmf-meta") {
        let meta: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let data = std::fs::read(path.with_extension("sigmf-data")).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let start = |capture: &Value| usize::try_from(number(&capture["core:sample_start"]));
        let annotations = meta["annotations"].as_array().unwrap();
        let is_missing = |sample: u64| {
            annotations.iter().any(|note| {
                let first = number(&note["core:sample_start"]);
                let count = number(&note["core:sample_count"]);
                note["core:label"] == "missing" && (first..first + count).contains(&sample)
            })
        };
        let captures = meta["captures"].as_array().unwrap();
        for (i, capture) in captures.iter().enumerate() {
            let first = start(capture).unwrap();
            let end = captures
                .get(i + 1)
                .map_or(data.len(), |next| start(next).unwrap());
            for at in (first..end)
                .step_by(PAYLOAD)
                .filter(|at| !is_missing(*at as u64))
            {
                // One sample per microsecond.
                let time = number(&capture["daq:time_ns"]) + 1000 * (at - first) as u64;
                let packet = data[at..at + PAYLOAD].to_vec();
                packets.insert((number(&capture["daq:epoch"]), time), packet);
            }
        }
    }
    packets
}

/// A stream with losses, with a step of its time, and with a restart is recorded. The recording is replayed and recorded
/// again, twice.
#[test]
fn recording_of_replay_has_same_samples_at_same_times() {
    let port = free_udp_port();
    let rest = ring_and_sink();
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\n\
         samples = {{ type = \"int8\", rate = \"1 MHz\" }}\n\
         [source.adc.format]\nkind = \"raw\"\nheader = 16\npayload = 1000\n\
         sequence = {{ offset = 0, bytes = 8 }}\n\
         timestamp = {{ offset = 8, bytes = 8, tick = \"1 ns\", origin = \"1970-01-01T00:00:00Z\" }}\n{rest}"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    let mut sender =
        Sender::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), false, None).unwrap();
    let mut sent = BTreeMap::new();
    let mut send = |epoch: u64, number: u64, start_ns: u64| {
        let time = start_ns + number * 1000 * PAYLOAD as u64;
        let mut packet = [number.to_be_bytes(), time.to_be_bytes()].concat();
        packet.resize(16 + PAYLOAD, 0);
        payload(epoch, number, &mut packet[16..]);
        sender.send(&packet).unwrap();
        sent.insert((epoch, time), packet.split_off(16));
        if number.is_multiple_of(32) {
            Queue::drained(port);
        }
    };
    let start_ns = 1_700_000_000_000_000_000;
    for number in (0..400).filter(|number| !matches!(*number, 17 | 18 | 44 | 200..235)) {
        send(1, number, start_ns);
    }
    // After a gap, the time continues 5 ms later than the numbers.
    (1000..1100).for_each(|number| send(1, number, start_ns + 5_000_000));
    live.wait_count("sources.adc.delivered", 462);
    (0..200).for_each(|number| send(2, number, start_ns + 10_000_000_000));
    live.wait_count("sources.adc.delivered", sent.len() as u64);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" => epochs: 2, rejected: 0, late: 0);
    assert!(packets_by_time(&daq.path("out")) == sent);
    let mut recorded = daq.path("out");
    let mut replays = Vec::new();
    for pass in 1..=2 {
        let again = Daq::new(&replay_config(&recorded, "speed = \"free\"", ""));
        let outcome = again.run(&[]).ok();
        assert_counts!(outcome, "sources.adc" => delivered: sent.len() as u64, epochs: 2);
        recorded = again.path("out");
        assert!(packets_by_time(&recorded) == sent, "replay {pass}");
        replays.push(again);
    }
}

/// A recording is replayed again and again, until a signal arrives or the time limit is reached.
#[test]
fn replay_loop_ends_on_request() {
    let (daq, _) = live_run(free_udp_port());
    let frame = PAYLOAD * PACKETS_PER_FRAME;
    let again = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"{}\"\nspeed = \"free\"\nloop = true\n\
         [ring.raw]\nmemory = \"host\"\nslot = {frame}\nslots = 8\n\
         [sink.none]\ndriver = \"null\"\ninput = \"raw\"\n",
        daq.path("out").display()
    ));
    let mut live = again.spawn(&[]);
    live.wait_count("sources.adc.epochs", 3);
    let outcome = live.stop().ok();
    let n = |key: &str| outcome.count(&format!("sources.adc.{key}"));
    assert_counts!(outcome, "sources.adc" => rejected: 0, duplicates: 0);
    // The run has complete passes, and a part of another pass, in which some of the packets may be missing.
    let (whole, lost) = (n("epochs") - 1, ledger::lost(&outcome.report, "adc"));
    assert!(
        (whole * LOST..=(whole + 1) * LOST).contains(&lost),
        "{:#}",
        outcome.report
    );
    assert!((whole * PACKETS..=(whole + 1) * PACKETS).contains(&n("expected")));
    assert_eq!(outcome.count("rings.raw.ring_full"), 0);
    let _ = again.run(&["--for", "200ms"]).ok();
}

/// Tests a file that is not a capture.
#[test]
fn replay_of_invalid_capture_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let format = format!("[source.adc.format]\n{FORMAT}");
    let file = dir.path().join("none.pcap");
    std::fs::write(&file, "no capture, but some text").unwrap();
    let outcome = Daq::new(&replay_config(&file, "speed = \"free\"", &format)).run(&[]);
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("none.pcap"), "{}", outcome.stderr);
}
