//! Frames over queue pairs.

pub mod wire;
