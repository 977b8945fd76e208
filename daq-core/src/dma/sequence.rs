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
    /// Number of valid bits, 1 to 64: the lowest bits of the number.
    pub bits: u32,
    /// The increment from frame to frame, at least 1.
    pub step: u64,
    /// Maximum number of frames that may be missing in a row, at most half the number range. A longer gap counts as a
    /// restart, not as a loss.
    pub max_gap: u64,
    last: Option<u64>,
    /// A number that did not continue the sequence, and the number of frames skipped before it.
    doubted: Option<(u64, u64)>,
    /// Whether the next number is accepted regardless of its value.
    is_fresh: bool,
    position: u64,
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

    /// Processes the number of the next frame. `lost` frames before it are known to be lost, so a gap of that length is
    /// always accepted.
    pub fn next(&mut self, number: u64, lost: u64) -> Step {
        let number = number & self.mask();
        let max = self.max_gap.max(lost);
        let (ahead, skipped) = match self.last {
            Some(last) => self.ahead(last, number, max),
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
            Some((doubted, skipped)) => {
                let (ahead, _) = self.ahead(doubted, number, max);
                ahead.map(|frames| (skipped, frames - 1))
            }
            None => None,
        };
        let Some((skipped, missing)) = begun else {
            self.doubted = Some((number, skipped));
            return Step::Doubtful;
        };
        self.position = number / self.step.max(1);
        self.believe(number);
        Step::Restart { skipped, missing }
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

    /// Returns the number of frames from `last` to `number`, if the gap is at most `max` frames, and the number of
    /// skipped frames, if the step is forward.
    fn ahead(&self, last: u64, number: u64, max: u64) -> (Option<u64>, u64) {
        let step = self.step.max(1);
        let ahead = number.wrapping_sub(last) & self.mask();
        let frames = ahead / step;
        // The shorter direction around the wrap decides whether the step is forward.
        if ahead == 0 || ahead > self.mask() / 2 {
            return (None, 0);
        }
        let goes_on = ahead.is_multiple_of(step) && frames - 1 <= max;
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

    proptest! {
        /// Every omitted frame must be counted, over any number of wraps.
        #[test]
        fn sequence_accounts_for_every_frame(
            bits in 8_u32..=64,
            step in 1_u64..5,
            first: u64,
            gaps in proptest::collection::vec(0_u64..20, 1..400),
        ) {
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
            let mut frames = 0;
            for gap in gaps {
                number = number.wrapping_add(step * (gap + 1));
                frames += gap + 1;
                let counted = numbers.next(number, 0);
                prop_assert_eq!(counted, if gap == 0 { Step::Next } else { Step::Gap(gap) });
                prop_assert_eq!(numbers.position(), start.wrapping_add(frames));
            }
        }
    }
}
