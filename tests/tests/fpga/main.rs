//! The source `fpga` through the whole binary, on simulated cards: every byte of what they sent, every fault by its name,
//! what was lost and why.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod bench;
mod bytes;
mod emulator;
mod faults;
mod gpu;
mod numbers;
mod overrun;
mod rounds;
mod setup;
