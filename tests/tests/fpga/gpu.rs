//! Tests devices that write to GPU memory, on the simulated driver.

use crate::setup::{LITEPCIE, SLOT, XDMA, assert_stream, config, data, numbers, packets};
use daq_emulators::{litepcie, pattern::Pattern};
use daq_testkit::{Daq, Outcome, Simulated, assert_contains, assert_counts, ledger};

/// The simulated driver's compiler turns this source into a kernel that copies each frame unchanged.
const SAME: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                    for (daq::Size i = in.index(); i < out.capacity; i += in.stride())\n        \
                    out.as<char>()[i] = in.as<const char>()[i];\n}\n";

/// Returns a machine with a GPU whose memory can be mapped.
fn machine() -> Simulated {
    Simulated::new("").with_compiler().with_gdr("")
}

/// Returns a ring on a GPU, a kernel that reads the ring, and a file sink for the kernel's output.
fn rest(kernel: &str, slots: usize) -> String {
    format!(
        "[ring.raw]\nmemory = \"cuda:0\"\nslot = {SLOT}\nslots = {slots}\n\
         [kernel.same]\nfile = \"same.cu\"\ninput = \"raw\"\noutput = \"back\"\nburst = 4\n{kernel}\n\
         [ring.back]\nslots = {}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"back\"\npath = \"raw\"\n",
        slots + 4
    )
}

fn daq(machine: &Simulated, text: &str) -> Daq {
    let daq = machine.on(Daq::new(text));
    daq.write("csr.csv", litepcie::CSR);
    daq.write("same.cu", SAME);
    daq
}

/// Returns the source's path in the plan, with its reason.
fn path(daq: &Daq) -> String {
    let plan = daq.cli(&["plan", "daq.toml"]).ok().stdout;
    let line = plan.lines().find(|line| line.trim().starts_with("path "));
    line.unwrap().trim().to_owned()
}

/// Runs daq until the kernel has written `frames` frames. Returns the report and the text of `/metrics`.
fn run(daq: &Daq, frames: u64) -> (Outcome, String) {
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk.frames", frames);
    let metrics = live.get("/metrics").body;
    (live.stop().ok(), metrics)
}

fn engine<'a>(outcome: &'a Outcome, key: &str) -> &'a serde_json::Value {
    &outcome.report["sources"]["adc"]["engine"][key]
}

/// Checks that every frame has arrived exactly once, with all its bytes.
fn is_whole(daq: &Daq, outcome: &Outcome, frames: u64) {
    assert_counts!(outcome, "sources.adc" => delivered: frames);
    assert_eq!(ledger::lost(&outcome.report, "adc"), 0);
    assert_eq!(outcome.count("kernels.same.consumed"), frames);
    let raw = data(daq, "raw");
    assert_eq!(raw.len() as u64, frames * SLOT as u64);
    assert_stream(&raw);
}

const FRAMES: u64 = 100;

#[test]
fn xdma_direct_writes_into_gpu_ring() {
    for notice in ["poll", "interrupt"] {
        let machine = machine();
        let source = format!("{XDMA}\ncompletion = \"{notice}\"");
        let daq = daq(&machine, &config(&source, &packets(FRAMES), &rest("", 16)));
        let path = path(&daq);
        assert!(path.contains("direct") && path.contains("cuda:0"), "{path}");
        let (outcome, metrics) = run(&daq, FRAMES);
        is_whole(&daq, &outcome, FRAMES);
        assert_eq!(engine(&outcome, "path"), "verified");
        assert_eq!(engine(&outcome, "fallbacks"), 0);
        assert_contains!(metrics => "daq_path_state{source=\"adc\"} 1");
        // The frames must not be copied.
        assert!(outcome.report["copies"].get("raw").is_none());
        machine.assert_all_released();
    }
}

#[test]
fn xdma_staged_through_host_fills_gpu_ring() {
    let machine = machine();
    let source = format!("{XDMA}\npath = \"staged\"");
    let daq = daq(&machine, &config(&source, &packets(FRAMES), &rest("", 16)));
    let path = path(&daq);
    assert_contains!(path => "staged", "is declared");
    let (outcome, _) = run(&daq, FRAMES);
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(engine(&outcome, "path"), "verified");
    assert_eq!(outcome.count("copies.raw.frames"), FRAMES);
    machine.assert_all_released();
}

/// A transfer to GPU memory is reported as written, but its data never arrives. Through host memory, all later
/// transfers arrive.
#[test]
fn direct_path_that_fails_verification_falls_back() {
    for source in [XDMA, LITEPCIE] {
        let machine = machine();
        let card = format!("{}faults = [\"lie@0\"]", packets(FRAMES));
        let daq = daq(&machine, &config(source, &card, &rest("", 128)));
        // With XDMA, the transfer that did not arrive is lost. LitePCIe's stream restarts with its writer, and its last
        // frame is reported by the stop.
        let (outcome, metrics) = run(&daq, FRAMES - 1);
        let frames = FRAMES - u64::from(source == XDMA);
        assert_eq!(
            engine(&outcome, "path"),
            "failed",
            "the direct path must fail verification"
        );
        assert_eq!(engine(&outcome, "fallbacks"), 1);
        assert_contains!(metrics => "daq_path_fallback_total{source=\"adc\"} 1");
        assert_contains!(outcome.stderr => "frames now go through host memory");
        assert_eq!(outcome.count("sources.adc.delivered"), frames);
        let seen = numbers(Pattern::Counter, &data(&daq, "raw"));
        let first = u64::from(source == XDMA);
        assert_eq!(seen, (first..first + frames).collect::<Vec<_>>());
        // The transfer that was reported complete but did not arrive must be counted as lost.
        assert_counts!(outcome, "sources.adc.lost" => bad_packet: 1);
        machine.assert_all_released();
    }
}

