//! Sinks: where frames leave.

use crate::layout::Layout;
use crate::ledger::SinkLedger;
use crate::notify::Wait;
use crate::region::{Placement, Region};
use crate::ring::Lease;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Which placements a sink can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placements {
    /// Host memory only: the plan inserts a staging ring before it where needed.
    Host,
    /// Any.
    Any,
    /// Any, by a network card: on a GPU where that was measured to be faster, else host memory.
    Measured,
}

impl Placements {
    /// Whether `placement` is among them.
    pub fn contains(self, placement: Placement) -> bool {
        self != Self::Host || placement == Placement::Host
    }
}

/// Why a sink could not take frames.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The medium is full. The lease was not consumed beyond what the sink's ledger says; the same frames
    /// are offered again later, or dropped, as declared.
    #[error("{what} has no space left: {remedy}")]
    Full {
        /// The medium.
        what: String,
        /// What helps.
        remedy: String,
    },
    /// The receiver of the frames is disconnected. The same frames are offered again later, or dropped, as configured.
    #[error("{what} is not available: {why}")]
    Away {
        /// Who.
        what: String,
        /// What is known of it, and what helps.
        why: String,
    },
    /// The process has reached a limit, such as that of open files.
    #[error("{what}: {why}")]
    Unavailable {
        /// The thing that failed.
        what: String,
        /// What happened and what helps.
        why: String,
    },
    /// The sink cannot go on.
    #[error("{what}: {why}")]
    Failed {
        /// The thing that failed.
        what: String,
        /// What happened and what helps.
        why: String,
    },
}

/// What a sink needs to be built.
#[derive(Clone, Debug)]
pub struct SinkContext {
    /// The pipeline's name.
    pub pipeline: String,
    /// The sink's name.
    pub name: String,
    /// The ring it reads.
    pub ring: String,
    /// What the frames mean.
    pub layout: Layout,
    /// Payload bytes of a slot.
    pub slot_bytes: usize,
    /// Most places of a frame; 0 where frames have none.
    pub places: u32,
    /// Payload bytes of the first place; 0 where frames have none, or each frame's record has its own.
    pub first_bytes: usize,
    /// Payload bytes of each place but the first and the last; 0 where frames have none, or each frame's record has its own.
    pub place_bytes: usize,
    /// The directory that relative paths start from.
    pub directory: PathBuf,
    /// The memory of the ring that it reads, for sinks whose devices read it, too.
    pub memory: Arc<Region>,
    /// The network card that `auto` stands for ([`SinkSpec::nic`]).
    pub nic: Option<String>,
    /// Whether it is given copies of the frames: the ring neither waits for it nor holds slots while it reads.
    pub copied: bool,
    /// How its thread waits.
    pub wait: Wait,
    /// The sink's counters: it sets `frames`, `bytes`, `files` and `lost`, and `connections` and `stalls` where it has a
    /// peer.
    pub ledger: SinkLedger,
}

/// Where frames leave. Runs on its own thread.
pub trait Sink: Send {
    /// Takes the first frames of `lease`, all of them unless it fails, and says how many it took.
    ///
    /// A sink that fails with [`SinkError::Full`] or [`SinkError::Away`] after some frames says so by returning their
    /// number first and failing when it is called with the rest. It is called again a quarter of a second later where
    /// the ring waits for it.
    ///
    /// `from` frames at the start of the lease were taken by earlier calls.
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError>;

    /// Called about once a second and when no frames come: rotation by time, retries.
    fn tick(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// How long the oldest pending write on another thread of the sink has taken; zero if no write is pending.
    ///
    /// The runtime reports a sink as stalled whose write hangs, also while the sink itself still takes frames.
    fn blocked_for(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Makes everything taken safe and ends. Called once, also after an error.
    fn finish(&mut self) -> Result<(), SinkError>;
}

/// A sink's declared and checked configuration.
pub trait SinkSpec: Send + Sync {
    /// What it claims; relative paths as they are written.
    fn claims(&self) -> Vec<crate::claim::Claim> {
        Vec::new()
    }

    /// The directories that it writes into.
    fn files(&self) -> Vec<crate::examine::NamedFile> {
        Vec::new()
    }

    /// Which placements it can read.
    fn accepts(&self) -> Placements {
        Placements::Host
    }

    /// The network card for RDMA that it sends by, as in `mlx5_0`; `auto` is replaced by the plan
    /// ([`SinkContext::nic`]).
    fn nic(&self) -> Option<String> {
        None
    }

    /// Whether the sink can take frames of `layout`.
    fn check(&self, _layout: &Layout) -> Result<(), crate::config::Problem> {
        Ok(())
    }

    /// External requirements for frames of up to `slot_bytes` bytes and `places` packets; shown in the plan.
    fn needs(&self, _slot_bytes: usize, _places: u32) -> Option<String> {
        None
    }

    /// Bytes that the sink will allocate; for the plan's memory total.
    fn memory(&self, _slot_bytes: usize) -> usize {
        0
    }

    /// Opens the sink.
    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError>;
}
