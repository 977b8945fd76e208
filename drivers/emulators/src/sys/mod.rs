//! The emulators' foreign calls, and the only `unsafe` of this crate.

pub mod memory;
