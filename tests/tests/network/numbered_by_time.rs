//! Tests the formats whose packets are numbered by time: a radio with VITA 49 (DIFI) and a telescope with VDIF. The senders
//! are built from the standards. Wireshark must accept their packets, and those of the sink `udp`.

#![allow(
    clippy::cast_possible_truncation,
    reason = "the fields of packets have this size"
)]

use daq_testkit::loopback::{self, Queue};
use daq_testkit::network::{Recording, payload, recording};
use daq_testkit::{Daq, Live, assert_contains, assert_counts, free_udp_port, program, skip};
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

const PAYLOAD: usize = 1024;
const PACKETS_PER_FRAME: usize = 16;
/// Packets per second: 1.024 MHz of one-byte samples.
const PER_SECOND: u64 = 1000;
const PACKETS: u64 = 4800;
/// Lost packets: 16 in a row, which a 4-bit count cannot show, 32 in a row around the start of a second, and one.
const LOST: [std::ops::Range<u64>; 3] = [200..216, 1990..2022, 3000..3001];

fn samples(stream: u64, n: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAYLOAD];
    payload(stream, n, &mut bytes);
    bytes
}

/// Returns packet `n` of a DIFI radio: UTC and picoseconds, a class, and a trailer that reports an over-range in packet 7.
fn radio(n: u64) -> Vec<u8> {
    let size = u32::try_from(7 + PAYLOAD / 4 + 1).unwrap();
    let first = 0x1c60_0000 + u32::try_from(n % 16).unwrap() * 0x1_0000 + size;
    let seconds = 1_790_000_000 + u32::try_from(n / PER_SECOND).unwrap();
    let picoseconds = n % PER_SECOND * 1_000_000_000;
    let mut packet = Vec::new();
    for word in [first, 0x51, 0x007c_386c, 0, seconds] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(picoseconds.to_be_bytes());
    packet.extend(samples(1, n));
    let over_range = u32::from(n == 7) << 13;
    packet.extend((1 << 30 | 1 << 25 | 1 << 18 | over_range).to_be_bytes());
    packet
}

/// Returns a context packet of the radio: RF frequency `mhz`, a sample rate of 1.024 MHz, real samples of 8 bits.
fn context(count: u32, mhz: u64) -> Vec<u8> {
    let fixed = |hz: u64| (hz << 20).to_be_bytes();
    let mut packet = Vec::new();
    for word in [
        0x4860_000e + count * 0x1_0000,
        0x51,
        0x007c_386c,
        1,
        1_790_000_000,
        0,
        0,
    ] {
        packet.extend(u32::to_be_bytes(word));
    }
    packet.extend((1_u32 << 27 | 1 << 21 | 1 << 15).to_be_bytes());
    packet.extend(fixed(mhz * 1_000_000));
    packet.extend(fixed(1_024_000));
    packet.extend([0, 0, 0x01, 0xc7, 0, 0, 0, 0]);
    packet
}

/// Returns frame `n` of thread 1 of a telescope, after a number of VTP.
fn telescope(n: u64) -> Vec<u8> {
    let mut packet = (7_000_000_000 + n).to_le_bytes().to_vec();
    let words = [
        // With the leap seconds since 2000, this is an even second, at which a frame begins.
        8_000_001 + u32::try_from(n / PER_SECOND).unwrap(),
        53 * 0x100_0000 + u32::try_from(n % PER_SECOND).unwrap(),
        0x2000_0000 + (32 + PAYLOAD as u32) / 8,
        7 * 0x400_0000 + 0x1_0000 + 0x5066,
        0,
        0,
        0,
        0,
    ];
    packet.extend(words.into_iter().flat_map(u32::to_le_bytes));
    packet.extend(samples(2, n));
    packet
}

fn is_lost(n: u64) -> bool {
    LOST.iter().any(|range| range.contains(&n))
}

/// Returns the packets that arrive: some are lost, in another order, or arrive twice.
fn arriving(packet: fn(u64) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut sent: Vec<_> = (0..PACKETS).filter(|n| !is_lost(*n)).map(packet).collect();
    sent.swap(100, 103);
    sent.insert(500, packet(480));
    sent
}

const VITA49: &str = "kind = \"vita49\"\npayload = \"1 KiB\"\nstream_id = 0x51";
const VDIF: &str = "kind = \"vdif\"\npayload = \"1 KiB\"\nthread = 1\nvtp = true";

