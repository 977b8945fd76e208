//! Draws one row per method: the distribution of a time, or a bar that begins at zero.

use super::scale::Scale;
use super::svg::{Anchor, Key, Svg};
use super::text::{BOLD, number, width, wrap};
use super::{Chart, Group, Quantiles, Row};

/// Times whose largest value is more than this many times the smallest one have a logarithmic axis.
const MAX_LINEAR_RATIO: f64 = 5.0;
/// Height of a row's marks in pixels, in the wide and in the narrow layout.
const MARKS: [f64; 2] = [20.0, 16.0];

/// Style of the rows that are not daq's own: grey.
const OTHER_STYLE: usize = super::svg::STYLES - 1;
/// Space above a heading in pixels, except the first.
const GAP: f64 = 8.0;

/// Index of each quantile in [`Quantiles`].
const P50: usize = 0;
const P99: usize = 1;
const P999: usize = 2;
const P1: usize = 3;
const P5: usize = 4;
const P25: usize = 5;
const P75: usize = 6;
const P95: usize = 7;

/// Returns the legend of the marks of distributions that `chart` contains.
pub(super) fn keys(chart: &Chart) -> Vec<(String, Key)> {
    let is_known = |i: usize| chart.figures().any(|figure| !figure[i].is_nan());
    let keys = [
        (P50, "median", Key::Median),
        (P25, "25 to 75 %", Key::Inner),
        (P5, "5 to 95 %", Key::Outer),
        (P1, "1 to 99.9 %", Key::Range),
        (P99, "99 %", Key::P99),
        (P999, "99.9 %", Key::P999),
    ];
    if !chart.has_distributions() {
        return Vec::new();
    }
    let keys = keys.into_iter().filter(|(i, ..)| is_known(*i));
    keys.map(|(_, name, key)| (name.to_owned(), key)).collect()
}

/// Draws the marks of a distribution, except the median. `at` returns the position of a quantile. The positions differ in
/// one coordinate.
pub(super) fn distribution(
    svg: &mut Svg,
    style: usize,
    figure: &Quantiles,
    at: impl Fn(usize) -> (f64, f64),
) {
    let style = style % super::svg::STYLES;
    let is_known = |i: usize| !figure[i].is_nan();
    let last = [P999, P99].into_iter().find(|i| is_known(*i));
    let first = if is_known(P1) { P1 } else { P50 };
    if let Some(last) = last {
        svg.line(&format!("range c{style}"), at(first), at(last));
    }
    let is_vertical = at(P50).0 == at(P99).0;
    let mut bar = |class: &str, from: usize, to: usize, thick: f64| {
        if is_known(from) && is_known(to) {
            let ((x1, y1), (x2, y2)) = (at(from), at(to));
            let class = format!("fill {class} c{style}");
            if is_vertical {
                svg.rect(&class, (x1 - thick / 2.0, y2), (thick, y1 - y2));
            } else {
                svg.rect(&class, (x1, y1 - thick / 2.0), (x2 - x1, thick));
            }
        }
    };
    let thick = if is_vertical { 7.0 } else { 11.0 };
    bar("outer", P5, P95, thick);
    bar("inner", P25, P75, thick);
    if is_known(P99) {
        let ((x, y), half) = (at(P99), if is_vertical { 4.0 } else { 6.0 });
        let (dx, dy) = if is_vertical {
            (half, 0.0)
        } else {
            (0.0, half)
        };
        svg.line(&format!("p99 c{style}"), (x - dx, y - dy), (x + dx, y + dy));
    }
    if is_known(P999) {
        svg.ring(&format!("ring c{style}"), at(P999));
    }
}

