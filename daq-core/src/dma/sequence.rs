//! Sequence numbers in the frames of a DMA engine: where the FPGA design writes them, and how they are counted.
//!
//! A DMA engine keeps the order of its input. So a number other than the next one shows that frames were lost before
//! the engine, or that the design restarted.

use std::ops::Range;

/// Describes where each frame contains its number, and how the numbers are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSequence {
    /// Byte offset of the number in the frame.
    pub offset: usize,
    /// Size of the number in bytes, 1 to 8.
    pub bytes: usize,
    /// Whether the first byte is the most significant one.
    pub big_endian: bool,
    /// Number of valid bits, 2 to 64: the lowest bits of the number.
    pub bits: u32,
    /// The increment from frame to frame, at least 1.
    pub step: u64,
    /// Maximum number of frames that may be missing in a row in addition to the frames that are known to be lost, at
    /// most half the number range. A longer gap counts as a restart, not as a loss.
    pub max_gap: u64,
    last: Option<u64>,
    doubted: Option<Doubt>,
    /// Whether the next number is accepted regardless of its value.
    is_fresh: bool,
    position: u64,
}

/// A number that did not continue the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Doubt {
    number: u64,
    /// Number of frames skipped before the number.
    skipped: u64,
    /// Number of frames known to be lost from the last accepted number up to and including the frame of this number.
    lost: u64,
}

/// The meaning of a frame's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame is the next one.
    Next,
    /// This many frames are missing before the frame.
    Gap(u64),
    /// The number does not continue the sequence: after a backward step, a partial step, or a gap that is too long.
    /// Either the number is damaged or the numbering restarts with this number; the next number decides.
    Doubtful,
    /// The numbering has restarted: with the first frame, or with the doubtful frame that this frame continues.
    Restart {
        /// Number of frames skipped forward before the restart; 0 if unknown.
        skipped: u64,
        /// Number of frames missing between the doubtful frame and this frame.
        missing: u64,
    },
}

impl FrameSequence {
    /// Describes numbers of `bytes` bytes at `offset`, all of whose bits are valid, incremented by one per frame.
    ///
    /// ```
    /// use daq_core::dma::{FrameSequence, Step};
    /// let mut numbers = FrameSequence::new(0, 1);
    /// assert_eq!(numbers.next(254, 0), Step::Restart { skipped: 0, missing: 0 });
    /// assert_eq!(numbers.next(255, 0), Step::Next);
    /// assert_eq!(numbers.next(2, 0), Step::Gap(2));
    /// // One damaged number is not a restart, but two consecutive numbers are.
    /// assert_eq!(numbers.next(200, 0), Step::Doubtful);
    /// assert_eq!(numbers.next(4, 0), Step::Gap(1));
    /// assert_eq!(numbers.next(200, 0), Step::Doubtful);
    /// assert_eq!(numbers.next(201, 0), Step::Restart { skipped: 0, missing: 0 });
    /// ```
    #[expect(clippy::cast_possible_truncation, reason = "`bytes` is 1 to 8")]
    pub const fn new(offset: usize, bytes: usize) -> Self {
        Self {
            offset,
            bytes,
            big_endian: false,
            bits: 8 * bytes as u32,
            step: 1,
            max_gap: 1 << 16,
            last: None,
            doubted: None,
            is_fresh: true,
            position: 0,
        }
    }

    /// Returns the byte range of the number in a frame.
    pub const fn extent(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }

    /// Returns the number in the bytes of its [extent](Self::extent). Only the first eight bytes are used.
    pub fn read(&self, bytes: &[u8]) -> u64 {
        let add = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        let bytes = bytes.iter().take(8);
        let value = if self.big_endian {
            bytes.fold(0, add)
        } else {
            bytes.rev().fold(0, add)
        };
        value & self.mask()
    }

