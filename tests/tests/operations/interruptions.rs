//! Tests unplanned ends: kills, signals, ports in use, full disks.

use daq_drivers::sim::verify;
use daq_testkit::{
    Daq, Outcome, Random, assert_contains, assert_counts, files, ledger, small_disk, this_test,
    wait_for, wait_until,
};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes per frame.
const FRAME: u64 = 8192;
/// Number of frames per burst of a sink, the default.
const BURST: u64 = 16;

/// A counter source with 40 MB/s, recorded in files of 256 KiB.
const RECORDING: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
pattern = "counter"
packet = 1024
pace = "320 Mbit/s"
backpressure = true

[ring.raw]
slot = 8192
slots = 256

[sink.disk]
driver = "file"
input = "raw"
path = "out"
segment = "256 KiB"
buffer = "32 KiB"

[http]
listen = "127.0.0.1:0"
"#;

fn meta(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap();
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{} is incomplete or damaged: {error}", path.display()))
}

fn data_of(meta: &Path) -> PathBuf {
    PathBuf::from(meta.to_str().unwrap().replace(".sigmf-meta", ".sigmf-data"))
}

/// Returns the number in the name of a segment.
fn index(path: &Path) -> u64 {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.strip_prefix("disk-")
        .unwrap()
        .split('.')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// Maximum number of partial files after a kill. It is 1, because the next segment is opened after the previous one is
/// complete.
const PARTIALS: usize = 1;

/// Checks all files of one run. `from` is the number of its first segment, and `sent` the number of bytes after which
/// the stream ended. Returns the next segment number, and the number of bytes in complete segments.
fn check_remains(dir: &Path, from: u64, sent: u64) -> (u64, u64) {
    let of_run = |suffix| {
        files(dir, suffix)
            .into_iter()
            .filter(move |path| index(path) >= from)
    };
    let (mut next, mut at) = (from, 0);
    for path in of_run(".sigmf-meta") {
        assert_eq!(
            index(&path),
            next,
            "a segment is missing before {}",
            path.display()
        );
        let (meta, data) = (meta(&path), std::fs::read(data_of(&path)).unwrap());
        assert_eq!(
            meta["global"]["daq:bytes"],
            data.len(),
            "{}",
            path.display()
        );
        assert_eq!(
            meta["global"]["daq:frames"].as_u64().unwrap() * FRAME,
            data.len() as u64
        );
        assert_eq!(meta["captures"].as_array().unwrap().len(), 1, "{meta:#}");
        assert_eq!(
            meta["captures"][0]["daq:sequence"].as_u64().unwrap() * FRAME,
            at
        );
        let differs = verify(&data, at).filter(|differs| *differs < sent);
        assert_eq!(differs, None, "{}", path.display());
        at += data.len() as u64;
        next += 1;
    }
    let whole = at;
    // Uncommitted data continues where the committed data ends. Each uncommitted file is a prefix of its segment's
    // data.
    let mut open: Vec<_> = of_run(".partial")
        .chain(of_run(".sigmf-data").filter(|path| index(path) >= next))
        .collect();
    open.sort_by_key(|path| index(path));
    for path in &open {
        let data = std::fs::read(path).unwrap();
        assert_eq!(index(path), next, "{open:?}");
        // Only a clean end truncates preallocated space, so zeros may follow the written data.
        let written = verify(&data, at).map_or(data.len() as u64, |differs| differs - at);
        let rest = &data[usize::try_from(written / 8 * 8).unwrap()..];
        assert!(rest.iter().all(|byte| *byte == 0), "{}", path.display());
        at += 256 << 10;
        next += 1;
    }
    assert!(of_run(".partial").count() <= PARTIALS, "{open:?}");
    (next, whole)
}

/// Returns the number that follows `key` in the log line of the next start about `component`.
fn message(stderr: &str, component: &str, key: &str) -> u64 {
    let line = stderr
        .lines()
        .find(|line| line.contains(&format!("  {component}: ")));
    let line =
        line.unwrap_or_else(|| panic!("the log must contain a line about {component}:\n{stderr}"));
    let after = line
        .split(&format!("{key} "))
        .nth(1)
        .unwrap_or_else(|| panic!("no {key} in {line}"));
    after
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn kill_at_any_time_leaves_intact_segments_and_is_reported() {
    let daq = Daq::new(RECORDING);
    let out = daq.path("out");
    let mut random = Random(u64::from(std::process::id()));
    println!("seed {}", random.0);
    let (mut from, mut before) = (0, None);
    for run in 0..14 {
        let mut live = daq.spawn(&[]);
        // Every fifth run is killed during startup.
        if run % 5 != 4 {
            live.address();
        }
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
        assert!(live.is_running(), "{}", live.stderr());
        let stderr = live.kill();
        let started = stderr.contains("serving http://");
        if let Some(whole) = before
            && started
        {
            assert!(stderr.contains("did not end cleanly"), "{stderr}");
            // A frame is published before it is counted as delivered, and a burst is written before it is counted. The
            // kill may have happened in between.
            let (delivered, bytes) = (
                message(&stderr, "source.adc", "delivered"),
                message(&stderr, "sink.disk", "bytes"),
            );
            assert!(
                delivered * 1024 + FRAME >= bytes && bytes + BURST * FRAME >= whole,
                "the log reports {delivered} packets and {bytes} bytes, but the files contain {whole} bytes"
            );
        }
        let (next, whole) = check_remains(&out, from, u64::MAX);
        // If the run was killed before it counted anything, nothing is logged about its counters.
        before = (started && whole > 0).then_some(whole);
        from = next;
    }
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk.bytes", 1);
    let outcome = live.stop().ok();
    if before.is_some() {
        assert_contains!(outcome.stderr => "did not end cleanly");
    }
    let (next, whole) = check_remains(&out, from, outcome.count("sources.adc.bytes"));
    assert_eq!(whole, outcome.count("sinks.disk.bytes"));
    assert_eq!(next - from, outcome.count("sinks.disk.files"));
    assert!(next > from);
    // A clean end must not be logged.
    let outcome = daq.run(&["--for", "50ms"]).ok();
    assert_contains!(outcome.stderr => !"did not end cleanly");
}

#[test]
fn first_signal_drains_rings() {
    for signal in [Signal::INT, Signal::TERM] {
        let text = RECORDING.to_owned()
            + "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"3 ms\"\n";
        let daq = Daq::new(&text);
        let mut live = daq.spawn(&[]);
        live.wait_count("rings.raw.published", 100);
        live.signal(signal);
        let outcome = live.wait().ok();
        assert!(outcome.stderr.contains("stopping"), "{}", outcome.stderr);
        let published = outcome.count("rings.raw.published");
        assert_eq!(outcome.count("readers.slow.read"), published);
        assert_eq!(outcome.count("readers.disk.read"), published);
        let (_, whole) = check_remains(&daq.path("out"), 0, outcome.count("sources.adc.bytes"));
        assert_eq!(whole, published * FRAME);
    }
}

/// A sink that is slow but makes progress does not extend the drain time, and the first signal during a stop that daq began
/// itself is logged.
#[test]
fn drain_time_limits_slow_sink_and_signal_is_logged() {
    let text =
        RECORDING.to_owned() + "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"1 s\"\n";
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&["--for", "100 ms", "--drain", "5 s"]);
    live.wait_log("stopping: draining rings (at most 5 s)");
    live.signal(Signal::TERM);
    live.wait_log("SIGTERM: stopping");
    let outcome = live.wait();
    assert_eq!(outcome.code, 74, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "increase `--drain`");
    let (read, dropped) = (
        outcome.count("readers.slow.read"),
        outcome.count("sinks.slow.dropped"),
    );
    assert!(dropped > 0, "{read} frames were read");
    assert_counts!(outcome, "readers.slow" => pending: 0);
}

#[test]
fn second_signal_exits_immediately() {
    let text =
        RECORDING.to_owned() + "[sink.slow]\ndriver = \"null\"\ninput = \"raw\"\ndelay = \"1 h\"\n";
    let daq = Daq::new(&text);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    live.interrupt();
    live.wait_log("stopping");
    // A signal shortly after the first one is the same request.
    wait_until("the end", || {
        live.interrupt();
        !live.is_running()
    });
    let outcome = live.wait();
    assert_eq!(
        (outcome.code, &outcome.report),
        (130, &Value::Null),
        "{}",
        outcome.stderr
    );
    // The run did not end cleanly, which the next start must log.
    let outcome = daq
        .run(&["--for", "50ms", "--set", "sink.slow.delay=0 s"])
        .ok();
    assert_contains!(outcome.stderr => "did not end cleanly");
}

/// `timeout` of coreutils signals its child, and then the process group of both.
#[test]
fn signal_that_arrives_twice_stops_the_run_once() {
    let daq = Daq::new(RECORDING);
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    // Two signals of the same kind can arrive as one. The stopped process receives both at the same time.
    for signal in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        live.signal(signal);
    }
    let _ = live.wait().ok();
    assert!(!files(&daq.path("out"), "").is_empty());
    assert!(files(&daq.path("out"), ".partial").is_empty());
}

