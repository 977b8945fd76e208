//! The client of a program that was built without it: it cannot be started.

use crate::NatsError;
use crate::options::{
    ConsumerCounters, ConsumerOptions, Losses, PublisherCounters, PublisherOptions,
};
use daq_core::frame::FrameMeta;
use daq_core::notify::Wait;
use daq_core::ring::Frame;
use std::convert::Infallible;
use std::time::Duration;

/// A publisher, which does not exist in this program.
pub struct Publisher(Infallible);

impl Publisher {
    /// Returns the reason why there is no client.
    pub fn start(_: PublisherOptions, _: PublisherCounters) -> Result<Self, NatsError> {
        Err(NatsError::no_client())
    }

    /// Never called.
    pub fn offer(&mut self, _: &Frame<'_>) -> bool {
        match self.0 {}
    }

    /// Never called.
    pub fn commit(&self) {
        match self.0 {}
    }

    /// Never called.
    pub fn wait(&mut self, _: Wait, _: Duration) -> bool {
        match self.0 {}
    }

    /// Never called.
    pub fn server(&self) -> &str {
        match self.0 {}
    }

    /// Never called.
    pub fn obstacle(&self) -> Option<(bool, String, String)> {
        match self.0 {}
    }

    /// Never called.
    pub fn finish(&mut self) -> u64 {
        match self.0 {}
    }
}

/// A frame that was received, which does not exist in this program.
pub struct Received {
    /// The metadata.
    pub meta: FrameMeta,
    /// Bitmap of the packets that arrived.
    pub present: Vec<u64>,
    /// Number of missing frames before this frame.
    pub missing: u64,
    /// Number of deleted frames before this frame.
    pub expired: u64,
    /// A number that changes with the sender's run.
    pub run: u64,
    never: Infallible,
}

impl Received {
    /// Never called.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        match self.never {}
        #[expect(unreachable_code, reason = "the type of the iterator must be known")]
        std::iter::empty()
    }
}

/// A consumer, which does not exist in this program.
pub struct Consumer(Infallible);

impl Consumer {
    /// Returns the reason why there is no client.
    pub fn start(_: ConsumerOptions, _: ConsumerCounters) -> Result<Self, NatsError> {
        Err(NatsError::no_client())
    }

    /// Never called.
    pub fn peek(&self) -> Option<&Received> {
        match self.0 {}
    }

    /// Never called.
    pub fn take(&mut self) -> Option<Received> {
        match self.0 {}
    }

    /// Never called.
    pub fn finish(&mut self, _: Received) {
        match self.0 {}
    }

    /// Never called.
    pub fn take_losses(&self) -> Losses {
        match self.0 {}
    }

    /// Never called.
    pub fn failure(&self) -> Option<NatsError> {
        match self.0 {}
    }

    /// Never called.
    pub fn commit(&self) {
        match self.0 {}
    }

    /// Never called.
    pub fn wait(&self, _: Duration) {
        match self.0 {}
    }

    /// Never called.
    pub fn close(&mut self) {
        match self.0 {}
    }
}
