//! Checks that the external Python package `sigmf` validates and reads recordings.
//!
//! Searches for a Python with this package: `DAQ_TEST_PYTHON`, then `.venv/bin/python` in the repository's root.

use daq_core::frame::{Clock, Flags, FrameMeta, PacketSizes, Timestamp};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::sigmf::{Datatype, LABEL_GAP, LABEL_MISSING, MAX_INTEGER, Meta, Number};
use daq_sinks::file::segment::{Options, SegmentWriter, segment_name};
use daq_sinks::sigmf::{LABEL_UNLISTED, MetaBuilder, Moment, Record, Recording, Table};
use daq_testkit::python;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn recording(number: Number, complex: bool, channels: u32, frame_bytes: u64) -> Recording {
    Recording {
        datatype: Datatype::little(number, complex),
        channels,
        sample_rate: Some(1e6),
        frame_bytes,
        packets_per_frame: 8,
        detects_sizes: false,
        is_layout_maximum: false,
        packet_sizes: PacketSizes::equal((frame_bytes / 8).try_into().unwrap()),
        source: "raw".into(),
        description: Some("a \"test\"\nwith µ".into()),
        hardware: None,
        table: None,
        kept: Vec::new(),
    }
}

/// Writes frames of counting bytes with their metadata. Returns the paths of the metadata and the data.
fn write(
    dir: &Path,
    index: u64,
    builder: &mut MetaBuilder,
    frames: &[(Record, Vec<(u32, u32)>)],
) -> (PathBuf, Vec<u8>) {
    let mut writer = SegmentWriter::new(&Options {
        buffer_bytes: 64 << 10,
        ..Options::default()
    })
    .unwrap();
    writer.open(dir, &segment_name("a.b", index)).unwrap();
    builder.begin(index);
    let mut data = Vec::new();
    for (record, missing) in frames {
        // The last of every eight bytes is chosen so that a float64 can be represented as float32.
        let byte = |i| {
            if i % 8 == 7 {
                0x3f
            } else {
                (i * 5 + record.sequence) % 120
            }
        };
        let bytes: Vec<u8> = (0..record.bytes)
            .map(|i| u8::try_from(byte(i)).unwrap())
            .collect();
        writer.write(&bytes).unwrap();
        builder.frame(record, missing.iter().copied());
        data.extend(bytes);
    }
    let closed = writer.close(&builder.build().to_json()).unwrap();
    assert!(std::fs::read(closed.data).unwrap() == data);
    (closed.meta, data)
}

fn assert_samples(meta: &Path, data: &[u8], convert: impl Fn(&[u8]) -> f32, width: usize) {
    let name = format!("{}.f32", meta.display());
    let read: Vec<f32> = std::fs::read(name)
        .unwrap()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let wanted: Vec<f32> = data.chunks_exact(width).map(convert).collect();
    assert!(read == wanted, "python read other samples");
}

fn at(sequence: u64, bytes: u64, ns: u64) -> Record {
    Record {
        sequence,
        bytes,
        moment: (ns > 0).then_some(Moment {
            clock: Clock::Kernel,
            ns,
        }),
        ..Record::default()
    }
}

