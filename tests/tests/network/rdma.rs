//! Tests streams between daemons, over emulated NICs and over TCP, and `daq selftest rdma`.

mod selftest;
mod streams;
mod tcp;
