//! Compares the source `udp` over the loopback interface with a window that gets the same packets one by one.

mod malformed;

use crate::spec;
use daq_core::entry::Registry;
use daq_core::frame::Timestamp;
use daq_core::ledger::SourceReport;
use daq_core::reorder::Numbering;
use daq_drivers::packet::datagram::Depacketizer;
use daq_drivers::packet::spead::{Item, Spead, build_packet, item};
use daq_drivers::packet::{
    Build, Endian, Field, Format, FormatFacts, Fragment, Packet, PacketFormat, PacketLayout, Parse,
    Parsed, Raw, Reject, Split, TimeScale,
};
use daq_drivers::sys::send::Sender;
use daq_drivers::sys::socket::Interface;
use daq_drivers::udp::ENTRY;
use daq_testkit::assert_contains;
use daq_testkit::assert_fields;
use daq_testkit::loopback::free_address;
use daq_testkit::loopback::{self, Queue};
use daq_testkit::source::{SourceFixture, new_fixture, new_fixture_beside};
use proptest::prelude::*;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HEADER: usize = 16;

fn raw(payload: usize, width: u32) -> Format {
    Format::Raw(Raw::new(
        HEADER,
        payload,
        0,
        Field::new(4, 8, Endian::Big, 0, width),
        1,
    ))
}

fn raw_text(listen: &str, payload: usize, width: u32, more: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = {listen}\n{more}\n[source.adc.format]\n\
         kind = \"raw\"\nheader = {HEADER}\npayload = {payload}\n\
         sequence = {{ offset = 4, bytes = 8, bits = {width} }}\n"
    )
}

/// Returns the payload of packet `sequence`. It depends only on the lowest 16 bits, the width of the narrowest number.
fn payload(sequence: u64, bytes: usize) -> Vec<u8> {
    let seed = (sequence & 0xffff).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..bytes as u64)
        .map(|i| (seed.rotate_left((i % 61) as u32) ^ i).to_le_bytes()[0])
        .collect()
}

fn without_causes(mut report: SourceReport) -> SourceReport {
    // Linux may or may not drop packets, so the cause of a loss is not predictable. Only the sum is compared.
    let dropped = report.lost.remove("kernel_drop").unwrap_or(0);
    if dropped > 0 {
        *report.lost.entry("wire_gap").or_default() += dropped;
    }
    report
}

/// The bytes of one datagram.
type Sent = Vec<u8>;

fn datagram(format: &Format, sequence: u64) -> Sent {
    let per = u64::from(format.facts().numbering.packets_per_unit);
    let (unit, sub) = (sequence / per, u32::try_from(sequence % per).unwrap());
    let mut out = Vec::new();
    let bytes = format.facts().layout.range(sub).len();
    format.build(
        unit & format.unit_mask(),
        sub,
        None,
        &payload(sequence, bytes),
        &mut out,
    );
    out
}

/// Sends `packets` in order and receives them meanwhile. With `offload`, consecutive packets of equal size are sent as
/// one message.
fn deliver(fixture: &mut SourceFixture, to: SocketAddr, packets: &[Sent], offload: bool) {
    loopback::stay();
    let mut sender = Sender::open(to, offload, None).unwrap();
    for run in packets.chunk_by(|a, b| a.len() == b.len() && !a.is_empty()) {
        for part in run.chunks((200_000 / run[0].len().max(1)).clamp(1, 256)) {
            if part[0].is_empty() {
                sender.send(&[]).unwrap();
            } else {
                sender.send_packets(&part.concat(), part[0].len()).unwrap();
            }
            fixture.fill_all();
        }
    }
    fixture.fill_all();
}

/// Places the same packets in a reference window, one at a time.
fn reference(fixture: &mut SourceFixture, format: &Format, packets: &[Sent]) {
    let mut depacketizer = Depacketizer::new("reference", format.clone());
    for packet in packets {
        depacketizer.place(
            &mut fixture.windows[0],
            [(&packet[..], Timestamp::default())],
        );
    }
}

/// Checks each packet slot of each frame. Returns the frames for comparison.
fn verify(fixture: &mut SourceFixture) -> Vec<(u64, u32, Vec<u8>, Vec<bool>)> {
    let geometry = fixture.geometry;
    let frames = fixture.read();
    for (number, _, bytes, present) in &frames {
        for (packet, present) in (0_u32..).zip(present) {
            let extent = geometry.extent(packet);
            if *present {
                let sequence = number * u64::from(geometry.packets_per_frame) + u64::from(packet);
                assert_eq!(
                    bytes[extent.clone()],
                    payload(sequence, extent.len()),
                    "payload of {sequence}"
                );
            } else {
                assert!(
                    bytes[extent].iter().all(|byte| *byte == 0xee),
                    "packet {packet} of frame {number} contains stale bytes"
                );
            }
        }
    }
    frames
}