/// Draws `chart` on `svg`. Returns the height.
pub(super) fn draw(chart: &Chart, groups: &[Group], svg: &mut Svg, height: Option<f64>) -> f64 {
    let sizes = svg.sizes;
    let top = svg.heading(&chart.title, &chart.subtitle());
    let top = svg.legend(&keys(chart), top) + sizes.label * 0.3;
    let has_distributions = chart.has_distributions();
    // The median stands at the right end of a row; a bar has its figure at its own end.
    let figures = chart
        .figures()
        .map(|figure| width(&number(figure[P50]), sizes.label));
    let widest = figures.fold(0.0, f64::max) * BOLD;
    let (left, right) = (sizes.edge, svg.width - sizes.edge);
    let right = if has_distributions {
        right - widest.min(8.0)
    } else {
        right - widest - 8.0
    };
    let range = [
        left + if has_distributions { sizes.marker } else { 0.0 },
        right,
    ];
    let max_ratio = if has_distributions {
        MAX_LINEAR_RATIO
    } else {
        f64::INFINITY
    };
    let ticks = if svg.is_narrow { 4.0 } else { 6.0 };
    let values = chart.figures().flat_map(|figure| figure.iter().copied());
    let scale = Scale::new(values, max_ratio, ticks, range);
    let wide = Layout::new(svg, widest);
    let heights: Vec<_> = groups.iter().map(|group| wide.height(group)).collect();
    let gaps = groups
        .iter()
        .skip(1)
        .filter(|group| !group.heading.is_empty());
    let needed = heights.iter().sum::<f64>() + gaps.count() as f64 * GAP;
    let foot = sizes.edge + sizes.tick * 1.4;
    let natural = top + needed + foot;
    let height = height.unwrap_or(natural);
    // Spare height is distributed over the rows.
    let rows: usize = groups.iter().map(|group| group.rows.len()).sum();
    let spare = (height - natural).max(0.0) / rows.max(1) as f64;
    let bottom = height - foot;
    for tick in scale.ticks(ticks) {
        let x = scale.at(tick);
        svg.line("grid", (x, top), (x, bottom));
        let text = number(tick);
        // The ends of a text must stay within the drawing.
        let half = width(&text, sizes.tick) / 2.0;
        let x = x.clamp(half + 4.0, svg.width - half - 4.0);
        svg.text("tick", x, bottom + 4.0 + sizes.tick, Anchor::Middle, &text);
    }
    svg.line("axis", (left, bottom), (right, bottom));
    let mut y = top;
    for group in groups {
        if !group.heading.is_empty() {
            y += sizes.label * 1.5 + if y > top { GAP } else { 0.0 };
            svg.text("label group", left, y, Anchor::Start, &group.heading);
            y += sizes.label * 0.2;
        }
        for row in &group.rows {
            y = wide.row(svg, (chart, &scale), row, (y, spare));
        }
    }
    height
}

/// The widths and heights of rows.
struct Layout {
    line_height: f64,
    /// Maximum width of a name.
    max: f64,
    marks: f64,
}

impl Layout {
    fn new(svg: &Svg, figure: f64) -> Self {
        let sizes = svg.sizes;
        Self {
            line_height: sizes.label * 1.25,
            max: svg.width - 2.0 * sizes.edge - figure - 12.0,
            marks: MARKS[usize::from(svg.is_narrow)],
        }
    }

    fn height(&self, group: &Group) -> f64 {
        let size = self.line_height / 1.25;
        let heading = if group.heading.is_empty() {
            0.0
        } else {
            size * 1.7
        };
        let rows = group.rows.iter().map(|row| {
            let lines = wrap(&row.name, size * BOLD, self.max).len();
            lines as f64 * self.line_height + self.marks + 3.0
        });
        heading + rows.sum::<f64>()
    }

    /// Draws a row from `y` on. Returns the position below the row.
    fn row(
        &self,
        svg: &mut Svg,
        (chart, scale): (&Chart, &Scale),
        row: &Row,
        (mut y, spare): (f64, f64),
    ) -> f64 {
        let sizes = svg.sizes;
        y += spare * 0.35;
        let class = if row.is_own { "label value" } else { "label" };
        let style = if row.is_own { 0 } else { OTHER_STYLE };
        let is_bar = !chart.has_distributions();
        for (i, line) in wrap(&row.name, sizes.label * BOLD, self.max)
            .iter()
            .enumerate()
        {
            y += self.line_height;
            svg.text(class, sizes.edge, y, Anchor::Start, line);
            if i == 0 && !is_bar {
                let figure = number(row.figure[P50]);
                let end = svg.width - sizes.edge;
                svg.text("label value", end, y, Anchor::End, &figure);
            }
        }
        let middle = y + 4.0 + self.marks / 2.0 + spare * 0.1;
        let figure = &row.figure;
        if !figure[P50].is_nan() {
            let at = |i: usize| (scale.at(figure[i]), middle);
            if is_bar {
                let (from, to) = (scale.at(0.0), scale.at(figure[P50]));
                let class = if row.is_own { "fill c0" } else { "other" };
                let thick = self.marks - 5.0 + (spare * 0.3).min(8.0);
                svg.rect(class, (from, middle - thick / 2.0), (to - from, thick));
                let text = number(figure[P50]);
                let y = middle + sizes.label * 0.36;
                svg.text("label value", to + 6.0, y, Anchor::Start, &text);
            } else {
                distribution(svg, style, figure, at);
                let tip = format!(
                    "{}: {} {}",
                    row.name,
                    Chart::figure(figure, true),
                    chart.unit
                );
                svg.marker(style, at(P50), &tip);
            }
        }
        y + self.marks + 3.0 + spare * 0.65
    }
}
