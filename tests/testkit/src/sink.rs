//! A ring that feeds a sink, and a process to kill.

use crate::ring::RingFixture;
use crate::{test_name, test_process};
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::{Registry, SinkEntry};
use daq_core::frame::{FrameMeta, PacketSizes};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::ledger::{Counts, SinkLedger};
use daq_core::notify::Wait;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Completion, RingOptions};
use daq_core::sink::{Sink, SinkContext, SinkError, SinkSpec};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// The number types that all kernels and sinks support.
pub const SCALARS: [Scalar; 7] = [
    Scalar::Int8,
    Scalar::Uint8,
    Scalar::Int16,
    Scalar::Uint16,
    Scalar::Int32,
    Scalar::Float32,
    Scalar::Float64,
];

/// A process of this test's executable that runs the test `writer_process`.
#[derive(Debug)]
pub struct Writer(Child);

impl Writer {
    /// Starts the test `writer_process` of `module`, the `module_path!()` of the caller, in `dir`.
    pub fn start(module: &str, dir: &Path) -> Self {
        let child = test_process(&test_name(module, "writer_process"))
            .arg("--ignored")
            .env("DAQ_KILL_DIR", dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Returns the directory that this process must write to, if it is a writer process.
    pub fn dir() -> Option<PathBuf> {
        std::env::var_os("DAQ_KILL_DIR").map(PathBuf::from)
    }

    /// Kills the process, which must still be running, and waits until it has ended.
    pub fn kill(mut self) {
        let ended = self.0.try_wait().unwrap();
        assert_eq!(ended, None, "the writer ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Reads the section `[sink.NAME]` of `driver`, one of `entries`, with `keys` and the formats of `registry`. Returns errors as
/// text.
pub fn spec(
    entries: &[SinkEntry],
    registry: &Registry,
    driver: &str,
    name: &str,
    keys: &str,
) -> Result<Box<dyn SinkSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let text = format!("[sink.{name}]\n{keys}\n");
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    let mut section = document.sections("sink").remove(0);
    let entry = entries.iter().find(|entry| entry.name == driver).unwrap();
    let spec = (entry.parse)(&mut section, registry, &mut diagnostics);
    if diagnostics.is_empty() {
        Ok(spec.unwrap())
    } else {
        Err(diagnostics.render(document.sources(), false))
    }
}

/// Returns the layout of frames with `points` samples over time.
pub fn layout(scalar: Scalar, complex: bool, channels: u32, points: usize) -> Layout {
    Layout {
        scalar,
        complex,
        channels,
        points,
        order: Order::Interleaved,
        axis: Axis::Time { rate: Some(1e6) },
        frame_rate: Some(1e6 / points as f64),
        is_contiguous: true,
    }
}

/// Returns the context of the sink `name` of a ring with frames of `layout`, which writes to `dir`.
pub fn context(
    dir: &Path,
    name: &str,
    layout: Layout,
    packets_per_frame: u32,
    packet_bytes: usize,
) -> SinkContext {
    SinkContext {
        pipeline: "test".into(),
        name: name.into(),
        ring: "raw".into(),
        slot_bytes: layout.frame_bytes(),
        memory: Region::host(layout.frame_bytes().max(1), HostOptions::default()).unwrap(),
        nic: None,
        copied: false,
        burst: 16,
        wait: Wait::Event,
        layout,
        packets_per_frame,
        kept: Vec::new(),
        packet_sizes: PacketSizes::equal(u32::try_from(packet_bytes).unwrap()),
        is_layout_maximum: false,
        directory: dir.to_owned(),
        ledger: SinkLedger::default(),
        counts: Counts::default(),
    }
}

/// One frame for a sink: its metadata, its payload and its packet bitmap.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// The metadata.
    pub meta: FrameMeta,
    /// The payload.
    pub bytes: Vec<u8>,
    /// One bit per packet that arrived.
    pub present: Vec<u64>,
}

/// A ring with one reader that has a guarantee.
#[derive(Debug)]
pub struct Feed(RingFixture);

impl Feed {
    /// Creates a ring of `slots` slots of `slot_bytes` bytes in host memory that is not locked.
    pub fn new(slots: usize, slot_bytes: usize, packets_per_frame: u32) -> Self {
        let options = RingOptions {
            packets_per_frame,
            ..RingOptions::new("raw", slots, slot_bytes)
        };
        let unlocked = HostOptions {
            lock: false,
            ..HostOptions::default()
        };
        let region = Region::host(options.region_bytes(), unlocked).unwrap();
        Self(RingFixture::in_region(region, options))
    }

    /// Publishes `frames`, which must fit into the ring.
    pub fn publish(&mut self, frames: &[Sent]) {
        let mut slots = self.0.producer.reserve(frames.len());
        assert_eq!(slots.remaining(), frames.len());
        for frame in frames {
            slots.bytes_mut().unwrap()[..frame.bytes.len()].copy_from_slice(&frame.bytes);
            slots.finish_with(frame.meta, &frame.present);
        }
        slots.publish();
    }

    /// Offers every published frame once, in bursts of at most `burst` frames. Frames that are not accepted are
    /// dropped. Returns the number of accepted frames and the first error.
    pub fn offer(&mut self, sink: &mut dyn Sink, burst: usize) -> (usize, Result<(), SinkError>) {
        let (mut total, mut first) = (0, Ok(()));
        while let Some(lease) = self.0.reader.poll(burst) {
            let mut taken = 0;
            while taken < lease.len() {
                match sink.consume(&lease, taken) {
                    Ok(frames) => taken += frames,
                    Err(error) => {
                        first = first.and(Err(error));
                        break;
                    }
                }
            }
            assert!(taken <= lease.len());
            total += taken;
            lease.retire(Completion::Immediate);
        }
        (total, first)
    }

    /// Offers all published frames until they are accepted. Calls `full` whenever the disk is full.
    pub fn insist(&mut self, sink: &mut dyn Sink, burst: usize, mut full: impl FnMut()) {
        while let Some(lease) = self.0.reader.poll(burst) {
            let mut taken = 0;
            while taken < lease.len() {
                match sink.consume(&lease, taken) {
                    Ok(frames) => taken += frames,
                    Err(SinkError::Full { .. }) => full(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Passes `frames` to the sink, which must accept all of them.
    pub fn give(&mut self, sink: &mut dyn Sink, frames: &[Sent]) {
        for some in frames.chunks(self.0.producer.options().slots) {
            self.publish(some);
            let (taken, result) = self.offer(sink, 5);
            result.unwrap();
            assert_eq!(taken, some.len());
        }
    }
}
