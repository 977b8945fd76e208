//! Tests `daq inspect`: what it recognises in captures and on interfaces, and whether the suggested source receives the same
//! packets. Captures come from PyPI's `spead2` and Debian's `arv-fake-gv-camera`, recorded with tcpdump, and from headers built
//! after public descriptions.

mod stated;

use daq_testkit::{
    Daq, Done, Outcome, Python, Random, assert_contains, free_udp_port, program, python, skip,
    wait_until,
};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::{Child, Command, Stdio};

pub(super) const SENDER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 5), 4001);
const PORT: u16 = 7148;
pub(super) const RECEIVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORT);
/// Nanoseconds between packets.
const INTERVAL: u64 = 100_000;

/// A capture of UDP packets in Ethernet frames.
pub(super) struct Pcap {
    pub(super) bytes: Vec<u8>,
    ns: u64,
}

impl Pcap {
    pub(super) fn new() -> Self {
        let mut bytes = 0xa1b2_3c4d_u32.to_le_bytes().to_vec();
        bytes.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
        let ns = 1_700_000_000_000_000_000;
        Self { bytes, ns }
    }

    pub(super) fn add(&mut self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
        let length = u16::try_from(payload.len() + 8).unwrap();
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((length + 20).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(from.ip().octets());
        frame.extend(to.ip().octets());
        frame.extend(from.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        self.ns += INTERVAL;
        let size = u32::try_from(frame.len()).unwrap();
        for word in [self.ns / 1_000_000_000, self.ns % 1_000_000_000] {
            self.bytes
                .extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        self.bytes
            .extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        self.bytes.extend(frame);
    }

    /// Returns a directory with this capture as `capture.pcap`.
    fn daq(&self) -> Daq {
        let daq = Daq::new("");
        std::fs::write(daq.path("capture.pcap"), &self.bytes).unwrap();
        daq
    }
}

/// Returns bytes that look random.
fn noise(random: &mut Random, length: usize) -> Vec<u8> {
    let byte = |_| u8::try_from(random.below(256)).unwrap();
    (0..length).map(byte).collect()
}

fn inspect(daq: &Daq) -> Done {
    daq.cli(&["inspect", "capture.pcap"])
}

fn json(daq: &Daq) -> Value {
    daq.cli(&["inspect", "capture.pcap", "--json"]).json()
}

/// Checks that no line of the report is longer than a terminal.
fn fits_terminal(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() < 80, "{line:?}\n{text}");
    }
}

/// Runs the suggested configuration on the capture, after `daq check`.
fn replay(daq: &Daq) -> Outcome {
    let done = daq.cli(&["inspect", "capture.pcap", "--toml"]).ok();
    daq.write("daq.toml", &done.stdout);
    let _ = daq.cli(&["check", "daq.toml"]).ok();
    daq.run(&[]).ok()
}

/// Checks that the suggested source delivers `packets` packets and loses `lost`.
fn receives(daq: &Daq, packets: u64, lost: u64) {
    fits_terminal(&inspect(daq).ok().stdout);
    let outcome = replay(daq);
    let counts = ["delivered", "rejected", "duplicates", "lost.wire_gap"]
        .map(|name| outcome.count(&format!("sources.instrument.{name}")));
    assert_eq!(counts, [packets, 0, 0, lost], "{:#}", outcome.report);
}

/// Returns the counts of the first stream: expected, lost, duplicates, reordered.
fn counts(report: &Value) -> [u64; 4] {
    ["expected", "lost", "duplicates", "reordered"]
        .map(|name| report["streams"][0]["counts"][name].as_u64().unwrap())
}

#[test]
fn plain_header_is_received_without_loss() {
    let (mut pcap, mut random) = (Pcap::new(), Random(1));
    for number in 5..305_u64 {
        let header = [number.to_be_bytes(), pcap.ns.to_be_bytes()].concat();
        pcap.add(
            SENDER,
            RECEIVER,
            &[header, noise(&mut random, 8192)].concat(),
        );
    }
    let daq = pcap.daq();
    receives(&daq, 300, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text =>
        "header   = 16", "payload  = \"8 KiB\"", "sequence = { offset = 0, bytes = 8, endian = \"big\" }",
        "# timestamp = { offset = 8, bytes = 8, endian = \"big\", rate = \"1.00 GHz\" }"
    );
    assert_eq!(counts(&json(&daq)), [300, 0, 0, 0]);
}

#[test]
fn odd_header_with_loss_reorder_and_duplicates_is_counted() {
    let (mut pcap, mut random) = (Pcap::new(), Random(2));
    let mut numbers: Vec<u32> = (0..600).filter(|n| ![100, 101, 300].contains(n)).collect();
    numbers.swap(50, 51);
    numbers.insert(200, numbers[199]);
    for n in numbers {
        // Three constant bytes, a number of three bytes with step 5, two constant bytes.
        let number = (65_000 + 5 * n).to_le_bytes();
        let header = [&[0xfe, 0xed, 7], &number[..3], &[0x12, 0x34]].concat();
        pcap.add(
            SENDER,
            RECEIVER,
            &[header, noise(&mut random, 1000)].concat(),
        );
    }
    let daq = pcap.daq();
    assert_eq!(counts(&json(&daq)), [600, 3, 1, 1]);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text => "step = 5", "fe ed 07", "offset = 3, bytes = 3, endian = \"little\"");
    let outcome = replay(&daq);
    for (name, expected) in [
        ("delivered", 597),
        ("rejected", 0),
        ("duplicates", 1),
        ("lost.wire_gap", 3),
    ] {
        assert_eq!(
            outcome.count(&format!("sources.instrument.{name}")),
            expected,
            "{name}"
        );
    }
}

