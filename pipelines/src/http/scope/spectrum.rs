//! Power spectra of parts of a frame.

use super::points::{Block, Points};
use daq_fft::{Complex, Fft};
use std::f64::consts::TAU;
use std::sync::Arc;

/// Maximum number of rows of the waterfall per frame.
pub(super) const ROWS: usize = 4;
/// Maximum number of transforms per row.
const BLOCKS_PER_ROW: usize = 16;

/// Computes spectra of `size` points with a Hann window.
pub(super) struct Transform {
    size: usize,
    complex: bool,
    window: Box<[f32]>,
    /// Square of the sum of the window.
    gain: f64,
    fft: Arc<dyn Fft<f32>>,
    block: Box<[Complex<f32>]>,
    scratch: Box<[Complex<f32>]>,
}

/// The spectra of a frame.
pub(super) struct Spectra {
    /// The mean of all blocks without missing samples; NaN if samples are missing in each block.
    pub(super) mean: Vec<f32>,
    /// Rows of the waterfall, one after the other, the newest first; NaN if samples of the row are missing.
    pub(super) rows: Vec<f32>,
}

impl Transform {
    pub(super) fn new(size: usize, complex: bool) -> Self {
        let window: Box<[f32]> = (0..size)
            .map(|n| (0.5 - 0.5 * (TAU * n as f64 / size as f64).cos()) as f32)
            .collect();
        let fft = daq_fft::forward(size);
        let zero = Complex::new(0.0, 0.0);
        Self {
            size,
            complex,
            gain: window.iter().copied().map(f64::from).sum::<f64>().powi(2),
            window,
            block: vec![zero; size].into(),
            scratch: vec![zero; fft.get_inplace_scratch_len()].into(),
            fft,
        }
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of bins: from 0 to half the rate for real samples, all for complex samples.
    pub(super) const fn bins(&self) -> usize {
        if self.complex {
            self.size
        } else {
            self.size / 2 + 1
        }
    }

    /// Computes the spectra of `points` relative to the power of a sine of amplitude `full_scale`. Transforms only some blocks
    /// of a long frame, at equal distances. `decoded` is a buffer.
    pub(super) fn spectra(
        &mut self,
        points: &Points<'_>,
        decoded: &mut Block,
        full_scale: f64,
    ) -> Spectra {
        let (size, bins) = (self.size, self.bins());
        let rows = (points.len() / size).clamp(1, ROWS);
        let per_row = points.len() / rows;
        let mut spectra = Spectra {
            mean: Vec::with_capacity(bins),
            rows: vec![f32::NAN; rows * bins],
        };
        let mut total = vec![0.0; bins];
        let mut blocks = 0;
        for row in 0..rows {
            let start = row * per_row;
            let end = start + per_row;
            let is_missing = points.gaps().any(|gap| gap.start < end && gap.end > start);
            let count = (per_row / size).min(BLOCKS_PER_ROW);
            let mut sums = vec![0.0; bins];
            let mut used = 0;
            for block in 0..count {
                let first = start + (per_row - size) * block / (count - 1).max(1);
                points.read(first..first + size, decoded);
                let Block { re, im } = decoded;
                if re.iter().any(|sample| sample.is_nan()) {
                    continue;
                }
                self.add(re, im, full_scale, &mut sums);
                used += 1;
            }
            for (total, sum) in total.iter_mut().zip(&sums) {
                *total += sum;
            }
            blocks += used;
            if !is_missing {
                let newest_first = rows - 1 - row;
                let target = &mut spectra.rows[newest_first * bins..][..bins];
                for (value, sum) in target.iter_mut().zip(&sums) {
                    *value = (sum / f64::from(used)) as f32;
                }
            }
        }
        let mean = total.iter().map(|sum| (sum / f64::from(blocks)) as f32);
        spectra.mean.extend(mean);
        spectra
    }

    /// Adds the power of one block to `sums`.
    fn add(&mut self, re: &[f32], im: &[f32], full_scale: f64, sums: &mut [f64]) {
        for (i, (target, w)) in self.block.iter_mut().zip(&self.window).enumerate() {
            let im = im.get(i).copied().unwrap_or(0.0);
            *target = Complex::new(re[i] * w, im * w);
        }
        self.fft
            .process_with_scratch(&mut self.block, &mut self.scratch);
        let factor = 1.0 / (self.gain * full_scale * full_scale);
        let (size, bins) = (self.size, sums.len());
        for (i, sum) in sums.iter_mut().enumerate() {
            // Complex samples: negative frequencies first.
            let bin = if self.complex {
                (i + size / 2) % size
            } else {
                i
            };
            let power = f64::from(self.block[bin].norm_sqr()) * factor;
            // A real sine has half of its amplitude at the negative frequency, except in the first and the last bin.
            let doubled = !self.complex && i > 0 && i + 1 < bins;
            *sum += if doubled { 4.0 * power } else { power };
        }
    }
}
