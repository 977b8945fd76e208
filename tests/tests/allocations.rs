//! Checks that the data threads of a running pipeline allocate no memory.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use daq_core::config::{Diagnostics, Document};
use daq_core::ledger::CounterFile;
use daq_core::plan::{Config, PlanContext, resolve};
use daq_core::topology::Topology;
use daq_pipelines::registry;
use daq_pipelines::runtime::{Options, Pipeline};
use daq_testkit::allocations::ObservedAllocator;
use daq_testkit::wait_for;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of threads with their own counter.
const THREADS: usize = 64;

thread_local! {
    /// Index of this thread's counter plus 1; `usize::MAX` if this is not a data thread; 0 if not determined yet.
    static THREAD_INDEX: Cell<usize> = const { Cell::new(0) };
}

static ARMED: AtomicBool = AtomicBool::new(false);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(0);
static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
/// Names of the threads, 16 bytes each.
static NAMES: [[AtomicU64; 2]; THREADS] = [const { [const { AtomicU64::new(0) }; 2] }; THREADS];

/// Counts an allocation of a data thread, which is called `daq-…` (except `daq-monitor`).
fn count() {
    if !ARMED.load(Ordering::Relaxed) {
        return;
    }
    // The thread-local counter no longer exists while a thread ends; such allocations are not counted.
    let _ = THREAD_INDEX.try_with(|index| {
        if index.get() == 0 {
            let mut name = [0_u8; 16];
            // SAFETY: PR_GET_NAME writes at most 16 bytes, including the final zero, and `name` has 16 bytes.
            unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
            // The monitor is not on the data path. It builds a report from the counters five times per second, and
            // takes no lock that a data thread takes (`pipelines/src/runtime/monitor.rs`).
            // The threads `daq-stream-…` connect streams, and do not handle frames.
            if name.starts_with(b"daq-")
                && !name.starts_with(b"daq-monitor")
                && !name.starts_with(b"daq-stream-")
            {
                let mine =
                    usize::try_from(NEXT_THREAD.fetch_add(1, Ordering::Relaxed)).unwrap_or(THREADS);
                index.set(mine + 1);
                if let Some(entry) = NAMES.get(mine) {
                    for (half, bytes) in entry.iter().zip(name.as_chunks::<8>().0) {
                        half.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                    }
                }
            } else {
                index.set(usize::MAX);
            }
        }
        if let Some(counter) = COUNTS.get(index.get().wrapping_sub(1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
}

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator::new(count);

/// Returns the number of allocations since the last call, by the name of the thread.
fn counted() -> Vec<(String, u64)> {
    let names = NAMES.iter().map(|halves| {
        let bytes: Vec<u8> = halves
            .iter()
            .flat_map(|half| half.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned()
    });
    let counts = COUNTS.iter().map(|count| count.swap(0, Ordering::Relaxed));
    names.zip(counts).filter(|(_, count)| *count > 0).collect()
}

const PIPELINE: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
samples = { type = "int16", complex = true, channels = 2, rate = "1 MHz" }
noise = 0.1
packet = 1024
pace = "160 Mbit/s"
backpressure = BACKPRESSURE

[source.adc.faults]
loss = 0.01
loss_burst = 3.0
late = 0.002
duplicate = 0.01
reorder = 0.01
corrupt_header = 0.002
corrupt_payload = 0.002

[ring.raw]
slot = "16 KiB"
slots = 32

[kernel.floats]
use = "convert"
input = "raw"
output = "float"

[ring.float]
slots = 32

[kernel.spectrum]
use = "power-spectrum"
input = "float"
output = "spectra"
size = 500
integrate = 7

[ring.spectra]

[kernel.health]
use = "stats"
input = "raw"
output = "statistics"

[ring.statistics]

[sink.spectra-out]
driver = "null"
input = "spectra"
touch = true

[sink.health-out]
driver = "null"
input = "statistics"

[sink.overrun]
driver = "null"
input = "raw"
guarantee = false
delay = "40 ms"
burst = 1

[sink.disk]
driver = "file"
input = "raw"
path = "out"
buffer = "64 KiB"

[sink.remote]
driver = "stream"
transport = "tcp"
connections = 2
input = "raw"
to = "127.0.0.1:PORT"

[source.link]
driver = "stream"
transport = "tcp"
connections = 2
listen = "127.0.0.1:PORT"
ring = "copied"
packets_per_frame = 16

[ring.copied]
slot = "16 KiB"
slots = 32

[sink.copied-out]
driver = "null"
input = "copied"
"#;

/// Runs the pipeline. Counts the allocations during `frames` frames, which follow the first hundred frames.
fn run(text: &str, frames: u64) -> Vec<(String, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let config = Config::read(&document, &registry(), "alloc", &mut diagnostics);
    let around = PlanContext::default();
    let plan = resolve(&config, &Topology::detect(), &around, &mut diagnostics);
    let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(document.sources(), false)));
    let options = Options {
        startup: std::sync::Arc::default(),
        profiles: std::collections::BTreeMap::new(),
        directory: dir.path().to_owned(),
        counter_file: CounterFile::in_memory(),
        history: None,
        drain: Duration::from_secs(2),
    };
    let pipeline = Pipeline::start(&config, &plan, &options).unwrap();
    let published = |ring: &str| pipeline.published(ring).unwrap();
    // The first frames open files and initialise thread state. So every thread must have processed some frames before
    // counting.
    wait_for("the first frames", || {
        let report = pipeline.report();
        let all_read = report.readers.values().all(|reader| reader.read > 0);
        (all_read && published("raw") > 100 && published("spectra") > 20).then_some(())
    });
    counted();
    ARMED.store(true, Ordering::SeqCst);
    let from = published("raw");
    wait_for("frames", || {
        (published("raw") >= from + frames).then_some(())
    });
    let overrun = || pipeline.report().readers["overrun"].overrun;
    wait_for("an overrun", || (overrun() > 0).then_some(()));
    ARMED.store(false, Ordering::SeqCst);
    let counted = counted();
    pipeline.stop();
    wait_for("the end", || pipeline.is_finished().then_some(()));
    let (report, mut failures) = pipeline.finish();
    // Both ends of the stream stop at the same time, so the sink may lose its receiver before its last frames.
    failures.retain(|failure| failure.component != "sink `remote`");
    assert_eq!((report.violations(), failures), (Vec::new(), Vec::new()));
    assert!(
        report.sources["adc"].lost_total() > 0 && report.readers["overrun"].overrun > 0,
        "{report:#?}"
    );
    assert_eq!(
        report.sinks["disk"].files, 1,
        "at least one file must be rotated while allocations are counted"
    );
    counted
}

// This binary has only this test, because the allocations of a concurrent test would be counted too.
#[test]
fn data_threads_when_running_allocate_nothing() {
    // First check that the counter works, separately for each thread.
    ARMED.store(true, Ordering::SeqCst);
    let allocate = |name: &str| {
        let body = || drop(std::hint::black_box(vec![1_u8; 100]));
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .unwrap()
            .join()
            .unwrap();
    };
    allocate("daq-proof");
    allocate("other");
    ARMED.store(false, Ordering::SeqCst);
    let proof = counted();
    assert!(
        matches!(&proof[..], [(name, count)] if name == "daq-proof" && *count > 0),
        "{proof:?}"
    );

    for hold in ["true", "false"] {
        let port = daq_testkit::free_tcp_port().to_string();
        let text = PIPELINE.replace("BACKPRESSURE", hold);
        assert_eq!(
            run(&text.replace("PORT", &port), 1000),
            [],
            "backpressure = {hold}"
        );
    }
}
