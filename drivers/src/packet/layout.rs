//! The layout of a unit: offset and size of each of its packets.

use std::ops::Range;

/// Cuts a unit of `unit_bytes` into a first packet of `first` bytes and further packets of `rest` bytes. The last
/// packet is shorter if the sizes do not divide evenly.
///
/// ```text
///   0        first      first+rest          unit_bytes
///   | packet 0 | packet 1  | packet 2  | last |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLayout {
    /// Size of a unit in bytes.
    pub unit_bytes: usize,
    /// Number of payload bytes in the first packet. The first packet of a heap often has a longer header and therefore less
    /// payload.
    pub first: usize,
    /// Number of payload bytes in every other packet except the last.
    pub rest: usize,
}

impl PacketLayout {
    /// Returns the layout of a unit that is one packet of `bytes` bytes.
    pub const fn single(bytes: usize) -> Self {
        Self {
            unit_bytes: bytes,
            first: bytes,
            rest: bytes,
        }
    }

    /// Returns the number of packets per unit, at least 1.
    pub fn count(&self) -> u32 {
        let after = self
            .unit_bytes
            .saturating_sub(self.first)
            .div_ceil(self.rest.max(1));
        u32::try_from(after).map_or(u32::MAX, |after| after.saturating_add(1))
    }

    /// Returns the byte range of packet `sub` in its unit. The range is empty if the unit has no such packet.
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

    /// Returns the index of the packet whose payload begins at byte `offset` of the unit, or `None` if no packet begins at this
    /// byte.
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
    fn number_of_packets_is_limited() {
        let layout = PacketLayout {
            unit_bytes: 1 << 40,
            first: 256,
            rest: 256,
        };
        assert_eq!(layout.count(), u32::MAX);
        assert_eq!(
            PacketLayout {
                unit_bytes: 256 << 32,
                ..layout
            }
            .count(),
            u32::MAX
        );
        assert_eq!(
            PacketLayout {
                unit_bytes: 256,
                ..layout
            }
            .count(),
            1
        );
    }

    #[test]
    fn short_first_packet_shifts_the_others() {
        let layout = PacketLayout {
            unit_bytes: 4000,
            first: 1416,
            rest: 1432,
        };
        assert_eq!(layout.count(), 3);
        assert_eq!(layout.range(0), 0..1416);
        assert_eq!(layout.range(1), 1416..2848);
        assert_eq!(layout.range(2), 2848..4000);
        assert_eq!(layout.range(3), 4000..4000);
        assert_eq!(layout.at(1432), None);
    }

    proptest! {
        #[test]
        fn packets_cover_unit_exactly_once(unit in 1usize..100_000, first in 1usize..9000, rest in 1usize..9000) {
            let layout = PacketLayout { unit_bytes: unit, first, rest };
            let mut end = 0;
            for sub in 0..layout.count() {
                let range = layout.range(sub);
                prop_assert_eq!(range.start, end);
                prop_assert!(!range.is_empty());
                prop_assert_eq!(layout.at(range.start as u64), Some(sub));
                end = range.end;
            }
            prop_assert_eq!(end, unit);
            prop_assert_eq!(layout.at(unit as u64), None);
        }
    }
}