#[test]
fn sigmf_python_reads_every_datatype() {
    let python = python!("sigmf", "numpy");
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for (i, number) in Number::ALL.into_iter().enumerate() {
        for complex in [false, true] {
            for channels in [1, 3] {
                let frame = 8 * 3 * 16 * 16;
                let mut builder = MetaBuilder::new(recording(number, complex, channels, frame));
                let frames: Vec<_> = (0..4).map(|n| (at(n, frame, n), vec![])).collect();
                let index = (i * 10) as u64 + u64::from(complex) * 4 + u64::from(channels);
                let (meta, data) = write(dir.path(), index, &mut builder, &frames);
                written.push((number, complex, channels, meta, data));
            }
        }
    }
    let metas: Vec<PathBuf> = written.iter().map(|w| w.3.clone()).collect();
    for (seen, (number, complex, channels, meta, data)) in python
        .json_lines(include_str!("sigmf_check.py"), &metas)
        .iter()
        .zip(&written)
    {
        let group = number.bytes() * if *complex { 2 } else { 1 } * *channels as usize;
        assert_eq!(seen["samples"], json!(data.len() / group));
        assert_eq!(
            seen["shape"].as_array().unwrap().len(),
            if *channels > 1 { 2 } else { 1 }
        );
        // Counting bytes below 120 form neither a NaN nor an infinity.
        #[allow(clippy::cast_possible_truncation)]
        let convert = |b: &[u8]| match number {
            Number::I8 => f32::from(i8::from_le_bytes(b.try_into().unwrap())),
            Number::U8 => f32::from(b[0]),
            Number::I16 => f32::from(i16::from_le_bytes(b.try_into().unwrap())),
            Number::U16 => f32::from(u16::from_le_bytes(b.try_into().unwrap())),
            Number::I32 => i32::from_le_bytes(b.try_into().unwrap()) as f32,
            Number::U32 => u32::from_le_bytes(b.try_into().unwrap()) as f32,
            Number::F32 => f32::from_le_bytes(b.try_into().unwrap()),
            Number::F64 => f64::from_le_bytes(b.try_into().unwrap()) as f32,
        };
        assert_samples(meta, data, convert, number.bytes());
    }
}

#[test]
fn sigmf_python_reads_gaps_and_epochs() {
    let python = python!("sigmf", "numpy");
    let dir = tempfile::tempdir().unwrap();
    // 2 channels of ci16 have 8 bytes per sample. A frame has 8 packets of 16 samples.
    let mut builder = MetaBuilder::new(recording(Number::I16, true, 2, 1024));
    let first: Vec<_> = vec![
        (at(10, 1024, 1_000_000_001), vec![]),
        (at(11, 1024, 0), vec![(1, 2), (7, 1)]),
        (at(12, 1024, 0), vec![(0, 1)]),
        (
            Record {
                cause: Some("overrun"),
                ..at(20, 1024, 5_000_000_000)
            },
            vec![],
        ),
        (
            Record {
                epoch: 1,
                restart: true,
                moment: Some(Moment {
                    clock: Clock::Sensor,
                    ns: 77,
                }),
                ..at(0, 1024, 0)
            },
            vec![],
        ),
        (
            Record {
                epoch: 1,
                suspect: true,
                ..at(1, 512, 0)
            },
            vec![],
        ),
        (
            Record {
                epoch: 1,
                ..at(2, 1024, 9)
            },
            vec![],
        ),
    ];
    let second = vec![(
        Record {
            epoch: 1,
            ..at(5, 1024, 50)
        },
        vec![],
    )];
    let a = write(dir.path(), 0, &mut builder, &first);
    let b = write(dir.path(), 1, &mut builder, &second);
    let seen = python.json_lines(include_str!("sigmf_check.py"), &[a.0.clone(), b.0.clone()]);
    assert_samples(
        &a.0,
        &a.1,
        |b| f32::from(i16::from_le_bytes(b.try_into().unwrap())),
        2,
    );
    assert_eq!(
        seen[0]["captures"],
        json!([
            {"core:sample_start": 0, "core:global_index": 1280, "core:datetime": "1970-01-01T00:00:01.000000001Z",
             "daq:sequence": 10, "daq:epoch": 0, "daq:clock": "kernel", "daq:time_ns": 1_000_000_001_u64, "daq:frames": 3},
            {"core:sample_start": 384, "core:global_index": 2560, "core:datetime": "1970-01-01T00:00:05.000000000Z",
             "daq:sequence": 20, "daq:epoch": 0, "daq:clock": "kernel", "daq:time_ns": 5_000_000_000_u64, "daq:frames": 1,
             "daq:missing_frames": 7},
            {"core:sample_start": 512, "core:global_index": 0,
             "daq:sequence": 0, "daq:epoch": 1, "daq:clock": "sensor", "daq:time_ns": 77, "daq:frames": 2},
            {"core:sample_start": 704, "core:global_index": 256, "core:datetime": "1970-01-01T00:00:00.000000009Z",
             "daq:sequence": 2, "daq:epoch": 1, "daq:clock": "kernel", "daq:time_ns": 9, "daq:frames": 1},
        ])
    );
    let brief: Vec<Value> = seen[0]["annotations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| {
            json!([
                a["core:sample_start"],
                a["core:sample_count"],
                a["core:label"],
                a["daq:merged"],
                a["daq:missing_frames"],
                a["daq:cause"]
            ])
        })
        .collect();
    assert_eq!(
        json!(brief),
        json!([
            [144, 32, "missing", null, null, null],
            [240, 32, "missing", 2, null, null],
            [384, 1, "gap", null, 7, "overrun"],
            [640, 64, "suspect", null, null, null],
        ])
    );
    assert_eq!(seen[0]["parts"].as_array().unwrap().len(), 4);
    let global = &seen[0]["global"];
    assert_eq!(
        (
            &global["daq:missing_samples"],
            &global["daq:missing_frames"]
        ),
        (&json!(64), &json!(7))
    );
    assert_eq!(
        (&global["core:sample_rate"], &global["core:num_channels"]),
        (&json!(1e6), &json!(2))
    );
    assert_eq!(global["core:description"], "a \"test\"\nwith µ");
    // The two frames that were lost between the segments are recorded in the second segment.
    assert_eq!(seen[1]["annotations"][0]["daq:missing_frames"], 2);
    assert_eq!(seen[1]["captures"][0]["core:global_index"], 640);
    // daq's own reader must return the same result.
    let meta = Meta::read(&a.0).unwrap();
    assert_eq!(meta.missing().collect::<Vec<_>>(), [(144, 32), (240, 32)]);
    let spans: Vec<_> = meta
        .spans(a.1.len() as u64)
        .iter()
        .map(|s| (s.byte_start, s.bytes))
        .collect();
    assert_eq!(spans, [(0, 3072), (3072, 1024), (4096, 1536), (5632, 1024)]);
    assert_eq!(
        meta.data_path(&a.0),
        dir.path().join("a.b-000000.sigmf-data")
    );
}

