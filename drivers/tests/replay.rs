//! Tests of the source `replay` with recordings that the tests create.

#![allow(
    clippy::unnecessary_debug_formatting,
    reason = "paths are quoted and escaped as in TOML"
)]

use crate::spec;
use daq_core::frame::Clock;
use daq_core::ledger::SourceReport;
use daq_core::sigmf::{Annotation, Capture, Datatype, Global, LABEL_MISSING, Meta, Number, Stream};
use daq_core::source::Polled;
use daq_drivers::replay::ENTRY;
use daq_testkit::assert_contains;
use daq_testkit::assert_fields;
use daq_testkit::source::{SourceFixture, new_fixture};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILL: u8 = 0xee;
const PAYLOAD: usize = 64;

pub(crate) type Frame = (u64, u32, Vec<u8>, Vec<bool>);

/// Runs to the end while the reader reads all frames.
pub(crate) fn run(fixture: &mut SourceFixture) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut held = 0;
    loop {
        match fixture.fill() {
            Polled::Ended => break,
            Polled::Full => {
                held += 1;
                assert!(held < 1000, "blocked forever: {:?}", fixture.report());
                frames.append(&mut fixture.read());
                fixture.windows[0].tick(Instant::now());
            }
            Polled::Until(wait) => std::thread::sleep(wait.min(Duration::from_millis(20))),
            _ => held = 0,
        }
    }
    if let Some(playback) = fixture.playback.read() {
        assert_eq!(playback.bytes, playback.total_bytes);
    }
    frames.append(&mut fixture.read());
    fixture.windows[0].finish();
    frames.append(&mut fixture.read());
    frames
}

pub(crate) fn open(text: &str, slot: usize, slots: usize) -> SourceFixture {
    let spec = spec(&ENTRY, text).unwrap_or_else(|errors| panic!("{errors}"));
    new_fixture(&*spec, slot, slots).unwrap()
}

pub(crate) fn lost(report: &SourceReport) -> BTreeMap<&'static str, u64> {
    report
        .lost
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(cause, count)| (*cause, *count))
        .collect()
}

/// Writes a pcap file of raw IPv4 packets: (sequence number, destination port, time) each, with a payload that depends
/// on the number.
fn pcap(path: &Path, packets: &[(u64, u16, u64)]) {
    let records: Vec<_> = packets
        .iter()
        .map(|&(sequence, port, ns)| (packet(sequence), port, ns))
        .collect();
    records_to(path, &records, false);
}

pub(crate) fn packet(sequence: u64) -> Vec<u8> {
    [&sequence.to_be_bytes()[..], &[0; 8], &payload(sequence)].concat()
}

/// Returns the checksum of a UDP datagram from 10.0.0.1:1234 to 10.0.0.2:`port`.
fn checksum(port: u16, body: &[u8]) -> u16 {
    let length = u16::try_from(body.len() + 8).unwrap();
    let header = [0x0a00, 1, 0x0a00, 2, 17, length, 1234, port, length];
    let words = body.chunks(2).map(|pair| {
        let last = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], last]))
    });
    let mut sum = words.sum::<u32>() + header.map(u32::from).iter().sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Writes a pcap file of raw IPv4 packets: (UDP payload, destination port, time) each.
pub(crate) fn records_to(path: &Path, records: &[(Vec<u8>, u16, u64)], has_checksums: bool) {
    // File header: timestamps in nanoseconds, maximum captured length, link type 101 (raw IP).
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for (body, port, ns) in records {
        let udp = u16::try_from(body.len() + 8).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend((udp + 20).to_be_bytes());
        packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
        packet.extend(Ipv4Addr::new(10, 0, 0, 1).octets());
        packet.extend(Ipv4Addr::new(10, 0, 0, 2).octets());
        let checksum = if has_checksums {
            checksum(*port, body)
        } else {
            0
        };
        for word in [1234, *port, udp, checksum] {
            packet.extend(word.to_be_bytes());
        }
        packet.extend(body);
        let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
        let length = packet.len() as u64;
        for word in [seconds, rest, length, length] {
            file.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        file.extend(packet);
    }
    std::fs::write(path, file).unwrap();
}

fn payload(sequence: u64) -> Vec<u8> {
    (0..PAYLOAD as u64)
        .map(|i| (sequence.wrapping_mul(31) ^ i).to_le_bytes()[0])
        .collect()
}

pub(crate) fn pcap_text(paths: &str, more: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = {paths}\n{more}\n[source.adc.format]\nkind = \"raw\"\n\
         header = 16\npayload = {PAYLOAD}\nsequence = {{ offset = 0, bytes = 8 }}\n"
    )
}

