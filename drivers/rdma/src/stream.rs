//! Frame streams between hosts.

pub mod receiver;
pub mod sender;
pub mod transport;

pub use crate::verbs::Transport;

use std::time::Instant;

/// Returns the duration of an interruption, for the log.
fn after(since: Instant) -> String {
    format!(" after an interruption of {:.1?}", since.elapsed())
}
