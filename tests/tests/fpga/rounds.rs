//! Tests repeated starts and stops. No file or mapping may be leaked, and no device may write to memory that was
//! revoked.

use crate::bytes::Served;
use crate::setup::{SLOT, assert_stream, config, daq, data, host, packets};
use daq_core::config::{Diagnostics, Document};
use daq_core::ledger::CounterFile;
use daq_core::plan::{Config, PlanContext, resolve};
use daq_core::topology::Topology;
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_emulators::vfio_user::Server;
use daq_emulators::{EmulatedDevice, Fault, Host, Identity, Step};
use daq_pipelines::registry;
use daq_pipelines::runtime::{Options, Pipeline};
use daq_testkit::{assert_contains, this_test, wait_for, wait_for_ok};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of rounds between the two counts of resources.
const ROUNDS: u32 = 100;

/// Runs the test `test` in a child process, in which no other code opens files. Returns true in the parent process and
/// false in the child process.
fn alone(test: &str) -> bool {
    daq_testkit::alone(test, |_| (), || ()).is_some()
}

/// The resources of a process: open files, mappings of memory that devices share, and threads.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    files: Vec<String>,
    maps: usize,
    threads: usize,
}

impl Held {
    /// `other` may have been counted before the other end of a socket had closed its files.
    fn has_no_more_than(&self, other: &Self) -> bool {
        self.files.len() <= other.files.len()
            && self.maps <= other.maps
            && self.threads <= other.threads
    }
}

fn held() -> Held {
    let dir = |path: &str| std::fs::read_dir(path).unwrap();
    let mut files: Vec<String> = dir("/proc/self/fd")
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        // Sockets and pipes have varying numbers. The open directory itself is not counted.
        .map(|link| link.to_string_lossy().split(':').next().unwrap().to_owned())
        .filter(|link| !link.starts_with("/proc/"))
        .collect();
    files.sort();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    Held {
        files,
        maps: maps.lines().filter(|line| line.contains("memfd:")).count(),
        threads: dir("/proc/self/task").count(),
    }
}

/// Starts `text` in `directory`, waits for `frames` frames, and stops.
fn round(text: &str, directory: &Path, frames: u64) {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let config = Config::read(&document, &registry(), "rounds", &mut diagnostics);
    let around = PlanContext::default();
    let plan = resolve(&config, &Topology::detect(), &around, &mut diagnostics);
    let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(document.sources(), false)));
    let options = Options {
        startup: std::sync::Arc::default(),
        profiles: std::collections::BTreeMap::new(),
        directory: directory.to_owned(),
        counter_file: CounterFile::in_memory(),
        history: None,
        drain: Duration::from_secs(10),
    };
    let pipeline = Pipeline::start(&config, &plan, &options).unwrap();
    wait_for("the frames", || {
        (pipeline.published("raw").unwrap() >= frames).then_some(())
    });
    pipeline.stop();
    let (report, failures) = pipeline.finish();
    assert_eq!((report.violations(), failures), (Vec::new(), Vec::new()));
    let source = &report.sources["adc"];
    assert!(
        source.delivered >= frames && source.lost_total() == 0,
        "{report:#?}"
    );
    let engine = source.engine.as_ref().unwrap();
    assert_eq!((engine.quiesce_timeouts, engine.restarts), (0, 0));
}

/// A ring and a sink that discards everything.
const NULL: &str = "[ring.raw]\nmemory = \"host\"\nslot = 4096\nslots = 16\n\
                    [sink.none]\ndriver = \"null\"\ninput = \"raw\"\n";

/// Runs `ROUNDS` rounds and compares the resources before and after.
fn rounds(text: &str, directory: &Path) {
    // The first rounds create resources that live as long as the process.
    for _ in 0..3 {
        round(text, directory, 20);
    }
    // The other end of a socket may unmap and close after the round has ended.
    let no_maps = || (held().maps == 0).then_some(());
    wait_for("the device to unmap all memory", no_maps);
    let before = held();
    for _ in 0..ROUNDS {
        round(text, directory, 20);
    }
    wait_for_ok("no more files, maps and threads than before", || {
        let after = held();
        if after.has_no_more_than(&before) {
            Ok(())
        } else {
            Err(format!("before: {before:#?}, now: {after:#?}"))
        }
    });
}