#[test]
fn sigmf_python_reads_summary_of_many_gaps() {
    let python = python!("sigmf", "numpy");
    let dir = tempfile::tempdir().unwrap();
    const CAPTURES: u64 = 40;
    const ANNOTATIONS: u64 = 50;
    let mut builder = MetaBuilder::with_limits(recording(Number::I8, false, 1, 8), 40, 50);
    let n = 200;
    // Every other frame is lost, and one packet of each frame is missing.
    let frames: Vec<_> = (0..n).map(|i| (at(2 * i, 8, i), vec![(3, 1)])).collect();
    let (meta, _) = write(dir.path(), 0, &mut builder, &frames);
    let seen = python
        .json_lines(include_str!("sigmf_check.py"), std::slice::from_ref(&meta))
        .remove(0);
    assert_eq!(seen["captures"].as_array().unwrap().len() as u64, CAPTURES);
    let annotations = seen["annotations"].as_array().unwrap();
    assert_eq!(annotations.len() as u64, ANNOTATIONS + 1);
    let unlisted = annotations.last().unwrap();
    assert_eq!(unlisted["core:label"], LABEL_UNLISTED);
    let listed = |key: &str, label: &str| {
        annotations
            .iter()
            .filter(|a| a["core:label"] == label)
            .filter_map(|a| a[key].as_u64())
            .sum::<u64>()
    };
    assert_eq!(seen["global"]["daq:missing_samples"], n);
    assert_eq!(seen["global"]["daq:missing_frames"], n - 1);
    assert_eq!(
        listed("daq:missing_frames", LABEL_GAP) + unlisted["daq:missing_frames"].as_u64().unwrap(),
        n - 1
    );
    let rest = n - listed("core:sample_count", LABEL_MISSING);
    assert!(
        unlisted["core:comment"]
            .as_str()
            .unwrap()
            .contains(&format!("({rest} missing samples")),
        "{unlisted}"
    );
    assert_eq!(
        unlisted["daq:merged"],
        (n - 1 + n) - ANNOTATIONS + (n - CAPTURES)
    );
}

