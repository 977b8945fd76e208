//! Tests persistent kernels in whole runs on the simulated driver: their output, their shutdown, and the ledgers after
//! a hang or a failure.

use daq_tests::{Daq, Outcome, Simulated, ledger, wait_for};
use rustix::process::Signal;

/// The simulated driver's compiler turns this source into a kernel that copies each frame unchanged.
const SOURCE: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                      for (daq::Size i = in.index(); i < out.capacity; i += in.stride())\n        \
                      out.as<char>()[i] = in.as<const char>()[i];\n}\n";

const FRAME: u64 = 16_384;

/// Returns a source whose frames pass through a user's kernel to a file in `there/`.
fn pipeline(frames: Option<u64>, kernel: &str) -> String {
    let frames = frames.map_or(String::new(), |frames| format!("frames = {frames}\n"));
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n{frames}\
         samples = {{ type = \"int16\" }}\n\
         [ring.raw]\nslot = {FRAME}\nslots = 32\nfill = 165\n\
         [kernel.same]\nfile = \"same.cu\"\ninput = \"raw\"\noutput = \"back\"\nburst = 5\n{kernel}\n\
         [ring.back]\nslots = 12\n\
         [sink.there]\ndriver = \"file\"\ninput = \"back\"\npath = \"there/\"\n"
    )
}

const STAYS: &str = "dispatch = \"persistent\"";
const HTTP: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";

/// Returns a run with the simulated driver and its compiler.
fn daq(simulated: &Simulated, text: &str) -> Daq {
    let daq = simulated.on(Daq::new(text));
    daq.write("same.cu", SOURCE);
    daq
}

fn simulated(options: &str) -> Simulated {
    Simulated::new(options).with_compiler()
}

fn bytes(daq: &Daq, directory: &str) -> Vec<u8> {
    let files = daq_tests::files(&daq.path(directory), ".sigmf-data");
    files
        .iter()
        .flat_map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// Returns the resources that were not freed, except for contexts, which live as long as the process.
fn leaks(simulated: &Simulated) -> Vec<String> {
    let report = simulated.report();
    let leaks = report["leaks"]
        .as_object()
        .expect("the simulated driver must have been called");
    leaks
        .iter()
        .filter(|(what, count)| *what != "contexts" && **count != 0)
        .map(|(what, count)| format!("{what}: {count}"))
        .collect()
}

/// Checks that one launch has processed all frames, that no call has waited for the kernel, and that everything was
/// freed.
fn stayed(simulated: &Simulated, frames: u64) {
    let report = simulated.report();
    assert_eq!(report["launches"], 1, "{report:#}");
    assert_eq!(report["persistent"], frames, "{report:#}");
    assert_eq!(report["blocked"], 0, "{report:#}");
    assert_eq!(leaks(simulated), [""; 0]);
}

/// Checks that every frame that the kernel accepted is in the file, and that nothing was lost.
fn is_whole(daq: &Daq, outcome: &Outcome, frames: u64) {
    for path in [
        "kernels.same.in",
        "kernels.same.consumed",
        "kernels.same.produced",
        "rings.back.published",
        "sinks.there.frames",
    ] {
        assert_eq!(outcome.count(path), frames, "{path}: {:#}", outcome.report);
    }
    assert_eq!(ledger::lost(&outcome.report, "adc"), 0);
    assert_eq!(bytes(daq, "there").len() as u64, frames * FRAME);
}

/// Returns the bytes of `frames` frames from a kernel that is launched for each burst.
fn launched(frames: u64, faults: &str) -> Vec<u8> {
    let simulated = simulated("");
    let daq = daq(&simulated, &(pipeline(Some(frames), "") + faults));
    let outcome = daq.run(&[]).ok();
    assert_eq!(outcome.count("kernels.same.consumed"), frames);
    assert_eq!(simulated.report()["persistent"], 0);
    bytes(&daq, "there")
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
        assert!(bytes(&daq, "there") == expected, "{keys}: the bytes differ");
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
        assert!(bytes(&daq, "there") == expected, "{backends}");
        stayed(&simulated, FRAMES);
    }
    // A doorbell needs mapped memory.
    let simulated = simulated("");
    let outcome =
        daq(&simulated, &pipeline(Some(FRAMES), STAYS)).run(&["--set", "staging.backends=[]"]);
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("backends"), "{}", outcome.stderr);
    assert_eq!(simulated.report()["persistent"], 0);
    assert_eq!(leaks(&simulated), [""; 0]);
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
            let count = |key: &str| outcome.count(&format!("readers.{reader}.{key}"));
            assert_eq!(
                (count("read"), count("dropped_incomplete"), count("pending")),
                (complete, FRAMES - complete, 0),
                "{keys} {reader}: {:#}",
                outcome.report
            );
        }
        assert_eq!(outcome.count("kernels.same.consumed"), complete, "{keys}");
        assert!(bytes(&daq, "there") == whole, "{keys}: the bytes differ");
    }
}

#[test]
fn persistent_kernel_without_frames_stops() {
    let simulated = simulated("");
    let text = pipeline(Some(1), STAYS).replace("frames = 1\n", "packets = 1\n");
    let daq = daq(&simulated, &text);
    let outcome = daq.run(&[]).ok();
    assert_eq!(
        outcome.count("kernels.same.in"),
        outcome.count("kernels.same.consumed") + outcome.count("kernels.same.failed"),
        "{:#}",
        outcome.report
    );
    assert_eq!(simulated.report()["blocked"], 0);
    assert_eq!(leaks(&simulated), [""; 0]);
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
        assert!(
            outcome.stderr.contains("kernel `same`"),
            "{}",
            outcome.stderr
        );
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
            daq_tests::get(address, "/-/healthy").map_or(true, |response| response.code == 503);
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
        assert!(
            outcome.stderr.contains(name) && outcome.stderr.contains("same"),
            "{options}: {}",
            outcome.stderr
        );
        if options.contains("PERSISTENT") {
            let made = outcome.count("kernels.same.produced");
            assert!(made < 40, "{options}: {:#}", outcome.report);
            assert_eq!(outcome.count("rings.back.published"), made, "{options}");
            // The kernel's last output may not have been copied yet.
            assert!(outcome.count("sinks.there.frames") <= made, "{options}");
            assert!(outcome.count("kernels.same.failed") > 0, "{options}");
        }
        assert_eq!(leaks(&simulated), [""; 0], "{options}");
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
    assert!(bytes(&daq, "end") == bytes(&daq, "there"));
    let report = simulated.report();
    assert_eq!(report["persistent"], 2 * FRAMES);
    assert_eq!(report["launches"], 2);
    assert_eq!(report["blocked"], 0, "{report:#}");
    assert_eq!(leaks(&simulated), [""; 0]);
}

#[test]
fn persistent_kernel_beyond_occupancy_is_rejected() {
    let simulated = simulated("");
    let keys = format!("{STAYS}\nconcurrent_frames = 100\nblocks = 100");
    let outcome = daq(&simulated, &pipeline(Some(10), &keys)).run(&[]);
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("concurrent_frames"),
        "{}",
        outcome.stderr
    );
    assert_eq!(simulated.report()["persistent"], 0);
    assert_eq!(leaks(&simulated), [""; 0]);
}