/// Checks each packet slot. Returns the sequence numbers of the packets that arrived.
fn arrived(frames: &[Frame]) -> Vec<u64> {
    let mut arrived = Vec::new();
    for (number, _, bytes, present) in frames {
        for (i, (slot, present)) in bytes.chunks(PAYLOAD).zip(present).enumerate() {
            let sequence = number * present_len(frames) + i as u64;
            if *present {
                assert_eq!(slot, payload(sequence), "payload of {sequence}");
                arrived.push(sequence);
            } else {
                assert!(
                    slot.iter().all(|byte| *byte == FILL),
                    "stale bytes in packet {sequence}"
                );
            }
        }
    }
    arrived
}

fn present_len(frames: &[Frame]) -> u64 {
    frames[0].3.len() as u64
}

#[test]
fn capture_with_loss_and_reorder_gives_exact_ledger() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let gone = [17, 18, 250];
    let mut sent: Vec<u64> = (0..400)
        .filter(|sequence| !gone.contains(sequence))
        .collect();
    sent.swap(40, 45);
    sent.swap(100, 107);
    sent.insert(60, 55);
    let packets: Vec<_> = sent
        .iter()
        .map(|&sequence| (sequence, 4950, 1_000_000_000 + sequence))
        .collect();
    pcap(&path, &packets);
    for slots in [4, 16] {
        let text = pcap_text(&format!("{path:?}"), "speed = \"free\"\nwindow = 3");
        let mut fixture = open(&text, PAYLOAD * 8, slots);
        let frames = run(&mut fixture);
        let report = fixture.report();
        assert_fields!(report => expected: 400, delivered: 397; "{slots} slots");
        assert_eq!(lost(&report), BTreeMap::from([("wire_gap", 3)]));
        assert_fields!(report => duplicates: 1, rejected: 0, epochs: 1);
        let expected: Vec<u64> = (0..400)
            .filter(|sequence| !gone.contains(sequence))
            .collect();
        assert_eq!((frames.len(), arrived(&frames)), (50, expected));
    }
}

/// A capture begins and ends at any packet of a frame. Nothing before its first packet is missing.
#[test]
fn capture_of_a_stream_in_progress_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let packets: Vec<_> = (1003..1050).map(|n| (n, 4950, 1_000_000_000 + n)).collect();
    pcap(&path, &packets);
    let text = pcap_text(&format!("{path:?}"), "speed = \"free\"\nwindow = 3");
    let mut fixture = open(&text, PAYLOAD * 8, 16);
    let frames = run(&mut fixture);
    let report = fixture.report();
    assert_fields!(report => expected: 47, delivered: 47, rejected: 0, incomplete: 0, before_start: 0);
    assert_eq!(
        (frames.len(), arrived(&frames)),
        (7, (1003..1050).collect())
    );
}

#[test]
fn captures_are_filtered_by_port_and_played_in_order() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (dir.path().join("a.pcap"), dir.path().join("b.pcap"));
    let packets = |range: std::ops::Range<u64>| -> Vec<_> {
        range
            .flat_map(|sequence| [(sequence, 4950, 5), (sequence + 90_000, 4951, 5)])
            .collect()
    };
    pcap(&first, &packets(0..32));
    pcap(&second, &packets(32..64));
    let text = pcap_text(&format!("[{first:?}, {second:?}]"), "port = 4950");
    let mut fixture = open(&text, PAYLOAD * 8, 16);
    let frames = run(&mut fixture);
    let report = fixture.report();
    assert_fields!(report => expected: 64, delivered: 64, rejected: 0);
    assert_eq!(arrived(&frames), (0..64).collect::<Vec<_>>());
    let text = pcap_text(&format!("{first:?}"), "destination = \"10.0.0.9\"");
    let mut fixture = open(&text, PAYLOAD * 8, 16);
    assert!(run(&mut fixture).is_empty());
    assert_eq!(fixture.report().expected, 0);
}

