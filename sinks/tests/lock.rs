//! Checks that a stem never has more than one writer.
//!
//! No test in this file may start a process. Between fork and exec, the child would hold every lock of this process.

use crate::support::{Feed, Sent, context, layout, spec};
use daq_core::frame::FrameMeta;
use daq_core::layout::Scalar;
use daq_core::sink::{Sink, SinkError};
use daq_sinks::lock::{LockError, StemLock};
use daq_testkit::assert_contains;
use daq_testkit::names;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const LOCK: &str = ".adc.lock";

fn build(driver: &str, dir: &Path) -> Result<Box<dyn Sink>, SinkError> {
    let context = context(dir, "adc", layout(Scalar::Int8, false, 1, 100), 0, 0);
    spec(driver, "adc", "path = \".\"").unwrap().build(context)
}

/// Returns the reason why a sink was not built.
fn refusal(driver: &str, dir: &Path) -> (String, String) {
    match build(driver, dir) {
        Err(SinkError::Failed { what, why }) => (what, why),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a second writer of the same stem was accepted"),
    }
}

fn give(sink: &mut dyn Sink, sequence: u64) {
    let frame = Sent {
        meta: FrameMeta::whole(sequence, 100),
        bytes: vec![7; 100],
        present: Vec::new(),
    };
    Feed::new(8, 100, 0).give(sink, &[frame]);
}

#[test]
fn stem_of_other_process_is_rejected_between_its_files() {
    for driver in ["file", "zarr"] {
        let dir = tempfile::tempdir().unwrap();
        // Another process has closed one segment and has not begun the next one.
        for name in ["adc-000000.sigmf-data", "adc-000000.sigmf-meta"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let other = File::create(dir.path().join(LOCK)).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        for (text, message) in [
            ("4242\n", "locked by another writer (pid 4242); stop that"),
            ("", "locked by another writer; stop that"),
            ("nonsense", "locked by another writer; stop that"),
        ] {
            std::fs::write(dir.path().join(LOCK), text).unwrap();
            let before = names(dir.path());
            let (what, why) = refusal(driver, dir.path());
            assert!(what.ends_with("/adc-*"), "{what}");
            assert!(
                why.starts_with(message) && why.contains("another `name` or `path` for sink `adc`"),
                "{why}"
            );
            assert_eq!(names(dir.path()), before, "the files must not change");
        }
        drop(other);
        let mut sink = build(driver, dir.path()).unwrap();
        sink.finish().unwrap();
    }
}

#[test]
fn sink_locks_stem_for_its_lifetime() {
    for (driver, other) in [("file", "zarr"), ("zarr", "file")] {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = build(driver, dir.path()).unwrap();
        let pid = std::fs::read_to_string(dir.path().join(LOCK)).unwrap();
        assert_eq!(pid, format!("{}\n", std::process::id()));
        // Before the first frame, between two frames, and after the last frame.
        for step in 0..3 {
            for driver in [driver, other] {
                let (_, why) = refusal(driver, dir.path());
                assert_contains!(why => "another sink of this process, or a process in another");
            }
            match step {
                0 => give(&mut *sink, 0),
                1 => sink.finish().unwrap(),
                _ => {}
            }
        }
        drop(sink);
        assert!(!names(dir.path()).contains(&LOCK.to_owned()));
        drop(build(other, dir.path()).unwrap());
    }
}

#[test]
fn lock_of_killed_process_is_released() {
    for driver in ["file", "zarr"] {
        let dir = tempfile::tempdir().unwrap();
        // A longer process ID in the file must be overwritten completely.
        std::fs::write(dir.path().join(LOCK), "4294967295\n").unwrap();
        let sink = build(driver, dir.path()).unwrap();
        let pid = std::fs::read_to_string(dir.path().join(LOCK)).unwrap();
        assert_eq!(pid, format!("{}\n", std::process::id()));
        drop(sink);
        assert!(!names(dir.path()).contains(&LOCK.to_owned()));
    }
}

#[test]
fn stems_and_directories_are_locked_separately() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _held = StemLock::take(one.path(), "adc").unwrap();
    StemLock::take(one.path(), "adc-raw").unwrap();
    StemLock::take(two.path(), "adc").unwrap();
}

#[test]
fn lock_removed_manually_is_not_removed_from_next_holder() {
    let dir = tempfile::tempdir().unwrap();
    let first = StemLock::take(dir.path(), "adc").unwrap();
    std::fs::remove_file(dir.path().join(LOCK)).unwrap();
    let second = StemLock::take(dir.path(), "adc").unwrap();
    drop(first);
    let third = StemLock::take(dir.path(), "adc");
    assert!(matches!(third, Err(LockError::Held { .. })), "{third:?}");
    drop(second);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn lock_file_that_is_symlink_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, dir.path().join(LOCK)).unwrap();
    let (_, why) = refusal("file", dir.path());
    assert_contains!(why => LOCK, "remove the link");
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious");
}

#[test]
fn lock_under_contention_has_one_holder() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, taken) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < 2000 {
                    match StemLock::take(dir.path(), "adc") {
                        Ok(lock) => {
                            assert!(
                                !inside.swap(true, Ordering::SeqCst),
                                "two threads hold the lock"
                            );
                            std::thread::yield_now();
                            inside.store(false, Ordering::SeqCst);
                            drop(lock);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(LockError::Held { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(names(dir.path()).is_empty());
}
