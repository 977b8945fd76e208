//! Layouts of real instruments. The packets are built from the public description of each instrument, without daq's own
//! builders, and sent through sockets.

mod by_time;
mod gnu_radio;
mod hostile;

use crate::spec;
use daq_core::ledger::{PartReport, SourceReport};
use daq_drivers::udp::ENTRY;
use daq_testkit::loopback::{Queue, free_address};
use daq_testkit::source::{SourceFixture, new_fixture};
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

/// One packet with data: its frame, its part, its place in the part, and its bytes.
struct Packet {
    frame: u64,
    part: usize,
    place: usize,
    bytes: Vec<u8>,
}

/// An instrument: its configuration, and how it builds packets.
struct Instrument {
    name: &'static str,
    /// Keys of the source, besides those of the socket.
    keys: String,
    /// The table `format`.
    format: String,
    /// The number that daq gives to the frame 0.
    first: u64,
    /// Number of parts, and of packets of each part.
    parts: usize,
    packets: usize,
    /// Payload bytes of a packet at a place.
    payload: fn(usize) -> usize,
    /// Builds the packet of a frame, a part and a place around its payload.
    packet: fn(u64, usize, usize, &[u8]) -> Vec<u8>,
    /// The index of the port of a part.
    port: fn(usize) -> usize,
    /// Packets without data that belong to a frame.
    control: fn(u64) -> Vec<Vec<u8>>,
}

/// Returns the payload of a packet: different for every packet.
fn content(frame: u64, part: usize, place: usize, bytes: usize) -> Vec<u8> {
    let seed =
        frame.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (part as u64) << 40 ^ (place as u64) << 20;
    (0..bytes as u64)
        .map(|i| (seed.rotate_left((i % 61) as u32) ^ i).to_le_bytes()[0])
        .collect()
}

impl Instrument {
    fn part_bytes(&self) -> usize {
        (0..self.packets).map(self.payload).sum()
    }

    fn open(&self, ports: &[SocketAddr], window: usize) -> SourceFixture {
        let listen: Vec<_> = ports.iter().map(|port| format!("\"{port}\"")).collect();
        let mut format = self.format.clone();
        for (i, port) in ports.iter().enumerate() {
            format = format.replace(&(50_000 + i).to_string(), &port.port().to_string());
        }
        let text = format!(
            "[source.adc]\ndriver = \"udp\"\nring = \"raw\"\nlisten = [{}]\nwindow = {window}\n{}\n[source.adc.format]\n{format}",
            listen.join(", "),
            self.keys
        );
        let spec = spec(&ENTRY, &text).unwrap_or_else(|errors| panic!("{}: {errors}", self.name));
        new_fixture(&*spec, self.part_bytes() * self.parts, 256).unwrap()
    }

    fn frame(&self, frame: u64) -> Vec<Packet> {
        let places =
            (0..self.packets).flat_map(|place| (0..self.parts).map(move |part| (part, place)));
        places
            .map(|(part, place)| {
                let payload = content(frame, part, place, (self.payload)(place));
                let bytes = (self.packet)(frame, part, place, &payload);
                Packet {
                    frame,
                    part,
                    place,
                    bytes,
                }
            })
            .collect()
    }

    /// Sends packets, receives them, and checks each byte of each frame. Returns the source's report. `sent` contains the
    /// packets in the order of sending, with control packets.
    fn check(&self, window: usize, sent: &[Packet]) -> SourceReport {
        self.check_others(window, sent, None)
    }

