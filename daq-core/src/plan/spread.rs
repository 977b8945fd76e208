//! How a ring is spread over several GPUs.

use crate::config::Problem;
use crate::kernel::FrameShare;
use crate::layout::{Axis, Layout, Order, Spread};
use crate::staging::{Matrix, Tile};
use crate::units::counted;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// The value of a ring's `spread` key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpreadTable {
    /// What each GPU holds.
    by: Spread,
    /// `true`: a GPU that is slow or has failed blocks the others. `false`: its share is lost and counted, and the other GPUs
    /// continue.
    #[serde(default = "yes")]
    guarantee: bool,
}

const fn yes() -> bool {
    true
}

/// The value of a ring's `spread` key: how frames are divided, and whether a slow or failed GPU blocks the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadKey {
    /// What each GPU holds.
    pub by: Spread,
    /// Whether a GPU that is slow or has failed blocks the others.
    pub guarantee: bool,
}

impl<'de> Deserialize<'de> for SpreadKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = SpreadKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"frames\", \"channels\", \"points\" or \"parts\", or a table such as { by = \"frames\", guarantee = false }",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<SpreadKey, E> {
                let by = match text {
                    "frames" => Spread::Frames,
                    "channels" => Spread::Channels,
                    "points" => Spread::Points,
                    "parts" => Spread::Parts,
                    _ => {
                        return Err(E::custom(format!(
                            "unknown spread \"{text}\"; write \"frames\", \"channels\", \"points\" or \"parts\""
                        )));
                    }
                };
                Ok(SpreadKey {
                    by,
                    guarantee: true,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SpreadKey, A::Error> {
                let table = SpreadTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SpreadKey {
                    by: table.by,
                    guarantee: table.guarantee,
                })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for SpreadKey {
    fn schema_name() -> Cow<'static, str> {
        "SpreadKey".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let by = generator.subschema_for::<Spread>();
        let table = generator.subschema_for::<SpreadTable>();
        schemars::json_schema!({ "anyOf": [by, table] })
    }
}

/// The share of one GPU in a spread ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedShare {
    /// The spread ring.
    pub of: String,
    /// Number of the share, below `count`.
    pub index: usize,
    /// Number of shares.
    pub count: usize,
    /// What each share holds.
    pub by: Spread,
    /// Whether a GPU that is slow or has failed blocks the others.
    pub guarantee: bool,
    /// The rectangle of each frame; `None` if the share has whole frames.
    #[serde(skip)]
    pub tile: Option<(Matrix, Tile)>,
}

impl PlannedShare {
    /// Returns the part of each frame that a share with frames of `layout` contains.
    pub fn frame_share(&self, layout: &Layout) -> FrameShare {
        let before = |extent: usize| extent * self.index;
        let by_channels = match self.by {
            Spread::Channels => true,
            Spread::Parts => layout.order == Order::Planar && self.is_divided_by_rows(),
            Spread::Frames | Spread::Points => false,
        };
        let by_points = !by_channels && self.by != Spread::Frames;
        FrameShare {
            index: narrow(self.index),
            count: narrow(self.count),
            first_channel: if by_channels {
                narrow(before(layout.channels as usize))
            } else {
                0
            },
            first_point: if by_points { before(layout.points) } else { 0 },
        }
    }

