//! Tests of a board with a minimal host.

use super::pattern::verify;
use super::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Time after which an operation counts as hanging.
const TIMEOUT: Duration = Duration::from_mins(1);
const PAGE_0: u64 = 0x0012_3456_7800_0000;
const KEY: u32 = 0x0bad_cafe;
const FRAME: u32 = 10_000;
const PACKET: u32 = 1024;
/// Distance of pages in units of 128 bytes.
const INCREMENT: u32 = 100;
const LAST_PAGE: u32 = 2;

/// A minimal host.
struct Host {
    control: UdpSocket,
    data: UdpSocket,
    sequence: u16,
}

/// A decoded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    opcode: u8,
    psn: u32,
    address: u64,
    key: u32,
    length: u32,
    immediate: Option<u32>,
    payload: Vec<u8>,
}

impl Host {
    fn new(board: &Board) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        let control = bind();
        control.connect(board.address()).unwrap();
        Self {
            control,
            data: bind(),
            sequence: 0,
        }
    }

    /// Performs one register access; returns the status and the value.
    fn access(&mut self, command: u8, address: u32, value: u32) -> (u8, u32) {
        self.sequence += 1;
        let mut request = vec![command, 1];
        request.extend(self.sequence.to_be_bytes());
        request.extend([0, 0]);
        request.extend(address.to_be_bytes());
        request.extend(value.to_be_bytes());
        self.control.send(&request).unwrap();
        let mut reply = [0; 100];
        let bytes = self.control.recv(&mut reply).unwrap();
        assert_eq!(bytes, 16);
        assert_eq!(reply[0], command | 0x80);
        assert_eq!(reply[1..4], request[1..4]);
        assert_eq!(reply[6..10], address.to_be_bytes());
        assert_eq!(reply[14..16], self.sequence.to_be_bytes());
        (
            reply[4],
            u32::from_be_bytes(reply[10..14].try_into().unwrap()),
        )
    }

    fn write(&mut self, address: u32, value: u32) {
        assert_eq!(self.access(0x04, address, value).0, 0, "{address:#x}");
    }

    fn arm(&mut self, sensor: u32) {
        let SocketAddr::V4(to) = self.data.local_addr().unwrap() else {
            panic!("the socket must have an IPv4 address");
        };
        self.write(0x0200_030c, 0);
        self.write(0x0200_0304, PACKET / 128);
        let base = 0x1000 + 0x40 * sensor;
        let low = u32::try_from(PAGE_0 & 0xffff_ffff).unwrap();
        let high = u32::try_from(PAGE_0 >> 32).unwrap();
        for (at, value) in [
            (0x00, 7),
            (0x04, KEY),
            (0x08, low),
            (0x0c, high),
            (0x10, INCREMENT),
            (0x14, LAST_PAGE),
            (0x18, FRAME),
            (0x20, 0x3344_5566),
            (0x24, 0x1122),
            (0x28, u32::from(*to.ip())),
            (0x2c, u32::from(to.port())),
        ] {
            self.write(base + at, value);
        }
        self.write(0x0200_030c, 1 << sensor);
    }

    fn packet(&self) -> Packet {
        let mut bytes = vec![0; 65_536];
        let (count, from) = self.data.recv_from(&mut bytes).unwrap();
        assert_eq!(from.port(), 12_288);
        bytes.truncate(count);
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let opcode = bytes[0];
        let has_immediate = opcode == 0x2b;
        assert_eq!(bytes[1..4], [0, 0xff, 0xff]);
        assert_eq!(word(4), 7);
        Packet {
            opcode,
            psn: word(8),
            address: u64::from(word(12)) << 32 | u64::from(word(16)),
            key: word(20),
            length: word(24),
            immediate: has_immediate.then(|| word(28)),
            payload: bytes[28 + 4 * usize::from(has_immediate)..count - 4].to_vec(),
        }
    }

    /// Receives all packets until `frames` frames have ended.
    fn frames(&self, frames: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        let mut ended = 0;
        while ended < frames {
            let packet = self.packet();
            ended += usize::from(packet.immediate.is_some());
            packets.push(packet);
        }
        packets
    }
}