fn open(text: &str, slot: usize, slots: usize) -> SourceFixture {
    let spec = spec(&ENTRY, text).unwrap_or_else(|errors| panic!("{errors}"));
    new_fixture(&*spec, slot, slots).unwrap()
}

/// A format with errors in its code: it states payload that is not in the packet, or fragments although it has none.
#[derive(Clone, Debug)]
struct Wrong;

impl Parse for Wrong {
    fn parse_split(&mut self, header: &[u8], _: usize) -> Result<Split, Reject> {
        let payload = 4..header.len() + 1;
        Ok(Split::Whole(match header[0] {
            0 => Parsed::Data(Packet {
                unit: 0,
                sub: 0,
                payload,
                timestamp: None,
            }),
            1 => Parsed::Fragment(Fragment {
                unit: 0,
                part: 0,
                offset: 0,
                payload,
                timestamp: None,
            }),
            _ => Parsed::Fragment(Fragment {
                unit: 0,
                part: 0,
                offset: 0,
                payload: 4..8,
                timestamp: None,
            }),
        }))
    }

    fn packet_len(&self, _: &[u8]) -> Option<usize> {
        None
    }

    fn header_len(&self, _: u32) -> usize {
        4
    }
}

impl Build for Wrong {
    fn build_header(&self, _: u64, _: u32, _: Option<u64>, _: usize, _: &mut Vec<u8>) {}
}

impl PacketFormat for Wrong {
    fn facts(&self) -> FormatFacts {
        FormatFacts::new(Numbering::PLAIN, PacketLayout::single(100))
    }
}

#[test]
fn packets_of_a_wrong_format_are_rejected() {
    let mut fixture = open(&raw_text("\"127.0.0.1:0\"", 100, 64, ""), 1000, 8);
    let packets = [vec![0; 104], vec![1; 104], vec![2; 104]];
    reference(&mut fixture, &Format::Other(Box::new(Wrong)), &packets);
    let report = fixture.report();
    assert_eq!((report.rejected, report.expected), (3, 0), "{report:?}");
}

#[test]
fn packets_in_order_of_any_size_arrive_intact() {
    for (payload, count) in [
        (1, 3000),
        (64, 3000),
        (1456, 3000),
        (4096, 1000),
        (8956, 1000),
        (30_000, 200),
    ] {
        for offload in [false, true] {
            let port = free_address();
            let mut fixture = open(
                &raw_text(&format!("\"{port}\""), payload, 64, ""),
                payload * 50,
                64,
            );
            let format = raw(payload, 64);
            let packets: Vec<_> = (100..100 + count)
                .map(|sequence| datagram(&format, sequence))
                .collect();
            deliver(&mut fixture, port, &packets, offload);
            fixture.windows[0].finish();
            let report = fixture.report();
            assert_fields!(report =>
                expected: count, delivered: count, rejected: 0; "{payload} {offload}"
            );
            assert_eq!(report.bytes, count * payload as u64);
            let frames = verify(&mut fixture);
            assert_eq!(frames.len() as u64, count / 50);
            assert!(
                (2_u64..)
                    .zip(&frames)
                    .all(|(number, frame)| frame.0 == number)
            );
        }
    }
}

fn spead_text(port: SocketAddr, layout: PacketLayout, window: usize) -> String {
    format!(
        "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"{port}\"\nwindow = {window}\n[source.adc.format]\n\
         kind = \"spead\"\nheap = {}\npacket = {}\nfirst = {}\n",
        layout.unit_bytes, layout.rest, layout.first
    )
}

