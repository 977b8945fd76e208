//! Tests the packets and the ledger of the sink `udp` with sockets of this process.

use crate::support::{AROUND, Feed, Sent, check, context, layout, spec};
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::layout::{Layout, Order, Scalar};
use daq_core::ledger::{Counts, SinkLedger, SinkReport};
use daq_core::sink::{Sink, SinkContext, SinkError};
use std::net::UdpSocket;
use std::time::Duration;

const POINTS: usize = 1000;

fn receiver() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    socket
}

fn to(sockets: &[UdpSocket]) -> String {
    let all: Vec<_> = sockets
        .iter()
        .map(|socket| format!("\"{}\"", socket.local_addr().unwrap()))
        .collect();
    format!("to = [{}]", all.join(", "))
}

/// The ledger of a sink, and the counters that only this kind of sink has.
type Ledgers = (SinkLedger, Counts);

fn format(payload: usize) -> String {
    format!("\n[sink.tx.format]\nkind = \"spead\"\npayload = {payload}\n")
}

/// Builds the sink `tx` for frames of `layout`, whose packets have 100 bytes.
fn build(keys: &str, layout: &Layout) -> Result<(Box<dyn Sink>, Ledgers), SinkError> {
    let packets = u32::try_from(layout.frame_bytes().div_ceil(100)).unwrap();
    let spec = spec("udp", "tx", keys).unwrap();
    let context = SinkContext {
        counts: Counts::in_memory(&spec.facts().counts),
        ..context("/tmp".as_ref(), "tx", layout.clone(), packets, 100)
    };
    let ledger = (context.ledger.clone(), context.counts.clone());
    check(&*spec, layout).map_err(|problem| SinkError::Failed {
        what: problem.key.unwrap_or_default(),
        why: problem.message,
    })?;
    Ok((spec.build(context)?, ledger))
}

/// Returns the frame `sequence`, which lacks the packets `missing` of 100 bytes.
fn frame(sequence: u64, bytes: usize, missing: &[u32]) -> Sent {
    let packets = u32::try_from(bytes.div_ceil(100)).unwrap();
    let mut present = vec![0_u64; packets.div_ceil(64) as usize];
    for packet in (0..packets).filter(|packet| !missing.contains(packet)) {
        present[packet as usize / 64] |= 1 << (packet % 64);
    }
    let arrived = packets - u32::try_from(missing.len()).unwrap();
    let meta = FrameMeta {
        packets_per_frame: packets,
        arrived,
        flags: if missing.is_empty() {
            Flags::default()
        } else {
            Flags::INCOMPLETE
        },
        timestamp: Timestamp {
            ns: 1_000_000 * sequence,
            clock: Clock::Sensor,
        },
        ..FrameMeta::whole(sequence, bytes)
    };
    let bytes = (0..bytes)
        .map(|i| u8::try_from((i + 7 * usize::try_from(sequence).unwrap()) % 251).unwrap());
    Sent {
        meta,
        bytes: bytes.collect(),
        present,
    }
}

fn feed(bytes: usize) -> Feed {
    Feed::new(8, bytes, u32::try_from(bytes.div_ceil(100)).unwrap())
}

/// A packet with data: frame, packet, time and payload.
type Data = (u64, u32, u64, Vec<u8>);

/// Receives packets until the end of the stream. Returns those with data, and the numbers of the frames at the end.
fn receive(socket: &UdpSocket) -> (Vec<Data>, String) {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let got = socket.recv(&mut buffer).unwrap();
        let packet = &buffer[..got];
        if packet == b"description" {
            continue;
        }
        if packet.starts_with(b"end ") {
            return (all, String::from_utf8(packet.to_vec()).unwrap());
        }
        let number = |range: std::ops::Range<usize>| {
            packet[range]
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let index = u32::try_from(number(8..12)).unwrap();
        assert_eq!(packet[got - 1], 0);
        all.push((
            number(0..8),
            index,
            number(12..20),
            packet[20..got - 1].to_vec(),
        ));
    }
}

fn report((ledger, counts): &Ledgers) -> SinkReport {
    let report = SinkReport::of(ledger, counts);
    let [
        packets,
        sent,
        absent,
        queue_full,
        unreachable,
        other,
        pending,
    ] = [
        "packets",
        "sent_packets",
        "absent_packets",
        "refused_queue_full",
        "refused_unreachable",
        "refused_other",
        "pending_packets",
    ]
    .map(|name| report.counts.get(name));
    let sum = sent + absent + queue_full + unreachable + other + pending;
    assert_eq!(packets, sum, "{report:?}");
    report
}

