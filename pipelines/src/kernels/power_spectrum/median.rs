//! Medians of the spectra of an output.

use super::Shape;
use std::cell::RefCell;

/// The spectra of the output in progress.
pub(super) struct History {
    /// Squared magnitudes: for each channel the spectra, one after another.
    squares: Box<[f32]>,
    /// Number of spectra of each channel.
    counts: Box<[usize]>,
    bins: usize,
    /// Maximum number of spectra per channel.
    capacity: usize,
    bias: f64,
    /// The squared magnitudes of one bin.
    column: RefCell<Box<[f32]>>,
}

impl History {
    pub(super) fn new(shape: &Shape, channels: usize) -> Self {
        let capacity = shape.history();
        Self {
            squares: vec![0.0; capacity * channels * shape.bins].into(),
            counts: vec![0; channels].into(),
            bins: shape.bins,
            capacity,
            bias: bias(capacity),
            column: RefCell::new(vec![0.0; capacity].into()),
        }
    }

    /// Adds a spectrum of a channel. Squares behind the last bin are ignored.
    pub(super) fn add(&mut self, channel: usize, squares: impl Iterator<Item = f32>) {
        let at = (channel * self.capacity + self.counts[channel]) * self.bins;
        let places = &mut self.squares[at..][..self.bins];
        for (place, square) in places.iter_mut().zip(squares) {
            *place = square;
        }
        self.counts[channel] += 1;
    }

    /// Returns the median of each bin of a channel, divided by its bias.
    pub(super) fn medians(&self, channel: usize) -> impl Iterator<Item = f64> {
        let count = self.counts[channel];
        let spectra = &self.squares[channel * self.capacity * self.bins..][..count * self.bins];
        (0..self.bins).map(move |bin| {
            let mut column = self.column.borrow_mut();
            for (place, spectrum) in column.iter_mut().zip(spectra.chunks_exact(self.bins)) {
                *place = spectrum[bin];
            }
            median(&mut column[..count]) / self.bias
        })
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
    }
}

/// Returns the median of at least one number. Changes the order of the numbers. If a number is NaN, so is the median.
fn median(numbers: &mut [f32]) -> f64 {
    if numbers.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let middle = numbers.len() / 2;
    let is_even = numbers.len().is_multiple_of(2);
    let (below, upper, _) = numbers.select_nth_unstable_by(middle, f32::total_cmp);
    let upper = f64::from(*upper);
    match below.iter().copied().max_by(f32::total_cmp) {
        Some(lower) if is_even => f64::midpoint(f64::from(lower), upper),
        _ => upper,
    }
}

/// Returns the expected median of `count` spectra of Gaussian noise with a mean of 1.
pub(super) fn bias(count: usize) -> f64 {
    let pairs = (1..=count.saturating_sub(1) / 2).map(|i| 2.0 * i as f64);
    1.0 + pairs
        .map(|even| 1.0 / (even + 1.0) - 1.0 / even)
        .sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_invalid_numbers() {
        assert_eq!(median(&mut [3.0]), 3.0);
        assert_eq!(median(&mut [9.0, 1.0]), 5.0);
        assert_eq!(median(&mut [9.0, 1.0, 4.0]), 4.0);
        assert_eq!(median(&mut [9.0, 2.0, 4.0, 0.0]), 3.0);
        assert!(median(&mut [9.0, f32::NAN, 4.0]).is_nan());
    }

    #[test]
    fn bias_of_many_spectra_approaches_logarithm() {
        assert_eq!((bias(1), bias(2)), (1.0, 1.0));
        assert!((bias(3) - 5.0 / 6.0).abs() < 1e-15);
        assert!((bias(1_000_001) - std::f64::consts::LN_2).abs() < 1e-6);
    }
}
