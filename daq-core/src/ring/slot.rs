//! Frame metadata and `present` bitmaps of all slots, in host memory regardless of where the payload is.

use super::state::Records;
use crate::frame::{Clock, Flags, FrameMeta, KeptFields, PacketSizes, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of 8-byte words of a record before its bitmap.
const HEAD: usize = 7;
/// Number of words in a cache line; each record starts on a new cache line.
const LINE: usize = 8;

/// One record per slot.
///
/// ```text
///   | head | bitmap of present packets | mask of present fields, kept fields: only if the ring has kept fields |
/// ```
/// The words are atomics with relaxed accesses, because the ring's positions provide the ordering. A reader that may be
/// overrun can read words while they are written. It detects this afterwards.
#[derive(Debug)]
pub(super) struct Slots {
    words: Records,
    stride: usize,
    bitmap: usize,
    /// Number of kept fields.
    kept: usize,
}

impl Slots {
    /// Uses `words`, which are zero and have [`Slots::bytes`] bytes.
    pub(super) const fn new(words: Records, packets_per_frame: u32, kept: usize) -> Self {
        Self {
            words,
            stride: Self::stride_words(packets_per_frame, kept),
            bitmap: Self::bitmap_words(packets_per_frame),
            kept,
        }
    }

    /// Returns the size of `slots` records in bytes.
    pub(super) const fn bytes(slots: usize, packets_per_frame: u32, kept: usize) -> usize {
        slots * Self::stride_words(packets_per_frame, kept) * 8
    }

    const fn bitmap_words(packets_per_frame: u32) -> usize {
        (packets_per_frame as usize).div_ceil(64)
    }

    const fn stride_words(packets_per_frame: u32, kept: usize) -> usize {
        (HEAD + Self::bitmap_words(packets_per_frame) + Self::kept_words(kept))
            .next_multiple_of(LINE)
    }

    /// Returns the number of words of `kept` fields with their mask.
    const fn kept_words(kept: usize) -> usize {
        if kept > 0 { 1 + kept } else { 0 }
    }

    /// Returns the number of words of a record.
    const fn record_words(&self) -> usize {
        HEAD + self.bitmap + Self::kept_words(self.kept)
    }

    /// Returns the words of the record of `slot`.
    fn record(&self, slot: usize) -> &[AtomicU64] {
        &self.words[slot * self.stride..][..self.record_words()]
    }

    /// Writes the record of `slot`; only the producer that reserved the slot calls this.
    pub(super) fn write(&self, slot: usize, meta: &FrameMeta, present: impl Iterator<Item = u64>) {
        let (words, rest) = self.record(slot).split_at(HEAD);
        let (bitmap, kept) = rest.split_at(self.bitmap);
        let head = [
            meta.sequence,
            u64::from(meta.epoch) | u64::from(meta.flags.0) << 32,
            meta.timestamp.ns,
            meta.timestamp.clock as u64 | u64::from(meta.packet_sizes.parts) << 32,
            meta.length as u64,
            u64::from(meta.packets_per_frame) | u64::from(meta.arrived) << 32,
            u64::from(meta.packet_sizes.first) | u64::from(meta.packet_sizes.rest) << 32,
        ];
        for (word, value) in words.iter().zip(head) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in bitmap.iter().zip(present) {
            word.store(value, Ordering::Relaxed);
        }
        if let [mask, values @ ..] = kept {
            mask.store(meta.kept.mask().into(), Ordering::Relaxed);
            for (word, value) in values.iter().zip(meta.kept.values()) {
                word.store(*value, Ordering::Relaxed);
            }
        }
    }

    /// Returns the payload length in the record of `slot`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value was stored from a usize"
    )]
    pub(super) fn length(&self, slot: usize) -> usize {
        self.words[slot * self.stride + 4].load(Ordering::Relaxed) as usize
    }

    /// Returns the epoch and the number of the frame in the record of `slot`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the epoch is the lower half of a word"
    )]
    pub(super) fn number(&self, slot: usize) -> (u32, u64) {
        let word = |i: usize| self.words[slot * self.stride + i].load(Ordering::Relaxed);
        (word(1) as u32, word(0))
    }

    /// Whether records of `other` have the same layout, so that they can be copied word by word.
    pub(super) const fn has_shape_of(&self, other: &Self) -> bool {
        self.bitmap == other.bitmap && self.kept == other.kept
    }

    /// Copies the record of slot `from` of `other`, which must have the same shape.
    pub(super) fn copy(&self, slot: usize, other: &Self, from: usize) {
        for (word, source) in self.record(slot).iter().zip(other.record(from)) {
            word.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Reads the metadata of `slot`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "fields of 32 bits are extracted from words of 64 bits"
    )]
    pub(super) fn read(&self, slot: usize) -> FrameMeta {
        let word = |i: usize| self.words[slot * self.stride + i].load(Ordering::Relaxed);
        FrameMeta {
            sequence: word(0),
            epoch: word(1) as u32,
            flags: Flags((word(1) >> 32) as u32),
            timestamp: Timestamp {
                ns: word(2),
                clock: Clock::from_u8(word(3) as u8),
            },
            length: word(4) as usize,
            packets_per_frame: word(5) as u32,
            arrived: (word(5) >> 32) as u32,
            packet_sizes: PacketSizes {
                first: word(6) as u32,
                rest: (word(6) >> 32) as u32,
                parts: (word(3) >> 32) as u32,
            },
            kept: if self.kept == 0 {
                KeptFields::default()
            } else {
                self.kept(slot)
            },
        }
    }

    /// Reads the kept fields of `slot`.
    fn kept(&self, slot: usize) -> KeptFields {
        let mut kept = KeptFields::default();
        if let [mask, values @ ..] = &self.record(slot)[HEAD + self.bitmap..] {
            let mask = mask.load(Ordering::Relaxed);
            for (i, value) in values.iter().enumerate() {
                if mask >> i & 1 == 1 {
                    kept.set(i, value.load(Ordering::Relaxed));
                }
            }
        }
        kept
    }

    /// Returns the bitmap words of `slot`.
    pub(super) fn bitmap(&self, slot: usize) -> &[AtomicU64] {
        &self.words[slot * self.stride + HEAD..][..self.bitmap]
    }

    /// Returns the distance between the starts of neighbouring records in bytes.
    pub(super) const fn stride_bytes(&self) -> usize {
        self.stride * 8
    }

    /// Returns the number of words in a bitmap.
    pub(super) fn bitmap_len(&self) -> usize {
        self.bitmap
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::State;
    use super::*;

    fn slots(slots: usize, packets_per_frame: u32, kept: usize) -> Slots {
        State::new(slots, packets_per_frame, kept).unwrap().slots
    }

    #[test]
    fn slot_records_round_trip() {
        let slots = self::slots(3, 70, 2);
        let meta = FrameMeta {
            sequence: u64::MAX,
            epoch: 7,
            flags: Flags::INCOMPLETE.with(Flags::EPOCH),
            timestamp: Timestamp {
                ns: 123,
                clock: Clock::Kernel,
            },
            length: 4096,
            packets_per_frame: 70,
            arrived: 69,
            packet_sizes: PacketSizes {
                first: 40,
                rest: 60,
                parts: 2,
            },
            kept: KeptFields::default().with(1, u64::MAX),
        };
        slots.write(1, &meta, [u64::MAX, 0x1f].into_iter());
        assert_eq!(slots.read(1), meta);
        assert_eq!(slots.read(0), FrameMeta::default());
        let bitmap: Vec<_> = slots
            .bitmap(1)
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        assert_eq!(bitmap, [u64::MAX, 0x1f]);
        let copies = self::slots(2, 128, 2);
        assert!(copies.has_shape_of(&slots));
        copies.copy(0, &slots, 1);
        assert_eq!(copies.read(0), meta);
        assert!(!self::slots(2, 70, 0).has_shape_of(&slots));
    }

    #[test]
    fn kept_fields_use_no_memory_in_rings_without_them() {
        assert_eq!(Slots::bytes(1, 64, 0), 64);
        assert_eq!(Slots::bytes(1, 64, 1), 128);
        let slots = self::slots(1, 1, 0);
        let meta = FrameMeta {
            kept: KeptFields::default().with(0, 1),
            ..FrameMeta::default()
        };
        slots.write(0, &meta, std::iter::empty());
        assert_eq!(slots.read(0).kept, KeptFields::default());
    }
}