#[test]
fn udp_frames_arrive_with_numbers_and_times() {
    for keys in [
        "",
        "\nrate = \"400 Mbit/s\"",
        "\noffload = false",
        "\nport = 0\nttl = 3",
    ] {
        let sockets = [receiver()];
        let layout = layout(Scalar::Int8, false, 1, POINTS);
        let keys = format!("{}{keys}{}", to(&sockets), format(100));
        let (mut sink, ledger) = build(&keys, &layout).unwrap();
        let frames: Vec<_> = [5, 6, 8].map(|n| frame(n, POINTS, &[])).to_vec();
        feed(POINTS).give(&mut *sink, &frames);
        sink.finish().unwrap();
        let (packets, end) = receive(&sockets[0]);
        assert_eq!(packets.len(), 30);
        for (i, (number, packet, time, payload)) in packets.into_iter().enumerate() {
            let sent = &frames[i / 10];
            assert_eq!((number, packet as usize), (sent.meta.sequence, i % 10));
            // 1 MHz: a packet of 100 points lasts 100 µs.
            assert_eq!(time, sent.meta.timestamp.ns + 100_000 * (i as u64 % 10));
            assert!(payload == sent.bytes[100 * (i % 10)..][..100], "packet {i}");
        }
        assert_eq!(end, "end 9");
        let report = report(&ledger);
        assert_eq!((report.frames, report.bytes, report.lost), (3, 3000, 0));
        assert_eq!(
            (
                report.counts.get("packets"),
                report.counts.get("sent_packets")
            ),
            (30, 30)
        );
        assert_eq!(report.counts.get("control_packets"), 2);
    }
}

#[test]
fn udp_packets_without_all_of_their_data_are_not_sent() {
    let sockets = [receiver()];
    let layout = layout(Scalar::Int8, false, 1, POINTS);
    // A packet of 150 bytes contains the bytes of two or three packets of 100 bytes.
    let (mut sink, ledger) = build(&format!("{}{}", to(&sockets), format(150)), &layout).unwrap();
    feed(POINTS).give(
        &mut *sink,
        &[frame(0, POINTS, &[1, 9]), frame(1, POINTS, &[])],
    );
    sink.finish().unwrap();
    let (packets, _) = receive(&sockets[0]);
    let indices: Vec<_> = packets.iter().map(|packet| packet.1).collect();
    assert_eq!(indices, [2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6]);
    let report = report(&ledger);
    assert_eq!(
        (
            report.counts.get("packets"),
            report.counts.get("sent_packets"),
            report.counts.get("absent_packets")
        ),
        (14, 11, 3)
    );
    assert_eq!(
        (
            report.frames,
            report.lost,
            report.counts.get("pending_packets")
        ),
        (2, 0, 0)
    );
}

#[test]
fn udp_frames_are_divided_among_receivers() {
    for (split, order) in [
        ("channels", Order::Interleaved),
        ("channels", Order::Planar),
        ("parts", Order::Interleaved),
        ("parts", Order::Planar),
    ] {
        let sockets = [receiver(), receiver()];
        let layout = Layout {
            order,
            ..layout(Scalar::Int16, false, 4, 50)
        };
        let bytes = layout.frame_bytes();
        let keys = format!("{}\nsplit = \"{split}\"{}", to(&sockets), format(64));
        let (mut sink, ledger) = build(&keys, &layout).unwrap();
        let sent = frame(3, bytes, &[]);
        feed(bytes).give(&mut *sink, std::slice::from_ref(&sent));
        sink.finish().unwrap();
        for (i, socket) in sockets.iter().enumerate() {
            let (packets, _) = receive(socket);
            assert!(packets.iter().all(|packet| packet.0 == 3));
            let got: Vec<u8> = packets.into_iter().flat_map(|packet| packet.3).collect();
            let expected: Vec<u8> = match (split, order) {
                ("channels", Order::Interleaved) => {
                    let points = sent.bytes.chunks(8);
                    points
                        .flat_map(|point| point[4 * i..][..4].to_vec())
                        .collect()
                }
                _ => sent.bytes[i * bytes / 2..][..bytes / 2].to_vec(),
            };
            assert!(got == expected, "{split} {order:?} {i}");
        }
        let report = report(&ledger);
        assert_eq!(
            (
                report.counts.get("packets"),
                report.counts.get("sent_packets"),
                report.bytes
            ),
            (8, 8, 400)
        );
    }
}

#[test]
fn udp_frames_in_turn_have_consecutive_numbers() {
    let sockets = [receiver(), receiver(), receiver()];
    let layout = layout(Scalar::Int8, false, 1, POINTS);
    let (mut sink, ledger) =
        build(&format!("{}{}", to(&sockets), format(POINTS)), &layout).unwrap();
    // Frame 7 is missing.
    let frames: Vec<_> = [3, 4, 5, 6, 8, 9].map(|n| frame(n, POINTS, &[])).to_vec();
    feed(POINTS).give(&mut *sink, &frames);
    sink.finish().unwrap();
    let numbers = sockets.each_ref().map(|socket| {
        let (packets, end) = receive(socket);
        (
            packets.iter().map(|packet| packet.0).collect::<Vec<_>>(),
            end,
        )
    });
    let end = |text: &str| text.to_owned();
    assert_eq!(
        numbers,
        [
            (vec![1, 2, 3], end("end 4")),
            (vec![1], end("end 2")),
            (vec![1, 2], end("end 3"))
        ]
    );
    assert_eq!(report(&ledger).counts.get("sent_packets"), 6);
}