    /// As [`check`](Self::check), except for the bytes of the part `hostile`.
    fn check_others(&self, window: usize, sent: &[Packet], hostile: Option<usize>) -> SourceReport {
        let ports: Vec<_> = (0..=(self.port)(self.parts - 1))
            .map(|_| free_address())
            .collect();
        let mut fixture = self.open(&ports, window);
        fixture.fill_without_time(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for (i, packet) in sent.iter().enumerate() {
                let to = ports[(self.port)(packet.part)];
                socket.send_to(&packet.bytes, to).unwrap();
                // No port may be ahead of another by more than the window, however the threads are scheduled.
                if i % 32 == 31 || i + 1 == sent.len() {
                    for port in &ports {
                        Queue::drained(port.port());
                    }
                }
            }
        });
        let report = fixture.report();
        let arrived: BTreeSet<_> = sent
            .iter()
            .map(|packet| (packet.frame, packet.part, packet.place))
            .collect();
        let mut delivered = 0;
        for (number, _, bytes, present) in fixture.read() {
            let number = number - self.first;
            for (i, is_present) in present.iter().enumerate() {
                let (part, place) = (i / self.packets, i % self.packets);
                if hostile == Some(part) {
                    delivered += u64::from(*is_present);
                    continue;
                }
                assert!(
                    !is_present || arrived.contains(&(number, part, place)),
                    "{}",
                    self.name
                );
                delivered += u64::from(*is_present);
                let start = part * self.part_bytes() + (0..place).map(self.payload).sum::<usize>();
                let found = &bytes[start..start + (self.payload)(place)];
                let wanted = match is_present {
                    true => content(number, part, place, found.len()),
                    false => vec![0xee; found.len()],
                };
                assert_eq!(
                    found, wanted,
                    "{}: packet {place} of part {part} of frame {number}",
                    self.name
                );
            }
        }
        assert_eq!(delivered, report.delivered, "{}: {report:?}", self.name);
        self.check_parts(&report);
        assert_eq!(
            report.expected,
            report.delivered + report.lost_total(),
            "{}: {report:?}",
            self.name
        );
        report
    }
}

impl Instrument {
    /// Checks that the ledgers of the parts add up to that of the source.
    fn check_parts(&self, report: &SourceReport) {
        let parts = &report.parts;
        assert_eq!(
            parts.len(),
            if self.parts == 1 { 0 } else { self.parts },
            "{}",
            self.name
        );
        if parts.is_empty() {
            return;
        }
        let sum = |count: fn(&PartReport) -> u64| parts.values().map(count).sum::<u64>();
        assert_eq!(
            [
                sum(|part| part.expected),
                sum(|part| part.delivered),
                sum(|part| part.lost),
                sum(|part| part.duplicates)
            ],
            [
                report.expected,
                report.delivered,
                report.lost_total(),
                report.duplicates
            ],
            "{}: {report:?}",
            self.name
        );
        assert!(
            parts
                .values()
                .all(|part| part.expected == part.delivered + part.lost),
            "{}: {report:?}",
            self.name
        );
    }
}

/// Returns the ledgers of the parts in their order in a frame.
fn in_order(report: &SourceReport) -> Vec<PartReport> {
    // The values of the parts are ascending numbers of the same length, so their names are in the order of the parts.
    report.parts.values().cloned().collect()
}

/// Returns a header of `bytes` bytes with little-endian numbers at offsets.
fn little(bytes: usize, numbers: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut header = vec![0x5a; bytes];
    for (offset, size, number) in numbers {
        header[*offset..offset + size].copy_from_slice(&number.to_le_bytes()[..*size]);
    }
    header
}

/// Returns a header of `bytes` bytes with big-endian numbers at offsets.
fn big(bytes: usize, numbers: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut header = vec![0x5a; bytes];
    for (offset, size, number) in numbers {
        header[*offset..offset + size].copy_from_slice(&number.to_be_bytes()[8 - size..]);
    }
    header
}

/// Returns the sections of the source and of its `format` below a heading of the page for users.
fn sections(heading: &str) -> (&'static str, String) {
    let page = include_str!("../../docs/src/how-to/instruments.md");
    let (_, text) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, text) = text.split_once("```toml").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    let (source, format) = text.split_once("[source.instrument.format]\n").unwrap();
    (
        source,
        format.replace("[source.instrument.", "[source.adc."),
    )
}

/// Returns the table `format` below a heading of the page for users.
fn documented(heading: &str) -> String {
    sections(heading).1
}

