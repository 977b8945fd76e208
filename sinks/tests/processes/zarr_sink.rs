//! Writes frames with the `zarr` sink and reads the files of its arrays. Also tests what remains after a kill and on a full
//! disk. `zarr_python.rs` reads such stores with the library zarr of Python.

use crate::support::{Feed, SCALARS, Sent, Writer, context, layout, spec};
use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::layout::{Layout, Order, Scalar};
use daq_core::sink::SinkError;
use daq_testkit::{small_disk, this_test, wait_until};
use std::path::Path;
use std::time::Duration;

/// Returns the bytes of the first `rows` rows of an array, and the shape of the array.
fn read(store: &Path, name: &str, rows: Option<u64>) -> (Vec<u8>, Vec<u64>) {
    let dir = store.join(name);
    let metadata: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("zarr.json")).unwrap()).unwrap();
    let dimensions =
        |value: &serde_json::Value| -> Vec<u64> { serde_json::from_value(value.clone()).unwrap() };
    let shape = dimensions(&metadata["shape"]);
    let chunk = dimensions(&metadata["chunk_grid"]["configuration"]["chunk_shape"]);
    assert_eq!(
        shape[1..],
        chunk[1..],
        "{name} has one chunk per row of chunks"
    );
    let rows = rows.unwrap_or(shape[0]);
    assert!(
        rows <= shape[0],
        "{name} has {} rows, {rows} are committed",
        shape[0]
    );
    let mut bytes = Vec::new();
    for n in 0..rows.div_ceil(chunk[0]) {
        let file = format!("c.{n}{}", ".0".repeat(chunk.len() - 1));
        let mut content = std::fs::read(dir.join(file)).unwrap();
        let kept = (rows - n * chunk[0]).min(chunk[0]) * content.len() as u64 / chunk[0];
        content.truncate(usize::try_from(kept).unwrap());
        bytes.extend(content);
    }
    (bytes, shape)
}

fn numbers(store: &Path, name: &str, rows: Option<u64>) -> Vec<u64> {
    let (bytes, shape) = read(store, name, rows);
    let width = bytes.len() / usize::try_from(rows.unwrap_or(shape[0])).unwrap().max(1);
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | u64::from(byte))
    };
    bytes.chunks_exact(width.max(1)).map(number).collect()
}

fn state(store: &Path) -> String {
    let text = std::fs::read(store.join("zarr.json")).unwrap();
    let group: serde_json::Value = serde_json::from_slice(&text).unwrap();
    group["attributes"]["state"].as_str().unwrap().to_owned()
}

fn content(sequence: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| u8::try_from((i / 2 + sequence * 37) % 256).unwrap())
        .collect()
}

fn frame(n: u64, bytes: usize, packets_per_frame: u32) -> Sent {
    let length = if n % 5 == 4 { bytes - bytes / 3 } else { bytes };
    let all = (1_u64 << packets_per_frame) - 1;
    let present = if n.is_multiple_of(3) {
        all
    } else {
        all & !(1 << (n % u64::from(packets_per_frame.max(1))))
    };
    let incomplete = if present == all {
        Flags::default()
    } else {
        Flags::INCOMPLETE
    };
    let meta = FrameMeta {
        sequence: n * 3,
        epoch: u32::try_from(n / 7).unwrap(),
        flags: incomplete,
        timestamp: Timestamp {
            ns: 1_700_000_000_000_000_000 + n,
            clock: Clock::Kernel,
        },
        length,
        packets_per_frame,
        arrived: present.count_ones(),
        ..FrameMeta::default()
    };
    Sent {
        meta,
        bytes: content(n, length),
        present: if packets_per_frame > 0 {
            vec![present]
        } else {
            Vec::new()
        },
    }
}

