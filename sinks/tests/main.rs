//! Tests of sinks. No test of this binary may start a process: between fork and exec, the child would hold every lock of
//! this process.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod file_sink;
mod lock;
mod registry;
mod segment_close;
mod sigmf_builder;
mod stream_sink;
mod support;
mod udp_sink;