#[test]
fn stream_over_several_groups_is_one_source() {
    let (mut pcap, mut random) = (Pcap::new(), Random(3));
    for n in 0..400_u64 {
        let octet = u8::try_from(n % 4).unwrap();
        let group = SocketAddrV4::new(Ipv4Addr::new(239, 1, 0, octet), PORT);
        let header = [
            0xbeef_0000_0000_u64.to_be_bytes(),
            (n * 2 + 10).to_be_bytes(),
        ]
        .concat();
        pcap.add(SENDER, group, &[header, noise(&mut random, 4096)].concat());
    }
    let daq = pcap.daq();
    receives(&daq, 400, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text => "step = 2", "# groups = [\"239.1.0.0\", \"239.1.0.1\", \"239.1.0.2\", \"239.1.0.3\"]");
    assert_eq!(json(&daq)["streams"].as_array().unwrap().len(), 1);
}

#[test]
fn random_bytes_are_not_recognised() {
    for length in [64, 1024] {
        let (mut pcap, mut random) = (Pcap::new(), Random(length));
        for _ in 0..300 {
            let length = usize::try_from(length).unwrap();
            pcap.add(SENDER, RECEIVER, &noise(&mut random, length));
        }
        let daq = pcap.daq();
        let done = inspect(&daq);
        assert_eq!(done.code, 1, "{}", done.stdout);
        assert_contains!(done.stdout => "nothing recognised", "no number", !"[source");
        fits_terminal(&done.stdout);
    }
}

/// Numbers in messages are no counters, and packets to another port than the given one are reported.
#[test]
fn text_and_other_ports_are_reported() {
    let mut pcap = Pcap::new();
    for n in 0..300 {
        let message = format!("{{\"id\": {:4}, \"level\": 3}}", n + 100);
        pcap.add(SENDER, RECEIVER, message.as_bytes());
    }
    let daq = pcap.daq();
    let done = inspect(&daq);
    assert_eq!(done.code, 1, "{}", done.stdout);
    assert_contains!(done.stdout => "the packets contain text");
    let done = daq.cli_line("inspect capture.pcap --port 9");
    assert_eq!(done.code, 1);
    assert_contains!(done.stdout => "300 packets to other ports were not examined, 300 of them to port 7148");
}

