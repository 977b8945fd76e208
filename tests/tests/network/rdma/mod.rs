//! Tests RDMA streams between daemons and `daq selftest rdma`, with emulated NICs.

mod selftest;
mod streams;
