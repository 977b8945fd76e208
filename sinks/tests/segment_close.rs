//! Checks that segments contain exactly the written bytes, and that a kill at any point leaves the documented state.

use daq_sinks::file::segment::{
    Options, Recovered, SegmentError, SegmentPaths, SegmentWriter, Step, segment_name,
};
use daq_sinks::lock::StemLock;
use daq_testkit::assert_contains;
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const STEM: &str = "adc";

/// Returns the files that the next start finds.
fn recover(dir: &Path) -> Recovered {
    let lock = StemLock::take(dir, STEM).unwrap();
    daq_sinks::file::segment::recover(&lock).unwrap()
}

fn small() -> Options {
    Options {
        buffer_bytes: 8192,
        buffers: 2,
        ..Options::default()
    }
}

fn pattern(n: usize, seed: u8) -> Vec<u8> {
    let byte = |i: usize| u8::try_from((i * 31 + i / 251) % 256).unwrap();
    (0..n).map(|i| byte(i).wrapping_add(seed)).collect()
}

fn meta(bytes: usize) -> Vec<u8> {
    format!("{{\"global\":{{\"daq:bytes\":{bytes}}}}}").into_bytes()
}

/// Checks that every metadata file is beside complete data. At most one other segment may exist, which must be marked
/// as partial or be provably complete.
fn assert_promise(dir: &Path, wanted: &[u8]) {
    let names = daq_testkit::names(dir);
    for name in &names {
        let path = dir.join(name);
        if let Some(base) = name.strip_suffix(".sigmf-meta") {
            assert!(std::fs::read(dir.join(format!("{base}.sigmf-data"))).unwrap() == wanted);
            assert_eq!(std::fs::read(&path).unwrap(), meta(wanted.len()));
        } else if let Some(base) = name.strip_suffix(".sigmf-data") {
            let proofs = [
                format!("{base}.sigmf-meta"),
                format!("{base}.sigmf-meta.tmp"),
            ];
            assert!(
                names.iter().any(|name| proofs.contains(name)),
                "unmarked data without metadata: {names:?}"
            );
            assert!(std::fs::read(&path).unwrap() == wanted);
        } else if name.ends_with(".sigmf-data.partial") {
            assert!(
                wanted.starts_with(&std::fs::read(&path).unwrap()),
                "a partial file must be a prefix of the data"
            );
        }
    }
    assert!(
        names.iter().filter(|n| n.ends_with(".partial")).count() <= 1,
        "{names:?}"
    );
}

#[test]
fn close_interrupted_at_any_step_is_recoverable() {
    let wanted = pattern(20_001, 1);
    for stop in Step::ALL {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SegmentWriter::new(&small()).unwrap();
        for index in 0..2 {
            writer.open(dir.path(), &segment_name(STEM, index)).unwrap();
            writer.write(&wanted).unwrap();
            let last = if index == 0 { Step::Done } else { stop };
            writer.close_until(&meta(wanted.len()), last).unwrap();
        }
        // Dropping a writer with an open segment has the same effect as a kill.
        drop(writer);
        assert_promise(dir.path(), &wanted);
        let found = recover(dir.path());
        assert_promise(dir.path(), &wanted);
        let second = SegmentPaths::new(dir.path(), &segment_name(STEM, 1));
        assert_eq!(found.next_index, 2, "{stop:?}");
        assert!(found.unclear.is_empty(), "{stop:?}: {found:?}");
        if stop < Step::MetaWritten {
            assert_eq!(
                (found.whole, found.partial[0].bytes),
                (1, 20_001),
                "{stop:?}"
            );
            assert_eq!(found.partial[0].path, second.partial);
        } else {
            assert_eq!((found.whole, found.partial.len()), (2, 0), "{stop:?}");
            assert!(second.meta.exists() && !second.meta_tmp.exists() && !second.partial.exists());
            assert_eq!(found.completed.len(), usize::from(stop < Step::MetaNamed));
        }
        let again = recover(dir.path());
        assert_eq!(
            (again.whole, again.partial, again.completed.len()),
            (found.whole, found.partial, 0)
        );
    }
}

#[test]
fn metadata_torn_or_foreign_is_not_trusted() {
    let cases = [
        ("{\"global\":{\"daq:by", false),
        ("", false),
        ("{\"global\":{\"daq:bytes\":7}}", true),
    ];
    for (tmp, stays) in cases {
        let dir = tempfile::tempdir().unwrap();
        let paths = SegmentPaths::new(dir.path(), &segment_name(STEM, 3));
        std::fs::write(&paths.data, [5; 100]).unwrap();
        std::fs::write(&paths.meta_tmp, tmp).unwrap();
        let found = recover(dir.path());
        assert_eq!((found.whole, found.next_index), (0, 4));
        assert_eq!(
            (found.partial[0].path.clone(), found.partial[0].bytes),
            (paths.partial.clone(), 100)
        );
        assert_eq!(found.unclear.len(), usize::from(stays));
        assert_eq!(paths.meta_tmp.exists(), stays);
        assert_eq!(std::fs::read(&paths.partial).unwrap(), [5; 100]);
        assert!(!paths.data.exists());
    }
}

