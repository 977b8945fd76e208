//! Bins of a histogram.

use super::Bins;

/// Bins of equal width, with the same edges as in numpy.histogram.
pub(super) struct Histogram {
    pub(super) bins: Bins,
    pub(super) per_unit: f64,
    /// Lower edge of each bin, and the upper edge of the last bin.
    pub(super) edges: Box<[f64]>,
    /// Whether rounding can assign a number close to an edge to the wrong bin, so that the bin must be checked.
    pub(super) rounds: bool,
}

impl Histogram {
    pub(super) fn new(bins: Bins, integers: bool) -> Self {
        let step = (bins.high - bins.low) / bins.count as f64;
        let edge = |i: usize| {
            if i == bins.count {
                bins.high
            } else {
                i as f64 * step + bins.low
            }
        };
        let per_unit = bins.count as f64 / (bins.high - bins.low);
        // The difference of two integers of at most 33 bits is exact, and so is its quotient by a power of two.
        let whole = |x: f64| x.fract() == 0.0 && x.abs() <= 4_294_967_296.0;
        let exact = integers && whole(bins.low) && step >= 1.0 && step.log2().fract() == 0.0;
        Self {
            bins,
            per_unit,
            edges: (0..=bins.count).map(edge).collect(),
            rounds: !exact,
        }
    }

    /// Returns the bin of `x`; `None` if `x` is outside the range.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value was checked to be in range"
    )]
    pub(super) fn bin(&self, x: f64) -> Option<usize> {
        if !(x >= self.bins.low && x <= self.bins.high) {
            return None;
        }
        let near = (((x - self.bins.low) * self.per_unit) as usize).min(self.bins.count - 1);
        if !self.rounds {
            Some(near)
        } else if x < self.edges[near] {
            Some(near - 1)
        } else if near + 1 < self.bins.count && x >= self.edges[near + 1] {
            Some(near + 1)
        } else {
            Some(near)
        }
    }
}
