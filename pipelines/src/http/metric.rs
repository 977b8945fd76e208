//! Definition of a metric: its name, kind, explanation and the origin of its value.

use super::process::Process;
use daq_core::ledger::{
    CopyReport, DeviceReport, EngineReport, KernelReport, ReaderReport, Report, RingReport,
    SinkReport, SourceReport,
};

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increases while the process lives.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counters by upper bound of size, with sum and count.
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

/// Origin of the value; it also determines the labels.
#[derive(Clone, Copy)]
pub(super) enum Read {
    Source(fn(&SourceReport) -> u64),
    /// Arrival time of each source's last packet.
    LastPacket,
    /// One sample for each source and cause.
    Lost,
    /// One sample per source and driver-specific counter.
    Counts,
    /// Only for sources with a DMA engine.
    Engine(fn(&EngineReport) -> u64),
    /// One sample per source with a DMA engine and per fault that has occurred.
    Faults,
    Ring(fn(&RingReport) -> u64),
    /// Only for rings that contain a frame.
    FrameAge,
    /// Only for rings on a GPU that the CPU can store to.
    Mapping,
    Reader(fn(&ReaderReport) -> u64),
    Copy(fn(&CopyReport) -> f64),
    /// Copies of a ring by size.
    CopySizes,
    Kernel(fn(&KernelReport) -> u64),
    /// Only for kernels on a GPU.
    Device(fn(&DeviceReport) -> f64),
    /// Only for kernels on a GPU with dispatch `launch`.
    Launched(fn(&DeviceReport) -> f64),
    /// Dispatch method of kernels on a GPU.
    Dispatch,
    Sink(fn(&SinkReport) -> u64),
    Pipeline(fn(&Report) -> f64),
    Build,
    Process(fn(&Process) -> f64),
    /// Time at which the metrics were set up, in seconds since 1970.
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
    /// Meaning of the value.
    pub meaning: &'static str,
    /// Most likely cause of an unusual value.
    pub cause: &'static str,
    /// What to do about it.
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
