//! Draws charts as SVG, without a library, a script or a network.
//!
//! Each drawing contains two layouts: one for a width of 640 pixels or more, and one for telephones. The style selects
//! the layout by the width, and the colours by the reader's colour scheme. Lines differ in colour, dashes and markers,
//! so that no reader needs the colours.
//!
//! | form | shows |
//! |---|---|
//! | [`Form::Lines`] | figures by size: several methods, and ceilings as lines of their own |
//! | [`Form::Rows`] | one row per method: the distribution of a time, or a bar |

#[cfg(test)]
mod benchmarks;
mod labels;
mod lines;
mod rows;
mod scale;
mod style;
mod svg;
mod text;

pub(crate) use style::STYLE_CLASS;
pub(crate) use svg::escape;

use daq_core::units::ByteSize;
use std::fmt::Write as _;
use svg::Svg;
use text::number;

/// The quantiles of a sample, in the order of [`Quantiles`].
pub(crate) const QUANTILES: [f64; 8] = [0.5, 0.99, 0.999, 0.01, 0.05, 0.25, 0.75, 0.95];

/// A figure with its distribution: the median, the 99th and the 99.9th percentile, then the 1st, 5th, 25th, 75th and
/// 95th percentile. Values that are not known are NaN.
pub(crate) type Quantiles = [f64; QUANTILES.len()];

/// Returns a figure without a distribution.
pub(crate) const fn single(figure: f64) -> Quantiles {
    let mut quantiles = [f64::NAN; QUANTILES.len()];
    quantiles[0] = figure;
    quantiles
}

/// Whether high or low figures are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// What the horizontal axis of lines counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Bytes,
    Count,
}

/// The figures of one method.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Whether the method is daq's own. Lines of other methods are thinner and dashed.
    pub(crate) is_own: bool,
    /// Sizes or counts, and the figures there.
    pub(crate) points: Vec<(f64, Quantiles)>,
}

/// A figure that no method can exceed.
#[derive(Clone, Debug)]
pub(crate) struct Ceiling {
    pub(crate) name: String,
    pub(crate) figure: f64,
}

/// One row of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is_own: bool,
    pub(crate) figure: Quantiles,
}

/// Rows with a heading, which may be empty.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) heading: String,
    pub(crate) rows: Vec<Row>,
}

/// What a chart shows.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Lines {
        /// What the horizontal axis shows, for example `frame size`.
        label: String,
        axis: Axis,
        lines: Vec<Line>,
        ceilings: Vec<Ceiling>,
    },
    Rows(Vec<Group>),
}

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Unit of all figures.
    pub(crate) unit: String,
    pub(crate) better: Better,
    pub(crate) form: Form,
}

/// Width of the layout for wide windows in pixels.
const WIDE: f64 = 640.0;
/// Width of the layout for telephones in pixels.
const NARROW: f64 = 390.0;

