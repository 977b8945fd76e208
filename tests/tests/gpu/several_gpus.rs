//! Tests pipelines on two simulated GPUs: where kernels run, the copies between rings on both GPUs, and the ledgers after a
//! failure of one of them. Every byte that arrives is compared with the bytes of the source.

use daq_testkit::{Daq, Outcome, Simulated, assert_contains};
use serde_json::Value;

const FRAMES: u64 = 2000;
const FRAME: u64 = 16384;

/// A source whose frames are written to a file, beside the kernels of `kernels`.
fn pipeline(memory: &str, kernels: &[Kernel<'_>]) -> String {
    let text = format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n\
         frames = {FRAMES}\nsamples = {{ type = \"int16\" }}\n\
         [ring.raw]\nmemory = \"{memory}\"\nslot = \"16 KiB\"\nslots = 32\n\
         [sink.raw-file]\ndriver = \"file\"\ninput = \"raw\"\npath = \"raw/\"\n"
    );
    kernels
        .iter()
        .fold(text, |text, kernel| text + &kernel.text())
}

/// A kernel that passes frames on unchanged, its output ring, and a file with its output.
struct Kernel<'a> {
    name: &'a str,
    input: &'a str,
    /// The keys `device` of the kernel and `memory` of its output ring; empty for the defaults.
    device: &'a str,
    memory: &'a str,
}

impl Kernel<'_> {
    fn text(&self) -> String {
        let Self { name, input, .. } = self;
        let key = |key: &str, value: &str| match value {
            "" => String::new(),
            value => format!("{key} = \"{value}\"\n"),
        };
        let (device, memory) = (key("device", self.device), key("memory", self.memory));
        format!(
            "[kernel.{name}]\nfile = \"as-it-is.ptx\"\ninput = \"{input}\"\noutput = \"{name}-out\"\nburst = 5\n{device}\
             [ring.{name}-out]\nslots = 12\n{memory}\
             [sink.{name}-file]\ndriver = \"file\"\ninput = \"{name}-out\"\npath = \"{name}/\"\n"
        )
    }
}

fn daq(simulated: &Simulated, text: &str) -> Daq {
    let daq = simulated
        .on(Daq::new(text))
        .env("VK_DRIVER_FILES", "/dev/null");
    daq.write(
        "as-it-is.ptx",
        ".version 8.0\n.target sm_70\n.address_size 64\n.const .align 4 .u32 daq_header = 2;\n\
         .visible .entry daq_burst()\n{\n    ret;\n}\n",
    );
    daq
}

/// Runs the pipeline. The files of all kernels must equal the file of the source, every copy must have copied all frames,
/// and nothing may be leaked. Returns the outcome and the driver's counts of copied bytes.
fn run(options: &str, text: &str, kernels: &[Kernel<'_>]) -> (Outcome, Value) {
    let simulated = Simulated::new(options);
    let daq = daq(&simulated, text);
    let outcome = daq.run(&[]).ok();
    let raw = daq.data("raw");
    assert_eq!(raw.len() as u64, FRAMES * FRAME);
    for kernel in kernels {
        let name = kernel.name;
        assert_eq!(outcome.count(&format!("kernels.{name}.consumed")), FRAMES);
        assert!(
            daq.data(name) == raw,
            "the frames of `{name}` must equal those of the source"
        );
    }
    for (name, copy) in outcome.report["copies"].as_object().unwrap() {
        assert_eq!(copy["frames"], FRAMES, "{name}: {copy:#}");
        assert_eq!(copy["started"], FRAMES, "{name}: {copy:#}");
    }
    assert_eq!(simulated.leaks(), [""; 0]);
    let copied = simulated.report()["copied"].clone();
    (outcome, copied)
}

fn copies(outcome: &Outcome) -> Vec<String> {
    let copies = outcome.report["copies"].as_object().unwrap();
    copies
        .iter()
        .map(|(to, copy)| format!("{} → {to}", copy["from"].as_str().unwrap()))
        .collect()
}

const NEAR: Kernel<'_> = Kernel {
    name: "near",
    input: "raw",
    device: "",
    memory: "",
};
const FAR: Kernel<'_> = Kernel {
    name: "far",
    device: "cuda:1",
    ..NEAR
};

#[test]
fn one_ring_fans_out_to_kernels_on_both_gpus() {
    let kernels = [NEAR, FAR];
    let text = pipeline("auto", &kernels);
    let (outcome, copied) = run("gpus=2,latency=50", &text, &kernels);
    assert_eq!(
        copies(&outcome),
        [
            "far-out → far-out@host",
            "near-out → near-out@host",
            "raw@host → raw",
            "raw@host → raw@cuda:1"
        ]
    );
    // Frames in host memory are staged to each GPU.
    assert_eq!(copied["peer"], 0, "{copied}");
}