/// The lower byte of this number changes in each packet, the upper byte rarely.
#[test]
fn byte_order_of_short_number_is_found() {
    let (mut pcap, mut random) = (Pcap::new(), Random(11));
    for n in 0..700_u16 {
        let header = [0x80, 96, n.to_be_bytes()[0], n.to_be_bytes()[1], 0, 0];
        pcap.add(
            SENDER,
            RECEIVER,
            &[&header[..], &noise(&mut random, 1024)].concat(),
        );
    }
    let daq = pcap.daq();
    receives(&daq, 700, 0);
    assert_contains!(inspect(&daq).ok().stdout => "sequence = { offset = 2, bytes = 2, endian = \"big\" }");
}

#[test]
fn empty_torn_and_foreign_files_are_reported() {
    let daq = Pcap::new().daq();
    let done = inspect(&daq);
    assert_eq!(done.code, 1);
    assert_contains!(done.stdout => "the capture contains no UDP packets");
    let (mut pcap, mut random) = (Pcap::new(), Random(4));
    for n in 0..50_u64 {
        pcap.add(
            SENDER,
            RECEIVER,
            &[&n.to_be_bytes()[..], &noise(&mut random, 512)].concat(),
        );
    }
    pcap.bytes.truncate(pcap.bytes.len() - 100);
    let daq = pcap.daq();
    assert_contains!(inspect(&daq).ok().stdout => "ends within a record");
    receives(&daq, 49, 0);
    daq.write("capture.pcap", "this is a text");
    let done = inspect(&daq);
    assert_eq!(done.code, 74);
    assert_contains!(done.stderr => "neither pcap nor pcapng");
    let done = daq.cli(&["inspect", "absent.pcap"]);
    assert_eq!(done.code, 74);
    assert_contains!(done.stderr => "absent.pcap");
    let done = daq.cli(&["inspect"]);
    assert_eq!(done.code, 64);
    assert_contains!(done.stderr => "CAPTURE", "--interface", "--port");
}

/// Builds a packet of a VITA-49 stream with 1024 bytes of payload.
fn vita49(n: u64, random: &mut Random) -> Vec<u8> {
    let words: u64 = 7 + 256;
    let first = (1 << 28) | (1 << 27) | (1 << 22) | (2 << 20) | (n % 16) << 16 | words;
    let mut packet = u32::try_from(first).unwrap().to_be_bytes().to_vec();
    packet.extend([0xde, 0xad, 0xbe, 0xef, 0, 0x7c, 0x38, 0x6c, 0, 0, 0, 0]);
    packet.extend(1_700_000_000_u32.to_be_bytes());
    packet.extend((n * 1_000_000_000).to_be_bytes());
    packet.extend(noise(random, 1024));
    packet
}

/// Builds a packet of a JUNGFRAU module.
fn jungfrau(frame: u64, packet: u32, random: &mut Random) -> Vec<u8> {
    let mut bytes = frame.to_le_bytes().to_vec();
    bytes.extend(1000_u32.to_le_bytes());
    bytes.extend(packet.to_le_bytes());
    bytes.extend((0xabc_0000 + frame).to_le_bytes());
    bytes.extend((frame * 1_000_000).to_le_bytes());
    bytes.extend([0; 14]);
    bytes.extend([3, 2]);
    bytes.extend(noise(random, 8192));
    bytes
}

/// Builds a packet of an event of 50,000 bytes with a reassembly header.
fn e2sar(event: u64, offset: u32, random: &mut Random) -> Vec<u8> {
    let length = 50_000_u32;
    let mut bytes = vec![0x10, 0, 0, 7];
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(event.to_be_bytes());
    bytes.extend(noise(random, (length - offset).min(8000) as usize));
    bytes
}

