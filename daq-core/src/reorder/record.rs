//! Which packets of a frame have arrived: in full for frames that are open or were closed recently, one bit per packet for
//! older frames.

use super::{Geometry, PacketSize};
use crate::frame::KeptFields;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The state of a frame's memory.
pub(super) mod state {
    /// No packet has requested memory.
    pub(in super::super) const UNASSIGNED: u32 = 0;
    /// The frame has a slot.
    pub(in super::super) const ASSIGNED: u32 = 1;
    /// A packet arrived and no slot was free.
    pub(in super::super) const REFUSED: u32 = 2;
    /// A control packet requested to skip the frame, and no later packet has arrived yet. If payload of the frame
    /// arrives before payload of a later frame, the request is cancelled.
    pub(in super::super) const SKIP_REQUESTED: u32 = 3;
    /// The frame intentionally contains no data, but its unit number is used.
    pub(in super::super) const SKIPPED: u32 = 4;
}

/// One frame: open, or closed recently.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) state: AtomicU32,
    pub(super) memory: AtomicPtr<u8>,
    pub(super) arrived: AtomicU32,
    pub(super) time_ns: AtomicU64,
    pub(super) time_clock: AtomicU32,
    /// Number of payload bytes of the frame, if its packets state it; otherwise 0.
    bytes: AtomicUsize,
    /// Flags that the source has set for the frame.
    pub(super) flags: AtomicU32,
    /// Bit `i` is set if a thread stores or has stored kept field `i`.
    kept_claimed: AtomicU32,
    /// Bit `i` is set if kept field `i` is present.
    kept_mask: AtomicU32,
    kept: Box<[AtomicU64]>,
    claimed: Box<[AtomicU64]>,
    present: Box<[AtomicU64]>,
    bad: Box<[AtomicU64]>,
    late: Box<[AtomicU64]>,
    /// Represents the payload when loom checks the code.
    #[cfg(loom)]
    pub(super) canary: Box<[crate::sync::UnsafeCell<u64>]>,
}

