//! Compares the results of kernels with reference implementations in Python.

mod power_spectrum;
mod trigger;
