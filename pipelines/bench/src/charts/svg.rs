//! Writes elements of SVG.

use super::text::{BOLD, width, wrap};
use std::fmt::Write as _;

/// Number of colours, dash patterns and markers. More lines than this repeat them.
pub(super) const STYLES: usize = 8;

/// Sizes of a layout in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Font size of the title.
    pub(super) title: f64,
    /// Font size of labels.
    pub(super) label: f64,
    /// Font size of axes.
    pub(super) tick: f64,
    /// Distance from the edge.
    pub(super) edge: f64,
    /// Radius of a marker.
    pub(super) marker: f64,
}

const WIDE: Sizes = Sizes {
    title: 17.0,
    label: 13.5,
    tick: 12.5,
    edge: 20.0,
    marker: 4.6,
};

const NARROW: Sizes = Sizes {
    title: 15.0,
    label: 12.0,
    tick: 11.5,
    edge: 12.0,
    marker: 3.8,
};

/// A drawing that grows.
#[derive(Debug)]
pub(super) struct Svg {
    pub(super) width: f64,
    pub(super) is_narrow: bool,
    pub(super) sizes: Sizes,
    text: String,
}

/// Where a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Replaces the characters that have a meaning in SVG and HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are not allowed in XML.
            letter if letter.is_control() && letter != '\n' => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

impl Svg {
    pub(super) const fn new(width: f64, is_narrow: bool) -> Self {
        Self {
            width,
            is_narrow,
            sizes: if is_narrow { NARROW } else { WIDE },
            text: String::new(),
        }
    }

    /// Returns the drawing on a background of `height` pixels.
    pub(super) fn finish(self, height: f64) -> String {
        format!(
            "<rect class=\"back\" x=\".5\" y=\".5\" width=\"{:.1}\" height=\"{:.1}\" rx=\"8\"/>\n{}",
            self.width - 1.0,
            height - 1.0,
            self.text
        )
    }

    /// Draws a text whose baseline is at `y`.
    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " middle",
            Anchor::End => " end",
        };
        let side = if self.is_narrow { "n" } else { "w" };
        let _ = writeln!(
            self.text,
            "<text class=\"{class} {side}{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(text)
        );
    }

    /// Draws title and subtitle. Returns the position below them.
    pub(super) fn heading(&mut self, title: &str, subtitle: &str) -> f64 {
        let sizes = self.sizes;
        let max = self.width - 2.0 * sizes.edge;
        let mut y = sizes.edge - 3.0;
        for (text, class, size) in [
            (title, "title", sizes.title),
            (subtitle, "dim", sizes.label),
        ] {
            for line in wrap(text, size * BOLD, max) {
                y += size * 1.3;
                self.text(class, sizes.edge, y, Anchor::Start, &line);
            }
        }
        y + sizes.label * 0.7
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.text,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let _ = writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" rx=\"2\"/>",
            width.max(1.0)
        );
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
        }
        let _ = writeln!(self.text, "<path class=\"{class}\" d=\"{path}\"/>");
    }

    /// Draws the marker of the line `style`. `tip` is shown while the reader points at the marker.
    pub(super) fn marker(&mut self, style: usize, (x, y): (f64, f64), tip: &str) {
        let radius = self.sizes.marker;
        let style = style % STYLES;
        let (height, half) = (radius * 1.2, radius * 1.05);
        let path = match style {
            0 => {
                format!(
                    "M{:.1} {y:.1}a{radius} {radius} 0 1 1 {width} 0a{radius} {radius} 0 1 1 -{width} 0z",
                    x - radius,
                    width = 2.0 * radius
                )
            }
            1 => polygon(&[
                (x - half, y - half),
                (x + half, y - half),
                (x + half, y + half),
                (x - half, y + half),
            ]),
            2 => polygon(&[
                (x, y - height),
                (x + height, y + half),
                (x - height, y + half),
            ]),
            3 => polygon(&[
                (x, y - height - 1.0),
                (x + height + 1.0, y),
                (x, y + height + 1.0),
                (x - height - 1.0, y),
            ]),
            4 => polygon(&[
                (x, y + height),
                (x + height, y - half),
                (x - height, y - half),
            ]),
            5 => cross(x, y, height, (1.0, 0.0)),
            6 => cross(x, y, height, (0.7, 0.7)),
            _ => polygon(&[
                (x - height, y),
                (x - height / 2.0, y - height),
                (x + height / 2.0, y - height),
                (x + height, y),
                (x + height / 2.0, y + height),
                (x - height / 2.0, y + height),
            ]),
        };
        let tip = if tip.is_empty() {
            String::new()
        } else {
            format!("<title>{}</title>", escape(tip))
        };
        let _ = writeln!(
            self.text,
            "<path class=\"mark c{style}\" d=\"{path}\">{tip}</path>"
        );
    }

    /// Draws the part of a legend that identifies a line: a piece of it with its marker, from `x` on.
    pub(super) fn key(&mut self, style: usize, is_own: bool, x: f64, y: f64) {
        let length = KEY;
        self.line(&line_class(style, is_own), (x, y), (x + length, y));
        self.marker(style, (x + length / 2.0, y), "");
    }

    /// Draws a legend from `(x, y)` on, with as many entries per line as fit. Each entry is a name and a function that
    /// draws its key. Returns the position below the legend.
    pub(super) fn legend(&mut self, entries: &[(String, Key)], top: f64) -> f64 {
        if entries.is_empty() {
            return top;
        }
        let (size, edge) = (self.sizes.label, self.sizes.edge);
        let line_height = size * 1.45;
        let (mut x, mut y) = (edge, top + size * 0.9);
        for (name, key) in entries {
            let indent = key.width() + 6.0;
            let max = self.width - 2.0 * edge - indent;
            let names = wrap(name, size, max);
            let longest = names.iter().map(|name| width(name, size));
            let needed = indent + longest.fold(0.0, f64::max);
            if x > edge && x + needed > self.width - edge {
                x = edge;
                y += line_height;
            }
            key.draw(self, x, y - size * 0.33);
            for (i, name) in names.iter().enumerate() {
                if i > 0 {
                    y += line_height;
                }
                self.text("label", x + indent, y, Anchor::Start, name);
            }
            x += needed + size;
        }
        y + size * 0.75
    }
}

