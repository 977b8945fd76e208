//! Which addresses a device is to know memory by, where the choice is ours.

use std::collections::BTreeMap;

/// The first address: low ones are where mistakes point.
const FIRST: u64 = 0x1000_0000;
/// Where addresses end that an engine of 32 bits knows.
const NARROW: u64 = 1 << 32;
/// Where addresses end that the narrowest IOMMU translates, of 39 bits.
const END: u64 = 1 << 39;
/// Pieces begin at multiples of this and leave at least as much between them, so that a device that runs past the end of
/// one meets nothing.
const STEP: u64 = 1 << 20;

/// The addresses that are taken.
///
/// Those below 4 GiB come first, for the sake of engines that know no others, and each is used again as late as can be:
/// what is still aimed at memory that was taken away then meets nothing, too.
#[derive(Debug)]
pub struct Iovas {
    taken: BTreeMap<u64, u64>,
    next: u64,
}

impl Default for Iovas {
    fn default() -> Self {
        Self {
            taken: BTreeMap::new(),
            next: FIRST,
        }
    }
}

impl Iovas {
    /// Addresses for `bytes` bytes; `None` if there are none.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let room = bytes.checked_next_multiple_of(STEP)?.checked_add(STEP)?;
        let address = [(self.next, NARROW), (FIRST, NARROW), (NARROW, END)]
            .into_iter()
            .find_map(|(from, end)| self.find(from, end, room))?;
        self.taken.insert(address, room);
        if address + room <= NARROW {
            self.next = address + room;
        }
        Some(address)
    }

    /// Gives back what began at `address`.
    pub fn give(&mut self, address: u64) {
        self.taken.remove(&address);
    }

    /// The first `room` free addresses between `from` and `end`.
    fn find(&self, from: u64, end: u64, room: u64) -> Option<u64> {
        let mut at = from;
        if let Some((before, room)) = self.taken.range(..from).next_back() {
            at = at.max(before + room);
        }
        for (start, taken) in self.taken.range(from..end) {
            if start.saturating_sub(at) >= room {
                break;
            }
            at = start + taken;
        }
        (at.checked_add(room)? <= end).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn low_addresses_come_first_and_are_used_again_last() {
        let mut iovas = Iovas::default();
        let first = iovas.take(4096).unwrap();
        let second = iovas.take(4096).unwrap();
        assert!(first >= FIRST && second >= first + STEP && second < NARROW);
        iovas.give(first);
        assert!(iovas.take(4096).unwrap() > second);
        // Where nothing fits below, there is more above.
        assert!(iovas.take(5 << 30).unwrap() >= NARROW);
        assert_eq!(iovas.take(u64::MAX), None);
        assert_eq!(iovas.take(END), None);
    }

    proptest! {
        #[test]
        fn what_is_taken_never_overlaps(steps in prop::collection::vec((any::<bool>(), 1_u64..(3 << 30)), 1..60)) {
            let mut iovas = Iovas::default();
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (gives, bytes) in steps {
                if gives && !held.is_empty() {
                    let (address, _) = held.swap_remove(usize::try_from(bytes).unwrap() % held.len());
                    iovas.give(address);
                    continue;
                }
                if let Some(address) = iovas.take(bytes) {
                    for (start, length) in &held {
                        prop_assert!(address >= start + length + STEP || address + bytes + STEP <= *start);
                    }
                    held.push((address, bytes));
                }
            }
        }
    }
}
