//! Frame streams between hosts.

pub mod receiver;
pub mod sender;
pub mod transport;
pub mod wire;

pub use crate::verbs::Transport;
