//! Tests of plans with rings that are spread over several GPUs.

use super::*;
use crate::layout::Spread;
use crate::staging::Tile;

/// Frames of 4 channels are divided, processed on two GPUs, and written to a file.
const TURN: &str = r#"
[source.adc]
driver = "fake"
packet = "1 KiB"
channels = 4
ring = "raw"

[ring.raw]
slot = "4 KiB"
slots = 8
memory = ["cuda:0", "cuda:1"]
spread = "channels"

[kernel.fft]
use = "quarter"
gpu = true
input = "raw"
output = "spectra"

[ring.spectra]
memory = ["cuda:0", "cuda:1"]
spread = "points"

[kernel.sum]
use = "quarter"
gpu = true
input = "spectra"
output = "sums"

[ring.sums]

[sink.disk]
driver = "void"
input = "sums"
"#;

fn plan(text: &str) -> Plan {
    plan_of(text, &two_gpus(Some(PeerLink::NvLink))).unwrap()
}

fn error(text: &str) -> String {
    plan_of(text, &two_gpus(Some(PeerLink::NvLink))).unwrap_err()
}

fn readers<'a>(plan: &'a Plan, ring: &str) -> Vec<&'a str> {
    let ring = plan.ring(ring).unwrap();
    ring.readers.iter().map(String::as_str).collect()
}

fn tile(plan: &Plan, ring: &str) -> Tile {
    let share = plan.ring(ring).unwrap().share.clone().unwrap();
    share.tile.unwrap().1
}

#[test]
fn shares_are_turned_between_kernels_and_joined_at_the_end() {
    let plan = plan(TURN);
    assert_eq!(
        names(&plan),
        [
            "raw@host",
            "raw@cuda:0",
            "raw@cuda:1",
            "spectra@fft@cuda:0",
            "spectra@fft@cuda:1",
            "spectra@cuda:0",
            "spectra@cuda:1",
            "sums@sum@cuda:0",
            "sums@sum@cuda:1",
            "sums",
        ]
    );
    assert_eq!(plan.sources[0].ring, "raw@host");
    assert_eq!(
        readers(&plan, "raw@host"),
        ["copy to raw@cuda:0", "copy to raw@cuda:1"]
    );
    let kernels = plan.kernels.iter();
    let kernels = kernels.map(|kernel| {
        let (name, input, output) = (&*kernel.name, &*kernel.input, &*kernel.output);
        (name, &*kernel.component, input, output)
    });
    let expected = [
        ("fft@cuda:0", "fft", "raw@cuda:0", "spectra@fft@cuda:0"),
        ("fft@cuda:1", "fft", "raw@cuda:1", "spectra@fft@cuda:1"),
        ("sum@cuda:0", "sum", "spectra@cuda:0", "sums@sum@cuda:0"),
        ("sum@cuda:1", "sum", "spectra@cuda:1", "sums@sum@cuda:1"),
    ];
    assert_eq!(kernels.collect::<Vec<_>>(), expected);
    // Each GPU has half of the channels, then half of the points.
    assert_eq!(tile(&plan, "raw@cuda:1").rows, 2..4);
    assert_eq!(plan.ring("raw@cuda:1").unwrap().slot_bytes, 2048);
    let raw = &plan.ring("raw@cuda:0").unwrap().layout;
    let spectra = &plan.ring("spectra@cuda:1").unwrap().layout;
    assert_eq!((raw.channels, spectra.channels), (2, 4));
    assert_eq!(spectra.points, raw.points / 4 / 2);
    assert_eq!(tile(&plan, "spectra@cuda:1").rows, 0..4);
    let gathers = plan.gathers.iter();
    let gathers = gathers.map(|gather| (gather.sources(), &*gather.to, gather.is_divided));
    let written = || "spectra@fft@cuda:0, spectra@fft@cuda:1".to_owned();
    let sums = "sums@sum@cuda:0, sums@sum@cuda:1".to_owned();
    assert_eq!(
        gathers.collect::<Vec<_>>(),
        [
            (written(), "spectra@cuda:0", true),
            (written(), "spectra@cuda:1", true),
            (sums, "sums", true)
        ]
    );
    assert_eq!(
        readers(&plan, "spectra@fft@cuda:1"),
        [
            "copy of spectra@fft@cuda:1 to spectra@cuda:0",
            "copy of spectra@fft@cuda:1 to spectra@cuda:1"
        ]
    );
    let sums = plan.ring("sums").unwrap();
    assert_eq!(
        (sums.placement, &*sums.producer),
        (Placement::Host, "copy to sums")
    );
    assert_eq!(readers(&plan, "sums"), ["disk"]);
    // The source, two kernels on two GPUs, two copies, three gathers and the sink.
    assert_eq!(plan.threads, 1 + 4 + 2 + 3 + 1);
    assert_eq!(plan.unavailable, [""; 0]);
    assert!(
        plan.to_string()
            .contains("join spectra@fft@cuda:0, spectra@fft@cuda:1 → spectra@cuda:1")
    );
}