#[test]
fn sigmf_python_validates_spectra_and_extremes() {
    let python = python!("sigmf", "numpy");
    let dir = tempfile::tempdir().unwrap();
    let mut spectra = recording(Number::F32, false, 1, 4096);
    spectra.sample_rate = None;
    spectra.packets_per_frame = 0;
    spectra.table = Some(Table {
        channels: 2,
        points: 512,
        order: "planar",
        axis: json!({"kind": "frequency", "start": 0.0, "step": 976.5625}),
        frame_rate: Some(122.5),
    });
    let a = write(
        dir.path(),
        0,
        &mut MetaBuilder::new(spectra.clone()),
        &[(at(0, 4096, u64::MAX), vec![])],
    );
    // These numbers exceed the integers of SigMF, and the rate is not allowed by SigMF.
    spectra.sample_rate = Some(f64::INFINITY);
    let far = Record {
        epoch: u32::MAX,
        moment: None,
        ..at(MAX_INTEGER, 4096, 0)
    };
    let b = write(
        dir.path(),
        1,
        &mut MetaBuilder::new(spectra),
        &[(far, vec![(0, u32::MAX)])],
    );
    let seen = python.json_lines(include_str!("sigmf_check.py"), &[a.0, b.0]);
    assert_eq!(seen[0]["global"]["daq:axis"]["step"], 976.5625);
    assert_eq!(seen[0]["global"]["daq:frame_rate"], 122.5);
    assert_eq!(seen[0]["global"].get("core:sample_rate"), None);
    assert_eq!(
        seen[0]["captures"][0]["core:datetime"],
        "2554-07-21T23:34:33.709551615Z"
    );
    assert_eq!(seen[1]["captures"][0].get("core:global_index"), None);
    assert_eq!(seen[1]["captures"][0]["daq:sequence"], MAX_INTEGER);
    assert_eq!(seen[1]["global"].get("core:sample_rate"), None);
    assert_eq!(seen[1]["annotations"][0]["core:sample_count"], 1024);
}

#[test]
fn sigmf_python_validates_file_sink_recordings() {
    let python = python!("sigmf", "numpy");
    let dir = tempfile::tempdir().unwrap();
    let layouts = [
        crate::support::layout(Scalar::Int16, true, 2, 64),
        Layout {
            axis: Axis::Frequency {
                start: Some(0.0),
                step: Some(1e3),
            },
            ..crate::support::layout(Scalar::Float32, false, 1, 64)
        },
        Layout {
            order: Order::Planar,
            ..crate::support::layout(Scalar::Float32, false, 3, 64)
        },
    ];
    for (i, layout) in layouts.iter().enumerate() {
        let name = format!("s{i}");
        let bytes = layout.frame_bytes();
        let context = crate::support::context(dir.path(), &name, layout.clone(), 8, bytes / 8);
        let keys = "path = \".\"\nsegment = 5000\nhardware = \"none\"";
        let mut sink = crate::support::spec("file", &name, keys)
            .unwrap()
            .build(context)
            .unwrap();
        let frame = |n: u64| crate::support::Sent {
            meta: FrameMeta {
                packets_per_frame: 8,
                arrived: 7,
                flags: Flags::INCOMPLETE,
                epoch: u32::from(n > 20),
                timestamp: Timestamp {
                    ns: 1_700_000_000_000_000_000 + n,
                    clock: Clock::Kernel,
                },
                ..FrameMeta::whole(n + n / 3, bytes)
            },
            bytes: (0..bytes)
                .map(|i| {
                    if i % 4 == 3 {
                        0x3f
                    } else {
                        u8::try_from(i % 100).unwrap()
                    }
                })
                .collect(),
            present: vec![0b1111_0111],
        };
        let frames: Vec<_> = (0..30).map(frame).collect();
        crate::support::Feed::new(8, bytes, 8).give(&mut *sink, &frames);
        sink.finish().unwrap();
    }
    let metas: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "sigmf-meta"))
        .collect();
    let samples: u64 = python
        .json_lines(include_str!("sigmf_check.py"), &metas)
        .iter()
        .map(|seen| seen["samples"].as_u64().unwrap())
        .sum();
    // Interleaved samples over time are counted in points, all others in numbers.
    assert_eq!(samples, 30 * (64 + 64 + 3 * 64));
}
