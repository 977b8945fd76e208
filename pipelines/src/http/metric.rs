//! What a metric is: its name, its kind, its explanation and where its value comes from.

use super::process::Process;
use daq_core::ledger::{
    CopyReport, DeviceReport, EngineReport, KernelReport, ReaderReport, Report, RingReport,
    SinkReport, SourceReport,
};

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counters of what was at most so large, by classes of size, with their sum and number.
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

/// Where the number comes from, and by that its labels.
#[derive(Clone, Copy)]
pub(super) enum Read {
    Source(fn(&SourceReport) -> u64),
    /// When each source's last packet arrived.
    LastPacket,
    /// One sample for each source and cause.
    Lost,
    /// One sample for each source and what it counts itself.
    Counts,
    /// Only for sources with a DMA engine.
    Engine(fn(&EngineReport) -> u64),
    /// One sample for each of those and fault that has come.
    Faults,
    Ring(fn(&RingReport) -> u64),
    /// Only for rings with a frame.
    FrameAge,
    /// Only for rings on a GPU that the CPU can store to.
    Mapping,
    Reader(fn(&ReaderReport) -> u64),
    Copy(fn(&CopyReport) -> f64),
    /// The copies of a ring by size.
    CopySizes,
    Kernel(fn(&KernelReport) -> u64),
    /// Only for kernels on a GPU.
    Device(fn(&DeviceReport) -> f64),
    /// Only for those of them that are launched.
    Launched(fn(&DeviceReport) -> f64),
    /// How bursts reach kernels on a GPU.
    Dispatch,
    Sink(fn(&SinkReport) -> u64),
    Pipeline(fn(&Report) -> f64),
    Build,
    Process(fn(&Process) -> f64),
    /// When the metrics were set up, in seconds since 1970.
    Start,
}

/// One metric.
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// One line for `# HELP`.
    pub help: &'static str,
    /// What a value says.
    pub meaning: &'static str,
    /// What most likely makes it leave its usual value.
    pub cause: &'static str,
    /// What to do then.
    pub remedy: &'static str,
    pub(super) read: Read,
}

impl Metric {
    /// The names of its labels.
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
