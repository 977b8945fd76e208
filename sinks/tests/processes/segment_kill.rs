//! Checks that a process killed at random times leaves complete segments, and at most one that is marked as partial.

use crate::support::Writer;
use daq_sinks::file::segment::{
    Options, SegmentPaths, SegmentWriter, recover, segment_index, segment_name,
};
use daq_sinks::lock::StemLock;
use daq_testkit::{names, wait_until};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const STEM: &str = "adc";
const LOCK: &str = ".adc.lock";
const RUNS: u64 = 25;

fn content(index: u64) -> Vec<u8> {
    let size = 10_000 + usize::try_from(index * 7919 % 50_000).unwrap();
    (0..size)
        .map(|i| u8::try_from((i + i / 256) % 256).unwrap() ^ u8::try_from(index % 251).unwrap())
        .collect()
}

fn meta(bytes: usize) -> String {
    // The text is long enough that a kill can truncate it.
    format!(
        "{{\"global\":{{\"daq:bytes\":{bytes}}},\"annotations\":[\"{}\"]}}",
        "x".repeat(20_000)
    )
}

/// Runs in the process that is killed: writes segments as fast as possible.
#[test]
#[ignore = "started and killed by the other test"]
fn writer_process() {
    let Some(dir) = Writer::dir() else {
        return;
    };
    // The lock is held until the kill. The remaining lock file does not block later runs.
    let lock = StemLock::take(&dir, STEM).unwrap();
    let mut index = recover(&lock).unwrap().next_index;
    let mut writer = SegmentWriter::new(&Options {
        buffer_bytes: 8192,
        buffers: 2,
        ..Options::default()
    })
    .unwrap();
    loop {
        writer.open(&dir, &segment_name(STEM, index)).unwrap();
        let bytes = content(index);
        bytes
            .chunks(3001)
            .for_each(|piece| writer.write(piece).unwrap());
        writer.close(meta(bytes.len()).as_bytes()).unwrap();
        index += 1;
    }
}

fn check(dir: &Path, partials: &mut BTreeSet<u64>) -> u64 {
    let mut whole = 0;
    let mut open = Vec::new();
    for name in names(dir) {
        if name == LOCK {
            continue;
        }
        let (base, suffix) = name.split_once(".sigmf-").unwrap();
        let index = segment_index(STEM, base).unwrap();
        let paths = SegmentPaths::new(dir, base);
        match suffix {
            "meta" => {
                whole += 1;
                let bytes = content(index);
                assert!(std::fs::read(&paths.data).unwrap() == bytes, "{name}");
                assert_eq!(
                    std::fs::read_to_string(&paths.meta).unwrap(),
                    meta(bytes.len()),
                    "{name}"
                );
            }
            "data.partial" => {
                assert!(
                    content(index).starts_with(&std::fs::read(&paths.partial).unwrap()),
                    "{name}"
                );
                open.extend(partials.insert(index).then_some(name));
            }
            "data" if !paths.meta.exists() => {
                assert!(
                    paths.meta_tmp.exists(),
                    "{name} has neither metadata nor a mark"
                );
                open.push(name);
            }
            _ => {}
        }
    }
    assert!(
        open.len() <= 1,
        "one kill leaves one segment open: {open:?}"
    );
    whole
}

#[test]
fn kill_at_random_times_leaves_valid_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut partials = BTreeSet::new();
    let mut whole = 0;
    for run in 0..RUNS {
        let writer = Writer::start(module_path!(), dir.path());
        // Every third process is killed at a random time after its start. The others are killed after they have closed
        // a segment.
        let committed = |name: &String| name.ends_with(".sigmf-meta");
        if run % 3 > 0 {
            wait_until("a segment", || {
                names(dir.path())
                    .iter()
                    .filter(|name| committed(name))
                    .count() as u64
                    > whole
            });
        }
        std::thread::sleep(Duration::from_micros(run * run * 7919 % 90_000));
        writer.kill();
        let before = check(dir.path(), &mut partials.clone());
        assert!(before >= whole, "complete segments must remain");
        let lock = StemLock::take(dir.path(), STEM).unwrap();
        let found = recover(&lock).unwrap();
        assert!(found.unclear.is_empty(), "{found:?}");
        whole = check(dir.path(), &mut partials);
        assert_eq!(
            (found.whole, found.whole - found.completed.len() as u64),
            (whole, before)
        );
        assert_eq!(found.partial.len(), partials.len());
    }
    assert!(whole > 0, "no segment was finished");
    println!(
        "{RUNS} kills: {whole} whole segments, {} partial",
        partials.len()
    );
}
