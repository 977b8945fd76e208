//! System calls and raw memory accesses of the emulators; the only `unsafe` code of this crate.

pub(crate) mod memory;
