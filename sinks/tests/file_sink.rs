//! Writes frames with the `file` sink, and checks that the files contain the frames that were sent.

use crate::support::{Feed, SCALARS, Sent, check, context, layout, spec};
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::layout::{Axis, Image, Layout, Order, Scalar};
use daq_core::sigmf::Meta;
use daq_testkit::{assert_contains, assert_fields, names, wait_until};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns the metadata and the data of the committed segments of `stem`, in order.
fn segments(dir: &Path, stem: &str) -> Vec<(Meta, Vec<u8>)> {
    let mut names = names(dir);
    names.retain(|name| name.starts_with(&format!("{stem}-")) && name.ends_with(".sigmf-meta"));
    let segment = |name: &String| {
        let path = dir.join(name);
        let meta = Meta::read(&path).unwrap();
        let data = std::fs::read(meta.data_path(&path)).unwrap();
        let stream = meta.global.stream.as_ref().unwrap();
        assert_eq!(stream.bytes, data.len() as u64);
        (meta, data)
    };
    names.iter().map(segment).collect()
}

/// Returns the names in `dir`, except those of lock files, which exist as long as a sink exists.
fn files(dir: &Path) -> Vec<String> {
    let mut names = names(dir);
    names.retain(|name| !name.starts_with('.'));
    names
}

/// Returns the frame rate in a metadata file.
fn frame_rate(meta: &Path) -> Option<f64> {
    let text = std::fs::read(meta).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&text).unwrap();
    meta["global"]["daq:frame_rate"].as_f64()
}

fn counting(sequence: u64, bytes: usize) -> Sent {
    let byte =
        |i: usize| u8::try_from((i * 7 + usize::try_from(sequence).unwrap() * 13) % 251).unwrap();
    Sent {
        meta: FrameMeta {
            timestamp: Timestamp {
                ns: 1_700_000_000_000_000_000 + sequence,
                clock: Clock::Kernel,
            },
            ..FrameMeta::whole(sequence, bytes)
        },
        bytes: (0..bytes).map(byte).collect(),
        present: Vec::new(),
    }
}

