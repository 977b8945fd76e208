//! Tests of the built-in kernels and of persistent kernels on the CPU.

#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

mod allocations;
mod own_engine;
mod persistent_on_host;
