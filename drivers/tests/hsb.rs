//! Tests of the source `hsb` over the loopback interface, with generated packets and an emulated control plane.

mod control;

use daq_core::frame::{Clock, Timestamp};
use daq_drivers::hsb::ENTRY;
use daq_drivers::hsb::pages::Pages;
use daq_drivers::hsb::placer::Placer;
use daq_drivers::sys::send::Sender;
use daq_testkit::assert_fields;
use daq_testkit::hsb_packet::{Packet, metadata};
use daq_testkit::loopback::{self, free_address};
use daq_testkit::source::{SourceFixture, new_fixture, spec};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

const FRAME: usize = 2500;
const PACKET: usize = 512;
/// Number of packets per frame: four of 512 bytes and one of 452 bytes.
const PACKETS: usize = 5;
const PAGES: u64 = 8;
/// Distance between pages: 2500 rounded up to a multiple of 128, plus the metadata.
const STRIDE: u64 = 2560 + 128;
const SECONDS: u64 = 1_700_000_000;

/// Properties of an emulated sensor.
#[derive(Clone, Copy)]
struct Sensor {
    /// Whether a frame's last data packet contains the metadata.
    embeds: bool,
    /// PSN of the first packet.
    first: u32,
    /// Number of bits of the PSN.
    bits: u32,
}

const SENSOR: Sensor = Sensor {
    embeds: false,
    first: 100,
    bits: 24,
};

fn payload(frame: u64) -> Vec<u8> {
    let seed = (frame + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..FRAME as u64)
        .map(|i| (seed.rotate_left((i % 61) as u32) ^ i).to_le_bytes()[0])
        .collect()
}

impl Sensor {
    /// Returns the packets of frame `frame`.
    fn frame(self, frame: u64) -> Vec<Packet> {
        let packets = PACKETS as u64 + u64::from(!self.embeds);
        let page = frame % PAGES;
        let bytes = payload(frame);
        let number = |index: u64| {
            let psn = (u64::from(self.first) + frame * packets + index) & ((1 << self.bits) - 1);
            u32::try_from(psn).unwrap()
        };
        let immediate = |psn: u32| Some(u32::try_from(page).unwrap() | psn << 12);
        let notes = metadata(
            u16::try_from(frame & 0xffff).unwrap(),
            SECONDS + frame,
            5,
            FRAME as u64,
        );
        let mut made: Vec<Packet> = bytes
            .chunks(PACKET)
            .zip(0..)
            .map(|(part, index)| Packet {
                psn: number(index),
                address: 0x10_0000 + page * STRIDE + index * PACKET as u64,
                payload: part.to_vec(),
                ..Packet::default()
            })
            .collect();
        if self.embeds {
            let last = made.last_mut().unwrap();
            last.payload.resize(2560 - 4 * PACKET, 0);
            last.payload.extend(notes);
            last.immediate = immediate(last.psn);
        } else {
            let psn = number(PACKETS as u64);
            made.push(Packet {
                psn,
                address: 0x10_0000 + page * STRIDE + 2560,
                immediate: immediate(psn),
                payload: notes.to_vec(),
                ..Packet::default()
            });
        }
        made
    }
}

fn text(listen: SocketAddr, more: &str) -> String {
    format!(
        "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"{listen}\"\nframe = {FRAME}\npacket = {PACKET}\n\
         pages = {PAGES}\nqueue_pair = 5\nrkey = 9\nbase = 0x10_0000\n{more}\n"
    )
}

fn receiver(more: &str) -> (SourceFixture, Sender) {
    let to = free_address();
    let spec = spec(&ENTRY, &text(to, &format!("control = false\n{more}"))).unwrap();
    let fixture = new_fixture(&*spec, FRAME.next_multiple_of(64), 64).unwrap();
    loopback::stay();
    (fixture, Sender::open(to, false, None).unwrap())
}

fn send<'p>(
    fixture: &mut SourceFixture,
    sender: &mut Sender,
    packets: impl IntoIterator<Item = &'p Packet>,
) {
    for packet in packets {
        sender.send(&packet.bytes()).unwrap();
    }
    fixture.fill_all();
}