#[test]
fn xdma_in_process_restarts_leak_nothing() {
    if alone(this_test!()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for completion in ["poll", "interrupt"] {
        let source = format!("device = \"emulated:xdma\"\ncompletion = \"{completion}\"");
        rounds(&config(&source, "packet = 4096", NULL), dir.path());
    }
}

/// A device that counts accesses to memory that was not mapped for it.
struct Watched {
    card: Box<dyn EmulatedDevice>,
    stray: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

/// The host memory, as a device with counters accesses it.
struct Watch<'a> {
    host: &'a dyn Host,
    stray: &'a AtomicU64,
    writes: &'a AtomicU64,
}

impl Watch<'_> {
    fn seen<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        let counter = if answer.is_err() {
            self.stray
        } else {
            self.writes
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

impl Host for Watch<'_> {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.seen(self.host.write(address, bytes))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.seen(self.host.read(address, bytes))
    }

    fn interrupt(&self, vector: u16) {
        self.host.interrupt(vector);
    }
}

impl EmulatedDevice for Watched {
    fn identity(&self) -> Identity {
        self.card.identity()
    }

    fn read(&mut self, bar: usize, offset: u64) -> u32 {
        self.card.read(bar, offset)
    }

    fn write(&mut self, bar: usize, offset: u64, value: u32, host: &dyn Host) {
        let (stray, writes) = (&*self.stray, &*self.writes);
        self.card.write(
            bar,
            offset,
            value,
            &Watch {
                host,
                stray,
                writes,
            },
        );
    }

    fn reset(&mut self) {
        self.card.reset();
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        let (stray, writes) = (&*self.stray, &*self.writes);
        self.card.step(&Watch {
            host,
            stray,
            writes,
        })
    }
}

#[test]
fn xdma_over_socket_restarts_leak_nothing_and_write_nothing_outside() {
    if alone(this_test!()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (stray, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let options = EmulatedOptions {
        packet: Some(daq_core::units::ByteSize(4096)),
        ..EmulatedOptions::default()
    };
    let card = Watched {
        card: daq_emulators::build("xdma", &options).unwrap(),
        stray: stray.clone(),
        writes: writes.clone(),
    };
    let server = Server::bind(&dir.path().join("card.sock")).unwrap();
    let (mut stop, stopped) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        server
            .serve(Box::new(card), stopped.as_fd(), false)
            .unwrap();
    });
    let source = "device = \"vfio-user:card.sock\"\nengine = \"xdma\"";
    rounds(&config(source, "", NULL), dir.path());
    stop.write_all(&[1]).unwrap();
    thread.join().unwrap();
    assert_eq!(stray.load(Ordering::Relaxed), 0, "stray accesses");
    assert!(writes.load(Ordering::Relaxed) > 20 * u64::from(ROUNDS));
}

/// Several daemons use one device in turn, and some of them are killed.
#[test]
fn daemon_restarts_leave_device_unmapped() {
    const FRAMES: u64 = 50;
    let source = "device = \"vfio-user:card.sock\"\nengine = \"xdma\"";
    let daq = daq(&config(source, "", &host(16)));
    let (packet, frames) = (format!("{SLOT} B"), FRAMES.to_string());
    let card = Served::new(&daq, &["xdma", "--packet", &packet, "--packets", &frames]);
    let maps = format!("/proc/{}/maps", card.pid());
    let files = format!("/proc/{}/fd", card.pid());
    let has_memory = || std::fs::read_to_string(&maps).unwrap().contains("memfd:");
    let open = || std::fs::read_dir(&files).unwrap().count();
    let mut first = None;
    for run in 0..10 {
        let mut live = daq.spawn(&[]);
        live.wait_count("sources.adc.delivered", FRAMES);
        assert!(has_memory());
        if run % 3 == 2 {
            live.kill();
        } else {
            let outcome = live.stop().ok();
            assert_eq!(outcome.count("sources.adc.expected"), FRAMES);
            let raw = data(&daq, "raw");
            assert_eq!(raw.len() as u64, FRAMES * SLOT as u64);
            assert_stream(&raw);
        }
        std::fs::remove_dir_all(daq.path("raw")).unwrap();
        wait_for("the emulated card to unmap the memory of daq", || {
            (!has_memory()).then_some(())
        });
        let before = *first.get_or_insert_with(open);
        wait_for("the same number of open files as before", || {
            (open() == before).then_some(())
        });
    }
    let printed = std::fs::read_to_string(daq.path("card.log")).unwrap();
    assert_contains!(printed => !"DMA fault", !"bus mastering");
}

/// Repeated starts of LitePCIe must leak nothing. Its descriptor table is in the device, so every round fills it again.
#[test]
fn litepcie_restarts_leak_nothing() {
    if alone(this_test!()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("csr.csv"), daq_emulators::litepcie::CSR).unwrap();
    let source = "device = \"emulated:litepcie\"\ncsr = \"csr.csv\"";
    let rest = NULL.replace("slots = 16", "slots = 64");
    rounds(&config(source, &packets(21), &rest), dir.path());
}