#[test]
fn gaps_jumps_and_restarts_are_distinguished() {
    for payload in [100, 5000] {
        let format = raw(payload, 64);
        let port = free_address();
        let more = "window = 3\nmax_gap = 1000\nresync_after = 3";
        let text = raw_text(&format!("\"{port}\""), payload, 64, more);
        let mut fixture = open(&text, payload * 10, 256);
        // A gap within the window, a gap beyond it, a gap longer than `max_gap`, and a restart.
        let numbers = [0..100, 105..200, 700..800, 1_000_000..1_000_100, 0..100];
        let packets: Vec<_> = numbers
            .into_iter()
            .flatten()
            .map(|number| datagram(&format, number))
            .collect();
        deliver(&mut fixture, port, &packets, true);
        fixture.windows[0].finish();
        let report = without_causes(fixture.report());
        assert_fields!(report => epochs: 3, skipped: 1_000_000 - 800);
        // The third packet of a distant number range confirms the two before it.
        assert_eq!((report.rejected, report.duplicates), (0, 0), "{report:?}");
        assert_eq!(report.lost, [("wire_gap", 5 + 500)].into());
        assert_fields!(report => expected: 800 + 100 + 100, delivered: 100 + 95 + 100 + 100 + 100);
        let epochs: Vec<_> = verify(&mut fixture).iter().map(|frame| frame.1).collect();
        assert!(
            epochs.is_sorted() && epochs.last() == Some(&3),
            "{epochs:?}"
        );
    }
}

#[test]
fn descriptors_and_end_of_stream_are_not_loss() {
    for rest in [500, 6000] {
        let layout = PacketLayout {
            unit_bytes: rest * 3 + 100,
            first: rest - 16,
            rest,
        };
        let spead = Spead::new(40, layout, 1);
        let format = Format::Spead(spead.clone());
        let per = u64::from(format.facts().numbering.packets_per_unit);
        let port = free_address();
        let mut fixture = open(&spead_text(port, layout, 3), layout.unit_bytes, 64);
        let descriptors = |unit| {
            let items = [
                Item::immediate(item::HEAP_COUNTER, unit),
                Item::immediate(item::HEAP_LENGTH, 300),
                Item::immediate(item::HEAP_OFFSET, 0),
                Item::immediate(item::PAYLOAD_LENGTH, 300),
            ];
            let mut out = Vec::new();
            build_packet(40, &items, &[1; 300], &mut out);
            out
        };
        let heaps = |range: std::ops::Range<u64>| {
            (range.start * per..range.end * per).map(|s| datagram(&format, s))
        };
        let mut packets = vec![descriptors(1)];
        packets.extend(heaps(2..6));
        packets.push(descriptors(6));
        packets.push(descriptors(6));
        // A single packet with another heap length must not cause the loss of the heap with the same number.
        packets.push(descriptors(7));
        packets.extend(heaps(7..10));
        // The first packet of the next heap arrives before this heap.
        packets.extend(heaps(11..12).take(1));
        packets.push(descriptors(10));
        packets.extend(heaps(11..12).skip(1));
        packets.extend(heaps(12..13));
        let mut end = Vec::new();
        spead.build_end(13, &mut end);
        packets.push(end);
        deliver(&mut fixture, port, &packets, true);
        fixture.windows[0].finish();
        let report = fixture.report();
        assert_eq!(
            (report.expected, report.delivered, report.lost_total()),
            (9 * per, 9 * per, 0),
            "{report:?}"
        );
        assert_eq!((report.control, report.rejected, report.epochs), (6, 0, 1));
        let frames = verify(&mut fixture);
        assert_eq!(
            frames.iter().map(|frame| frame.0).collect::<Vec<_>>(),
            [2, 3, 4, 5, 7, 8, 9, 11, 12]
        );
    }
}

#[test]
fn flows_on_several_sockets_fill_one_window() {
    const FLOWS: u64 = 8;
    const EACH: u64 = 2000;
    let port = free_address();
    let payload = 1000;
    let text = raw_text(
        &format!("\"{port}\""),
        payload,
        64,
        "sockets = 2\nwindow = 16",
    );
    let mut fixture = open(&text, payload * 40, 1024);
    assert_eq!(fixture.fillers.len(), 2);
    let format = raw(payload, 64);
    fixture.fill_by_threads(|| {
        let mut senders: Vec<_> = (0..FLOWS)
            .map(|_| Sender::open(port, false, None).unwrap())
            .collect();
        for i in 0..EACH {
            for (flow, sender) in (0..).zip(&mut senders) {
                sender.send(&datagram(&format, i * FLOWS + flow)).unwrap();
            }
            // No flow may be ahead of the other by more than the window, however the threads are scheduled.
            if i % 10 == 9 {
                Queue::all_drained(port.port(), 2);
            }
        }
        Queue::all_drained(port.port(), 2);
    });
    let report = fixture.report();
    // Packets before the first one seen are not expected, so earlier packets of other flows may come before the start.
    assert_eq!(
        report.expected + report.rejected + report.before_start,
        FLOWS * EACH,
        "{report:?}"
    );
    assert_eq!(report.expected, report.delivered + report.lost_total());
    assert!(report.delivered >= FLOWS * EACH - 100, "{report:?}");
    verify(&mut fixture);
}