fn stamps(fixture: &mut SourceFixture) -> Vec<(u64, Timestamp)> {
    let mut stamps = Vec::new();
    while let Some(lease) = fixture.reader.poll(1) {
        let meta = *lease.frame(0).meta();
        stamps.push((meta.sequence, meta.timestamp));
    }
    stamps
}

#[test]
fn frames_with_any_metadata_placement_arrive_intact() {
    for embeds in [false, true] {
        let (mut fixture, mut sender) = receiver("");
        let sensor = Sensor { embeds, ..SENSOR };
        for frame in 0..30 {
            send(&mut fixture, &mut sender, &sensor.frame(frame));
            // The frame must be ready immediately, because nothing is missing.
            let got = fixture.read();
            assert_eq!(got.len(), 1, "frame {frame}");
            assert_eq!((got[0].0, got[0].1), (frame, 1));
            assert!(got[0].2 == payload(frame) && got[0].3 == [true; PACKETS]);
        }
        let report = fixture.report();
        let packets = 30 * PACKETS as u64;
        assert_eq!((report.expected, report.delivered), (packets, packets));
        assert_eq!((report.rejected, report.duplicates), (0, 0));
        assert_eq!(report.control, if embeds { 0 } else { 30 });
        assert_eq!(report.bytes, 30 * FRAME as u64);
    }
}

#[test]
fn frame_has_sensor_time() {
    for embeds in [false, true] {
        let (mut fixture, mut sender) = receiver("");
        let sensor = Sensor { embeds, ..SENSOR };
        let mut packets: Vec<_> = (0..3).flat_map(|frame| sensor.frame(frame)).collect();
        // The packet with the middle frame's metadata arrives before the packet that precedes it.
        let end = 2 * packets.len() / 3;
        packets.swap(end - 1, end - 2);
        send(&mut fixture, &mut sender, &packets);
        let expected: Vec<_> = (0..3)
            .map(|frame| {
                let ns = (SECONDS + frame) * 1_000_000_000 + 5;
                let clock = Clock::Sensor;
                (frame, Timestamp { ns, clock })
            })
            .collect();
        assert_eq!(stamps(&mut fixture), expected, "embeds {embeds}");
    }
}

#[test]
fn a_frame_whose_metadata_are_lost_has_no_time() {
    let (mut fixture, mut sender) = receiver("");
    for frame in 0..4 {
        let mut packets = SENSOR.frame(frame);
        if frame == 1 {
            packets.pop();
        }
        send(&mut fixture, &mut sender, &packets);
    }
    fixture.windows[0].finish();
    let got = stamps(&mut fixture);
    assert_eq!(got.len(), 4);
    assert_eq!(got[1], (1, Timestamp::default()));
    assert!(
        got.iter()
            .filter(|(_, time)| time.clock == Clock::Sensor)
            .count()
            == 3
    );
    let report = fixture.report();
    assert_eq!(
        (report.delivered, report.lost.values().sum::<u64>()),
        (20, 0)
    );
}

#[test]
fn missing_packets_are_marked_filled_and_counted() {
    for embeds in [false, true] {
        let (mut fixture, mut sender) = receiver("");
        let sensor = Sensor { embeds, ..SENSOR };
        let mut dropped = 0;
        for frame in 0..20_u64 {
            let mut index = 0;
            let mut packets = sensor.frame(frame);
            packets.retain(|_| {
                // The end of the last frame is always kept, because otherwise its missing packets would not be
                // expected.
                let is_end = frame == 19 && index >= 4 || index == 5;
                let keeps =
                    (frame * 7 + index).is_multiple_of(3) || frame.is_multiple_of(4) || is_end;
                index += 1;
                keeps
            });
            let kept = packets
                .iter()
                .filter(|packet| packet.payload.len() > 128)
                .count();
            dropped += (PACKETS - kept) as u64;
            send(&mut fixture, &mut sender, &packets);
        }
        fixture.windows[0].finish();
        let frames = fixture.read();
        assert_eq!(frames.len(), 20);
        for (frame, (sequence, epoch, bytes, present)) in (0..).zip(frames) {
            assert_eq!((sequence, epoch), (frame, 1));
            let expected = payload(frame);
            for (index, is_present) in present.into_iter().enumerate() {
                let place = index * PACKET..FRAME.min((index + 1) * PACKET);
                if is_present {
                    assert_eq!(bytes[place.clone()], expected[place]);
                } else {
                    assert!(bytes[place].iter().all(|byte| *byte == 0xee));
                }
            }
        }
        let report = fixture.report();
        assert_fields!(report => expected: 100, rejected: 0; "embeds {embeds}");
        assert_eq!(report.delivered, 100 - dropped);
        assert_eq!(report.lost["wire_gap"], dropped);
    }
}

