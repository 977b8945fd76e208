//! The image that the modules of a frame form, in grey or in colours.
//!
//! ```text
//!   channels RGB:      each pixel has three values
//!   filter BayerRG:    R G R G    two rows and two columns of a module are a cell, all of whose pixels have the same colours:
//!                      G B G B    red, the mean of both greens, and blue
//! ```

use super::decode::Samples;
use super::points::{Block, Points, column_of};
use super::reduce::IMAGE;
use daq_core::layout::Image;
use serde_json::{Value, json};
use std::ops::Range;

/// Number of colours: red, green and blue.
pub(super) const COLOURS: usize = 3;

/// The mean of all values that are not NaN.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    pub(super) fn add(&mut self, value: f32) {
        if !value.is_nan() {
            self.sum += f64::from(value);
            self.count += 1;
        }
    }

    /// Returns NaN without a value.
    pub(super) fn value(&self) -> f32 {
        (self.sum / f64::from(self.count)) as f32
    }
}

/// Where the colours of an image are. Colours are numbered red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colours {
    /// One value per pixel, of this channel.
    None { channel: usize },
    /// The colour of each of the first three channels.
    Channels([usize; COLOURS]),
    /// The colour of each pixel of a cell: the upper left, the upper right, the lower left, the lower right.
    Filter([usize; 4]),
}

impl Colours {
    /// Returns the colours of images with `channels` channels. Three channels without declared colours are assumed to be red,
    /// green and blue. Images whose colours are unknown show `channel`.
    fn of(image: &Image, channels: usize, channel: usize) -> Self {
        let colors = image.colors.as_deref();
        let filter = colors.and_then(|colors| colors.strip_prefix("Bayer"));
        let has_cells = channels == 1 && image.width > 1 && image.height > 1;
        match (channels, filter.map(str::as_bytes)) {
            (_, Some([b'R', b'G', ..])) if has_cells => Self::Filter([0, 1, 1, 2]),
            (_, Some([b'G', b'R', ..])) if has_cells => Self::Filter([1, 0, 2, 1]),
            (_, Some([b'G', b'B', ..])) if has_cells => Self::Filter([1, 2, 0, 1]),
            (_, Some([b'B', b'G', ..])) if has_cells => Self::Filter([2, 1, 1, 0]),
            (COLOURS.., _) if colors.is_some_and(|colors| colors.starts_with("BGR")) => {
                Self::Channels([2, 1, 0])
            }
            (COLOURS.., _) if colors.is_some_and(|colors| colors.starts_with("RGB")) => {
                Self::Channels([0, 1, 2])
            }
            (COLOURS, _) if colors.is_none() => Self::Channels([0, 1, 2]),
            _ => Self::None { channel },
        }
    }

    /// Returns the channels that contain values, and the number of values of a pixel that is shown.
    const fn channels(self) -> (Range<usize>, usize) {
        match self {
            Self::None { channel } => (channel..channel + 1, 1),
            Self::Channels(_) => (0..COLOURS, COLOURS),
            Self::Filter(_) => (0..1, COLOURS),
        }
    }
}

/// The pixels of an image that are shown.
pub(super) struct Pixels<'a> {
    image: &'a Image,
    samples: &'a Samples<'a>,
    /// The pixels that have values.
    range: Range<usize>,
    colours: Colours,
}

impl<'a> Pixels<'a> {
    /// Returns the pixels `range` of an image: in colours if it has any, otherwise those of `channel`. The other pixels, and
    /// places without a module, have no values.
    pub(super) fn new(
        image: &'a Image,
        samples: &'a Samples<'a>,
        range: Range<usize>,
        channel: usize,
    ) -> Self {
        let pixels = image.pixels();
        Self {
            image,
            samples,
            range: range.start.min(pixels)..range.end.min(pixels),
            colours: Colours::of(image, samples.channels, channel),
        }
    }

    /// Returns the number of rows, of columns and, for colours, of values per pixel of the reduced image.
    pub(super) fn shape(&self) -> Vec<usize> {
        let (width, height) = self.image.size();
        let mut shape = vec![height.min(IMAGE.0), width.min(IMAGE.1)];
        if !matches!(self.colours, Colours::None { .. }) {
            shape.push(COLOURS);
        }
        shape
    }