impl Chart {
    /// Returns whether the chart has no figure to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.figures().all(|figure| figure[0].is_nan())
    }

    /// Returns all figures, without ceilings.
    fn figures(&self) -> Box<dyn Iterator<Item = &Quantiles> + '_> {
        match &self.form {
            Form::Lines { lines, .. } => Box::new(
                lines
                    .iter()
                    .flat_map(|line| line.points.iter().map(|(_, figure)| figure)),
            ),
            Form::Rows(groups) => Box::new(
                groups
                    .iter()
                    .flat_map(|group| group.rows.iter().map(|row| &row.figure)),
            ),
        }
    }

    /// Returns whether the chart shows distributions.
    fn has_distributions(&self) -> bool {
        self.figures()
            .any(|figure| figure[1..].iter().any(|value| !value.is_nan()))
    }

    /// Returns a drawing as a file, which contains its style.
    #[cfg(test)]
    pub(crate) fn file(&self) -> String {
        self.draw("chart", Some(&style::css()))
    }

    /// Returns a drawing as a part of an HTML page that contains [`style`](Self::style). Each drawing of the page needs
    /// another `id`.
    pub(crate) fn part(&self, id: &str) -> String {
        self.draw(id, None)
    }

    /// Returns the style sheet of all drawings of a page.
    pub(crate) fn style() -> String {
        style::css()
    }

    /// Draws both layouts. They have the same proportions, because an image has one size.
    fn draw(&self, id: &str, style: Option<&str>) -> String {
        let height = |width: f64, is_narrow| self.layout(width, None, is_narrow).1 / width;
        let ratio = height(WIDE, false).max(height(NARROW, true));
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{STYLE_CLASS}\" width=\"{WIDE:.0}\" height=\"{0:.0}\" viewBox=\"0 0 {WIDE:.0} {0:.0}\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\">\n\
             <title id=\"{id}-title\">{1}</title>\n<desc id=\"{id}-description\">{2}</desc>\n",
            ratio * WIDE,
            escape(&self.title),
            escape(&self.description()),
        );
        if let Some(style) = style {
            let _ = write!(text, "<style>\n{style}</style>\n");
        }
        for (width, is_narrow, class) in [(WIDE, false, "wide"), (NARROW, true, "narrow")] {
            let height = ratio * width;
            let (drawn, _) = self.layout(width, Some(height), is_narrow);
            let _ = write!(
                text,
                "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.1}\">\n{drawn}</svg>\n"
            );
        }
        text + "</svg>\n"
    }

    /// Draws one layout. Returns the drawing and its height. Without a height, the layout is as low as possible.
    fn layout(&self, width: f64, height: Option<f64>, is_narrow: bool) -> (String, f64) {
        let mut svg = Svg::new(width, is_narrow);
        let height = match &self.form {
            Form::Lines { .. } => lines::draw(self, &mut svg, height),
            Form::Rows(groups) => rows::draw(self, groups, &mut svg, height),
        };
        (svg.finish(height), height)
    }

    /// Returns the unit, and whether high or low figures are good.
    fn subtitle(&self) -> String {
        let better = match self.better {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
        };
        match &self.form {
            Form::Lines { label, .. } => format!("{} by {label}; {better}", self.unit),
            Form::Rows(_) => format!("{}; {better}", self.unit),
        }
    }

    /// Describes the chart and its figures for readers who do not see the drawing.
    fn description(&self) -> String {
        let mut text = self.subtitle() + ".";
        match &self.form {
            Form::Lines {
                axis,
                lines,
                ceilings,
                ..
            } => {
                for ceiling in ceilings {
                    let _ = write!(text, " {}: {}.", ceiling.name, number(ceiling.figure));
                }
                for line in lines {
                    let points = line.points.iter().map(|(x, figure)| {
                        format!("{} at {}", Self::figure(figure, false), axis.name(*x))
                    });
                    let points: Vec<_> = points.collect();
                    let _ = write!(text, " {}: {}.", line.name, points.join(", "));
                }
            }
            Form::Rows(groups) => {
                for group in groups {
                    for row in &group.rows {
                        let heading = if group.heading.is_empty() { "" } else { ", " };
                        let (name, figure) = (&row.name, Self::figure(&row.figure, true));
                        let _ = write!(text, " {}{heading}{name}: {figure}.", group.heading);
                    }
                }
            }
        }
        text
    }

    /// Describes a figure: the median and, if `is_long`, the high percentiles.
    fn figure(figure: &Quantiles, is_long: bool) -> String {
        let mut text = number(figure[0]);
        if is_long {
            for (value, name) in figure[1..3].iter().zip(["99 %", "99.9 %"]) {
                if !value.is_nan() {
                    let _ = write!(text, ", {name}: {}", number(*value));
                }
            }
        }
        text
    }
}

impl Axis {
    /// Returns the text of a size or a count.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sizes and counts are small and not negative"
    )]
    fn name(self, value: f64) -> String {
        match self {
            Self::Bytes => ByteSize(value as u64).to_string(),
            Self::Count => number(value),
        }
    }
}

#[cfg(test)]
mod tests;
