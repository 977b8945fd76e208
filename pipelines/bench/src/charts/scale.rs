//! Maps figures to positions, and selects the figures that an axis names.

/// An axis: a range of figures, linear or logarithmic, and the range of positions in pixels.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    is_log: bool,
    domain: [f64; 2],
    range: [f64; 2],
}

/// Steps of ticks within a decade. All steps of a list are used, or none.
const LOG_STEPS: [&[f64]; 2] = [&[1.0, 2.0, 5.0], &[1.0]];
/// Steps of linear ticks within a decade.
const LINEAR_STEPS: [f64; 4] = [1.0, 2.0, 2.5, 5.0];

impl Scale {
    /// Creates an axis for `figures`: logarithmic if the largest figure is more than `max_ratio` times the smallest one,
    /// otherwise linear from zero. The ends of the axis are ticks, of which there are about `ticks`. Figures that are
    /// not positive are ignored.
    pub(super) fn new(
        figures: impl Iterator<Item = f64>,
        max_ratio: f64,
        ticks: f64,
        range: [f64; 2],
    ) -> Self {
        let (min, max) = figures
            .filter(|figure| *figure > 0.0 && figure.is_finite())
            .fold((f64::INFINITY, 0.0_f64), |(min, max), figure| {
                (min.min(figure), max.max(figure))
            });
        if max <= 0.0 {
            return Self::of(false, [0.0, 1.0], range);
        }
        if max / min <= max_ratio {
            let step = linear_step(max / ticks);
            return Self::of(false, [0.0, (max / step - 1e-9).ceil() * step], range);
        }
        Self::of(true, [log_below(min), 1.0 / log_below(1.0 / max)], range)
    }

    /// Creates a logarithmic axis whose ends are the smallest and the largest of `figures`.
    pub(super) fn exact(figures: &[f64], range: [f64; 2]) -> Self {
        let ends = figures
            .iter()
            .fold([f64::INFINITY, 0.0_f64], |[min, max], figure| {
                [min.min(*figure), max.max(*figure)]
            });
        Self::of(true, ends, range)
    }

    const fn of(is_log: bool, domain: [f64; 2], range: [f64; 2]) -> Self {
        Self {
            is_log,
            domain,
            range,
        }
    }

    /// Returns the position of a figure. A figure outside of the axis is moved to its end.
    pub(super) fn at(&self, figure: f64) -> f64 {
        let [low, high] = self.domain.map(|end| self.linear(end));
        let share = if high > low {
            (self.linear(figure) - low) / (high - low)
        } else {
            0.5
        };
        self.range[0] + share.clamp(0.0, 1.0) * (self.range[1] - self.range[0])
    }

    fn linear(&self, figure: f64) -> f64 {
        if self.is_log {
            figure.max(f64::MIN_POSITIVE).ln()
        } else {
            figure
        }
    }

    /// Returns about `count` figures that the axis names.
    pub(super) fn ticks(&self, count: f64) -> Vec<f64> {
        if self.is_log {
            self.log_ticks(count)
        } else {
            let step = linear_step(self.domain[1] / count);
            let mut ticks = Vec::new();
            while ticks.len() as f64 * step <= self.domain[1] * (1.0 + 1e-9) {
                ticks.push(ticks.len() as f64 * step);
            }
            ticks
        }
    }

    fn log_ticks(&self, count: f64) -> Vec<f64> {
        let [low, high] = self.domain.map(f64::log10);
        let steps = if (high - low) * 3.0 <= count + 2.0 {
            LOG_STEPS[0]
        } else {
            LOG_STEPS[1]
        };
        let mut ticks = Vec::new();
        let mut decade = 10_f64.powf(low.floor());
        while decade <= self.domain[1] * 1.001 {
            ticks.extend(steps.iter().map(|step| step * decade));
            decade *= 10.0;
        }
        let (low, high) = (self.domain[0] * 0.999, self.domain[1] * 1.001);
        ticks.retain(|tick| (low..=high).contains(tick));
        ticks
    }
}

/// Returns the smallest step of a linear axis that is at least `min`.
fn linear_step(min: f64) -> f64 {
    let decade = 10_f64.powf(min.log10().floor());
    let mut steps = LINEAR_STEPS.iter().map(|step| step * decade);
    steps
        .find(|step| *step >= min * (1.0 - 1e-9))
        .unwrap_or(decade * 10.0)
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not above `figure`.
fn log_below(figure: f64) -> f64 {
    let decade = 10_f64.powf(figure.log10().floor());
    let steps = LOG_STEPS[0].iter().rev().map(|step| step * decade);
    let mut below = steps.filter(|step| *step <= figure * (1.0 + 1e-9));
    below.next().unwrap_or(decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: [f64; 2] = [300.0, 0.0];

    fn scale(figures: &[f64]) -> Scale {
        Scale::new(figures.iter().copied(), 100.0, 5.0, RANGE)
    }

    #[test]
    fn similar_figures_have_linear_axis_from_zero() {
        let scale = scale(&[1.09, 55.5, f64::NAN]);
        assert_eq!(scale.ticks(5.0), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!((scale.at(0.0), scale.at(60.0)), (300.0, 0.0));
        assert_eq!(scale.at(30.0), 150.0);
    }

    #[test]
    fn different_figures_have_logarithmic_axis() {
        let scale = scale(&[0.41, 5795.0]);
        assert_eq!(scale.ticks(5.0), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert!(scale.at(0.2) >= scale.at(0.41) && scale.at(0.41) > scale.at(1.0));
        let near = Scale::new([3.0, 90.0].into_iter(), 10.0, 6.0, RANGE);
        assert_eq!(near.ticks(6.0), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn axis_without_figures_has_finite_positions() {
        for figures in [&[][..], &[0.0], &[f64::NAN], &[f64::INFINITY]] {
            let scale = scale(figures);
            assert!(scale.at(0.5).is_finite() && !scale.ticks(5.0).is_empty());
        }
        assert_eq!(Scale::exact(&[64.0], RANGE).at(64.0), 150.0);
    }
}
