//! Tests of the engine `external`; the test acts as the card.

use super::*;
use crate::fpga::device::Identity;
use crate::fpga::engines::xdma::Xdma;
use crate::fpga::mock::{self, Driven, Mock};
use daq_core::dma::{DmaMap, Running, SlotLayout, Stopped};
use daq_core::region::{HostOptions, Placement, Region};
use std::path::Path;
use std::sync::atomic::Ordering;

const SLOTS: usize = 4;
const SLOT: usize = 256;

struct Fixture {
    mock: Arc<Mock>,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            mock: Mock::new(64, Identity::default(), |_, _, _| true),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// An engine whose command is a shell's `script`, run in the fixture's folder.
    fn engine(&self, script: &str, keys: &str) -> Driven<ExternalEngine> {
        let words = serde_json::json!(["sh", "-c", script]);
        let keys = format!("command = {words}\ntimeout = \"60 s\"\n{keys}");
        self.mock.open(&keys, self.folder.path()).unwrap()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).unwrap()
    }
}

fn slots() -> Slots {
    Slots {
        addresses: (0..SLOTS as u64).map(|i| 0x4000 + 0x1000 * i).collect(),
        bytes: SLOT,
        first: 1,
        doorbell: None,
        placement: Placement::Host,
    }
}

/// Polls for at most `limit` transfers; returns the numbers of skipped and of finished transfers.
fn poll(engine: &mut Driven<ExternalEngine>, limit: usize) -> Result<(u64, usize), EngineError> {
    let mut done = Completions::new(64, FAULTS.len());
    done.clear(limit);
    engine.poll(&mut done)?;
    assert!(done.as_slice().iter().all(|done| done.length == SLOT));
    Ok((done.overrun(), done.as_slice().len()))
}

fn faulted(engine: &mut Driven<ExternalEngine>) -> Vec<&'static str> {
    match poll(engine, 64) {
        Err(EngineError::Faulted { faults, .. }) => faults,
        other => panic!("{other:?}"),
    }
}

#[test]
fn external_engine_with_backpressure_reads_credits() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine("cat >>input; echo >>input", "credits = true");
    // Stale values in the page.
    engine.words.write64(COUNT, 77);
    engine.words.write64(CREDITS, 77);
    engine.arm(&slots()).unwrap();
    let words =
        |engine: &ExternalEngine| (engine.words.read64(COUNT), engine.words.read64(CREDITS));
    assert_eq!(words(&engine), (0, 0), "the counters start at 0");
    assert_eq!(poll(&mut engine, 64).unwrap(), (0, 0));
    let mut filled = 0;
    // Enough rounds that the ring wraps.
    for round in 0..2 * SLOTS as u64 {
        engine.credit(3);
        assert_eq!(words(&engine).1, 3 * (round + 1));
        filled += 3;
        engine.words.write64(COUNT, filled);
        assert_eq!(poll(&mut engine, 2).unwrap(), (0, 2));
        assert_eq!(
            poll(&mut engine, 64).unwrap(),
            (0, 1),
            "the rest is reported next"
        );
        assert_eq!(engine.overwritten().unwrap(), 0);
    }
    engine.quiesce(Duration::ZERO).unwrap();
    engine.quiesce(Duration::ZERO).unwrap();
    let inputs = fixture.read("input");
    let jobs: Vec<serde_json::Value> = inputs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(jobs.len(), 2, "the stop command runs only once");
    let base = engine.words.address();
    for (input, action) in jobs.iter().zip(["start", "stop"]) {
        assert_eq!(input["action"], action);
        assert_eq!(input["device"], "mock");
        assert_eq!(input["first"], 1);
        assert_eq!(input["slots"][3]["address"], 0x7000);
        assert_eq!(input["count"]["address"], base);
        assert_eq!(input["credits"]["address"], base + 64);
    }
}

#[test]
fn external_engine_free_running_overrun_is_skipped() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine("cat >input", "");
    assert!(!engine.caps().supports_backpressure);
    engine.arm(&slots()).unwrap();
    engine.credit(1);
    assert_eq!(engine.words.read64(CREDITS), 0, "credits are not written");
    engine.words.write64(COUNT, 3);
    assert_eq!(poll(&mut engine, 64).unwrap(), (0, 3));
    assert_eq!(engine.overwritten().unwrap(), 0);
    // The fourth transfer is finished, so the fifth may be in progress, and it overwrites the first slot.
    engine.words.write64(COUNT, 4);
    assert_eq!(engine.overwritten().unwrap(), 1);
    engine.words.write64(COUNT, 1000);
    assert_eq!(engine.overwritten().unwrap(), 997);
    assert_eq!(poll(&mut engine, 64).unwrap(), (994, 3));
    // Transfers that are counted before the stop can be polled after it.
    engine.words.write64(COUNT, 1002);
    engine.quiesce(Duration::ZERO).unwrap();
    engine.words.write64(COUNT, 5);
    assert_eq!(poll(&mut engine, 64).unwrap(), (0, 2));
    assert_eq!(engine.overwritten().unwrap(), 999);
    let input: serde_json::Value = serde_json::from_str(&fixture.read("input")).unwrap();
    assert!(input["credits"].is_null());
    let mut one = slots();
    (one.first, one.addresses) = (0, vec![0]);
    let error = engine.arm(&one).unwrap_err().to_string();
    assert!(error.contains("at least 2 `slots`"), "{error}");
}