/// Builds a VDIF frame of 5032 bytes, 250 per second.
fn vdif(n: u32, random: &mut Random) -> Vec<u8> {
    let words = [
        1000 + n / 250,
        (46 << 24) | (n % 250),
        (1 << 24) | (5032 / 8),
        (1 << 26) | 0x4142,
    ];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend([0; 16]);
    bytes.extend(noise(random, 5000));
    bytes
}

#[test]
fn public_formats_are_recognised_with_their_losses() {
    let mut random = Random(5);
    let random = &mut random;
    let vita: Vec<_> = (0..200)
        .filter(|n| *n != 70)
        .map(|n| vita49(n, random))
        .collect();
    let detector: Vec<_> = (0..6_u64)
        .flat_map(|frame| (0..128).map(move |packet| (frame, packet)))
        .filter(|place| *place != (3, 17))
        .map(|(frame, packet)| jungfrau(1000 + frame, packet, random))
        .collect();
    let events: Vec<_> = (0..40_u64)
        .flat_map(|event| (0..7).map(move |part| (event, part * 8000)))
        .filter(|place| *place != (20, 16_000))
        .map(|(event, offset)| e2sar(90_000 + event, offset, random))
        .collect();
    let frames: Vec<_> = (0..400)
        .filter(|n| *n != 77)
        .map(|n| vdif(n, random))
        .collect();
    let formats = Daq::new("").cli(&["list"]).ok().stdout;
    for (name, expected, kind, packets) in [
        ("VITA-49", 200, "vita49", vita),
        ("PSI detector (JUNGFRAU", 768, "raw", detector),
        ("E2SAR", 280, "raw", events),
        ("VDIF", 400, "vdif", frames),
    ] {
        let mut pcap = Pcap::new();
        for packet in &packets {
            pcap.add(SENDER, RECEIVER, packet);
        }
        let daq = pcap.daq();
        let report = json(&daq);
        let found = report["streams"][0]["format"]["name"].as_str().unwrap();
        assert!(found.starts_with(name), "{found}");
        assert_eq!(counts(&report), [expected, 1, 0, 0], "{name}");
        fits_terminal(&inspect(&daq).ok().stdout);
        if formats.contains(kind) {
            receives(&daq, expected - 1, 1);
        }
    }
}

#[test]
fn modules_on_two_ports_are_parts_of_one_frame() {
    let (mut pcap, mut random) = (Pcap::new(), Random(7));
    for frame in 0..5 {
        for packet in 0..128 {
            for module in 0..2_u8 {
                let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, module + 1), 5000);
                let to = SocketAddrV4::new(*RECEIVER.ip(), 50_001 + u16::from(module));
                pcap.add(from, to, &jungfrau(70 + frame, packet, &mut random));
            }
        }
    }
    let daq = pcap.daq();
    receives(&daq, 1280, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text =>
        "frame    = { offset = 0, bytes = 8, endian = \"little\" }",
        "packet   = { offset = 12, bytes = 4, endian = \"little\" }",
        "packets  = 128",
        "part     = { from = \"port\", values = [50001, 50002] }",
        "listen = [\"0.0.0.0:50001\", \"0.0.0.0:50002\"]"
    );
}

/// Builds packet `index` of a SPEAD-64-48 heap of four packets of 512 bytes, with immediate `items` in each packet.
fn spead(counter: u64, index: u64, items: &[(u64, u64)], random: &mut Random) -> Vec<u8> {
    let sizes = [(1, counter), (2, 2048), (3, index * 512), (4, 512)];
    let pointers: Vec<u64> = sizes
        .iter()
        .chain(items)
        .map(|(id, value)| 1 << 63 | id << 48 | value)
        .collect();
    let mut bytes = vec![0x53, 4, 2, 6, 0, 0, 0];
    bytes.push(u8::try_from(pointers.len()).unwrap());
    bytes.extend(pointers.iter().flat_map(|pointer| pointer.to_be_bytes()));
    bytes.extend(noise(random, 512));
    bytes
}

