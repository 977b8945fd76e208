//! Tests of the formats whose packets are numbered by time, `vita49` and `vdif`, with captures of senders that the tests
//! build from the standards.

#![allow(
    clippy::unnecessary_debug_formatting,
    reason = "paths are quoted and escaped as in TOML"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "the fields of packets have this size"
)]

use crate::replay::{lost, open, records_to, run};
use daq_testkit::assert_fields;
use std::collections::BTreeMap;
use tempfile::TempDir;

const PAYLOAD: usize = 64;
const PER_FRAME: usize = 8;
const FILL: u8 = 0xee;
/// Packets per second: 1.024 MHz of one-byte samples.
const PER_SECOND: u64 = 16_000;

fn payload(n: u64) -> Vec<u8> {
    (0..PAYLOAD as u64)
        .map(|i| (n.wrapping_mul(37) ^ i).to_le_bytes()[0])
        .collect()
}

/// A sender: the packet with number `n`, and the section of its format.
#[derive(Clone, Copy)]
struct Sender {
    name: &'static str,
    format: &'static str,
    packet: fn(u64) -> Vec<u8>,
}

/// Start of the streams, in seconds.
const START: u64 = 1_700_000_000;

fn vita(tsi: u32, tsf: u32, seconds: Option<u64>, fraction: u64, n: u64) -> Vec<u8> {
    let mut words = vec![0, 0x2a];
    words.extend(seconds.map(|seconds| u32::try_from(seconds).unwrap()));
    words.extend([(fraction >> 32) as u32, (fraction & 0xffff_ffff) as u32]);
    let size = u32::try_from(words.len() + PAYLOAD / 4).unwrap();
    words[0] = 0x1000_0000 + tsi * 0x40_0000 + tsf * 0x10_0000 + (n % 16) as u32 * 0x1_0000 + size;
    let mut packet: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    packet.extend(payload(n));
    packet
}

/// A packet of VITA 49 with the time in picoseconds.
fn picoseconds(n: u64) -> Vec<u8> {
    let fraction = n % PER_SECOND * (1_000_000_000_000 / PER_SECOND);
    vita(1, 2, Some(START + n / PER_SECOND), fraction, n)
}

fn samples(n: u64) -> Vec<u8> {
    let fraction = n % PER_SECOND * PAYLOAD as u64;
    vita(2, 1, Some(START + n / PER_SECOND), fraction, n)
}

fn free_running(n: u64) -> Vec<u8> {
    vita(
        0,
        3,
        None,
        (u64::MAX - 1_024_000).wrapping_add(n * PAYLOAD as u64),
        n,
    )
}

/// A frame of VDIF of the half year from 2023-07-01.
fn vdif(n: u64) -> Vec<u8> {
    let words = [
        10_000_000 + u32::try_from(n / PER_SECOND).unwrap(),
        47 * 0x100_0000 + (n % PER_SECOND) as u32,
        0x2000_0000 + (32 + PAYLOAD as u32) / 8,
        7 * 0x400_0000 + 5 * 0x1_0000 + 0x4f4e,
        0,
        0,
        0,
        0,
    ];
    let mut packet: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    packet.extend(payload(n));
    packet
}

const SENDERS: [Sender; 4] = [
    Sender {
        name: "VITA 49, picoseconds",
        format: "kind = \"vita49\"\nstream_id = 0x2a",
        packet: picoseconds,
    },
    Sender {
        name: "VITA 49, samples",
        format: "kind = \"vita49\"",
        packet: samples,
    },
    Sender {
        name: "VITA 49, free-running count",
        format: "kind = \"vita49\"",
        packet: free_running,
    },
    Sender {
        name: "VDIF",
        format: "kind = \"vdif\"\nthread = 5",
        packet: vdif,
    },
];

/// The payload of each packet slot.
type Slots = Vec<Option<Vec<u8>>>;

