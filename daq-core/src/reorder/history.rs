//! Records which packets of closed frames arrived, to distinguish a very late packet from a restarted sender.

use crate::sync::{AtomicU64, Ordering};

/// Number of packets that are remembered, a power of two. It is small under loom, where each packet multiplies the
/// number of states.
#[cfg(not(loom))]
const HISTORY_PACKETS: u64 = 1 << 20;
#[cfg(loom)]
const HISTORY_PACKETS: u64 = 1 << 7;

/// One bit per packet, indexed by position. The sequencer writes it; every thread reads it.
#[derive(Debug)]
pub(super) struct History {
    words: Box<[AtomicU64]>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            words: (0..HISTORY_PACKETS / 64)
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[(position % HISTORY_PACKETS / 64) as usize]
    }

    /// Replaces the bits `mask` of the word that contains `position`.
    #[inline]
    fn replace(&self, position: u64, mask: u64, bits: u64) {
        let word = self.word(position);
        let others = word.load(Ordering::Relaxed) & !mask;
        word.store(others | (bits & mask), Ordering::Relaxed);
    }

    /// Records a closed frame: its first position, its number of packets, and the packets that arrived.
    #[inline]
    pub(super) fn record(
        &self,
        first: u64,
        packets_per_frame: u32,
        present: impl Iterator<Item = u64>,
    ) {
        let end = first + u64::from(packets_per_frame);
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

    /// Records that no packet arrived at the positions `first..end`.
    pub(super) fn record_missing(&self, first: u64, end: u64) {
        let mut from = first.max(end.saturating_sub(HISTORY_PACKETS));
        while from < end {
            let next = (from / 64 + 1) * 64;
            let mask = u64::MAX << (from % 64) & u64::MAX >> (next - next.min(end));
            self.replace(from, mask, 0);
            from = next;
        }
    }

    /// Returns whether the packet at `position` was closed as missing. `front` is the first position of the oldest open
    /// frame. Returns false for packets that arrived and for packets too old to be remembered.
    pub(super) fn is_missing(&self, position: u64, front: u64) -> bool {
        // Packets of the frame that is being closed may share a word with the oldest remembered packets.
        position < front
            && front - position < HISTORY_PACKETS - 64
            && self.word(position).load(Ordering::Relaxed) >> (position % 64) & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn history_of_closed_frames_is_kept_per_packet_slot(packets_per_frame in 1_u32..200, start in 0_u64..1000, arrived in proptest::collection::vec(any::<bool>(), 1..2000)) {
            let history = History::new();
            let frames = arrived.chunks_exact(packets_per_frame as usize);
            let first = HISTORY_PACKETS - 500 + start;
            for (i, frame) in (0..).zip(frames.clone()) {
                let mut words = vec![0_u64; frame.len().div_ceil(64)];
                for (index, _) in frame.iter().enumerate().filter(|(_, arrived)| **arrived) {
                    words[index / 64] |= 1 << (index % 64);
                }
                history.record(first + i * u64::from(packets_per_frame), packets_per_frame, words.into_iter());
            }
            let count = frames.len() * packets_per_frame as usize;
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
