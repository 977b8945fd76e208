//! Frames whose points are the pixels of an image.
//!
//! ```text
//!   frame:  | module 0: row 0, row 1, … | module 1: row 0, row 1, … | …
//!   image:  each module at its place, rotated clockwise; places without a module have no pixels
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pixels of a frame: row by row, and one module after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Number of columns of a module, at least 1.
    pub width: u32,
    /// Number of rows of a module, at least 1.
    pub height: u32,
    /// Colour filter of the pixels of each module, or the order of the channels' colours, in the notation of GenICam, such as
    /// `BayerRG` or `BGR`; `None` if unknown.
    pub colors: Option<String>,
    /// The places of the modules; empty if a frame is one module.
    pub modules: Vec<Module>,
}

/// The place of a detector module in an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Column of the image in which the module begins.
    #[serde(default)]
    pub x: u32,
    /// Row of the image in which the module begins.
    #[serde(default)]
    pub y: u32,
    /// Clockwise rotation of the module's rows and columns: 0, 90, 180 or 270 degrees.
    #[serde(default)]
    pub rotate: u16,
}

impl Image {
    /// Returns the number of modules, at least 1.
    pub fn count(&self) -> usize {
        self.modules.len().max(1)
    }

    /// Returns the number of pixels of all modules.
    pub fn pixels(&self) -> usize {
        (self.width as usize)
            .saturating_mul(self.height as usize)
            .saturating_mul(self.count())
    }

    /// Returns the number of columns and rows of the image that contains all modules.
    pub fn size(&self) -> (usize, usize) {
        let ends = self.modules.iter().map(|module| self.end_of(module));
        ends.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
            .unwrap_or((self.width as usize, self.height as usize))
    }

    /// Returns the column and the row after the last ones of a module in the image.
    const fn end_of(&self, module: &Module) -> (usize, usize) {
        let (width, height) = match module.rotate {
            90 | 270 => (self.height, self.width),
            _ => (self.width, self.height),
        };
        (
            module.x as usize + width as usize,
            module.y as usize + height as usize,
        )
    }

    /// Returns the numbers of two modules that overlap in the image.
    pub fn overlap(&self) -> Option<(usize, usize)> {
        let end = |number: usize| self.end_of(&self.modules[number]);
        let mut order: Vec<usize> = (0..self.modules.len()).collect();
        order.sort_by_key(|&number| self.modules[number].x);
        order.iter().enumerate().find_map(|(i, &a)| {
            let after = order[i + 1..].iter().copied();
            let mut beside = after.take_while(|&b| (self.modules[b].x as usize) < end(a).0);
            let rows = |number: usize| (self.modules[number].y as usize, end(number).1);
            let b = beside.find(|&b| rows(a).0 < rows(b).1 && rows(b).0 < rows(a).1)?;
            Some((a.min(b), a.max(b)))
        })
    }

    /// Returns this image with the channels `selected` of its `channels` channels. An order of colours keeps the letters of these
    /// channels; other colours of other channels are unknown.
    #[must_use]
    pub fn with_channels(&self, channels: usize, selected: &[usize]) -> Self {
        let order = |colors: &String| {
            let letters = colors.as_bytes();
            if selected.iter().copied().eq(0..channels) {
                Some(colors.clone())
            } else if letters.len() == channels {
                let kept = selected.iter().map(|&channel| letters[channel]);
                String::from_utf8(kept.collect()).ok()
            } else {
                None
            }
        };
        Self {
            colors: self.colors.as_ref().and_then(order),
            ..self.clone()
        }
    }

