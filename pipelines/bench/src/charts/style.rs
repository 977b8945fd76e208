//! The style sheet of drawings: colours for a light and a dark background, dashes, and which layout is shown.

use super::svg::STYLES;
use std::fmt::Write as _;

/// Class of every drawing. All rules apply only below it, so that a page can contain drawings.
pub(crate) const STYLE_CLASS: &str = "daq-chart";

/// The rules without colours. The classes `w` and `n` are the fonts of the wide and the narrow layout, and `d0` to `d7` are
/// the dashes of the lines that are not daq's own.
const RULES: &str = include_str!("style.css");

/// The colours of a background.
struct Colours {
    back: &'static str,
    border: &'static str,
    text: &'static str,
    dim: &'static str,
    grid: &'static str,
    /// Bars that are not daq's own.
    other: &'static str,
    /// Colours of lines, which also differ in brightness for readers who do not see all colours.
    lines: [&'static str; STYLES],
}

const LIGHT: Colours = Colours {
    back: "#ffffff",
    border: "#d4d9e0",
    text: "#1a1d21",
    dim: "#59626e",
    grid: "#e6e9ee",
    other: "#8b9199",
    lines: [
        "#0b5fae", "#c2500a", "#0a7f5f", "#8f3fa8", "#8a6a00", "#b82c66", "#2f7f92", "#5b5f66",
    ],
};

const DARK: Colours = Colours {
    back: "#14171b",
    border: "#39414b",
    text: "#e6e9ed",
    dim: "#a0aab5",
    grid: "#2a3038",
    other: "#737b86",
    lines: [
        "#6db3f2", "#ff9d5c", "#4fcf9f", "#d29bf0", "#e6c54a", "#ff86b3", "#74d2de", "#b4b9c0",
    ],
};

/// Returns the style sheet.
pub(super) fn css() -> String {
    let [light, dark] = [LIGHT, DARK].map(|colours| rules(&colours));
    format!("{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n{RULES}")
}

/// Returns the rules that set colours.
fn rules(colours: &Colours) -> String {
    let Colours {
        back,
        border,
        text,
        dim,
        grid,
        other,
        lines,
    } = colours;
    let mut css = String::new();
    let mut rule = |selectors: &str, properties: String| {
        let selectors = selectors
            .split(',')
            .map(|selector| format!(".{STYLE_CLASS} {selector}"));
        let selectors: Vec<_> = selectors.collect();
        let _ = writeln!(css, "{}{{{properties}}}", selectors.join(","));
    };
    rule(".back", format!("fill:{back};stroke:{border}"));
    rule("text", format!("fill:{text};stroke:{back}"));
    rule("text.dim,text.tick", format!("fill:{dim}"));
    rule(".title,.dim", "stroke:none".to_owned());
    rule(".grid", format!("stroke:{grid}"));
    rule(
        ".axis,.ceiling,.key-range,.key-tick",
        format!("stroke:{dim}"),
    );
    rule(".key-mark,.key-bar", format!("fill:{dim}"));
    rule(".key-ring", format!("fill:{back};stroke:{dim}"));
    rule(".other", format!("fill:{other}"));
    for (i, colour) in lines.iter().enumerate() {
        rule(&format!(".c{i}"), format!("stroke:{colour}"));
        rule(&format!(".fill.c{i}"), format!("fill:{colour};stroke:none"));
        rule(
            &format!(".mark.c{i}"),
            format!("fill:{colour};stroke:{back}"),
        );
    }
    rule(".ring", format!("fill:{back}"));
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour as WCAG defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |i: usize| {
            let value = u8::from_str_radix(&colour[i..i + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn colours_have_contrast_to_their_background() {
        for colours in [LIGHT, DARK] {
            for text in [colours.text, colours.dim] {
                assert!(contrast(text, colours.back) >= 4.5, "{text}");
            }
            for line in colours.lines.into_iter().chain([colours.other]) {
                assert!(contrast(line, colours.back) >= 3.0, "{line}");
            }
        }
    }
}
