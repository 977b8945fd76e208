//! Tests the source `xdp` with a pair of virtual interfaces. Every packet must arrive, and other traffic must be
//! unaffected.
//!
//! Needs root privileges, for the network namespaces and for the source.

use super::stream::{self, DISK, assert_whole, packet};
use super::veth::{self, FAR, NEAR, ip};
use daq_testkit::network::recording;
use daq_testkit::{Daq, Live, assert_contains, assert_counts, python, skip, wait_for};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

const SEND: &str = include_str!("../../python/spead2_send.py");
/// Payload bytes per packet.
const PAYLOAD: usize = 1024;
/// Number of packets per batch. Every queue on the way can hold more packets.
const BURST: u64 = 128;
const TO: &str = "10.77.0.1:4950";

/// Returns the far namespace, or skips the test.
macro_rules! wire {
    ($queues:expr, $mtu:expr) => {
        match veth::wire($queues, $mtu) {
            Ok(far) => far,
            Err(why) => skip!("cannot create virtual interfaces: {why}"),
        }
    };
}

/// Returns the source `adc` with `keys` and payloads of `bytes` bytes, and the file sink `disk`.
fn config(keys: &str, bytes: usize) -> String {
    let keys = format!("driver = \"xdp\"\ninterface = \"{NEAR}\"\n{keys}");
    stream::config(&keys, bytes, 288, DISK)
}

fn started(daq: &Daq) -> Live {
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    live
}

/// Returns sockets in the far namespace, one per flow.
fn flows(far: &veth::Far, to: &str, count: usize) -> Vec<UdpSocket> {
    let to: SocketAddr = to.parse().unwrap();
    let from = if to.is_ipv4() {
        "10.77.0.2:0"
    } else {
        "[fd77::2]:0"
    };
    far.run(|| {
        (0..count)
            .map(|_| {
                let socket = UdpSocket::bind(from).unwrap();
                socket.connect(to).unwrap();
                socket
            })
            .collect()
    })
}

/// Sends `packets` packets with `bytes` payload bytes over `flows` in turn. Limits the packets in flight, so that no
/// queue overflows and no thread falls behind the window of another thread.
fn send(live: &mut Live, flows: &[UdpSocket], packets: u64, bytes: usize) {
    for n in 0..packets {
        let flow = usize::try_from(n).unwrap() % flows.len();
        flows[flow].send(&packet(n, bytes)).unwrap();
        if n % BURST == BURST - 1 {
            live.wait_count("sources.adc.expected", n + 1);
            live.wait_count("sources.adc.delivered", n + 1);
        }
    }
}

/// Returns whether an XDP program is attached to the near interface.
fn is_attached() -> bool {
    ip(&format!("-details link show dev {NEAR}"))
        .unwrap()
        .contains("xdp")
}

/// The sender is PyPI's spead2, in a format that `udp` supports as well.
#[test]
fn xdp_spead2_heaps_are_byte_identical() {
    const HEAPS: usize = 8;
    const HEAP: usize = 60_000;
    let python = python!("spead2", "numpy");
    let given = format!("heap = {HEAP}\npacket = 1432\nfirst = 1424\naddress_bits = 40");
    for (attach, sizes) in [("native", &*given), ("generic", &given), ("native", "")] {
        let far = wire!(1, 1500);
        let daq = Daq::new(&format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n\
             [source.adc]\ndriver = \"xdp\"\nring = \"raw\"\ninterface = \"{NEAR}\"\nlisten = \"{TO}\"\n\
             attach = \"{attach}\"\n\
             [source.adc.format]\nkind = \"spead\"\n{sizes}\n\
             [ring.raw]\nmemory = \"host\"\nslot = {HEAP}\nslots = 64\n\
             [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"256 KiB\"\n"
        ));
        let mut live = started(&daq);
        // The queues can hold all of these packets.
        let job = json!({
            "host": "10.77.0.1", "port": 4950, "file": daq.path("sent"), "heaps": HEAPS, "heap": HEAP, "packet": 1472,
            "address_bits": 40, "repeat": false, "order": "plain", "descriptors": "own", "rate": 10e6,
        });
        far.run(|| python.run(SEND, &[job.to_string()]));
        let packets = (HEAPS * (1 + (HEAP - 1424).div_ceil(1432))) as u64;
        live.wait_count("sources.adc.expected", packets);
        live.wait_count("sources.adc.control", 2);
        let outcome = live.stop().ok();
        assert_counts!(outcome, "sources.adc" => delivered: packets);
        assert!(recording(&daq, "disk").data == std::fs::read(daq.path("sent")).unwrap());
        let is_detected = outcome.stderr.contains("detected heap = ");
        assert_eq!(is_detected, sizes.is_empty(), "{}", outcome.stderr);
    }
}