/// Replays `packets`. Returns the ledger, the number of rejected packets by reason, and the payload of each packet slot, with
/// `None` for a missing packet.
fn replay(
    sender: &Sender,
    packets: &[Vec<u8>],
) -> (
    daq_core::ledger::SourceReport,
    BTreeMap<&'static str, u64>,
    Slots,
) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    let records: Vec<_> = (1..)
        .zip(packets)
        .map(|(ns, packet)| (packet.clone(), 4991, ns))
        .collect();
    records_to(&path, &records, true);
    let text = format!(
        "[source.adc]\ndriver = \"replay\"\nring = \"raw\"\npath = {path:?}\nspeed = \"free\"\nwindow = 4\n\
         samples = {{ type = \"int8\", rate = \"1.024 MHz\" }}\n[source.adc.format]\n{}\npayload = {PAYLOAD}\n",
        sender.format
    );
    let mut fixture = open(&text, PAYLOAD * PER_FRAME, 16);
    let frames = run(&mut fixture);
    let mut slots = Slots::new();
    let mut last = None;
    for (number, epoch, bytes, present) in &frames {
        let mut of_frame = Vec::new();
        for (slot, present) in bytes.chunks(PAYLOAD).zip(present) {
            assert!(
                *present || slot.iter().all(|byte| *byte == FILL),
                "stale bytes"
            );
            of_frame.push(present.then(|| slot.to_vec()));
        }
        match last {
            Some((before, same)) if same == epoch => {
                // A frame without any packet is not published.
                let gone = usize::try_from(number - before - 1).unwrap() * PER_FRAME;
                slots.resize(slots.len() + gone, None);
            }
            _ => {
                // An epoch begins and ends inside of frames.
                trim_end(&mut slots);
                let first = of_frame.iter().position(Option::is_some).unwrap();
                of_frame.drain(..first);
            }
        }
        slots.append(&mut of_frame);
        last = Some((number, epoch));
    }
    trim_end(&mut slots);
    let report = fixture.report();
    let rejections = fixture.rejections.read(report.rejected);
    (report, rejections, slots)
}

/// Removes the packets after the last one that arrived.
fn trim_end(slots: &mut Slots) {
    let end = slots.iter().rposition(Option::is_some);
    slots.truncate(end.map_or(0, |last| last + 1));
}

/// Returns the packets of `range` of `sender`, without those of `gone`.
fn packets(sender: &Sender, range: std::ops::Range<u64>, gone: &[u64]) -> Vec<Vec<u8>> {
    let sent = range.filter(|n| !gone.contains(n));
    sent.map(sender.packet).collect()
}

#[test]
fn losses_of_16_packets_are_exact_across_a_second() {
    for sender in &SENDERS {
        let first = PER_SECOND - 200;
        // 16 and 32 packets, whose loss the 4-bit count cannot show, one of them at the start of the second.
        let gone: Vec<u64> = [40..56, 100..132, 192..208, 300..301]
            .into_iter()
            .flatten()
            .map(|n| first + n)
            .collect();
        let mut sent = packets(sender, first..first + 400, &gone);
        sent.swap(60, 67);
        sent.swap(150, 152);
        sent.insert(20, (sender.packet)(first + 17));
        let (report, rejected, slots) = replay(sender, &sent);
        let name = sender.name;
        assert_fields!(report => expected: 400, delivered: 335, duplicates: 1, rejected: 0, epochs: 1; "{name}");
        assert_eq!(lost(&report), BTreeMap::from([("wire_gap", 65)]), "{name}");
        assert!(rejected.is_empty(), "{name}: {rejected:?}");
        let expected: Vec<_> = (first..first + 400)
            .map(|n| (!gone.contains(&n)).then(|| payload(n)))
            .collect();
        assert_eq!(slots, expected, "{name}");
    }
}

#[test]
fn restarted_sender_begins_an_epoch_without_loss() {
    for sender in &SENDERS {
        for restart in [1_000_000, 0] {
            // The second stream begins long after the first, or before it.
            let mut sent = packets(sender, 600_000..600_096, &[]);
            sent.extend(packets(sender, restart..restart + 96, &[]));
            let (report, _, slots) = replay(sender, &sent);
            let name = sender.name;
            assert_fields!(report => expected: 192, delivered: 192, rejected: 0, epochs: 2; "{name}");
            let numbers = (600_000..600_096).chain(restart..restart + 96);
            let expected: Vec<_> = numbers.map(|n| Some(payload(n))).collect();
            assert_eq!(slots, expected, "{name}");
        }
    }
}

