//! Draws figures by size: a line per method, and a horizontal line per ceiling.

use super::labels::place;
use super::scale::Scale;
use super::svg::{Anchor, KEY, Key, Svg, line_class};
use super::text::{BOLD, number, width, wrap};
use super::{Axis, Ceiling, Chart, Form, Line};

/// Figures whose largest value is more than this many times the smallest one have a logarithmic axis.
const MAX_LINEAR_RATIO: f64 = 100.0;
/// Width of the labels beside the lines in pixels.
const LABELS: f64 = 208.0;
/// Minimum height of the area of the lines in pixels, in the wide and in the narrow layout.
const MIN_PLOT: [f64; 2] = [300.0, 175.0];
/// Distance between the distributions of neighbouring lines in pixels, so that they do not cover each other.
const DODGE: f64 = 9.0;

/// Draws `chart` on `svg`. Returns the height.
pub(super) fn draw(chart: &Chart, svg: &mut Svg, height: Option<f64>) -> f64 {
    let Form::Lines {
        label,
        axis,
        lines,
        ceilings,
    } = &chart.form
    else {
        return 0.0;
    };
    let sizes = svg.sizes;
    let mut top = svg.heading(&chart.title, &chart.subtitle());
    let mut entries = Vec::new();
    if svg.is_narrow {
        for (i, line) in lines.iter().enumerate() {
            entries.push((line.name.clone(), Key::Line(i, line.is_own)));
        }
        for ceiling in ceilings {
            entries.push((ceiling.name.clone(), Key::Ceiling));
        }
    }
    top = svg.legend(&entries, top);
    top = svg.legend(&super::rows::keys(chart), top) + sizes.label * 0.6;
    let foot = sizes.edge + 2.0 * sizes.tick * 1.4;
    let min = MIN_PLOT[usize::from(svg.is_narrow)];
    let height = height.unwrap_or(top + min + foot);
    let plot = Plot::new(svg, (lines, ceilings), [top, height - foot]);
    plot.axes(svg, *axis, label, height - sizes.edge);
    for ceiling in ceilings {
        let y = plot.y.at(ceiling.figure);
        svg.line("ceiling", (plot.left, y), (plot.right, y));
    }
    // daq's own lines are drawn last, on top of the others.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|i| (lines[*i].is_own, std::cmp::Reverse(*i)));
    for i in order {
        plot.line(svg, (chart, *axis), i, &lines[i]);
    }
    if !svg.is_narrow {
        plot.labels(svg, lines, ceilings);
    }
    height
}

/// The area of the lines, and its axes.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale,
    y: Scale,
    /// The sizes or counts that occur, sorted.
    xs: Vec<f64>,
    y_ticks: f64,
    /// Horizontal offset of each line.
    dodge: Vec<f64>,
}