    /// Returns the notation of GenICam for a Bayer filter that is written in another way, such as `RGGB` or `bayer_rg`.
    pub(super) fn filter_in_genicam(colors: &str) -> Option<&'static str> {
        let upper = colors.to_ascii_uppercase();
        let letters = upper.trim_start_matches("BAYER");
        let is_named = letters.len() < upper.len();
        let letters = letters.trim_start_matches(['_', '-', ' ']);
        let filters = [
            ("BayerRG", "RGGB"),
            ("BayerGR", "GRBG"),
            ("BayerGB", "GBRG"),
            ("BayerBG", "BGGR"),
        ];
        let found = filters.into_iter().find(|(_, cells)| {
            letters.starts_with(cells) || is_named && letters.starts_with(&cells[..2])
        });
        found
            .map(|(name, _)| name)
            .filter(|name| !colors.starts_with(name))
    }

    /// Returns the column and the row in the image of point `point` of a frame.
    pub fn place(&self, point: usize) -> (usize, usize) {
        let (width, height) = (self.width as usize, self.height as usize);
        let (rows, column) = (point / width, point % width);
        let (module, row) = (rows / height, rows % height);
        let Module { x, y, rotate } = self.modules.get(module).copied().unwrap_or_default();
        let (right, down) = match rotate {
            90 => (height - 1 - row, column),
            180 => (width - 1 - column, height - 1 - row),
            270 => (row, width - 1 - column),
            _ => (column, row),
        };
        (x as usize + right, y as usize + down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_placed_and_rotated() {
        let image = |rotate| Image {
            width: 3,
            height: 2,
            colors: None,
            modules: vec![Module::default(), Module { x: 4, y: 1, rotate }],
        };
        // The module 0 1 2 / 3 4 5, rotated clockwise.
        let rotated = [
            (0, vec![vec![0, 1, 2], vec![3, 4, 5]]),
            (90, vec![vec![3, 0], vec![4, 1], vec![5, 2]]),
            (180, vec![vec![5, 4, 3], vec![2, 1, 0]]),
            (270, vec![vec![2, 5], vec![1, 4], vec![0, 3]]),
        ];
        for (rotate, rows) in rotated {
            let image = image(rotate);
            assert_eq!(image.pixels(), 12);
            assert_eq!(image.size(), (4 + rows[0].len(), 1 + rows.len()));
            for (down, row) in rows.iter().enumerate() {
                for (right, pixel) in row.iter().enumerate() {
                    assert_eq!(image.place(6 + pixel), (4 + right, 1 + down), "{rotate}");
                }
            }
            assert_eq!(image.place(4), (1, 1));
            assert_eq!(image.overlap(), None);
        }
    }

    fn image(modules: &[(u32, u32, u16)]) -> Image {
        let module = |&(x, y, rotate): &(u32, u32, u16)| Module { x, y, rotate };
        Image {
            width: 3,
            height: 2,
            colors: None,
            modules: modules.iter().map(module).collect(),
        }
    }

    #[test]
    fn modules_that_overlap_are_found() {
        for (modules, overlap) in [
            (&[(0, 0, 0), (3, 0, 0), (0, 2, 0), (3, 2, 0)][..], None),
            (&[(0, 0, 0), (0, 0, 0)], Some((0, 1))),
            (&[(5, 5, 0), (2, 1, 0), (0, 0, 0)], Some((1, 2))),
            // A module of two columns and three rows.
            (&[(0, 0, 90), (2, 0, 0)], None),
            (&[(0, 0, 90), (0, 2, 0)], Some((0, 1))),
            (&[(0, 0, 0), (9, 0, 0), (1, 1, 270)], Some((0, 2))),
        ] {
            assert_eq!(image(modules).overlap(), overlap, "{modules:?}");
        }
    }

    #[test]
    fn colors_follow_the_channels() {
        let of = |colors: &str, channels, selected: &[usize]| {
            let colors = Some(colors.to_owned());
            let image = Image {
                colors,
                ..image(&[])
            };
            image.with_channels(channels, selected).colors
        };
        for (colors, channels, selected, expected) in [
            ("RGB", 3, &[2, 1, 0][..], Some("BGR")),
            ("BGRA", 4, &[0, 1, 2], Some("BGR")),
            ("RGB", 3, &[1], Some("G")),
            ("BayerRG", 1, &[0], Some("BayerRG")),
            ("YUV422", 2, &[0, 1], Some("YUV422")),
            ("YUV422", 2, &[0], None),
            ("BayerRG", 1, &[0, 0], None),
        ] {
            let found = of(colors, channels, selected);
            assert_eq!(found.as_deref(), expected, "{colors}");
        }
    }

    #[test]
    fn other_notations_of_filters_are_recognised() {
        for (colors, filter) in [
            ("RGGB", Some("BayerRG")),
            ("bggr", Some("BayerBG")),
            ("bayer_grbg", Some("BayerGR")),
            ("BayerGb", Some("BayerGB")),
            ("BayerGB", None),
            ("BayerRG8", None),
            ("RGB", None),
            ("BGR", None),
            ("YUV", None),
        ] {
            assert_eq!(Image::filter_in_genicam(colors), filter, "{colors}");
        }
    }
}