/// Tests driver mode and generic mode, with IPv4 and IPv6.
#[test]
fn xdp_packets_all_arrive() {
    const PACKETS: u64 = 4096;
    for (to, attach, place) in [
        (TO, "native", "selected in the driver"),
        (TO, "generic", "selected after the driver"),
        ("[fd77::1]:4950", "auto", "selected in the driver"),
    ] {
        let far = wire!(1, 1500);
        let daq = Daq::new(&config(
            &format!("listen = \"{to}\"\nattach = \"{attach}\""),
            PAYLOAD,
        ));
        let mut live = started(&daq);
        assert!(is_attached());
        send(&mut live, &flows(&far, to, 1), PACKETS, PAYLOAD);
        let outcome = assert_whole(&daq, live, PACKETS, PAYLOAD);
        let stderr = &outcome.stderr;
        assert_contains!(stderr => place, "copied by Linux", !"through the Linux network stack");
        assert!(!is_attached(), "the XDP program is still attached");
    }
}

/// Packets are longer than a chunk, so they are received in several pieces.
#[test]
fn xdp_jumbo_packets_all_arrive() {
    const PACKETS: u64 = 512;
    for (chunk, mtu) in [("2 KiB", 4000_u16), ("4 KiB", 9000)] {
        let far = wire!(1, mtu.into());
        // The maximum payload is the MTU without the headers of IP, UDP and this format.
        let bytes = usize::from(mtu) - 28 - 8;
        let daq = Daq::new(&config(
            &format!("listen = \"{TO}\"\nchunk = \"{chunk}\""),
            bytes,
        ));
        let mut live = started(&daq);
        send(&mut live, &flows(&far, TO, 1), PACKETS, bytes);
        let outcome = assert_whole(&daq, live, PACKETS, bytes);
        let stderr = &outcome.stderr;
        assert_contains!(stderr => !"through the Linux network stack");
    }
}

/// Other traffic must reach Linux's network stack. Matching packets that arrive there are received through a UDP
/// socket.
#[test]
fn xdp_other_traffic_reaches_network_stack() {
    let far = wire!(1, 1500);
    // With the header, 2008 bytes, which need two fragments.
    let bytes = 2000;
    let daq = Daq::new(&config(&format!("listen = \"{TO}\""), bytes));
    let mut live = started(&daq);
    assert!(is_attached());
    let tcp = TcpListener::bind("10.77.0.1:0").unwrap();
    let other = UdpSocket::bind("10.77.0.1:4951").unwrap();
    let address = tcp.local_addr().unwrap();
    let (mut caller, udp) = far.run(|| {
        let udp = UdpSocket::bind("10.77.0.2:0").unwrap();
        (TcpStream::connect(address).unwrap(), udp)
    });
    caller.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    tcp.accept().unwrap().0.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    udp.send_to(b"another port", "10.77.0.1:4951").unwrap();
    let mut heard = [0; 64];
    let n = other.recv(&mut heard).unwrap();
    assert_eq!(&heard[..n], b"another port");
    // These datagrams are fragmented.
    send(&mut live, &flows(&far, TO, 1), 256, bytes);
    let outcome = assert_whole(&daq, live, 256, bytes);
    let stderr = &outcome.stderr;
    assert_contains!(stderr => "through the Linux network stack");
}

/// Several sockets fill one window. Packets of a queue without a socket arrive through Linux's network stack.
#[test]
fn xdp_several_queues_fill_one_window() {
    const PACKETS: u64 = 4096;
    for (queues, wait, is_bypassed) in [
        ("2", "adaptive", true),
        ("[1, 0]", "adaptive", true),
        ("[0]", "adaptive", false),
        ("[0]", "busy", false),
    ] {
        let far = wire!(2, 1500);
        let daq = Daq::new(&config(
            &format!("listen = \"{TO}\"\nqueues = {queues}\nwindow = 16\nwait = \"{wait}\""),
            PAYLOAD,
        ));
        let mut live = started(&daq);
        send(&mut live, &flows(&far, TO, 32), PACKETS, PAYLOAD);
        let outcome = assert_whole(&daq, live, PACKETS, PAYLOAD);
        let stderr = &outcome.stderr;
        assert!(
            is_bypassed || stderr.contains("through the Linux network stack"),
            "{stderr}"
        );
    }
}