/// Returns a source with its ring and file sink.
fn pipeline(name: &str, keys: &str, format: &str) -> String {
    let slot = PAYLOAD * PACKETS_PER_FRAME;
    format!(
        "[source.{name}]\nring = \"{name}\"\n{keys}\nsamples = {{ type = \"int8\", rate = \"1.024 MHz\" }}\n\
         [source.{name}.format]\n{format}\n[ring.{name}]\nmemory = \"host\"\nslot = {slot}\nslots = 512\n\
         [sink.{name}]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
    )
}

fn listening(sources: &[(&str, u16, &str)]) -> (Daq, Live) {
    let sources: String = sources
        .iter()
        .map(|(name, port, format)| {
            pipeline(
                name,
                &format!("driver = \"udp\"\nlisten = \"127.0.0.1:{port}\""),
                format,
            )
        })
        .collect();
    let daq = Daq::new(&format!("[http]\nlisten = \"127.0.0.1:0\"\n{sources}"));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    (daq, live)
}

fn send(port: u16, packets: &[Vec<u8>]) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for some in packets.chunks(32) {
        for packet in some {
            socket.send_to(packet, ("127.0.0.1", port)).unwrap();
        }
        Queue::drained(port);
    }
}

/// Checks that the file contains all packets of `stream` except the lost ones, which are filled or left out.
fn assert_recorded(recording: &Recording, stream: u64) {
    let expected = |n: u64| {
        if is_lost(n) {
            vec![0; PAYLOAD]
        } else {
            samples(stream, n)
        }
    };
    let payload = PAYLOAD as u64;
    let (_, first) = recording.runs[0];
    let mut recorded = Vec::new();
    for (range, index) in &recording.runs {
        for (bytes, n) in recording.data[range.clone()]
            .chunks(PAYLOAD)
            .zip((index - first) / payload..)
        {
            assert!(bytes == expected(n), "wrong bytes of packet {n}");
            recorded.push(n);
        }
    }
    let left_out = (0..PACKETS).filter(|n| !recorded.contains(n));
    assert!(
        left_out.clone().all(is_lost),
        "{:?}",
        left_out.collect::<Vec<_>>()
    );
}

#[test]
fn radio_and_telescope_are_recorded_with_exact_ledgers() {
    let (radio_port, telescope_port) = (free_udp_port(), free_udp_port());
    let (daq, mut live) = listening(&[
        ("radio", radio_port, VITA49),
        ("telescope", telescope_port, VDIF),
    ]);
    let mut packets = arriving(radio);
    packets.insert(0, context(0, 1420));
    packets.insert(900, context(1, 1420));
    packets.insert(901, [&[0x18, 0x60, 1, 7], &[0; 24][..]].concat());
    send(radio_port, &packets);
    let mut packets = arriving(telescope);
    // A frame of another thread, and one that the telescope has marked as invalid.
    let mut other = telescope(600);
    other[8 + 14] = 2;
    packets.insert(600, other);
    let mut invalid = telescope(601);
    invalid[8 + 3] |= 0x80;
    packets.insert(601, invalid);
    send(telescope_port, &packets);
    let gone: u64 = LOST.iter().map(|range| range.end - range.start).sum();
    for name in ["radio", "telescope"] {
        live.wait_count(&format!("sources.{name}.expected"), PACKETS);
    }
    live.wait_log("context of stream 0x51");
    let outcome = live.stop().ok();
    for name in ["radio", "telescope"] {
        assert_counts!(outcome, format!("sources.{name}") =>
            expected: PACKETS, delivered: PACKETS - gone, duplicates: 1, epochs: 1, lost.wire_gap: gone
        );
        assert_recorded(&recording(&daq, name), if name == "radio" { 1 } else { 2 });
    }
    assert_counts!(outcome, "sources.radio" => control: 2, rejected: 1);
    assert_counts!(outcome, "sources.radio.counts" =>
        context: 2, over_range: 1, invalid_data: 0, off_grid: 0, count_mismatch: 0
    );
    assert_counts!(outcome, "sources.telescope" => rejected: 2);
    assert_counts!(outcome, "sources.telescope.counts" => invalid: 1, other_thread: 1);
    let log = &outcome.stderr;
    assert_contains!(
        log =>
        "RF frequency 1420000000 Hz, sample rate 1024000 Hz, payload int8"
    );
    assert_eq!(log.matches("context of stream").count(), 1, "{log}");
    assert!(!log.contains("the sender's context states"), "{log}");
}

