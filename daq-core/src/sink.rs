//! Sinks, which write frames to files or send them to other hosts.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placements {
    /// Host memory only. For a ring on a GPU, the plan inserts a staging ring in host memory before the sink.
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
    /// The network card that the plan selected for `auto` ([`SinkSpec::nic`]).
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
    /// The counters that [`SinkSpec::counts`] declared.
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

/// The checked configuration of a sink.
pub trait SinkSpec: Send + Sync {
    /// Returns every problem of the keys that the types of their values do not exclude.
    fn problems(&self) -> Vec<crate::config::Problem> {
        Vec::new()
    }

    /// Returns the resources that only this sink may use. Relative paths are returned unchanged.
    fn claims(&self) -> Vec<crate::claim::Claim> {
        Vec::new()
    }

    /// Returns the directories that the sink writes into.
    fn files(&self) -> Vec<crate::check::NamedFile> {
        Vec::new()
    }

    /// Returns the counters that only this kind of sink has, each with a metric. They appear in reports.
    fn counts(&self) -> Vec<&'static CountSet> {
        Vec::new()
    }

    /// Returns the ring placements that the sink can read.
    fn accepts(&self) -> Placements {
        Placements::Host
    }

    /// Returns the RDMA network card that the sink uses, such as `mlx5_0`. The plan replaces `auto` by a card
    /// ([`SinkContext::nic`]).
    fn nic(&self) -> Option<String> {
        None
    }

    /// Checks that the sink can accept frames of `layout`.
    fn check(&self, _layout: &Layout) -> Result<(), crate::config::Problem> {
        Ok(())
    }

    /// Returns warnings about the keys of a sink that passes its [`check`](Self::check).
    fn warnings(&self) -> Vec<crate::config::Problem> {
        Vec::new()
    }

    /// Returns external requirements for frames of up to `slot_bytes` bytes and `packets_per_frame` packets, which the
    /// plan shows.
    fn needs(&self, _slot_bytes: usize, _packets_per_frame: u32) -> Option<String> {
        None
    }

    /// Returns the number of frames that the sink can have in flight, which is its default for `burst` if frames wait for
    /// the sink; `None` for the usual default.
    fn burst(&self) -> Option<usize> {
        None
    }

    /// Returns the number of bytes that the sink allocates for frames of up to `slot_bytes` bytes with the kept fields `kept`, for
    /// the plan's memory total.
    fn memory(&self, _slot_bytes: usize, _kept: &[String]) -> usize {
        0
    }

    /// Returns the reason why this program or this machine cannot run the sink, as far as this can be determined without
    /// opening files or connections.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Opens the sink.
    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError>;
}
