//! Sinks, which write frames to files or send them to other hosts.

use crate::check::NamedFile;
use crate::claim::Claim;
use crate::config::Problem;
use crate::frame::PacketSizes;
use crate::layout::Layout;
use crate::ledger::{CountSet, Counts, SinkLedger};
use crate::notify::Wait;
use crate::region::{Placement, Region};
use crate::ring::Lease;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The ring placements (host or GPU memory) that a sink can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placements {
    /// Host memory only. For a ring on a GPU, the plan inserts a staging ring in host memory before the sink.
    #[default]
    Host,
    /// Any placement.
    Any,
    /// Any placement, read by a network card. GPU memory is read directly if a measurement showed that this is faster;
    /// otherwise the plan inserts a staging ring in host memory.
    Measured,
}

impl Placements {
    /// Whether the sink can read `placement`.
    pub fn contains(self, placement: Placement) -> bool {
        self != Self::Host || placement == Placement::Host
    }
}

/// The error of a sink that did not accept frames.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The medium is full. Only the frames that the sink's ledger counts were accepted. The other frames are
    /// offered again later, or dropped, as configured.
    #[error("{what} has no space left: {remedy}")]
    Full {
        /// The medium.
        what: String,
        /// How to fix it.
        remedy: String,
    },
    /// The receiver of the frames is disconnected. The same frames are offered again later, or dropped, as configured.
    #[error("{what} is not available: {why}")]
    Away {
        /// The receiver.
        what: String,
        /// Why it is not available, and how to fix it.
        why: String,
    },
    /// Something that the sink needs is not available: a server, a network card, or a limit such as that of open files is
    /// reached.
    #[error("{what}: {why}")]
    Unavailable {
        /// The object or the operation that failed.
        what: String,
        /// What happened, and how to fix it.
        why: String,
    },
    /// The sink cannot start. Only a change of the configuration, of a file or of the server resolves the error. A restart
    /// without such a change fails in the same way.
    #[error("{what}: {why}")]
    Configuration {
        /// The object or the key that does not match the configuration.
        what: String,
        /// What happened, and how to fix it.
        why: String,
    },
    /// The sink cannot continue.
    #[error("{what}: {why}")]
    Failed {
        /// The object or the operation that failed.
        what: String,
        /// What happened, and how to fix it.
        why: String,
    },
}

/// Parameters for building a sink.
#[derive(Clone, Debug)]
pub struct SinkContext {
    /// The pipeline's name.
    pub pipeline: String,
    /// The sink's name.
    pub name: String,
    /// The name of the ring that the sink reads.
    pub ring: String,
    /// The layout of the frames.
    pub layout: Layout,
    /// Size of a slot in payload bytes.
    pub slot_bytes: usize,
    /// Maximum number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep, see [`FrameMeta::kept`](crate::frame::FrameMeta::kept).
    pub kept: Vec<String>,
    /// Sizes of the packet slots; 0 if frames do not consist of packets, or if the packet sizes are detected at run time.
    /// Then each frame's record contains them.
    pub packet_sizes: PacketSizes,
    /// Whether the size of `layout` is only a maximum, because the size of all frames is detected at run time.
    pub is_layout_maximum: bool,
    /// The base directory of relative paths.
    pub directory: PathBuf,
    /// The memory of the ring, for sinks whose devices read it directly.
    pub memory: Arc<Region>,
    /// The network card that the plan selected for `auto` ([`SinkFacts::nic`]).
    pub nic: Option<String>,
    /// Whether the sink receives copies of the frames. If so, the ring neither waits for the sink nor keeps slots
    /// occupied while the sink reads.
    pub copied: bool,
    /// Maximum number of frames per lease.
    pub burst: usize,
    /// How the sink's thread waits.
    pub wait: Wait,
    /// The counters of every sink. The sink updates `frames`, `bytes`, `files` and `lost`.
    pub ledger: SinkLedger,
    /// The counters that [`SinkFacts::counts`] declares.
    pub counts: Counts,
}

/// A consumer that writes frames to a file or sends them to a receiver. Each sink runs on its own thread.
pub trait Sink: Send {
    /// Accepts frames of `lease` and returns how many were accepted. A sink accepts all frames unless it fails.
    ///
    /// The first `from` frames of the lease were accepted by earlier calls. A sink that needs a long time for a frame returns 0
    /// every few milliseconds, and continues with the same frame in the next call.
    ///
    /// If [`SinkError::Full`] or [`SinkError::Away`] occurs after some frames, the sink first returns the number of
    /// accepted frames. It returns the error when it is called with the remaining frames. If the ring waits for the
    /// sink, it is called again a quarter of a second later.
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError>;

    /// Does periodic work, such as starting a new file after a time or retrying. Called about once a second, and when
    /// no frames arrive.
    fn tick(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Returns how long the oldest pending write on another thread of the sink has taken; zero if no write is pending.
    ///
    /// The runtime reports a sink with a hanging write as stalled, even if the sink still accepts frames.
    fn blocked_for(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Stores all accepted frames safely and ends the sink. Called once, also after an error.
    fn finish(&mut self) -> Result<(), SinkError>;
}

/// What a sink states about itself. A sink sets the fields that differ from the default:
/// `SinkFacts { accepts: Placements::Any, ..SinkFacts::default() }`.
#[derive(Debug, Default)]
pub struct SinkFacts {
    /// The resources that only this sink may use. Relative paths are unchanged.
    pub claims: Vec<Claim>,
    /// The directories that the sink writes into.
    pub files: Vec<NamedFile>,
    /// The counters that only this kind of sink has, each with a metric. They appear in reports.
    pub counts: Vec<&'static CountSet>,
    /// The ring placements that the sink can read.
    pub accepts: Placements,
    /// The RDMA network card that the sink uses, such as `mlx5_0`. The plan replaces `auto` by a card
    /// ([`SinkContext::nic`]).
    pub nic: Option<String>,
    /// Warnings about the keys of a sink that can accept the frames of its ring.
    pub warnings: Vec<Problem>,
    /// The number of frames that the sink can have in flight, which is its default for `burst` if frames wait for the sink;
    /// `None` for the usual default.
    pub burst: Option<usize>,
}

/// The frames of the ring that a sink reads.
#[derive(Clone, Copy, Debug)]
pub struct RingFrames<'a> {
    /// The layout of the frames.
    pub layout: &'a Layout,
    /// Size of a slot in payload bytes.
    pub slot_bytes: usize,
    /// Maximum number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub kept: &'a [String],
}

/// What a sink needs for the frames of its ring.
#[derive(Clone, Debug, Default)]
pub struct SinkNeeds {
    /// The number of bytes that the sink allocates, for the plan's memory total.
    pub memory: usize,
    /// External requirements, which the plan shows.
    pub note: Option<String>,
}

/// The checked configuration of a sink.
pub trait SinkSpec: Send + Sync {
    /// Returns every problem of the keys that the types of their values do not exclude.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns what follows from the keys alone. Equal keys have equal facts on each machine.
    fn facts(&self) -> SinkFacts {
        SinkFacts::default()
    }

    /// Returns what the sink needs for `frames`, or why it cannot accept them.
    fn needs(&self, _frames: RingFrames<'_>) -> Result<SinkNeeds, Problem> {
        Ok(SinkNeeds::default())
    }

    /// Returns the reason why this program or this machine cannot run the sink, as far as this can be determined without
    /// opening files or connections.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Opens the sink.
    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError>;
}
