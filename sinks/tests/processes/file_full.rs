//! Tests the `file` sink on a full disk. No frame may be truncated, duplicated, or lost without being counted.

use crate::support::{Feed, Sent, context, layout, spec};
use daq_core::frame::{Clock, FrameMeta, Timestamp};
use daq_core::layout::Scalar;
use daq_core::ledger::SinkLedger;
use daq_core::sigmf::Meta;
use daq_core::sink::{Sink, SinkError};
use daq_testkit::{files, small_disk, this_test};
use std::path::{Path, PathBuf};

const FRAME: usize = 50_000;

fn frame(sequence: u64) -> Sent {
    let bytes = (0..FRAME as u64)
        .map(|i| u8::try_from((i / 3 + sequence * 31) % 256).unwrap())
        .collect();
    Sent {
        meta: FrameMeta::whole(sequence, FRAME),
        bytes,
        present: Vec::new(),
    }
}

fn sink(dir: &Path, keys: &str) -> (Box<dyn Sink>, SinkLedger) {
    let context = context(dir, "adc", layout(Scalar::Int8, false, 1, FRAME), 0, 0);
    let ledger = context.ledger.clone();
    let keys = format!("path = \"out\"\nbuffer = \"64 KiB\"\n{keys}");
    let sink = spec("file", "adc", &keys).unwrap().build(context).unwrap();
    (sink, ledger)
}

fn ballast(dir: &Path) -> PathBuf {
    let path = dir.join("ballast");
    std::fs::write(&path, vec![1; 6 << 20]).unwrap();
    path
}

/// Checks the files. Returns the sequence numbers of their frames and the causes of gaps.
fn recorded(dir: &Path) -> (Vec<u64>, Vec<(u64, Option<String>)>) {
    let metas = files(dir, ".sigmf-meta");
    let (mut numbers, mut gaps) = (Vec::new(), Vec::new());
    for path in metas {
        let meta = Meta::read(&path).unwrap();
        let data = std::fs::read(meta.data_path(&path)).unwrap();
        for span in meta.spans(data.len() as u64) {
            let capture = &meta.captures[span.capture];
            assert_eq!(span.bytes, capture.frames.unwrap() * FRAME as u64);
            for i in 0..capture.frames.unwrap() {
                let number = capture.sequence.unwrap() + i;
                let at =
                    usize::try_from(span.byte_start).unwrap() + usize::try_from(i).unwrap() * FRAME;
                let expected = frame(number).bytes;
                assert!(data[at..at + FRAME] == expected, "frame {number}");
                numbers.push(number);
            }
        }
        let notes = meta.annotations.iter();
        gaps.extend(notes.map(|note| (note.missing_frames, note.cause.clone())));
    }
    (numbers, gaps)
}

/// Small segments are closed while the disk is full; the large segment stays open.
const KEYS: [&str; 2] = ["segment = \"300 kB\"", "segment = \"1 GiB\""];

