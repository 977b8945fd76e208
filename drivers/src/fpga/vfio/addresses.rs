//! Choosing the addresses at which a device sees memory.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Maps begin at multiples of this, and are as long.
pub const PAGE: u64 = 4096;
/// Large maps begin at multiples of this, so that the IOMMU can use large pages.
const LARGE_PAGE: u64 = 2 << 20;
/// Below lies what firmware and old devices have, and an address of 0 is more often a mistake than meant.
const LOWEST: u64 = 1 << 20;
/// Where x86 takes writes for interrupts.
const INTERRUPTS: RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;

/// The addresses of a container: which there are, and which are taken.
#[derive(Debug)]
pub struct Addresses {
    valid: Vec<RangeInclusive<u64>>,
    /// Begin and bytes of each map.
    taken: BTreeMap<u64, u64>,
}

impl Addresses {
    /// Those of `valid`; without it all that 39 bits reach, as every IOMMU has, but those of interrupts.
    pub fn new(valid: Option<Vec<RangeInclusive<u64>>>) -> Self {
        let valid = valid.unwrap_or_else(|| {
            vec![
                0..=INTERRUPTS.start() - 1,
                INTERRUPTS.end() + 1..=(1 << 39) - 1,
            ]
        });
        Self {
            valid,
            taken: BTreeMap::new(),
        }
    }

    /// Takes the lowest free `bytes`, a multiple of [`PAGE`]; low ones, since many engines know 32 bits only.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return None;
        }
        let alignment = if bytes >= LARGE_PAGE {
            LARGE_PAGE
        } else {
            PAGE
        };
        let begin = self.valid.iter().find_map(|range| {
            let mut begin = LOWEST.max(*range.start());
            loop {
                begin = begin.checked_next_multiple_of(alignment)?;
                let last = begin.checked_add(bytes - 1)?;
                if last > *range.end() {
                    return None;
                }
                match self.taken.range(..=last).next_back() {
                    Some((&other, &length)) if other + (length - 1) >= begin => {
                        begin = other.checked_add(length)?;
                    }
                    _ => return Some(begin),
                }
            }
        })?;
        self.taken.insert(begin, bytes);
        Some(begin)
    }

    /// The bytes of the map that begins there.
    pub fn bytes(&self, begin: u64) -> Option<u64> {
        self.taken.get(&begin).copied()
    }

    /// Gives back what [`take`](Self::take) took.
    pub fn give(&mut self, begin: u64) {
        self.taken.remove(&begin);
    }

    /// All maps: begin and bytes.
    pub fn taken(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter().map(|(&begin, &bytes)| (begin, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_taken_lies_in_a_range_and_overlaps_nothing(
            steps in prop::collection::vec((any::<bool>(), 1u64..2000, any::<prop::sample::Index>()), 1..60),
            starts in prop::collection::btree_set(0u64..1 << 14, 2..8),
        ) {
            let starts: Vec<u64> = starts.into_iter().map(|page| page * PAGE).collect();
            let valid: Vec<_> = starts.chunks_exact(2).map(|pair| pair[0]..=pair[1] - 1).collect();
            let mut addresses = Addresses::new(Some(valid.clone()));
            for (is_take, pages, which) in steps {
                if is_take {
                    addresses.take(pages * PAGE);
                } else if let Some((begin, _)) = {
                    let all: Vec<_> = addresses.taken().collect();
                    (!all.is_empty()).then(|| *which.get(&all))
                } {
                    addresses.give(begin);
                }
                let all: Vec<_> = addresses.taken().collect();
                for (begin, bytes) in &all {
                    let last = begin + bytes - 1;
                    prop_assert!(valid.iter().any(|range| range.contains(begin) && range.contains(&last)));
                    prop_assert!(*begin >= LOWEST && begin % PAGE == 0);
                    prop_assert!(*bytes < LARGE_PAGE || begin % LARGE_PAGE == 0);
                }
                prop_assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            }
        }
    }

    #[test]
    fn addresses_are_low_and_are_used_again() {
        let mut addresses = Addresses::new(None);
        assert_eq!(addresses.take(PAGE), Some(LOWEST));
        assert_eq!(addresses.take(PAGE), Some(LOWEST + PAGE));
        assert_eq!(addresses.take(LARGE_PAGE), Some(LARGE_PAGE));
        assert_eq!(addresses.bytes(LARGE_PAGE), Some(LARGE_PAGE));
        addresses.give(LOWEST);
        assert_eq!(addresses.take(PAGE), Some(LOWEST));
        assert_eq!(addresses.take(PAGE - 1), None);
        assert_eq!(addresses.take(0), None);
    }

    #[test]
    fn interrupts_are_kept_clear_of() {
        let mut addresses = Addresses::new(None);
        let begin = addresses.take(8 << 30).unwrap();
        assert!(begin > *INTERRUPTS.end(), "{begin:#x}");
        assert_eq!(addresses.take(1 << 39), None);
        // The very last page can be taken, and nothing overflows behind it.
        let mut last = Addresses::new(Some(vec![u64::MAX - PAGE + 1..=u64::MAX]));
        assert_eq!(last.take(PAGE), Some(u64::MAX - PAGE + 1));
        assert_eq!(last.take(PAGE), None);
    }
}