/// Returns packet `n` of a VITA 49 sender whose samples are `shift` picoseconds later.
fn shifted(n: u64, shift: u64) -> Vec<u8> {
    let fraction = n % PER_SECOND * (1_000_000_000_000 / PER_SECOND) + shift;
    vita(1, 2, Some(START + n / PER_SECOND), fraction, n)
}

#[test]
fn restart_off_the_grid_begins_an_epoch_without_loss() {
    let sender = &SENDERS[0];
    // 3 samples later: the sender restarts at once, so the numbers alone would show a continuous stream.
    let mut sent = packets(sender, 0..96, &[]);
    sent.extend((96..192).map(|n| shifted(n, 2_929_688)));
    let (report, _, slots) = replay(sender, &sent);
    assert_fields!(report => expected: 192, delivered: 192, rejected: 0, epochs: 2);
    assert_eq!(
        slots,
        (0..192).map(|n| Some(payload(n))).collect::<Vec<_>>()
    );
}

#[test]
fn repeated_second_loses_no_packet() {
    let sender = &SENDERS[0];
    // A second has a multiple of 16 packets, so the packet count of a repeated second is the same.
    let mut sent = packets(sender, 0..PER_SECOND, &[]);
    sent.extend(packets(sender, 0..2 * PER_SECOND, &[]));
    let (report, _, _) = replay(sender, &sent);
    assert_fields!(report => expected: 3 * PER_SECOND, delivered: 3 * PER_SECOND, duplicates: 0, rejected: 0, epochs: 2);
    assert!(lost(&report).is_empty());
}

#[test]
fn hostile_packets_change_no_frame() {
    for sender in &SENDERS {
        let mut sent = Vec::new();
        for n in 0..400 {
            sent.push((sender.packet)(n));
            let mut other = (sender.packet)(n);
            match n % 4 {
                // Another stream or thread.
                0 if sender.name == "VDIF" => other[14] ^= 1,
                0 => other[7] ^= 1,
                1 => other.truncate((n % 80) as usize),
                // A size that is not the packet's.
                2 if sender.name == "VDIF" => other[8] ^= 1,
                2 => other[3] ^= 1,
                // Another time, far away, each time another one.
                3 if sender.name == "VDIF" => {
                    other[0..3].copy_from_slice(&[n as u8, (n * 77) as u8, n as u8]);
                }
                3 if sender.name.ends_with("count") => {
                    other[8..13].copy_from_slice(&[(n * 31) as u8; 5]);
                }
                _ => other[12..16].copy_from_slice(&[0, (n * 31) as u8, (n * 77) as u8, n as u8]),
            }
            sent.push(other);
        }
        let (report, rejected, slots) = replay(sender, &sent);
        let name = sender.name;
        assert_fields!(report => expected: 400, delivered: 400, duplicates: 0, rejected: 400, epochs: 1; "{name}: {rejected:?}");
        let expected: Vec<_> = (0..400).map(|n| Some(payload(n))).collect();
        assert_eq!(slots, expected, "{name}");
    }
}

#[test]
fn messages_are_control_and_change_no_number() {
    let sender = &SENDERS[0];
    let mut sent = Vec::new();
    for n in 0..64 {
        sent.push((sender.packet)(n));
        if n % 8 == 3 {
            // Context, extension context and command packets, with their own count.
            let kind = 4 + (n / 8 % 4) as u32;
            let mut words = vec![
                0,
                0x2a,
                u32::try_from(START).unwrap(),
                0,
                0,
                1 << 21,
                0x000f_4240 >> 12,
                0x4240_0000,
            ];
            words[0] = kind << 28 | 0x60_0000 | (n as u32 / 8) << 16 | 8;
            sent.push(words.into_iter().flat_map(u32::to_be_bytes).collect());
        }
    }
    let (report, rejected, slots) = replay(sender, &sent);
    assert_fields!(report => expected: 64, delivered: 64, control: 8, rejected: 0; "{rejected:?}");
    assert_eq!(slots, (0..64).map(|n| Some(payload(n))).collect::<Vec<_>>());
}