/// The thread of the second socket stops first. Packets that the first socket received before this moment must not leave gaps, and
/// no socket may receive later packets.
#[test]
fn sockets_of_several_threads_end_together() {
    const EACH: u64 = 8;
    let ports = [free_address(), free_address()];
    let payload = 1000;
    let listen = format!("[\"{}\", \"{}\"]", ports[0], ports[1]);
    let text = raw_text(&listen, payload, 64, "window = 16");
    let mut fixture = open(&text, payload * 4, 64);
    let format = raw(payload, 64);
    let mut senders = ports.map(|port| Sender::open(port, false, None).unwrap());
    let mut send = |numbers: std::ops::Range<u64>| {
        for n in numbers {
            senders[(n % 2) as usize]
                .send(&datagram(&format, n))
                .unwrap();
        }
    };
    let stop = AtomicBool::new(false);
    let (first, second) = fixture.fillers.split_at_mut(1);
    let (window, others) = fixture.windows.split_at_mut(1);
    let ledger = &fixture.ledger;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                first[0]
                    .fill(&mut window[0], Duration::from_micros(200))
                    .unwrap();
                window[0].tick(Instant::now());
            }
        });
        loopback::stay();
        send(0..EACH);
        while ledger.expected.get() < EACH {
            second[0].fill(&mut others[0], Duration::ZERO).unwrap();
            others[0].tick(Instant::now());
        }
        send(EACH..2 * EACH);
        second[0].finish(&mut others[0]);
        send(2 * EACH..3 * EACH);
        Queue::all_drained(ports[0].port(), 1);
        stop.store(true, Ordering::Release);
    });
    window[0].finish();
    let report = fixture.report();
    assert_fields!(report => expected: 2 * EACH, delivered: 2 * EACH, rejected: 0, before_start: 0);
}

#[test]
fn multicast_group_is_joined() {
    let port = free_address();
    let text = raw_text(
        &format!("\"0.0.0.0:{}\"", port.port()),
        100,
        64,
        "groups = [\"239.255.77.1\"]\ninterface = \"lo\"",
    );
    let spec = spec(&ENTRY, &text).unwrap();
    let mut fixture = match new_fixture(&*spec, 1000, 64) {
        Ok(fixture) => fixture,
        Err(error) => {
            println!("skipped: cannot join a group on the loopback interface: {error}");
            return;
        }
    };
    loopback::stay();
    let group = SocketAddr::new("239.255.77.1".parse().unwrap(), port.port());
    let lo = Interface::Address("127.0.0.1".parse().unwrap());
    let sent = Sender::open(group, false, Some(&lo)).map(|mut sender| {
        let format = raw(100, 64);
        (0..20).for_each(|sequence| drop(sender.send(&datagram(&format, sequence))));
    });
    if let Err(error) = sent {
        println!("skipped: cannot send to a group: {error}");
        return;
    }
    fixture.fill_all();
    let report = fixture.report();
    if report.expected == 0 {
        println!("skipped: the loopback interface carries no multicast");
        return;
    }
    assert_eq!((report.expected, report.delivered), (20, 20));
}

#[test]
fn frames_have_receive_or_sensor_time() {
    let port = free_address();
    let before = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let mut fixture = open(&raw_text(&format!("\"{port}\""), 100, 64, ""), 1000, 8);
    let packets: Vec<_> = (0..10)
        .map(|sequence| datagram(&raw(100, 64), sequence))
        .collect();
    deliver(&mut fixture, port, &packets, true);
    let time = fixture.reader.poll(1).unwrap().frame(0).meta().timestamp;
    assert_eq!(time.clock.name(), "kernel");
    assert!(u128::from(time.ns) >= before.as_nanos());

    let port = free_address();
    let more = "timestamp = { offset = 12, bytes = 4, tick = \"8 ns\", origin = \"1 s\" }\n";
    let text = raw_text(&format!("\"{port}\""), 100, 64, "") + more;
    let mut fixture = open(&text, 1000, 8);
    let scale = TimeScale {
        nanoseconds: 8,
        ticks: 1,
        origin_ns: Some(1_000_000_000),
    };
    let field = Field::new(12, 4, Endian::Big, 0, 32);
    let raw = Raw::new(HEADER, 100, 0, Field::new(4, 8, Endian::Big, 0, 64), 1);
    let stamped = Format::Raw(raw.timestamped(field, scale));
    let packets: Vec<_> = (0..10)
        .map(|sequence| {
            let mut out = Vec::new();
            stamped.build(
                sequence,
                0,
                Some(1000 + sequence),
                &payload(sequence, 100),
                &mut out,
            );
            out
        })
        .collect();
    deliver(&mut fixture, port, &packets, true);
    let time = fixture.reader.poll(1).unwrap().frame(0).meta().timestamp;
    assert_eq!(time.clock.name(), "sensor-utc");
    // The field repeats after 2^32 ticks, so the time is the one that is nearest to the host's clock.
    let period = 8 << 32;
    assert_eq!(time.ns % period, 1_000_008_000 % period);
    let now = u64::try_from(before.as_nanos()).unwrap();
    assert!(time.ns.abs_diff(now) < period, "{} {now}", time.ns);
}