fn assert_holds(store: &Path, sent: &[Sent], layout: &Layout, packets_per_frame: u32) {
    let n = sent.len() as u64;
    let (bytes, shape) = read(store, "frames", None);
    let inner = match layout.order {
        Order::Interleaved => [layout.points as u64, u64::from(layout.channels)],
        Order::Planar => [u64::from(layout.channels), layout.points as u64],
    };
    let pair = layout.complex && !matches!(layout.scalar, Scalar::Float32 | Scalar::Float64);
    let mut wanted = vec![n, inner[0], inner[1]];
    wanted.extend(pair.then_some(2));
    assert_eq!(shape, wanted);
    let mut payload = Vec::new();
    for frame in sent {
        payload.extend(&frame.bytes);
        payload.resize(payload.len().next_multiple_of(layout.frame_bytes()), 0);
    }
    assert!(bytes == payload, "payload differs");
    let column =
        |of: fn(&FrameMeta) -> u64| sent.iter().map(|frame| of(&frame.meta)).collect::<Vec<_>>();
    assert_eq!(
        numbers(store, "sequence", None),
        column(|meta| meta.sequence)
    );
    assert_eq!(
        numbers(store, "epoch", None),
        column(|meta| u64::from(meta.epoch))
    );
    assert_eq!(
        numbers(store, "timestamp_ns", None),
        column(|meta| meta.timestamp.ns)
    );
    assert_eq!(
        numbers(store, "clock", None),
        column(|meta| meta.timestamp.clock as u64)
    );
    assert_eq!(
        numbers(store, "length", None),
        column(|meta| meta.length as u64)
    );
    assert_eq!(
        numbers(store, "flags", None),
        column(|meta| u64::from(meta.flags.0))
    );
    if packets_per_frame > 0 {
        let (bytes, shape) = read(store, "present", None);
        assert_eq!(shape, [n, u64::from(packets_per_frame)]);
        let bit = |frame: &Sent, packet: u32| u8::try_from(frame.present[0] >> packet & 1).unwrap();
        let wanted: Vec<u8> = sent
            .iter()
            .flat_map(|frame| (0..packets_per_frame).map(|packet| bit(frame, packet)))
            .collect();
        assert_eq!(bytes, wanted);
    } else {
        assert!(!store.join("present").exists());
    }
}

#[test]
fn zarr_layouts_round_trip() {
    for scalar in SCALARS
        .into_iter()
        .chain([Scalar::Uint32, Scalar::Int64, Scalar::Float16])
    {
        for (complex, channels, order, packets_per_frame) in [
            (false, 1, Order::Interleaved, 0),
            (true, 3, Order::Interleaved, 5),
            (true, 1, Order::Planar, 5),
            (false, 2, Order::Planar, 0),
        ] {
            let layout = Layout {
                order,
                ..layout(scalar, complex, channels, 32)
            };
            let bytes = layout.frame_bytes();
            let dir = tempfile::tempdir().unwrap();
            let context = context(
                dir.path(),
                "disk",
                layout.clone(),
                packets_per_frame,
                bytes.div_ceil(packets_per_frame.max(1) as usize),
            );
            let ledger = context.ledger.clone();
            let keys = format!("path = \"out\"\nchunk = {}", bytes * 4 + 1);
            let mut sink = spec("zarr", "disk", &keys).unwrap().build(context).unwrap();
            // Two complete chunks and a part of a third one.
            let sent: Vec<_> = (0..11)
                .map(|n| frame(n, bytes, packets_per_frame))
                .collect();
            Feed::new(8, bytes, packets_per_frame).give(&mut *sink, &sent);
            sink.finish().unwrap();
            let store = dir.path().join("out/disk-000000.zarr");
            assert_holds(&store, &sent, &layout, packets_per_frame);
            assert_eq!(state(&store), "complete");
            let total: usize = sent.iter().map(|frame| frame.bytes.len()).sum();
            assert_eq!(
                (ledger.frames.get(), ledger.bytes.get(), ledger.files.get()),
                (11, total as u64, 3)
            );
            let mut files = std::fs::read_dir(store.join("frames"))
                .unwrap()
                .map(|e| e.unwrap().path());
            assert!(
                files.all(|path| path.extension().is_none_or(|e| e != "partial")),
                "a partial file remains"
            );
        }
    }
}

#[test]
fn metadata_chunks_span_many_frame_chunks() {
    let layout = layout(Scalar::Int8, false, 1, 8);
    let dir = tempfile::tempdir().unwrap();
    // A chunk of frames has 1000 frames; a chunk of the small arrays has 4000 rows.
    let mut sink = spec("zarr", "a", "path = \".\"\nchunk = 8000")
        .unwrap()
        .build(context(dir.path(), "a", layout.clone(), 3, 3))
        .unwrap();
    let sent: Vec<_> = (0..9100).map(|n| frame(n, 8, 3)).collect();
    Feed::new(64, 8, 3).give(&mut *sink, &sent);
    sink.finish().unwrap();
    assert_holds(&dir.path().join("a-000000.zarr"), &sent, &layout, 3);
}

#[test]
fn frames_are_flushed_in_time_and_chunk_continues() {
    let layout = layout(Scalar::Int16, false, 1, 50);
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path(), "a", layout.clone(), 4, 25);
    let ledger = context.ledger.clone();
    let mut sink = spec("zarr", "a", "path = \".\"\nchunk = 800\nflush = \"1 ns\"")
        .unwrap()
        .build(context)
        .unwrap();
    let store = dir.path().join("a-000000.zarr");
    let mut feed = Feed::new(8, 100, 4);
    let sent: Vec<_> = (0..21).map(|n| frame(n, 100, 4)).collect();
    for (i, some) in sent.chunks(3).enumerate() {
        feed.give(&mut *sink, some);
        wait_until("the commit", || {
            sink.tick().unwrap();
            read(&store, "frames", None).1[0] == (i as u64 + 1) * 3
        });
        assert_holds(&store, &sent[..(i + 1) * 3], &layout, 4);
    }
    assert_eq!(state(&store), "writing");
    sink.finish().unwrap();
    assert_holds(&store, &sent, &layout, 4);
    assert_eq!((ledger.frames.get(), ledger.files.get()), (21, 3));
}