#[test]
fn file_layouts_round_trip() {
    let axes = [
        Axis::Time { rate: Some(2.5e6) },
        Axis::Time { rate: None },
        Axis::Frequency {
            start: Some(-1e3),
            step: Some(62.5),
        },
        Axis::Frequency {
            start: None,
            step: None,
        },
        Axis::Fields((0..32).map(|i| format!("f{i}")).collect()),
        Axis::Pixels(Image {
            width: 8,
            height: 4,
            colors: Some("RGB".to_owned()),
            modules: Vec::new(),
        }),
    ];
    for scalar in SCALARS.into_iter().chain([Scalar::Uint32]) {
        for (complex, channels, order) in [
            (false, 1, Order::Interleaved),
            (true, 3, Order::Interleaved),
            (true, 1, Order::Planar),
            (false, 2, Order::Planar),
        ] {
            for axis in &axes {
                let layout = Layout {
                    order,
                    axis: axis.clone(),
                    ..layout(scalar, complex, channels, 32)
                };
                let dir = tempfile::tempdir().unwrap();
                let spec = spec(
                    "file",
                    "disk",
                    "path = \"out\"\ndescription = \"d\"\nhardware = \"h\"",
                )
                .unwrap();
                check(&*spec, &layout).unwrap();
                let context = context(dir.path(), "disk", layout.clone(), 0, 0);
                let ledger = context.ledger.clone();
                let mut sink = spec.build(context).unwrap();
                let frames: Vec<_> = (5..25).map(|n| counting(n, layout.frame_bytes())).collect();
                Feed::new(8, layout.frame_bytes(), 0).give(&mut *sink, &frames);
                sink.finish().unwrap();
                let found = segments(&dir.path().join("out"), "disk");
                let [(meta, data)] = &found[..] else {
                    panic!("one segment")
                };
                let sent: Vec<u8> = frames
                    .iter()
                    .flat_map(|frame| frame.bytes.clone())
                    .collect();
                assert!(*data == sent);
                assert_eq!(
                    (ledger.frames.get(), ledger.bytes.get(), ledger.files.get()),
                    (20, sent.len() as u64, 1)
                );
                let global = &meta.global;
                assert_eq!(
                    (global.description.as_deref(), global.hardware.as_deref()),
                    (Some("d"), Some("h"))
                );
                assert_eq!(
                    (
                        global.datatype.bytes(),
                        global.datatype.complex,
                        global.datatype.big_endian
                    ),
                    (layout.sample_bytes().unwrap(), complex, false)
                );
                let stream = global.stream.as_ref().unwrap();
                let rate = frame_rate(&dir.path().join("out/disk-000000.sigmf-meta"));
                let plain = matches!(axis, Axis::Time { .. })
                    && (order == Order::Interleaved || channels == 1);
                if plain {
                    assert_fields!(global => channels: channels, sample_rate: layout.sample_rate());
                    assert_eq!((stream.points, &stream.axis), (None, &None));
                    assert_eq!(rate, None);
                } else {
                    let word = if order == Order::Planar {
                        "planar"
                    } else {
                        "interleaved"
                    };
                    assert_eq!((global.channels, global.sample_rate), (1, None));
                    assert_eq!(rate, layout.frame_rate);
                    assert_eq!(
                        (stream.channels, stream.points, stream.order.as_deref()),
                        (Some(channels), Some(32), Some(word))
                    );
                    let wanted = match axis {
                        Axis::Time { rate: Some(rate) } => json!({"kind": "time", "rate": rate}),
                        Axis::Time { rate: None } => json!({"kind": "time"}),
                        Axis::Frequency {
                            start: Some(start),
                            step,
                        } => {
                            json!({"kind": "frequency", "start": start, "step": step})
                        }
                        Axis::Frequency { .. } => json!({"kind": "frequency"}),
                        Axis::Fields(names) => json!({"kind": "fields", "names": names}),
                        Axis::Pixels(_) => {
                            json!({"kind": "pixels", "width": 8, "height": 4, "colors": "RGB"})
                        }
                    };
                    assert_eq!(stream.axis, Some(wanted));
                }
                let [capture] = &meta.captures[..] else {
                    panic!("one capture")
                };
                assert_fields!(capture =>
                    sequence: Some(5), clock_ns: Some(1_700_000_000_000_000_005)
                );
                assert_eq!(capture.time_ns(), Some(1_700_000_000_000_000_005));
                assert!(meta.annotations.is_empty());
            }
        }
    }
}

#[test]
fn segments_rotate_by_size_and_numbering_continues() {
    let dir = tempfile::tempdir().unwrap();
    let layout = layout(Scalar::Int16, false, 1, 500);
    let mut feed = Feed::new(8, 1000, 0);
    let mut sent = Vec::new();
    for run in 0..3 {
        let context = context(dir.path(), "adc", layout.clone(), 0, 0);
        let ledger = context.ledger.clone();
        let mut sink = spec("file", "adc", "path = \".\"\nsegment = 3500\nbuffer = 4096")
            .unwrap()
            .build(context)
            .unwrap();
        let frames: Vec<_> = (run * 10..run * 10 + 10)
            .map(|n| counting(n, 1000))
            .collect();
        feed.give(&mut *sink, &frames);
        sink.finish().unwrap();
        assert_eq!((ledger.frames.get(), ledger.files.get()), (10, 4));
        sent.extend(frames.iter().flat_map(|frame| frame.bytes.clone()));
    }
    let found = segments(dir.path(), "adc");
    let sizes: Vec<_> = found.iter().map(|(_, data)| data.len()).collect();
    assert_eq!(sizes, [3000, 3000, 3000, 1000].repeat(3));
    assert!(
        found
            .iter()
            .flat_map(|(_, data)| data.clone())
            .collect::<Vec<_>>()
            == sent
    );
    let numbers: Vec<_> = found
        .iter()
        .map(|(meta, _)| meta.global.stream.as_ref().unwrap().segment)
        .collect();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    assert_eq!(
        names(dir.path()).len(),
        24,
        "the directory must contain only pairs of files"
    );
}