/// If the sample rate is known, the time of the first packet that arrived determines the time of the first missing
/// packet.
#[test]
fn frame_without_first_packets_has_start_time() {
    for (rate, expected) in [
        ("", 1_000_300),
        ("samples = { rate = \"1 GHz\" }", 1_000_000),
    ] {
        let port = free_address();
        let text = raw_text(&format!("\"{port}\""), 100, 64, rate)
            + "timestamp = { offset = 12, bytes = 4, tick = \"1 ns\", origin = \"1 ms\" }\n";
        let mut fixture = open(&text, 1000, 8);
        let field = Field::new(12, 4, Endian::Big, 0, 32);
        let scale = TimeScale {
            nanoseconds: 1,
            ticks: 1,
            origin_ns: None,
        };
        let raw = Raw::new(HEADER, 100, 0, Field::new(4, 8, Endian::Big, 0, 64), 1);
        let stamped = Format::Raw(raw.timestamped(field, scale));
        let packets: Vec<_> = (3..10)
            .map(|sequence| {
                let mut out = Vec::new();
                stamped.build(
                    sequence,
                    0,
                    Some(100 * sequence),
                    &payload(sequence, 100),
                    &mut out,
                );
                out
            })
            .collect();
        deliver(&mut fixture, port, &packets, true);
        fixture.windows[0].finish();
        let time = fixture.reader.poll(1).unwrap().frame(0).meta().timestamp;
        assert_eq!(
            (time.ns % (1 << 32), time.clock.name()),
            (expected, "sensor-utc"),
            "{rate}"
        );
    }
}

#[test]
fn open_failure_is_reported_with_fix() {
    let fails = |text: &str| {
        let spec = spec(&ENTRY, text).unwrap();
        new_fixture(&*spec, 1 << 20, 8)
            .err()
            .expect("an error")
            .to_string()
    };
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap();
    for sockets in [1, 2] {
        let error = fails(&raw_text(
            &format!("\"{port}\""),
            100,
            64,
            &format!("sockets = {sockets}"),
        ));
        assert_contains!(error => "in use", "ss -lunp");
    }
    // A socket that shares its port must also be rejected.
    let spec_of = |port| {
        spec(
            &ENTRY,
            &raw_text(&format!("\"{port}\""), 100, 64, "sockets = 2"),
        )
        .unwrap()
    };
    let port = free_address();
    let _first = new_fixture(&*spec_of(port), 1 << 20, 8).unwrap();
    assert!(new_fixture(&*spec_of(port), 1 << 20, 8).is_err());
    let error = fails(&raw_text("\"192.0.2.1:4950\"", 100, 64, ""));
    assert!(error.contains("does not have this address"), "{error}");
    let more = "groups = [\"239.1.2.3\"]\ninterface = \"nonesuch0\"";
    let error = fails(&raw_text(
        &format!("\"0.0.0.0:{}\"", free_address().port()),
        100,
        64,
        more,
    ));
    assert!(error.contains("no interface nonesuch0"), "{error}");
}