#[test]
fn xdp_multicast_group_is_joined() {
    let far = wire!(1, 1500);
    let group = Ipv4Addr::new(239, 77, 3, 4);
    let daq = Daq::new(&config(&format!("listen = \"{group}:4950\""), PAYLOAD));
    let mut live = started(&daq);
    let joined = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
    assert!(joined.contains("04034DEF"), "{joined}");
    far.run(|| ip(&format!("route add {group}/32 dev {FAR}")).unwrap());
    let flows = flows(&far, &format!("{group}:4950"), 1);
    send(&mut live, &flows, 256, PAYLOAD);
    assert_whole(&daq, live, 256, PAYLOAD);
}

/// After every kind of end, the XDP program is removed and the next run starts. A second concurrent run is rejected.
#[test]
fn xdp_killed_run_leaves_no_program() {
    let far = wire!(1, 1500);
    let daq = Daq::new(&config(&format!("listen = \"{TO}\""), PAYLOAD));
    let mut live = started(&daq);
    send(&mut live, &flows(&far, TO, 1), 256, PAYLOAD);
    assert!(is_attached());
    let second = Daq::new(&config("listen = \"10.77.0.1:4960\"", PAYLOAD)).run(&[]);
    assert_eq!(second.code, 69, "{}", second.stderr);
    let stderr = &second.stderr;
    assert_contains!(stderr => NEAR, "another XDP program is attached");
    assert!(is_attached());
    live.kill();
    assert!(!is_attached(), "the XDP program is still attached");
    let next = Daq::new(&config(&format!("listen = \"{TO}\""), PAYLOAD));
    let mut live = started(&next);
    send(&mut live, &flows(&far, TO, 1), 256, PAYLOAD);
    assert_whole(&next, live, 256, PAYLOAD);
}

/// An interface that goes down does not end the run. Packets arrive again when the interface is up.
#[test]
fn xdp_interface_down_and_up_continues() {
    let far = wire!(1, 1500);
    let daq = Daq::new(&config(&format!("listen = \"{TO}\""), PAYLOAD));
    let mut live = started(&daq);
    let flow = &flows(&far, TO, 1)[0];
    for n in 0..BURST {
        flow.send(&packet(n, PAYLOAD)).unwrap();
    }
    live.wait_count("sources.adc.expected", BURST);
    ip(&format!("link set {NEAR} down")).unwrap();
    live.wait_log("the interface is down");
    ip(&format!("link set {NEAR} up")).unwrap();
    // Packets are lost until both interfaces have a carrier.
    let is_up = |shown: String| shown.contains("state UP").then_some(());
    wait_for("the near end", || {
        is_up(ip(&format!("link show dev {NEAR}")).unwrap())
    });
    wait_for("the far end", || {
        is_up(far.run(|| ip(&format!("link show dev {FAR}")).unwrap()))
    });
    for n in BURST..2 * BURST {
        flow.send(&packet(n, PAYLOAD)).unwrap();
    }
    assert_whole(&daq, live, 2 * BURST, PAYLOAD);
}

/// If the interface is removed, the source ends with an error that names the interface.
#[test]
fn xdp_interface_removed_ends_run() {
    for wait in ["adaptive", "busy"] {
        let _far = wire!(1, 1500);
        let daq = Daq::new(&config(
            &format!("listen = \"{TO}\"\nwait = \"{wait}\""),
            PAYLOAD,
        ));
        let live = started(&daq);
        ip(&format!("link delete {NEAR}")).unwrap();
        let outcome = live.wait();
        assert_ne!(outcome.code, 0, "{wait}: {}", outcome.stderr);
        for words in [NEAR, "the interface or its receive queue was removed"] {
            assert!(outcome.stderr.contains(words), "{wait}: {}", outcome.stderr);
        }
    }
}

