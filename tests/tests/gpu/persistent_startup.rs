//! Kernels that stay on their GPU, through the whole binary on the simulated driver, where not all is as the plan said:
//! GPU memory that cannot be mapped after all, calls of the start that fail, and hangs that nothing but a clock shows.

use daq_tests::{Daq, Simulated};

/// What the compiler of the simulated driver makes of it gives each frame as it is.
const SOURCE: &str = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                      for (daq::Size i = in.index(); i < out.capacity; i += in.stride())\n        \
                      out.as<char>()[i] = in.as<const char>()[i];\n}\n";

const FRAME: u64 = 16_384;
const FRAMES: u64 = 200;
const STAYS: &str = "dispatch = \"persistent\"";
/// A second kernel, behind the first.
const AGAIN: &str = "[kernel.again]\nfile = \"same.cu\"\ninput = \"back\"\noutput = \"twice\"\ndispatch = \"persistent\"\n\
                     [ring.twice]\nslots = 16\n[sink.end]\ndriver = \"file\"\ninput = \"twice\"\npath = \"end/\"\n";

/// A source of `FRAMES` frames that go through a kernel of the user's, to a file in `there/`.
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

/// A run on the simulated driver and its compiler. Of Vulkan none is found: a loader that is there might know a GPU that
/// is none of the machine's.
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

/// No call waited for a kernel, and all was given back but contexts, which live as long as the process.
fn is_clean(simulated: &Simulated, what: &str) {
    let report = simulated.report();
    assert_eq!(report["blocked"], 0, "{what}: {report:#}");
    let leaks = report["leaks"].as_object().expect("the driver was called");
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
        // The plan maps something first, measuring does next, then comes the ring, and then the doorbell. One call fails
        // and another kind of memory is tried; or all do from one on.
        for first in 2..=5 {
            for last in [first, 20] {
                let fails = (first..=last).map(|nth| format!("fail={function}@{nth}:12"));
                let faults = fails.collect::<Vec<_>>().join(",");
                let what = format!("{function} {first} to {last}");
                let simulated = simulated("").with_gdr(&faults);
                let daq = daq(&simulated, &pipeline(STAYS));
                let outcome = daq.run(&[]).ok();
                for path in [
                    "kernels.same.in",
                    "kernels.same.consumed",
                    "kernels.same.made",
                    "rings.back.published",
                    "sinks.there.frames",
                ] {
                    assert_eq!(outcome.count(path), FRAMES, "{what}, {path}");
                }
                assert!(bytes(&daq, "there") == expected, "{what}: other bytes");
                let report = simulated.report();
                assert_eq!(report["resident"], FRAMES, "{what}");
                is_clean(&simulated, &what);
                // What was mapped is unmapped, what was pinned is unpinned.
                let calls = simulated.gdr_calls();
                let answered = |call: &str| calls.iter().filter(|logged| *logged == call).count();
                assert_eq!(answered("gdr_map 0"), answered("gdr_unmap 0"), "{what}");
                let pinned = answered("gdr_pin_buffer 0");
                assert_eq!(pinned, answered("gdr_unpin_buffer 0"), "{what}");
                let logged = |text: &str| usize::from(outcome.stderr.contains(text));
                without_ring += logged("its frames go by the copy engine");
                without_bell += logged("doorbell by host");
            }
        }
    }
    // Each function was the reason for each at least once.
    assert!(without_ring >= 2, "{without_ring}");
    assert!(without_bell >= 2, "{without_bell}");
}

#[test]
fn startup_failure_names_kernel_and_leaks_nothing() {
    for (call, kernels) in [
        // The second kernel cannot begin while the first stays.
        ("cuLaunchKernel", ["same", "again"]),
        // The same, and what tells of its end is missing: the kernel is there and must go.
        ("cuEventRecord", ["same", "again"]),
        // Before any of them begins.
        ("cuStreamCreate", ["same", "again"]),
    ] {
        for (nth, kernel) in (1..).zip(kernels) {
            let what = format!("{call}@{nth}");
            let healthy = simulated("").with_gdr("");
            let daq = daq(&healthy, &(pipeline(STAYS) + AGAIN));
            let state = daq.path("state");
            let state = ["--state-dir", state.to_str().unwrap()];
            // What the start would measure makes these calls too.
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
            assert_eq!(healthy.report()["resident"], 0, "{what}");
            is_clean(&healthy, &what);
        }
    }
}

#[test]
fn hang_with_slow_frames_is_detected() {
    // Ten frames a second, each of which is a sign of life to whoever counts what is begun; the rings take all that come
    // in minutes, so that nothing is ever full.
    let text = pipeline(STAYS)
        .replace(
            &format!("frames = {FRAMES}\n"),
            "pace = \"1310720 bit/s\"\n",
        )
        .replace("slots = 32", "slots = 4096")
        .replace("slots = 12", "slots = 4096");
    let simulated = simulated("hang=resident@1").with_gdr("");
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
    // Frames came while it hung, and there was room for more.
    let taken = outcome.count("kernels.same.in");
    assert!((2..2048).contains(&taken), "{:#}", outcome.report);
    assert_eq!(outcome.count("kernels.same.made"), 0);
    assert_eq!(outcome.count("rings.back.published"), 0);
    let report = simulated.report();
    assert_eq!(report["blocked"], 0, "{report:#}");
    // It hung in the first.
    assert_eq!(report["resident"], 1, "{report:#}");
}