#[test]
fn http_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let daq = Daq::new(RECORDING);
    let outcome = daq.run(&["--set", &format!("http.listen={address}")]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => &address, "error: ");
    // Nothing was started, so nothing was recorded.
    assert_eq!(outcome.report, Value::Null);
    assert!(
        files(&daq.path("out"), "").is_empty(),
        "{:?}",
        files(&daq.path("out"), "")
    );
    drop(taken);
    let outcome = daq.run(&["--for", "50ms"]).ok();
    assert_contains!(outcome.stderr => !"did not end cleanly");
}

#[test]
fn source_port_in_use_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let source = format!(
        "[source.net]\ndriver = \"udp\"\nlisten = \"{address}\"\nring = \"packets\"\n\
         format = {{ kind = \"raw\", header = 16, payload = 1024, sequence = {{ offset = 0, bytes = 8 }} }}\n\
         [ring.packets]\n"
    );
    let outcome = Daq::new(&(source + RECORDING)).run(&[]);
    assert_eq!(
        (outcome.code, &outcome.report),
        (69, &Value::Null),
        "{}",
        outcome.stderr
    );
    assert_contains!(outcome.stderr => &address, "source `net`");
}

#[test]
fn concurrent_runs_of_one_pipeline_are_rejected() {
    let daq = Daq::new(RECORDING);
    let mut first = daq.spawn(&[]);
    first.wait_count("sinks.disk.bytes", 1 << 20);
    let second = daq.run(&["--for", "50ms"]);
    assert_eq!(second.code, 74, "{}", second.stderr);
    let message = format!("locked by another writer (pid {})", first.pid());
    assert_contains!(second.stderr =>
        &message, "out/disk-*", "counters of this run stay in memory"
    );
    let outcome = first.stop().ok();
    let (_, whole) = check_remains(&daq.path("out"), 0, outcome.count("sources.adc.bytes"));
    assert_eq!(whole, outcome.count("sinks.disk.bytes"));
}