fn options(faults: &[&str]) -> Options {
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        sensors: 2,
        // One frame takes 0.4 ms; the socket buffer can hold all frames of a test.
        rate: Some(BitRate(200e6)),
        frames: Some(6),
        faults: faults.iter().map(|fault| fault.parse().unwrap()).collect(),
        ..Options::default()
    }
}

/// Number of packets per frame: ten data packets, the last one shorter, and one packet with metadata.
const PACKETS: u32 = 11;

/// Checks a frame whose packets all arrived in order.
fn check_frame(packets: &[Packet], frame: u64, psn: u32, embedded: bool) {
    let page = PAGE_0 + frame % 3 * 12_800;
    let count = if embedded { 10 } else { 11 };
    assert_eq!(packets.len(), count);
    let mut bytes = Vec::new();
    for (index, packet) in packets.iter().enumerate() {
        assert_eq!(packet.psn, psn + u32::try_from(index).unwrap());
        assert_eq!(packet.key, KEY);
        assert_eq!(packet.length as usize, packet.payload.len());
        assert_eq!(packet.opcode == 0x2b, index + 1 == count);
        assert_eq!(packet.address, page + bytes.len() as u64);
        bytes.extend(&packet.payload);
        if index == 9 {
            bytes.resize(if embedded { 10_240 } else { 10_112 }, 0);
        }
    }
    let last = packets.last().unwrap();
    let page = u32::try_from(frame % 3).unwrap();
    assert_eq!(last.immediate, Some(page | last.psn << 12));
    assert_eq!(
        verify(Pattern::Counter, 1, frame, 0, &bytes[..10_000]),
        None
    );
    let metadata = &bytes[10_112..];
    assert_eq!(metadata.len(), 128);
    assert_eq!(metadata[4..8], last.psn.to_be_bytes());
    assert_eq!(metadata[24..32], 10_000_u64.to_be_bytes());
    assert_eq!(
        metadata[32..36],
        u32::try_from(frame).unwrap().to_be_bytes()
    );
}

#[test]
fn frames_arrive_intact() {
    for (embedded, offload) in [(false, true), (true, true), (false, false)] {
        let board = Board::start(&Options {
            embedded,
            offload,
            ..options(&[])
        })
        .unwrap();
        let mut host = Host::new(&board);
        host.arm(1);
        let packets = host.frames(6);
        let count = if embedded { 10 } else { 11 };
        for (frame, packets) in packets.chunks(count).enumerate() {
            let first = u32::try_from(frame * count).unwrap();
            check_frame(packets, frame as u64, first, embedded);
        }
        host.write(0x0200_030c, 0);
        let counts = board.stop();
        assert_eq!(counts.sensors[0], SensorCounts::default());
        let expected = SensorCounts {
            arms: 1,
            disarms: 1,
            frames: 6,
            numbers: 6 * count as u64,
            packets: 6 * count as u64,
            bytes: 60_000,
            ..SensorCounts::default()
        };
        assert_eq!(counts.sensors[1], expected);
        assert_eq!((counts.order_errors, counts.refused), (0, 0));
        assert_eq!(counts.requests, counts.replies);
    }
}

#[test]
fn sensor_disarmed_stops_sending() {
    let board = Board::start(&Options {
        frames: None,
        rate: Some(BitRate(20e6)),
        ..options(&[])
    })
    .unwrap();
    let mut host = Host::new(&board);
    for round in 1..4 {
        host.arm(1);
        host.frames(2);
        host.write(0x0200_030c, 0);
        let sent = board.counts().sensors[1].packets;
        // These requests give a wrong board time to send more packets.
        for _ in 0..100 {
            assert_eq!(host.access(0x14, 0x0200_030c, 0), (0, 0));
        }
        assert_eq!(board.counts().sensors[1].packets, sent);
        assert_eq!(board.counts().sensors[1].disarms, round);
        host.data.set_nonblocking(true).unwrap();
        while host.data.recv(&mut [0; 2000]).is_ok() {}
        host.data.set_nonblocking(false).unwrap();
    }
    assert!(board.is_left());
}

