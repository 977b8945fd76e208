//! Connects two hosts: the connector sends a greeting, the listener answers with its own, and both get connected queue pairs.
//!
//! ```text
//!   connector ── greeting, endpoints of its queue pairs ──▶ listener
//!           ◀── greeting, endpoints of its queue pairs ──
//!           ══ queue pairs, one per rail ══ PeerMonitor: is the peer still connected?
//! ```
//! With `rdma_cm` greetings are the private data of the connections, one connection per rail. With TCP they use one
//! stream, which stays open, so that the end of the peer is detected immediately.

pub(crate) mod acceptor;
pub mod access;
pub mod cm;
pub mod exchange;
pub mod tcp;

use crate::verbs::{Nic, QueuePair, QueuePairOptions, Service, VerbsError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum size of a connector's greeting in bytes: the limit of an `rdma_cm` request.
pub const MAX_HELLO: usize = 56;
/// Most bytes of a listener's greeting, a rail: what `rdma_cm` carries with a reply.
pub const MAX_OFFER: usize = 196;

/// Error of a connection attempt.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The card refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The network did.
    #[error("{peer}: {action}: {source}")]
    Network {
        /// The other side's address, or ours.
        peer: String,
        /// What was tried.
        action: &'static str,
        /// The answer.
        source: std::io::Error,
    },
    /// The other side did.
    #[error("{peer} rejected the connection: {why}")]
    Refused {
        /// The other side's address.
        peer: String,
        /// Its words.
        why: String,
    },
    /// The two sides have different settings.
    #[error("{peer}: {why}")]
    Mismatch {
        /// The other side's address.
        peer: String,
        /// What differs, and what to change on which host.
        why: String,
    },
    /// This side has stopped meanwhile.
    #[error("{peer}: connection attempt cancelled because this side has stopped")]
    Cancelled {
        /// The other side's address.
        peer: String,
    },
    /// The peer sent something that is not a greeting of this protocol.
    #[error("{peer} does not use daq's protocol: {why}")]
    Foreign {
        /// The other side's address.
        peer: String,
        /// What was wrong.
        why: String,
    },
}

/// How two hosts find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// By a plain exchange over TCP.
    #[default]
    Tcp,
    /// By `rdma_cm`.
    Cm,
}

impl Connection {
    /// What of a stream by these cards and of this service cannot be connected in this way, where anything: the key of a
    /// configuration that says so, what is wrong and what helps. It is the same on both sides.
    pub fn problem(
        self,
        nics: &[String],
        service: Service,
    ) -> Option<(&'static str, &'static str, &'static str)> {
        if self == Self::Tcp {
            return None;
        }
        let by_tcp = "use connection = \"tcp\" on both sides";
        if nics.iter().any(|nic| crate::nics::is_emulated_nic(nic)) {
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

    /// One that goes to the listener at `address` in this way.
    pub fn connector(self, address: SocketAddr) -> Box<dyn Connector> {
        match self {
            Self::Tcp => Box::new(tcp::connector(address)),
            Self::Cm => Box::new(cm::connector(address)),
        }
    }

    /// One that waits at `address` in this way.
    ///
    /// # Errors
    /// The address cannot be bound, or librdmacm is absent.
    pub fn listener(self, address: SocketAddr) -> Result<Box<dyn Listener>, ConnectError> {
        match self {
            Self::Tcp => Ok(Box::new(tcp::listener(address)?)),
            Self::Cm => Ok(Box::new(cm::listener(address)?)),
        }
    }
}

/// Called with the index and the queue of each rail before the peer may send: the place to post receives.
pub type Prepare<'a> = &'a mut dyn FnMut(usize, &mut dyn QueuePair) -> Result<(), VerbsError>;

/// Makes an operation of another thread fail soon; has no effect once it has finished.
pub type AbortHandle = Box<dyn Fn() + Send>;

/// Connected queue pairs.
pub struct Link {
    /// One a rail.
    pub rails: Vec<Box<dyn QueuePair>>,
    /// The peer's greetings, one per rail.
    pub greetings: Vec<Vec<u8>>,
    /// Whether it is still there.
    pub monitor: Box<dyn PeerMonitor>,
}

/// Why the peer disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Where it has said that it ends on purpose: how many frames of the stream there are in all as far as it knows.
    /// `rdma_cm` carries no such word: a process that ends on purpose looks like one that dies.
    pub final_frames: Option<u64>,
    /// A sentence.
    pub why: String,
}

impl std::fmt::Display for Disconnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Detects that the peer has disconnected.
pub trait PeerMonitor: Send {
    /// Why it is not; `None` while it is. One system call at most, and none where the connection has its own thread; never
    /// waits.
    fn poll_disconnect(&mut self) -> Option<Disconnect>;

    /// Sends the peer a close message with the total number of frames of the stream that this side knows of.
    fn close(&mut self, frames: u64);
}

/// A peer's words as they are shown to people, in logs and terminals: without control characters, and of at most 160 bytes.
fn sanitized(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let mut sanitized: String = text
        .chars()
        .map(|c| if is_printable(c) { c } else { ' ' })
        .collect();
    sanitized.truncate(sanitized.floor_char_boundary(exchange::MAX_REASON));
    sanitized
}

/// Whether a character is one that a terminal shows, and in its place: no control character, and none that turns the
/// direction of writing or is invisible.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Connects to a listener.
pub trait Connector: Send {
    /// Cancels the attempt if `is_cancelled` becomes true before the last message of the handshake.
    fn cancel_with(&mut self, is_cancelled: Arc<AtomicBool>) {
        drop(is_cancelled);
    }

    /// Connects one queue for each of `nics`, with a greeting for each, within `limit`.
    fn dial(
        &mut self,
        nics: &[Arc<dyn Nic>],
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
        limit: Duration,
    ) -> Result<Link, ConnectError>;
}

/// Accepts connectors.
pub trait Listener: Send {
    /// From now on refuses peers whose address `allows` does not allow.
    fn restrict(&mut self, allows: access::Allows) {
        drop(allows);
    }

    /// The next one, with as many rails as there are `nics`; `None` if there was none within `limit`.
    fn accept(
        &mut self,
        nics: &[Arc<dyn Nic>],
        limit: Duration,
    ) -> Result<Option<Box<dyn Incoming>>, ConnectError>;
}

/// A connector that waits for an answer.
pub trait Incoming: Send {
    /// Who, for messages.
    fn peer(&self) -> String;

    /// Its greetings, one a rail.
    fn greetings(&self) -> &[Vec<u8>];

    /// Returns a handle that makes a waiting [`accept`](Self::accept) fail.
    fn abort_handle(&self) -> AbortHandle;

    /// Answers with a greeting a rail; the queues are connected when this returns.
    fn accept(
        self: Box<Self>,
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<Link, ConnectError>;

    /// Rejects it with a reason of at most 160 bytes.
    fn refuse(self: Box<Self>, why: &str);
}

#[cfg(test)]
mod tests;