/// Records of 1 to 11 datagrams each are replayed into a ring that becomes full within some records.
#[test]
fn coalesced_datagrams_are_split() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let numbers: Vec<u64> = (0..400).collect();
    let mut records = Vec::new();
    let mut rest = &numbers[..];
    while !rest.is_empty() {
        let (some, others) = rest.split_at(rest.len().min(1 + records.len() % 11));
        records.push((some.iter().flat_map(|n| packet(*n)).collect(), 1, 5));
        rest = others;
    }
    records_to(&path, &records, false);
    for more in [
        "speed = \"free\"",
        "speed = \"free\"\nbackpressure = false",
        "",
    ] {
        let mut fixture = open(&pcap_text(&format!("{path:?}"), more), PAYLOAD * 8, 64);
        let frames = run(&mut fixture);
        let report = fixture.report();
        assert_fields!(report => expected: 400, delivered: 400, rejected: 0);
        assert_eq!(arrived(&frames), numbers);
    }
    let mut fixture = open(&pcap_text(&format!("{path:?}"), ""), PAYLOAD * 8, 4);
    assert_eq!(arrived(&run(&mut fixture)), numbers);
}

#[test]
fn capture_that_cannot_be_split_is_rejected_with_fix() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let mut odd: Vec<u8> = (1..4).flat_map(packet).collect();
    odd.extend([0; 30]);
    let records = [(packet(0), 1, 5), (odd, 1, 5)];
    let text = pcap_text(&format!("{path:?}"), "");
    records_to(&path, &records, false);
    let mut fixture = open(&text, PAYLOAD * 8, 4);
    let error = fixture.fillers[0]
        .fill(&mut fixture.windows[0], Duration::ZERO)
        .unwrap_err()
        .to_string();
    assert_contains!(error =>
        "packet 2 contains 270 bytes of UDP payload, but a packet has 80",
        "ethtool -K IFACE gso off gro off tso off"
    );
    // A valid checksum proves that each record is one datagram.
    records_to(&path, &records, true);
    let mut fixture = open(&text, PAYLOAD * 8, 4);
    run(&mut fixture);
    let report = fixture.report();
    assert_eq!((report.delivered, report.rejected), (1, 1), "{report:?}");
}

/// A status packet on the port of an instrument that sends no checksums.
#[test]
fn longer_datagram_is_counted_and_does_not_end_the_replay() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let longer = [packet(7), vec![0; 30]].concat();
    let records = [(packet(0), 1, 5), (longer, 1, 5), (packet(1), 1, 5)];
    records_to(&path, &records, false);
    let text = pcap_text(&format!("{path:?}"), "");
    let mut fixture = open(&text, PAYLOAD * 8, 4);
    run(&mut fixture);
    let report = fixture.report();
    assert_eq!((report.delivered, report.rejected), (2, 1), "{report:?}");
}

#[test]
fn recorded_times_are_kept_with_and_without_backpressure() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let packets: Vec<_> = (0..64).map(|i| (i, 1, 7_000_000_000 + i * 1000)).collect();
    pcap(&path, &packets);
    let mut fixture = open(
        &pcap_text(&format!("{path:?}"), "window = 1"),
        PAYLOAD * 8,
        16,
    );
    run(&mut fixture);
    let mut fixture = open(
        &pcap_text(&format!("{path:?}"), "window = 1"),
        PAYLOAD * 8,
        2,
    );
    loop {
        let polled = fixture.fill();
        if polled == Polled::Full {
            break;
        }
        assert_ne!(polled, Polled::Ended);
    }
    let lease = fixture.reader.poll(1).unwrap();
    let meta = *lease.frame(0).meta();
    assert_fields!(meta.timestamp => ns: 7_000_000_000, clock: Clock::Recorded);
    drop(lease);
    let text = pcap_text(
        &format!("{path:?}"),
        "window = 1\nbackpressure = false\nspeed = \"free\"",
    );
    let mut fixture = open(&text, PAYLOAD * 8, 2);
    while fixture.fill() != Polled::Ended {}
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!((report.expected, report.delivered), (64, 16));
    assert_eq!(lost(&report), BTreeMap::from([("ring_full", 48)]));
}

