//! Tests `daq tap` with a ring on a GPU that hangs.

use daq_testkit::{Daq, Done, Live, Python, Simulated, assert_contains, python};

const CLIENT: &str = include_str!("../../python/attach_client.py");

/// Another process produces the frames of a ring on a GPU. A simulated source fills a ring in host memory.
const PIPELINE: &str = r#"
[source.flags]
driver = "process"
ring = "flags"
frame = "4 KiB"

[ring.flags]
memory = "cuda:0"
slots = 4

[sink.end]
driver = "null"
input = "flags"

[source.adc]
driver = "sim"
ring = "raw"
samples = { type = "int16", channels = 2, rate = "1 MHz" }
pattern = "counter"
packet = 1024
pace = "40 Mbit/s"
backpressure = true

[ring.raw]
memory = "host"
slot = 8192
slots = 256
attach = { guarantee = true, hold = "1 min" }

[sink.drain]
driver = "null"
input = "raw"

[staging]
chunk = "64 KiB"
depth = 2

[http]
listen = "127.0.0.1:0"
"#;

/// A running pipeline with one frame in the ring on the GPU.
struct Run {
    daq: Daq,
    live: Live,
    socket: String,
}

impl Run {
    fn start(daq: Daq, python: &Python) -> Self {
        let mut live = daq.spawn(&[]);
        live.wait_ready();
        let socket = daq.path("state/daq/daq.attach");
        let socket = socket.to_str().unwrap().to_owned();
        python.run(CLIENT, &[&*socket, "produce", "0", "1", "leave"]);
        live.wait_count("rings.flags.published", 1);
        Self { daq, live, socket }
    }

    fn tap(&self, ring: &str) -> Done {
        self.daq.cli(&["tap", ring, "--count", "1"])
    }
}

#[test]
fn gpu_that_hangs_in_a_tap_blocks_neither_other_clients_nor_the_end() {
    let python = python!("json");
    let simulated = Simulated::new("");
    let daq = simulated.on(Daq::new(PIPELINE));
    let _ = daq.cli(&["tune"]).ok();
    let run = Run::start(daq, &python);
    assert_eq!(run.tap("flags").ok().json()["index"], 0);
    let outcome = run.live.stop().ok();
    assert_eq!(outcome.count("rings.flags.published"), 1);
    assert_eq!(simulated.leaks(), [""; 0]);
    // The last copy was that of the tap.
    let hang = format!("hang=copy@{}", simulated.report()["copies"]);

    let run = Run::start(run.daq.env("DAQ_SIMULATED_CUDA", &hang), &python);
    let refused = run.tap("flags");
    assert_eq!(refused.code, 69, "{}", refused.stdout);
    assert_contains!(refused.stderr => "no copy of a frame for 4 s: the copy of a frame of ring `flags` has not ended: cuda:0 does not respond");
    assert_contains!(run.daq.cli(&["ls"]).ok().stdout => "flags", "raw");
    let read = [&*run.socket, "read", "300", "guarantee"];
    assert_eq!(python.json_lines(CLIENT, &read)[0]["read"], 300);
    let outcome = run.live.stop().ok();
    assert_contains!(outcome.stderr =>
        "the copy of a frame of ring flags from cuda:0 has not ended", "leaked until the process exits"
    );
    assert_eq!(outcome.count("clients.raw.revoked"), 0);
}