#[test]
fn external_engine_impossible_count_is_named_fault() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine("cat >input", "");
    engine.arm(&slots()).unwrap();
    engine.words.write64(COUNT, 3);
    poll(&mut engine, 64).unwrap();
    engine.words.write64(COUNT, 2);
    assert_eq!(faulted(&mut engine), ["count-went-back"]);
    engine.words.write64(COUNT, u64::MAX);
    assert_eq!(faulted(&mut engine), ["count-went-back"]);
    engine.quiesce(Duration::ZERO).unwrap();

    let mut engine = fixture.engine("cat >input", "credits = true");
    engine.arm(&slots()).unwrap();
    engine.credit(2);
    engine.words.write64(COUNT, 3);
    assert_eq!(faulted(&mut engine), ["more-than-credited"]);
    // After a fault the engine is armed again and starts from 0.
    engine.quiesce(Duration::ZERO).unwrap();
    engine.arm(&slots()).unwrap();
    assert_eq!(poll(&mut engine, 64).unwrap(), (0, 0));
}

#[test]
fn external_engine_revoked_addresses_end_run_with_reason() {
    let fixture = Fixture::new();
    let mut engine = fixture.engine("cat >input", "");
    engine.arm(&slots()).unwrap();
    *fixture.mock.lost.lock().unwrap() = Some("the addresses hold no more");
    let error = (0..=POLLS_PER_CHECK).find_map(|_| poll(&mut engine, 64).err());
    let error = error
        .expect("the check of the addresses must fail")
        .to_string();
    assert!(error.contains("hold no more"), "{error}");
    engine.quiesce(Duration::ZERO).unwrap();
    let error = engine.arm(&slots()).unwrap_err().to_string();
    assert!(error.contains("hold no more"), "{error}");
}

/// Arms the engine in the same way as the runtime.
fn armed(fixture: &Fixture, script: &str) -> Result<Running, Box<daq_core::dma::Refused>> {
    let engine = fixture.engine(script, "credits = true").engine;
    let options = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let region = Region::host(SLOTS * 4096, options).unwrap();
    let memory = DmaMap::new(fixture.mock.clone(), region).unwrap();
    let layout = SlotLayout {
        slots: SLOTS,
        stride: 4096,
        bytes: SLOT,
    };
    Stopped::new(engine, memory).start(layout, 1, None)
}

#[test]
fn external_engine_stop_failure_disables_bus_mastering() {
    let fixture = Fixture::new();
    let running = armed(&fixture, "grep -q start").unwrap();
    assert_eq!(fixture.mock.mapped.load(Ordering::SeqCst), 2);
    let idle = running.stop(Duration::ZERO).unwrap();
    assert!(idle.quiesce_timeout().is_some());
    assert_eq!(fixture.mock.disable_and_reset.load(Ordering::SeqCst), 1);
    drop(idle);
    assert_eq!(fixture.mock.mapped.load(Ordering::SeqCst), 0);
}

#[test]
fn external_engine_start_failure_runs_stop_command() {
    let fixture = Fixture::new();
    let script = "tee -a input | grep -q stop || { echo no bitstream; exit 4; }";
    let refused = armed(&fixture, script).unwrap_err();
    assert!(refused.to_string().contains("no bitstream"), "{refused}");
    let stopped = refused.stopped.as_ref().unwrap();
    assert!(
        stopped.quiesce_timeout().is_none(),
        "the engine stopped in time"
    );
    assert!(fixture.read("input").contains("\"stop\""));
    assert_eq!(fixture.mock.disable_and_reset.load(Ordering::SeqCst), 0);

    let refused = armed(&fixture, "exit 4").unwrap_err();
    assert!(refused.stopped.unwrap().quiesce_timeout().is_some());
    assert_eq!(fixture.mock.disable_and_reset.load(Ordering::SeqCst), 1);
}

#[test]
fn external_engine_dropped_is_stopped() {
    let fixture = Fixture::new();
    drop(armed(&fixture, "cat >input").unwrap());
    assert!(fixture.read("input").contains("\"stop\""));
    assert_eq!(fixture.mock.mapped.load(Ordering::SeqCst), 0);
}

#[test]
fn external_engine_contradicting_keys_are_reported() {
    let keys = mock::problem_keys::<ExternalEngine>;
    let command = "device = \"3b:00.0\"\nengine = \"external\"\n";
    assert_eq!(keys(command), ["command"]);
    assert_eq!(keys(&format!("{command}command = []")), ["command"]);
    let found = keys(&format!(
        "{command}command = [\"x\"]\ntimeout = \"0 s\"\naddress_bits = 65\nchannel = 1\ncompletion = \"interrupt\"\n\
         registers = [{{ bar = 0, offset = 0, value = 1 }}]"
    ));
    let expected = [
        "timeout",
        "address_bits",
        "channel",
        "completion",
        "registers",
    ];
    assert_eq!(found, expected);
    let found = keys("device = \"emulated:xdma\"\nengine = \"external\"\ncommand = [\"x\"]");
    assert_eq!(found, ["device"]);
    let found = mock::problem_keys::<Xdma>(
        "device = \"3b:00.0\"\nengine = \"xdma\"\ncommand = [\"x\"]\ntimeout = \"1 s\"",
    );
    assert_eq!(found, ["command", "timeout"]);
    assert!(ExternalCommand::new(&[], Path::new("."), DEFAULT_TIMEOUT).is_none());
}
