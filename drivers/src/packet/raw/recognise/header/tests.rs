//! Tests of packets with counters in a fixed header.

use super::*;
use crate::packet::FORMATS;
use crate::packet::recognise::{account, best};
use daq_core::entry::Registry;

/// Time of capture of the first packet in nanoseconds, a whole second.
const START: u64 = 1_700_000_000_000_000_000;

/// Returns a packet with `header` and `payload` bytes that look random, sent `number` times `interval` ns after the first.
fn packet(header: &[u8], payload: usize, number: usize, interval: u64) -> CapturedPacket {
    // The payload must not count, so its bytes are those of a hash.
    let noise = |i: usize| {
        let mixed = (number * 256 + i + 1) as u64;
        let mixed = (mixed ^ mixed >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .to_be_bytes()[2]
    };
    let length = header.len() + payload;
    let body = (0..payload.min(200)).map(noise);
    CapturedPacket {
        source: ([10, 0, 0, 1], 9).into(),
        ns: START + number as u64 * interval,
        length,
        head: header.iter().copied().chain(body).collect(),
    }
}

/// Returns packets of `headers`; `payload` is the size of their payloads by the index.
fn packets(headers: &[Vec<u8>], payload: impl Fn(usize) -> usize) -> Vec<CapturedPacket> {
    let headers = headers.iter().enumerate();
    headers
        .map(|(i, header)| packet(header, payload(i), i, 100_000))
        .collect()
}

fn found(packets: &[CapturedPacket]) -> Option<Recognised> {
    let recognisers = Registry::default().with_all(FORMATS).recognisers();
    best(&recognisers, &packets.iter().collect::<Vec<_>>()).map(|(_, found)| found)
}

/// Returns the lines of the suggestion without spaces, and its comments.
fn lines(packets: &[CapturedPacket]) -> (Vec<String>, Vec<String>) {
    let Some(Suggestion::Format { keys, .. }) = found(packets).map(|found| found.suggestion) else {
        panic!("no format");
    };
    let lines = keys.iter().flat_map(|key| key.line.lines());
    let lines = lines.map(|line| line.replace(' ', "")).collect();
    (lines, keys.into_iter().map(|key| key.why).collect())
}

fn has(lines: &[String], wanted: &str) -> bool {
    lines.iter().any(|line| line == wanted)
}

/// Returns headers of frame number, packet number and two zero bytes.
fn frames(count: u32, packets: u16) -> Vec<Vec<u8>> {
    let all = (0..count).flat_map(|frame| (0..packets).map(move |packet| (frame, packet)));
    let header = |(frame, packet): (u32, u16)| {
        [&frame.to_be_bytes()[..], &packet.to_be_bytes(), &[0, 0]].concat()
    };
    all.map(header).collect()
}

#[test]
fn shorter_last_packet_is_part_of_the_frame() {
    for (count, last) in [(10, 300), (2, 1000), (4, 100)] {
        let payload = |i: usize| {
            if (i + 1).is_multiple_of(count) {
                last
            } else {
                1024
            }
        };
        let headers = frames(60, u16::try_from(count).unwrap());
        let packets = packets(&headers, payload);
        let (lines, _) = lines(&packets);
        assert!(has(&lines, &format!("packets={count}")), "{lines:?}");
        assert!(has(&lines, &format!("last={last}")), "{lines:?}");
        assert!(has(&lines, "payload=\"1KiB\""), "{lines:?}");
        let places = found(&packets).unwrap().places;
        assert_eq!(places.iter().flatten().count(), packets.len());
    }
}

#[test]
fn other_sizes_within_frames_are_noted_instead() {
    // Every seventh packet is shorter, wherever it is in its frame.
    let packets = packets(&frames(60, 10), |i| if i % 7 == 3 { 300 } else { 1024 });
    let (lines, notes) = lines(&packets);
    assert!(
        !lines.iter().any(|line| line.starts_with("last")),
        "{lines:?}"
    );
    let note = notes
        .iter()
        .find(|note| note.contains("have another size than 1032 B"));
    assert!(note.is_some(), "{notes:?}");
}

#[test]
fn offset_that_steps_by_the_payload_states_the_header() {
    let all = (0..60_u32).flat_map(|frame| (0..10_u32).map(move |packet| (frame, packet * 1000)));
    let header = |(frame, offset): (u32, u32)| {
        [&frame.to_be_bytes()[..], &offset.to_be_bytes(), &[9; 24]].concat()
    };
    let headers: Vec<_> = all.map(header).collect();
    let packets = packets(&headers, |i| if i % 10 == 9 { 300 } else { 1000 });
    let (lines, _) = lines(&packets);
    for wanted in ["header=32", "payload=1000", "packets=10", "last=300"] {
        assert!(has(&lines, wanted), "{wanted}: {lines:?}");
    }
}

#[test]
fn repeated_numbers_are_refused_and_a_second_acquisition_is_not() {
    let header = |number: u32| number.to_be_bytes().to_vec();
    // Two senders take turns in bursts of four packets.
    let bursts = (0..100).flat_map(|burst| [0, 1, 2, 3, 0, 1, 2, 3].map(|n| header(burst * 4 + n)));
    let bursts = packets(&bursts.collect::<Vec<_>>(), |_| 1024);
    assert!(found(&bursts).is_none());
    let twice: Vec<_> = (0..400).chain(0..400).map(header).collect();
    let twice = found(&packets(&twice, |_| 1024)).unwrap();
    assert_eq!(twice.places.iter().flatten().count(), 800);
}

#[test]
fn number_that_starts_again_is_no_frame_number() {
    let modules = (0..40_u32).flat_map(|frame| (0..32_u8).map(move |place| (frame, place)));
    let header = |(frame, place): (u32, u8)| {
        [&frame.to_be_bytes()[..], &[place / 8, place % 8, 0, 0]].concat()
    };
    let headers: Vec<_> = modules.map(header).collect();
    assert!(found(&packets(&headers, |_| 1024)).is_none());
}

/// Returns packets with the time in seconds and nanoseconds in their headers, in an order of bytes, `step` ns apart.
fn timed(step: u64, count: usize, bytes: impl Fn(u32) -> [u8; 4]) -> Vec<CapturedPacket> {
    let packets = (0..count).map(|i| {
        let ns = START + 250_000_000 + i as u64 * step;
        let parts = [ns / 1_000_000_000, ns % 1_000_000_000];
        let parts = parts.map(|part| bytes(u32::try_from(part).unwrap()));
        packet(&parts.concat(), 1024, i, step)
    });
    packets.collect()
}

#[test]
fn seconds_and_nanoseconds_are_a_time_of_two_parts() {
    // The shorter capture does not contain the end of a second.
    for count in [300, 3000] {
        for is_big in [true, false] {
            let bytes = if is_big {
                u32::to_be_bytes
            } else {
                u32::to_le_bytes
            };
            let packets = timed(1_000_000, count, bytes);
            let (lines, _) = lines(&packets);
            let endian = if is_big { "big" } else { "little" };
            for wanted in [
                "sequence.offset=4",
                &format!("sequence.endian=\"{endian}\""),
                "sequence.step=1000000",
                "sequence.range=[0,999999999]",
                "timestamp.offset=4",
                "timestamp.tick=\"1ns\"",
                &format!("timestamp.seconds={{offset=0,bytes=4,endian=\"{endian}\"}}"),
                "timestamp.origin=\"1970-01-01T00:00:00Z\"",
            ] {
                assert!(has(&lines, wanted), "{count} {wanted}: {lines:?}");
            }
            let found = found(&packets).unwrap();
            let counts = account(found.places.iter().copied(), &found.numbering);
            assert_eq!((counts.expected, counts.lost), (count as u64, 0));
        }
    }
}

#[test]
fn time_whose_steps_do_not_divide_a_second_is_no_number() {
    let found = found(&timed(700_000, 3000, u32::to_be_bytes)).unwrap();
    let Suggestion::None(reason) = found.suggestion else {
        panic!("a source is suggested");
    };
    assert!(reason.contains("700000 ticks per packet"), "{reason}");
}

#[test]
fn time_of_two_parts_beside_a_counter_is_the_timestamp() {
    let packets: Vec<CapturedPacket> = timed(1_000_000, 3000, u32::to_be_bytes)
        .into_iter()
        .enumerate()
        .map(|(i, timed)| {
            let number = u32::try_from(i).unwrap().to_be_bytes();
            let header = [&number[..], &timed.head[..8]].concat();
            packet(&header, 1024, i, 1_000_000)
        })
        .collect();
    let (lines, _) = lines(&packets);
    assert!(
        has(&lines, "sequence={offset=0,bytes=4,endian=\"big\"}"),
        "{lines:?}"
    );
    assert!(has(&lines, "timestamp.offset=8"), "{lines:?}");
    assert!(
        has(
            &lines,
            "timestamp.seconds={offset=4,bytes=4,endian=\"big\"}"
        ),
        "{lines:?}"
    );
}