#[test]
fn recovery_leaves_other_files_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let others = [
        "adc-2.sigmf-data",
        "other-000001.sigmf-data",
        "adc-000007.sigmf-data-x",
        "adc-raw-000001.sigmf-data",
    ];
    for other in others {
        std::fs::write(dir.path().join(other), b"x").unwrap();
    }
    // A user has copied files, so both names of one segment exist.
    let twice = SegmentPaths::new(dir.path(), &segment_name(STEM, 5));
    std::fs::write(&twice.data, b"one").unwrap();
    std::fs::write(&twice.partial, b"two").unwrap();
    let found = recover(dir.path());
    assert_eq!(
        (found.whole, found.partial.len(), found.next_index),
        (0, 0, 8)
    );
    assert_eq!(found.unclear, [twice.data.clone(), twice.partial.clone()]);
    assert_eq!(std::fs::read(twice.data).unwrap(), b"one");
    assert_eq!(std::fs::read(twice.partial).unwrap(), b"two");
    assert!(others.iter().all(|other| dir.path().join(other).exists()));
}

#[test]
fn existing_files_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = SegmentWriter::new(&small()).unwrap();
    for existing in ["a.sigmf-data", "a.sigmf-meta", "a.sigmf-data.partial"] {
        let path = dir.path().join(existing);
        std::fs::write(&path, b"precious").unwrap();
        assert!(
            matches!(
                writer.open(dir.path(), "a"),
                Err(SegmentError::Exists { .. })
            ),
            "{existing}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(path).unwrap();
    }
    // Another program creates a file with the final name while the segment is written.
    writer.open(dir.path(), "a").unwrap();
    writer.write(b"mine").unwrap();
    std::fs::write(dir.path().join("a.sigmf-data"), b"precious").unwrap();
    assert!(matches!(
        writer.close(b"{}"),
        Err(SegmentError::Exists { .. })
    ));
    assert_eq!(
        std::fs::read(dir.path().join("a.sigmf-data")).unwrap(),
        b"precious"
    );
    assert_eq!(
        std::fs::read(writer.keep_partial().unwrap()).unwrap(),
        b"mine"
    );
}

#[test]
fn calls_out_of_order_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = SegmentWriter::new(&small()).unwrap();
    assert!(matches!(writer.write(b"x"), Err(SegmentError::NotOpen)));
    assert!(matches!(writer.close(b"{}"), Err(SegmentError::NotOpen)));
    assert_eq!(writer.keep_partial(), None);
    writer.open(dir.path(), "a").unwrap();
    assert!(matches!(
        writer.open(dir.path(), "b"),
        Err(SegmentError::StillOpen { .. })
    ));
    writer.keep_partial().unwrap();
    let error = writer
        .open(Path::new("/nonexistent"), "b")
        .unwrap_err()
        .to_string();
    assert_contains!(error => "/nonexistent/b.sigmf-data.partial", "create the directory");
}

/// Returns a directory on tmpfs, where direct I/O and reservations differ from those of disks. Without tmpfs, returns a
/// temporary directory.
fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

#[derive(Clone, Debug)]
enum Action {
    Write(usize),
    Truncate(f64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let size = prop_oneof![
        0..300_usize,
        4090..4100_usize,
        8180..8200_usize,
        0..60_000_usize
    ];
    vec(
        prop_oneof![4 => size.prop_map(Action::Write), 1 => (0.0..1.1).prop_map(Action::Truncate)],
        0..12,
    )
}

fn written(dir: &Path, options: &Options, actions: &[Action], name: &str) -> (Vec<u8>, PathBuf) {
    let mut writer = SegmentWriter::new(options).unwrap();
    writer.open(dir, name).unwrap();
    let mut wanted = Vec::new();
    for (i, action) in actions.iter().enumerate() {
        match action {
            Action::Write(n) => {
                let bytes = pattern(*n, u8::try_from(i).unwrap());
                writer.write(&bytes).unwrap();
                wanted.extend(bytes);
            }
            Action::Truncate(part) => {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let len = (wanted.len() as f64 * part) as usize;
                writer.truncate(len as u64).unwrap();
                wanted.truncate(len);
            }
        }
        assert_eq!(writer.len(), wanted.len() as u64);
    }
    let closed = writer.close(b"{}").unwrap();
    assert_eq!(closed.bytes, wanted.len() as u64);
    (wanted, closed.data)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn file_contains_written_bytes(
        actions in actions(), buffers in 2..4_usize, blocks in 1..4_usize, direct: bool, reserve: bool, memory: bool,
    ) {
        let dir = if memory { memory_dir() } else { tempfile::tempdir().unwrap() };
        let options = Options { buffer_bytes: blocks * 4096, buffers, direct, reserve };
        let (wanted, data) = written(dir.path(), &options, &actions, "a");
        prop_assert!(std::fs::read(data).unwrap() == wanted);
    }
}

#[test]
fn writer_is_reusable_and_frees_reserved_space() {
    use std::os::unix::fs::MetadataExt as _;
    for dir in [tempfile::tempdir().unwrap(), memory_dir()] {
        let mut writer = SegmentWriter::new(&small()).unwrap();
        for index in 0..5_u8 {
            writer
                .open(dir.path(), &segment_name(STEM, u64::from(index)))
                .unwrap();
            let bytes = pattern(30_000 + usize::from(index), index);
            writer.write(&bytes).unwrap();
            if index == 3 {
                let partial = writer.keep_partial().unwrap();
                assert!(bytes.starts_with(&std::fs::read(partial).unwrap()));
                continue;
            }
            let closed = writer.close(&meta(bytes.len())).unwrap();
            assert!(std::fs::read(&closed.data).unwrap() == bytes);
            let blocks = std::fs::metadata(&closed.data).unwrap().blocks();
            assert!(
                blocks * 512 <= 64 << 10,
                "{blocks} blocks of 512 B for {} B",
                bytes.len()
            );
        }
    }
}
