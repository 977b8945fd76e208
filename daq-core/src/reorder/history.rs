//! Which packets of closed frames arrived. This distinguishes a very late packet from a restarted sender.

use crate::sync::{AtomicU64, Ordering};

/// Number of packets remembered, a power of two. Small under loom, where each one multiplies the states.
#[cfg(not(loom))]
const PLACES: u64 = 1 << 20;
#[cfg(loom)]
const PLACES: u64 = 1 << 7;

/// One bit per packet, indexed by position. The sequencer writes it; every thread reads it.
#[derive(Debug)]
pub(super) struct History {
    words: Box<[AtomicU64]>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            words: (0..PLACES / 64).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[(position % PLACES / 64) as usize]
    }

    /// Replaces the bits `mask` of the word that holds `position`.
    #[inline]
    fn replace(&self, position: u64, mask: u64, bits: u64) {
        let word = self.word(position);
        let others = word.load(Ordering::Relaxed) & !mask;
        word.store(others | (bits & mask), Ordering::Relaxed);
    }

    /// Records a closed frame: its first position, its number of packets, and which of them arrived.
    #[inline]
    pub(super) fn record(&self, first: u64, places: u32, present: impl Iterator<Item = u64>) {
        let end = first + u64::from(places);
        for (i, bits) in (0..).zip(present) {
            let from: u64 = first + 64 * i;
            let count = (end - from).min(64);
            let valid = u64::MAX >> (64 - count);
            let shift = from % 64;
            self.replace(from, valid << shift, bits << shift);
            if shift + count > 64 {
                let low = 64 - shift;
                self.replace(from + low, valid >> low, bits >> low);
            }
        }
    }

    /// Records that nothing arrived for the positions `first..end`.
    pub(super) fn record_missing(&self, first: u64, end: u64) {
        let mut from = first.max(end.saturating_sub(PLACES));
        while from < end {
            let next = (from / 64 + 1) * 64;
            let mask = u64::MAX << (from % 64) & u64::MAX >> (next - next.min(end));
            self.replace(from, mask, 0);
            from = next;
        }
    }

    /// Whether the packet at `position` was closed as missing. `front` is the first position of the oldest open
    /// frame. False for a packet that arrived, and for one too old to be remembered.
    pub(super) fn is_missing(&self, position: u64, front: u64) -> bool {
        // Packets of the frame that is being closed share words with the oldest remembered ones.
        position < front
            && front - position < PLACES - 64
            && self.word(position).load(Ordering::Relaxed) >> (position % 64) & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn history_of_closed_frames_is_kept_per_packet_slot(places in 1_u32..200, start in 0_u64..1000, arrived in proptest::collection::vec(any::<bool>(), 1..2000)) {
            let history = History::new();
            let frames = arrived.chunks_exact(places as usize);
            let first = PLACES - 500 + start;
            for (i, frame) in (0..).zip(frames.clone()) {
                let mut words = vec![0_u64; frame.len().div_ceil(64)];
                for (place, _) in frame.iter().enumerate().filter(|(_, arrived)| **arrived) {
                    words[place / 64] |= 1 << (place % 64);
                }
                history.record(first + i * u64::from(places), places, words.into_iter());
            }
            let count = frames.len() * places as usize;
            let front = first + count as u64;
            for (position, arrived) in (first..front).zip(&arrived) {
                prop_assert_eq!(history.is_missing(position, front), !arrived, "{}", position);
            }
            history.record_missing(first + 3, front.max(first + 3));
            for position in first + 3..front {
                prop_assert!(history.is_missing(position, front));
            }
        }
    }
}