/// Writes a capture of UDP datagrams to port 4991.
fn capture(path: &Path, packets: &[Vec<u8>]) {
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101];
    let mut file: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for packet in packets {
        let udp = u16::try_from(packet.len() + 8).unwrap();
        let length = u32::from(udp) + 20;
        file.extend(
            [1, 0, length, length]
                .into_iter()
                .flat_map(u32::to_le_bytes),
        );
        file.extend([0x45, 0]);
        file.extend((udp + 20).to_be_bytes());
        file.extend([0, 1, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        file.extend([4991, 4991, udp, 0].into_iter().flat_map(u16::to_be_bytes));
        file.extend(packet);
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn replayed_captures_are_recorded_with_exact_ledgers() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.pcap"), dir.path().join("b.pcap"));
    capture(&a, &arriving(radio));
    capture(&b, &arriving(telescope));
    let source = |name, path: &Path, format| {
        let keys = format!(
            "driver = \"replay\"\npath = \"{}\"\nspeed = \"free\"",
            path.display()
        );
        pipeline(name, &keys, format)
    };
    let text = source("radio", &a, VITA49) + &source("telescope", &b, VDIF);
    let daq = Daq::new(&text);
    let outcome = daq.run(&[]).ok();
    let gone: u64 = LOST.iter().map(|range| range.end - range.start).sum();
    for (name, stream) in [("radio", 1), ("telescope", 2)] {
        assert_counts!(outcome, format!("sources.{name}") =>
            expected: PACKETS, delivered: PACKETS - gone, duplicates: 1, rejected: 0, epochs: 1, lost.wire_gap: gone
        );
        assert_recorded(&recording(&daq, name), stream);
    }
    if let Some(tshark) = program("tshark") {
        let lines = dissect(&tshark, &a, &["sid", "type"]);
        assert!(
            lines.iter().all(|line| line == "0x00000051,1,"),
            "{lines:?}"
        );
    }
}

/// Returns the values of fields that Wireshark finds in the packets of `capture`, and then `_ws.malformed`, one line per packet.
fn dissect(tshark: &Path, capture: &Path, fields: &[&str]) -> Vec<String> {
    let names = fields.iter().map(|field| format!("vrt.{field}"));
    let output = std::process::Command::new(tshark)
        .args([
            "-d",
            "udp.port==4991,vrt",
            "-T",
            "fields",
            "-E",
            "separator=,",
            "-r",
        ])
        .arg(capture)
        .args(
            names
                .chain(["_ws.malformed".to_owned()])
                .flat_map(|name| ["-e".to_owned(), name]),
        )
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(str::to_owned).collect()
}

/// Returns a daq that sends `frames` frames of 64 packets as VITA 49 to `port`, and writes them. Packets are missing in frame 0:
/// one, and 16 in a row.
fn sending(port: u16, frames: u64) -> Daq {
    Daq::new(&format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npace = \"free\"\nframes = {frames}\npacket = \"1 KiB\"\nnoise = 0.1\n\
         samples = {{ type = \"int8\", complex = true, rate = \"1.024 MHz\" }}\nfaults = {{ lose = [3, \"20..36\"] }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = \"64 KiB\"\nslots = 16\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"256 KiB\"\n\
         [sink.tx]\ndriver = \"udp\"\ninput = \"raw\"\nto = \"127.0.0.1:{port}\"\nrate = \"100 Mbit/s\"\ndescribe = \"0 s\"\n\
         [sink.tx.format]\n{VITA49}\n"
    ))
}

#[test]
fn second_daq_receives_what_the_sink_sends() {
    let port = free_udp_port();
    let source = pipeline(
        "radio",
        &format!("driver = \"udp\"\nlisten = \"127.0.0.1:{port}\""),
        VITA49,
    );
    let source = source.replace("\"int8\"", "\"int8\", complex = true");
    let receiver = Daq::new(&format!("[http]\nlisten = \"127.0.0.1:0\"\n{source}"));
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    loopback::stay();
    let sender = sending(port, 40);
    let outcome = sender.run(&[]).ok();
    let (all, absent) = (40 * 64, 17);
    assert_counts!(outcome, "sinks.tx" => packets: all, sent_packets: all - absent, absent_packets: absent);
    // The last frame of the receiver is not complete, so it is delivered when the receiver stops.
    live.wait_count("sources.radio.expected", all);
    let received = live.stop().ok();
    assert_counts!(received, "sources.radio" =>
        expected: all, delivered: all - absent, rejected: 0, duplicates: 0, epochs: 1, lost.wire_gap: absent
    );
    assert_counts!(received, "sources.radio.counts" => context: 1, off_grid: 0, count_mismatch: 0, untimed: 0);
    assert_contains!(received.stderr => "sample rate 1024000 Hz, payload complex int8");
    assert!(!received.stderr.contains("the sender's context states"));
    let (sent, found) = (sender.data("out"), recording(&receiver, "radio"));
    // The frames of the receiver begin at multiples of their duration since 1970. Samples have two bytes.
    let start = found.missing.first().filter(|range| range.start == 0);
    let start = 2 * start.map_or(0, |range| range.end);
    assert_eq!(start % PAYLOAD, 0);
    assert!(
        found.data[start..start + sent.len()] == sent,
        "{} bytes after {start}",
        found.data.len()
    );
}

#[test]
fn wireshark_dissects_what_the_sink_sends() {
    let Some(tshark) = program("tshark") else {
        skip!("tshark is not installed");
    };
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = sending(receiver.local_addr().unwrap().port(), 2);
    receiver
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let present = 2 * 64 - 17;
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        let packets = (0..=present).map(|_| {
            let bytes = receiver.recv(&mut buffer).unwrap();
            buffer[..bytes].to_vec()
        });
        packets.collect::<Vec<_>>()
    });
    let _ = sender.run(&[]).ok();
    let packets = reading.join().unwrap();
    let path = sender.path("sent.pcap");
    capture(&path, &packets);
    let fields = [
        "type",
        "sid",
        "oui",
        "icc",
        "pcc",
        "tsi",
        "tsf",
        "len",
        "seq",
        "ts_frac_sample",
    ];
    let lines = dissect(&tshark, &path, &fields);
    assert_eq!(lines.len(), 1 + present);
    // The context has DIFI's class for context. Simulated times are not UTC, so packets count samples.
    let (context, lines) = lines.split_first().unwrap();
    assert_eq!(*context, "4,0x00000051,0x6a621e,0,1,0,3,26,0,0,");
    let numbers = (0..2 * 64).filter(|n| *n != 3 && !(20..36).contains(n));
    for (line, n) in lines.iter().zip(numbers) {
        // Signal data of stream 0x51 in DIFI's class, 6 + 256 words, and the number of the first of 512 samples.
        let wanted = format!("1,0x00000051,0x6a621e,0,0,0,3,262,{},{},", n % 16, n * 512);
        assert_eq!(*line, wanted);
    }
}

