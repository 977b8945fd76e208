//! Tests how a replay joins and separates the runs of a recording.

use crate::replay::{
    FRAME, Frame, bytes, capture, global, lost, open, ours, run, sigmf_text, store,
};
use daq_core::frame::Flags;
use daq_core::ledger::SourceReport;
use daq_core::sigmf::{Annotation, Capture, Datatype, LABEL_MISSING, Meta, Number};
use daq_core::source::Polled;
use daq_testkit::assert_fields;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// A file of a directory: its number, the first one of its run, and the number of its first frame. It has two frames.
type File = (u64, u64, u64);

/// Writes the files to `dir`.
fn store_files(dir: &Path, files: &[File]) {
    for (i, &(segment, first_segment, sequence)) in (0..).zip(files) {
        let mut meta = ours(2, vec![capture(0, sequence, 1, 1000)], Vec::new());
        if let Some(stream) = &mut meta.global.stream {
            (stream.segment, stream.first_segment) = (segment, Some(first_segment));
        }
        let data = bytes(2 * FRAME * i, 2 * FRAME);
        store(dir, &format!("raw-{segment:06}"), &meta, &data);
    }
}

/// Replays `path`. Returns (number, epoch) of each frame, all bytes, and the report.
fn replayed(path: &Path, slots: usize) -> (Vec<(u64, u32)>, Vec<u8>, SourceReport) {
    let mut fixture = open(&sigmf_text(path, ""), 256, slots);
    let frames: Vec<Frame> = run(&mut fixture);
    let numbers = frames.iter().map(|frame| (frame.0, frame.1)).collect();
    let data = frames.into_iter().flat_map(|frame| frame.2).collect();
    (numbers, data, fixture.report())
}

/// An instrument counts from 0 in each run. The frames of the runs have the same numbers in epochs with the same number.
#[test]
fn runs_with_the_same_numbers_are_epochs() {
    let dir = TempDir::new().unwrap();
    store_files(dir.path(), &[(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 2)]);
    for slots in [3, 16] {
        let (numbers, data, report) = replayed(dir.path(), slots);
        let expected = [
            (0, 1),
            (1, 1),
            (0, 2),
            (1, 2),
            (0, 3),
            (1, 3),
            (2, 3),
            (3, 3),
        ];
        assert_eq!(numbers, expected);
        assert_eq!(data, bytes(0, 8 * FRAME));
        assert_fields!(report => expected: 32, delivered: 32, duplicates: 0, rejected: 0, epochs: 3);
    }
}

/// An instrument continues while daq does not run. What it sent meanwhile was not lost in the recording.
#[test]
fn numbers_between_runs_are_not_lost() {
    let dir = TempDir::new().unwrap();
    store_files(dir.path(), &[(0, 0, 10), (1, 1, 1000), (2, 2, 1001)]);
    let (numbers, _, report) = replayed(dir.path(), 16);
    let expected = [(10, 1), (11, 1), (1000, 2), (1001, 2), (1001, 3), (1002, 3)];
    assert_eq!(numbers, expected);
    assert_fields!(report => expected: 24, delivered: 24, duplicates: 0, epochs: 3);
}

/// Frames between the segments of one run are lost, also many of them.
#[test]
fn numbers_between_segments_of_a_run_are_lost() {
    let dir = TempDir::new().unwrap();
    store_files(dir.path(), &[(4, 4, 10), (5, 4, 112)]);
    let (_, _, report) = replayed(dir.path(), 16);
    assert_eq!(lost(&report), BTreeMap::from([("wire_gap", 400)]));
    assert_fields!(report => expected: 416, delivered: 16, epochs: 1);
}

/// The list of paths names a directory twice, so the second pass is a run of its own.
#[test]
fn files_that_do_not_follow_are_another_run() {
    let dir = TempDir::new().unwrap();
    store_files(dir.path(), &[(0, 0, 10), (1, 0, 12)]);
    let text = sigmf_text(dir.path(), "").replace("path = ", "path = [");
    let text = text.replacen("\nspeed", &format!(", {:?}]\nspeed", dir.path()), 1);
    let mut fixture = open(&text, 256, 16);
    let frames = run(&mut fixture);
    let numbers: Vec<_> = frames.iter().map(|frame| (frame.0, frame.1)).collect();
    let pass = |epoch| (10..14).map(move |number| (number, epoch));
    assert_eq!(numbers, pass(1).chain(pass(2)).collect::<Vec<_>>());
    assert_eq!(fixture.report().lost_total(), 0);
}

