//! A whole pipeline from a socket: from a packet's sending to its result.

use super::line::{Bench, PATIENCE};
use crate::REGISTRY;
use crate::bench::BenchError;
use crate::engine::{Options, Pipeline};
use daq_core::config::{Diagnostics, Document};
use daq_core::ledger::Board;
use daq_core::plan::{Config, Surroundings, resolve};
use daq_core::topology::Topology;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Instant;

/// Packets before those that are counted, at most.
const WARM: usize = 200;

/// A pipeline whose every thread polls.
fn text(port: u16, frame: usize, device: u32) -> String {
    format!(
        r#"
[source.wire]
driver  = "udp"
listen  = "127.0.0.1:{port}"
ring    = "raw"
wait    = "busy"
samples = {{ type = "int32" }}

[source.wire.format]
kind     = "raw"
header   = "8 B"
payload  = "{frame} B"
sequence = {{ offset = 0, bytes = 8, endian = "big" }}

[ring.raw]
memory = "cuda:{device}"
slot   = "{frame} B"
slots  = 1024

[kernel.touch]
file     = "touch.cu"
input    = "raw"
output   = "sums"
dispatch = "persistent"
wait     = "busy"
threads  = {threads}
blocks   = 1
frame    = {{ points = 1 }}

[ring.sums]
slots = 1024

[sink.nothing]
driver = "null"
input  = "sums"
"#,
        threads = super::line::threads(frame),
    )
}

impl Bench {
    /// Microseconds of `packets` packets of `frame` bytes each over loopback, one after the other, each from the call
    /// that sends it until its result is in the output ring.
    pub(super) fn packets(&self, frame: usize, packets: usize) -> Result<Vec<f64>, BenchError> {
        let failed = |why: String| BenchError::Thread(format!("the pipeline of packets: {why}"));
        let io = |error: std::io::Error| failed(error.to_string());
        // A port that was free a moment ago.
        let port = UdpSocket::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .map_err(io)?
            .port();
        let path = self.scratch.path().join("packets.toml");
        std::fs::write(&path, text(port, frame, self.device.ordinal())).map_err(io)?;
        let mut diagnostics = Diagnostics::new();
        let document = Document::load(&[path], &mut diagnostics);
        let config = Config::read(&document, &REGISTRY, "packets", &mut diagnostics);
        let around = Surroundings {
            directory: self.scratch.path().to_owned(),
            ..Surroundings::default()
        };
        let mut topology = Topology::detect();
        let gpus = topology.gpus.into_iter();
        topology.gpus = gpus
            .map(|gpu| gpu.tried(&config.staging.backends))
            .collect();
        let plan = resolve(&config, &topology, &around, &mut diagnostics);
        let Some(plan) = plan.filter(|_| !diagnostics.has_errors()) else {
            return Err(failed(diagnostics.render(document.sources(), false)));
        };
        let options = Options {
            directory: self.scratch.path().to_owned(),
            board: Board::in_memory(),
            drain: PATIENCE,
            profiles: BTreeMap::new(),
        };
        let pipeline =
            Pipeline::start(&config, &plan, &options).map_err(|error| failed(error.to_string()))?;
        let times = self.cores.first(|| send(&pipeline, port, frame, packets));
        pipeline.stop();
        let (_, failures) = pipeline.finish();
        match failures.first() {
            Some(failure) => Err(failed(failure.why.clone())),
            None => times,
        }
    }
}

fn send(
    pipeline: &Pipeline,
    port: u16,
    frame: usize,
    packets: usize,
) -> Result<Vec<f64>, BenchError> {
    let io = |error: std::io::Error| BenchError::Thread(format!("sending packets: {error}"));
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    socket.connect(("127.0.0.1", port)).map_err(io)?;
    let mut packet = vec![0; 8 + frame];
    let mut times = Vec::with_capacity(packets);
    let warm = WARM.min(packets) as u64;
    for i in 0..warm + packets as u64 {
        packet[..8].copy_from_slice(&i.to_be_bytes());
        let start = Instant::now();
        socket.send(&packet).map_err(io)?;
        let mut looks = 0_u32;
        while pipeline.published("sums").unwrap_or(0) <= i {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 10)
                && (start.elapsed() > PATIENCE || pipeline.is_finished())
            {
                return Err(BenchError::Thread(format!(
                    "packet {i} has no result after {:?}",
                    start.elapsed()
                )));
            }
        }
        if i >= warm {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}
