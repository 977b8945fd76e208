//! Tests persistent kernels in whole runs on the simulated driver: their output, their shutdown, and the ledgers after
//! a hang or a failure.

use crate::persistent_setup::{FRAME, STAYS, assert_whole, daq, pipeline, simulated};
use daq_testkit::{Daq, Outcome, Simulated, assert_contains, assert_counts, ledger, wait_for};
use rustix::process::Signal;

const HTTP: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";

/// Checks that one launch has processed all frames after one without work, that no call has waited for the kernel, and that
/// everything was freed.
fn stayed(simulated: &Simulated, frames: u64) {
    let report = simulated.report();
    assert_eq!(report["launches"], 2, "{report:#}");
    assert_eq!(report["persistent"], frames, "{report:#}");
    assert_eq!(report["blocked"], 0, "{report:#}");
    assert_eq!(simulated.leaks(), [""; 0]);
}

/// Checks that every frame that the kernel accepted is in the file, and that nothing was lost.
fn is_whole(daq: &Daq, outcome: &Outcome, frames: u64) {
    assert_whole(outcome, frames, "");
    assert_eq!(ledger::lost(&outcome.report, "adc"), 0);
    assert_eq!(daq.data("there").len() as u64, frames * FRAME);
}

/// Returns the bytes of `frames` frames from a kernel that is launched for each burst.
fn launched(frames: u64, faults: &str) -> Vec<u8> {
    let simulated = simulated("");
    let daq = daq(&simulated, &(pipeline(Some(frames), "") + faults));
    let outcome = daq.run(&[]).ok();
    assert_eq!(outcome.count("kernels.same.consumed"), frames);
    assert_eq!(simulated.report()["persistent"], 0);
    daq.data("there")
}

#[test]
fn persistent_kernel_output_equals_launched_kernel() {
    const FRAMES: u64 = 2000;
    // Missing packets are filled.
    let faults = "[source.adc.faults]\nloss = 0.05\n";
    let expected = launched(FRAMES, faults);
    assert_eq!(expected.len() as u64, FRAMES * FRAME);
    for keys in [
        "",
        "concurrent_frames = 3",
        "concurrent_frames = 5\nblocks = 7",
        "blocks = 1",
    ] {
        let simulated = simulated("latency=50");
        let text = pipeline(Some(FRAMES), &format!("{STAYS}\n{keys}")) + faults;
        let daq = daq(&simulated, &text);
        let outcome = daq.run(&[]).ok();
        assert_eq!(outcome.count("kernels.same.consumed"), FRAMES, "{keys}");
        assert!(daq.data("there") == expected, "{keys}: the bytes differ");
        stayed(&simulated, FRAMES);
    }
}

#[test]
fn persistent_kernel_output_is_equal_for_all_backends() {
    const FRAMES: u64 = 300;
    let expected = launched(FRAMES, "");
    // The first available backend serves the ring, the doorbell, or both. Without a backend, the copy engine copies
    // frames.
    for backends in [
        r#"["gdrapi"]"#,
        r#"["dma-buf"]"#,
        r#"["vulkan", "host"]"#,
        r#"["host"]"#,
        r#"["gdrapi", "dma-buf", "vulkan", "host"]"#,
    ] {
        let simulated = simulated("dma-buf=map").with_gdr("");
        let daq = daq(&simulated, &pipeline(Some(FRAMES), STAYS));
        let outcome = daq
            .run(&["--set", &format!("staging.backends={backends}")])
            .ok();
        is_whole(&daq, &outcome, FRAMES);
        assert!(daq.data("there") == expected, "{backends}");
        stayed(&simulated, FRAMES);
    }
    // A doorbell needs mapped memory.
    let simulated = simulated("");
    let outcome =
        daq(&simulated, &pipeline(Some(FRAMES), STAYS)).run(&["--set", "staging.backends=[]"]);
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "backends");
    assert_eq!(simulated.report()["persistent"], 0);
    assert_eq!(simulated.leaks(), [""; 0]);
}