/// Frames that were lost in the window of the live run are in the file with fill bytes.
#[test]
fn whole_frames_missing_in_a_row_are_lost() {
    let dir = TempDir::new().unwrap();
    for count in [1, 2, 3, 20] {
        let missing = Annotation {
            sample_start: 4 * FRAME / 8,
            sample_count: Some(count * FRAME / 8),
            label: Some(LABEL_MISSING.into()),
            ..Annotation::default()
        };
        let meta = ours(30, vec![capture(0, 10, 1, 1000)], vec![missing]);
        let path = store(dir.path(), "raw-000000", &meta, &bytes(0, 30 * FRAME));
        for slots in [3, 64] {
            let (_, _, report) = replayed(&path, slots);
            assert_eq!(lost(&report), BTreeMap::from([("wire_gap", 4 * count)]));
            assert_fields!(report => expected: 120, epochs: 1, rejected: 0, duplicates: 0; "{count}");
        }
    }
}

/// Returns the captures as (first sample, time).
fn captures(starts: &[(u64, Option<&str>)]) -> Vec<Capture> {
    let capture = |&(sample_start, datetime): &(u64, Option<&str>)| Capture {
        sample_start,
        datetime: datetime.map(str::to_owned),
        ..Capture::default()
    };
    starts.iter().map(capture).collect()
}

/// The samples of another program's recording continue in another capture or in another file, inside of a packet.
#[test]
fn continuing_runs_of_other_programs_are_joined() {
    let dir = TempDir::new().unwrap();
    // Samples have 8 bytes. No number of samples from 8 to 375 divides 1009 or 2018.
    let data = bytes(0, 2 * 1009 * 8);
    let start = "2026-01-01T00:00:00Z";
    let later = "2026-01-01T00:00:00.001009Z";
    let meta = |captures| Meta {
        global: global(None, Datatype::little(Number::I16, true)),
        captures,
        annotations: Vec::new(),
    };
    let one = meta(captures(&[(0, Some(start)), (1009, None)]));
    let one = store(dir.path(), "one", &one, &data);
    let (first, second) = data.split_at(1009 * 8);
    let a = meta(captures(&[(0, Some(start))]));
    let a = store(dir.path(), "a", &a, first);
    let b = meta(captures(&[(0, Some(later))]));
    let b = store(dir.path(), "b", &b, second);
    for path in [format!("{one:?}"), format!("[{a:?}, {b:?}]")] {
        let text = sigmf_text(Path::new("PATH"), "").replace("\"PATH\"", &path);
        let mut fixture = open(&text, 3000, 16);
        let packet = fixture.geometry.packet_bytes;
        let whole = data.len() / packet * packet;
        assert!(whole < data.len(), "the packets divide the data evenly");
        while fixture.fill() != Polled::Ended {}
        fixture.windows[0].finish();
        let report = fixture.report();
        assert_fields!(report => delivered: (data.len() / packet) as u64, epochs: 1);
        let playback = fixture.playback.read().unwrap();
        assert_eq!(playback.bytes, playback.total_bytes);
        let lease = fixture.reader.poll(16).unwrap();
        let (mut found, mut times) = (Vec::new(), Vec::new());
        for frame in (0..lease.len()).map(|i| lease.frame(i)) {
            found.extend_from_slice(frame.bytes().unwrap());
            times.push(frame.meta().timestamp.ns - 1_767_225_600_000_000_000);
            assert!(!frame.meta().flags.contains(Flags::TRUNCATED));
        }
        assert_eq!(found, data[..whole], "{path}");
        // One sample per microsecond.
        let expected = (0..times.len() as u64).map(|i| i * 1000 * packet as u64 / 8);
        for (time, expected) in times.iter().zip(expected) {
            assert!(time.abs_diff(expected) <= 1000, "{times:?}");
        }
    }
}
