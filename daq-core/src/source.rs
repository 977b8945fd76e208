//! Sources, which produce the payload of frames.
//!
//! Sockets and DMA engines need different interfaces. A [`Filler`] writes packets into the packet slots of a
//! [`ReorderWindow`] of open ring slots. An [`Engine`] receives the addresses of all ring slots once. It then reports
//! completed transfers, and receives credits for slots that are free again.

use crate::dma::Engine;
use crate::reorder::ReorderWindow;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why a source cannot receive data at the moment, such as a camera that is not found. While it is set, the pipeline is not
/// ready. Never used on a data thread.
#[derive(Clone, Debug, Default)]
pub struct Obstacle(Arc<Mutex<Option<String>>>);

impl Obstacle {
    /// Sets the reason, as a clause.
    pub fn set(&self, why: String) {
        *self.lock() = Some(why);
    }

    /// Removes the obstacle, because data can arrive.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// Returns the reason, if there is an obstacle.
    pub fn get(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of one call of [`Filler::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Packets were processed; call `fill` again immediately.
    Busy,
    /// No packet is available. The filler has waited for its timeout, or cannot predict when the next packet arrives.
    Idle,
    /// No packet will be available before this time has passed.
    Until(Duration),
    /// The window has no room for the next packet; call `fill` again when a slot is free. Only fillers that support
    /// backpressure return this.
    Full,
    /// The source has ended.
    Ended,
}

/// The error that stopped a source.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct SourceError {
    /// What failed: an address, a file or a device.
    pub what: String,
    /// What happened, and how to fix it.
    pub why: String,
    /// True if only a change of the configuration, of a file or of the server resolves the error. A restart without such a
    /// change fails in the same way.
    pub is_configuration: bool,
}

impl SourceError {
    /// Creates an error about `what`.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.into(),
            is_configuration: false,
        }
    }

    /// Creates an error about `what` that only a change of the configuration, of a file or of the server resolves.
    pub fn configuration(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            is_configuration: true,
            ..Self::new(what, why)
        }
    }
}

/// A producer that writes packets into the packet slots of a reorder window.
///
/// Each filler runs on its own thread. `fill` processes one batch of packets and must return within about `timeout`.
/// `fill` must not allocate memory or take a lock. The number of system calls per batch must be bounded by a constant.
pub trait Filler: Send {
    /// Processes one batch of packets.
    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError>;

    /// Writes the packets that the filler still holds into the window. Called once after the last `fill`, also after an
    /// error. `finish` may wait for the thread that closes frames, but not for free slots.
    fn finish(&mut self, _window: &mut ReorderWindow) {}

    /// Prepares the filler. Called once on the filler's own thread before the first `fill`.
    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Accepts processes that produce the frames of a source, one at a time.
pub trait Inlet: fmt::Debug + Send + Sync {
    /// Passes the connection of a process to the thread of the source. The process writes frames of `frame_bytes` bytes into
    /// the file `inbox`. Returns the number of slots of the inbox, or the reason why the process cannot produce.
    fn connect(&self, socket: OwnedFd, inbox: OwnedFd, frame_bytes: usize)
    -> Result<usize, String>;
}

/// The producers of a source, which [`SourceSpec::build`](crate::entry::SourceSpec::build) returns.
pub enum Producers {
    /// One filler per thread. All fillers write into the same window.
    Fillers(Vec<Box<dyn Filler>>),
    /// One DMA engine.
    Engine(Box<dyn Engine>),
}