#[test]
fn packet_faults_are_applied() {
    // The fault affects the second packet of frame 1, alone or with the following packets.
    let at = u64::from(PACKETS) + 1;
    let received = |fault: &str| {
        let fault = fault.replace('N', &at.to_string());
        let board = Board::start(&options(&[&fault])).unwrap();
        let mut host = Host::new(&board);
        host.arm(1);
        let packets = host.frames(6);
        (packets, board.stop())
    };
    let (good, _) = received("ecb-silent@1000");
    let bad = 12;
    for (fault, missing) in [("drop@N", 1), ("gap@N:4", 4)] {
        let (packets, counts) = received(fault);
        let left = [&good[..bad], &good[bad + missing..]].concat();
        assert_eq!(numbers(&packets), numbers(&left), "{fault}");
        assert_eq!(counts.sensors[1].dropped, missing as u64);
        assert_eq!(counts.sensors[1].numbers, 66);
    }
    let (packets, _) = received("reorder@N");
    let mut swapped = numbers(&good);
    swapped.swap(bad, bad + 1);
    assert_eq!(numbers(&packets), swapped);
    let (packets, counts) = received("duplicate@N:2");
    let mut twice = numbers(&good);
    twice.splice(bad..bad, [twice[bad]; 2]);
    assert_eq!(numbers(&packets), twice);
    assert_eq!(counts.sensors[1].duplicates, 2);
    for fault in ["bad-va@N", "bad-rkey@N", "bad-length@N", "bad-opcode@N"] {
        let (packets, counts) = received(fault);
        assert_eq!(counts.sensors[1].damaged, 1);
        let different: BTreeSet<usize> = (0..66)
            .filter(|index| !is_alike(&packets[*index], &good[*index]))
            .collect();
        assert_eq!(different, BTreeSet::from([bad]), "{fault}");
        let packet = &packets[bad];
        let is_there = match fault {
            "bad-va@N" => packet.address == PAGE_0 + 3 * 12_800 + 1024,
            "bad-rkey@N" => packet.key == KEY ^ 1,
            "bad-length@N" => packet.length == 1024 + 128,
            _ => packet.opcode == 4,
        };
        assert!(is_there, "{fault}: {packet:x?}");
    }
}

#[test]
fn frame_faults_are_applied() {
    let received = |fault: &str, frames: usize| {
        let board = Board::start(&options(&[fault])).unwrap();
        let mut host = Host::new(&board);
        host.arm(1);
        numbers(&host.frames(frames))
    };
    let all: Vec<u32> = (0..66).collect();
    let mut late = all.clone();
    late.swap(21, 22);
    assert_eq!(received("late-immediate@1", 6), late);
    let mut again = all.clone();
    again.splice(22..22, 11..22);
    assert_eq!(received("replay@1", 7), again);
    assert_eq!(received("no-metadata@1", 6), all[..65]);
    let restarted: Vec<u32> = (0..22).chain(0..44).collect();
    assert_eq!(received("restart@2", 6), restarted);

    // The sensor is silent until it is armed again, and then continues with the next frame.
    let board = Board::start(&options(&["silent@2"])).unwrap();
    let mut host = Host::new(&board);
    host.arm(1);
    assert_eq!(numbers(&host.frames(2)), all[..22]);
    while board.counts().sensors[1].silences == 0 {
        std::thread::yield_now();
    }
    host.arm(1);
    let packets = host.frames(3);
    assert_eq!(numbers(&packets), all[22..55]);
    assert_eq!(verify(Pattern::Counter, 1, 3, 0, &packets[0].payload), None);
}

#[test]
fn sequence_numbers_wrap() {
    for (psn20, first) in [(false, 0x00ff_fff0), (true, 0x000f_fff0)] {
        let board = Board::start(&Options {
            psn20,
            psn: first,
            ..options(&[])
        })
        .unwrap();
        let mut host = Host::new(&board);
        host.arm(1);
        let expected: Vec<u32> = (0..66).map(|n| (first + n) % (first + 16)).collect();
        assert_eq!(numbers(&host.frames(6)), expected);
    }
}

