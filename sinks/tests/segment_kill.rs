//! A process killed at random moments leaves whole segments and at most one that is marked partial.

#![allow(clippy::unwrap_used)]

use daq_sinks::segment::{
    Options, SegmentPaths, SegmentWriter, recover, segment_index, segment_name,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const STEM: &str = "adc";
const RUNS: u64 = 25;

fn content(index: u64) -> Vec<u8> {
    let size = 10_000 + usize::try_from(index * 7919 % 50_000).unwrap();
    (0..size)
        .map(|i| u8::try_from((i + i / 256) % 256).unwrap() ^ u8::try_from(index % 251).unwrap())
        .collect()
}

fn meta(bytes: usize) -> String {
    // Long enough to be torn.
    format!(
        "{{\"global\":{{\"daq:bytes\":{bytes}}},\"annotations\":[\"{}\"]}}",
        "x".repeat(20_000)
    )
}

/// The process that is killed: writes segments as fast as it can.
#[test]
#[ignore = "started and killed by the other test"]
fn writer_process() {
    let Some(dir) = std::env::var_os("DAQ_KILL_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let mut index = recover(dir, STEM).unwrap().next_index;
    let mut writer = SegmentWriter::new(&Options {
        buffer_bytes: 8192,
        buffers: 2,
        ..Options::default()
    })
    .unwrap();
    loop {
        writer.open(dir, &segment_name(STEM, index)).unwrap();
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
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
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
fn kill_at_random_moments() {
    let dir = tempfile::tempdir().unwrap();
    let mut partials = BTreeSet::new();
    let mut whole = 0;
    for run in 0..RUNS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_process", "--ignored"])
            .env("DAQ_KILL_DIR", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Anywhere from "just started" to "several segments later".
        std::thread::sleep(Duration::from_micros(5_000 + run * run * 7919 % 90_000));
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "the writer ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        let before = check(dir.path(), &mut partials.clone());
        assert!(before >= whole, "whole segments stay");
        let found = recover(dir.path(), STEM).unwrap();
        assert!(
            found.in_use.is_empty() && found.unclear.is_empty(),
            "{found:?}"
        );
        whole = check(dir.path(), &mut partials);
        assert_eq!(
            (found.whole, found.whole - found.completed.len() as u64),
            (whole, before)
        );
        assert_eq!(found.partial.len(), partials.len());
    }
    assert!(whole > 0, "no segment was ever finished");
    println!(
        "{RUNS} kills: {whole} whole segments, {} partial",
        partials.len()
    );
}
