//! Allocates I/O virtual addresses for DMA.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The first address. Lower addresses are used by firmware and old devices, and are common targets of mistakes.
const FIRST: u64 = 2 << 20;
/// First address that needs more than 32 bits.
const NARROW: u64 = 1 << 32;
/// Alignment of ranges and minimum gap between them. Because of the gap, a device that writes beyond a range causes an IOMMU
/// fault.
const STEP: u64 = 1 << 20;
/// Alignment of ranges of at least this size, so that the IOMMU can use large pages.
const LARGE_PAGE: u64 = 2 << 20;
/// Addresses that x86 uses for interrupt messages.
const INTERRUPTS: RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;
/// The last address of the narrowest IOMMU, which has 39 bits.
const LAST: u64 = (1 << 39) - 1;

/// Allocates the addresses of one device.
///
/// Addresses below 4 GiB are used first, for engines with 32-bit addresses. Freed addresses are reused as late as
/// possible, so that a late write to freed memory faults.
#[derive(Debug)]
pub struct IovaAllocator {
    valid: Vec<RangeInclusive<u64>>,
    /// First address and size of each allocated range.
    taken: BTreeMap<u64, u64>,
    below: SearchRange,
    above: SearchRange,
}

/// A range of addresses to search.
#[derive(Debug)]
struct SearchRange {
    first: u64,
    last: u64,
    /// Address at which the next search starts.
    next: u64,
}

impl SearchRange {
    const fn new(first: u64, last: u64) -> Self {
        Self {
            first,
            last,
            next: first,
        }
    }
}

impl Default for IovaAllocator {
    fn default() -> Self {
        Self::new(None)
    }
}

impl IovaAllocator {
    /// Creates an allocator for the address ranges `valid`. `None` allows all 39-bit addresses except those of interrupts.
    pub fn new(valid: Option<Vec<RangeInclusive<u64>>>) -> Self {
        let mut valid =
            valid.unwrap_or_else(|| vec![0..=INTERRUPTS.start() - 1, INTERRUPTS.end() + 1..=LAST]);
        valid.sort_by_key(|range| *range.start());
        Self {
            valid,
            taken: BTreeMap::new(),
            below: SearchRange::new(FIRST, NARROW - 1),
            above: SearchRange::new(NARROW, u64::MAX),
        }
    }

    /// Allocates a range of `bytes` bytes and returns its first address, or `None` if no range is free.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let below = self.find(&self.below, bytes);
        let begin = below.or_else(|| self.find(&self.above, bytes))?;
        self.taken.insert(begin, bytes);
        let span = if below.is_some() {
            &mut self.below
        } else {
            &mut self.above
        };
        span.next = behind(begin, bytes);
        Some(begin)
    }

    /// Returns the size of the range that starts at `begin`.
    #[cfg(test)]
    pub fn bytes(&self, begin: u64) -> Option<u64> {
        self.taken.get(&begin).copied()
    }

    /// Frees a range that [`allocate`](Self::allocate) returned.
    pub fn free(&mut self, begin: u64) {
        self.taken.remove(&begin);
    }

    /// Returns all allocated ranges: first address and size.
    #[cfg(test)]
    pub fn taken(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter().map(|(&begin, &bytes)| (begin, bytes))
    }

    fn find(&self, span: &SearchRange, bytes: u64) -> Option<u64> {
        let length = bytes.checked_sub(1)?;
        [span.next, span.first]
            .into_iter()
            .find_map(|from| self.find_from(from, span.last, length))
    }

    /// Returns the first free range of `length + 1` addresses between `from` and `last`.
    fn find_from(&self, from: u64, last: u64, length: u64) -> Option<u64> {
        let alignment = if length < LARGE_PAGE - 1 {
            STEP
        } else {
            LARGE_PAGE
        };
        self.valid.iter().find_map(|range| {
            let mut begin = from.max(*range.start());
            loop {
                begin = begin.checked_next_multiple_of(alignment)?;
                let end = begin.checked_add(length)?;
                if end > last.min(*range.end()) {
                    return None;
                }
                // Ranges are sorted and do not overlap, so only the last one can conflict.
                let others = self.taken.range(..=end.saturating_add(STEP));
                match others.last().map(|(&other, &bytes)| behind(other, bytes)) {
                    Some(behind) if behind > begin => begin = behind,
                    _ => return Some(begin),
                }
            }
        })
    }
}