#[test]
fn context_that_contradicts_the_samples_is_logged_once() {
    let port = free_udp_port();
    let (_daq, mut live) = listening(&[("radio", port, VITA49)]);
    let mut wrong = context(0, 100);
    // 16-bit samples instead of 8-bit samples.
    let end = wrong.len();
    wrong[end - 6..end - 4].copy_from_slice(&[0x03, 0xcf]);
    send(port, &[radio(0), wrong.clone(), wrong, radio(1)]);
    live.wait_log("set `samples = { type = \"int16be\", complex = false }`");
    let outcome = live.stop().ok();
    let log = &outcome.stderr;
    assert_eq!(
        log.matches("the sender's context states").count(),
        1,
        "{log}"
    );
    assert_counts!(outcome, "sources.radio" => control: 2, delivered: 2);
}

#[test]
fn plan_warns_if_the_packet_count_is_all_there_is() {
    let text = pipeline(
        "radio",
        "driver = \"udp\"\nlisten = \"127.0.0.1:4991\"",
        VITA49,
    )
    .replace(", rate = \"1.024 MHz\"", "");
    let shown = Daq::new(&text).cli(&["plan", "daq.toml"]).ok().stdout;
    assert_contains!(shown => "a loss of 16 packets in a row");
    assert_contains!(shown => "`rate` of `samples` is not set");
}
