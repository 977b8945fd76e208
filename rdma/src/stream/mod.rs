//! Frames over queue pairs.

pub mod receiver;
pub mod wire;
