//! Collects the exact bytes of missing packets that do not end where samples end.

/// Maximum number of listed ranges in a segment's metadata.
const MAX_RANGES: usize = 1 << 16;

/// Maximum number of bytes of one range in the metadata text: two numbers and two brackets, each on its own line.
const RANGE_BYTES: u64 = 96;

/// The listed ranges of one annotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    /// Index of the first range in [`Ranges`].
    start: usize,
    count: usize,
    /// Whether all ranges of the annotation are listed.
    is_complete: bool,
}

/// The missing packets of a segment, as bytes of the data file.
#[derive(Debug)]
pub(super) struct Ranges {
    ranges: Vec<[u64; 2]>,
}

impl Ranges {
    /// Creates an empty list. Allocates all memory that the other methods use, except [`of`](Self::of).
    pub(super) fn new() -> Self {
        Self {
            ranges: Vec::with_capacity(MAX_RANGES),
        }
    }

    /// Returns the number of bytes of memory that a list uses.
    pub(super) const fn memory() -> usize {
        MAX_RANGES * size_of::<[u64; 2]>()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Returns whether the list may have no room for another frame with `spans` spans of missing packets.
    pub(super) fn is_full(&self, spans: usize) -> bool {
        self.count_after(spans) > MAX_RANGES
    }

    /// Returns the maximum number of bytes of the ranges in the metadata text after one more frame with `spans` spans.
    pub(super) fn json_bytes(&self, spans: usize) -> u64 {
        self.count_after(spans).min(MAX_RANGES) as u64 * RANGE_BYTES
    }

    /// Returns the maximum number of ranges after one more frame: a span may also begin the list of the range before it.
    fn count_after(&self, spans: usize) -> usize {
        self.ranges.len() + 2 * spans
    }

    /// Adds the bytes from `start` to `end` to the last annotation, whose ranges are `listed`. Allocates nothing.
    pub(super) fn push(&mut self, listed: &mut Option<Listed>, (start, end): (u64, u64)) {
        let listed = listed.get_or_insert(Listed {
            start: self.ranges.len(),
            count: 0,
            is_complete: true,
        });
        if self.ranges.len() == MAX_RANGES {
            listed.is_complete = false;
        } else {
            listed.count += 1;
            self.ranges.push([start, end - start]);
        }
    }

    /// Returns the ranges of an annotation; none if some are not listed.
    pub(super) fn of(&self, listed: Listed) -> Vec<[u64; 2]> {
        let count = if listed.is_complete { listed.count } else { 0 };
        self.ranges[listed.start..][..count].to_vec()
    }
}