/// Runs `work` with each of [`KEYS`], with a sink on a small disk and a file that can be removed to make room.
fn with_full_disk(test: &str, work: impl Fn(&Path, &Path, &mut dyn Sink, &SinkLedger)) {
    let Some(dir) = small_disk(test, "16m") else {
        return;
    };
    for keys in KEYS {
        let dir = dir.join(&keys[11..13]);
        std::fs::create_dir(&dir).unwrap();
        let ballast = ballast(&dir);
        let (mut sink, ledger) = sink(&dir, keys);
        work(&dir, &ballast, &mut *sink, &ledger);
        drop(sink);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn disk_full_with_guarantee_waits_and_continues() {
    with_full_disk(this_test!(), |dir, ballast, sink, ledger| {
        let mut feed = Feed::new(8, FRAME, 0);
        let mut met = 0;
        for n in 0..200 {
            feed.publish(&[frame(n)]);
            feed.insist(sink, 3, || {
                met += 1;
                assert!(met < 100, "still no space");
                if met == 5 {
                    std::fs::remove_file(ballast).unwrap();
                }
            });
        }
        sink.finish().unwrap();
        assert!(met >= 5, "the disk was never full");
        assert_eq!(ledger.frames.get(), 200);
        let (numbers, gaps) = recorded(&dir.join("out"));
        assert!(numbers == (0..200).collect::<Vec<_>>(), "{numbers:?}");
        assert_eq!(gaps, []);
    });
}

#[test]
fn disk_full_without_guarantee_reports_drops_and_cause() {
    with_full_disk(this_test!(), |dir, ballast, sink, ledger| {
        let mut feed = Feed::new(8, FRAME, 0);
        let mut wanted = Vec::new();
        let (mut dropped, mut after) = (0, 0);
        for n in (0..4000).step_by(4) {
            let frames: Vec<_> = (n..n + 4).map(frame).collect();
            feed.publish(&frames);
            let (taken, result) = feed.offer(sink, 4);
            wanted.extend(n..n + taken as u64);
            dropped += 4 - taken;
            assert_eq!(taken < 4, result.is_err());
            if let Err(error) = result {
                assert!(matches!(error, SinkError::Full { .. }), "{error}");
                sink.tick().unwrap();
            }
            if dropped > 20 && ballast.exists() {
                std::fs::remove_file(ballast).unwrap();
            }
            after += usize::from(dropped > 20 && taken == 4);
            if after == 8 {
                break;
            }
        }
        assert_eq!(after, 8, "the sink did not continue");
        sink.finish().unwrap();
        let (numbers, gaps) = recorded(&dir.join("out"));
        assert_eq!(ledger.frames.get(), numbers.len() as u64);
        assert!(numbers == wanted, "{numbers:?}\n{wanted:?}");
        let annotated: u64 = gaps.iter().map(|(frames, _)| frames).sum();
        assert_eq!(annotated, dropped as u64);
        assert!(
            gaps.iter()
                .all(|(_, cause)| cause.as_deref() == Some("disk_full")),
            "{gaps:?}"
        );
    });
}

#[test]
fn disk_full_still_closes_accepted_frames() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    let (mut sink, ledger) = sink(&dir, "");
    let mut feed = Feed::new(8, FRAME, 0);
    let mut taken = 0;
    loop {
        feed.publish(&[frame(taken)]);
        let (frames, _) = feed.offer(&mut *sink, 1);
        if frames == 0 {
            break;
        }
        taken += 1;
    }
    sink.finish().unwrap();
    assert_eq!(
        (
            ledger.frames.get(),
            ledger.files.get(),
            ledger.dropped.get()
        ),
        (taken, 1, 0)
    );
    assert!(recorded(&dir.join("out")).0 == (0..taken).collect::<Vec<_>>());
}

#[test]
fn disk_full_still_closes_segment_of_many_epochs() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    // The disk is full before the segment ends because of its number of captures.
    const SMALL: usize = 1600;
    let context = context(&dir, "adc", layout(Scalar::Int8, false, 1, SMALL), 0, 0);
    let ledger = context.ledger.clone();
    let keys = "path = \"out\"\nbuffer = \"64 KiB\"\n";
    let mut sink = spec("file", "adc", keys).unwrap().build(context).unwrap();
    let mut feed = Feed::new(8, SMALL, 0);
    let mut taken = 0;
    for epoch in 1.. {
        assert!(epoch < 100_000, "the disk was never full");
        let meta = FrameMeta {
            epoch,
            timestamp: Timestamp {
                ns: 1_700_000_000_000_000_000 + u64::from(epoch),
                clock: Clock::Host,
            },
            ..FrameMeta::whole(u64::from(epoch) << 40, SMALL)
        };
        feed.publish(&[Sent {
            meta,
            bytes: vec![7; SMALL],
            present: Vec::new(),
        }]);
        match feed.offer(&mut *sink, 1) {
            (_, Ok(())) => taken += 1,
            (_, Err(SinkError::Full { .. })) => break,
            (_, Err(error)) => panic!("{error}"),
        }
    }
    sink.finish().unwrap();
    assert_eq!((ledger.files.get(), ledger.dropped.get()), (1, 0));
    let meta = dir.join("out/adc-000000.sigmf-meta");
    let bytes = std::fs::metadata(&meta).unwrap().len();
    assert!(
        bytes > daq_sinks::file::segment::META_SLACK,
        "{bytes} B of metadata are not enough for this test"
    );
    let data = Meta::read(&meta).unwrap().data_path(&meta);
    assert_eq!(std::fs::metadata(data).unwrap().len(), taken * SMALL as u64);
}
