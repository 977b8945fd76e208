//! Tests RDMA streams between daemons and `daq selftest rdma`, with emulated NICs.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod selftest;
mod streams;