#[test]
fn frames_pass_through_kernels_on_both_gpus() {
    let second = Kernel {
        name: "second",
        input: "near-out",
        ..FAR
    };
    let third = Kernel {
        name: "third",
        input: "second-out",
        device: "cuda:0",
        ..FAR
    };
    let kernels = [NEAR, second, third];
    let text = pipeline("cuda:0", &kernels);
    let (outcome, copied) = run("gpus=2,latency=50", &text, &kernels);
    assert_contains!(outcome.stderr =>
        "cuda:0 → cuda:1: data path verified", "cuda:1 → cuda:0: data path verified"
    );
    // Copies that measure the path are counted in addition.
    let peer = copied["peer"].as_u64().unwrap();
    assert!(peer >= 2 * FRAMES * FRAME, "{copied}");
    let copy = &outcome.report["copies"]["near-out@cuda:1"];
    assert_eq!(copy["from"], "near-out");
    assert!(
        copy["copies"].as_u64().unwrap() < FRAMES,
        "bursts are combined: {copy:#}"
    );
    // GPUs without access to each other exchange the same frames through host memory.
    for (options, declared) in [
        ("gpus=2,no-peer=0:1", ""),
        ("gpus=2,vmm=0", ""),
        ("gpus=2", "[staging]\npeer_access = false\n"),
    ] {
        let (outcome, copied) = run(options, &(text.clone() + declared), &kernels);
        assert_eq!(copied["peer"], 0, "{options}: {copied}");
        let copies = copies(&outcome);
        let through_host = copies.contains(&"near-out@host → near-out@cuda:1".to_owned());
        assert!(through_host, "{options}: {copies:?}");
    }
}

#[test]
fn output_ring_may_be_on_another_gpu() {
    let crossed = Kernel {
        memory: "cuda:1",
        ..NEAR
    };
    let kernels = [crossed];
    let text = pipeline("cuda:0", &kernels);
    let (outcome, copied) = run("gpus=2", &text, &kernels);
    assert_eq!(
        copies(&outcome),
        [
            "near-out@cuda:0 → near-out",
            "near-out@cuda:0 → near-out@host",
            "raw@host → raw"
        ]
    );
    assert!(
        copied["peer"].as_u64().unwrap() >= FRAMES * FRAME,
        "{copied}"
    );
    let (outcome, copied) = run("gpus=2,no-peer=1:0", &text, &kernels);
    assert_eq!(copied["peer"], 0, "{copied}");
    assert_eq!(copies(&outcome)[0], "near-out@host → near-out");
}

#[test]
fn kernel_may_run_on_cpu_beside_gpu() {
    let text = pipeline("cuda:1", &[FAR])
        + "[kernel.health]\nuse = \"stats\"\ndevice = \"cpu\"\ninput = \"raw\"\noutput = \"health\"\n\
           [ring.health]\n[sink.health-end]\ndriver = \"null\"\ninput = \"health\"\n";
    let (outcome, _) = run("gpus=2", &text, &[FAR]);
    assert_eq!(outcome.count("kernels.health.consumed"), FRAMES);
}

/// Runs a pipeline whose second kernel reads the output of the first, with `options` for the driver. The measurements of
/// the copies are made before, with a healthy driver.
fn run_with_fault(options: &str) -> Outcome {
    let second = Kernel {
        input: "near-out",
        ..FAR
    };
    let text = pipeline("cuda:0", &[NEAR, second]) + "[staging]\nchunk = \"64 KiB\"\ndepth = 2\n";
    let text = text.replace("frames = 2000\n", "frames = 200000\n");
    let healthy = Simulated::new("gpus=2");
    let daq = daq(&healthy, &text);
    let state = daq.path("state");
    let state = state.to_str().unwrap();
    let tuned = daq.cli(&["tune", "--state-dir", state]).ok();
    assert_contains!(tuned.stdout => "to cuda:0", "to cuda:1");
    let options = format!("gpus=2,{options}");
    let daq = daq.env("DAQ_SIMULATED_CUDA", &options);
    let mut live = daq.spawn(&["--state-dir", state, "--drain", "1 s"]);
    if options.contains("hang") {
        live.wait_log("the GPU has completed no work");
        live.interrupt();
    }
    let outcome = live.wait();
    assert!(
        !outcome.stderr.contains("measured copy rates"),
        "{}",
        outcome.stderr
    );
    outcome
}

