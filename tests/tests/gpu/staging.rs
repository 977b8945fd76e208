//! Tests pipelines with rings on a GPU, on the simulated driver: the copies, the reports if there is no GPU, and the
//! ledgers after a GPU failure.

use daq_testkit::{Daq, Outcome, Simulated, assert_contains, assert_counts};

/// A source of 2000 frames in a ring on a GPU. A sink reads a copy of this ring.
const PIPELINE: &str = "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n\
                        frames = 2000\nsamples = { type = \"int16\" }\n\
                        [ring.raw]\nmemory = \"MEMORY\"\nslot = \"16 KiB\"\nslots = 32\n\
                        [sink.end]\ndriver = \"null\"\ninput = \"raw\"\n";

fn pipeline(memory: &str) -> String {
    PIPELINE.replace("MEMORY", memory)
}

/// Checks that all frames read by the copies of `raw` are counted.
fn is_accounted_for(outcome: &Outcome) {
    let count = |path: &str| outcome.count(path);
    assert_eq!(
        count("copies.raw.started"),
        count("copies.raw.frames") + count("copies.raw.failed"),
        "{:#}",
        outcome.report
    );
    assert_eq!(count("rings.raw.published"), count("copies.raw.frames"));
    assert_eq!(count("sinks.end.frames"), count("copies.raw.frames"));
    let reader = &outcome.report["readers"]["copy to raw"];
    let settled = reader["read"].as_u64().unwrap() + reader["discarded"].as_u64().unwrap();
    assert_eq!(count("rings.raw@host.published"), settled, "{reader:#}");
}

#[test]
fn staging_to_gpu_uses_pinned_memory_and_leaks_nothing() {
    for options in ["", "vmm=0", "posix-fd=0", "rdma=0"] {
        let simulated = Simulated::new(options);
        let outcome = simulated.on(Daq::new(&pipeline("auto"))).run(&[]).ok();
        assert_eq!(outcome.count("copies.raw.frames"), 2000);
        is_accounted_for(&outcome);
        let report = simulated.report();
        assert_eq!(report["unregistered"]["copies"], 0, "{options}: {report:#}");
        // The copies measured at startup are counted in addition.
        let copied = report["copied"]["host_to_device"].as_u64().unwrap();
        assert!(copied >= 2000 * 16384, "{options}: {report:#}");
        assert_eq!(simulated.leaks(), [""; 0], "{options}");
        let reported = match options {
            "" => "CUDA virtual memory (cuMemMap), RDMA-capable, shareable with other processes",
            "vmm=0" => "a plain allocation",
            "posix-fd=0" => "CUDA virtual memory (cuMemMap), RDMA-capable\n",
            _ => "CUDA virtual memory (cuMemMap), shareable with other processes",
        };
        assert_contains!(outcome.stderr => reported; "{options}");
    }
}

/// Runs the same source. Its frames pass unchanged through a kernel on the GPU, are copied back, and are written to a
/// file. They are also written directly to another file.
fn through_a_kernel(daq: &Daq) {
    daq.write(
        "as-it-is.ptx",
        ".version 8.0\n.target sm_70\n.address_size 64\n.const .align 4 .u32 daq_header = 2;\n\
         .visible .entry daq_burst()\n{\n    ret;\n}\n",
    );
}

const KERNEL: &str = "[kernel.same]\nfile = \"as-it-is.ptx\"\ninput = \"raw\"\noutput = \"back\"\nburst = 5\n\
                      [ring.back]\nslots = 12\n\
                      [sink.there]\ndriver = \"file\"\ninput = \"back\"\npath = \"there/\"\n\
                      [sink.here]\ndriver = \"file\"\ninput = \"raw\"\npath = \"here/\"\n";

const HTTP: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";

#[test]
fn staging_to_gpu_and_back_preserves_frames() {
    let simulated = Simulated::new("latency=100");
    // Missing packets must also be filled in copies to the GPU.
    let text = pipeline("cuda:0").replace("slots = 32\n", "slots = 32\nfill = 165\n");
    let text = text + KERNEL + "[source.adc.faults]\nloss = 0.05\n";
    let daq = simulated.on(Daq::new(&text));
    through_a_kernel(&daq);
    let outcome = daq.run(&[]).ok();
    assert_eq!(outcome.count("kernels.same.consumed"), 2000);
    assert_eq!(outcome.count("copies.back@host.frames"), 2000);
    assert!(outcome.count("kernels.same.device.launches") >= 400);
    is_accounted_for(&outcome);
    let (there, here) = (daq.data("there"), daq.data("here"));
    assert_eq!(here.len(), 2000 * 16384);
    let lost = outcome.report["sources"]["adc"]["lost"]["wire_gap"]
        .as_u64()
        .unwrap();
    let filled = here
        .chunks(4096)
        .filter(|packet| packet.iter().all(|byte| *byte == 165));
    assert!(lost > 0 && filled.count() as u64 == lost, "{lost} lost");
    assert!(
        there == here,
        "the frames from the GPU must equal the frames of the source"
    );
    // At startup, a variable of the code is read into unregistered memory.
    let unregistered = &simulated.report()["unregistered"]["bytes"];
    assert!(unregistered.as_u64().unwrap() <= 64, "{unregistered}");
    assert_eq!(simulated.leaks(), [""; 0]);
}

