//! Sends frames from the sink `stream` to the source `stream` over one card, and verifies content and ledger.

use super::Setup;
use super::checks::Found;
use crate::fixture::{Environment, Scratch, free_port};
use crate::selftest::{Verdict, expect};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

const FRAME: usize = 16 << 10;
const PACKET: usize = 256;
const FRAMES: u64 = 400;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn text(nic: &str, port: u16, [near, far]: [&str; 2], path: &str) -> String {
    let packets_per_frame = FRAME / PACKET;
    let ring = |name: &str, memory: &str| {
        format!("[ring.{name}]\nmemory = \"{memory}\"\nslot = {FRAME}\nslots = 32")
    };
    let (near, far) = (ring("near", near), ring("far", far));
    format!(
        r#"
[source.adc]
driver  = "sim"
ring    = "near"
pattern = "counter"
packet  = {PACKET}
backpressure = true
frames  = {FRAMES}
pace    = "free"
{near}
[sink.far]
driver = "stream"
transport = "rdma"
input  = "near"
to     = "{HERE}:{port}"
nics   = ["{nic}"]
path   = "{path}"
guarantee = true
[source.link]
driver = "stream"
transport = "rdma"
ring   = "far"
listen = "{HERE}:{port}"
nics   = ["{nic}"]
packets_per_frame = {packets_per_frame}
path   = "{path}"
{far}
[sink.disk]
driver = "file"
path   = "out"
input  = "far"
guarantee = true
buffer = "64 KiB"
segment = "64 MiB"
"#
    )
}

fn run(setup: &Setup, memories: [&str; 2], path: &str) -> Found {
    let environment = Environment::new(
        setup.registry.clone(),
        Scratch::new("selftest", "", None)?,
        None,
    )?;
    let text = text(&setup.name, free_port(HERE)?, memories, path);
    let pipeline = environment.start(&text)?;
    let arrived = pipeline.await_frames("far", FRAMES);
    let ended = pipeline.end();
    arrived?;
    let report = ended?;
    let (Some(source), Some(sink)) = (report.sources.get("link"), report.sinks.get("far")) else {
        return Err(Verdict::Failed(
            "the pipeline reported no ledger".to_owned(),
        ));
    };
    let counts = [sink.frames, source.expected, source.delivered];
    expect(counts == [FRAMES; 3] && source.loss().is_none(), || {
        format!(
            "expected {FRAMES} frames, found {counts:?} (sent, expected, delivered); {}",
            source.loss()
        )
    })?;
    let violations = report.violations();
    expect(violations.is_empty(), || {
        format!("expected balanced ledgers, found {violations:?}")
    })?;
    let mut word = 0_u64;
    for path in files(environment.scratch.path())? {
        for bytes in std::fs::read(&path)?.chunks(8) {
            expect(bytes == word.to_le_bytes(), || {
                format!(
                    "word {word} of the received data: expected the value {word}, found the bytes {bytes:?}"
                )
            })?;
            word += 1;
        }
    }
    let words = FRAMES * (FRAME / 8) as u64;
    expect(word == words, || {
        format!("expected {words} words of 8 bytes in the received files, found {word} words")
    })?;
    let engine = source.engine.clone().unwrap_or_default();
    Ok(format!(
        "{FRAMES} frames of {FRAME} B: {}, content verified; path {}, {} path fallbacks",
        source.loss(),
        engine.path.name(),
        engine.fallbacks
    ))
}

/// Returns the data files below `directory`, in order.
fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|kind| kind == "sigmf-data") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn host(setup: &Setup) -> Found {
    run(setup, ["host", "host"], "auto")
}

pub(super) fn staged(setup: &Setup) -> Found {
    let gpu = format!("cuda:{}", setup.gpu()?.ordinal());
    run(setup, [&gpu, &gpu], "staged")
}

pub(super) fn direct(setup: &Setup) -> Found {
    let gpu = format!("cuda:{}", setup.gpu()?.ordinal());
    // Skip this check if the card cannot access the GPU, because another check reports that.
    super::checks::register_gpu(setup)?;
    run(setup, [&gpu, &gpu], "direct")
}
