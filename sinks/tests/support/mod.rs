//! Shared parts of the sinks' tests: a ring that feeds a sink, a small disk, a Python interpreter, and a process to
//! kill.

#![allow(clippy::unwrap_used, dead_code)]

use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::frame::FrameMeta;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::ledger::{ReaderLedger, RingLedger, SinkLedger};
use daq_core::notify::Wait;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Completion, Producer, Reader, Ring, RingOptions};
use daq_core::sink::{Sink, SinkContext, SinkError, SinkSpec};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// All number types.
pub const SCALARS: [Scalar; 6] = [
    Scalar::Int8,
    Scalar::Uint8,
    Scalar::Int16,
    Scalar::Int32,
    Scalar::Float32,
    Scalar::Float64,
];

/// Time after which an operation counts as hanging.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Waits until `look` returns true; panics with `what` after [`TIMEOUT`].
pub fn wait_for(what: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the names in `dir`, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A process of this test's executable that runs the test `writer_process` in `dir`.
pub struct Writer(Child);

impl Writer {
    pub fn start(dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_process", "--ignored"])
            .env("DAQ_KILL_DIR", dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Returns the directory that this process must write to, if it is a writer process.
    pub fn dir() -> Option<PathBuf> {
        std::env::var_os("DAQ_KILL_DIR").map(PathBuf::from)
    }

    /// Kills the process, which must still be running, and waits until it has ended.
    pub fn kill(mut self) {
        let ended = self.0.try_wait().unwrap();
        assert_eq!(ended, None, "the writer ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Reads the section `[sink.NAME]` of `driver` with `keys`. Returns errors as text.
pub fn spec(driver: &str, name: &str, keys: &str) -> Result<Box<dyn SinkSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let text = format!("[sink.{name}]\n{keys}\n");
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    let mut section = document.sections("sink").remove(0);
    let entry = daq_sinks::SINKS
        .iter()
        .find(|entry| entry.name == driver)
        .unwrap();
    let spec = (entry.parse)(&mut section, &Registry::default(), &mut diagnostics);
    if diagnostics.is_empty() {
        Ok(spec.unwrap())
    } else {
        Err(diagnostics.render(document.sources(), false))
    }
}

/// Returns the layout of frames with `points` samples over time.
pub fn layout(scalar: Scalar, complex: bool, channels: u32, points: usize) -> Layout {
    Layout {
        scalar,
        complex,
        channels,
        points,
        order: Order::Interleaved,
        axis: Axis::Time { rate: Some(1e6) },
        frame_rate: Some(1e6 / points as f64),
    }
}

pub fn context(
    dir: &Path,
    name: &str,
    layout: Layout,
    packets_per_frame: u32,
    packet_bytes: usize,
) -> SinkContext {
    SinkContext {
        pipeline: "test".into(),
        name: name.into(),
        ring: "raw".into(),
        slot_bytes: layout.frame_bytes(),
        memory: Region::host(layout.frame_bytes().max(1), HostOptions::default()).unwrap(),
        nic: None,
        copied: false,
        wait: Wait::Event,
        layout,
        packets_per_frame,
        first_bytes: packet_bytes,
        packet_bytes,
        directory: dir.to_owned(),
        ledger: SinkLedger::default(),
    }
}

/// One frame for a sink: its metadata, its payload and its packet bitmap.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub meta: FrameMeta,
    pub bytes: Vec<u8>,
    pub present: Vec<u64>,
}

/// Creates a ring with `slots` slots in host memory, and its producer.
pub fn ring(slots: usize, slot_bytes: usize) -> (Ring, Producer) {
    let options = RingOptions::new("raw", slots, slot_bytes);
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    Ring::new(region, options, RingLedger::default()).unwrap()
}

/// A ring with one reader that has a guarantee.
pub struct Feed {
    producer: Producer,
    reader: Reader,
}

impl Feed {
    pub fn new(slots: usize, slot_bytes: usize, packets_per_frame: u32) -> Self {
        let options = RingOptions {
            packets_per_frame,
            ..RingOptions::new("raw", slots, slot_bytes)
        };
        let region = Region::host(
            options.region_bytes(),
            HostOptions {
                lock: false,
                ..HostOptions::default()
            },
        )
        .unwrap();
        let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
        let reader = ring.attach(true, slots, ReaderLedger::default()).unwrap();
        Self { producer, reader }
    }

    /// Publishes `frames`, which must fit into the ring.
    pub fn publish(&mut self, frames: &[Sent]) {
        let mut slots = self.producer.reserve(frames.len());
        assert_eq!(slots.remaining(), frames.len());
        for frame in frames {
            slots.bytes_mut().unwrap()[..frame.bytes.len()].copy_from_slice(&frame.bytes);
            slots.finish_with(frame.meta, &frame.present);
        }
        slots.publish();
    }

    /// Offers every published frame once, in bursts of at most `burst` frames. Frames that are not accepted are
    /// dropped. Returns the number of accepted frames and the first error.
    pub fn offer(&mut self, sink: &mut dyn Sink, burst: usize) -> (usize, Result<(), SinkError>) {
        let (mut total, mut first) = (0, Ok(()));
        while let Some(lease) = self.reader.poll(burst) {
            let mut taken = 0;
            while taken < lease.len() {
                match sink.consume(&lease, taken) {
                    Ok(frames) => taken += frames,
                    Err(error) => {
                        first = first.and(Err(error));
                        break;
                    }
                }
            }
            assert!(taken <= lease.len());
            total += taken;
            lease.retire(Completion::Immediate);
        }
        (total, first)
    }

    /// Offers all published frames until they are accepted. Calls `full` whenever the disk is full.
    pub fn insist(&mut self, sink: &mut dyn Sink, burst: usize, mut full: impl FnMut()) {
        while let Some(lease) = self.reader.poll(burst) {
            let mut taken = 0;
            while taken < lease.len() {
                match sink.consume(&lease, taken) {
                    Ok(frames) => taken += frames,
                    Err(SinkError::Full { .. }) => full(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Passes `frames` to the sink, which must accept all of them.
    pub fn give(&mut self, sink: &mut dyn Sink, frames: &[Sent]) {
        for some in frames.chunks(self.producer.options().slots) {
            self.publish(some);
            let (taken, result) = self.offer(sink, 5);
            result.unwrap();
            assert_eq!(taken, some.len());
        }
    }
}

/// Returns a Python interpreter that can import `modules`: `DAQ_TEST_PYTHON`, otherwise `.venv/bin/python` in the
/// repository's root.
pub fn python(modules: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = std::env::var_os("DAQ_TEST_PYTHON")
        .map_or_else(|| root.join(".venv/bin/python"), |path| root.join(path));
    match Command::new(&python)
        .args(["-c", &format!("import {modules}")])
        .output()
    {
        Ok(run) if run.status.success() => Some(python),
        _ => {
            println!(
                "skipped: {} is no python with {modules}; set DAQ_TEST_PYTHON",
                python.display()
            );
            None
        }
    }
}

/// Runs `tests/SCRIPT` with `paths`. Returns the JSON object in each line of its output.
pub fn script(python: &Path, script: &str, paths: &[PathBuf]) -> Vec<serde_json::Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(script);
    let run = Command::new(python)
        .arg(script)
        .args(paths)
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let lines = String::from_utf8(run.stdout).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const MOUNT: &str = r#"mount -t tmpfs -o size=16m daq-test "$0" || exit 90; exec "$@""#;

/// Runs the test `name` again in a child process with a filesystem of 16 MiB. In the child process, returns the
/// directory of that filesystem.
pub fn small_disk(name: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("DAQ_SMALL_DIR") {
        let dir = PathBuf::from(dir).join(name);
        std::fs::create_dir(&dir).unwrap();
        return Some(dir);
    }
    let dir = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    for namespaces in [&["-m"][..], &["-r", "-m"]] {
        let sh = |argv: &[&std::ffi::OsStr]| {
            let mut command = Command::new("unshare");
            command
                .args(namespaces)
                .args(["sh", "-c", MOUNT])
                .arg(dir.path())
                .args(argv);
            command.env("DAQ_SMALL_DIR", dir.path()).output()
        };
        if sh(&["true".as_ref()]).is_ok_and(|probe| probe.status.success()) {
            let run = sh(&[
                exe.as_os_str(),
                "--exact".as_ref(),
                name.as_ref(),
                "--nocapture".as_ref(),
            ])
            .unwrap();
            let (out, err) = (
                String::from_utf8_lossy(&run.stdout),
                String::from_utf8_lossy(&run.stderr),
            );
            assert!(
                run.status.success() && out.contains("1 passed"),
                "{}\n{out}\n{err}",
                run.status
            );
            return None;
        }
    }
    println!("skipped: neither `unshare -m` nor `unshare -rm` may mount a tmpfs here");
    None
}