/// Returns the key `samples` of the source below a heading of the page for users.
fn samples(heading: &str) -> String {
    let (source, _) = sections(heading);
    let mut lines = source.lines();
    lines
        .find(|line| line.starts_with("samples"))
        .unwrap()
        .to_owned()
}

/// Returns a packet of a SPEAD heap with addresses of `address_bytes` bytes: immediate items, then the payload. The first packet also
/// points to the samples.
fn spead(address_bytes: u8, place: usize, items: &[(u64, u64)], payload: &[u8]) -> Vec<u8> {
    let bits = u32::from(address_bytes) * 8;
    let count = u16::try_from(items.len()).unwrap() + u16::from(place == 0);
    let mut packet = vec![0x53, 4, 8 - address_bytes, address_bytes, 0, 0];
    packet.extend_from_slice(&count.to_be_bytes());
    for (id, value) in items {
        packet.extend_from_slice(&(1 << 63 | id << bits | value).to_be_bytes());
    }
    if place == 0 {
        packet.extend_from_slice(&(0x4300_u64 << bits).to_be_bytes());
    }
    [packet, payload.to_vec()].concat()
}

/// Time of the lidar's frame 0 in microseconds since 1970.
const LIDAR_START_US: u64 = 1_700_000_000_000_000;
fn no_control(_: u64) -> Vec<Vec<u8>> {
    Vec::new()
}

/// Returns all instruments.
fn instruments() -> Vec<Instrument> {
    let mut all = numbered();
    all.extend(by_time::instruments());
    all.push(gnu_radio::instrument());
    all
}