#[test]
fn kernel_failure_or_hang_is_reported_and_ledgers_balance() {
    for (options, reported) in [
        ("fail=cuLaunchKernel@20:719", "CUDA_ERROR_LAUNCH_FAILED"),
        ("fail-async=LAUNCH@20:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("hang=launch@20", "has not finished"),
    ] {
        let simulated = Simulated::new(options);
        let text =
            pipeline("cuda:0").replace("frames = 2000\n", "frames = 200000\n") + KERNEL + HTTP;
        let daq = simulated.on(Daq::new(&text));
        through_a_kernel(&daq);
        let mut live = daq.spawn(&["--drain", "1 s"]);
        if options.starts_with("hang") {
            live.wait_log("the GPU has completed no work");
            live.interrupt();
        }
        let outcome = live.wait();
        let code = if options.starts_with("hang") { 70 } else { 69 };
        assert_eq!(outcome.code, code, "{options}: {}", outcome.stderr);
        assert_contains!(outcome.stderr => reported; "{options}");
        let made = outcome.count("kernels.same.produced");
        assert_eq!(outcome.count("rings.back.published"), made, "{options}");
        assert!(
            outcome.count("kernels.same.in") > outcome.count("kernels.same.consumed"),
            "{options}"
        );
    }
}

#[test]
fn tuning_is_cached_until_machine_changes() {
    let simulated = Simulated::new("");
    let daq = simulated.on(Daq::new(&pipeline("cuda:0")));
    let measured = "measured copy rates";
    let outcome = daq.run(&[]).ok();
    assert!(outcome.stderr.contains(measured), "{}", outcome.stderr);
    let state = daq.path("state");
    let tuned = daq
        .cli(&["tune", "--state-dir", state.to_str().unwrap()])
        .ok();
    assert!(tuned.stdout.contains("chunk"), "{}", tuned.stdout);
    let reported = "CPU stores are faster than GPU copies";
    let refused = "CPU stores to GPU memory are not available";
    assert!(
        tuned.stdout.contains(reported) || tuned.stdout.contains(refused),
        "{}",
        tuned.stdout
    );
    let state = ["--state-dir", state.to_str().unwrap()];
    let outcome = daq.run(&state).ok();
    assert!(!outcome.stderr.contains(measured), "{}", outcome.stderr);
    // Another version of the driver invalidates the saved profile.
    let newer = daq.env("DAQ_SIMULATED_CUDA", "version=13010");
    let outcome = newer.run(&state).ok();
    assert!(outcome.stderr.contains(measured), "{}", outcome.stderr);
}

#[test]
fn tuning_measures_cpu_stores_or_reports_obstacle() {
    for (simulated, maps) in [
        (Simulated::new(""), false),
        (Simulated::new("").with_gdr(""), true),
    ] {
        // Hide an installed Vulkan loader, which might find a GPU that is not simulated.
        let daq = simulated
            .on(Daq::new(&pipeline("cuda:0")))
            .env("VK_DRIVER_FILES", "/dev/null");
        let common = ["--rounds", "1", "--stores", "4 B,100 B", "--json"];
        for (what, tables) in [("latency", 4), ("bandwidth", 2)] {
            let mut args = vec!["bench", "copy", "--mode", what, "--sizes", "64 B,4 KiB"];
            args.extend(common);
            if what == "bandwidth" {
                args.extend(["--window", "1 ms"]);
            }
            let reported = daq.cli(&args).ok().stdout;
            let reported: Vec<serde_json::Value> = serde_json::from_str(&reported).unwrap();
            let rows = |table: &serde_json::Value| table["rows"].as_array().unwrap().clone();
            assert_eq!(rows(&reported[0]).len(), 2, "{reported:#?}");
            let last = &reported[reported.len() - 1];
            let is_refused = last["title"].as_str().unwrap().contains("no backend maps");
            assert_eq!(is_refused, !maps, "{what}: {reported:#?}");
            if is_refused {
                assert!(
                    rows(last).len() >= 3,
                    "the table must list each rejected backend: {last:#}"
                );
                assert!(rows(last).iter().all(|row| row["reason"] != ""));
                continue;
            }
            assert_eq!(reported.len(), tables, "{reported:#?}");
            let stores = rows(&reported[tables.min(3) - 1]);
            // Two sizes with four pairs of offsets each.
            assert_eq!(stores.len(), 8, "{stores:#?}");
            for row in &stores {
                for method in ["daq", "memcpy", "best reference ÷ daq"] {
                    assert!(row[method].as_f64().unwrap() > 0.0, "{row:#}");
                }
            }
        }
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn plan_without_usable_driver_places_rings_in_host_memory() {
    let old = Simulated::new("version=11040");
    let incomplete = Simulated::new("").without("cuMemCreate");
    let empty = Simulated::new("no-init=100");
    // A driver that is newer than the bindings may return an unknown code.
    let unknown = Simulated::new("no-init=12345");
    for (simulated, why) in [
        (None, "this machine has no NVIDIA GPU"),
        (
            Some(&old),
            "the driver supports CUDA 11.4, but daq needs 12.0",
        ),
        (Some(&incomplete), "libcuda.so.1 lacks cuMemCreate"),
        (Some(&empty), "CUDA_ERROR_NO_DEVICE"),
        (Some(&unknown), "error 12345"),
    ] {
        let mut daq = Daq::new(&pipeline("auto"));
        if let Some(simulated) = simulated {
            daq = simulated.on(daq);
        }
        let plan = daq.cli(&["plan", "daq.toml"]).ok();
        if simulated.is_none() && plan.stdout.contains("ring raw @ cuda:") {
            daq_testkit::skip!(
                "this machine has a GPU, so the output without a GPU cannot be checked"
            );
        }
        // Without PCI devices in /sys, only the missing library is known.
        let is_unknown = simulated.is_none() && plan.stdout.contains("libcuda.so.1 was not found");
        assert!(
            plan.stdout.contains("ring raw @ host") && (plan.stdout.contains(why) || is_unknown),
            "{}",
            plan.stdout
        );
        let outcome = daq.run(&[]).ok();
        assert_eq!(outcome.count("sinks.end.frames"), 2000);
    }
    // A GPU that is requested by its number must be reported as missing.
    let daq = old.on(Daq::new(&pipeline("cuda:0")));
    let outcome = daq.run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("CUDA 11.4"), "{}", outcome.stderr);
}

#[test]
fn gpu_memory_too_small_is_reported_with_available_size() {
    let simulated = Simulated::new("memory=16MiB");
    let text = pipeline("cuda:0").replace("slots = 32", "slots = 2048");
    let outcome = simulated.on(Daq::new(&text)).run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr =>
        "needs 32 MiB of memory on cuda:0", "the GPU has 16 MiB", "reduce `slots` or `slot`", "`raw`"
    );
    assert_eq!(simulated.leaks(), [""; 0]);
}

/// Without this section, the copies measured at startup would fail and end the run before it starts.
const TUNED: &str = "[staging]\nchunk = \"64 KiB\"\ndepth = 2\n";

#[test]
fn gpu_failure_stops_run_and_ledgers_balance() {
    let text = pipeline("cuda:0") + TUNED;
    let state = |daq: &Daq| {
        let state = daq.path("state");
        let _ = daq
            .cli(&["tune", "--state-dir", state.to_str().unwrap()])
            .ok();
        state.to_str().unwrap().to_owned()
    };
    // In one case the call fails. In the other, the copy fails later and makes the context unusable.
    for (options, name) in [
        (
            "fail=cuMemcpyHtoDAsync_v2@100:719",
            "CUDA_ERROR_LAUNCH_FAILED",
        ),
        ("fail-async=COPY@60:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("fail-async=COPY@1:214", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ] {
        let healthy = Simulated::new("");
        let daq = healthy.on(Daq::new(&text));
        let state = state(&daq);
        let daq = daq.env("DAQ_SIMULATED_CUDA", options);
        let outcome = daq.run(&["--state-dir", &state]);
        assert_eq!(outcome.code, 69, "{options}: {}", outcome.stderr);
        assert_contains!(outcome.stderr => name, "copies to cuda:0"; "{options}");
        is_accounted_for(&outcome);
        assert!(outcome.count("copies.raw.failed") > 0, "{options}");
        assert_eq!(healthy.leaks(), [""; 0], "{options}");
    }
}

#[test]
fn gpu_hang_does_not_block_exit() {
    let simulated = Simulated::new("");
    let text = pipeline("cuda:0").replace("frames = 2000\n", "") + TUNED + HTTP;
    let daq = simulated.on(Daq::new(&text));
    let state = daq.path("state");
    let state = state.to_str().unwrap();
    let _ = daq.cli(&["tune", "--state-dir", state]).ok();
    let daq = daq.env("DAQ_SIMULATED_CUDA", "hang=copy@50");
    let mut live = daq.spawn(&["--state-dir", state, "--drain", "1 s"]);
    // The hang must be reported before the run is stopped.
    daq_testkit::wait_for("a stall", || {
        (live.get("/-/healthy").code == 503).then_some(())
    });
    live.wait_log("the GPU has completed no work");
    live.interrupt();
    let outcome = live.wait();
    assert_eq!(outcome.code, 70, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "has not finished its copies");
    assert!(
        outcome.count("copies.raw.pending") > 0,
        "{:#}",
        outcome.report
    );
    assert_counts!(outcome, "rings.raw" => published: outcome.count("copies.raw.frames"));
}
