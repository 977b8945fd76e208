//! Runs a single kernel between two rings, for tests.

use daq_core::config::{Diagnostics, Document};
use daq_core::entry::Registry;
use daq_core::frame::{Clock, FrameMeta, Timestamp};
use daq_core::kernel::{KernelContext, KernelSpec, Side, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ledger::{ReaderLedger, RingLedger};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Producer, Reader, Ring, RingOptions};

/// One frame: its metadata and its bytes.
pub(super) type Record = (FrameMeta, Vec<u8>);

/// The outputs and counts of a kernel.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) outputs: Vec<Record>,
    pub(super) calls: Vec<Submitted>,
}

/// Sums of the [`Submitted`] values of all calls, computed as in the runtime.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) consumed: u64,
    pub(super) accumulating: u64,
    pub(super) failed: u64,
}

impl Outcome {
    pub(super) fn sums(&self) -> Sums {
        self.calls.iter().fold(Sums::default(), |sums, call| Sums {
            consumed: sums.consumed + call.consumed + call.released,
            accumulating: sums.accumulating + call.accumulating - call.released - call.dropped,
            failed: sums.failed + call.failed + call.dropped,
        })
    }
}

fn ring(name: &str, slots: usize, slot_bytes: usize) -> (Producer, Reader) {
    let options = RingOptions::new(name, slots.max(2), slot_bytes.max(1));
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    (producer, reader)
}

/// Runs the kernel `spec` over `frames`. The burst sizes are the numbers in `bursts`, repeated.
pub(super) fn run(
    spec: &dyn KernelSpec,
    input: &Layout,
    frames: &[Record],
    bursts: &[usize],
) -> Outcome {
    let output = spec.layout(input).unwrap();
    let mut kernel = spec.build(&KernelContext::alone(input, Side::Cpu)).unwrap();
    let longest = bursts.iter().copied().max().unwrap_or(1);
    let (mut source, mut reader) = ring("in", longest, input.frame_bytes());
    let (mut outcome, mut rest) = (
        Outcome {
            outputs: Vec::new(),
            calls: Vec::new(),
        },
        frames,
    );
    for burst in bursts.iter().copied().cycle() {
        let (now, later) = rest.split_at(burst.min(rest.len()));
        if now.is_empty() {
            break;
        }
        rest = later;
        let mut slots = source.reserve(now.len());
        for (meta, bytes) in now {
            slots.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
            slots.finish(FrameMeta {
                length: bytes.len(),
                ..*meta
            });
        }
        slots.publish();
        let outputs = kernel.outputs(now.len());
        let (mut sink, mut results) = ring("out", outputs, output.frame_bytes());
        let lease = reader.poll(now.len()).unwrap();
        assert_eq!(lease.len(), now.len());
        let mut out = sink.reserve(outputs);
        let call = kernel.run(&lease, &mut out, Stream::Host).unwrap();
        out.publish();
        drop(lease);
        assert_eq!(
            call.consumed + call.accumulating + call.failed,
            now.len() as u64,
            "{call:?}"
        );
        outcome.calls.push(call);
        if let Some(lease) = results.poll(usize::MAX) {
            outcome.outputs.extend(
                lease
                    .iter()
                    .map(|frame| (*frame.meta(), frame.bytes().unwrap().to_vec())),
            );
        }
    }
    outcome
}

/// Returns frames with consecutive numbers whose timestamps are one millisecond apart.
pub(super) fn frames(contents: impl IntoIterator<Item = Vec<u8>>) -> Vec<Record> {
    let stamp = |i: u64| Timestamp {
        ns: 1_000_000 * i,
        clock: Clock::Simulated,
    };
    (0..)
        .zip(contents)
        .map(|(i, bytes)| {
            (
                FrameMeta {
                    timestamp: stamp(i),
                    ..FrameMeta::whole(i, bytes.len())
                },
                bytes,
            )
        })
        .collect()
}

pub(super) fn as_f32(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|number| f32::from_le_bytes(*number))
        .collect()
}

pub(super) fn as_f64(bytes: &[u8]) -> Vec<f64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|number| f64::from_le_bytes(*number))
        .collect()
}

/// Parses a kernel's section through its registry entry; errors are returned as text.
pub(super) fn parse(text: &str) -> Result<Box<dyn KernelSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("test.toml", text, &mut diagnostics);
    let mut section = document.sections("kernel").remove(0);
    let mut spec = None;
    if let Some((name, _)) = section.take_string("use", &[], &mut diagnostics) {
        for ring in ["input", "output"] {
            section.take_string(ring, &[], &mut diagnostics);
        }
        let entry = super::KERNELS
            .iter()
            .find(|entry| entry.name == name)
            .unwrap();
        spec = (entry.parse)(&mut section, &Registry::default(), &mut diagnostics);
    }
    match spec {
        Some(spec) if diagnostics.is_empty() => Ok(spec),
        _ => Err(diagnostics.render(document.sources(), false)),
    }
}

/// Prints the throughput of the kernel `spec` for frames with the layout `input` that fit into the CPU's cache.
pub(super) fn figure(what: &str, spec: &dyn KernelSpec, input: &Layout) {
    let output = spec.layout(input).unwrap();
    let mut kernel = spec.build(&KernelContext::alone(input, Side::Cpu)).unwrap();
    let (mut source, mut reader) = ring("in", 4, input.frame_bytes());
    let (mut sink, mut results) = ring("out", kernel.outputs(4).max(1) * 2, output.frame_bytes());
    let (mut bytes, mut sequence) = (0, 0);
    let mut busy = std::time::Duration::ZERO;
    while busy.as_secs_f64() < 0.5 {
        let mut slots = source.reserve(4);
        for _ in 0..4 {
            for (i, byte) in slots.bytes_mut().unwrap().iter_mut().enumerate() {
                // No byte is all ones, so that no float is infinite or NaN.
                *byte = u8::try_from(i * 37 % 113).unwrap();
            }
            slots.finish(FrameMeta::whole(sequence, input.frame_bytes()));
            sequence += 1;
        }
        slots.publish();
        let lease = reader.poll(4).unwrap();
        let outputs = kernel.outputs(4);
        let start = std::time::Instant::now();
        let mut out = sink.reserve(outputs);
        let _ = kernel.run(&lease, &mut out, Stream::Host).unwrap();
        busy += start.elapsed();
        out.publish();
        bytes += lease.len() * input.frame_bytes();
        drop(lease);
        drop(results.poll(usize::MAX));
    }
    println!(
        "{what}: {:.2} GB/s of input",
        bytes as f64 / 1e9 / busy.as_secs_f64()
    );
}