#[test]
fn each_run_has_its_own_store() {
    let layout = layout(Scalar::Int8, false, 1, 8);
    let dir = tempfile::tempdir().unwrap();
    for run in 0..3 {
        let mut sink = spec("zarr", "a", "path = \".\"")
            .unwrap()
            .build(context(dir.path(), "a", layout.clone(), 0, 0))
            .unwrap();
        let sent: Vec<_> = (0..run).map(|n| frame(n, 8, 0)).collect();
        Feed::new(8, 8, 0).give(&mut *sink, &sent);
        sink.finish().unwrap();
        drop(sink);
        assert_holds(
            &dir.path().join(format!("a-{run:06}.zarr")),
            &sent,
            &layout,
            0,
        );
    }
}

#[test]
fn failed_commit_leaves_no_partial_files() {
    let layout = layout(Scalar::Int8, false, 1, 8);
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path(), "a", layout, 0, 0);
    let ledger = context.ledger.clone();
    let keys = "path = \".\"\nchunk = 16";
    let mut sink = spec("zarr", "a", keys).unwrap().build(context).unwrap();
    let frames = dir.path().join("a-000000.zarr/frames");
    // A directory with the name of the first chunk makes renaming the chunk fail.
    std::fs::create_dir(frames.join("c.0.0.0")).unwrap();
    let mut feed = Feed::new(8, 8, 0);
    for n in 0..5 {
        feed.publish(&[frame(n, 8, 0)]);
        let _ = feed.offer(&mut *sink, 1);
    }
    let error = sink.finish().unwrap_err().to_string();
    assert!(error.contains("c.0.0.0.partial"), "{error}");
    assert_eq!(ledger.lost.get(), ledger.frames.get());
    assert_eq!(ledger.dropped.get(), 0);
    for place in [frames.parent().unwrap(), &frames] {
        let names = daq_testkit::names(place);
        assert!(
            !names.iter().any(|name| name.ends_with(".partial")),
            "{names:?}"
        );
    }
}

#[test]
fn incomplete_store_is_removed_and_fifo_does_not_block() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let layout = layout(Scalar::Int8, false, 1, 8);
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join("a-000000.zarr.partial");
    std::fs::create_dir_all(half.join("frames")).unwrap();
    let foreign = dir.path().join("a-000001.zarr");
    std::fs::create_dir(&foreign).unwrap();
    let fifo = foreign.join("zarr.json");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let build = || {
        spec("zarr", "a", "path = \".\"").unwrap().build(context(
            dir.path(),
            "a",
            layout.clone(),
            0,
            0,
        ))
    };
    build().unwrap().finish().unwrap();
    assert!(!half.exists());
    assert_eq!(state(&dir.path().join("a-000002.zarr")), "complete");
}

#[test]
fn zarr_keys_invalid_are_rejected() {
    for (keys, wanted) in [
        ("path = \"out\"\nchunks = 1", "did you mean `chunk`?"),
        (
            "path = \"out\"\nchunk = 0",
            "`chunk` must be 1 B to 1 GiB, not 0 B",
        ),
        (
            "path = \"out\"\nname = \"../x\"",
            "cannot be the start of a file name",
        ),
        ("chunk = 1", "path"),
    ] {
        let error = spec("zarr", "disk", keys).err().unwrap();
        assert!(error.contains(wanted), "{error}");
    }
}

const KILL_FRAME: usize = 600;

/// Runs in the process that is killed: writes frames as fast as possible.
#[test]
#[ignore = "started and killed by the other test"]
fn writer_process() {
    let Some(dir) = Writer::dir() else {
        return;
    };
    let layout = layout(Scalar::Int8, false, 1, KILL_FRAME);
    let keys = "path = \".\"\nchunk = 6000\nflush = \"1 ns\"";
    let context = context(&dir, "a", layout, 4, KILL_FRAME / 4);
    let mut sink = spec("zarr", "a", keys).unwrap().build(context).unwrap();
    let mut feed = Feed::new(8, KILL_FRAME, 4);
    for n in 0.. {
        feed.give(&mut *sink, &[frame(n, KILL_FRAME, 4)]);
        if n % 7 == 0 {
            sink.tick().unwrap();
        }
    }
}