#[test]
fn output_lock_rejects_second_run_until_first_is_killed() {
    let daq = Daq::new(RECORDING);
    // Simulate a process that has closed a segment and has not yet opened the next one.
    let path = daq.write("out/.disk.lock", "4242\n");
    let lock = std::fs::File::open(&path).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let refused = daq.run(&["--for", "50ms"]);
    assert_eq!(
        (refused.code, &refused.report),
        (74, &Value::Null),
        "{}",
        refused.stderr
    );
    assert_contains!(refused.stderr => "locked by another writer (pid 4242)");
    assert_eq!(files(&daq.path("out"), ""), [path]);
    // This is the state after a kill. The lock is released explicitly, because a process that another test starts may
    // hold the file for a moment.
    flock(&lock, FlockOperation::Unlock).unwrap();
    let outcome = daq.run(&["--for", "50ms"]).ok();
    check_remains(&daq.path("out"), 0, outcome.count("sources.adc.bytes"));
    assert!(files(&daq.path("out"), ".lock").is_empty());
}

#[test]
fn output_directory_not_creatable_is_named() {
    let daq = Daq::new(RECORDING);
    daq.write("file", "");
    let outcome = daq.run(&["--set", "sink.disk.path=file/out"]);
    assert_eq!(
        (outcome.code, &outcome.report),
        (74, &Value::Null),
        "{}",
        outcome.stderr
    );
    assert_contains!(outcome.stderr => "file/out", "`disk`");
}

/// Returns a run that records 5 MB/s on a disk with 4 MiB of free space, and the file that fills the rest of the disk.
/// Without that file, there is space for many seconds.
fn almost_full(dir: &Path, guarantee: bool) -> (Daq, PathBuf) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1; 60 << 20]).unwrap();
    let text = RECORDING
        .replace("320 Mbit/s", "40 Mbit/s")
        .replace(
            "segment = \"256 KiB\"",
            &format!("segment = \"1 MiB\"\nguarantee = {guarantee}"),
        )
        .replace(
            "path = \"out\"",
            &format!("path = \"{}/out\"", dir.display()),
        );
    (Daq::new(&text), ballast)
}

/// Returns the numbers of all frames in committed segments. Checks that all frames are complete, except for the last
/// one, which the end of the stream has cut.
fn frames_on_disk(dir: &Path, outcome: &Outcome) -> Vec<u64> {
    let sent = outcome.count("sources.adc.bytes");
    let mut numbers = Vec::new();
    for path in files(&dir.join("out"), ".sigmf-meta") {
        let (meta, data) = (meta(&path), std::fs::read(data_of(&path)).unwrap());
        assert_eq!(meta["global"]["daq:bytes"], data.len());
        for frame in data.chunks(8192) {
            let number = u64::from_le_bytes(frame[..8].try_into().unwrap()) * 8 / FRAME;
            let differs = verify(frame, number * FRAME).filter(|differs| *differs < sent);
            assert_eq!(differs, None, "{}", path.display());
            numbers.push(number);
        }
    }
    assert!(files(&dir.join("out"), ".partial").is_empty());
    numbers
}