/// Replays until `epochs` epochs are complete, while the reader reads all frames.
fn play(fixture: &mut SourceFixture, epochs: u64) -> Vec<Frame> {
    let mut frames = Vec::new();
    while fixture.report().epochs <= epochs {
        let polled = fixture.fill();
        assert_ne!(polled, Polled::Ended, "{:?}", fixture.report());
        frames.append(&mut fixture.read());
        fixture.windows[0].tick(Instant::now());
    }
    frames.retain(|frame| u64::from(frame.1) <= epochs);
    frames
}

/// Each pass must be an epoch with the same ledger, and no packet may be rejected between passes. This includes a
/// recording shorter than the window, and one whose end is just before its start.
#[test]
fn capture_is_looped() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (dir.path().join("a.pcap"), dir.path().join("b.pcap"));
    for (start, lost_one, count) in [(1000, 1017, 100), (5, 8, 10)] {
        let at = |sequence: u64| (sequence, 1, 1_000_000_000 + sequence);
        let sent = (start..start + count).filter(|sequence| *sequence != lost_one);
        let packets: Vec<_> = sent.map(at).collect();
        let (a, b) = packets.split_at(packets.len() / 2);
        pcap(&first, a);
        pcap(&second, b);
        for more in ["", "speed = \"free\"", "speed = \"free\"\nwindow = 2"] {
            let text = pcap_text(
                &format!("[{first:?}, {second:?}]"),
                &format!("loop = true\n{more}"),
            );
            let mut fixture = open(&text, PAYLOAD * 8, 12);
            let frames = play(&mut fixture, 3);
            for epoch in 1..=3 {
                let pass: Vec<_> = frames
                    .iter()
                    .filter(|frame| frame.1 == epoch)
                    .cloned()
                    .collect();
                let numbers: Vec<_> = packets.iter().map(|packet| packet.0).collect();
                assert_eq!(arrived(&pass), numbers, "pass {epoch} with {more:?}");
            }
            assert!(fixture.playback.read().unwrap().repeats);
            fixture.windows[0].finish();
            let report = fixture.report();
            assert_fields!(report => rejected: 0, duplicates: 0, skipped: 0);
            assert!(
                report.lost["wire_gap"] >= 3 && report.lost.len() == 1,
                "{report:?}"
            );
        }
    }
    // A capture without matching datagrams must not be repeated forever.
    let text = pcap_text(&format!("{first:?}"), "loop = true\nport = 9");
    let mut fixture = open(&text, PAYLOAD * 8, 12);
    assert!(run(&mut fixture).is_empty());
}

pub(crate) const FRAME: u64 = 256;
const PACKETS_PER_FRAME: u32 = 4;

pub(crate) fn global(stream: Option<Stream>, datatype: Datatype) -> Global {
    Global {
        datatype,
        version: "1.2.6".into(),
        sample_rate: Some(1e6),
        channels: 2,
        offset: 0,
        dataset: None,
        trailing_bytes: 0,
        recorder: None,
        description: None,
        author: None,
        hardware: None,
        extensions: Vec::new(),
        stream,
    }
}

pub(crate) fn bytes(from: u64, count: u64) -> Vec<u8> {
    (from..from + count)
        .map(|i| (i * 7 % 251).to_le_bytes()[0])
        .collect()
}

