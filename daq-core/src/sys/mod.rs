//! The only foreign calls of the core: one thin function each.

pub mod copy;
pub mod memory;
pub mod thread;