/// Returns the instruments whose packets contain numbers.
fn numbered() -> Vec<Instrument> {
    vec![
        Instrument {
            name: "JUNGFRAU: two modules with two ports each",
            keys: String::new(),
            first: 0,
            format: documented("JUNGFRAU"),
            parts: 4,
            packets: 16,
            payload: |_| 1024,
            packet: |frame, part, place, payload| {
                let numbers = [
                    (0, 8, frame),
                    (8, 4, 10),
                    (12, 4, place as u64),
                    (16, 8, frame * 7),
                    (24, 8, frame * 100),
                    (34, 2, part as u64),
                ];
                [little(48, &numbers), payload.to_vec()].concat()
            },
            port: |part| part,
            control: no_control,
        },
        Instrument {
            name: "GigE Vision stream: leader, payload, trailer",
            keys: String::new(),
            first: 0,
            format: documented("GigE Vision stream"),
            parts: 1,
            packets: 11,
            payload: |place| if place == 10 { 400 } else { 1440 },
            packet: |frame, _, place, payload| {
                let numbers = [
                    (0, 2, 0),
                    (2, 2, frame),
                    (4, 1, 3),
                    (5, 3, place as u64 + 1),
                ];
                [big(8, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: |frame| {
                let header =
                    |kind, id| big(8, &[(0, 2, 0), (2, 2, frame), (4, 1, kind), (5, 3, id)]);
                vec![
                    [header(1, 0), vec![0; 36]].concat(),
                    [header(2, 12), vec![0; 8]].concat(),
                ]
            },
        },
        Instrument {
            name: "E2SAR: event number and byte offset",
            keys: String::new(),
            first: 0,
            format: documented("E2SAR"),
            parts: 2,
            packets: 6,
            payload: |place| if place == 5 { 700 } else { 1000 },
            packet: |frame, part, place, payload| {
                let numbers = [
                    (0, 1, 0x10),
                    (2, 2, [4, 9][part]),
                    (4, 4, place as u64 * 1000),
                    (8, 4, 5700),
                    (12, 8, frame),
                ];
                [big(20, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "ultrasound: frame and packet numbers that count from 1",
            keys: String::new(),
            first: 0,
            format: documented("Ultrasound"),
            parts: 1,
            packets: 32,
            payload: |_| 512,
            packet: |frame, _, place, payload| {
                [
                    little(8, &[(0, 4, frame), (4, 2, place as u64 + 1)]),
                    payload.to_vec(),
                ]
                .concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "four antennas on one port, each with a packet counter",
            keys: String::new(),
            first: 0,
            format: documented("Four antennas"),
            parts: 4,
            packets: 8,
            payload: |_| 1024,
            packet: |frame, part, place, payload| {
                let numbers = [(0, 6, frame * 8 + place as u64), (7, 1, 0xa0 | part as u64)];
                [big(16, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "EIGER: row and column of quarter modules",
            keys: String::new(),
            first: 0,
            format: documented("EIGER"),
            parts: 4,
            packets: 8,
            payload: |_| 1024,
            packet: |frame, part, place, payload| {
                let (row, column) = (part as u64 / 2, part as u64 % 2);
                let numbers = [
                    (0, 8, frame),
                    (12, 4, place as u64),
                    (34, 2, row),
                    (36, 2, column),
                ];
                [little(48, &numbers), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "CASPER: one header word with sample number, channel and antenna",
            keys: String::new(),
            first: 0,
            format: documented("CASPER board"),
            parts: 6,
            packets: 1,
            payload: |_| 1024,
            packet: |frame, part, _, payload| {
                let (antenna, channel) = ([3, 7, 9][part / 2], [0, 256][part % 2]);
                let word = 1_u64 << 56 | (frame * 16) << 18 | channel << 6 | antenna;
                [big(8, &[(0, 8, word)]), payload.to_vec()].concat()
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "MeerKAT digitiser: heaps of one packet, counter in steps of 2",
            keys: String::new(),
            first: 0,
            format: documented("MeerKAT digitiser"),
            parts: 1,
            packets: 1,
            payload: |_| 1280,
            packet: |frame, _, _, payload| {
                let items = [
                    (1, 2 * frame),
                    (2, 1280),
                    (3, 0),
                    (4, 1280),
                    (0x1600, frame * 640),
                    (0x3101, 0),
                    (0x3102, 0),
                ];
                spead(6, 0, &items, payload)
            },
            port: |_| 0,
            control: no_control,
        },
        Instrument {
            name: "MeerKAT F-engine: four antennas with two blocks of channels",
            keys: String::new(),
            first: 0,
            format: documented("MeerKAT F-engine"),
            parts: 8,
            packets: 8,
            payload: |_| 1024,
            packet: |frame, part, place, payload| {
                let (antenna, block) = (part as u64 / 2, part as u64 % 2);
                let items = [
                    (1, ((3 + block) << 40) + frame * 4 + antenna),
                    (2, 8192),
                    (3, place as u64 * 1024),
                    (4, 1024),
                    (0x1600, frame * 2_097_152),
                    (0x4101, antenna),
                    (0x4103, block * 512),
                ];
                spead(6, place, &items, payload)
            },
            port: |_| 0,
            control: |frame| {
                // A descriptor heap of one antenna, with a counter of its own.
                vec![spead(
                    6,
                    0,
                    &[(1, 9 << 40 | frame), (2, 300), (3, 0), (4, 300)],
                    &[7; 300],
                )]
            },
        },
        Instrument {
            name: "four senders of spead2, each with a port",
            keys: String::new(),
            first: 0,
            format: documented("Four senders of spead2"),
            parts: 4,
            packets: 6,
            payload: |place| match place {
                0 => 1416,
                5 => 8000 - 1416 - 4 * 1432,
                _ => 1432,
            },
            packet: |frame, _, place, payload| {
                let offset = if place == 0 {
                    0
                } else {
                    1416 + (place as u64 - 1) * 1432
                };
                let items = [
                    (1, frame),
                    (2, 8000),
                    (3, offset),
                    (4, payload.len() as u64),
                    (0x1600, frame * 9),
                ];
                spead(
                    5,
                    place,
                    if place == 0 { &items } else { &items[..4] },
                    payload,
                )
            },
            port: |part| part,
            control: no_control,
        },
        Instrument {
            name: "lidar: frame number and column, a step of 16, and a checksum at the end",
            keys: String::new(),
            first: 0,
            format: documented("Lidar"),
            parts: 1,
            packets: 64,
            payload: |_| 768,
            packet: |frame, _, place, payload| {
                let time = LIDAR_START_US + frame * 100_000 + place as u64 * 1562;
                let numbers = [
                    (0, 2, 1),
                    (2, 2, frame),
                    (8, 2, place as u64 * 16),
                    (10, 6, time / 1_000_000),
                    (16, 4, time % 1_000_000),
                ];
                [little(24, &numbers), payload.to_vec(), vec![0xcc; 32]].concat()
            },
            port: |_| 0,
            control: |_| vec![vec![1; 48], vec![2; 824]],
        },
    ]
}

#[test]
fn frames_of_instruments_are_byte_identical() {
    for instrument in instruments() {
        let sent: Vec<_> = (100..120)
            .flat_map(|frame| instrument.frame(frame))
            .collect();
        let report = instrument.check(8, &sent);
        assert_eq!(
            report.delivered,
            sent.len() as u64,
            "{}: {report:?}",
            instrument.name
        );
        assert_eq!(
            (report.rejected, report.duplicates, report.epochs),
            (0, 0, 1),
            "{}",
            instrument.name
        );
    }
}

#[test]
fn lost_reordered_and_repeated_packets_of_instruments_are_counted() {
    for instrument in instruments() {
        let mut sent: Vec<_> = (100..130)
            .flat_map(|frame| instrument.frame(frame))
            .collect();
        let all = sent.len() as u64;
        // The first and the last frame stay complete, so that all packets between them are expected.
        let inner = |packet: &Packet| (101..129).contains(&packet.frame);
        let mut number = 0;
        sent.retain(|packet| {
            number += 1;
            !inner(packet) || number % 13 != 5
        });
        let lost = all - sent.len() as u64;
        let again: Vec<_> = sent
            .iter()
            .enumerate()
            .filter(|(i, packet)| inner(packet) && i % 29 == 3)
            .map(|(i, _)| i)
            .collect();
        for i in again.iter().rev() {
            let Packet {
                frame,
                part,
                place,
                bytes,
            } = &sent[*i];
            let copy = Packet {
                frame: *frame,
                part: *part,
                place: *place,
                bytes: bytes.clone(),
            };
            sent.insert(i + 1, copy);
        }
        // The first packet stays first: packets before the first frame of an epoch do not belong to it.
        for i in (1..sent.len().saturating_sub(8)).step_by(7) {
            sent.swap(i, i + 5);
        }
        let mut with_control = Vec::new();
        let mut controls = 0;
        for packet in sent {
            if packet.part == 0 && packet.place == 1 {
                for bytes in (instrument.control)(packet.frame) {
                    controls += 1;
                    with_control.push(Packet {
                        frame: packet.frame,
                        part: 0,
                        place: usize::MAX,
                        bytes,
                    });
                }
            }
            with_control.push(packet);
        }
        let report = instrument.check(8, &with_control);
        let name = instrument.name;
        assert_eq!(
            (report.expected, report.lost_total()),
            (all, lost),
            "{name}: {report:?}"
        );
        assert_eq!(
            (report.duplicates, report.control),
            (again.len() as u64, controls),
            "{name}: {report:?}"
        );
        assert_eq!(
            (report.rejected, report.epochs),
            (0, 1),
            "{name}: {report:?}"
        );
    }
}

#[test]
fn silent_part_is_missing_in_its_ledger_alone() {
    for instrument in instruments()
        .into_iter()
        .filter(|instrument| instrument.parts > 1)
    {
        let (name, all) = (instrument.name, instrument.packets as u64);
        let mut sent: Vec<_> = (100..140)
            .flat_map(|frame| instrument.frame(frame))
            .collect();
        sent.retain(|packet| packet.part != 1 || !(110..130).contains(&packet.frame));
        let report = instrument.check(4, &sent);
        for (i, part) in in_order(&report).iter().enumerate() {
            let lost = if i == 1 { 20 * all } else { 0 };
            assert_eq!(
                (part.expected, part.lost),
                (40 * all, lost),
                "{name}: part {i} of {report:?}"
            );
            assert_eq!(
                (part.rejected, part.duplicates),
                (0, 0),
                "{name}: {report:?}"
            );
        }
    }
}

#[test]
fn packets_of_a_silent_instrument_are_lost() {
    for instrument in instruments()
        .into_iter()
        .filter(|instrument| instrument.parts == 1)
    {
        let (name, all) = (instrument.name, instrument.packets as u64);
        let frames = (100..110).chain(130..140);
        let sent: Vec<_> = frames.flat_map(|frame| instrument.frame(frame)).collect();
        let report = instrument.check(4, &sent);
        assert_eq!(
            (report.expected, report.lost_total()),
            (40 * all, 20 * all),
            "{name}: {report:?}"
        );
        assert_eq!(
            (report.rejected, report.duplicates, report.epochs),
            (0, 0, 1),
            "{name}: {report:?}"
        );
    }
}

#[test]
fn restarted_part_does_not_end_the_epoch_of_the_others() {
    for instrument in instruments()
        .into_iter()
        .filter(|instrument| instrument.parts > 1)
    {
        let (name, all) = (instrument.name, instrument.packets as u64);
        let mut sent = Vec::new();
        for frame in 1000..1040 {
            for mut packet in instrument.frame(frame) {
                if packet.part == 0 && frame >= 1010 {
                    // The sender of this part counts from 3 again.
                    let frame = frame - 1010 + 3;
                    let payload =
                        content(frame, 0, packet.place, (instrument.payload)(packet.place));
                    let bytes = (instrument.packet)(frame, 0, packet.place, &payload);
                    packet = Packet {
                        frame,
                        bytes,
                        ..packet
                    };
                }
                sent.push(packet);
            }
        }
        let report = instrument.check(4, &sent);
        assert_eq!(report.epochs, 1, "{name}: {report:?}");
        for (i, part) in in_order(&report).iter().enumerate() {
            let (lost, rejected) = if i == 0 { (30 * all, 30 * all) } else { (0, 0) };
            assert_eq!(
                (part.lost, part.rejected),
                (lost, rejected),
                "{name}: part {i} of {report:?}"
            );
        }
    }
}

#[test]
fn all_parts_that_restart_begin_one_epoch() {
    for instrument in instruments() {
        let (name, all) = (
            instrument.name,
            (instrument.packets * instrument.parts) as u64,
        );
        let frames = (1000..1020).chain(1..21);
        let sent: Vec<_> = frames.flat_map(|frame| instrument.frame(frame)).collect();
        let report = instrument.check(4, &sent);
        assert_eq!(report.epochs, 2, "{name}: {report:?}");
        assert!(
            report.delivered + report.rejected >= 40 * all - report.lost_total(),
            "{name}: {report:?}"
        );
        assert!(report.rejected <= all, "{name}: {report:?}");
    }
}

#[test]
fn sender_of_random_bytes_changes_no_other_packet() {
    for instrument in instruments() {
        let name = instrument.name;
        let mut sent = Vec::new();
        let mut state = 1_u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let first = instrument.frame(100);
        let length = first[0].bytes.len();
        let mut good = 0;
        for frame in 100..130 {
            for packet in instrument.frame(frame) {
                good += 1;
                sent.push(packet);
                if random() % 4 == 0 {
                    let bytes = (0..length as u64 - random() % 3)
                        .map(|_| random().to_le_bytes()[0])
                        .collect();
                    sent.push(Packet {
                        frame,
                        part: 0,
                        place: usize::MAX,
                        bytes,
                    });
                }
            }
        }
        let report = instrument.check(8, &sent);
        assert_eq!(
            (report.delivered, report.lost_total(), report.epochs),
            (good, 0, 1),
            "{name}: {report:?}"
        );
    }
}
