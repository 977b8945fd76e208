//! Tests GPU memory, copies, kernels and persistent kernels on the simulated CUDA driver, and on a GPU if there is one.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod bar_mapping;
mod driver;
mod kernels;
mod peers;
mod persistent;
mod persistent_setup;
mod persistent_short_frames;
mod persistent_startup;
mod scope;
mod selftest;
mod several_gpus;
mod simulated_driver;
mod spread;
mod staging;
mod taps;
