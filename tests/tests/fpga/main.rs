//! Tests the source `fpga` in whole runs with emulated devices. Checks every byte, every fault by its name, and every
//! loss with its cause.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod bench;
mod bytes;
mod emulator;
mod faults;
mod gpu;
mod litepcie;
mod numbers;
mod overrun;
mod rounds;
mod setup;
