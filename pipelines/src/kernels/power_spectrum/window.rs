//! Window functions.

use schemars::JsonSchema;
use serde::Deserialize;
use std::f64::consts::TAU;

/// Window by which a block is multiplied before its transform. All windows are periodic: `w[n]` for `n` in `0..size` is
/// one period, as required for spectra.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// 0.5 − 0.5 cos t.
    #[default]
    Hann,
    /// 0.54 − 0.46 cos t.
    Hamming,
    /// 0.35875 − 0.48829 cos t + 0.14128 cos 2t − 0.01168 cos 3t.
    BlackmanHarris,
    /// 1.
    Rectangular,
}

impl Window {
    /// Returns `w[n]` of a window of `size` points.
    ///
    /// ```
    /// use daq_pipelines::kernels::power_spectrum::Window;
    /// assert_eq!(Window::Hann.at(0, 8), 0.0);
    /// assert_eq!(Window::Hann.at(4, 8), 1.0);
    /// ```
    pub fn at(self, n: usize, size: usize) -> f64 {
        let terms: &[f64] = match self {
            Self::Hann => &[0.5, -0.5],
            Self::Hamming => &[0.54, -0.46],
            Self::BlackmanHarris => &[0.35875, -0.48829, 0.14128, -0.01168],
            Self::Rectangular => &[1.0],
        };
        let t = TAU * n as f64 / size as f64;
        terms
            .iter()
            .zip(0_u32..)
            .map(|(term, k)| term * (f64::from(k) * t).cos())
            .sum()
    }

    /// Returns the sum of `each(w[n])` over a window of `size` points.
    pub(super) fn sum(self, size: usize, each: impl Fn(f64) -> f64) -> f64 {
        (0..size).map(|n| each(self.at(n, size))).sum()
    }
}