#[test]
fn failed_copy_between_gpus_stops_run_and_ledgers_name_frames() {
    for (options, name) in [
        ("fail-async=peer@60:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("fail-async=peer@60:220", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    ] {
        let outcome = run_with_fault(options);
        assert_eq!(outcome.code, 69, "{options}: {}", outcome.stderr);
        assert_contains!(outcome.stderr => name, "cuda:0"; "{options}");
        let count = |path: &str| outcome.count(&format!("copies.near-out@cuda:1.{path}"));
        assert!(count("failed") > 0, "{options}: {:#}", outcome.report);
        assert_eq!(
            count("started"),
            count("frames") + count("failed") + count("pending")
        );
        assert_eq!(
            outcome.count("rings.near-out@cuda:1.published"),
            count("frames"),
            "{options}"
        );
    }
}

#[test]
fn hanging_copy_between_gpus_does_not_block_exit() {
    let outcome = run_with_fault("hang=peer@50");
    assert_eq!(outcome.code, 70, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "copies from cuda:0 to cuda:1", "has not finished its copies");
    let count = |path: &str| outcome.count(&format!("copies.near-out@cuda:1.{path}"));
    assert!(count("pending") > 0, "{:#}", outcome.report);
    assert_eq!(
        count("started"),
        count("frames") + count("failed") + count("pending")
    );
}

#[test]
fn wrong_bytes_between_gpus_are_detected_at_startup() {
    for nth in 1..=3 {
        let outcome = run_with_fault(&format!("corrupt=peer@{nth}"));
        assert_eq!(outcome.code, 69, "{}", outcome.stderr);
        assert_contains!(outcome.stderr =>
            "copies from cuda:0 to cuda:1 deliver wrong bytes", "set peer_access = false in [staging]"
        );
        assert_eq!(outcome.count("sources.adc.frames"), 0);
    }
}

#[test]
fn missing_gpu_of_kernel_is_reported() {
    let lost = Kernel {
        device: "cuda:7",
        ..NEAR
    };
    let simulated = Simulated::new("gpus=2");
    let daq = daq(&simulated, &pipeline("auto", &[lost]));
    let outcome = daq.run(&[]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr =>
        "kernel `near` needs cuda:7: this machine has cuda:0", "name a GPU of this machine in `device`"
    );
    // The configuration is correct for another machine.
    let _ = daq.cli(&["check", "--no-hardware", "daq.toml"]).ok();
}

#[test]
fn topology_shows_links_between_gpus() {
    for (options, shown) in [
        ("gpus=2", "GPUs that cuda:0 can write: cuda:1 (NVLink)"),
        (
            "gpus=2,nvlink=0",
            "GPUs that cuda:1 can write: cuda:0 (PCIe)",
        ),
        ("gpus=2,no-peer=0:1", "GPUs that cuda:0 can write: none"),
    ] {
        let simulated = Simulated::new(options);
        let shows = simulated.on(Daq::new("")).cli(&["topo"]).ok();
        assert_contains!(shows.stdout => shown; "{options}");
    }
}

#[test]
fn benchmark_compares_gpus() {
    let simulated = Simulated::new("gpus=2,memory=1GiB");
    let daq = simulated
        .on(Daq::new(""))
        .env("VK_DRIVER_FILES", "/dev/null");
    let line = "bench gpus --rounds 1 --window 5ms --ring 64MiB --frames 64KiB --json";
    let tables: Vec<Value> = serde_json::from_str(&daq.cli_line(line).ok().stdout).unwrap();
    let rows = |table: usize| tables[table]["rows"].as_array().unwrap();
    let verified = |table: usize| {
        let verified = rows(table).iter().filter(|row| row["verified"] != "–");
        verified.count()
    };
    assert_eq!(tables.len(), 2, "{tables:#?}");
    assert_eq!((rows(0).len(), verified(0)), (4, 4), "{:#}", tables[0]);
    assert_eq!((rows(1).len(), verified(1)), (10, 3), "{:#}", tables[1]);
    // Within this short time, no large copy of a ring may have ended.
    for row in rows(0).iter().chain(rows(1)) {
        let is_ring = row["verified"] != "–";
        assert!(is_ring || row["GB/s"].as_f64().unwrap() > 0.0, "{row:#}");
        assert_ne!(row["verified"], "0 B", "{row:#}");
    }
    assert_eq!(simulated.leaks(), [""; 0]);
    let alone = daq.cli_line("bench gpus --gpus 1");
    assert_eq!(alone.code, 69);
    assert_contains!(alone.stderr => "only cuda:1 is selected", "--gpus 0,1");
}

#[test]
fn benchmark_verifies_corner_turn() {
    let simulated = Simulated::new("gpus=3,memory=1GiB");
    let daq = simulated
        .on(Daq::new(""))
        .env("VK_DRIVER_FILES", "/dev/null");
    let line =
        "bench turn --rounds 1 --window 5ms --ring 4MiB --frames 256KiB --rows 512B,8KiB --json";
    let tables: Vec<Value> = serde_json::from_str(&daq.cli_line(line).ok().stdout).unwrap();
    assert_eq!(tables.len(), 2, "of two and of three GPUs: {tables:#?}");
    for table in &tables {
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 10, "{table:#}");
        let of_rings = rows.iter().filter(|row| row["method"] == "rings");
        for row in of_rings {
            assert!(
                row["verified per round"].as_str().unwrap().ends_with("MiB"),
                "{row:#}"
            );
        }
        let raw = &rows[0];
        assert!(raw["GB/s over links"].as_f64().unwrap() > 0.0, "{raw:#}");
    }
    assert_eq!(simulated.leaks(), [""; 0]);
}