#[test]
fn control_plane_rejects_invalid_requests() {
    let board = Board::start(&options(&["ecb-status@7", "ecb-sequence@8"])).unwrap();
    let mut host = Host::new(&board);
    assert_eq!(host.access(0x14, 0x0200_0308, 0), (0, 12_288));
    assert_eq!(host.access(0x14, 0x0300_0308, 0).0, 0x03);
    assert_eq!(host.access(0x04, 0x1002, 0).0, 0x03);
    assert_eq!(host.access(0x24, 0x1000, 0).0, 0x04);
    host.write(0x1000, 77);
    assert_eq!(host.access(0x14, 0x1000, 0), (0, 77));
    // The first request must have one access but has two; the second may have several.
    let ask = |request: &[u8]| {
        host.control.send(request).unwrap();
        let mut reply = vec![0; 100];
        let bytes = host.control.recv(&mut reply).unwrap();
        reply.truncate(bytes);
        reply
    };
    let accesses = [&[0, 0, 0x10, 0, 0, 0, 0, 0][..], &[2, 0, 3, 8, 0, 0, 0, 0]].concat();
    assert_eq!(
        ask(&[&[0x14, 0, 0, 9, 0, 0][..], &accesses].concat())[4],
        0x04
    );
    // The fault affects request 7.
    assert_eq!(
        ask(&[&[0x19, 0, 0, 9, 0, 0][..], &accesses].concat())[4],
        0x03
    );
    let reply = ask(&[&[0x19, 0, 0, 10, 0, 0][..], &accesses].concat());
    assert_eq!(reply[..6], [0x99, 0, 1, 10, 0, 0]);
    assert_eq!(reply[10..14], [0, 0, 0, 77]);
    assert_eq!(reply[18..], [0, 0, 0x30, 0, 0, 10]);
    // Undefined flags, and a sequence number that is out of sequence.
    let access = &accesses[..8];
    assert_eq!(
        ask(&[&[0x14, 4, 0, 11, 0, 0][..], access].concat())[4],
        0x06
    );
    assert_eq!(
        ask(&[&[0x14, 2, 0, 13, 0, 0][..], access].concat())[4],
        0x0b
    );
    assert_eq!(
        ask(&[&[0x14, 2, 0, 14, 0, 0][..], access].concat())[4],
        0x00
    );
    // A write without the answer flag gets no reply.
    host.control.send(&[1, 2, 3]).unwrap();
    host.control
        .send(&[&[0x04, 0, 0, 15, 0, 0][..], &[0, 0, 0x10, 0, 0, 0, 0, 9]].concat())
        .unwrap();
    assert_eq!(host.access(0x14, 0x1000, 0), (0, 9));
    let counts = board.stop();
    assert_eq!((counts.malformed, counts.ecb_faults), (1, 2));
    assert_eq!((counts.requests, counts.replies), (14, 13));
    assert_eq!(counts.refused, 7);
}

#[test]
fn announcements_are_sent() {
    let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
    listener.set_read_timeout(Some(TIMEOUT)).unwrap();
    let SocketAddr::V4(to) = listener.local_addr().unwrap() else {
        panic!("the socket must have an IPv4 address");
    };
    // No other test announces from this address.
    let board = Board::start(&Options {
        listen: "127.65.3.7:0".parse().unwrap(),
        announce: Some(to),
        ..options(&[])
    })
    .unwrap();
    let mut bytes = [0; 1000];
    let (count, from) = listener.recv_from(&mut bytes).unwrap();
    assert_eq!(
        (count, from.to_string().as_str()),
        (300, "127.65.3.7:12268")
    );
    assert_eq!(bytes[12..16], [127, 65, 3, 7]);
    drop(board);
}

#[test]
fn invalid_options_are_rejected() {
    for options in [
        Options {
            sensors: 0,
            ..options(&[])
        },
        Options {
            planes: 9,
            ..options(&[])
        },
        Options {
            psn: 1 << 24,
            ..options(&[])
        },
        Options {
            rate: Some(BitRate(0.0)),
            ..options(&[])
        },
    ] {
        assert!(matches!(
            Board::start(&options),
            Err(SensorError::Options(_))
        ));
    }
}

fn numbers(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(|packet| packet.psn).collect()
}

/// Returns true if two packets are equal except for the times of day.
fn is_alike(one: &Packet, other: &Packet) -> bool {
    let (mut one, mut other) = (one.clone(), other.clone());
    if one.opcode == 0x2b && other.opcode == 0x2b {
        for packet in [&mut one, &mut other] {
            for at in (12..24).chain(36..48) {
                packet.payload[at] = 0;
            }
        }
    }
    one == other
}
