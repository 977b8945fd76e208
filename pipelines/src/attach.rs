//! The attach server: other processes of this machine list the rings of a pipeline and read them.
//!
//! | file | noun |
//! |---|---|
//! | `socket.rs` | the Unix socket, and packets with file descriptors |
//! | `protocol.rs` | requests and replies |
//! | `server.rs` | the thread that serves all connections |
//! | `connection.rs` | one connection, and what its client does |
//! | `attachment.rs` | a client that is attached to a ring |
//! | `relay.rs` | the thread that wakes the clients of a ring |
//! | `taps.rs` | the thread that copies the newest frames |
//! | `claims.rs` | checks the counts that clients report |
//! | `clients.rs` | the clients of all rings, and their ledgers |
//! | `client.rs` | the other end, for `daq ls` and `daq tap` |
//!
//! `docs/src/reference/attach.md` describes the protocol. The server runs on one thread with low priority, which is not part
//! of the data path, and never waits for a client or for a GPU. A client can stop, send anything or disappear: the server then closes
//! its connection, and the ledger contains what it reported before.

mod attachment;
mod claims;
pub mod client;
mod clients;
mod connection;
mod protocol;
mod relay;
mod server;
mod socket;
mod taps;

pub use clients::Clients;
pub use server::Server;
pub use socket::{directories, sockets};

use daq_core::ledger::RingLedger;
use daq_core::plan::PlannedRing;
use daq_core::ring::Ring;
use daq_core::source::Inlet;
use daq_sinks::lock::LockError;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Errors that prevent the server from running.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no directory for the socket.
    #[error(
        "attach: no state directory and no XDG_RUNTIME_DIR, so no process can attach to this run; set --state-dir"
    )]
    NoDirectory,
    /// The path of the socket is too long.
    #[error(
        "attach: {} is too long for a socket, so no process can attach to this run; set XDG_RUNTIME_DIR, or a shorter --state-dir",
        path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves a pipeline with this name.
    #[error(
        "attach: another run serves {}, so no process can attach to this run; stop the other run, or set another `name` in [daq]",
        path.display()
    )]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The group of the configuration cannot be used.
    #[error("attach: group `{name}`: {why}; no process can attach to this run")]
    Group {
        /// Name of the group.
        name: String,
        /// What happened and how to fix it.
        why: String,
    },
    /// The right to create the socket could not be obtained.
    #[error("attach: {0}; no process can attach to this run")]
    Lock(#[source] LockError),
    /// The socket could not be created.
    #[error("attach: cannot create the socket {}: {source}; set a writable directory with --state-dir", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The thread or its resources could not be created.
    #[error(
        "attach: cannot start the server's thread: {0}; raise the limits on threads and open files (ulimit -u and -n, \
         TasksMax= and LimitNOFILE=)"
    )]
    Thread(#[source] io::Error),
}

/// A ring that the server offers.
#[derive(Clone, Debug)]
pub struct OfferedRing {
    /// The ring.
    pub ring: Ring,
    /// The plan of the ring.
    pub planned: PlannedRing,
    /// The ledger of the ring.
    pub ledger: RingLedger,
}

/// A source whose frames a process can produce.
#[derive(Clone, Debug)]
pub struct OfferedSource {
    /// The ring that the source fills.
    pub ring: String,
    /// Size of a frame in bytes.
    pub frame_bytes: usize,
    /// Where processes connect.
    pub inlet: Arc<dyn Inlet>,
}

/// A function that returns whether the pipeline is ready.
#[derive(Clone)]
pub struct Ready(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ready").field(&(self.0)()).finish()
    }
}

/// What the server offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Group whose members can attach, in addition to the user of this process and root.
    pub group: Option<String>,
    /// Returns whether the pipeline is ready.
    pub ready: Ready,
    /// Address of the HTTP server. `None` if the configuration has no `[http]`.
    pub http: Option<SocketAddr>,
    /// The rings by name.
    pub rings: BTreeMap<String, OfferedRing>,
    /// The sources whose frames processes produce, by name.
    pub sources: BTreeMap<String, OfferedSource>,
    /// The clients, which reports contain.
    pub clients: Arc<Clients>,
}