pub(crate) fn store(dir: &Path, name: &str, meta: &Meta, data: &[u8]) -> PathBuf {
    let path = dir.join(format!("{name}.sigmf-meta"));
    std::fs::write(&path, meta.to_json()).unwrap();
    std::fs::write(path.with_extension("sigmf-data"), data).unwrap();
    path
}

pub(crate) fn capture(frame: u64, sequence: u64, epoch: u32, ns: u64) -> Capture {
    Capture {
        sample_start: frame * FRAME / 8,
        sequence: Some(sequence),
        epoch: Some(epoch),
        clock_ns: Some(ns),
        ..Capture::default()
    }
}

fn missing(byte: u64, bytes: u64) -> Annotation {
    Annotation {
        sample_start: byte / 8,
        sample_count: Some(bytes / 8),
        label: Some(LABEL_MISSING.into()),
        ..Annotation::default()
    }
}

/// Returns the metadata of a recording of `frames` frames of complex int16 with 2 channels.
pub(crate) fn ours(frames: u64, captures: Vec<Capture>, annotations: Vec<Annotation>) -> Meta {
    let stream = Stream {
        bytes: frames * FRAME,
        frames,
        frame_bytes: FRAME,
        packets_per_frame: PACKETS_PER_FRAME,
        ..Stream::default()
    };
    Meta {
        global: global(Some(stream), Datatype::little(Number::I16, true)),
        captures,
        annotations,
    }
}

pub(crate) fn sigmf_text(path: &Path, more: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = {path:?}\nspeed = \"free\"\n{more}\n"
    )
}

#[test]
fn recording_replay_has_same_bytes_and_gaps() {
    let dir = TempDir::new().unwrap();
    // Frames 10, 11, 12, then 3 missing frames, 16, 17; then a restarted count 0, 1, 2. Missing packets: the last of
    // frame 11 and the first of frame 12 as one range, and packet 2 of frame 1 in the second epoch.
    let captures = vec![
        capture(0, 10, 1, 1000),
        capture(3, 16, 1, 9000),
        capture(5, 0, 2, 500),
    ];
    let marks = vec![missing(256 + 192, 128), missing(6 * 256 + 128, 64)];
    let data = bytes(0, 8 * FRAME);
    let path = store(dir.path(), "raw-000000", &ours(8, captures, marks), &data);
    for (slots, path) in [
        (2, &*path),
        (3, dir.path()),
        (16, &*path.with_extension("sigmf-data")),
    ] {
        let mut fixture = open(&sigmf_text(path, ""), 256, slots);
        let frames = run(&mut fixture);
        let report = fixture.report();
        assert_fields!(report => expected: 8 * 4 + 3 * 4, delivered: 8 * 4 - 3; "{slots} slots");
        assert_eq!(
            lost(&report),
            BTreeMap::from([("wire_gap", 15)]),
            "{slots} slots"
        );
        assert_fields!(report => epochs: 2, rejected: 0, duplicates: 0);
        let whole: Vec<_> = frames
            .iter()
            .filter(|frame| frame.3.contains(&true))
            .collect();
        let numbers: Vec<_> = whole.iter().map(|frame| (frame.0, frame.1)).collect();
        assert_eq!(
            numbers,
            [
                (10, 1),
                (11, 1),
                (12, 1),
                (16, 1),
                (17, 1),
                (0, 2),
                (1, 2),
                (2, 2)
            ]
        );
        for (i, (_, _, bytes, present)) in whole.iter().enumerate() {
            for packet in 0..4 {
                let at = i * 256 + packet * 64;
                let is_missing = [256 + 192, 512, 6 * 256 + 128].contains(&at);
                assert_eq!(present[packet], !is_missing, "frame {i} packet {packet}");
                let got = &bytes[packet * 64..][..64];
                let expected = if is_missing {
                    &[FILL; 64][..]
                } else {
                    &data[at..at + 64]
                };
                assert_eq!(got, expected, "frame {i} packet {packet}");
            }
        }
    }
}

