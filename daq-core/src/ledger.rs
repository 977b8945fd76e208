//! Ledgers, which count expected, delivered and lost packets and frames, and the causes of losses.
//!
//! A ledger is a small set of counters that one thread writes and any thread reads. No counter ever decreases, except
//! gauges, which are marked. One declaration per component makes the counters, the report that shows them, the equation
//! between them and their metrics. The equations hold in every snapshot, because the term `pending` of each equation is
//! calculated from the other counters when the snapshot is made. The counters are read in an order that keeps `pending`
//! non-negative.

#[macro_use]
mod macros;
mod clients;
mod copy;
mod counter_file;
mod counts;
mod engine;
mod equation;
mod kernel;
mod latency;
mod loss;
mod metric;
mod part;
mod playback;
mod reader;
mod rejections;
mod report;
mod ring;
mod sink;
mod source;
mod stored;

pub use clients::{ClientsLedger, ClientsReport};
pub use copy::{CopyLedger, CopyReport, CopySizes};
pub use counter_file::{Counter, CounterFile, CounterFileError, LastRun};
pub use counts::{Count, CountSet, Counts, CountsReport};
pub use engine::{EngineCounters, EngineLedger, EngineReport, PathState};
pub use equation::Equation;
pub use kernel::{DeviceLedger, DeviceReport, KernelLedger, KernelReport};
pub use latency::{Latency, LatencyCounts, LatencyReport, PublishTimes};
pub use loss::Loss;
pub use metric::{Metric, MetricKind, MetricText, Put, Sample};
pub use part::{PartLedger, PartLedgers, PartReport};
pub use playback::{Playback, PlaybackReport};
pub use reader::{ReaderLedger, ReaderReport};
pub use rejections::{FAR_NUMBER, Rejections};
pub use report::{Report, Table, Violation};
pub use ring::{RingLedger, RingReport};
pub use sink::{SinkLedger, SinkReport};
pub use source::{Cause, LostPackets, Missing, SourceLedger, SourceReport};
pub use stored::State;
