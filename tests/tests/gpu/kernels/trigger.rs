//! Tests the example `configs/trigger.toml`. Its kernel must make the same decisions as a Python reference, which was
//! written from the documented rules, not from the kernel's code. The kernel runs compiled for the CPU on every
//! machine, and unchanged on a GPU if there is one.

use daq_core::gpu::driver::{self, Compiler};
use daq_pipelines::kernels::file::HEADER;
use daq_testkit::{Daq, Python, Random, program, python, repository, skip};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A sink that records the samples in addition to the decisions.
const RAW: &str = "\n[sink.raw]\ndriver = \"file\"\ninput = \"raw\"\npath = \"daq-out\"\n";

/// Runs the reference with `arguments` and returns its counts. Panics if a decision differs.
fn reference(python: &Python, arguments: &[String]) -> Value {
    let script = std::fs::read_to_string(repository().join("tests/trigger_reference.py")).unwrap();
    let config = config().to_str().unwrap().to_owned();
    let arguments: Vec<String> = [config]
        .into_iter()
        .chain(arguments.iter().cloned())
        .collect();
    serde_json::from_str(&python.run(&script, &arguments)).unwrap()
}

fn config() -> PathBuf {
    repository().join("configs/trigger.toml")
}

/// Returns the number of frames, and how often each outcome was counted.
fn outcomes(counts: &Value) -> [u64; 5] {
    ["frames", "quiet", "alone", "vetoed", "triggered"].map(|name| counts[name].as_u64().unwrap())
}

/// The kernel, compiled as a program for the CPU.
struct OnTheHost {
    dir: tempfile::TempDir,
}

impl OnTheHost {
    fn build() -> Result<Self, String> {
        if program("g++").is_none() {
            return Err("g++ is not installed (Debian package g++)".to_owned());
        }
        let dir = tempfile::tempdir().unwrap();
        let root = repository();
        std::fs::write(dir.path().join("daq.cuh"), HEADER).unwrap();
        let compiled = Command::new("g++")
            .args(["-std=c++20", "-O2", "-fno-strict-aliasing"])
            // Threads of a block are switched by longjmp, which fortified builds reject as stack corruption.
            .args(["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"])
            .arg("-I")
            .arg(dir.path())
            .arg("-I")
            .arg(root.join("configs/kernels"))
            .arg(root.join("pipelines/tests/cuda_on_host/trigger.cpp"))
            .arg("-o")
            .arg(dir.path().join("trigger"))
            .output()
            .unwrap();
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        Ok(Self { dir })
    }

    /// Runs the kernel on the frames in the file `raw`. Checks that the result does not depend on the number of
    /// threads, and compares the result with the reference.
    fn compare(&self, python: &Python, raw: &Path, case: &Case) -> Value {
        let records = self.dir.path().join("records");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut decided = None;
        for dispatch in ["launch", "persistent"] {
            for (threads, blocks) in [(256, 1), (32, 1), (96, 3)] {
                let status = Command::new(self.dir.path().join("trigger"))
                    .args([dispatch, &case.channels.to_string()])
                    .args([case.points, threads, blocks].map(|number| number.to_string()))
                    .args([text(raw), text(&records)])
                    .args(&case.params)
                    .status()
                    .unwrap();
                let what = format!("{case:?}, {dispatch}, {blocks} blocks of {threads} threads");
                assert!(status.success(), "{what}");
                let records = std::fs::read(&records).unwrap();
                assert!(
                    *decided.get_or_insert_with(|| records.clone()) == records,
                    "{what}"
                );
            }
        }
        let mut arguments = vec![text(raw), text(&records)];
        arguments.push(format!("channels={}", case.channels));
        arguments.push(format!("points={}", case.points));
        arguments.extend(case.params.iter().cloned());
        reference(python, &arguments)
    }
}

/// A frame layout, and the parameters that differ from the kernel's defaults.
#[derive(Clone, Debug)]
struct Case {
    channels: usize,
    points: usize,
    params: Vec<String>,
}

impl Case {
    fn new(channels: usize, points: usize, params: &str) -> Self {
        Self {
            channels,
            points,
            params: params.split_whitespace().map(str::to_owned).collect(),
        }
    }
}

