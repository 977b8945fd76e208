//! Recordings whose files are removed, moved or replaced while daq writes them.

use daq_testkit::{Daq, Outcome, assert_contains};
use std::path::{Path, PathBuf};

/// Runs a pipeline with a sink `disk`, calls `remove` with its directory when the sink has accepted frames, and waits for the
/// end of the run.
fn run(driver: &str, remove: impl Fn(&Path)) -> Outcome {
    let daq = Daq::new(&format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"sim\"\nring = \"raw\"\npacket = \"4 KiB\"\npace = \"20 Mbit/s\"\n\
         samples = {{ type = \"int16\" }}\n\
         [ring.raw]\nmemory = \"host\"\nslot = \"16 KiB\"\nslots = 64\n\
         [sink.disk]\ndriver = \"{driver}\"\ninput = \"raw\"\npath = \"out\"\n"
    ));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    live.wait_count("sinks.disk.frames", 10);
    remove(&daq.path("out"));
    live.wait()
}

/// Returns the only path in `directory` whose name ends in `suffix`.
fn only(directory: &Path, suffix: &str) -> PathBuf {
    let entries = directory.read_dir().unwrap();
    let mut found = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix));
    let path = found.next().unwrap();
    assert_eq!(found.next(), None);
    path
}

/// Checks that the run has failed, and that all its frames count as lost.
fn assert_lost(outcome: &Outcome, parts: &[&str], what: &str) {
    assert_eq!(outcome.code, 74, "{what}: {}", outcome.stderr);
    for part in parts {
        assert_contains!(outcome.stderr => "sink `disk`", part; "{what}");
    }
    let frames = outcome.count("sinks.disk.frames");
    assert!(frames >= 10, "{what}: {:#}", outcome.report);
    assert_eq!(
        outcome.count("sinks.disk.lost"),
        frames,
        "{what}: {}",
        outcome.stderr
    );
}

#[test]
fn removed_file_ends_the_run_and_all_its_frames_count_as_lost() {
    let partial = ".sigmf-data.partial";
    let outcome = run("file", |out| {
        std::fs::remove_file(only(out, partial)).unwrap();
    });
    assert_lost(&outcome, &["was removed or moved", "clean-up jobs"], "file");
    let outcome = run("file", |out| std::fs::remove_dir_all(out).unwrap());
    assert_lost(&outcome, &["was removed or moved"], "directory");
    // Another file of the same name is not the recording.
    let outcome = run("file", |out| {
        let path = only(out, partial);
        std::fs::rename(&path, out.join("moved")).unwrap();
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    });
    assert_lost(&outcome, &["another file has replaced"], "replaced");
}

#[test]
fn removed_store_ends_the_run_and_all_its_frames_count_as_lost() {
    let outcome = run("zarr", |out| {
        std::fs::remove_dir_all(only(out, ".zarr")).unwrap();
    });
    assert_lost(&outcome, &["was removed or moved"], "store");
}
