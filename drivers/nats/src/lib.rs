//! Frames as messages of a NATS server with JetStream. Used by the sink and the source `nats`.
//!
//! ```text
//!   data thread ── frames ──▶ client thread ══ messages ══▶ server: stores, deduplicates by id, acknowledges
//!               ◀── credits ──             ◀═ acknowledgements ═
//! ```
//! The client runs on a thread of its own, so that no data thread waits for the network. A data thread copies a frame into
//! a bounded window; the window is the only memory that a slow or missing server can occupy.
//!
//! # Guarantees
//! - A frame leaves the [`Publisher`]'s window only when the server has acknowledged all of its messages, or has refused it.
//!   Messages without an acknowledgement are published again with the same id, and the server stores each id once within
//!   its `duplicate_window`.
//! - The frames of a run are numbered without gaps, and number `n + window` is published only after `n` has left the window.
//!   So a [`Consumer`] knows from the numbers alone which frames are missing ([`order`]).
//! - The [`Consumer`] acknowledges a frame after it was published into the ring.

#![warn(unreachable_pub)]

#[cfg(feature = "client")]
mod client;
mod error;
pub mod keys;
#[cfg(not(feature = "client"))]
mod no_client;
pub mod options;
pub mod order;
mod run;
pub mod subject;
pub mod wire;

#[cfg(feature = "client")]
pub use client::{Consumer, Publisher, Received};
pub use error::NatsError;
#[cfg(not(feature = "client"))]
pub use no_client::{Consumer, Publisher, Received};
pub use run::run_name;

/// Whether this program contains the client.
pub const HAS_CLIENT: bool = cfg!(feature = "client");
