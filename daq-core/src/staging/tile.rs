//! Rectangles of a frame, which the memories of several GPUs hold.

use std::ops::Range;

/// The rows and columns of a frame's bytes.
///
/// A frame whose channels are planar has one row for each channel; a frame whose channels are interleaved has one row for
/// each point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Number of rows, at least 1.
    pub rows: usize,
    /// Size of a row in bytes, at least 1.
    pub row_bytes: usize,
}

/// A rectangle of a [`Matrix`]. Its rows are stored one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The rows.
    pub rows: Range<usize>,
    /// The bytes of each row.
    pub columns: Range<usize>,
}

impl Matrix {
    /// Returns the rectangle that contains the whole frame.
    pub const fn whole(self) -> Tile {
        Tile {
            rows: 0..self.rows,
            columns: 0..self.row_bytes,
        }
    }

    /// Returns the number of bytes of `tile` among the first `length` bytes of a frame.
    pub fn length_in(self, tile: &Tile, length: usize) -> usize {
        let (whole, rest) = (length / self.row_bytes, length % self.row_bytes);
        let rows = |end: usize| end.min(tile.rows.end).saturating_sub(tile.rows.start);
        let last = if tile.rows.contains(&whole) {
            rest.min(tile.columns.end)
                .saturating_sub(tile.columns.start)
        } else {
            0
        };
        rows(whole) * tile.width() + last
    }
}

impl Tile {
    /// Returns the size of a row in bytes.
    pub const fn width(&self) -> usize {
        self.columns.end - self.columns.start
    }

    /// Returns the number of rows.
    pub const fn height(&self) -> usize {
        self.rows.end - self.rows.start
    }

    /// Returns the number of bytes.
    pub const fn bytes(&self) -> usize {
        self.width() * self.height()
    }

    /// Returns the common rectangle; `None` if the rectangles do not overlap.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let both = |a: &Range<usize>, b: &Range<usize>| {
            let common = a.start.max(b.start)..a.end.min(b.end);
            (!common.is_empty()).then_some(common)
        };
        Some(Self {
            rows: both(&self.rows, &other.rows)?,
            columns: both(&self.columns, &other.columns)?,
        })
    }

    /// Returns the offset of `inner` in the memory of this rectangle, which must contain it.
    pub const fn offset_of(&self, inner: &Self) -> usize {
        (inner.rows.start - self.rows.start) * self.width() + inner.columns.start
            - self.columns.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MATRIX: Matrix = Matrix {
        rows: 4,
        row_bytes: 6,
    };

    fn tile() -> impl Strategy<Value = Tile> {
        let range = |end: usize| (0..end, 1..=end).prop_map(|(a, b)| a.min(b - 1)..b.max(a + 1));
        (range(4), range(6)).prop_map(|(rows, columns)| Tile { rows, columns })
    }

    /// Returns the offsets in the frame of a rectangle's bytes, in the order in which they are stored.
    fn offsets(tile: &Tile) -> Vec<usize> {
        let rows = tile.rows.clone();
        rows.flat_map(|row| tile.columns.clone().map(move |column| row * 6 + column))
            .collect()
    }

    proptest! {
        #[test]
        fn length_counts_bytes_of_a_short_frame(tile in tile(), length in 0..=24usize) {
            let expected = offsets(&tile).iter().filter(|offset| **offset < length).count();
            prop_assert_eq!(MATRIX.length_in(&tile, length), expected);
        }

        #[test]
        fn intersections_are_inside_both(a in tile(), b in tile()) {
            let common: Vec<_> = offsets(&a).into_iter().filter(|at| offsets(&b).contains(at)).collect();
            let found = a.intersection(&b);
            prop_assert_eq!(found.as_ref().map_or(Vec::new(), offsets), common.clone());
            if let Some(inner) = found {
                prop_assert_eq!(offsets(&a)[a.offset_of(&inner)], common[0]);
            }
        }
    }
}