#[test]
fn all_problems_of_a_section_are_reported_together() {
    let errors = spec(
        &ENTRY,
        "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = [\"0.0.0.0:4950\", \"127.0.0.1:4950\"]\n\
         sockets = 2\ngroups = [\"239.1.2.3\", \"10.0.0.1\"]\ncores = [1]\nwindow = 0\n[source.adc.format]\nkind = \"raw\"\n\
         header = 4\npayload = 0\nsequence = { offset = 0, bytes = 8 }\n",
    )
    .err()
    .expect("errors");
    assert_contains!(errors =>
        "127.0.0.1:4950 overlaps with another address", "a multicast group cannot have 2 sockets",
        "10.0.0.1 is not a multicast group", "1 core for 4 threads",
        "`window` must be at least 1 frame", "8 bytes at offset 0 exceed the header of 4 bytes",
        "is not between 1 B and"
    );
    let errors = spec(
        &ENTRY,
        "[source.adc]\ndriver = \"udp\"\nlisten = \"4950\"\nunknown_key = 3\n",
    )
    .err()
    .expect("errors");
    assert_contains!(errors =>
        "missing key `format`", "unknown key `unknown_key`", "write an address and a port"
    );
}

#[test]
fn udp_example_is_valid() {
    let spec = spec(&ENTRY, ENTRY.example).unwrap_or_else(|errors| panic!("{errors}"));
    let facts = spec.facts();
    let frames = spec.frames(facts.preferred_slot.unwrap()).unwrap();
    assert_eq!(frames.geometry.frame_bytes, 1 << 20);
    assert_eq!(frames.layout.points, 1 << 18);
    assert!(!facts.supports_backpressure);
    assert_eq!(facts.notes, [""; 0]);
    let schema = (ENTRY.schema)(&Registry::default()).to_value();
    assert!(
        schema["properties"]["format"].is_object() && schema["properties"]["listen"].is_object()
    );
}

/// Returns a VDIF frame of `thread` with the number `n`.
fn vdif_frame(thread: u32, n: u32) -> Vec<u8> {
    let words = [
        n / 250,
        (46 << 24) | (n % 250),
        (1 << 29) | ((32 + 1000) / 8),
        (7 << 26) | (thread << 16),
    ];
    let header = words.into_iter().chain([0; 4]).flat_map(u32::to_le_bytes);
    let payload = payload(u64::from(n + 5000 * thread), 1000);
    header.chain(payload).collect()
}

#[test]
fn sources_of_different_threads_share_a_port() {
    let address = free_address();
    let text = |thread: u32| {
        format!(
            "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = \"{address}\"\n[source.adc.format]\n\
             kind = \"vdif\"\npayload = 1000\nthread = {thread}\nframes_per_second = 250\n"
        )
    };
    let threads = [0, 1, 259];
    let specs = threads.map(|thread| spec(&ENTRY, &text(thread)).unwrap());
    let claims: Vec<_> = specs.iter().map(|spec| spec.facts().claims).collect();
    assert!(!claims[0][0].conflicts(&claims[1][0]));
    let mut fixtures: Vec<_> = (0..3)
        .map(|own| {
            let others = claims.iter().enumerate().filter(|(i, _)| *i != own);
            let beside = others.flat_map(|(_, claims)| claims.clone()).collect();
            new_fixture_beside(&*specs[own], 10_000, 64, beside).unwrap()
        })
        .collect();
    // Another process cannot take the port.
    let alone = spec(&ENTRY, &text(7)).unwrap();
    assert!(new_fixture(&*alone, 10_000, 64).is_err());
    loopback::stay();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for n in 0..100 {
        for thread in [1, 0, 2, 259] {
            socket.send_to(&vdif_frame(thread, n), address).unwrap();
        }
    }
    let mut last = fixtures.pop().unwrap();
    for (thread, fixture) in fixtures.iter_mut().enumerate() {
        let thread = u32::try_from(thread).unwrap();
        fixture.fill_all();
        let report = fixture.report();
        // The first source also receives the thread that belongs to no source.
        let rejected = if thread == 0 { 100 } else { 0 };
        assert_eq!(
            (report.delivered, report.rejected),
            (100, rejected),
            "{report:?}"
        );
        fixture.windows[0].finish();
        let bytes: Vec<u8> = fixture
            .read()
            .into_iter()
            .flat_map(|frame| frame.2)
            .collect();
        let wanted: Vec<u8> = (0..100)
            .flat_map(|n| vdif_frame(thread, n).split_off(32))
            .collect();
        assert!(bytes == wanted, "thread {thread}");
    }
    // The sockets of sources that have ended stay open, so their packets do not arrive at others.
    drop(fixtures);
    for n in 100..120 {
        for thread in [0, 1, 259] {
            socket.send_to(&vdif_frame(thread, n), address).unwrap();
        }
    }
    last.fill_all();
    let report = last.report();
    assert_eq!((report.delivered, report.rejected), (120, 0), "{report:?}");
}
