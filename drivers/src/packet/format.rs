//! What a packet format implements.
//!
//! ```text
//!   facts     numbering, sizes, parts …   for the plan            FormatFacts, a plain struct with defaults
//!   Parse     datagram ─▶ packet          for each packet
//!   Build     packet ─▶ datagram          for sinks that send
//!   Detect    first packets ─▶ sizes      only if sizes are not configured
//! ```
//! A property that few formats have is a field of [`FormatFacts`] with a default, so that other formats do not change.

mod facts;
mod registry;

pub use facts::{FlowNeeds, FormatFacts, UnknownSizes};
pub use registry::{FORMATS, Format, FormatEntry};

use super::parts::Origins;
use super::{Flow, Parsed, Reject, Split, TimeScale, TimeWrap};
use daq_core::config::Problem;
use daq_core::frame::KeptFields;
use daq_core::layout::Samples;
use daq_core::ledger::Counts;
use daq_core::outgoing::OutgoingFrames;
use daq_core::reorder::Geometry;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

/// Limits of the datagrams stored during detection: number of frames, bytes in total, and minimum bytes per thread.
const HOLD_FRAMES: usize = 6;
const MAX_HOLD: usize = 256 << 20;
const MIN_HOLD: usize = 4 << 20;

/// Reads packets. The methods are called for each packet or each flow, so they must not allocate. No method may panic.
pub trait Parse: Debug + Send + Sync {
    /// Parses a datagram of which only the first `header.len()` bytes are in `header`; `rest` more bytes follow.
    ///
    /// The payload range counts from the start of the packet. If the payload begins before `header.len()`, its first
    /// bytes are in `header`.
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject>;

    /// Parses one whole datagram.
    #[inline]
    fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        match self.parse_split(packet, 0)? {
            Split::Whole(parsed) => Ok(parsed),
            Split::Longer { header } => Err(Reject::Short {
                need: header,
                got: packet.len(),
            }),
        }
    }

    /// Returns the size in bytes of the packet at the start of `bytes`, including its header, or `None` if it cannot be
    /// determined.
    fn packet_len(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the expected header size in bytes of packet `sub`: exact, or the size in the last packet of the same
    /// kind.
    fn header_len(&self, sub: u32) -> usize;

    /// Returns the clock of packet timestamps, or `None` if packets have no timestamps. It is not a fact, because the packets of
    /// some formats state their time scale, so it can change from packet to packet.
    #[inline]
    fn clock(&self) -> Option<PacketClock<'_>> {
        None
    }

    /// Selects the flow of the packets that are parsed from now on, if the format [needs](FormatFacts::flow) addresses. Fails with
    /// the reason why packets of this flow are rejected.
    fn use_flow(&mut self, flow: &Flow) -> Result<(), Reject> {
        let _ = flow;
        Ok(())
    }

    /// Reads the kept fields of the packet whose header, at least, is in `packet`. Called only for formats with
    /// [kept](FormatFacts::kept) fields, until all fields of the packet's frame are known.
    fn read_kept(&self, packet: &[u8]) -> KeptFields {
        let _ = packet;
        KeptFields::default()
    }
}

/// The clock of packet timestamps.
#[derive(Clone, Copy, Debug)]
pub struct PacketClock<'a> {
    /// The time scale.
    pub scale: TimeScale,
    /// The state of timestamps that repeat because their field wraps, or `None` if they do not.
    pub wrap: Option<&'a TimeWrap>,
}

/// Builds packets, as a sender of the format does.
pub trait Build {
    /// Appends the header of packet `sub` of `unit` with `payload` payload bytes to `out`. Does not allocate if `out` has room.
    ///
    /// `payload` should be the size of the packet slot. Another size is also written into headers that contain it, so that
    /// tests can build invalid packets.
    fn build_header(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: usize,
        out: &mut Vec<u8>,
    );

    /// Returns the format for sending `frames`, with a value for each size that a receiver would detect. Returns `None` if
    /// the format has all values.
    fn for_sending(&self, frames: &OutgoingFrames) -> Result<Option<Format>, Problem> {
        let _ = frames;
        Ok(None)
    }

    /// Writes the packets that describe a stream of `frames` to `packets`, before the unit `unit` with `timestamp`, see
    /// [`PacketBuilder::describe`](daq_core::outgoing::PacketBuilder::describe).
    fn describe(
        &self,
        frames: &OutgoingFrames,
        unit: u64,
        timestamp: Option<u64>,
        packets: &mut Vec<Vec<u8>>,
    ) {
        let _ = (frames, unit, timestamp, packets);
    }

    /// Returns the packets that end a stream. `unit` is the number after that of the last unit.
    fn end(&self, unit: u64) -> Vec<Vec<u8>> {
        let _ = unit;
        Vec::new()
    }
}