/// Missing, duplicate and foreign packets must be counted by kind.
#[test]
fn xdp_gaps_and_duplicates_are_counted() {
    const PACKETS: u64 = 512;
    let far = wire!(1, 1500);
    let daq = Daq::new(&config(&format!("listen = \"{TO}\""), PAYLOAD));
    let mut live = started(&daq);
    let flow = &flows(&far, TO, 1)[0];
    let is_missing = |n: u64| (100..110).contains(&n) || n == 200;
    for n in 0..PACKETS {
        if !is_missing(n) {
            flow.send(&packet(n, PAYLOAD)).unwrap();
        }
        if n % 100 == 99 {
            flow.send(&packet(n, PAYLOAD)).unwrap();
            flow.send(b"too short").unwrap();
        }
        if n % BURST == BURST - 1 {
            live.wait_count("sources.adc.expected", n + 1);
        }
    }
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" =>
        expected: PACKETS, delivered: PACKETS - 11, duplicates: 5, rejected: 5
    );
    let lost = &outcome.report["sources"]["adc"]["lost"];
    assert_eq!(*lost, json!({ "wire_gap": 11 }));
    let file = recording(&daq, "disk");
    for n in 0..PACKETS {
        let at = usize::try_from(n).unwrap() * PAYLOAD;
        let is_right = file.data[at..at + PAYLOAD] == packet(n, PAYLOAD)[8..];
        assert_eq!(is_right, !is_missing(n), "packet {n}");
    }
    assert_eq!(
        file.missing.iter().map(std::ops::Range::len).sum::<usize>(),
        11 * PAYLOAD
    );
}

/// Every impossible configuration must be reported with a fix.
#[test]
fn xdp_impossible_config_is_reported() {
    let _far = wire!(1, 1500);
    for (keys, words) in [
        (
            "listen = \"10.77.0.1:4950\"\nqueues = [5]",
            &["queue 5 of near0", "near0 has 1 receive queue,"][..],
        ),
        (
            "listen = \"10.77.0.1:4950\"\nmode = \"zero-copy\"",
            &["queue 0 of near0", "mode = \"auto\""],
        ),
        (
            "listen = \"10.77.0.9:4950\"",
            &[
                "UDP 10.77.0.9:4950: this machine does not have this address",
                "address show near0",
            ],
        ),
    ] {
        let outcome = Daq::new(&config(keys, PAYLOAD)).run(&[]);
        assert_eq!(outcome.code, 69, "{keys}: {}", outcome.stderr);
        for word in words {
            assert!(outcome.stderr.contains(word), "{keys}: {}", outcome.stderr);
        }
        assert!(!is_attached(), "{keys}");
    }
    let missing = config("listen = \"10.77.0.1:4950\"", PAYLOAD).replace(NEAR, "none0");
    let outcome = Daq::new(&missing).run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "interface none0");
}

/// The error of a missing queue names the queues also if packets are longer than a chunk.
#[test]
fn xdp_missing_queue_is_reported_for_jumbo_packets() {
    let _far = wire!(1, 9000);
    let keys = "listen = \"10.77.0.1:4950\"\nqueues = [5]";
    let outcome = Daq::new(&config(keys, PAYLOAD)).run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "queue 5 of near0", "near0 has 1 receive queue,");
}

/// Sends packet `number` with a correct or a wrong checksum from a raw socket.
const DAMAGED: &str = r#"
import socket, struct, sys

raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((sys.argv[1], 0x0800))
body = bytes.fromhex(sys.argv[2])


def fold(words):
    total = sum(struct.unpack(f">{len(words) // 2}H", words))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


addresses = socket.inet_aton("10.77.0.2") + socket.inet_aton("10.77.0.1")
length = 8 + len(body)
udp = struct.pack(">HHH", 4000, 4950, length)
checksum = fold(addresses + struct.pack(">HH", 17, length) + udp + b"\0\0" + body)
header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + addresses
header = header[:10] + struct.pack(">H", fold(header)) + header[12:]
for wrong in (1, 2, 0):
    raw.send(b"\xff" * 6 + bytes(6) + b"\x08\0" + header + udp + struct.pack(">H", checksum ^ wrong) + body)
"#;

/// Damaged packets are rejected, as Linux does for sockets.
#[test]
fn xdp_damaged_packets_are_rejected() {
    let python = python!("socket");
    let far = wire!(1, 1500);
    let daq = Daq::new(&config(&format!("listen = \"{TO}\""), PAYLOAD));
    let mut live = started(&daq);
    let bytes = packet(0, PAYLOAD);
    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = hex.concat();
    far.run(|| python.run(DAMAGED, &[FAR.to_owned(), hex]));
    live.wait_count("sources.adc.rejected", 2);
    let outcome = assert_delivered(live, 1);
    assert_counts!(outcome, "sources.adc" => rejected_by.checksum: 2);
}

fn assert_delivered(mut live: Live, packets: u64) -> daq_testkit::Outcome {
    live.wait_count("sources.adc.expected", packets);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.adc" => delivered: packets);
    outcome
}
