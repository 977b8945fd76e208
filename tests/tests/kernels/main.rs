//! Compares the results of kernels with reference implementations in Python.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod power_spectrum;
mod trigger;