#[test]
fn truncated_recording_is_noted_with_the_length_of_its_last_frame() {
    let dir = TempDir::new().unwrap();
    let notes = |missing: u64| {
        let meta = ours(3, vec![capture(0, 10, 1, 1000)], vec![]);
        let path = store(
            dir.path(),
            "raw-000000",
            &meta,
            &bytes(0, 3 * FRAME - missing),
        );
        let notes = spec(&ENTRY, &sigmf_text(&path, "")).unwrap().facts().notes;
        notes.join("\n")
    };
    assert_eq!(notes(0), "");
    let short = notes(96);
    assert!(
        short.ends_with("is truncated: 96 B are missing; its last frame has 160 of 256 bytes, so it is incomplete"),
        "{short}"
    );
    let whole = notes(FRAME);
    assert!(whole.ends_with("256 B are missing"), "{whole}");
}

#[test]
fn recording_is_looped() {
    let dir = TempDir::new().unwrap();
    // Frames 10, 11, 14, then a restarted count: 12, 13. Missing packets: the first and the last packet of a pass, and
    // one in between.
    let captures = vec![
        capture(0, 10, 1, 1000),
        capture(2, 14, 1, 9000),
        capture(3, 12, 2, 500),
    ];
    let marks = vec![missing(0, 64), missing(320, 64), missing(5 * 256 - 64, 64)];
    let data = bytes(0, 5 * FRAME);
    let path = store(dir.path(), "raw-000000", &ours(5, captures, marks), &data);
    for more in ["loop = true", "loop = true\nspeed = 1e6"] {
        let text = sigmf_text(&path, more)
            .replace("speed = \"free\"\nloop = true\nspeed", "loop = true\nspeed");
        let mut fixture = open(&text, 256, 3);
        let frames = play(&mut fixture, 6);
        for pass in 0..3 {
            let of_pass = [2 * pass + 1, 2 * pass + 2];
            let whole: Vec<_> = frames
                .iter()
                .filter(|frame| of_pass.contains(&frame.1) && frame.3.contains(&true))
                .collect();
            let numbers: Vec<_> = whole.iter().map(|frame| (frame.0, frame.1)).collect();
            let [first, second] = of_pass;
            assert_eq!(
                numbers,
                [
                    (10, first),
                    (11, first),
                    (14, first),
                    (12, second),
                    (13, second)
                ]
            );
            for (i, frame) in whole.iter().enumerate() {
                for (packet, present) in frame.3.iter().enumerate() {
                    let at = i * 256 + packet * 64;
                    assert_eq!(*present, ![0, 320, 5 * 256 - 64].contains(&at), "{at}");
                    let got = &frame.2[packet * 64..][..64];
                    assert!(!present || got == &data[at..at + 64], "{at}");
                }
            }
        }
        let report = fixture.report();
        assert_eq!((report.rejected, report.duplicates), (0, 0), "{report:?}");
        // Each pass loses one packet and two frames.
        assert_eq!(lost(&report), BTreeMap::from([("wire_gap", 3 * 9)]));
    }
}

#[test]
fn segments_of_directory_are_played_in_order() {
    let dir = TempDir::new().unwrap();
    let data = bytes(0, 6 * FRAME);
    for segment in 0..3_u64 {
        let meta = ours(2, vec![capture(0, segment * 2, 1, segment)], Vec::new());
        let half = usize::try_from(segment * 2 * FRAME).unwrap();
        store(
            dir.path(),
            &format!("raw-{segment:06}"),
            &meta,
            &data[half..half + 512],
        );
    }
    let mut fixture = open(&sigmf_text(dir.path(), ""), 256, 4);
    let frames = run(&mut fixture);
    assert_eq!(
        frames.iter().map(|frame| frame.0).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(frames.concat_bytes(), data);
    assert_eq!(
        (fixture.report().expected, fixture.report().delivered),
        (24, 24)
    );
    // A second recording in the directory makes the path ambiguous.
    store(
        dir.path(),
        "other-000000",
        &ours(1, vec![capture(0, 0, 1, 0)], Vec::new()),
        &data[..256],
    );
    let problem = spec(&ENTRY, &sigmf_text(dir.path(), ""))
        .unwrap()
        .frames(256)
        .unwrap_err();
    assert_eq!(problem.key.as_deref(), Some("path"));
    assert_contains!(problem.to_string() => "\"other\", \"raw\"");
    let mut fixture = open(&sigmf_text(dir.path(), "name = \"other\""), 256, 4);
    assert_eq!(run(&mut fixture).concat_bytes(), &data[..256]);
    let problem = spec(&ENTRY, &sigmf_text(dir.path(), "name = \"rwa\""))
        .unwrap()
        .frames(256)
        .unwrap_err();
    assert_eq!(problem.key.as_deref(), Some("name"));
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<Frame> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|frame| frame.2.clone()).collect()
    }
}

