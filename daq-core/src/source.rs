//! Sources: what produces payload.
//!
//! Two kinds of producer, because sockets and DMA engines are different animals. A [`Filler`] writes packets
//! into the places of a [`Window`] of open slots. An [`Engine`] is given the addresses of all slots once,
//! yields completions and takes credits.

use crate::frame::Timestamp;
use crate::window::Window;
use std::time::Duration;

/// What one call of [`Filler::fill`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Work was done; call again at once.
    Busy,
    /// Nothing to do now; the filler has waited as long as it was allowed to, or can say nothing of when
    /// the next packet comes.
    Idle,
    /// Nothing to do before this much time has passed.
    Until(Duration),
    /// The next place has no slot: call again when the window has room. Only fillers that can be held back
    /// say this.
    Full,
    /// The source has ended.
    Ended,
}

/// Why a source stopped.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct SourceError {
    /// The thing that failed: an address, a file, a device.
    pub what: String,
    /// What happened and what helps.
    pub why: String,
}

impl SourceError {
    /// An error about `what`.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
        }
    }
}

/// A producer that writes packets into places of a window.
///
/// Runs on its own thread. `fill` does one batch of work and must return within about `patience`; it
/// allocates nothing, takes no lock and makes at most a constant number of system calls a batch.
pub trait Filler: Send {
    /// Does one batch of work.
    fn fill(&mut self, window: &mut Window, patience: Duration) -> Result<Polled, SourceError>;

    /// Called once on the filler's own thread before the first `fill`.
    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Whether it stops when it has no credits; else it overwrites.
    pub holdable: bool,
    /// Whether its last write can ring the doorbell of a kernel that stays on its GPU.
    pub rings: bool,
    /// Whether it reports the length of each frame.
    pub end_of_packet: bool,
    /// Alignment of slot addresses in bytes, a power of two.
    pub alignment: usize,
    /// Most bytes of one slot.
    pub max_transfer: usize,
}

/// One slot that an engine has filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Valid bytes.
    pub length: usize,
    /// The number that the engine gives the transfer, if it does.
    pub sequence: Option<u64>,
    /// When.
    pub timestamp: Timestamp,
}

/// The completions that one poll yields, in slot order; holds a fixed number without allocating.
#[derive(Debug)]
pub struct Completions {
    done: Vec<Done>,
    /// Transfers that the engine says it overwrote or dropped since the last poll.
    pub overrun: u64,
}

impl Completions {
    /// Room for `capacity` completions a poll.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            done: Vec::with_capacity(capacity),
            overrun: 0,
        }
    }

    /// Adds one; false if there is no room, and the engine must report it at the next poll.
    pub fn push(&mut self, done: Done) -> bool {
        let room = self.done.len() < self.done.capacity();
        if room {
            self.done.push(done);
        }
        room
    }

    /// The completions.
    pub fn as_slice(&self) -> &[Done] {
        &self.done
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.done.clear();
        self.overrun = 0;
    }
}

/// An engine that would not stop: it must lose bus mastering and be reset before its slots are unmapped.
#[derive(Debug, thiserror::Error)]
#[error("{engine} still runs {waited:?} after it was told to stop")]
pub struct Stuck {
    /// The engine.
    pub engine: String,
    /// How long it was given.
    pub waited: Duration,
}

/// A producer that is given the addresses of all slots once and fills them by itself.
pub trait Engine: Send {
    /// What the engine can do.
    fn caps(&self) -> Caps;
    /// Programs the addresses of all slots, as the device sees them, and starts.
    fn arm(&mut self, slots: &[u64]) -> Result<(), SourceError>;
    /// Collects what has been filled since the last call; never waits.
    fn poll(&mut self, done: &mut Completions) -> Result<(), SourceError>;
    /// Gives `slots` further slots back to the engine.
    fn credit(&mut self, slots: u32);
    /// Returns once no transfer is in flight.
    fn quiesce(&mut self, patience: Duration) -> Result<(), Stuck>;
}

/// What a source's `build` gives: the threads' work.
pub enum Producers {
    /// One filler a thread; all write into one window.
    Fillers(Vec<Box<dyn Filler>>),
    /// One engine.
    Engine(Box<dyn Engine>),
}