/// The engines of a correlator count their heaps in a common run; the time and the engine distinguish the heaps of a frame.
#[test]
fn heaps_of_four_engines_and_two_bands_are_parts_of_one_frame() {
    let (mut pcap, mut random) = (Pcap::new(), Random(9));
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 2, 0, 1), PORT);
    for frame in 0..12_u64 {
        for engine in 0..4_u8 {
            let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, engine + 1), 8888);
            let engine = u64::from(engine);
            for band in 0..2 {
                let counter = (band << 40) + frame * 4 + engine;
                let items = [
                    (0x1600, 77 + frame * 4096),
                    (0x4101, engine),
                    (0x4103, band * 512),
                ];
                for index in 0..4 {
                    pcap.add(from, group, &spead(counter, index, &items, &mut random));
                }
            }
        }
    }
    let daq = pcap.daq();
    receives(&daq, 12 * 4 * 2 * 4, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text =>
        "frame  = { item = 0x1600, step = 4096 }",
        "{ item = 0x4101, count = 4 }", "{ item = 0x4103, values = [0, 512] }", !"heap_step",
        "listen = \"239.2.0.1:7148\""
    );
    let report = json(&daq);
    assert_eq!(report["streams"].as_array().unwrap().len(), 1);
    assert_eq!(counts(&report), [384, 0, 0, 0]);
}

/// Senders that do not know of each other count their heaps alike.
#[test]
fn heaps_with_equal_counters_on_two_ports_are_parts_of_one_frame() {
    let (mut pcap, mut random) = (Pcap::new(), Random(10));
    for counter in 1..=20 {
        for sender in 0..2 {
            let to = SocketAddrV4::new(*RECEIVER.ip(), 7150 + sender);
            for index in 0..4 {
                pcap.add(SENDER, to, &spead(counter, index, &[], &mut random));
            }
        }
    }
    let daq = pcap.daq();
    receives(&daq, 160, 0);
    assert_contains!(inspect(&daq).ok().stdout => "part     = { from = \"port\", values = [7150, 7151] }");
}

#[test]
fn unknown_frame_and_packet_numbers_are_found() {
    let (mut pcap, mut random) = (Pcap::new(), Random(8));
    for frame in 0..60_u32 {
        for packet in 1..=6_u16 {
            let mut bytes = b"ULTR".to_vec();
            bytes.extend((7 + 3 * frame).to_le_bytes());
            bytes.extend(packet.to_le_bytes());
            bytes.extend([6, 0]);
            bytes.extend(noise(&mut random, 1200));
            pcap.add(SENDER, RECEIVER, &bytes);
        }
    }
    let daq = pcap.daq();
    receives(&daq, 360, 0);
    let text = inspect(&daq).ok().stdout;
    assert_contains!(text =>
        "frame    = { offset = 4, bytes = 4, endian = \"little\", step = 3 }",
        "packet   = { offset = 8, bytes = 2, endian = \"little\", first = 1 }",
        "packets  = 6",
        "header   = 12"
    );
}

/// A running tcpdump, which is killed when this value is dropped.
struct Recording(Child);

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts recording UDP packets of the loopback interface, or returns the reason why it cannot.
fn record(daq: &Daq, filter: &str) -> Result<Recording, String> {
    let tcpdump = program("tcpdump").ok_or("tcpdump is not installed")?;
    let mut command = Command::new(tcpdump);
    let path = daq.path("capture.pcap");
    // Without immediate mode, packets wait for up to a second in a block that is lost at the end. In this mode, each packet occupies
    // as many bytes as the longest one could have, so the default, 256 KiB, would need a buffer of 600 MB.
    command
        .args([
            "-i", "lo", "-U", "-Z", "root", "-s", "16384", "-B", "131072",
        ])
        .args(["--immediate-mode", "-w"])
        .arg(&path);
    command.args(filter.split(' ')).stderr(Stdio::null());
    let mut recording = Recording(command.spawn().unwrap());
    // tcpdump writes the file header once it captures.
    let mut ended = None;
    wait_until("tcpdump", || {
        ended = recording.0.try_wait().unwrap();
        ended.is_some() || std::fs::metadata(&path).is_ok_and(|file| file.len() > 0)
    });
    match ended {
        Some(_) => Err("tcpdump may not capture on the loopback interface".to_owned()),
        None => Ok(recording),
    }
}