#[test]
fn sequence_wrap_loses_nothing() {
    for (bits, first) in [(20, 0xf_ffe0), (24, 0xff_ffe0), (24, 0xf_ffe0)] {
        let (mut fixture, mut sender) = receiver("");
        let sensor = Sensor {
            first,
            bits,
            ..SENSOR
        };
        for frame in 0..20 {
            send(&mut fixture, &mut sender, &sensor.frame(frame));
        }
        let report = fixture.report();
        assert_fields!(report => expected: 100, delivered: 100, rejected: 0; "{bits} {first:#x}");
        assert_eq!(report.epochs, 1);
    }
}

#[test]
fn many_frames_in_a_row_may_be_lost() {
    let (mut fixture, mut sender) = receiver("");
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    // The lost frames are more than five rounds over the pages.
    for frame in 45..50 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    // Four consistent packets confirm the gap, so none is rejected.
    assert_eq!((report.epochs, report.rejected), (1, 0));
    assert_eq!((report.expected, report.delivered), (250, 30));
    assert_eq!(report.lost["wire_gap"], 220);
}

#[test]
fn a_hostile_sender_changes_nothing() {
    let (mut fixture, mut sender) = receiver("");
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    fixture.read();
    let good = SENSOR.frame(1);
    send(&mut fixture, &mut sender, &good[..3]);
    let with = |change: &dyn Fn(&mut Packet)| {
        let mut packet = good[3].clone();
        packet.payload.fill(0xbd);
        change(&mut packet);
        packet
    };
    let page = 0x10_0000 + STRIDE;
    let hostile = [
        with(&|packet| packet.rkey = 8),
        with(&|packet| packet.queue_pair = 4),
        with(&|packet| packet.address = 0),
        with(&|packet| packet.address = u64::MAX - 100),
        with(&|packet| packet.address = 0x10_0000 + PAGES * STRIDE),
        with(&|packet| packet.address = page + 3 * PACKET as u64 + 4),
        with(&|packet| packet.address = page + 2560 + 128),
        with(&|packet| packet.address = page + 2560),
        with(&|packet| packet.payload.truncate(511)),
        with(&|packet| packet.payload.push(1)),
        with(&|packet| packet.payload.clear()),
        with(&|packet| packet.immediate = Some(1)),
        with(&|packet| packet.psn += 1),
        with(&|packet| packet.psn = 0x80_0000),
        with(&|packet| packet.address += STRIDE),
    ];
    send(&mut fixture, &mut sender, &hostile);
    let mut wrong = good[3].bytes();
    wrong[0] = 0x0a;
    sender.send(&wrong).unwrap();
    sender.send(&[]).unwrap();
    sender.send(&good[3].bytes()[..31]).unwrap();
    fixture.fill_all();
    let rejected = hostile.len() as u64 + 3;
    // The last packet that fits no frame is still kept, because it may be the first of a new count.
    assert_eq!(fixture.report().rejected, rejected - 1);
    fixture.fillers[0].finish(&mut fixture.windows[0]);
    let reasons = fixture.rejections.read(rejected);
    assert_eq!(reasons.values().sum::<u64>(), rejected, "{reasons:?}");
    for reason in [
        "key",
        "queue_pair",
        "misplaced",
        "immediate",
        "sequence_number",
        "opcode",
    ] {
        assert!(reasons.contains_key(reason), "{reason}: {reasons:?}");
    }
    assert_eq!((reasons["key"], reasons["short"]), (1, 2));
    // Repeated packets of the previous frame and of this frame, and the missing packets of this frame with its end.
    send(&mut fixture, &mut sender, &SENSOR.frame(0)[2..4]);
    send(&mut fixture, &mut sender, &good[1..2]);
    send(&mut fixture, &mut sender, &good[3..]);
    send(&mut fixture, &mut sender, &good[5..]);
    let frames = fixture.read();
    assert_eq!(frames.len(), 1);
    assert!(frames[0].2 == payload(1) && frames[0].3 == [true; PACKETS]);
    let report = fixture.report();
    assert_eq!((report.rejected, report.duplicates), (rejected, 4));
    assert_fields!(report => expected: 10, delivered: 10, epochs: 1);
}

