//! How a unit is cut into places.

use std::ops::Range;

/// How a unit of `unit_bytes` is cut: one place of `first` bytes, then places of `rest` bytes, the last
/// one shorter where they do not fit evenly.
///
/// ```text
///   0        first      first+rest          unit_bytes
///   | place 0 |  place 1  |  place 2  | last |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Bytes of a whole unit.
    pub unit_bytes: usize,
    /// Bytes of the first place; the first packet of a heap often carries more header, so less payload.
    pub first: usize,
    /// Bytes of every other place but the last.
    pub rest: usize,
}

impl Places {
    /// Places of a unit; at least 1.
    pub fn count(&self) -> u32 {
        let after = self
            .unit_bytes
            .saturating_sub(self.first)
            .div_ceil(self.rest.max(1));
        u32::try_from(after).unwrap_or(u32::MAX - 1) + 1
    }

    /// Where place `sub` lies in its unit; empty where there is no such place.
    pub fn range(&self, sub: u32) -> Range<usize> {
        let start = match sub {
            0 => 0,
            _ => (sub as usize - 1)
                .saturating_mul(self.rest)
                .saturating_add(self.first),
        };
        let length = if sub == 0 { self.first } else { self.rest };
        let start = start.min(self.unit_bytes);
        start..start.saturating_add(length).min(self.unit_bytes)
    }

    /// The place that begins at `offset`, if one does.
    #[inline]
    pub fn at(&self, offset: u64) -> Option<u32> {
        if offset == 0 {
            return Some(0);
        }
        if offset >= self.unit_bytes as u64 {
            return None;
        }
        let after = offset.checked_sub(self.first as u64)?;
        let rest = self.rest as u64;
        (after.checked_rem(rest)? == 0).then(|| u32::try_from(after / rest + 1).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_first_packet_shifts_the_others() {
        let places = Places {
            unit_bytes: 4000,
            first: 1416,
            rest: 1432,
        };
        assert_eq!(places.count(), 3);
        assert_eq!(places.range(0), 0..1416);
        assert_eq!(places.range(1), 1416..2848);
        assert_eq!(places.range(2), 2848..4000);
        assert_eq!(places.range(3), 4000..4000);
        assert_eq!(places.at(1432), None);
    }

    proptest! {
        #[test]
        fn packets_cover_unit_exactly_once(unit in 1usize..100_000, first in 1usize..9000, rest in 1usize..9000) {
            let places = Places { unit_bytes: unit, first, rest };
            let mut end = 0;
            for sub in 0..places.count() {
                let range = places.range(sub);
                prop_assert_eq!(range.start, end);
                prop_assert!(!range.is_empty());
                prop_assert_eq!(places.at(range.start as u64), Some(sub));
                end = range.end;
            }
            prop_assert_eq!(end, unit);
            prop_assert_eq!(places.at(unit as u64), None);
        }
    }
}
