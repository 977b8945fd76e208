//! Tests that a replay has the packets of the recorded frames.

use crate::replay::{FRAME, bytes, capture, lost, open, ours, run, sigmf_text, store};
use daq_core::frame::{Flags, PacketSizes};
use daq_core::sigmf::{Annotation, Capture, LABEL_MISSING, Meta};
use daq_core::source::Polled;
use daq_testkit::assert_fields;
use std::collections::BTreeMap;
use tempfile::TempDir;

/// Returns the metadata of three frames with `packets` packets each, in which the samples of `bytes` are missing.
fn frames_of(packets: u32, sizes: PacketSizes, missing: (u64, u64), exact: &[[u64; 2]]) -> Meta {
    let (start, end) = missing;
    let note = Annotation {
        sample_start: start / 8,
        sample_count: Some(end.div_ceil(8) - start / 8),
        label: Some(LABEL_MISSING.into()),
        missing_bytes: exact.to_vec(),
        ..Annotation::default()
    };
    let mut meta = ours(3, vec![capture(0, 10, 1, 1000)], vec![note]);
    let stream = meta.global.stream.as_mut().unwrap();
    stream.packets_per_frame = packets;
    stream.packet_sizes = Some(sizes);
    stream.sizes_differ = Some(false);
    meta
}

/// Frames of 256 bytes. The cases are the packets, and the missing bytes of the second packet of the second frame.
#[test]
fn missing_packets_are_the_recorded_ones() {
    let dir = TempDir::new().unwrap();
    let sizes = |first, rest, parts| PacketSizes { first, rest, parts };
    for (packets, sizes, missing) in [
        (4, sizes(80, 80, 1), 80..160),
        // The first packet is shorter than the others.
        (4, sizes(24, 80, 1), 24..104),
        // The last packet is longer than the others.
        (3, sizes(40, 40, 1), 40..80),
        (4, sizes(64, 64, 2), 64..128),
        // Packets and samples do not end at the same bytes.
        (6, sizes(50, 50, 1), 50..100),
        // Packets are smaller than samples.
        (64, sizes(4, 4, 1), 4..8),
    ] {
        let missing = FRAME + missing.start..FRAME + missing.end;
        let exact = [[missing.start, missing.end - missing.start]];
        let meta = frames_of(packets, sizes, (missing.start, missing.end), &exact);
        let data = bytes(0, 3 * FRAME);
        let path = store(dir.path(), "raw-000000", &meta, &data);
        let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
        let frames = run(&mut fixture);
        let report = fixture.report();
        assert_eq!(
            lost(&report),
            BTreeMap::from([("wire_gap", 1)]),
            "{sizes:?}"
        );
        assert_fields!(report => expected: 3 * u64::from(packets), epochs: 1);
        assert!(!frames[1].3[1]);
        let found: Vec<u8> = frames.into_iter().flat_map(|frame| frame.2).collect();
        for (i, (found, sent)) in (0..).zip(found.iter().zip(&data)) {
            let expected = if missing.contains(&i) { &0xee } else { sent };
            assert_eq!(found, expected, "byte {i} of {sizes:?}");
        }
    }
}

/// Sizes that contradict each other are ignored.
#[test]
fn contradicting_sizes_are_not_used() {
    let dir = TempDir::new().unwrap();
    let sizes = |first, rest, parts| PacketSizes { first, rest, parts };
    for sizes in [
        sizes(0, 0, 1),
        sizes(0, 64, 1),
        sizes(128, 64, 1),
        sizes(u32::MAX, u32::MAX, 1),
        sizes(64, 64, 3),
        sizes(32, 80, 2),
    ] {
        let mut meta = frames_of(4, sizes, (0, 0), &[]);
        meta.annotations.clear();
        let path = store(dir.path(), "raw-000000", &meta, &bytes(0, 3 * FRAME));
        let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
        let found = run(&mut fixture);
        let found: Vec<u8> = found.into_iter().flat_map(|frame| frame.2).collect();
        assert_eq!(found, bytes(0, 3 * FRAME));
        assert_eq!(fixture.report().lost_total(), 0, "{sizes:?}");
    }
}

/// The last frame of an epoch and of a recording can be a whole short frame, such as a SPEAD heap. Only the metadata show this.
#[test]
fn last_frame_keeps_its_size() {
    let dir = TempDir::new().unwrap();
    let start = |sample_start, epoch| Capture {
        sample_start,
        ..capture(0, 10, epoch, 1000)
    };
    let captures = vec![start(0, 1), start((FRAME + 72) / 8, 2)];
    let bytes = bytes(0, 2 * (FRAME + 72));
    let mut meta = ours(4, captures, Vec::new());
    let mut lengths = |sizes_differ| {
        let stream = meta.global.stream.as_mut().unwrap();
        stream.bytes = bytes.len() as u64;
        stream.sizes_differ = sizes_differ;
        let path = store(dir.path(), "raw-000000", &meta, &bytes);
        let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
        while fixture.fill() != Polled::Ended {}
        fixture.windows[0].finish();
        let lease = fixture.reader.poll(16).unwrap();
        let metas = (0..lease.len()).map(|i| *lease.frame(i).meta());
        metas
            .map(|meta| (meta.length, meta.flags.contains(Flags::TRUNCATED)))
            .collect::<Vec<_>>()
    };
    let short = [(256, false), (72, false), (256, false), (72, false)];
    assert_eq!(lengths(Some(true)), short);
    // The end of the last frame was trimmed, or an earlier version of daq wrote the file.
    let padded = [(256, false), (256, true), (256, false), (256, true)];
    assert_eq!(lengths(Some(false)), padded);
    assert_eq!(lengths(None), padded);
}
