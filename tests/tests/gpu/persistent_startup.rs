//! Tests persistent kernels in whole runs on the simulated driver when something fails: GPU memory that cannot be
//! mapped, calls that fail at startup, and hangs that only a timeout detects.

use daq_tests::{Daq, Simulated};

/// The simulated driver's compiler turns this source into a kernel that copies each frame unchanged.
const SOURCE: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                      for (daq::Size i = in.index(); i < out.capacity; i += in.stride())\n        \
                      out.as<char>()[i] = in.as<const char>()[i];\n}\n";

const FRAME: u64 = 16_384;
const FRAMES: u64 = 200;
const STAYS: &str = "dispatch = \"persistent\"";
/// A second kernel, which reads the output of the first.
const AGAIN: &str = "[kernel.again]\nfile = \"same.cu\"\ninput = \"back\"\noutput = \"twice\"\ndispatch = \"persistent\"\n\
                     [ring.twice]\nslots = 16\n[sink.end]\ndriver = \"file\"\ninput = \"twice\"\npath = \"end/\"\n";

/// Returns a source of `FRAMES` frames that pass through a user's kernel to a file in `there/`.
fn pipeline(kernel: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\nframes = {FRAMES}\n\
         samples = {{ type = \"int16\" }}\n\
         [ring.raw]\nslot = {FRAME}\nslots = 32\nfill = 165\n\
         [kernel.same]\nfile = \"same.cu\"\ninput = \"raw\"\noutput = \"back\"\nburst = 5\n{kernel}\n\
         [ring.back]\nslots = 12\n\
         [sink.there]\ndriver = \"file\"\ninput = \"back\"\npath = \"there/\"\n"
    )
}

/// Returns a run with the simulated driver and its compiler. Hides Vulkan, because an installed loader might find a GPU
/// that is not simulated.
fn daq(simulated: &Simulated, text: &str) -> Daq {
    let daq = simulated
        .on(Daq::new(text))
        .env("VK_DRIVER_FILES", "/dev/null");
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

/// Checks that no call has waited for a kernel, and that everything was freed except for contexts, which live as long
/// as the process.
fn is_clean(simulated: &Simulated, what: &str) {
    let report = simulated.report();
    assert_eq!(report["blocked"], 0, "{what}: {report:#}");
    let leaks = report["leaks"]
        .as_object()
        .expect("the simulated driver must have been called");
    for (of, count) in leaks.iter().filter(|(of, _)| *of != "contexts") {
        assert_eq!(*count, 0, "{what}: {of} leaked: {report:#}");
    }
}

#[test]
fn bar_mapping_failure_at_startup_falls_back() {
    let launches = simulated("");
    let launched = daq(&launches, &pipeline(""));
    let _ = launched.run(&[]).ok();
    let expected = bytes(&launched, "there");
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
                let daq = daq(&simulated, &pipeline(STAYS));
                let outcome = daq.run(&[]).ok();
                for path in [
                    "kernels.same.in",
                    "kernels.same.consumed",
                    "kernels.same.produced",
                    "rings.back.published",
                    "sinks.there.frames",
                ] {
                    assert_eq!(outcome.count(path), FRAMES, "{what}, {path}");
                }
                assert!(bytes(&daq, "there") == expected, "{what}: other bytes");
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
            let daq = daq(&healthy, &(pipeline(STAYS) + AGAIN));
            let state = daq.path("state");
            let state = ["--state-dir", state.to_str().unwrap()];
            // The measurements at startup also make these calls, so make them before.
            let _ = daq.cli(&["tune", state[0], state[1]]).ok();
            let daq = daq.env("DAQ_SIMULATED_CUDA", &format!("fail={what}:2"));
            let outcome = daq.run(&state);
            assert_eq!(outcome.code, 69, "{what}: {}", outcome.stderr);
            assert!(
                outcome.stderr.contains("CUDA_ERROR_OUT_OF_MEMORY")
                    && outcome.stderr.contains(&format!("kernel `{kernel}`")),
                "{what}: {}",
                outcome.stderr
            );
            assert_eq!(healthy.report()["persistent"], 0, "{what}");
            is_clean(&healthy, &what);
        }
    }
}

#[test]
fn hang_with_slow_frames_is_detected() {
    // The source sends ten frames per second. A check that counts submitted frames would mistake each of them for
    // progress. The rings have room for the frames of several minutes, so they never become full.
    let text = pipeline(STAYS)
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
    assert!(
        outcome.stderr.contains("kernel `same`"),
        "{}",
        outcome.stderr
    );
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