/// A packet format that is ready to parse. No method may panic.
pub trait PacketFormat: Parse + Build + BoxedClone {
    /// Returns what follows from the keys of the format, and of its source after [`use_source`](Self::use_source). Equal keys have
    /// equal facts.
    fn facts(&self) -> FormatFacts;

    /// Uses the keys of the source on which the format depends. Fails if the source cannot receive such packets. Called before
    /// [`start`](Self::start).
    fn use_source(&mut self, source: &SourceOfFormat<'_>) -> Result<(), Problem> {
        let _ = source;
        Ok(())
    }

    /// Prepares the format for the threads of the source `name`, with the counters that its [facts](FormatFacts::counts) declare.
    /// Called once per run, before the format is cloned for the threads.
    fn start(&mut self, name: &str, counts: &Counts) {
        let _ = (name, counts);
    }

    /// Returns the detection of the [unknown sizes](FormatFacts::unknown_sizes), or `None` if all sizes are known.
    fn detect(&self) -> Option<&dyn Detect> {
        None
    }

    /// Returns the reason of `finding` for the log, and how to correct it, or `None` if the finding is usual. `packet` is the
    /// packet that caused it; empty for [`Finding::OtherUnit`].
    fn explain(&self, finding: Finding, packet: &[u8]) -> Option<String> {
        let _ = (finding, packet);
        None
    }

    /// Appends packet `sub` of `unit` to `out`, as a sender would build it: header, payload and a trailer of zeros.
    fn build(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.build_header(unit, sub, timestamp, payload.len(), out);
        out.extend_from_slice(payload);
        out.resize(out.len() + self.facts().trailer, 0);
    }
}

/// The keys of a source on which its packet format can depend.
#[derive(Clone, Copy, Debug)]
pub struct SourceOfFormat<'a> {
    /// The addresses that the source's keys name, if they distinguish the parts and the format does not list them.
    pub origins: &'a Origins,
    /// The sample type and rate, for a format whose numbers count samples.
    pub samples: &'a Samples,
}

/// Something that a log line about the first such packet explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The first packet of a unit has no timestamp.
    NoTimestamp,
    /// The first packet of a unit does not contain the kept field with this index.
    NoKeptField(usize),
    /// A unit is not a frame, see [`Control::OtherUnit`](super::Control::OtherUnit).
    OtherUnit {
        /// Size of the unit in bytes.
        bytes: u64,
    },
}

/// Clones a format for another thread. Each format that implements [`Clone`] has it.
pub trait BoxedClone {
    /// Returns a clone.
    fn boxed_clone(&self) -> Box<dyn PacketFormat>;
}

impl<F: PacketFormat + Clone + 'static> BoxedClone for F {
    fn boxed_clone(&self) -> Box<dyn PacketFormat> {
        Box::new(self.clone())
    }
}

/// Detects sizes that are not configured.
pub trait Detect {
    /// Returns a clone of the format with a new [detector](Self::detector). Frames have at most the size of `geometry`; `threads`
    /// threads receive. All clones of the result share the detector.
    fn start_detection(&self, geometry: &Geometry, threads: usize) -> Format;

    /// Returns the detector, if detection was started.
    fn detector(&self) -> Option<Arc<dyn SizeDetector>>;
}

/// State of the detection of a format's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More packets are needed.
    Detecting,
    /// All values are detected.
    Detected,
    /// Detection failed, so these packets cannot be received; see [`SizeDetector::restart`].
    Refused,
}

/// Detects the sizes of a format from the first packets. All threads of a source share one detector, and each thread
/// stores its packets until the sizes are known.
pub trait SizeDetector: Debug + Send + Sync {
    /// Returns the size in bytes of each thread's buffer for datagrams during detection, see [`hold_bytes`].
    fn hold_bytes(&self) -> usize;

    /// Examines one datagram, which the caller then stores and places later. Fails if the datagram does not have this
    /// format.
    fn observe(&self, datagram: &[u8]) -> Result<Progress, Reject>;

    /// Ends detection with the packets received so far, if `force` is true or the time limit has passed.
    fn settle(&self, now: Instant, force: bool) -> Progress;

    /// Returns the format with the detected values, for one thread of the source `name`. Returns `None` while they are
    /// unknown.
    fn detected(&self, name: &str) -> Option<Format>;

    /// Returns the detected values as text for the log, on the first call only.
    fn summary(&self) -> Option<String>;

    /// Returns why detection failed, and restarts it, because the stored packets cannot be used.
    fn restart(&self) -> String;

    /// Returns whether `datagram` contains a message instead of samples.
    fn is_message(&self, datagram: &[u8]) -> bool;
}

/// Returns the recommended buffer size in bytes for each of `threads` threads while frames of at most `max_frame` bytes
/// are detected.
pub fn hold_bytes(max_frame: usize, threads: usize) -> usize {
    let total = max_frame.saturating_mul(HOLD_FRAMES).min(MAX_HOLD);
    (total / threads.max(1)).max(MIN_HOLD)
}