#[test]
fn disk_full_with_guarantee_applies_backpressure() {
    let Some(dir) = small_disk(this_test!(), "64m") else {
        return;
    };
    let (daq, ballast) = almost_full(&dir, true);
    let mut live = daq.spawn(&[]);
    live.wait_log("; blocking the ring until the sink continues");
    // The ring becomes full and the source waits, so nothing is lost.
    let report = wait_for("a full ring after the disk is full", || {
        let report = live.report();
        let held = ledger::count(&report, "rings.raw.high_water") >= 256;
        (held && report["sinks"]["disk"]["full"] == true).then_some(report)
    });
    assert_eq!(ledger::lost(&report, "adc"), 0, "{report:#}");
    assert_eq!(live.get("/-/healthy").code, 200);
    std::fs::remove_file(ballast).unwrap();
    live.wait_log("accepts frames again");
    let outcome = live.stop().ok();
    assert_eq!(ledger::lost(&outcome.report, "adc"), 0);
    assert_counts!(outcome, "sinks.disk" => dropped: 0);
    assert_counts!(outcome, "rings.raw" => ring_full: 0);
    let published = outcome.count("rings.raw.published");
    assert_eq!(
        frames_on_disk(&dir, &outcome),
        (0..published).collect::<Vec<_>>()
    );
}

#[test]
fn disk_full_without_guarantee_counts_drops() {
    let Some(dir) = small_disk(this_test!(), "64m") else {
        return;
    };
    let (daq, ballast) = almost_full(&dir, false);
    let mut live = daq.spawn(&[]);
    live.wait_log("; dropping frames until the sink continues");
    live.wait_count("sinks.disk.dropped", 100);
    std::fs::remove_file(ballast).unwrap();
    live.wait_log("accepts frames again");
    let frames = ledger::count(&live.report(), "sinks.disk.frames");
    live.wait_count("sinks.disk.frames", frames + 10);
    let outcome = live.stop().ok();
    let dropped = outcome.count("sinks.disk.dropped");
    assert_eq!(outcome.count("readers.disk.discarded"), dropped);
    assert_eq!(
        ledger::lost(&outcome.report, "adc"),
        0,
        "the sink must not block the ring"
    );
    let numbers = frames_on_disk(&dir, &outcome);
    assert_eq!(numbers.len() as u64, outcome.count("sinks.disk.frames"));
    // If this machine is busy, frames may be overwritten before the sink reads them.
    let overrun = outcome.count("readers.disk.overrun");
    assert_eq!(
        numbers.len() as u64 + dropped + overrun,
        outcome.count("rings.raw.published")
    );
    assert!(numbers.is_sorted_by(|a, b| a < b));
    // The metadata must contain the gap and its cause.
    let metas: Vec<_> = files(&dir.join("out"), ".sigmf-meta")
        .iter()
        .map(|path| meta(path))
        .collect();
    let annotations = metas
        .iter()
        .flat_map(|meta| meta["annotations"].as_array().unwrap());
    let missing = annotations.filter(|a| a.to_string().contains("disk_full"));
    let missing: u64 = missing
        .map(|a| a["daq:missing_frames"].as_u64().unwrap())
        .sum();
    assert!(
        (dropped..=dropped + overrun).contains(&missing),
        "{missing} frames are annotated as missing, expected {dropped} to {dropped} + {overrun}: {metas:#?}"
    );
}

#[test]
fn disk_full_at_stop_does_not_block_exit() {
    let Some(dir) = small_disk(this_test!(), "64m") else {
        return;
    };
    let (daq, _) = almost_full(&dir, true);
    let mut live = daq.spawn(&["--drain", "300ms"]);
    live.wait_log("; blocking the ring until the sink continues");
    live.wait_count("rings.raw.high_water", 256);
    let outcome = live.stop();
    assert_eq!(outcome.code, 74, "{}", outcome.stderr);
    let message = "error: sink `disk`: ";
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
    let (frames, dropped) = (
        outcome.count("sinks.disk.frames"),
        outcome.count("sinks.disk.dropped"),
    );
    assert!(dropped > 0, "{:#}", outcome.report);
    assert_counts!(outcome, "readers.disk" => discarded: dropped, pending: 0);
    assert_eq!(
        frames_on_disk(&dir, &outcome),
        (0..frames).collect::<Vec<_>>()
    );
}
