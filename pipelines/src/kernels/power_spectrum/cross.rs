//! Cross-spectra of pairs of channels.
//!
//! Two blocks `a` and `b` of real samples share one transform `Z`. The sum of the cross-spectra of both blocks is
//! (S[k] + conj(S[N-k])) / 2 with S = conj(X) Y, where X and Y are the transforms of the two channels. Therefore S is summed as
//! for complex samples, and the finished sum is folded once.

use super::Shape;
use daq_fft::Complex;

/// The sums of the output in progress.
pub(super) struct Cross {
    /// Channels of each pair.
    pairs: Box<[[usize; 2]]>,
    /// Transforms of the current block, one per channel.
    transforms: Box<[Complex<f32>]>,
    /// Sums of conj(X) Y, one set per pair.
    sums: Box<[Complex<f64>]>,
    fft: usize,
}

impl Cross {
    pub(super) fn new(pairs: &[[u32; 2]], shape: &Shape, channels: usize) -> Self {
        Self {
            pairs: pairs
                .iter()
                .map(|pair| pair.map(|channel| channel as usize))
                .collect(),
            transforms: vec![Complex::default(); shape.fft * channels].into(),
            sums: vec![Complex::default(); shape.fft * pairs.len()].into(),
            fft: shape.fft,
        }
    }

    /// Returns whether a pair contains the channel.
    pub(super) fn has(&self, channel: usize) -> bool {
        self.pairs.iter().any(|pair| pair.contains(&channel))
    }

    /// Sets the transform of a channel for the current block.
    pub(super) fn set(&mut self, channel: usize, transform: &[Complex<f32>]) {
        self.transforms[channel * self.fft..][..self.fft].copy_from_slice(transform);
    }

    /// Adds the cross-spectra of the current block.
    pub(super) fn add(&mut self) {
        let transform = |channel: usize| &self.transforms[channel * self.fft..][..self.fft];
        for (pair, sums) in self.pairs.iter().zip(self.sums.chunks_exact_mut(self.fft)) {
            let [left, right] = pair.map(transform);
            for ((sum, x), y) in sums.iter_mut().zip(left).zip(right) {
                let product = x.conj() * y;
                *sum += Complex::new(f64::from(product.re), f64::from(product.im));
            }
        }
    }

    /// Returns the sum of bin `k` of a pair. If `fold` is set, transforms contain two blocks of real samples.
    pub(super) fn sum(&self, pair: usize, k: usize, fold: bool) -> Complex<f64> {
        let sums = &self.sums[pair * self.fft..][..self.fft];
        if fold {
            (sums[k] + sums[(self.fft - k) % self.fft].conj()) / 2.0
        } else {
            sums[k]
        }
    }

    pub(super) fn clear(&mut self) {
        self.sums.fill(Complex::default());
    }
}
