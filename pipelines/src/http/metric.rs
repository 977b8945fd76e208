//! Definition of a metric: its name, kind, explanation and the origin of its value.

use super::process::Process;
use daq_core::ledger::{
    CopyReport, DeviceReport, EngineReport, KernelReport, ReaderReport, Report, RingReport,
    SinkReport, SourceReport,
};

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value only increases during a run of the process.
    Counter,
    /// The value increases and decreases.
    Gauge,
    /// Number of observations per size class, with their sum and count.
    Histogram,
}

impl Kind {
    /// The name in Prometheus' text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where the value is read from. The variant also determines the labels of the metric.
#[derive(Clone, Copy)]
pub(super) enum Read {
    Source(fn(&SourceReport) -> u64),
    /// Arrival time of each source's last packet.
    LastPacket,
    /// Number of lost packets: one sample for each source and cause.
    Lost,
    /// One sample per source and driver-specific counter.
    Counts,
    /// One sample per source with a DMA engine.
    Engine(fn(&EngineReport) -> u64),
    /// One sample per source with a DMA engine and per fault that has occurred.
    Faults,
    Ring(fn(&RingReport) -> u64),
    /// One sample per ring that contains a frame.
    FrameAge,
    /// One sample per ring on a GPU that the CPU can store to.
    Mapping,
    Reader(fn(&ReaderReport) -> u64),
    Copy(fn(&CopyReport) -> f64),
    /// Number of copies into each ring, by size.
    CopySizes,
    Kernel(fn(&KernelReport) -> u64),
    /// One sample per kernel on a GPU.
    Device(fn(&DeviceReport) -> f64),
    /// One sample per kernel on a GPU with dispatch `launch`.
    Launched(fn(&DeviceReport) -> f64),
    /// One sample per kernel on a GPU, labelled with its dispatch method.
    Dispatch,
    Sink(fn(&SinkReport) -> u64),
    Pipeline(fn(&Report) -> f64),
    Build,
    Process(fn(&Process) -> f64),
    /// Time at which the metrics were set up, in seconds since 1970.
    Start,
}

/// Definition of one metric.
pub struct Metric {
    /// The full name of the metric.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: Kind,
    /// Text of the `# HELP` line. Must be a single line.
    pub help: &'static str,
    /// What the value means.
    pub meaning: &'static str,
    /// Most likely cause of an unusual value.
    pub cause: &'static str,
    /// What the user should do about an unusual value.
    pub remedy: &'static str,
    pub(super) read: Read,
}

impl Metric {
    /// Returns the label names of the metric.
    pub const fn labels(&self) -> &'static [&'static str] {
        match self.read {
            Read::Source(_) | Read::LastPacket | Read::Engine(_) => &["source"],
            Read::Faults => &["source", "fault"],
            Read::Counts => &["source", "count"],
            Read::Lost => &["source", "cause"],
            Read::Ring(_) | Read::FrameAge => &["ring"],
            Read::Mapping => &["ring", "backend"],
            Read::Reader(_) => &["reader", "ring"],
            Read::Copy(_) => &["from", "to"],
            Read::CopySizes => &["from", "to", "le"],
            Read::Kernel(_) | Read::Device(_) | Read::Launched(_) => &["kernel"],
            Read::Dispatch => &["kernel", "dispatch"],
            Read::Sink(_) => &["sink"],
            Read::Build => &["version"],
            Read::Pipeline(_) | Read::Process(_) | Read::Start => &[],
        }
    }
}

pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
