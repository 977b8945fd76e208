//! Sources: what produces payload.
//!
//! Two kinds of producer, because sockets and DMA engines are different animals. A [`Filler`] writes packets
//! into the places of a [`ReorderWindow`] of open slots. An [`Engine`] is given the addresses of all slots once,
//! yields completions and takes credits.

use crate::dma::Engine;
use crate::reorder::ReorderWindow;
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
    /// The next packet has no slot: call again when the window has room. Only fillers that support backpressure return this.
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
/// Runs on its own thread. `fill` does one batch of work and must return within about `timeout`; it
/// allocates nothing, takes no lock and makes at most a constant number of system calls a batch.
pub trait Filler: Send {
    /// Does one batch of work.
    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError>;

    /// Called once after the last `fill`, also after an error: places what it still keeps. May wait for the thread that
    /// closes frames, but not for slots.
    fn finish(&mut self, _window: &mut ReorderWindow) {}

    /// Called once on the filler's own thread before the first `fill`.
    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// What a source's `build` gives: the threads' work.
pub enum Producers {
    /// One filler a thread; all write into one window.
    Fillers(Vec<Box<dyn Filler>>),
    /// One engine.
    Engine(Box<dyn Engine>),
}