/// Ends a recording after its file has stopped to grow.
fn finish(daq: &Daq, mut recording: Recording) {
    let size = || std::fs::metadata(daq.path("capture.pcap")).unwrap().len();
    let mut last = 0;
    wait_until("the end of the capture", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::mem::replace(&mut last, size()) == size()
    });
    let pid = rustix::process::Pid::from_child(&recording.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    recording.0.wait().unwrap();
}

const SPEAD2: &str = r#"
import sys, numpy as np, spead2, spead2.send
stream = spead2.send.UdpStream(spead2.ThreadPool(), [("127.0.0.1", int(sys.argv[1]))], spead2.send.StreamConfig(rate=20e6))
group = spead2.send.ItemGroup()
group.add_item(0x1600, "timestamp", "", shape=(), format=[("u", 48)])
group.add_item(0x3300, "samples", "", shape=(30000,), dtype=np.int16)
for i in range(20):
    group["timestamp"].value = i * 2048
    group["samples"].value = np.random.randint(-500, 500, 30000).astype(np.int16)
    stream.send_heap(group.get_heap())
stream.send_heap(group.get_end())
# Otherwise, the interpreter sometimes hangs when it exits.
del stream
"#;

#[test]
fn spead2_with_default_settings_is_received() {
    let python: Python = python!("spead2", "numpy");
    let (daq, port) = (Daq::new(""), free_udp_port());
    let recording = match record(&daq, &format!("udp port {port}")) {
        Ok(recording) => recording,
        Err(why) => skip!("{why}"),
    };
    python.run(SPEAD2, &[port.to_string()]);
    finish(&daq, recording);
    let text = inspect(&daq).ok().stdout;
    fits_terminal(&text);
    assert_contains!(text => "SPEAD-64-40", "heap 60006 B", "counter step 1", "item 0x1600", "descriptors are in 1 heap");
    assert_eq!(counts(&json(&daq))[1..], [0, 0, 0]);
    let outcome = replay(&daq);
    let counts = ["rejected", "duplicates", "lost.wire_gap"]
        .map(|name| outcome.count(&format!("sources.instrument.{name}")));
    assert_eq!(counts, [0, 0, 0], "{:#}", outcome.report);
    assert_eq!(
        outcome.count("rings.instrument.published"),
        20,
        "{:#}",
        outcome.report
    );
}

/// Sends frames of one heap per antenna, with the counters of `spead2_antennas.py`, and checks that the suggested source receives
/// each of them. `ports` is the number of ports to which the antennas send.
fn antennas_are_received(counters: &str, ports: usize, part: &str) {
    let python: Python = python!("spead2", "numpy");
    let daq = Daq::new("");
    let ports: Vec<_> = (0..ports).map(|_| free_udp_port()).collect();
    let filters: Vec<_> = ports
        .iter()
        .map(|port| format!("udp port {port}"))
        .collect();
    let recording = match record(&daq, &filters.join(" or ")) {
        Ok(recording) => recording,
        Err(why) => skip!("{why}"),
    };
    let job = serde_json::json!({
        "ports": ports, "file": daq.path("sent"), "antennas": 4, "frames": 40, "heap": 20_000, "counters": counters
    });
    python.run(
        include_str!("../../python/spead2_antennas.py"),
        &[job.to_string()],
    );
    finish(&daq, recording);
    let text = inspect(&daq).ok().stdout;
    fits_terminal(&text);
    assert_contains!(text => "samples = 0x4301", "heap    = 20000", part);
    let outcome = replay(&daq);
    let counts = ["rejected", "duplicates", "lost.wire_gap", "epochs"]
        .map(|name| outcome.count(&format!("sources.instrument.{name}")));
    assert_eq!(counts, [0, 0, 0, 1], "{text}\n{:#}", outcome.report);
    let parts = &outcome.report["sources"]["instrument"]["parts"];
    assert_eq!(parts.as_object().unwrap().len(), 4, "{text}");
    assert_eq!(outcome.count("rings.instrument.published"), 40, "{text}");
}

