//! Tests rings that are spread over two simulated GPUs: every byte that arrives is compared with the bytes of the source,
//! and the ledgers of all shares with the number of frames.

use daq_testkit::{Daq, Outcome, Simulated, assert_contains};

const FRAMES: u64 = 2000;
const FRAME: u64 = 16384;

/// A source of frames with 4 channels of 2048 samples.
const SOURCE: &str = r#"
[source.adc]
driver = "sim"
ring = "raw"
pattern = "counter"
packet = "4 KiB"
frames = 2000
samples = { type = "int16", channels = 4, order = "ORDER" }
[sink.raw-file]
driver = "file"
input = "raw"
path = "raw/"
[ring.raw]
slot = "16 KiB"
slots = 32
memory = ["cuda:0", "cuda:1"]
spread = "SPREAD"
[kernel.first]
file = "as-it-is.ptx"
input = "raw"
output = "turned"
"#;

/// A kernel that reads the ring `turned` on each GPU, and a file with its output.
const SECOND: &str = r#"
[kernel.second]
file = "as-it-is.ptx"
input = "turned"
output = "result"
[ring.result]
slots = 32
[sink.result-file]
driver = "file"
input = "result"
path = "result/"
"#;

/// Returns a pipeline whose ring `raw` is spread by `raw`, and whose ring `turned` has the keys `turned`.
fn pipeline(order: &str, raw: &str, turned: &str) -> String {
    let source = SOURCE.replace("ORDER", order);
    let source = source.replace("\"SPREAD\"", raw);
    format!("{source}[ring.turned]\nslots = 32\n{turned}\n{SECOND}")
}

fn both(spread: &str) -> String {
    format!("memory = [\"cuda:0\", \"cuda:1\"]\nspread = {spread}")
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

/// Runs the pipeline. The result must equal the frames of the source.
fn run(text: &str) -> Outcome {
    let simulated = Simulated::new("gpus=2,latency=20");
    let daq = daq(&simulated, text);
    let outcome = daq.run(&[]).ok();
    let (raw, result) = (daq.data("raw"), daq.data("result"));
    assert_eq!(raw.len() as u64, FRAMES * FRAME);
    assert!(
        result == raw,
        "the frames must arrive unchanged and in order:\n{text}"
    );
    assert_eq!(simulated.leaks(), [""; 0]);
    outcome
}

/// Returns the sum of a count of the copies or kernels whose names begin with `prefix`.
fn sum(outcome: &Outcome, kind: &str, prefix: &str, count: &str) -> u64 {
    let all = outcome.report[kind].as_object().unwrap().iter();
    let found = all.filter(|(name, _)| name.starts_with(prefix));
    found
        .map(|(_, report)| report[count].as_u64().unwrap())
        .sum()
}

#[test]
fn frames_in_turn_are_joined_in_order() {
    let outcome = run(&pipeline("interleaved", "\"frames\"", &both("\"frames\"")));
    for (kind, prefix, count) in [
        ("copies", "raw@", "frames"),
        ("kernels", "first@", "consumed"),
        ("kernels", "second@", "consumed"),
        ("copies", "result", "frames"),
    ] {
        assert_eq!(sum(&outcome, kind, prefix, count), FRAMES, "{prefix}");
    }
    assert_eq!(outcome.count("copies.raw@cuda:1.frames"), FRAMES / 2);
    assert_eq!(outcome.count("kernels.second@cuda:0.consumed"), FRAMES / 2);
}

#[test]
fn corner_turn_between_channels_and_points_is_exact() {
    for order in ["interleaved", "planar"] {
        for (raw, turned) in [
            ("channels", "points"),
            ("points", "channels"),
            ("parts", "parts"),
        ] {
            let text = pipeline(
                order,
                &format!("\"{raw}\""),
                &both(&format!("\"{turned}\"")),
            );
            let outcome = run(&text);
            // Each GPU has a part of each frame.
            let expected = 2 * FRAMES;
            assert_eq!(sum(&outcome, "copies", "raw@", "frames"), expected);
            assert_eq!(sum(&outcome, "kernels", "second@", "consumed"), expected);
            let turned = if raw == turned { 0 } else { expected };
            assert_eq!(sum(&outcome, "copies", "turned@", "frames"), turned);
        }
    }
}

#[test]
fn joined_frames_may_be_on_gpu_or_host() {
    for memory in ["auto", "host", "cuda:1"] {
        let turned = format!("memory = \"{memory}\"");
        let outcome = run(&pipeline("planar", "\"channels\"", &turned));
        assert_eq!(outcome.count("copies.turned.frames"), FRAMES, "{memory}");
    }
}

#[test]
fn lost_gpu_loses_only_its_share_if_declared() {
    let source = SOURCE.replace("ORDER", "planar");
    let source = source.replace("\"SPREAD\"", "{ by = \"channels\", guarantee = false }");
    let text = source
        .replace("order = \"planar\"", "order = \"planar\", rate = \"4 MHz\"")
        .replace("frames = 2000\n", "frames = 4000\n")
        .replace("slots = 32\n", "slots = 256\n")
        + "[ring.turned]\nslots = 32\nmemory = \"host\"\nfill = 238\n\
           [sink.result-file]\ndriver = \"file\"\ninput = \"turned\"\npath = \"result/\"\n";
    let simulated = Simulated::new("gpus=2,fail-async=launch@100:719");
    let daq = daq(&simulated, &text);
    let outcome = daq.run(&["--drain", "2 s"]);
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "the other GPUs continue");
    // The source and its file are not affected.
    let frames = 4000;
    assert_eq!(daq.data("raw").len() as u64, frames * FRAME);
    // Every ring copy and every reader accounts for all frames.
    for gpu in 0..2 {
        let copy = format!("copies.raw@cuda:{gpu}");
        let count = |name: &str| outcome.count(&format!("{copy}.{name}"));
        assert_eq!(
            count("started"),
            count("frames") + count("failed"),
            "{copy}"
        );
        let reader = format!("readers.copy to raw@cuda:{gpu}");
        let count = |name: &str| outcome.count(&format!("{reader}.{name}"));
        assert_eq!(count("published"), frames);
        assert_eq!(count("read") + count("discarded"), frames, "{reader}");
    }
    // One GPU has lost its share, and the other continues.
    let lost = u32::from(outcome.stderr.contains("copies to cuda:1: "));
    let other = 1 - lost;
    let consumed = |gpu: u32| outcome.count(&format!("kernels.first@cuda:{gpu}.consumed"));
    assert!(
        consumed(lost) < 200 && consumed(other) > consumed(lost),
        "{:#}",
        outcome.report
    );
    let joined = outcome.count("copies.turned.frames");
    assert!(joined > frames / 2, "{:#}", outcome.report);
    let (raw, result) = (daq.data("raw"), daq.data("result"));
    assert_eq!(result.len() as u64, joined * FRAME);
    // The last frame has the share of the other GPU, and the fill pattern in place of the lost share.
    let half = usize::try_from(FRAME / 2).unwrap();
    let share = |frame: &[u8], gpu: u32| {
        let start = half * usize::try_from(gpu).unwrap();
        frame[start..start + half].to_vec()
    };
    let last = &result[result.len() - 2 * half..];
    assert!(share(last, lost).iter().all(|byte| *byte == 238));
    let frames = raw.chunks(2 * half);
    assert!(
        frames
            .rev()
            .any(|frame| share(frame, other) == share(last, other))
    );
}