    /// Processes the number of the next frame. At least `lost` frames since the last accepted number are known to be
    /// lost, so a gap of that length is always accepted, over any number of wraps. The returned gap includes these frames.
    ///
    /// The gap is shorter than `lost` if `lost` includes transfers that the design did not number, such as the second
    /// part of a packet that is longer than a slot.
    pub fn next(&mut self, number: u64, lost: u64) -> Step {
        let number = number & self.mask();
        let (ahead, skipped) = match self.last {
            Some(last) => self.ahead(last, number, lost),
            None => (None, 0),
        };
        if let Some(frames) = ahead {
            self.position = self.position.wrapping_add(frames);
            self.believe(number);
            return match frames {
                1 => Step::Next,
                frames => Step::Gap(frames - 1),
            };
        }
        let begun = match self.doubted {
            _ if self.is_fresh => Some((skipped, 0)),
            Some(doubt) => {
                let (ahead, _) = self.ahead(doubt.number, number, lost.saturating_sub(doubt.lost));
                ahead.map(|frames| (doubt.skipped, frames - 1))
            }
            None => None,
        };
        let Some((skipped, missing)) = begun else {
            // The doubtful frame itself is one of the frames that are lost since the last accepted number.
            self.doubted = Some(Doubt {
                number,
                skipped,
                lost: lost.saturating_add(1),
            });
            return Step::Doubtful;
        };
        self.position = number / self.step.max(1);
        self.believe(number);
        Step::Restart { skipped, missing }
    }

    /// Describes the gaps shorter than `max_gap` that the numbers cannot show, because there are too few of them; `None`
    /// if they show all.
    pub fn hidden_gap(&self) -> Option<String> {
        let visible = self.mask() / 2 / self.step.max(1);
        (visible <= self.max_gap).then(|| {
            format!(
                "the sequence number of {} bits repeats: a loss of {visible} or more frames in a row before the DMA engine cannot \
                 be counted (losses after the engine are always counted)",
                self.bits
            )
        })
    }

    /// Declares that the design may have restarted, so the next number is accepted regardless of its value.
    pub const fn interrupt(&mut self) {
        self.is_fresh = true;
    }

    const fn believe(&mut self, number: u64) {
        self.last = Some(number);
        self.doubted = None;
        self.is_fresh = false;
    }

    /// Returns the number of frames from `last` to `number`, and the number of skipped frames if the step is forward.
    /// The number of frames is `None` if `number` does not continue from `last`.
    ///
    /// Numbers wrap, so the result is the value that is nearest to a gap of `lost` frames. It differs from `lost` by at
    /// most `max_gap` frames.
    fn ahead(&self, last: u64, number: u64, lost: u64) -> (Option<u64>, u64) {
        let step = self.step.max(1);
        // The number of the last lost frame.
        let base = last.wrapping_add(step.wrapping_mul(lost)) & self.mask();
        let ahead = number.wrapping_sub(base) & self.mask();
        let back = base.wrapping_sub(number) & self.mask();
        // The shorter direction around the wrap decides whether the step is forward.
        if ahead == 0 || ahead > self.mask() / 2 {
            let frames = lost.saturating_sub(back / step);
            let goes_on = back.is_multiple_of(step) && back / step <= self.max_gap && frames > 0;
            return (goes_on.then_some(frames), 0);
        }
        let extra = ahead / step;
        let goes_on = ahead.is_multiple_of(step) && extra.saturating_sub(1) <= self.max_gap;
        let frames = extra.saturating_add(lost);
        (goes_on.then_some(frames), frames.saturating_sub(1))
    }

    /// Returns the position of the last accepted frame: the device's number divided by `step`, extended to 64 bits so
    /// that it does not wrap.
    pub const fn position(&self) -> u64 {
        self.position
    }