/// Returns the first address after a range that another range may use.
const fn behind(begin: u64, bytes: u64) -> u64 {
    begin.saturating_add(bytes).saturating_add(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn iova_allocation_is_ascending_and_reuses_last() {
        let mut iovas = IovaAllocator::default();
        let first = iovas.allocate(4096).unwrap();
        let second = iovas.allocate(4096).unwrap();
        assert_eq!((first, iovas.bytes(first)), (FIRST, Some(4096)));
        assert!(second >= first + 4096 + STEP && second < NARROW);
        iovas.free(first);
        assert_eq!(iovas.bytes(first), None);
        assert!(iovas.allocate(4096).unwrap() > second);
        // If no range below 4 GiB is large enough, a higher range is used.
        assert!(iovas.allocate(5 << 30).unwrap() >= NARROW);
        for too_much in [0, LAST + 1, u64::MAX] {
            assert_eq!(iovas.allocate(too_much), None, "{too_much:#x}");
        }
    }

    #[test]
    fn iova_freed_range_is_reused_only_when_needed() {
        let valid = 0..=FIRST + 4 * STEP - 1;
        let mut iovas = IovaAllocator::new(Some(vec![valid]));
        assert_eq!(iovas.allocate(STEP), Some(FIRST));
        assert_eq!(iovas.allocate(STEP), Some(FIRST + 2 * STEP));
        assert_eq!(iovas.allocate(STEP), None);
        iovas.free(FIRST);
        assert_eq!(iovas.allocate(STEP), Some(FIRST));
    }

    #[test]
    fn iova_interrupt_range_is_not_allocated() {
        let mut iovas = IovaAllocator::default();
        // A range that does not fit below the interrupt addresses is allocated above them.
        assert_eq!(iovas.allocate(*INTERRUPTS.start()), Some(NARROW));
        while let Some(begin) = iovas.allocate(STEP)
            && begin < NARROW
        {
            assert!(begin + STEP <= *INTERRUPTS.start() || begin > *INTERRUPTS.end());
        }
        // The highest addresses can be allocated, and computations beyond them do not overflow.
        let mut last = IovaAllocator::new(Some(vec![u64::MAX - STEP + 1..=u64::MAX]));
        assert_eq!(last.allocate(STEP), Some(u64::MAX - STEP + 1));
        assert_eq!(last.allocate(4096), None);
    }

    /// Returns true if a range is free. Computed directly from the rules, independently of the search.
    fn is_free(
        begin: u64,
        bytes: u64,
        valid: &[RangeInclusive<u64>],
        taken: &[(u64, u64)],
    ) -> bool {
        let end = begin + bytes - 1;
        begin >= FIRST
            && (bytes < LARGE_PAGE || begin.is_multiple_of(LARGE_PAGE))
            && (begin < NARROW) == (end < NARROW)
            && valid
                .iter()
                .any(|range| range.contains(&begin) && range.contains(&end))
            && taken.iter().all(|(other, length)| {
                begin >= other + length + STEP || begin + bytes + STEP <= *other
            })
    }

    proptest! {
        #[test]
        fn iova_random_allocation_is_consistent(
            steps in prop::collection::vec((any::<bool>(), 1u64..8 * STEP, any::<prop::sample::Index>()), 1..60),
            starts in prop::collection::btree_set(0u64..40, 2..8),
            is_high in any::<bool>(),
        ) {
            // Ranges around the 4 GiB boundary, or at the lowest addresses.
            let base = if is_high { NARROW - 20 * STEP } else { 0 };
            let starts: Vec<u64> = starts.into_iter().map(|step| base + step * STEP).collect();
            let valid: Vec<_> = starts.chunks_exact(2).map(|pair| pair[0]..=pair[1] - 1).collect();
            let mut iovas = IovaAllocator::new(Some(valid.clone()));
            for (is_take, bytes, which) in steps {
                let taken: Vec<_> = iovas.taken().collect();
                if !is_take && !taken.is_empty() {
                    let (begin, bytes) = *which.get(&taken);
                    prop_assert_eq!(iovas.bytes(begin), Some(bytes));
                    iovas.free(begin);
                    prop_assert_eq!(iovas.taken().count(), taken.len() - 1);
                    continue;
                }
                let mut places = (0..40).map(|step| base + step * STEP);
                if let Some(begin) = iovas.allocate(bytes) {
                    prop_assert!(begin % STEP == 0 && is_free(begin, bytes, &valid, &taken));
                } else {
                    prop_assert_eq!(places.find(|place| is_free(*place, bytes, &valid, &taken)), None);
                }
            }
        }

        #[test]
        fn iova_freed_range_is_reused_late(bytes in prop::collection::vec(1u64..(16 << 20), 1..40)) {
            let mut iovas = IovaAllocator::default();
            let mut last = 0;
            // The low addresses have room for several times the total size.
            for bytes in bytes {
                let begin = iovas.allocate(bytes).unwrap();
                prop_assert!(begin > last && begin < NARROW);
                last = begin;
                iovas.free(begin);
            }
        }
    }
}