#[test]
fn antennas_of_spead2_with_counters_of_their_own_are_parts_of_one_frame() {
    antennas_are_received("mixed", 1, "part   = { item = 0x4101, count = 4 }");
}

#[test]
fn antennas_of_spead2_with_equal_counters_are_parts_of_one_frame() {
    antennas_are_received("parallel", 1, "frame  = { item = 0x1600, step = 4096 }");
    antennas_are_received("parallel", 4, "part   = { item = 0x4101, count = 4 }");
}

/// Records a fake camera and its client in a network namespace, where no other test sends. The name of the capture is the
/// first argument.
const CAMERA: &str = r#"
ip link set lo up || exit 75
arv-fake-gv-camera-0.8 -i 127.0.0.1 >/dev/null 2>&1 & camera=$!
tcpdump -i lo -U -B 65536 -Z root -w "$1" udp 2>/dev/null & capture=$!
until [ -s "$1" ]; do sleep 0.1; done
sleep 1
arv-tool-0.8 -a 127.0.0.1 control PixelFormat=Mono16 >/dev/null 2>&1
arv-camera-test-0.8 --no-packet-socket --duration=2 -f 10 >/dev/null 2>&1; result=$?
sleep 1
kill -INT $capture; wait $capture
kill $camera
exit $result
"#;