#[test]
fn index_of_a_repeated_packet_is_returned() {
    let (mut fixture, _) = receiver("");
    let pages = Pages {
        base: 0x10_0000,
        stride: STRIDE,
        count: u32::try_from(PAGES).unwrap(),
        frame: FRAME,
        packet: PACKET,
        queue_pair: 5,
        rkey: 9,
    };
    let mut placer = Placer::new("camera", pages, fixture.geometry.window, 4);
    let mut place = |frame: u64, packets: &[usize]| {
        let all: Vec<_> = SENSOR.frame(frame).iter().map(Packet::bytes).collect();
        let sent = packets.iter().map(|packet| &all[*packet][..]);
        placer.place(&mut fixture.windows[0], sent)
    };
    assert_eq!(place(0, &[0, 1, 2]), None);
    assert_eq!(place(0, &[3, 1, 4]), Some(1));
    // The metadata packet arrives twice.
    assert_eq!(place(0, &[5, 5]), Some(1));
    assert_eq!(place(1, &[0]), None);
}

#[test]
fn what_is_sent_again_long_after_is_a_duplicate() {
    let (mut fixture, mut sender) = receiver("");
    for frame in 0..40 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
        if frame >= 20 {
            send(&mut fixture, &mut sender, &SENSOR.frame(frame - 17));
        }
    }
    fixture.fillers[0].finish(&mut fixture.windows[0]);
    let report = fixture.report();
    assert_fields!(report => delivered: 200, rejected: 0, epochs: 1);
    assert_eq!(report.duplicates, 20 * (PACKETS as u64 + 1));
    for (frame, got) in (0..).zip(fixture.read()) {
        assert_eq!((got.0, got.2 == payload(frame)), (frame, true));
    }
}

#[test]
fn sensor_armed_again_begins_an_epoch() {
    let (mut fixture, mut sender) = receiver("");
    for frame in 0..10 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    let restarted = Sensor {
        first: 77_777,
        ..SENSOR
    };
    for frame in 0..10 {
        send(&mut fixture, &mut sender, &restarted.frame(frame));
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (2, 0));
    assert_eq!((report.expected, report.delivered), (100, 100));
    assert_eq!((report.control, report.duplicates), (20, 0));
    let got = fixture.read();
    for (n, frame) in (0..20).zip(&got) {
        assert_eq!((frame.0, frame.1), (n % 10, if n < 10 { 1 } else { 2 }));
        assert!(frame.2 == payload(n % 10) && frame.3 == [true; PACKETS]);
    }
    assert_eq!(got.len(), 20);
}

#[test]
fn a_restarted_count_loses_nothing_though_each_packet_comes_twice() {
    let (mut fixture, mut sender) = receiver("");
    let other = Sensor {
        first: 77_777,
        ..SENSOR
    };
    for sensor in [SENSOR, other] {
        for frame in 0..10 {
            let packets = sensor.frame(frame);
            let twice = packets.iter().flat_map(|packet| [packet, packet]);
            send(&mut fixture, &mut sender, twice);
        }
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (2, 0));
    assert_eq!((report.expected, report.delivered), (100, 100));
    assert_eq!((report.control, report.duplicates), (20, 120));
}