#[test]
fn segment_rotates_by_age_and_empty_one_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path(), "adc", layout(Scalar::Int8, false, 1, 100), 0, 0);
    let ledger = context.ledger.clone();
    let mut sink = spec("file", "adc", "path = \"out\"\nrotate = \"1 ms\"")
        .unwrap()
        .build(context)
        .unwrap();
    let mut feed = Feed::new(8, 100, 0);
    let out = dir.path().join("out");
    sink.tick().unwrap();
    assert!(
        files(&out).is_empty(),
        "no file may exist before the first frame"
    );
    for n in 0..3 {
        feed.give(&mut *sink, &[counting(n, 100)]);
        std::thread::sleep(std::time::Duration::from_millis(5));
        wait_until("the next segment", || {
            sink.tick().unwrap();
            ledger.files.get() > n
        });
    }
    for _ in 0..3 {
        sink.tick().unwrap();
    }
    sink.finish().unwrap();
    assert_eq!(segments(&out, "adc").len(), 3);
    assert_eq!(files(&out).len(), 6);
}

#[test]
fn unused_sink_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path(), "adc", layout(Scalar::Int8, false, 1, 100), 0, 0);
    let mut sink = spec("file", "adc", "path = \"out\"")
        .unwrap()
        .build(context)
        .unwrap();
    sink.finish().unwrap();
    drop(sink);
    assert!(names(&dir.path().join("out")).is_empty());
}

#[test]
fn files_left_by_kill_are_recovered() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("adc-000004.sigmf-data.partial"), [1; 77]).unwrap();
    let context = context(dir.path(), "adc", layout(Scalar::Int8, false, 1, 100), 0, 0);
    let spec = spec("file", "adc", "path = \".\"").unwrap();
    let mut sink = spec.build(context).unwrap();
    Feed::new(8, 100, 0).give(&mut *sink, &[counting(0, 100)]);
    sink.finish().unwrap();
    drop(sink);
    assert_eq!(
        names(dir.path()),
        [
            "adc-000004.sigmf-data.partial",
            "adc-000005.sigmf-data",
            "adc-000005.sigmf-meta"
        ]
    );
}

#[test]
fn file_keys_invalid_are_rejected() {
    for (keys, wanted) in [
        (
            "path = \"out\"\nsegmant = \"1 GiB\"",
            "did you mean `segment`?",
        ),
        (
            "path = \"out\"\nsegment = 0",
            "a segment must be larger than 0 bytes",
        ),
        (
            "path = \"out\"\nrotate = \"0 s\"",
            "`rotate` must be longer than zero",
        ),
        (
            "path = \"out\"\nname = \"a/b\"",
            "\"a/b\" cannot be the start of a file name",
        ),
        (
            &format!("path = \"out\"\nname = \"{}\"", "x".repeat(201)),
            "has 201 bytes; the maximum is 200",
        ),
        (
            "path = \"out\"\nbuffer = 1",
            "`buffer` must be 4 KiB to 256 MiB, not 1 B",
        ),
        ("segment = \"1 GiB\"", "path"),
    ] {
        let error = spec("file", "disk", keys).err().unwrap();
        assert!(error.contains(wanted), "{error}");
    }
    let error = spec("file", "\"../x\"", "path = \"out\"").err().unwrap();
    assert_contains!(error => "\"../x\" cannot be the start of a file name", "daq.toml:1");
    let claims = spec("file", "disk", "path = \"out\"")
        .unwrap()
        .facts()
        .claims;
    let others = spec("file", "disk2", "path = \"out\"")
        .unwrap()
        .facts()
        .claims;
    assert!(
        !claims[0].conflicts(&others[0]),
        "two stems may share a directory"
    );
    let same = spec("file", "disk2", "path = \"out\"\nname = \"disk\"")
        .unwrap()
        .facts()
        .claims;
    assert!(
        claims[0].conflicts(&same[0]),
        "two sinks must not use the same stem"
    );
    let below = spec("zarr", "disk", "path = \"out/disk\"")
        .unwrap()
        .facts()
        .claims;
    assert!(
        !claims[0].conflicts(&below[0]),
        "a directory may have the same name as a stem beside it"
    );
    let layout = Layout {
        points: 0,
        ..layout(Scalar::Int8, false, 1, 1)
    };
    let disk = spec("file", "disk", "path = \"out\"").unwrap();
    assert!(check(&*disk, &layout).is_err());
}

