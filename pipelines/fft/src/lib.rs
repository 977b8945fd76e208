//! Fourier transforms of single precision.
//!
//! `rustfft` is generic, so each crate that plans a transform compiles all of its algorithms. This crate compiles them once.

#![warn(unreachable_pub)]

pub use rustfft::Fft;
pub use rustfft::num_complex::Complex;

use rustfft::FftPlanner;
use std::sync::Arc;

/// Returns the forward transform of `size` points, not normalised.
#[inline(never)]
pub fn forward(size: usize) -> Arc<dyn Fft<f32>> {
    FftPlanner::new().plan_fft_forward(size)
}