    /// Whether rows of the frame, which are channels of a planar frame, are divided.
    fn is_divided_by_rows(&self) -> bool {
        let whole = self.tile.as_ref().map(|(matrix, tile)| (matrix.rows, tile));
        whole.is_some_and(|(rows, tile)| tile.height() < rows)
    }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Divides frames of `layout` by `by` into `count` equal shares. Returns the frame's rows and columns with the rectangle of
/// share `index` (`None` if shares have whole frames), and the layout of the share's frames.
pub(super) fn divide(
    layout: &Layout,
    by: Spread,
    (index, count): (usize, usize),
) -> Result<(Option<(Matrix, Tile)>, Layout), Problem> {
    let mut share = layout.clone();
    if by == Spread::Frames {
        share.frame_rate = layout.frame_rate.map(|rate| rate / count as f64);
        return Ok((None, share));
    }
    let channels = layout.channels as usize;
    let is_planar = layout.order == Order::Planar;
    let by_channels = by == Spread::Channels || by == Spread::Parts && is_planar && channels > 1;
    let (extent, what) = if by_channels {
        (channels, "channel")
    } else {
        (layout.points, "point")
    };
    if extent == 0 || !extent.is_multiple_of(count) {
        let message = format!(
            "{} of each frame cannot be divided equally among {}",
            counted(extent, what),
            counted(count, "GPU")
        );
        return Err(Problem::at("spread", message).help(format!(
            "list a number of GPUs in `memory` that divides {extent}, or set spread = \"frames\""
        )));
    }
    let (rows, columns) = if is_planar {
        (channels, layout.points)
    } else {
        (layout.points, channels)
    };
    let bits = layout.sample_bits();
    let part = |extent: usize| extent / count * index..extent / count * (index + 1);
    // Rows are divided if they are what is divided; otherwise columns are.
    let divides_rows = by_channels == is_planar;
    let is_aligned = (columns * bits).is_multiple_of(8)
        && (divides_rows || (columns / count * bits).is_multiple_of(8));
    if !is_aligned {
        let message = format!(
            "samples of {} bits cannot be divided at the bounds of bytes",
            layout.sample_bits()
        );
        return Err(Problem::at("spread", message)
            .help("set spread = \"frames\", or convert the samples to whole bytes first"));
    }
    let bytes = |columns: Range<usize>| columns.start * bits / 8..columns.end * bits / 8;
    let matrix = Matrix {
        rows,
        row_bytes: columns * bits / 8,
    };
    let tile = if divides_rows {
        Tile {
            rows: part(rows),
            columns: 0..matrix.row_bytes,
        }
    } else {
        Tile {
            rows: 0..rows,
            columns: bytes(part(columns)),
        }
    };
    if by_channels {
        share.channels = narrow(channels / count);
    } else {
        let first = part(layout.points).start;
        share.points = layout.points / count;
        share.axis = shifted(&layout.axis, first, share.points);
    }
    Ok((Some((matrix, tile)), share))
}

/// Returns the axis of `points` points from point `first` on.
fn shifted(axis: &Axis, first: usize, points: usize) -> Axis {
    match axis {
        Axis::Time { rate } => Axis::Time { rate: *rate },
        Axis::Frequency { start, step } => Axis::Frequency {
            start: start
                .zip(*step)
                .map(|(start, step)| start + first as f64 * step),
            step: *step,
        },
        Axis::Fields(names) => {
            Axis::Fields(names.iter().skip(first).take(points).cloned().collect())
        }
        Axis::Pixels(image) if points == image.pixels() => axis.clone(),
        Axis::Pixels(_) => Axis::Time { rate: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Scalar;

    fn layout(order: Order) -> Layout {
        Layout {
            scalar: Scalar::Int16,
            complex: true,
            channels: 6,
            points: 8,
            order,
            axis: Axis::Frequency {
                start: Some(100.0),
                step: Some(10.0),
            },
            frame_rate: Some(50.0),
            is_contiguous: true,
        }
    }

    fn tile(order: Order, by: Spread, share: (usize, usize)) -> (Tile, Layout) {
        let (tile, share) = divide(&layout(order), by, share).unwrap();
        (tile.unwrap().1, share)
    }

    #[test]
    fn shares_are_rectangles_of_the_frame() {
        let (rows, share) = tile(Order::Planar, Spread::Channels, (1, 2));
        assert_eq!((rows.rows, rows.columns), (3..6, 0..32));
        assert_eq!((share.channels, share.points), (3, 8));
        let (columns, share) = tile(Order::Planar, Spread::Points, (1, 2));
        assert_eq!((columns.rows, columns.columns), (0..6, 16..32));
        assert_eq!((share.channels, share.points), (6, 4));
        let start = Some(140.0);
        let step = Some(10.0);
        assert_eq!(share.axis, Axis::Frequency { start, step });
        let (columns, _) = tile(Order::Interleaved, Spread::Channels, (2, 3));
        assert_eq!((columns.rows, columns.columns), (0..8, 16..24));
        let (rows, _) = tile(Order::Interleaved, Spread::Points, (0, 4));
        assert_eq!((rows.rows, rows.columns), (0..2, 0..24));
        // Parts are consecutive bytes.
        assert_eq!(
            tile(Order::Planar, Spread::Parts, (1, 3)).0,
            tile(Order::Planar, Spread::Channels, (1, 3)).0
        );
        assert_eq!(
            tile(Order::Interleaved, Spread::Parts, (1, 2)).0,
            tile(Order::Interleaved, Spread::Points, (1, 2)).0
        );
    }

    #[test]
    fn frames_are_not_divided() {
        let (tile, share) = divide(&layout(Order::Planar), Spread::Frames, (0, 2)).unwrap();
        assert_eq!((tile, share.frame_rate), (None, Some(25.0)));
    }

    #[test]
    fn unequal_shares_are_refused() {
        let problem = divide(&layout(Order::Planar), Spread::Channels, (0, 4)).unwrap_err();
        let text = format!("{problem:?}");
        assert!(text.contains("6 channels of each frame cannot be divided equally among 4 GPUs"));
        let packed = Layout {
            scalar: Scalar::Int12p,
            complex: false,
            points: 6,
            ..layout(Order::Planar)
        };
        assert!(divide(&packed, Spread::Points, (0, 2)).is_err());
        assert!(divide(&packed, Spread::Channels, (0, 2)).is_ok());
    }
}