const POINTS: usize = 24;
const PACKETS_PER_FRAME: u32 = 6;
const PACKET_BYTES: usize = 7;
const CHANNELS: u32 = 2;
/// Frames with two channels of int8 and 24 points have 48 bytes: 6 packets of 7 bytes and one of 6 bytes.
const FRAME: usize = 48;

/// One frame: the difference of its number to the previous frame's number, whether the frame starts an epoch, its
/// missing packets, and the number of bytes removed from its end.
type Step = (u64, bool, BTreeSet<u32>, usize);

fn frames(steps: &[Step]) -> Vec<Sent> {
    let (mut sequence, mut epoch) = (3, 0);
    let make = |(step, restart, missing, cut): &Step| {
        if *restart {
            epoch += 1;
            sequence = 0;
        } else {
            sequence += step;
        }
        let mut flags = Flags::default();
        if *restart {
            flags = flags.with(Flags::EPOCH);
        }
        if !missing.is_empty() {
            flags = flags.with(Flags::INCOMPLETE);
        }
        let length = FRAME - cut;
        let mut sent = counting(sequence, length);
        let mut present = (1_u64 << (PACKETS_PER_FRAME + 1)) - 1;
        for packet in missing {
            present &= !(1 << packet);
        }
        sent.meta = FrameMeta {
            epoch,
            flags,
            packets_per_frame: PACKETS_PER_FRAME + 1,
            arrived: present.count_ones(),
            length,
            ..sent.meta
        };
        sent.bytes[0] = u8::try_from(epoch).unwrap();
        sent.present = vec![present];
        sent
    };
    steps.iter().map(make).collect()
}