#[test]
fn equally_spread_output_needs_no_copy() {
    let plan = plan(&TURN.replace("spread = \"points\"", "spread = \"channels\""));
    assert_eq!(plan.kernels[1].output, "spectra@cuda:1");
    assert_eq!(plan.gathers.len(), 1);
    assert_eq!(plan.ring("spectra@cuda:1").unwrap().producer, "fft@cuda:1");
}

#[test]
fn frames_in_turn_stay_whole() {
    let text = TURN
        .replace("spread = \"points\"", "spread = \"frames\"")
        .replace(
            "spread = \"channels\"",
            "spread = { by = \"frames\", guarantee = false }",
        );
    let plan = plan(&text);
    let share = plan.ring("raw@cuda:1").unwrap();
    assert_eq!((share.slot_bytes, share.packets_per_frame), (4096, 4));
    let shares = share.share.as_ref().unwrap();
    assert_eq!(
        (shares.by, shares.guarantee, &shares.tile),
        (Spread::Frames, false, &None)
    );
    let gather = plan.gathers.last().unwrap();
    assert!(!gather.is_divided);
}

#[test]
fn sink_reads_host_ring_of_divided_frames() {
    let text = r#"
[source.adc]
driver = "fake"
packet = "1 KiB"
ring = "raw"
[ring.raw]
memory = ["cuda:0", "cuda:1"]
spread = "frames"
[sink.disk]
driver = "void"
input = "raw"
[kernel.cpu]
use = "quarter"
input = "raw"
output = "small"
[ring.small]
memory = ["cuda:1", "cuda:0"]
spread = "parts"
[sink.other]
driver = "void"
input = "small"
"#;
    let plan = plan(text);
    assert_eq!(plan.sinks[0].input, "raw@host");
    // The kernel runs on the CPU, and its output is divided.
    assert_eq!(plan.kernels[0].input, "raw@host");
    assert_eq!(plan.kernels[0].output, "small@cpu");
    assert_eq!(
        readers(&plan, "small@cpu"),
        ["copy to small@cuda:1", "copy to small@cuda:0"]
    );
    // The frames are joined again for the sink.
    assert_eq!(plan.sinks[1].input, "small@host");
    assert_eq!(plan.gathers[0].from, ["small@cuda:1", "small@cuda:0"]);
}

#[test]
fn turn_without_peer_access_is_unavailable() {
    let plan = plan_of(TURN, &two_gpus(None)).unwrap();
    let text =
        "ring `spectra@cuda:1` gets frames from cuda:0: cuda:0 cannot access the memory of cuda:1";
    assert!(
        plan.unavailable.iter().any(|line| line.starts_with(text)),
        "{:?}",
        plan.unavailable
    );
}

#[test]
fn impossible_spreads_are_explained() {
    let change = |from: &str, to: &str| error(&TURN.replace(from, to));
    let list = "memory = [\"cuda:0\", \"cuda:1\"]\n";
    for (text, expected) in [
        (
            change("channels = 4", "channels = 1"),
            "1 channel of each frame cannot be divided equally among 2 GPUs",
        ),
        (
            change("spread = \"channels\"\n", ""),
            "ring `raw` has several memories, but no `spread`",
        ),
        (
            change(list, ""),
            "ring `raw` has one memory, so `spread` has no effect",
        ),
        (
            change("\"cuda:1\"]", "\"cuda:0\"]"),
            "\"cuda:0\" is listed twice",
        ),
        (
            change("\"cuda:0\", \"cuda:1\"", "\"cuda:0\""),
            "a list of memories needs at least two GPUs",
        ),
        (
            change("\"cuda:0\", \"cuda:1\"", "\"host\", \"cuda:1\""),
            "unknown GPU \"host\"",
        ),
        (change("\"points\"", "\"time\""), "unknown spread \"time\""),
        (
            change("spread = \"points\"", "spread = \"frames\""),
            "cannot be spread by frames directly",
        ),
        (
            change(
                "gpu = true\ninput = \"raw\"",
                "gpu = true\nsums = true\ninput = \"raw\"",
            ),
            "ring `raw` is spread by channels, but kernel `fft` needs all channels of a frame",
        ),
        (
            error(
                &TURN
                    .replace("spread = \"channels\"", "spread = \"frames\"")
                    .replace("spread = \"points\"", "spread = \"frames\"")
                    .replace("input = \"raw\"", "has_history = true\ninput = \"raw\""),
            ),
            "kernel `fft` cannot read ring `raw`, of which each GPU gets only one of 2 frames: it needs the frame before",
        ),
        (
            change(
                "gpu = true\ninput = \"raw\"",
                "gpu = true\ndevice = \"cuda:0\"\ninput = \"raw\"",
            ),
            "ring `raw` is spread over several GPUs, and kernel `fft` runs on each of them",
        ),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
