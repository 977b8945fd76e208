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
    /// Colour filter of the pixels in the notation of GenICam, such as `BayerRG`; `None` if pixels have no filter.
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
        let (width, height) = (self.width as usize, self.height as usize);
        let ends = self.modules.iter().map(|module| {
            let (width, height) = match module.rotate {
                90 | 270 => (height, width),
                _ => (width, height),
            };
            (module.x as usize + width, module.y as usize + height)
        });
        ends.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
            .unwrap_or((width, height))
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
        }
    }
}