#[test]
fn gige_camera_of_aravis_is_recognised() {
    for tool in [
        "arv-fake-gv-camera-0.8",
        "arv-camera-test-0.8",
        "arv-tool-0.8",
        "tcpdump",
        "ip",
        "unshare",
    ] {
        if program(tool).is_none() {
            skip!("{tool} is not installed");
        }
    }
    let daq = Daq::new("");
    let mut script = Command::new("unshare");
    script
        .args(["--net", "sh", "-c", CAMERA, "camera"])
        .arg(daq.path("capture.pcap"));
    let output = script.output().unwrap();
    if !output.status.success() {
        skip!(
            "the camera did not run in a network namespace: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let report = json(&daq);
    let streams = report["streams"].as_array().unwrap();
    let stream = streams
        .iter()
        .find(|stream| stream["format"]["name"] == "GigE Vision stream (GVSP)");
    let stream = stream.unwrap_or_else(|| panic!("{report:#}"));
    let counts = &stream["counts"];
    assert!(
        counts["expected"].as_u64() > Some(100) && counts["lost"] == 0,
        "{counts}"
    );
    let why = stream["format"]["why"].to_string();
    assert_contains!(why => "512 x 512 pixels, Mono16");
    assert_contains!(stream["section"].to_string() => "uint16");
    assert!(
        streams
            .iter()
            .any(|stream| stream["format"]["name"] == "GigE Vision control (GVCP)")
    );
    fits_terminal(&inspect(&daq).ok().stdout);
    let outcome = replay(&daq);
    let count = |name: &str| outcome.count(&format!("sources.instrument.{name}"));
    let expected = counts["expected"].as_u64().unwrap();
    assert_eq!(count("delivered"), expected, "{:#}", outcome.report);
    assert_eq!((count("rejected"), count("lost.wire_gap")), (0, 0));
}

#[test]
fn live_packets_are_recognised_and_silence_is_reported() {
    let (daq, port) = (Daq::new(""), free_udp_port());
    let silent = daq.cli_line(&format!("inspect --port {port} --for 50ms"));
    assert_eq!(silent.code, 1);
    assert_contains!(silent.stdout => "no UDP packets arrived", "--group");
    let missing = daq.cli_line("inspect --interface absent0 --for 50ms");
    assert_eq!(missing.code, 69);
    assert_contains!(missing.stderr => "there is no interface absent0", "ip link");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for arguments in [
        format!("--port {port}"),
        format!("--interface lo --port {port}"),
    ] {
        let mut arguments: Vec<String> = arguments.split(' ').map(ToOwned::to_owned).collect();
        arguments.extend(["--for", "2 s", "--json"].map(ToOwned::to_owned));
        let done = std::thread::scope(|scope| {
            let run = scope.spawn(|| daq.cli(&[&["inspect".to_owned()][..], &arguments].concat()));
            let mut random = Random(6);
            for n in 0_u64.. {
                if run.is_finished() {
                    break;
                }
                let packet = [&n.to_be_bytes()[..], &noise(&mut random, 1024)].concat();
                // Without a receiver, the next call reports that the port is closed.
                let _ = socket.send_to(&packet, ("127.0.0.1", port));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            run.join().unwrap()
        });
        let report = done.ok().json();
        let format = &report["streams"][0]["format"];
        assert_eq!(format["name"], "fixed header with counters", "{report:#}");
        let section = report["streams"][0]["section"].as_str().unwrap();
        assert_contains!(section => "driver = \"udp\"", &format!("listen = \"0.0.0.0:{port}\""), "header   = 8");
    }
}

#[test]
fn missing_permission_is_reported_with_alternatives() {
    let Some(setpriv) = program("setpriv").filter(|_| rustix::process::geteuid().is_root()) else {
        skip!("setpriv is not installed, or this is not root");
    };
    let daq = Daq::new("");
    let run = |arguments: &str| {
        let mut command = Command::new(&setpriv);
        daq.prepare(&mut command);
        command
            .args(["--bounding-set=-all", "--inh-caps=-all"])
            .arg(daq_testkit::binary());
        let output = command.args(arguments.split(' ')).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout) + &text(output.stderr),
        )
    };
    let (code, text) = run("inspect --interface lo --for 50ms");
    assert_eq!(code, Some(69), "{text}");
    assert_contains!(text => "CAP_NET_RAW", "setcap", "--port");
    let (code, text) = run(&format!(
        "inspect --interface lo --port {} --for 50ms",
        free_udp_port()
    ));
    assert_eq!(code, Some(1), "{text}");
    assert_contains!(text => "so a UDP socket receives");
}

#[test]
fn heaps_of_spead2_that_differ_in_size_are_frames_of_their_own_size() {
    let python: Python = python!("spead2", "numpy");
    let daq = Daq::new("");
    let port = free_udp_port();
    let recording = match record(&daq, &format!("udp port {port}")) {
        Ok(recording) => recording,
        Err(why) => skip!("{why}"),
    };
    let job = serde_json::json!({
        "port": port, "file": daq.path("sent"), "heaps": 100, "max": 20_000, "alike": 3, "descriptors": "own"
    });
    python.run(
        include_str!("../../python/spead2_sizes.py"),
        &[job.to_string()],
    );
    finish(&daq, recording);
    let text = inspect(&daq).ok().stdout;
    fits_terminal(&text);
    assert_contains!(text => "max_heap = 20000", "packet = 1432", "first  = 1416", !"heap   =");
    let outcome = replay(&daq);
    let counts = ["rejected", "duplicates", "lost.wire_gap", "epochs"]
        .map(|name| outcome.count(&format!("sources.instrument.{name}")));
    assert_eq!(counts, [0, 0, 0, 1], "{text}\n{:#}", outcome.report);
    assert_eq!(outcome.count("rings.instrument.published"), 100, "{text}");
    let sent = std::fs::metadata(daq.path("sent")).unwrap().len();
    assert_eq!(outcome.count("sources.instrument.bytes"), sent, "{text}");
}
