//! Tests that a replay keeps the times of a recording.

use crate::replay::{FRAME, bytes, capture, global, open, ours, run, sigmf_text, store};
use daq_core::frame::{Clock, Flags};
use daq_core::sigmf::{Capture, Datatype, Meta, Number};
use daq_core::source::Polled;
use std::path::Path;
use tempfile::TempDir;

/// Returns (number, epoch, time, flags) of each frame of the recording `path`.
fn replayed(path: &Path, slot: usize) -> Vec<(u64, u32, u64, Flags)> {
    let mut fixture = open(&sigmf_text(path, ""), slot, 16);
    while fixture.fill() != Polled::Ended {}
    fixture.windows[0].finish();
    let lease = fixture.reader.poll(16).unwrap();
    (0..lease.len())
        .map(|i| {
            let meta = *lease.frame(i).meta();
            assert_eq!(meta.timestamp.clock, Clock::RecordedUtc);
            (meta.sequence, meta.epoch, meta.timestamp.ns, meta.flags)
        })
        .collect()
}

#[test]
fn captures_of_other_programs_keep_their_times() {
    let dir = TempDir::new().unwrap();
    let captures = [(0, "2026-01-01T00:00:00Z"), (300, "2026-01-01T01:00:00Z")];
    let captures = captures.map(|(sample_start, datetime)| Capture {
        sample_start,
        datetime: Some(datetime.into()),
        ..Capture::default()
    });
    let meta = Meta {
        global: global(None, Datatype::little(Number::I16, true)),
        captures: captures.to_vec(),
        annotations: Vec::new(),
    };
    // 300 and 700 samples of 8 bytes; frames have 400 samples.
    let path = store(dir.path(), "two", &meta, &bytes(0, 8000));
    let frames = replayed(&path, 3200);
    let start = meta.captures[0].time_ns().unwrap();
    let found: Vec<_> = frames
        .iter()
        .map(|frame| (frame.0, frame.1, frame.2 - start))
        .collect();
    let hour = 3_600_000_000_000;
    assert_eq!(found, [(0, 1, 0), (0, 2, hour), (1, 2, hour + 400_000)]);
    assert!(frames[0].3.contains(Flags::TRUNCATED) && frames[1].3.contains(Flags::EPOCH));
}

/// Captures that continue each other are one stream.
#[test]
fn captures_without_a_step_are_continuous() {
    let dir = TempDir::new().unwrap();
    let captures = [
        (0, "2026-01-01T00:00:00Z"),
        (400, "2026-01-01T00:00:00.0004Z"),
    ];
    let captures = captures.map(|(sample_start, datetime)| Capture {
        sample_start,
        datetime: Some(datetime.into()),
        ..Capture::default()
    });
    let meta = Meta {
        global: global(None, Datatype::little(Number::I16, true)),
        captures: captures.to_vec(),
        annotations: Vec::new(),
    };
    let path = store(dir.path(), "one", &meta, &bytes(0, 8000));
    let frames = replayed(&path, 8000);
    assert_eq!((frames.len(), frames[0].1), (1, 1));
}

/// A recording whose first frame was trimmed gives packets with their numbers, and the time of the whole frame.
#[test]
fn trimmed_first_frame_keeps_its_place_and_time() {
    let dir = TempDir::new().unwrap();
    // Frames have 4 packets of 8 samples, 32 samples at 1 MHz. The file begins with packet 3 of frame 10.
    let first = Capture {
        global_index: Some(10 * 32 + 24),
        datetime: Some("2026-01-01T00:00:00.000024Z".into()),
        clock_ns: None,
        ..capture(0, 10, 1, 0)
    };
    let second = Capture {
        sample_start: 8,
        global_index: Some(11 * 32),
        datetime: Some("2026-01-01T00:00:00.000032Z".into()),
        clock_ns: None,
        ..capture(0, 11, 1, 0)
    };
    let mut meta = ours(2, vec![first, second], Vec::new());
    if let Some(stream) = &mut meta.global.stream {
        stream.bytes = 64 + FRAME;
    }
    let path = store(dir.path(), "trimmed", &meta, &bytes(0, 64 + FRAME));
    let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
    let frames = run(&mut fixture);
    let present: Vec<_> = frames.iter().map(|frame| (frame.0, &frame.3[..])).collect();
    let expected: [(u64, &[bool]); 2] = [
        (10, &[false, false, false, true]),
        (11, &[true, true, true, true]),
    ];
    assert_eq!(present, expected);
    assert_eq!(fixture.report().lost_total(), 0);
    let start = 1_767_225_600_000_000_000;
    let times: Vec<_> = replayed(&path, 256)
        .iter()
        .map(|frame| frame.2 - start)
        .collect();
    assert_eq!(times, [0, 32_000]);
}

#[test]
fn listed_times_are_those_of_the_frames() {
    let dir = TempDir::new().unwrap();
    let captures = vec![Capture {
        times_ns: vec![Some(123), None],
        frames: Some(4),
        ..capture(0, 10, 1, 50_000)
    }];
    let path = store(
        dir.path(),
        "listed",
        &ours(4, captures, Vec::new()),
        &bytes(0, 4 * FRAME),
    );
    let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
    assert_eq!(run(&mut fixture).len(), 4);
    let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
    while fixture.fill() != Polled::Ended {}
    fixture.windows[0].finish();
    let lease = fixture.reader.poll(16).unwrap();
    let times = (0..4).map(|i| lease.frame(i).meta().timestamp);
    let times: Vec<_> = times
        .map(|time| (time.clock != Clock::None).then_some(time.ns))
        .collect();
    // 32 samples at 1 MHz.
    assert_eq!(times, [Some(50_000), Some(82_000), Some(50_123), None]);
}

/// Spectra, and channels one after the other, have a rate of frames, but no rate of samples.
#[test]
fn frames_without_a_rate_of_samples_have_times() {
    let dir = TempDir::new().unwrap();
    let captures = vec![Capture {
        frames: Some(3),
        ..capture(0, 10, 1, 50_000)
    }];
    let mut meta = ours(3, captures, Vec::new());
    meta.global.sample_rate = None;
    meta.global.stream.as_mut().unwrap().frame_rate = Some(31_250.0);
    let path = store(dir.path(), "planar", &meta, &bytes(0, 3 * FRAME));
    let mut fixture = open(&sigmf_text(&path, ""), 256, 16);
    while fixture.fill() != Polled::Ended {}
    fixture.windows[0].finish();
    let lease = fixture.reader.poll(16).unwrap();
    let times = (0..lease.len()).map(|i| lease.frame(i).meta().timestamp.ns);
    assert_eq!(times.collect::<Vec<_>>(), [50_000, 82_000, 114_000]);
}