    /// Returns the kind of the image, its size in pixels, and the channel if only one is shown.
    pub(super) fn describe(&self) -> Value {
        let (width, height) = self.image.size();
        let (kind, channel) = match self.colours {
            Colours::None { channel } => ("pixels", Some(channel)),
            Colours::Channels(_) | Colours::Filter(_) => ("colours", None),
        };
        json!({ "kind": kind, "pixels": [height, width], "channel": channel })
    }

    /// Returns the means of the values of each colour in each pixel of the reduced image; NaN without a value. Returns `None` as soon
    /// as `is_wanted` returns false.
    pub(super) fn means(
        &self,
        block: &mut Block,
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<impl Iterator<Item = f32> + use<>> {
        let (shape, (width, height)) = (self.shape(), self.image.size());
        let (rows, columns) = (shape[0], shape[1]);
        let (channels, values) = self.colours.channels();
        let mut means = vec![Mean::default(); rows * columns * values];
        for channel in channels {
            if !is_wanted() {
                return None;
            }
            let shown = Points::of(self.samples, channel, self.range.clone()).power();
            shown.each(0..shown.len(), block, |first, block| {
                for (point, value) in (shown.first() + first..).zip(&block.re) {
                    let (colour, [(left, top), (right, bottom)]) = self.pixels_of(point, channel);
                    for row in column_of(top, rows, height)..=column_of(bottom, rows, height) {
                        let across =
                            column_of(left, columns, width)..=column_of(right, columns, width);
                        for column in across {
                            means[(row * columns + column) * values + colour].add(*value);
                        }
                    }
                }
            });
        }
        Some(means.into_iter().map(|mean| mean.value()))
    }

    /// Returns the colour of point `point` of a channel, and the column and the row of the first and the last pixel that have its
    /// value in the image.
    fn pixels_of(&self, point: usize, channel: usize) -> (usize, [(usize, usize); 2]) {
        let filter = match self.colours {
            Colours::None { .. } => return (0, [self.image.place(point); 2]),
            Colours::Channels(order) => return (order[channel], [self.image.place(point); 2]),
            Colours::Filter(filter) => filter,
        };
        let (width, height) = (self.image.width as usize, self.image.height as usize);
        let (column, row) = (point % width, point / width % height);
        let module = point - row * width - column;
        let (columns, rows) = (cell(column, width), cell(row, height));
        let (a, b) = (
            self.image.place(module + rows.0 * width + columns.0),
            self.image.place(module + rows.1 * width + columns.1),
        );
        let corners = [(a.0.min(b.0), a.1.min(b.1)), (a.0.max(b.0), a.1.max(b.1))];
        (filter[row % 2 * 2 + column % 2], corners)
    }
}

/// Returns the first and the last column of the cell of a column, or the rows of that of a row. The last one of an odd number
/// belongs to the cell before it.
const fn cell(at: usize, count: usize) -> (usize, usize) {
    let last = count / 2 - 1;
    let cell = if at / 2 < last { at / 2 } else { last };
    (
        2 * cell,
        if cell == last {
            count - 1
        } else {
            2 * cell + 1
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_all_notations_are_known() {
        let image = |colors: &str, width| Image {
            width,
            height: 2,
            colors: Some(colors.to_owned()).filter(|colors| !colors.is_empty()),
            modules: Vec::new(),
        };
        let none = Colours::None { channel: 0 };
        let rgb = Colours::Channels([0, 1, 2]);
        for (colors, channels, colours) in [
            ("BayerRG", 1, Colours::Filter([0, 1, 1, 2])),
            ("BayerGR", 1, Colours::Filter([1, 0, 2, 1])),
            ("BayerGB", 1, Colours::Filter([1, 2, 0, 1])),
            ("BayerBG", 1, Colours::Filter([2, 1, 1, 0])),
            ("BayerRG", 3, none),
            ("BayerXY", 1, none),
            ("Bayer", 1, none),
            ("", 1, none),
            ("", 3, rgb),
            ("", 4, none),
            ("RGB", 3, rgb),
            ("RGB", 4, rgb),
            ("BGR", 3, Colours::Channels([2, 1, 0])),
            ("BGR", 1, none),
            ("YUV", 3, none),
        ] {
            assert_eq!(
                Colours::of(&image(colors, 4), channels, 0),
                colours,
                "{colors}"
            );
        }
        // A column has no cells.
        assert_eq!(Colours::of(&image("BayerRG", 1), 1, 0), none);
    }
}