#[test]
fn persistent_kernel_finishes_submitted_frames_at_stop() {
    for signal in [Signal::TERM, Signal::INT] {
        let simulated = simulated("");
        let daq = daq(
            &simulated,
            &(pipeline(None, &format!("{STAYS}\nconcurrent_frames = 2")) + HTTP),
        );
        let mut live = daq.spawn(&[]);
        live.wait_count("sinks.there.frames", 500);
        assert_eq!(live.get("/-/healthy").code, 200);
        live.signal(signal);
        let outcome = live.wait().ok();
        let frames = outcome.count("kernels.same.consumed");
        assert!(frames >= 500, "{:#}", outcome.report);
        is_whole(&daq, &outcome, frames);
        stayed(&simulated, frames);
    }
}

/// Kernels on a GPU (launched or persistent) and sinks behind a ring on a GPU must not receive frames with missing
/// packets.
#[test]
fn persistent_kernel_with_incomplete_drop_gets_complete_frames() {
    const FRAMES: u64 = 2000;
    let faults = "[source.adc.faults]\nloss = 0.05\n";
    let whole: Vec<u8> = launched(FRAMES, faults)
        .chunks(usize::try_from(FRAME).unwrap())
        .filter(|frame| {
            frame
                .chunks(4096)
                .all(|packet| packet.iter().any(|byte| *byte != 165))
        })
        .flatten()
        .copied()
        .collect();
    let complete = whole.len() as u64 / FRAME;
    assert!(complete > 0 && complete < FRAMES);
    for keys in ["", STAYS] {
        let simulated = simulated("latency=50");
        let kernel = format!("{keys}\nincomplete = \"drop\"");
        let text = pipeline(Some(FRAMES), &kernel)
            + "[sink.end]\ndriver = \"null\"\ninput = \"raw\"\nincomplete = \"drop\"\n"
            + faults;
        let daq = daq(&simulated, &text);
        let outcome = daq.run(&[]).ok();
        assert_eq!(outcome.count("sources.adc.incomplete"), FRAMES - complete);
        for reader in ["same", "end"] {
            assert_counts!(outcome, format!("readers.{reader}") =>
                read: complete, dropped_incomplete: FRAMES - complete, pending: 0; "{keys} {reader}"
            );
        }
        assert_eq!(outcome.count("kernels.same.consumed"), complete, "{keys}");
        assert!(daq.data("there") == whole, "{keys}: the bytes differ");
    }
}

#[test]
fn persistent_kernel_without_frames_stops() {
    let simulated = simulated("");
    let text = pipeline(Some(1), STAYS).replace("frames = 1\n", "packets = 1\n");
    let daq = daq(&simulated, &text);
    let outcome = daq.run(&[]).ok();
    assert_counts!(outcome, "kernels.same" =>
        in: outcome.count("kernels.same.consumed") + outcome.count("kernels.same.failed")
    );
    assert_eq!(simulated.report()["blocked"], 0);
    assert_eq!(simulated.leaks(), [""; 0]);
}

#[test]
fn persistent_kernel_without_guarantee_counts_overrun() {
    const FRAMES: u64 = 5000;
    let simulated = simulated("latency=300");
    // A slow sink with a guarantee delays the kernel. The source must not wait for the kernel.
    let kernel = format!("{STAYS}\nguarantee = false");
    let text = pipeline(Some(FRAMES), &kernel)
        + "[sink.slow]\ndriver = \"null\"\ninput = \"back\"\ndelay = \"1 ms\"\nburst = 1\n";
    let daq = daq(&simulated, &text);
    let outcome = daq.run(&[]).ok();
    let reader = &outcome.report["readers"]["same"];
    let count = |key: &str| reader[key].as_u64().unwrap_or(0);
    let (read, overrun) = (count("read"), count("overrun"));
    assert!(overrun > 0 && read > 0, "{:#}", outcome.report);
    assert_eq!(
        read + overrun + count("discarded"),
        outcome.count("rings.raw.published")
    );
    is_whole(&daq, &outcome, read);
    stayed(&simulated, read);
}

