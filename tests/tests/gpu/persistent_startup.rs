//! Tests persistent kernels in whole runs on the simulated driver when something fails: GPU memory that cannot be
//! mapped, calls that fail at startup, and hangs that only a timeout detects.

use crate::persistent_setup::{FRAME, STAYS, assert_whole, daq, pipeline, simulated};
use daq_testkit::{Simulated, assert_contains};
use rustix::process::Signal;

const FRAMES: u64 = 200;
/// A second kernel, which reads the output of the first.
const AGAIN: &str = "[kernel.again]\nfile = \"same.cu\"\ninput = \"back\"\noutput = \"twice\"\ndispatch = \"persistent\"\n\
                     [ring.twice]\nslots = 16\n[sink.end]\ndriver = \"file\"\ninput = \"twice\"\npath = \"end/\"\n";

/// Checks that no call has waited for a kernel, and that everything was freed except for contexts, which live as long
/// as the process.
fn is_clean(simulated: &Simulated, what: &str) {
    let report = simulated.report();
    assert_eq!(report["blocked"], 0, "{what}: {report:#}");
    assert_eq!(simulated.leaks(), [""; 0], "{what}: {report:#}");
}

#[test]
fn bar_mapping_failure_at_startup_falls_back() {
    let launches = simulated("");
    let launched = daq(&launches, &pipeline(Some(FRAMES), ""));
    let _ = launched.run(&[]).ok();
    let expected = launched.data("there");
    assert_eq!(expected.len() as u64, FRAMES * FRAME);

    let (mut without_ring, mut without_bell) = (0, 0);
    for function in ["gdr_map", "gdr_pin_buffer"] {
        // Memory is mapped first for the plan, then for the measurement of copy rates, the ring and the doorbell. In
        // one case, a single call fails, and another kind of memory is tried. In the other case, all calls from this
        // one on fail.
        for first in 2..=5 {
            for last in [first, 20] {
                let fails = (first..=last).map(|nth| format!("fail={function}@{nth}:12"));
                let faults = fails.collect::<Vec<_>>().join(",");
                let what = format!("{function} fails from call {first} to call {last}");
                let simulated = simulated("").with_gdr(&faults);
                let daq = daq(&simulated, &pipeline(Some(FRAMES), STAYS));
                let outcome = daq.run(&[]).ok();
                assert_whole(&outcome, FRAMES, &what);
                assert!(daq.data("there") == expected, "{what}: other bytes");
                let report = simulated.report();
                assert_eq!(report["persistent"], FRAMES, "{what}");
                is_clean(&simulated, &what);
                // Mapped memory must be unmapped, and pinned memory must be unpinned.
                let calls = simulated.gdr_calls();
                let answered = |call: &str| calls.iter().filter(|logged| *logged == call).count();
                assert_eq!(answered("gdr_map 0"), answered("gdr_unmap 0"), "{what}");
                let pinned = answered("gdr_pin_buffer 0");
                assert_eq!(pinned, answered("gdr_unpin_buffer 0"), "{what}");
                let logged = |text: &str| usize::from(outcome.stderr.contains(text));
                without_ring += logged("the copy engine copies the frames of this ring");
                without_bell += logged("backend host maps the doorbell memory");
            }
        }
    }
    // Each function was at least once the reported reason.
    assert!(without_ring >= 2, "{without_ring}");
    assert!(without_bell >= 2, "{without_bell}");
}

#[test]
fn startup_failure_names_kernel_and_leaks_nothing() {
    for (call, kernels) in [
        // The second kernel fails to start while the first is running.
        ("cuLaunchKernel", ["same", "again"]),
        // The kernel starts, but the event that reports its end fails, so the kernel must be stopped.
        ("cuEventRecord", ["same", "again"]),
        // The call fails before any kernel starts.
        ("cuStreamCreate", ["same", "again"]),
    ] {
        for (nth, kernel) in (1..).zip(kernels) {
            let what = format!("{call}@{nth}");
            let healthy = simulated("").with_gdr("");
            let daq = daq(&healthy, &(pipeline(Some(FRAMES), STAYS) + AGAIN));
            let state = daq.path("state");
            let state = ["--state-dir", state.to_str().unwrap()];
            // The measurements at startup also make these calls, so make them before.
            let _ = daq.cli(&["tune", state[0], state[1]]).ok();
            let daq = daq.env("DAQ_SIMULATED_CUDA", &format!("fail={what}:2"));
            let outcome = daq.run(&state);
            assert_eq!(outcome.code, 69, "{what}: {}", outcome.stderr);
            assert_contains!(outcome.stderr =>
                "CUDA_ERROR_OUT_OF_MEMORY", &format!("kernel `{kernel}`"); "{what}"
            );
            assert_eq!(healthy.report()["persistent"], 0, "{what}");
            is_clean(&healthy, &what);
        }
    }
}

#[test]
fn signal_ends_a_start_that_a_gpu_blocks() {
    // The first launch without work never ends.
    let simulated = simulated("hang=launch@1").with_gdr("");
    let launched = AGAIN.replace("dispatch = \"persistent\"\n", "");
    let daq = daq(&simulated, &(pipeline(Some(FRAMES), STAYS) + &launched));
    let mut live = daq.spawn(&[]);
    live.wait_log("still starting: launching kernel `same`");
    live.signal(Signal::TERM);
    let outcome = live.wait();
    assert_eq!(outcome.code, 143, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "SIGTERM: stopping the start (launching kernel `same`)");
    // The next start does not report that this run was killed.
    let daq = daq.env("DAQ_SIMULATED_CUDA", "");
    let outcome = daq.run(&[]).ok();
    assert!(
        !outcome.stderr.contains("did not end cleanly"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn hang_with_slow_frames_is_detected() {
    // The source sends ten frames per second. A check that counts submitted frames would mistake each of them for
    // progress. The rings have room for the frames of several minutes, so they never become full.
    let text = pipeline(Some(FRAMES), STAYS)
        .replace(
            &format!("frames = {FRAMES}\n"),
            "pace = \"1310720 bit/s\"\n",
        )
        .replace("slots = 32", "slots = 4096")
        .replace("slots = 12", "slots = 4096");
    let simulated = simulated("hang=persistent@1").with_gdr("");
    let daq = daq(&simulated, &text);
    let mut live = daq.spawn(&["--drain", "1 s"]);
    live.wait_log("on_frame does not return");
    let outcome = live.wait();
    assert_eq!(outcome.code, 70, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "kernel `same`");
    // Frames arrived during the hang, and the ring had room for more.
    let taken = outcome.count("kernels.same.in");
    assert!((2..2048).contains(&taken), "{:#}", outcome.report);
    assert_eq!(outcome.count("kernels.same.produced"), 0);
    assert_eq!(outcome.count("rings.back.published"), 0);
    let report = simulated.report();
    assert_eq!(report["blocked"], 0, "{report:#}");
    // The kernel hung in the first frame.
    assert_eq!(report["persistent"], 1, "{report:#}");
}