#[test]
fn udp_reports_of_closed_ports_are_counted() {
    let layout = layout(Scalar::Int8, false, 1, POINTS);
    let sockets = [receiver()];
    let keys = format!("{}{}", to(&sockets), format(100));
    drop(sockets);
    let (mut sink, ledger) = build(&keys, &layout).unwrap();
    for n in 0..20 {
        feed(POINTS).give(&mut *sink, &[frame(n, POINTS, &[])]);
    }
    sink.finish().unwrap();
    let report = report(&ledger);
    assert_eq!(
        (
            report.frames,
            report.counts.get("packets"),
            report.counts.get("sent_packets")
        ),
        (20, 200, 200)
    );
    assert!(report.counts.get("undeliverable") > 0, "{report:?}");
}

#[test]
fn udp_slow_frame_returns_to_the_runtime_and_can_be_abandoned() {
    let sockets = [receiver()];
    let layout = layout(Scalar::Int8, false, 1, POINTS);
    let keys = format!("{}\nrate = \"1 kbit/s\"{}", to(&sockets), format(100));
    let (mut sink, ledger) = build(&keys, &layout).unwrap();
    let mut ring = daq_testkit::ring::RingFixture::host("raw", 4, POINTS);
    ring.write(&[(FrameMeta::whole(0, POINTS), vec![1; POINTS])]);
    let lease = ring.reader.poll(1).unwrap();
    assert_eq!(sink.consume(&lease, 0).unwrap(), 0);
    assert_eq!(sink.consume(&lease, 0).unwrap(), 0);
    assert_eq!(report(&ledger).counts.get("pending_packets"), 9);
    drop(lease);
    sink.finish().unwrap();
    let report = report(&ledger);
    assert_eq!(
        (
            report.frames,
            report.counts.get("refused_other"),
            report.counts.get("pending_packets")
        ),
        (0, 9, 0)
    );
}

#[test]
fn udp_packets_above_the_mtu_are_refused_at_startup() {
    let layout = layout(Scalar::Int8, false, 1, 100_000);
    let keys = format!("to = \"127.0.0.1:9\"{}", format(66_000));
    let error = build(&keys, &layout).err().unwrap().to_string();
    let packet = 66_000 + AROUND;
    assert!(
        error.contains(&format!("packets of {packet} bytes")),
        "{error}"
    );
    assert!(
        error.contains("65507 bytes remain") && error.contains("[sink.tx.format]"),
        "{error}"
    );
}

#[test]
fn udp_invalid_config_is_rejected_with_fix() {
    for (keys, message) in [
        ("to = []", "`to` must name 1 to 1024 receivers"),
        ("to = \"host:1\"", "is not an IP address with a port"),
        ("to = \"0.0.0.0:1\"", "cannot receive packets"),
        ("to = \"10.0.0.1:0\"", "cannot receive packets"),
        ("to = [\"10.0.0.1:1\", \"10.0.0.1:1\"]", "is in `to` twice"),
        (
            "to = \"10.0.0.1:1\"\nrate = \"0 bit/s\"",
            "at least 1 bit/s",
        ),
        ("to = \"10.0.0.1:1\"\nttl = 0", "do not leave this host"),
        ("to = \"10.0.0.1:1\"\nsplit = \"copies\"", "split"),
    ] {
        let refused = spec("udp", "tx", &format!("{keys}{}", format(100)))
            .err()
            .unwrap();
        assert!(refused.contains(message), "{keys}: {refused}");
    }
    let refused = spec("udp", "tx", "to = \"10.0.0.1:1\"").err().unwrap();
    assert!(refused.contains("format"), "{refused}");
}

#[test]
fn udp_wrong_interfaces_and_routes_are_reported() {
    let layout = layout(Scalar::Int8, false, 1, POINTS);
    for (keys, message) in [
        (
            "to = \"239.1.2.3:7148\"\ninterface = \"nosuch0\"",
            "there is no interface nosuch0",
        ),
        (
            "to = \"127.0.0.1:7148\"\ninterface = \"192.0.2.77\"",
            "there is no interface 192.0.2.77",
        ),
        (
            "to = \"[ff02::1]:7148\"\ninterface = \"127.0.0.1\"",
            "set the name of the interface",
        ),
    ] {
        let error = build(&format!("{keys}{}", format(100)), &layout)
            .err()
            .unwrap();
        assert!(error.to_string().contains(message), "{error}");
    }
}
