//! Percentiles of a method over several rounds.

use super::table::Cell;
use super::{median, quantile};

/// The median, the 99th and the 99.9th percentile of one method. Each of the three has one value per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures([Vec<f64>; 3]);

impl Figures {
    const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

    /// Adds the times of one round.
    pub(super) fn add(&mut self, times: &[f64]) {
        for (figures, q) in self.0.iter_mut().zip(Self::QUANTILES) {
            figures.push(quantile(times, q));
        }
    }

    /// Returns the median over the rounds of the `i`-th percentile; NaN if there are no rounds.
    pub(super) fn at(&self, i: usize) -> f64 {
        if self.0[i].is_empty() {
            return f64::NAN;
        }
        median(&self.0[i])
    }

    /// Returns the three percentiles as table cells.
    pub(super) fn cells(&self) -> [Cell; 3] {
        [0, 1, 2].map(|i| Cell::Number(self.at(i), 3))
    }

    /// Returns the ratio of the 99th percentile to the median.
    pub(super) fn spread(&self) -> f64 {
        self.at(1) / self.at(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_medians_over_rounds() {
        let mut figures = Figures::default();
        assert!(figures.at(0).is_nan() && figures.spread().is_nan());
        for scale in [1.0, 10.0, 2.0] {
            let times: Vec<_> = (0..=1000).map(|n| f64::from(n) * scale).collect();
            figures.add(&times);
        }
        assert_eq!([0, 1, 2].map(|i| figures.at(i)), [1000.0, 1980.0, 1998.0]);
        assert_eq!(figures.spread(), 1.98);
    }
}