/// With `trim`, the file contains the bytes from the first to the last packet of the stream.
#[test]
fn packets_outside_of_the_stream_are_trimmed() {
    let last = PACKETS_PER_FRAME - 1..=PACKETS_PER_FRAME;
    let steps = [
        (1, true, BTreeSet::from([0, 1]), 0),
        (1, false, BTreeSet::new(), 0),
        (1, false, last.collect(), 0),
    ];
    let mut sent = frames(&steps);
    for i in [0, 2] {
        sent[i].meta.flags = sent[i].meta.flags.with(Flags::TRUNCATED);
    }
    let group = CHANNELS as usize;
    let start = (2 * PACKET_BYTES).next_multiple_of(group);
    let end = (PACKETS_PER_FRAME as usize - 1) * PACKET_BYTES / group * group;
    for (trim, expected) in [
        (
            true,
            [
                &sent[0].bytes[start..],
                &sent[1].bytes,
                &sent[2].bytes[..end],
            ]
            .concat(),
        ),
        (
            false,
            [&sent[0].bytes[..], &sent[1].bytes, &sent[2].bytes].concat(),
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(Scalar::Int8, false, CHANNELS, POINTS);
        let keys = format!("path = \".\"\ntrim = {trim}");
        let context = context(
            dir.path(),
            "adc",
            layout,
            PACKETS_PER_FRAME + 1,
            PACKET_BYTES,
        );
        let mut sink = spec("file", "adc", &keys).unwrap().build(context).unwrap();
        Feed::new(8, FRAME, PACKETS_PER_FRAME + 1).give(&mut *sink, &sent);
        sink.finish().unwrap();
        let (meta, data) = segments(dir.path(), "adc").remove(0);
        assert!(data == expected, "{trim}");
        let missing = meta.missing().count();
        assert_eq!(missing, if trim { 0 } else { 2 });
        let first = if trim { (start / group) as u64 } else { 0 };
        assert_eq!(meta.captures[0].global_index, Some(first));
    }
}

proptest! {
    // The number of cases is limited, because every case writes and syncs several files.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn gaps_are_annotated_exactly(
        steps in vec((prop_oneof![4 => Just(1_u64), 1 => 2_u64..9], prop::bool::weighted(0.1),
            btree_set(0..=PACKETS_PER_FRAME, 0..4), prop_oneof![5 => Just(0_usize), 1 => 0_usize..20]), 1..40),
        segment in 40_u64..400,
    ) {
        let group = CHANNELS as usize;
        let sent = frames(&steps);
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(Scalar::Int8, false, CHANNELS, POINTS);
        let keys = format!("path = \".\"\nsegment = {segment}\nbuffer = 4096");
        let mut sink = spec("file", "adc", &keys).unwrap()
            .build(context(dir.path(), "adc", layout, PACKETS_PER_FRAME + 1, PACKET_BYTES)).unwrap();
        Feed::new(8, FRAME, PACKETS_PER_FRAME + 1).give(&mut *sink, &sent);
        sink.finish().unwrap();

        // Every sample in the files: (epoch, index in the epoch's stream) -> (bytes, whether it is missing).
        let mut listed = BTreeMap::new();
        let mut lost = 0;
        for (meta, data) in segments(dir.path(), "adc") {
            let missing: BTreeSet<u64> = meta.missing().flat_map(|(first, count)| first..first + count).collect();
            let stream = meta.global.stream.as_ref().unwrap();
            prop_assert_eq!(stream.missing_samples, missing.len() as u64);
            let annotated: u64 = meta.annotations.iter().map(|note| note.missing_frames).sum();
            let before: u64 = meta.captures.iter().map(|capture| capture.missing_frames).sum();
            prop_assert_eq!((annotated, before), (stream.missing_frames, stream.missing_frames));
            lost += stream.missing_frames;
            for span in meta.spans(data.len() as u64) {
                let capture = &meta.captures[span.capture];
                let first = capture.global_index.unwrap();
                prop_assert_eq!(first, capture.sequence.unwrap() * POINTS as u64);
                for i in 0..span.bytes / group as u64 {
                    let at = usize::try_from(span.byte_start).unwrap() + usize::try_from(i).unwrap() * group;
                    let sample = (data[at..at + group].to_vec(), missing.contains(&(at as u64 / group as u64)));
                    let known = listed.insert((capture.epoch.unwrap(), first + i), sample);
                    prop_assert!(known.is_none(), "a sample is listed twice");
                }
            }
        }
        let mut wanted = BTreeMap::new();
        let mut jumps = 0;
        for (i, frame) in sent.iter().enumerate() {
            if i > 0 && sent[i - 1].meta.epoch == frame.meta.epoch {
                jumps += frame.meta.sequence - sent[i - 1].meta.sequence - 1;
            }
            for (p, sample) in frame.bytes.chunks_exact(group).enumerate() {
                let gone = |byte: usize| frame.present[0] >> (byte / PACKET_BYTES) & 1 == 0;
                let missing = (p * group..(p + 1) * group).any(gone);
                let key = (frame.meta.epoch, frame.meta.sequence * POINTS as u64 + p as u64);
                wanted.insert(key, (sample.to_vec(), missing));
            }
        }
        prop_assert_eq!(lost, jumps);
        prop_assert_eq!(listed, wanted);
    }
}