/// Length of the piece of a line in a legend in pixels.
pub(super) const KEY: f64 = 26.0;

/// The drawing beside a name of a legend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    /// A line: its style, and whether it is daq's own.
    Line(usize, bool),
    Ceiling,
    /// A part of a distribution.
    Median,
    Inner,
    Outer,
    Range,
    P99,
    P999,
}

impl Key {
    /// Returns the width of the drawing in pixels.
    const fn width(self) -> f64 {
        match self {
            Self::Median | Self::P99 | Self::P999 => 10.0,
            Self::Inner | Self::Outer => 16.0,
            _ => KEY,
        }
    }

    fn draw(self, svg: &mut Svg, x: f64, y: f64) {
        let middle = x + self.width() / 2.0;
        match self {
            Self::Line(style, is_own) => svg.key(style, is_own, x, y),
            Self::Ceiling => svg.line("ceiling", (x, y), (x + KEY, y)),
            Self::Median => {
                let r = svg.sizes.marker;
                svg.disc("key-mark", (middle, y), r);
            }
            Self::Inner | Self::Outer => {
                let class = if matches!(self, Self::Inner) {
                    "key-bar key-inner"
                } else {
                    "key-bar"
                };
                svg.rect(class, (x, y - 4.0), (self.width(), 8.0));
            }
            Self::Range => svg.line("key-range", (x + 1.0, y), (x + KEY - 1.0, y)),
            Self::P99 => svg.line("key-tick", (middle, y - 6.0), (middle, y + 6.0)),
            Self::P999 => svg.ring("key-ring", (middle, y)),
        }
    }
}

impl Svg {
    /// Draws a filled circle.
    fn disc(&mut self, class: &str, (x, y): (f64, f64), r: f64) {
        let _ = writeln!(
            self.text,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\"/>"
        );
    }

    /// Draws the mark of the 99.9th percentile.
    pub(super) fn ring(&mut self, class: &str, at: (f64, f64)) {
        let r = self.sizes.marker * 0.8;
        self.disc(class, at, r);
    }
}

/// Returns the class of a line.
pub(super) fn line_class(style: usize, is_own: bool) -> String {
    let style = style % STYLES;
    if is_own {
        format!("line own c{style}")
    } else {
        format!("line c{style} d{style}")
    }
}

fn polygon(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
    }
    path + "z"
}

/// Returns a plus sign whose first arm points to the unit vector `(dx, dy)`.
fn cross(x: f64, y: f64, r: f64, (dx, dy): (f64, f64)) -> String {
    let t = 0.34;
    let corners = [
        (1.0, t),
        (t, t),
        (t, 1.0),
        (-t, 1.0),
        (-t, t),
        (-1.0, t),
        (-1.0, -t),
        (-t, -t),
        (-t, -1.0),
        (t, -1.0),
        (t, -t),
        (1.0, -t),
    ];
    let r = r * 1.1;
    polygon(&corners.map(|(a, b)| (x + r * (a * dx - b * dy), y + r * (a * dy + b * dx))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_is_escaped() {
        assert_eq!(
            escape("<a href=\"x\">&'</a>\u{1b}"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;\u{fffd}"
        );
        let mut svg = Svg::new(390.0, true);
        svg.text("label", 0.0, 0.0, Anchor::Start, "</text><script>");
        assert!(!svg.finish(10.0).contains("<script>"));
    }

    #[test]
    fn legend_stays_within_width() {
        let entries: Vec<_> = (0..9)
            .map(|i| (format!("method number {i}"), Key::Line(i, i == 0)))
            .collect();
        let mut svg = Svg::new(390.0, true);
        let bottom = svg.legend(&entries, 0.0);
        assert!(bottom > 4.0 * svg.sizes.label, "{bottom}");
        for x in svg.text.split(" x=\"").skip(1) {
            let x: f64 = x.split('"').next().unwrap().parse().unwrap();
            assert!(x < 390.0 - width("method number 1", svg.sizes.label));
        }
    }
}
