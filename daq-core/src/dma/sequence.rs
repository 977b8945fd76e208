//! Sequence numbers inside the frames of a DMA engine: where the design writes them, and how they count.
//!
//! A DMA engine keeps the order of what it is given, so a number that is not the next one tells of frames that were lost
//! before the engine, or of a design that began anew.

use std::ops::Range;

/// Where each frame carries its number, and how numbers count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSequence {
    /// Bytes before the number.
    pub offset: usize,
    /// Bytes of the number, 1 to 8.
    pub bytes: usize,
    /// Whether its first byte is the most significant one.
    pub big_endian: bool,
    /// Bits that count, 1 to 64: the low ones of the number.
    pub bits: u32,
    /// What is added from frame to frame, at least 1.
    pub step: u64,
    /// Frames that may be missing in a row, at most half of what the bits can count: more are no loss, but a count that
    /// began anew.
    pub max_gap: u64,
    last: Option<u64>,
    position: u64,
}

/// What a frame's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame is the next one.
    Next,
    /// So many frames are missing before it.
    Gap(u64),
    /// The count begins here: with the first frame, a step back, a step by a part of a frame, or a gap that is too long.
    Restart {
        /// Frames jumped over, forwards; 0 if that cannot be said.
        jumped: u64,
    },
}

impl FrameSequence {
    /// Numbers of `bytes` bytes at `offset`, all of whose bits count, by one a frame.
    ///
    /// ```
    /// use daq_core::dma::{FrameSequence, Step};
    /// let mut numbers = FrameSequence::new(0, 1);
    /// assert_eq!(numbers.next(254), Step::Restart { jumped: 0 });
    /// assert_eq!(numbers.next(255), Step::Next);
    /// assert_eq!(numbers.next(2), Step::Gap(2));
    /// ```
    #[expect(clippy::cast_possible_truncation, reason = "1 to 8 bytes")]
    pub const fn new(offset: usize, bytes: usize) -> Self {
        Self {
            offset,
            bytes,
            big_endian: false,
            bits: 8 * bytes as u32,
            step: 1,
            max_gap: 1 << 16,
            last: None,
            position: 0,
        }
    }

    /// Where the number lies in a frame.
    pub const fn extent(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }

    /// The number in the bytes of its [extent](Self::extent), of which the first eight are taken.
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

    /// Takes the next frame's number.
    pub fn next(&mut self, number: u64) -> Step {
        let number = number & self.mask();
        let step = self.step.max(1);
        let Some(last) = self.last.replace(number) else {
            self.position = number / step;
            return Step::Restart { jumped: 0 };
        };
        let ahead = number.wrapping_sub(last) & self.mask();
        let frames = ahead / step;
        // The nearer of both ways round says whether it went forwards.
        let is_forward = ahead != 0 && ahead <= self.mask() / 2;
        let is_gap =
            ahead.is_multiple_of(step) && is_forward && frames >= 1 && frames - 1 <= self.max_gap;
        if is_gap {
            self.position = self.position.wrapping_add(frames);
            return if frames == 1 {
                Step::Next
            } else {
                Step::Gap(frames - 1)
            };
        }
        self.position = number / step;
        Step::Restart {
            jumped: if is_forward {
                frames.saturating_sub(1)
            } else {
                0
            },
        }
    }

    /// The last frame's number without wrapping, in frames.
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
    fn numbers_are_read_as_they_are_written() {
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

    #[test]
    fn what_cannot_be_a_gap_begins_anew() {
        let mut numbers = FrameSequence {
            step: 4,
            max_gap: 10,
            ..FrameSequence::new(0, 4)
        };
        assert_eq!(numbers.next(40), Step::Restart { jumped: 0 });
        assert_eq!(numbers.position(), 10);
        assert_eq!(numbers.next(44), Step::Next);
        assert_eq!(numbers.next(46), Step::Restart { jumped: 0 });
        assert_eq!(
            numbers.next(46),
            Step::Restart { jumped: 0 },
            "the same once more"
        );
        assert_eq!(numbers.next(90), Step::Gap(10));
        assert_eq!(numbers.next(138), Step::Restart { jumped: 11 });
        assert_eq!(numbers.next(2), Step::Restart { jumped: 0 });
    }

    #[test]
    fn a_step_back_of_a_narrow_number_is_no_gap() {
        let mut numbers = FrameSequence::new(0, 1);
        numbers.next(100);
        assert_eq!(numbers.next(99), Step::Restart { jumped: 0 });
        assert_eq!(numbers.next(226), Step::Gap(126));
    }

    proptest! {
        /// Whatever is left out is told, over any number of wraps.
        #[test]
        fn every_frame_is_told_or_missing(
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
            // Numbers count whole steps from `first` on and wrap with their bits.
            let mut number = first;
            prop_assert_eq!(numbers.next(number), Step::Restart { jumped: 0 });
            let start = numbers.position();
            let mut frames = 0;
            for gap in gaps {
                number = number.wrapping_add(step * (gap + 1));
                frames += gap + 1;
                let told = numbers.next(number);
                prop_assert_eq!(told, if gap == 0 { Step::Next } else { Step::Gap(gap) });
                prop_assert_eq!(numbers.position(), start.wrapping_add(frames));
            }
        }
    }
}