#[test]
fn third_party_recording_is_split_into_frames_without_rest() {
    let dir = TempDir::new().unwrap();
    let data = bytes(3, 8 * 1000);
    for (big_endian, name) in [(false, "little"), (true, "big")] {
        let datatype = Datatype {
            big_endian,
            ..Datatype::little(Number::I16, true)
        };
        let meta = Meta {
            global: global(None, datatype),
            captures: vec![Capture::default()],
            annotations: Vec::new(),
        };
        let path = store(dir.path(), name, &meta, &data);
        let mut fixture = open(&sigmf_text(&path, ""), 3000, 4);
        let layout = spec(&ENTRY, &sigmf_text(&path, ""))
            .unwrap()
            .frames(3000)
            .unwrap()
            .layout;
        assert_eq!(
            (layout.channels, layout.complex, layout.sample_rate()),
            (2, true, Some(1e6))
        );
        let frames = run(&mut fixture);
        let got: Vec<u8> = frames
            .iter()
            .flat_map(|(_, _, bytes, present)| {
                let packet_bytes = fixture.geometry.packet_bytes;
                bytes
                    .chunks(packet_bytes)
                    .zip(present)
                    .filter(|(_, present)| **present)
                    .flat_map(|(bytes, _)| bytes.to_vec())
            })
            .collect();
        let expected = if big_endian {
            data.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect()
        } else {
            data.clone()
        };
        assert_eq!(got, expected);
        let report = fixture.report();
        assert_eq!((report.expected, report.bytes), (report.delivered, 8000));
        assert!(
            frames
                .iter()
                .enumerate()
                .all(|(i, frame)| frame.0 == i as u64)
        );
    }
}

#[test]
fn example_is_valid_and_errors_are_reported() {
    let example = ENTRY
        .example
        .replace("NAME", "adc")
        .replace("OUTPUT", "raw");
    let example = spec(&ENTRY, &example).unwrap_or_else(|errors| panic!("{errors}"));
    let facts = example.facts();
    assert!(facts.claims.is_empty() && facts.supports_backpressure);
    let frames = example.frames(1 << 20).unwrap();
    assert_eq!(frames.geometry.packets_per_frame, 128);
    let why = new_fixture(&*example, 1 << 20, 9)
        .err()
        .unwrap()
        .to_string();
    assert_contains!(why => "recording.pcap", "path");
    let gone = spec(&ENTRY, &sigmf_text(Path::new("gone.sigmf-meta"), "")).unwrap();
    let problem = gone.frames(1 << 20).unwrap_err();
    assert_eq!(
        (problem.key.as_deref(), problem.help.is_some()),
        (Some("path"), true)
    );
    let text = "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = \"a.pcap\"\n";
    let errors = spec(&ENTRY, text).err().unwrap();
    assert!(errors.contains("[source.adc.format]"), "{errors}");
    let dir = TempDir::new().unwrap();
    let meta = ours(1, vec![capture(0, 0, 1, 0)], Vec::new());
    let path = store(dir.path(), "raw", &meta, &bytes(0, 256));
    let problem = spec(&ENTRY, &sigmf_text(&path, ""))
        .unwrap()
        .frames(100)
        .unwrap_err();
    assert!(problem.to_string().contains("256 B"), "{problem}");
    assert_eq!(
        spec(&ENTRY, &sigmf_text(&path, ""))
            .unwrap()
            .facts()
            .preferred_slot,
        Some(256)
    );
}