/// Returns the number of committed frames, as stated in the metadata of the array `frames`; 0 if the metadata file does
/// not exist yet.
fn committed(meta: &Path) -> u64 {
    let text = std::fs::read(meta).unwrap_or_default();
    let meta: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    meta["shape"][0].as_u64().unwrap_or(0)
}

#[test]
fn kill_at_random_times_leaves_valid_store() {
    let dir = tempfile::tempdir().unwrap();
    let layout = layout(Scalar::Int8, false, 1, KILL_FRAME);
    let mut max = 0;
    for run in 0..20_u64 {
        let writer = Writer::start(module_path!(), dir.path());
        // The first process is killed at a random time after its start, the others after some frames were committed.
        let frames = dir.path().join(format!("a-{run:06}.zarr/frames/zarr.json"));
        if run >= 8 {
            wait_until("a commit", || committed(&frames) > run * 2);
        }
        std::thread::sleep(Duration::from_micros(run * run * 7919 % 50_000));
        writer.kill();
        let store = dir.path().join(format!("a-{run:06}.zarr"));
        if !store.join("zarr.json").exists() {
            // The run was killed before the store was complete. Its directory still has the suffix for partial stores,
            // and the next start removes it.
            assert!(
                !store.exists(),
                "an incomplete store is not marked as partial"
            );
            std::fs::create_dir(&store).unwrap();
            continue;
        }
        // Even before recovery, the committed rows must be complete.
        let (_, shape) = read(&store, "frames", None);
        let sent: Vec<_> = (0..shape[0]).map(|n| frame(n, KILL_FRAME, 4)).collect();
        let sequence: Vec<_> = sent.iter().map(|frame| frame.meta.sequence).collect();
        assert_eq!(numbers(&store, "sequence", Some(shape[0])), sequence);
        let present: Vec<u8> = sent
            .iter()
            .flat_map(|f| (0..4).map(|i| u8::from(f.present[0] >> i & 1 == 1)))
            .collect();
        assert_eq!(read(&store, "present", Some(shape[0])).0, present);
        assert_eq!(state(&store), "writing");
        // The next start recovers the store. The store that this start creates is removed again.
        let next = spec("zarr", "a", "path = \".\"").unwrap().build(context(
            dir.path(),
            "a",
            layout.clone(),
            4,
            150,
        ));
        drop(next.unwrap());
        std::fs::remove_dir_all(dir.path().join(format!("a-{:06}.zarr", run + 1))).unwrap();
        assert_eq!(state(&store), "recovered");
        assert_holds(&store, &sent, &layout, 4);
        max = max.max(shape[0]);
    }
    assert!(max > 0, "no frame was committed");
    println!("20 kills, up to {max} frames committed");
}

#[test]
fn disk_full_applies_backpressure_or_is_reported() {
    let Some(dir) = small_disk(this_test!(), "16m") else {
        return;
    };
    const FRAME: usize = 50_000;
    let layout = layout(Scalar::Int8, false, 1, FRAME);
    for guarantee in [true, false] {
        let dir = dir.join(guarantee.to_string());
        std::fs::create_dir(&dir).unwrap();
        let ballast = dir.join("ballast");
        std::fs::write(&ballast, vec![1; 6 << 20]).unwrap();
        let context = context(&dir, "a", layout.clone(), 0, 0);
        let ledger = context.ledger.clone();
        let mut sink = spec(
            "zarr",
            "a",
            "path = \".\"\nchunk = 350000\nflush = \"1 ns\"",
        )
        .unwrap()
        .build(context)
        .unwrap();
        let mut feed = Feed::new(8, FRAME, 0);
        let (mut kept, mut met, mut dropped) = (Vec::new(), 0, 0);
        for n in 0..230 {
            let sent = frame(n, FRAME, 0);
            feed.publish(std::slice::from_ref(&sent));
            if guarantee {
                feed.insist(&mut *sink, 1, || {
                    met += 1;
                    assert!(met < 100, "still no space");
                    if met == 5 {
                        std::fs::remove_file(&ballast).unwrap();
                    }
                });
                kept.push(sent);
            } else {
                let (taken, result) = feed.offer(&mut *sink, 1);
                match result {
                    Ok(()) => assert_eq!(taken, 1),
                    Err(SinkError::Full { .. }) => dropped += 1,
                    Err(error) => panic!("{error}"),
                }
                kept.extend((taken == 1).then_some(sent));
                if dropped > 20 && ballast.exists() {
                    std::fs::remove_file(&ballast).unwrap();
                }
            }
            if n % 5 == 0 {
                sink.tick().unwrap();
            }
        }
        sink.finish().unwrap();
        assert!(met + dropped >= 5, "the disk was never full");
        assert_eq!(ledger.frames.get(), kept.len() as u64);
        assert_holds(&dir.join("a-000000.zarr"), &kept, &layout, 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