impl Record {
    /// Creates the record of a frame of `packets_per_frame` packets that keeps `kept` fields.
    pub(super) fn new(packets_per_frame: u32, kept: usize) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let words = || zeros((packets_per_frame as usize).div_ceil(64));
        Self {
            state: AtomicU32::new(state::UNASSIGNED),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            arrived: AtomicU32::new(0),
            time_ns: AtomicU64::new(0),
            time_clock: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            flags: AtomicU32::new(0),
            kept_claimed: AtomicU32::new(0),
            kept_mask: AtomicU32::new(0),
            kept: zeros(kept),
            claimed: words(),
            present: words(),
            bad: words(),
            late: words(),
            #[cfg(loom)]
            canary: (0..packets_per_frame)
                .map(|_| crate::sync::UnsafeCell::new(0))
                .collect(),
        }
    }

    /// Clears the record. Must be called only while no writer can access it.
    pub(super) fn reset(&self) {
        self.state.store(state::UNASSIGNED, Ordering::Relaxed);
        self.memory.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.arrived.store(0, Ordering::Relaxed);
        self.time_clock.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.kept_claimed.store(0, Ordering::Relaxed);
        self.kept_mask.store(0, Ordering::Relaxed);
        for word in self
            .claimed
            .iter()
            .chain(&self.present)
            .chain(&self.bad)
            .chain(&self.late)
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a packet of `size` can belong to the closed frame.
    pub(super) fn matches(&self, size: PacketSize) -> bool {
        let known = self.bytes.load(Ordering::Acquire);
        known == 0 || size.frame.is_none_or(|bytes| bytes == known)
    }

    /// Returns whether a packet of `size` can belong to the open frame. The first packet that states the size of the frame sets
    /// it.
    #[inline]
    pub(super) fn admits(&self, size: PacketSize) -> bool {
        let Some(bytes) = size.frame else { return true };
        let claimed = self
            .bytes
            .compare_exchange(0, bytes, Ordering::AcqRel, Ordering::Acquire);
        claimed.map_or_else(|known| known == bytes, |_| true)
    }

    /// Returns the number of payload bytes of the frame.
    pub(super) fn bytes(&self, geometry: &Geometry) -> usize {
        match self.bytes.load(Ordering::Acquire) {
            0 => geometry.frame_bytes,
            bytes => bytes,
        }
    }

    /// Returns the number of packets of the frame.
    pub(super) fn packets(&self, geometry: &Geometry) -> u32 {
        geometry.packets_in(self.bytes(geometry))
    }

    /// Returns whether a kept field is still absent.
    #[inline]
    pub(super) fn lacks_fields(&self) -> bool {
        self.kept_mask.load(Ordering::Relaxed).count_ones() as usize != self.kept.len()
    }

    /// Stores the fields that are still absent. If several threads do so at once, each field has the value of one of them, and
    /// the fields of one packet stay together.
    pub(super) fn keep(&self, fields: &KeptFields) {
        let mask = u32::from(fields.mask());
        let fresh = mask & !self.kept_claimed.fetch_or(mask, Ordering::Relaxed);
        for (i, (word, value)) in self.kept.iter().zip(fields.values()).enumerate() {
            if fresh >> i & 1 == 1 {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.kept_mask.fetch_or(fresh, Ordering::Release);
    }

    /// Returns the kept fields. Must be called only while no writer can access the record.
    pub(super) fn kept(&self) -> KeptFields {
        let mask = self.kept_mask.load(Ordering::Acquire);
        let mut kept = KeptFields::default();
        for (i, word) in self.kept.iter().enumerate() {
            if mask >> i & 1 == 1 {
                kept.set(i, word.load(Ordering::Relaxed));
            }
        }
        kept
    }

    #[inline]
    pub(super) fn is_present(&self, index: u32) -> bool {
        bit(&self.present, index)
    }

    pub(super) fn is_bad(&self, index: u32) -> bool {
        bit(&self.bad, index)
    }

    /// Returns the bitmap of packets that arrived.
    pub(super) fn present(&self) -> impl Iterator<Item = u64> {
        self.present.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Claims a packet for writing. Returns false if it was already claimed.
    #[inline]
    pub(super) fn claim(&self, index: u32, exclusive: bool) -> bool {
        if exclusive {
            !self.is_present(index)
        } else {
            set(&self.claimed, index, false)
        }
    }

    /// Marks a packet as arrived. Returns false if it had already arrived.
    #[inline]
    pub(super) fn mark_present(&self, index: u32, exclusive: bool) -> bool {
        let fresh = set(&self.present, index, exclusive);
        if fresh {
            add(&self.arrived, 1, exclusive);
        }
        fresh
    }

    /// Replaces a pending skip request with `state`.
    pub(super) fn resolve_skip_request(&self, state: u32) {
        let _ = self.state.compare_exchange(
            state::SKIP_REQUESTED,
            state,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Marks a packet as arrived damaged.
    pub(super) fn mark_bad(&self, index: u32, exclusive: bool) -> bool {
        set(&self.bad, index, exclusive)
    }

    /// Marks a packet as arrived after its frame was closed. Returns false if it was already marked.
    pub(super) fn mark_late(&self, index: u32, exclusive: bool) -> bool {
        set(&self.late, index, exclusive)
    }

    /// Returns whether any packet of the frame has arrived.
    pub(super) fn has_payload(&self) -> bool {
        let is_bad = |word: &AtomicU64| word.load(Ordering::Acquire) != 0;
        self.arrived.load(Ordering::Acquire) > 0 || self.bad.iter().any(is_bad)
    }

    /// Counts the packets in `range` that did not arrive in time. Returns the number of late packets, and the number of
    /// packets that were damaged but not late.
    pub(super) fn dispositions(&self, range: std::ops::Range<u32>) -> (u64, u64) {
        let (mut late, mut bad) = (0, 0);
        for index in range.filter(|index| !self.is_present(*index)) {
            if bit(&self.late, index) {
                late += 1;
            } else if self.is_bad(index) {
                bad += 1;
            }
        }
        (late, bad)
    }
}

#[inline]
fn bit(words: &[AtomicU64], i: u32) -> bool {
    words[i as usize / 64].load(Ordering::Acquire) >> (i % 64) & 1 == 1
}

/// Sets a bit. Returns whether it was clear. `exclusive` is true if only this thread writes the words.
#[inline]
fn set(words: &[AtomicU64], i: u32, exclusive: bool) -> bool {
    let word = &words[i as usize / 64];
    let mask = 1 << (i % 64);
    let old = if exclusive {
        let old = word.load(Ordering::Relaxed);
        word.store(old | mask, Ordering::Release);
        old
    } else {
        word.fetch_or(mask, Ordering::AcqRel)
    };
    old & mask == 0
}

#[inline]
fn add(word: &AtomicU32, n: u32, exclusive: bool) {
    if exclusive {
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Release);
    } else {
        word.fetch_add(n, Ordering::AcqRel);
    }
}
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
        let words = packets_per_frame.div_ceil(64) as usize;
        for (i, bits) in (0..).zip(present.take(words)) {
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