    const fn mask(&self) -> u64 {
        if self.bits >= 64 {
            u64::MAX
        } else {
            (1 << self.bits) - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_field_is_read_in_declared_format() {
        let little = FrameSequence {
            bits: 12,
            ..FrameSequence::new(4, 2)
        };
        let big = FrameSequence {
            big_endian: true,
            ..little.clone()
        };
        assert_eq!(little.extent(), 4..6);
        assert_eq!(little.read(&[0x34, 0xf2]), 0x234);
        assert_eq!(big.read(&[0xf2, 0x34]), 0x234);
    }

    const fn begins(skipped: u64, missing: u64) -> Step {
        Step::Restart { skipped, missing }
    }

    #[test]
    fn step_beyond_max_gap_opens_epoch_after_confirmation() {
        let mut numbers = FrameSequence {
            step: 4,
            max_gap: 10,
            ..FrameSequence::new(0, 4)
        };
        assert_eq!(numbers.next(40, 0), begins(0, 0));
        assert_eq!(numbers.position(), 10);
        assert_eq!(numbers.next(44, 0), Step::Next);
        assert_eq!(
            numbers.next(46, 0),
            Step::Doubtful,
            "the number is inside a frame"
        );
        assert_eq!(numbers.next(46, 0), Step::Doubtful, "the same number again");
        assert_eq!(numbers.next(54, 0), begins(0, 1));
        assert_eq!(numbers.next(98, 0), Step::Gap(10));
        assert_eq!(numbers.next(146, 0), Step::Doubtful, "too far");
        assert_eq!(numbers.next(150, 0), begins(11, 0));
        assert_eq!(numbers.next(2, 0), Step::Doubtful, "the number steps back");
        assert_eq!(
            numbers.next(158, 0),
            Step::Gap(1),
            "the previous number was damaged"
        );
        assert_eq!(
            numbers.next(206, 11),
            Step::Gap(11),
            "11 lost frames were reported"
        );
        numbers.interrupt();
        assert_eq!(numbers.next(4, 0), begins(0, 0));
        assert_eq!(numbers.position(), 1);
    }

    #[test]
    fn backward_step_of_narrow_sequence_is_not_gap() {
        let mut numbers = FrameSequence::new(0, 1);
        numbers.next(100, 0);
        assert_eq!(numbers.next(99, 0), Step::Doubtful);
        assert_eq!(numbers.next(227, 0), Step::Gap(126));
    }

    #[test]
    fn known_losses_count_over_any_number_of_wraps() {
        for bits in 2..=16 {
            let mut numbers = FrameSequence {
                bits,
                ..FrameSequence::new(0, 2)
            };
            numbers.next(1, 0);
            assert_eq!(numbers.next(60_002, 60_000), Step::Gap(60_000), "{bits}");
            assert_eq!(numbers.position(), 60_002);
        }
        // 256 numbers: 3 frames are missing in addition to the known 1000.
        let mut numbers = FrameSequence::new(0, 1);
        numbers.next(0, 0);
        assert_eq!(numbers.next(1004, 1000), Step::Gap(1003));
        // Two of the transfers that count as lost had no number.
        assert_eq!(numbers.next(1004 + 999, 1000), Step::Gap(998));
        // The restart is behind a wrap too, and 300 more frames are lost after the first new number.
        numbers.max_gap = 10;
        assert_eq!(numbers.next(100, 0), Step::Doubtful);
        assert_eq!(numbers.next(401, 301), begins(0, 300));
    }

    proptest! {
        /// Every omitted frame must be counted, over any number of wraps. The first part of a gap is known to be lost,
        /// the rest is seen only in the number.
        #[test]
        fn sequence_accounts_for_every_frame(
            bits in 2_u32..=64,
            step in 1_u64..5,
            first: u64,
            gaps in proptest::collection::vec((0_u64..20, 0_u64..=300, 0_u8..3), 1..400),
        ) {
            let half = (u64::MAX >> (64 - bits)) / 2;
            let step = step.min(half);
            let mut numbers = FrameSequence {
                bits,
                step,
                max_gap: 20,
                ..FrameSequence::new(0, 8)
            };
            // Numbers advance by whole steps from `first`, and wrap at their number of bits.
            let mut number = first;
            prop_assert_eq!(numbers.next(number, 0), begins(0, 0));
            let start = numbers.position();
            let mut frames = 0_u64;
            for (unknown, percent, known) in gaps {
                // At most half of the number range may be missing without being known.
                let unknown = unknown.min(half / step - 1);
                let known = match known {
                    0 => 0,
                    // Up to three times the number range.
                    _ => (percent << bits.min(40)) / 100,
                };
                let gap = known + unknown;
                number = number.wrapping_add(step.wrapping_mul(gap + 1));
                frames = frames.wrapping_add(gap + 1);
                let counted = numbers.next(number, known);
                prop_assert_eq!(counted, if gap == 0 { Step::Next } else { Step::Gap(gap) });
                prop_assert_eq!(numbers.position(), start.wrapping_add(frames));
            }
        }
    }
}