/// Returns `count` frames of `case`. All kinds of frames occur in turn, with random details.
fn frames(case: &Case, random: &mut Random, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for kind in 0..count {
        for channel in frame(case, random, kind % 8) {
            bytes.extend(channel.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
    bytes
}

fn frame(case: &Case, random: &mut Random, kind: u64) -> Vec<Vec<i16>> {
    let points = case.points as u64;
    let mut within = |low: i16, high: i16| {
        let numbers = u64::try_from(i32::from(high) - i32::from(low) + 1).unwrap();
        i16::try_from(i64::from(low) + random.below(numbers).cast_signed()).unwrap()
    };
    let mut channels: Vec<Vec<i16>> = (0..case.channels)
        .map(|_| {
            let level = within(-3000, 3000);
            (0..points)
                .map(|_| match kind {
                    // Kinds 0 to 4: all samples equal; all minimum; all maximum; minimum and maximum mixed; a few
                    // values that are often equal.
                    0 => level,
                    1 => i16::MIN,
                    2 => i16::MAX,
                    3 => [i16::MIN, i16::MAX][usize::from(within(0, 9) == 0)],
                    4 => within(-1, 1) * 700,
                    // Other kinds: noise, to which pulses are added below.
                    _ => level + within(-20, 20),
                })
                .collect()
        })
        .collect();
    if kind == 0 || kind > 4 {
        for _ in 0..random.below(6) {
            // Pulses are closer together than by chance, and often at the ends of the frame.
            let near = match random.below(4) {
                0 => 0,
                1 => points - 1,
                _ => random.below(points),
            };
            let begin = (near + random.below(12)).min(points - 1);
            let height = match random.below(4) {
                // The height is exactly the threshold above a level baseline, one less than that, or far more.
                0 => 1500,
                1 => 1499,
                2 => 29_000,
                _ => i16::try_from(random.below(6000)).unwrap(),
            };
            let long = 1 + random.below(30);
            let first = random.below(case.channels as u64);
            let last = (first + random.below(4)).min(case.channels as u64 - 1);
            for channel in
                &mut channels[usize::try_from(first).unwrap()..=usize::try_from(last).unwrap()]
            {
                for (t, x) in (0..).zip(channel) {
                    if (begin..begin + long).contains(&t) {
                        *x = x.saturating_add(height);
                    }
                }
            }
        }
    }
    channels
}

#[test]
fn trigger_decisions_equal_reference() {
    let python = python!("numpy", "tomllib");
    let kernel = match OnTheHost::build() {
        Ok(kernel) => kernel,
        Err(why) => skip!("{why}"),
    };
    let typical = "threshold=1500 coincidence=3 window=8 veto=0x80 veto_window=16";
    let mut random = Random(4);
    let raw = kernel.dir.path().join("raw");
    let mut total = [0; 5];
    for (case, count) in [
        (Case::new(8, 256, typical), 1600),
        // Extreme cases: one sample, fewer samples than parts, samples that are not a multiple of the parts, all bits
        // of a mask, the longest frame, and the largest frame.
        (
            Case::new(
                1,
                1,
                "threshold=1 coincidence=1 window=0 veto=0 veto_window=0",
            ),
            80,
        ),
        (
            Case::new(
                3,
                7,
                "threshold=1000 coincidence=2 window=3 veto=1 veto_window=1",
            ),
            400,
        ),
        (
            Case::new(
                5,
                100,
                "threshold=1500 coincidence=2 window=0 veto=0x12 veto_window=0",
            ),
            400,
        ),
        (
            Case::new(
                32,
                256,
                "threshold=700 coincidence=4 window=20 veto=0x80000001 veto_window=300",
            ),
            160,
        ),
        (
            Case::new(
                4,
                2048,
                "threshold=1500 coincidence=2 window=5000 veto=8 veto_window=40",
            ),
            80,
        ),
        // Parameters that are valid but not useful.
        (
            Case::new(
                8,
                64,
                "threshold=-5 coincidence=0 window=2 veto=0xff veto_window=2",
            ),
            80,
        ),
        (
            Case::new(
                8,
                64,
                "threshold=100 coincidence=0 window=-1 veto=0 veto_window=-1",
            ),
            80,
        ),
    ] {
        std::fs::write(&raw, frames(&case, &mut random, count)).unwrap();
        let counted = outcomes(&kernel.compare(&python, &raw, &case));
        assert_eq!(counted[0], count);
        total
            .iter_mut()
            .zip(counted)
            .for_each(|(total, more)| *total += more);
    }
    assert!(total.iter().all(|count| *count > 50), "{total:?}");
}

#[test]
fn trigger_frame_too_large_is_reported() {
    let kernel = match OnTheHost::build() {
        Ok(kernel) => kernel,
        Err(why) => skip!("{why}"),
    };
    let (raw, records) = (
        kernel.dir.path().join("raw"),
        kernel.dir.path().join("records"),
    );
    for (channels, points) in [(33, 8), (1, 2049), (5, 2000)] {
        std::fs::write(&raw, vec![0; 2 * channels * points]).unwrap();
        let status = Command::new(kernel.dir.path().join("trigger"))
            .arg("launch")
            .args([channels, points, 64, 1].map(|number| number.to_string()))
            .args([&raw, &records])
            .status()
            .unwrap();
        assert!(status.success());
        let mut expected = vec![0_i32; 8 + channels];
        expected[2] = -1;
        let expected: Vec<u8> = expected.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(std::fs::read(&records).unwrap(), expected);
    }
}

#[test]
fn simulated_detector_produces_all_event_types() {
    let python = python!("numpy", "tomllib");
    let kernel = match OnTheHost::build() {
        Ok(kernel) => kernel,
        Err(why) => skip!("{why}"),
    };
    let text = std::fs::read_to_string(config()).unwrap();
    let parsed: toml::Table = text.parse().unwrap();
    let params = parsed["kernel"]["trigger"]["params"].as_table().unwrap();
    let params: Vec<_> = params
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_integer().unwrap()))
        .collect();
    let (source, _) = text.split_once("[kernel.trigger]").unwrap();
    let daq = Daq::new(&format!("{source}{RAW}"));
    let set = ["pace=free", "frames=2000"].map(|key| format!("source.detector.{key}"));
    let outcome = daq.run(&["--set", &set[0], "--set", &set[1]]).ok();
    assert_eq!(outcome.count("sinks.raw.frames"), 2000);
    let raw = daq.path("daq-out/raw-000000.sigmf-data");
    let case = Case {
        params,
        ..Case::new(8, 256, "")
    };
    let counts = kernel.compare(&python, &raw, &case);
    let counted = outcomes(&counts);
    assert_eq!(counted[0], 2000);
    assert!(counted.iter().all(|count| *count > 20), "{counted:?}");
    // The reference also reads recordings, in which it finds frames by their sequence numbers. Here, decisions exist
    // only for some runs of frames.
    let records = std::fs::read(kernel.dir.path().join("records")).unwrap();
    let runs = [(5, 100), (700, 1), (1900, 100)];
    let some: Vec<u8> = runs
        .iter()
        .flat_map(|(first, frames)| &records[64 * first..64 * (first + frames)])
        .copied()
        .collect();
    let captures = runs.map(|(first, frames)| json!({"daq:sequence": first, "daq:frames": frames}));
    let meta = json!({ "captures": captures }).to_string();
    std::fs::write(daq.path("daq-out/decisions-000000.sigmf-data"), some).unwrap();
    let _ = daq.write("daq-out/decisions-000000.sigmf-meta", &meta);
    let counts = reference(&python, &[daq.path("daq-out").to_str().unwrap().to_owned()]);
    assert!(counts["frames"] == 201 && counts["wrong"] == 0, "{counts}");
}

#[test]
fn trigger_on_gpu_equals_reference() {
    if let Err(why) = driver::probe() {
        skip!("{why}");
    }
    if let Err(why) = Compiler::find() {
        skip!("{why}");
    }
    let python = python!("numpy", "tomllib");
    let text = std::fs::read_to_string(config()).unwrap();
    let code = std::fs::read_to_string(repository().join("configs/kernels/trigger.cu")).unwrap();
    let mut results = Vec::new();
    for dispatch in ["launch", "persistent"] {
        let mut daq = Daq::new(&format!("{text}{RAW}"));
        if let Ok(compiler) = std::env::var("DAQ_NVRTC") {
            daq = daq.env("DAQ_NVRTC", &compiler);
        }
        daq.write("configs/kernels/trigger.cu", &code);
        let set = [
            "source.detector.pace=free".to_owned(),
            "source.detector.frames=4000".to_owned(),
            "http.listen=127.0.0.1:0".to_owned(),
            format!("kernel.trigger.dispatch={dispatch}"),
        ];
        let set: Vec<&str> = set.iter().flat_map(|one| ["--set", one]).collect();
        let _ = daq.run(&set).ok();
        let out = daq.path("daq-out");
        let counts = reference(&python, &[out.to_str().unwrap().to_owned()]);
        let counted = outcomes(&counts);
        assert!(counted[0] == 4000 && counts["wrong"] == 0, "{counts}");
        assert!(counted.iter().all(|count| *count > 20), "{counts}");
        results.push(std::fs::read(out.join("decisions-000000.sigmf-data")).unwrap());
    }
    assert!(
        results[0] == results[1],
        "the dispatch methods must give the same decisions"
    );
}
