//! Tests that a replay counts the packets of a capture that it cannot read.

use crate::replay::{lost, open, packet, pcap_text, records_to, run};
use daq_testkit::assert_fields;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// Size in bytes of the file header, of the header of a record, and of the IP and UDP headers.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const HEADERS: usize = 28;

/// Writes a capture of `count` packets to port 4950, each followed by one to port 4951. `cut` returns the captured size of a
/// packet from its number, size and port.
fn capture(path: &Path, count: u64, cut: impl Fn(u64, usize, u16) -> usize) {
    let records: Vec<_> = (0..count)
        .flat_map(|n| [(packet(n), 4950, 5), (packet(n), 4951, 5)])
        .collect();
    records_to(path, &records, false);
    let whole = std::fs::read(path).unwrap();
    let (mut file, mut rest) = (whole[..FILE_HEADER].to_vec(), &whole[FILE_HEADER..]);
    for (n, (body, port, _)) in (0..).zip(&records) {
        let size = HEADERS + body.len();
        let captured = cut(n / 2, size, *port);
        let (record, others) = rest.split_at(RECORD_HEADER + size);
        file.extend(&record[..8]);
        file.extend(u32::try_from(captured).unwrap().to_le_bytes());
        file.extend(&record[12..RECORD_HEADER + captured]);
        rest = others;
    }
    std::fs::write(path, file).unwrap();
}

/// Sets the link type in the header of a capture.
fn set_link(path: &Path, link: u32) {
    let mut file = std::fs::read(path).unwrap();
    file[20..24].copy_from_slice(&link.to_le_bytes());
    std::fs::write(path, file).unwrap();
}

#[test]
fn unreadable_packets_are_rejected_by_reason() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    // The last 10 of 40 packets are cut, of which 2 have no whole header; and all those of the other port.
    capture(&path, 40, |n, size, port| match (n, port) {
        (38.., 4950) => HEADERS - 1,
        (30.., 4950) | (_, 4951) => size - 1,
        _ => size,
    });
    let text = pcap_text(&format!("{path:?}"), "speed = \"free\"\nport = 4950");
    let mut fixture = open(&text, 64 * 8, 16);
    run(&mut fixture);
    let report = fixture.report();
    assert_fields!(report => expected: 30, delivered: 30, rejected: 10);
    assert_eq!(lost(&report), BTreeMap::new());
    let reasons = fixture.rejections.read(report.rejected);
    assert_eq!(reasons, BTreeMap::from([("cut_short", 10)]));
    let (_, message) = fixture.rejections.most_frequent(report.rejected).unwrap();
    assert!(message.contains("a.pcap") && message.contains("tcpdump -s 0"));
    // Nothing is known about the packets of an unknown link layer.
    set_link(&path, 147);
    let mut fixture = open(&text, 64 * 8, 16);
    run(&mut fixture);
    let report = fixture.report();
    assert_fields!(report => delivered: 0, rejected: 80);
    let reasons = fixture.rejections.read(report.rejected);
    assert_eq!(reasons, BTreeMap::from([("unknown_link", 80)]));
}

/// The upper half of the link type contains the size of the frame check sequence.
#[test]
fn link_type_with_frame_check_sequence_is_known() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.pcap");
    capture(&path, 40, |_, size, _| size);
    // Link type 101, raw IP.
    set_link(&path, 0x65 | 1 << 26 | 4 << 28);
    let text = pcap_text(&format!("{path:?}"), "speed = \"free\"\nport = 4950");
    let mut fixture = open(&text, 64 * 8, 16);
    run(&mut fixture);
    assert_fields!(fixture.report() => delivered: 40, rejected: 0);
}
