//! Tests that a replay keeps the sizes and the flags of recorded frames.

use crate::replay::{FRAME, bytes, capture, open, ours, run, sigmf_text, store};
use daq_core::frame::Flags;
use daq_core::sigmf::{Annotation, Capture, LABEL_INCOMPLETE, LABEL_SUSPECT};
use daq_core::source::Polled;
use tempfile::TempDir;

/// Frames that differ in size, such as SPEAD heaps, are replayed whole, and nothing counts as lost.
#[test]
fn frames_keep_their_sizes() {
    let dir = TempDir::new().unwrap();
    // The last packet of a frame may be shorter than the others.
    let sizes = [FRAME, 40, FRAME, FRAME, 200, 64, 8];
    let mut start = 0;
    let mut captures: Vec<Capture> = Vec::new();
    for (number, size) in (0..).zip(sizes) {
        captures.push(Capture {
            sample_start: start / 8,
            frames: Some(1),
            ..capture(0, number, 1, 1000)
        });
        start += size;
    }
    let data = bytes(0, start);
    let mut meta = ours(sizes.len() as u64, captures, Vec::new());
    meta.global.stream.as_mut().unwrap().bytes = start;
    let path = store(dir.path(), "raw-000000", &meta, &data);
    for slots in [3, 16] {
        let mut fixture = open(&sigmf_text(&path, ""), 256, slots);
        let frames = run(&mut fixture);
        let report = fixture.report();
        assert_eq!(report.expected, report.delivered, "{report:?}");
        assert_eq!(
            (report.rejected, report.duplicates, report.epochs),
            (0, 0, 1)
        );
        let found: Vec<u64> = frames.iter().map(|frame| frame.2.len() as u64).collect();
        assert_eq!(found, sizes);
        let whole: Vec<u8> = frames.into_iter().flat_map(|frame| frame.2).collect();
        assert_eq!(whole, data);
    }
}

/// Frames that a kernel computed from incomplete data, and suspect frames, keep their flags.
#[test]
fn frames_keep_their_flags() {
    let dir = TempDir::new().unwrap();
    let note = |label: &str, frame: u64, frames: u64| Annotation {
        sample_start: frame * FRAME / 8,
        sample_count: Some(frames * FRAME / 8),
        label: Some(label.into()),
        ..Annotation::default()
    };
    let notes = vec![note(LABEL_INCOMPLETE, 1, 2), note(LABEL_SUSPECT, 2, 2)];
    let meta = ours(5, vec![capture(0, 10, 1, 1000)], notes);
    let path = store(dir.path(), "raw-000000", &meta, &bytes(0, 5 * FRAME));
    let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
    while fixture.fill() != Polled::Ended {}
    fixture.windows[0].finish();
    let lease = fixture.reader.poll(16).unwrap();
    let flags: Vec<Flags> = (0..lease.len())
        .map(|i| lease.frame(i).meta().flags)
        .collect();
    let both = Flags::INCOMPLETE.with(Flags::SUSPECT);
    assert_eq!(
        flags,
        [
            Flags::EPOCH,
            Flags::INCOMPLETE,
            both,
            Flags::SUSPECT,
            Flags(0)
        ]
    );
    drop(lease);
    assert_eq!(fixture.report().lost_total(), 0);
}