impl Plot {
    fn new(svg: &Svg, (lines, ceilings): (&[Line], &[Ceiling]), [top, bottom]: [f64; 2]) -> Self {
        let points = || lines.iter().flat_map(|line| &line.points);
        let mut xs: Vec<f64> = points().map(|(x, _)| *x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let figures = points().flat_map(|(_, figure)| figure.iter().copied());
        let figures = figures.chain(ceilings.iter().map(|ceiling| ceiling.figure));
        let y_ticks = ((bottom - top) / 40.0).clamp(3.0, 7.0);
        let y = Scale::new(figures, MAX_LINEAR_RATIO, y_ticks, [bottom, top]);
        let names = y.ticks(y_ticks);
        let names = names
            .iter()
            .map(|tick| width(&number(*tick), svg.sizes.tick));
        let edge = svg.sizes.edge;
        let left = edge + names.fold(0.0, f64::max) + 8.0;
        let right = svg.width - edge - if svg.is_narrow { 0.0 } else { LABELS };
        // Distributions of several lines stand side by side.
        let mut figures = points().flat_map(|(_, figure)| &figure[1..]);
        let distance = if figures.any(|value| !value.is_nan()) {
            DODGE
        } else {
            0.0
        };
        let middle = (lines.len() as f64 - 1.0) / 2.0;
        let dodge = (0..lines.len()).map(|i| (i as f64 - middle) * distance);
        let dodge: Vec<_> = dodge.collect();
        let inset = 14.0 + dodge.iter().copied().fold(0.0, f64::max);
        Self {
            x: Scale::exact(&xs, [left + inset, right - inset]),
            left,
            right,
            top,
            bottom,
            y,
            xs,
            y_ticks,
            dodge,
        }
    }

    /// Draws grid, ticks and the label of the horizontal axis.
    fn axes(&self, svg: &mut Svg, axis: Axis, label: &str, foot: f64) {
        let size = svg.sizes.tick;
        for tick in self.y.ticks(self.y_ticks) {
            let y = self.y.at(tick);
            svg.line("grid", (self.left, y), (self.right, y));
            svg.text(
                "tick",
                self.left - 7.0,
                y + size * 0.36,
                Anchor::End,
                &number(tick),
            );
        }
        svg.line("axis", (self.left, self.bottom), (self.right, self.bottom));
        // The last size is always named; others only if there is space.
        let mut free = f64::INFINITY;
        for x in self.xs.iter().rev() {
            let (name, at) = (axis.name(*x), self.x.at(*x));
            svg.line("axis", (at, self.bottom), (at, self.bottom + 4.0));
            let half = width(&name, size) / 2.0;
            if at + half < free {
                let y = self.bottom + 6.0 + size;
                svg.text("tick", at, y, Anchor::Middle, &name);
                free = at - half - 5.0;
            }
        }
        let middle = f64::midpoint(self.left, self.right);
        svg.text("tick", middle, foot, Anchor::Middle, label);
    }

    fn line(&self, svg: &mut Svg, (chart, axis): (&Chart, Axis), style: usize, line: &Line) {
        let known = line.points.iter().filter(|(_, figure)| !figure[0].is_nan());
        let known: Vec<_> = known.collect();
        let at = |x: f64, figure: f64| (self.x.at(x) + self.dodge[style], self.y.at(figure));
        let points: Vec<_> = known.iter().map(|(x, figure)| at(*x, figure[0])).collect();
        svg.path(&line_class(style, line.is_own), &points);
        for ((x, figure), point) in known.iter().zip(&points) {
            let figures = figure.map(|value| self.y.at(value));
            super::rows::distribution(svg, style, figure, |i| (point.0, figures[i]));
            let tip = format!(
                "{}, {}: {} {}",
                line.name,
                axis.name(*x),
                Chart::figure(figure, true),
                chart.unit
            );
            svg.marker(style, *point, &tip);
        }
    }

    /// Draws the names of lines and ceilings at their right ends, with the last figure.
    fn labels(&self, svg: &mut Svg, lines: &[Line], ceilings: &[Ceiling]) {
        let size = svg.sizes.label;
        let start = self.right + 14.0;
        let line_height = size * 1.2;
        let max = svg.width - svg.sizes.edge - start - KEY - 6.0;
        let ends = lines.iter().enumerate().filter_map(|(i, line)| {
            let (x, figure) = line.points.iter().rev().find(|(_, it)| !it[0].is_nan())?;
            let at = (self.x.at(*x) + self.dodge[i], self.y.at(figure[0]));
            let label = wrap(&ended(&line.name, figure[0]), size * BOLD, max);
            Some((at, label, Some((i, line.is_own))))
        });
        let ceilings = ceilings.iter().map(|ceiling| {
            let label = ended(&ceiling.name, ceiling.figure);
            let at = (self.right, self.y.at(ceiling.figure));
            (at, wrap(&label, size, max), None)
        });
        let labels: Vec<_> = ends.chain(ceilings).collect();
        let height = |label: &[String]| label.len() as f64 * line_height + 5.0;
        let wanted = labels
            .iter()
            .map(|((_, y), label, _)| (y - line_height / 2.0 - 2.5, height(label)));
        let wanted: Vec<_> = wanted.collect();
        let tops = place(&wanted, self.top - line_height / 2.0, self.bottom + size);
        for (((x, y), label, style), top) in labels.into_iter().zip(tops) {
            let middle = top + line_height / 2.0 + 2.5;
            // A thin line from the end of the line to its label.
            let class = match style {
                Some((style, _)) => format!("leader c{style}"),
                None => "leader axis".to_owned(),
            };
            let from = x + if style.is_some() {
                svg.sizes.marker + 3.0
            } else {
                0.0
            };
            svg.path(
                &class,
                &[(from, y), (self.right.max(from), y), (start - 2.0, middle)],
            );
            match style {
                Some((style, is_own)) => svg.key(style, is_own, start, middle),
                None => svg.line("ceiling", (start, middle), (start + KEY, middle)),
            }
            let class = match style {
                Some((_, true)) => "label value",
                _ => "label",
            };
            for (i, text) in label.iter().enumerate() {
                let y = middle + size * 0.34 + i as f64 * line_height;
                svg.text(class, start + KEY + 6.0, y, Anchor::Start, text);
            }
        }
    }
}

/// Appends a figure to a name, on the same line as the last word.
fn ended(name: &str, figure: f64) -> String {
    let figure = number(figure);
    match name.rsplit_once(' ') {
        Some((start, word)) => format!("{start} {word}\u{a0}{figure}"),
        None => format!("{name}\u{a0}{figure}"),
    }
}