#[test]
fn gpu_without_bar_mapping_is_filled_by_copies() {
    let machine = Simulated::new("").with_compiler();
    let daq = daq(&machine, &config(XDMA, &packets(FRAMES), &rest("", 16)));
    let path = path(&daq);
    assert_contains!(path => "staged", "no backend can map GPU memory");
    let (outcome, _) = run(&daq, FRAMES);
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(outcome.count("copies.raw.frames"), FRAMES);
}

#[test]
fn direct_path_required_but_impossible_is_rejected() {
    let source = format!("{XDMA}\npath = \"direct\"");
    let numbered = format!("{}pattern = \"sequence\"\n", packets(FRAMES));
    for (machine, source, card, why) in [
        (
            Simulated::new("").with_compiler(),
            source.clone(),
            packets(FRAMES),
            "no backend can map GPU memory",
        ),
        (
            machine(),
            format!("{source}\nsequence = {{ offset = 0, bytes = 8, endian = \"little\" }}"),
            numbered,
            "sequence number",
        ),
    ] {
        let daq = daq(&machine, &config(&source, &card, &rest("", 16)));
        let outcome = daq.run(&[]);
        assert_eq!(outcome.code, 69, "{}", outcome.stderr);
        assert_contains!(outcome.stderr => why, "\"staged\"");
    }
}

/// LitePCIe is free-running in its own slots on the GPU. Frames are copied within the GPU.
#[test]
fn litepcie_frames_are_copied_within_gpu() {
    let machine = machine();
    let daq = daq(
        &machine,
        &config(LITEPCIE, &packets(FRAMES), &rest("", 128)),
    );
    let path = path(&daq);
    assert!(path.contains("direct") && path.contains("cuda:0"), "{path}");
    let (outcome, _) = run(&daq, FRAMES - 1);
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(engine(&outcome, "path"), "verified");
    assert!(outcome.report["copies"].get("raw").is_none());
    machine.assert_all_released();
}

/// An overrun must be counted in the same way as with host memory.
#[test]
fn litepcie_overrun_within_gpu_is_counted() {
    let machine = machine();
    let card = format!(
        "{}rate = \"20 MB/s\"\nfaults = [\"overrun@50\"]",
        packets(400)
    );
    let daq = daq(&machine, &config(LITEPCIE, &card, &rest("", 16)));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.adc.lost.overrun", 1);
    live.wait_count("sources.adc.expected", 399);
    let outcome = live.stop().ok();
    let seen = numbers(Pattern::Counter, &data(&daq, "raw"));
    assert_eq!(seen.len() as u64, outcome.count("sources.adc.delivered"));
    assert_eq!(outcome.count("sources.adc.expected"), 400);
}

const RUNG: &str = "dispatch = \"persistent\"\ndoorbell = \"device\"";

/// The device itself rings the doorbell of a persistent kernel for each frame.
#[test]
fn device_doorbell_triggers_persistent_kernel() {
    let machine = machine();
    let daq = daq(&machine, &config(XDMA, &packets(FRAMES), &rest(RUNG, 16)));
    let (outcome, _) = run(&daq, FRAMES);
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(engine(&outcome, "path"), "verified");
    assert_eq!(machine.report()["persistent"], FRAMES);
    // Three launches for the slots that are verified, and two for the persistent kernel: one without work, and one that stays.
    assert_eq!(machine.report()["launches"], 5);
    machine.assert_all_released();
}

/// A device whose sequence restarts cannot use the doorbell any more. The run must end with a message that names the
/// fix.
#[test]
fn device_fault_with_device_doorbell_ends_run() {
    let machine = machine();
    let card = format!("{}faults = [\"descriptor-magic@30\"]", packets(FRAMES));
    let daq = daq(&machine, &config(XDMA, &card, &rest(RUNG, 16)));
    let outcome = daq.run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "set doorbell = \"cpu\"");
    assert_eq!(engine(&outcome, "faults")["descriptor-magic"], 1);
    is_whole(&daq, &outcome, 30);
    assert_eq!(ledger::open(&outcome.report), [""; 0]);
}

/// If the CPU rings the doorbell, the same kernel must continue.
#[test]
fn device_fault_with_cpu_doorbell_continues_run() {
    let machine = machine();
    let card = format!("{}faults = [\"descriptor-magic@30\"]", packets(FRAMES));
    let stays = "dispatch = \"persistent\"";
    let daq = daq(&machine, &config(XDMA, &card, &rest(stays, 16)));
    let (outcome, _) = run(&daq, FRAMES);
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(engine(&outcome, "restarts"), 1);
}
