//! Connects two hosts. The connector sends a greeting, the listener answers with its own greeting, and both sides get
//! connected queue pairs.
//!
//! ```text
//!   connector ── greeting, endpoints of its queue pairs ──▶ listener
//!           ◀── greeting, endpoints of its queue pairs ──
//!           ══ queue pairs, one per rail ══ PeerMonitor: detects that the peer has disconnected
//! ```
//! The [`Handshake`] is the same for both transports. With `rdma_cm` the greetings are the private data of the connections, and each rail has one connection. With TCP all
//! greetings use one stream. The stream stays open, so that a peer that ends is detected immediately.

pub(crate) mod acceptor;
pub mod access;
pub mod cm;
pub(crate) mod exchange;
pub(crate) mod handshake;
pub mod tcp;

pub use handshake::{Accepted, Connector, Handshake, Incoming, Listener, PendingLink, Progress};

use crate::verbs::{QueuePair, Service, VerbsError};
use daq_core::topology::nic::is_emulated_nic;
use std::net::SocketAddr;

/// Maximum size of a connector's greeting in bytes: the limit of an `rdma_cm` request.
pub(crate) const MAX_HELLO: usize = 56;
/// Maximum size of a listener's greeting per rail in bytes: the limit of an `rdma_cm` reply.
pub(crate) const MAX_OFFER: usize = 196;

/// Error of a connection attempt. Its text does not contain the peer's address. Callers add the peer's address.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A network call failed.
    #[error("{action}: {source}")]
    Network {
        /// The action that failed.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The peer rejected the connection.
    #[error("connection rejected: {why}")]
    Refused {
        /// The reason that the peer sent.
        why: String,
    },
    /// The two sides have different settings.
    #[error("{why}")]
    Mismatch {
        /// What differs, and what to change on which host.
        why: String,
    },
    /// The connection attempt was cancelled because this side has stopped.
    #[error("connection attempt cancelled because this side has stopped")]
    Cancelled,
    /// The peer sent data that is not a greeting of this protocol.
    #[error("the peer does not use daq's protocol: {why}")]
    Foreign {
        /// The invalid part of the data.
        why: String,
    },
}

impl ConnectError {
    const fn network(action: &'static str, source: std::io::Error) -> Self {
        Self::Network { action, source }
    }
}

/// The protocol by which two hosts connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// An exchange over plain TCP.
    #[default]
    Tcp,
    /// `rdma_cm`.
    Cm,
}

impl Connection {
    /// Checks whether this protocol can connect a stream with these NICs and this service. Returns the invalid
    /// configuration key, the problem and the fix, or `None` if the combination is valid. Both sides get the same
    /// result.
    pub fn problem(
        self,
        nics: &[String],
        service: Service,
    ) -> Option<(&'static str, &'static str, &'static str)> {
        if self == Self::Tcp {
            return None;
        }
        let by_tcp = "use connection = \"tcp\" on both sides";
        if nics.iter().any(|nic| is_emulated_nic(nic)) {
            let message = "rdma_cm does not support emulated NICs";
            return Some(("connection", message, by_tcp));
        }
        if service != Service::Rc {
            let message = "rdma_cm supports only reliable connections";
            let help = "use service = \"rc\", or connection = \"tcp\" on both sides";
            return Some(("connection", message, help));
        }
        if nics.iter().any(|nic| *nic != nics[0]) {
            let message = "rdma_cm connects to one address and so supports only one NIC";
            let help =
                "name one NIC and raise `queue_pairs`, or use connection = \"tcp\" on both sides";
            return Some(("connection", message, help));
        }
        None
    }

    /// Returns a connector to the listener at `address`.
    pub fn connector(self, address: SocketAddr) -> Connector {
        match self {
            Self::Tcp => tcp::connector(address),
            Self::Cm => cm::connector(vec![address]),
        }
    }

    /// Returns a listener at `address`.
    ///
    /// # Errors
    /// If the address cannot be bound, or librdmacm is absent.
    pub fn listener(self, address: SocketAddr) -> Result<Listener, ConnectError> {
        match self {
            Self::Tcp => tcp::listener(address),
            Self::Cm => cm::listener(address),
        }
    }
}

/// Function called with the index and the queue pair of each rail before the peer may send. The function should post
/// the receives.
pub type Prepare<'a> = &'a mut dyn FnMut(usize, &mut dyn QueuePair) -> Result<(), VerbsError>;

/// Function that aborts an operation of another thread, so that the operation fails soon. Calling this function has no
/// effect after the operation has finished.
pub(crate) type AbortHandle = Box<dyn Fn() + Send>;

/// A connection to a peer: connected queue pairs, and the peer's greetings.
pub struct Link {
    /// The queue pairs, one per rail.
    pub rails: Vec<Box<dyn QueuePair>>,
    /// The peer's greetings, one per rail.
    pub greetings: Vec<Vec<u8>>,
    /// Detects when the peer disconnects.
    pub monitor: Box<dyn PeerMonitor>,
}

/// The reason why the peer disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Total number of frames of the stream as the peer reported it in a close message; `None` if the peer sent no
    /// close message. Always `None` with `rdma_cm`, which cannot transfer this number, so that an end on purpose looks
    /// like a crash.
    pub final_frames: Option<u64>,
    /// The reason as a sentence, without the peer's address.
    pub why: String,
}

impl std::fmt::Display for Disconnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Detects that the peer has disconnected.
pub trait PeerMonitor: Send {
    /// Returns why the peer is disconnected; `None` while the peer is connected. Makes at most one system call, and no
    /// system call if a separate thread watches the connection. Never blocks.
    fn poll_disconnect(&mut self) -> Option<Disconnect>;

    /// Sends the peer a close message with the total number of frames of the stream that this side knows of.
    fn close(&mut self, frames: u64);
}

/// Returns a peer's text for logs and terminals: at most 160 bytes, with unprintable characters replaced by spaces.
fn sanitized(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let mut sanitized: String = text
        .chars()
        .map(|c| if is_printable(c) { c } else { ' ' })
        .collect();
    sanitized.truncate(sanitized.floor_char_boundary(exchange::MAX_REASON));
    sanitized
}

/// Returns true if a terminal can show the character safely. Control characters, invisible characters and characters
/// that change the writing direction are excluded.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod tests;