#[test]
fn a_count_that_restarts_with_numbers_of_the_past_loses_nothing() {
    let (mut fixture, mut sender) = receiver("");
    for frame in (0..40).chain(0..10) {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_fields!(report => epochs: 2, rejected: 0, duplicates: 0);
    assert_eq!((report.expected, report.delivered), (250, 250));
    let got = fixture.read();
    for (n, frame) in (0..10).zip(&got[40..]) {
        assert_eq!((frame.0, frame.1, frame.2 == payload(n)), (n, 2, true));
    }
    assert_eq!(got.len(), 50);
}

#[test]
fn packets_that_agree_with_nothing_are_rejected_when_the_stream_goes_on() {
    let (mut fixture, mut sender) = receiver("");
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    let other = Sensor {
        first: 77_777,
        ..SENSOR
    };
    // One packet fewer than required to confirm a new count.
    send(&mut fixture, &mut sender, &other.frame(0)[..3]);
    assert_eq!(fixture.report().rejected, 0);
    send(&mut fixture, &mut sender, &SENSOR.frame(1));
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (1, 3));
    assert_eq!(fixture.rejections.read(3)["sequence_number"], 3);
    assert_eq!((report.expected, report.delivered), (10, 10));
}

#[test]
fn what_comes_first_after_its_frame_was_closed_is_late() {
    let (mut fixture, mut sender) = receiver("window = 2");
    for frame in 0..5 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    let mut packets = SENSOR.frame(5);
    let straggler = packets.remove(3);
    send(&mut fixture, &mut sender, &packets);
    send(&mut fixture, &mut sender, &SENSOR.frame(6));
    // The window advances to frame 7. After that frame is complete too, frame 5 is no longer tracked.
    let (last, begun) = (SENSOR.frame(7).pop().unwrap(), SENSOR.frame(7));
    send(&mut fixture, &mut sender, &begun[..PACKETS]);
    assert_eq!(fixture.report().delivered, 7 * PACKETS as u64 - 1);
    send(&mut fixture, &mut sender, [&straggler]);
    // The first arrival is late, the second is a duplicate.
    send(&mut fixture, &mut sender, [&straggler]);
    send(&mut fixture, &mut sender, [&last]);
    for frame in 8..12 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!(report.lost, BTreeMap::from([("late", 1)]));
    assert_eq!((report.duplicates, report.rejected), (1, 0));
    assert_eq!((report.expected, report.delivered), (60, 59));
}

#[test]
fn metadata_that_overtake_others_are_no_repetition() {
    let (mut fixture, mut sender) = receiver("");
    let [mut first, second] = [0, 1].map(|frame| SENSOR.frame(frame));
    let overtaken = first.pop().unwrap();
    send(&mut fixture, &mut sender, &first);
    send(&mut fixture, &mut sender, &second);
    send(&mut fixture, &mut sender, [&overtaken]);
    let times: Vec<_> = stamps(&mut fixture)
        .into_iter()
        .map(|(frame, time)| (frame, time.ns / 1_000_000_000))
        .collect();
    assert_eq!(times, [(0, SECONDS), (1, SECONDS + 1)]);
    assert_eq!(
        (fixture.report().control, fixture.report().duplicates),
        (2, 0)
    );
    // The same packets again are duplicates.
    send(&mut fixture, &mut sender, [&overtaken, &second[PACKETS]]);
    assert_eq!(
        (fixture.report().control, fixture.report().duplicates),
        (2, 2)
    );
}

#[test]
fn metadata_alone_do_not_lead_the_stream_away() {
    let (mut fixture, mut sender) = receiver("");
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    for frame in 1..30 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame)[PACKETS..]);
    }
    for frame in 1..6 {
        send(&mut fixture, &mut sender, &SENSOR.frame(frame));
    }
    let report = fixture.report();
    assert_eq!((report.expected, report.delivered), (30, 30));
    // The metadata packets of the two frames that were open.
    assert_eq!((report.duplicates, report.rejected), (2, 0));
}