#[test]
fn persistent_kernel_hang_is_named_and_ledgers_balance() {
    // With two groups of blocks, one group may be ahead of the other by the number of frames that fit into the rings.
    for (keys, max) in [("", 40), ("concurrent_frames = 2", 40 + 32)] {
        let simulated = simulated("hang=persistent@40");
        let text = pipeline(None, &format!("{STAYS}\n{keys}")) + HTTP;
        let daq = daq(&simulated, &text);
        let mut live = daq.spawn(&["--drain", "1 s"]);
        // The hang must be detected without any request, even if that takes long.
        live.wait_log("on_frame does not return");
        let outcome = live.wait();
        assert_eq!(outcome.code, 70, "{}", outcome.stderr);
        assert_contains!(outcome.stderr => "kernel `same`");
        let made = outcome.count("kernels.same.produced");
        assert_eq!(outcome.count("rings.back.published"), made);
        assert!(
            made < max && outcome.count("kernels.same.in") > outcome.count("kernels.same.consumed"),
            "{:#}",
            outcome.report
        );
        // No call may have waited for the kernel.
        assert_eq!(simulated.report()["blocked"], 0, "{}", outcome.stderr);
    }
}

#[test]
fn persistent_kernel_hang_is_shown_in_status() {
    let simulated = simulated("hang=persistent@40");
    let text = pipeline(None, STAYS) + HTTP;
    let daq = daq(&simulated, &text);
    let mut live = daq.spawn(&["--drain", "1 s"]);
    let address = live.address();
    // Wait until the process has ended or reports that it is not healthy.
    wait_for("an unhealthy answer, or the end of daq", || {
        let unwell =
            daq_testkit::get(address, "/-/healthy").map_or(true, |response| response.code == 503);
        (unwell || !live.is_running()).then_some(())
    });
    live.wait_log("the GPU has completed no work");
    let outcome = live.wait();
    assert_eq!(outcome.code, 70, "{}", outcome.stderr);
}

#[test]
fn persistent_kernel_failure_stops_run_and_ledgers_balance() {
    for (options, name) in [
        ("fail-async=PERSISTENT@40:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("fail-async=PERSISTENT@1:719", "CUDA_ERROR_LAUNCH_FAILED"),
        (
            "fail-async=PERSISTENT@40:214",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
        ),
        ("fail=cuLaunchKernel@1:719", "CUDA_ERROR_LAUNCH_FAILED"),
    ] {
        let simulated = simulated(options);
        let daq = daq(&simulated, &pipeline(None, STAYS));
        let outcome = daq.run(&[]);
        assert_eq!(outcome.code, 69, "{options}: {}", outcome.stderr);
        assert_contains!(outcome.stderr => name, "same"; "{options}");
        if options.contains("PERSISTENT") {
            let made = outcome.count("kernels.same.produced");
            assert!(made < 40, "{options}: {:#}", outcome.report);
            assert_eq!(outcome.count("rings.back.published"), made, "{options}");
            // The kernel's last output may not have been copied yet.
            assert!(outcome.count("sinks.there.frames") <= made, "{options}");
            assert!(outcome.count("kernels.same.failed") > 0, "{options}");
        }
        assert_eq!(simulated.leaks(), [""; 0], "{options}");
    }
}

#[test]
fn persistent_kernels_share_one_gpu() {
    const FRAMES: u64 = 500;
    let simulated = simulated("");
    let text = pipeline(Some(FRAMES), STAYS)
        + "[kernel.again]\nfile = \"same.cu\"\ninput = \"back\"\noutput = \"twice\"\ndispatch = \"persistent\"\n\
           [ring.twice]\nslots = 16\n[sink.end]\ndriver = \"file\"\ninput = \"twice\"\npath = \"end/\"\n";
    let daq = daq(&simulated, &text);
    let outcome = daq.run(&[]).ok();
    is_whole(&daq, &outcome, FRAMES);
    assert_eq!(outcome.count("kernels.again.consumed"), FRAMES);
    assert!(daq.data("end") == daq.data("there"));
    let report = simulated.report();
    assert_eq!(report["persistent"], 2 * FRAMES);
    // Each kernel is launched once without work.
    assert_eq!(report["launches"], 4);
    assert_eq!(report["blocked"], 0, "{report:#}");
    assert_eq!(simulated.leaks(), [""; 0]);
}

#[test]
fn persistent_kernel_beyond_occupancy_is_rejected() {
    let simulated = simulated("");
    let keys = format!("{STAYS}\nconcurrent_frames = 100\nblocks = 100");
    let outcome = daq(&simulated, &pipeline(Some(10), &keys)).run(&[]);
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "concurrent_frames");
    assert_eq!(simulated.report()["persistent"], 0);
    assert_eq!(simulated.leaks(), [""; 0]);
}
