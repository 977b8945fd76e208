//! Numbers that wrap at the end of a range, such as block identifiers that skip 0.

use crate::packet::Reject;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No number was received.
const NEVER: u64 = u64::MAX;

/// A range of numbers. All clones share the reference, so the threads of a source agree.
#[derive(Clone, Debug)]
pub(super) struct NumberRange {
    first: u64,
    /// Number of different numbers, at least 2.
    count: u128,
    reference: Arc<Reference>,
}

/// Continued numbers of previous packets, or [`NEVER`].
#[derive(Debug)]
struct Reference {
    /// The next number is the one nearest to this one.
    newest: AtomicU64,
    /// A number far from the newest one. A damaged number must not move the reference, so another one near it must follow.
    far: AtomicU64,
}

impl Default for Reference {
    fn default() -> Self {
        Self {
            newest: AtomicU64::new(NEVER),
            far: AtomicU64::new(NEVER),
        }
    }
}

impl NumberRange {
    /// Returns the range from `first` to `last`, which must be higher.
    pub(super) fn new(first: u64, last: u64) -> Self {
        let count = u128::from(last.saturating_sub(first)) + 1;
        Self {
            first,
            count: count.max(2),
            reference: Arc::default(),
        }
    }

    /// Returns the same range without knowledge of previous numbers, for another run.
    pub(super) fn restarted(&self) -> Self {
        Self {
            reference: Arc::default(),
            ..*self
        }
    }

    /// Returns the number of different numbers; the largest `u64` if there are more.
    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.count).unwrap_or(u64::MAX)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "distances are at most half of the range, which fits into 64 bits"
    )]
    /// Returns `value` plus a multiple of the range, so that it is nearest to the numbers before it.
    #[inline]
    pub(super) fn continued(&self, value: u64, key: &'static str) -> Result<u64, Reject> {
        let offset = u128::from(value.wrapping_sub(self.first));
        if offset >= self.count {
            return Err(Reject::Number {
                name: "number_range",
                key,
                value,
                why: "which is outside its `range`: check its position, byte order and `range`",
            });
        }
        let newest = self.reference.newest.load(Ordering::Relaxed);
        if newest == NEVER {
            self.reference.newest.store(value, Ordering::Relaxed);
            return Ok(value);
        }
        let ahead = (offset + self.count - self.offset(newest)) % self.count;
        let (is_ahead, distance) = if ahead <= self.count / 2 {
            (true, ahead)
        } else {
            (false, self.count - ahead)
        };
        let number = if is_ahead {
            newest.wrapping_add(distance as u64)
        } else {
            newest.wrapping_sub(distance as u64)
        };
        if distance > self.near() {
            self.follow_far(number);
            return Ok(number);
        }
        if is_ahead && distance > 0 {
            self.reference.newest.store(number, Ordering::Relaxed);
        }
        if self.reference.far.load(Ordering::Relaxed) != NEVER {
            self.reference.far.store(NEVER, Ordering::Relaxed);
        }
        Ok(number)
    }

    /// Returns the distance up to which a number follows another one.
    fn near(&self) -> u128 {
        (self.count / 8).max(1)
    }

    /// Moves the reference to `number`, which is far from it, if the number before it was near `number`.
    #[cold]
    fn follow_far(&self, number: u64) {
        let far = self.reference.far.swap(number, Ordering::Relaxed);
        let distance = far.wrapping_sub(number).cast_signed().unsigned_abs();
        if far != NEVER && u128::from(distance) <= self.near() {
            self.reference.newest.store(number, Ordering::Relaxed);
        }
    }

    /// Returns the number in packets for a continued number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an offset is less than 2^64"
    )]
    pub(super) fn number(&self, continued: u64) -> u64 {
        self.first.wrapping_add(self.offset(continued) as u64)
    }

    fn offset(&self, continued: u64) -> u128 {
        if self.count <= 1 << 62 {
            // Continued numbers of such ranges can be negative.
            let (from, count) = (i128::from(self.first), self.count.cast_signed());
            let ahead = i128::from(continued.cast_signed()) - from;
            return ahead.rem_euclid(count).cast_unsigned();
        }
        let before = self.count - u128::from(self.first) % self.count;
        (u128::from(continued) % self.count + before) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_at_the_end_of_their_range() {
        let ranges = [
            (1, 65_535),
            (0, 9),
            (7, 999),
            (0, 255),
            (1, u64::MAX / 4),
            (1, u64::MAX / 2 + 5),
        ];
        for (first, last) in ranges {
            let range = NumberRange::new(first, last);
            let begin = last - 3;
            for (i, continued) in (begin..begin + 2500).enumerate() {
                let number = range.number(continued);
                assert!((first..=last).contains(&number));
                assert_eq!(range.continued(number, "frame"), Ok(continued));
                // A number that arrives late.
                let late = continued - (i as u64).min(3);
                assert_eq!(range.continued(range.number(late), "frame"), Ok(late));
            }
            let below = first.checked_sub(1);
            for outside in [Some(last + 1), below].into_iter().flatten() {
                let found = range.continued(outside, "frame").unwrap_err();
                assert_eq!(found.name(), "number_range");
            }
        }
    }

    /// The widest range has one number less than 64 bits, so its continued numbers wrap.
    #[test]
    fn numbers_of_the_widest_range_differ() {
        let range = NumberRange::new(1, u64::MAX);
        assert_eq!(range.count(), u64::MAX);
        for number in [5, 6, 7, 1 << 40, (1 << 40) + 1] {
            assert_eq!(range.continued(number, "frame"), Ok(number));
        }
        let range = NumberRange::new(0, u64::MAX);
        assert_eq!(range.continued(u64::MAX - 1, "frame"), Ok(u64::MAX - 1));
        assert_eq!(range.continued(0, "frame"), Ok(0));
    }

    /// A sender may continue far behind the first numbers, so that continued numbers are negative.
    #[test]
    fn numbers_continue_after_a_jump_below_zero() {
        for (first, last) in [(1, 65_535), (0, 999)] {
            let range = NumberRange::new(first, last);
            for value in first..first + 20 {
                range.continued(value, "frame").unwrap();
            }
            let begin = last / 5 * 4;
            let mut before = None;
            for value in begin..begin + 100 {
                let continued = range.continued(value, "frame").unwrap();
                assert_eq!(range.number(continued), value);
                if let Some(before) = before.replace(continued) {
                    assert_eq!(continued, before + 1);
                }
            }
        }
    }

    #[test]
    fn damaged_numbers_do_not_move_the_reference() {
        let range = NumberRange::new(1, 65_535);
        let mut wrong = 0;
        assert_eq!(range.continued(59_999, "frame"), Ok(59_999));
        for number in 60_000_u64..200_000 {
            let value = (number - 1) % 65_535 + 1;
            if number % 1000 == 0 {
                // One packet, or several consecutive ones, with damaged numbers.
                let damage = 20_000 + number % 30_000;
                for i in 0..=number / 1000 % 5 {
                    let _ = range.continued((value + damage + i - 1) % 65_535 + 1, "frame");
                }
            }
            wrong += u64::from(range.continued(value, "frame") != Ok(number));
        }
        assert_eq!(wrong, 0);
    }

    /// The highest bit of the number is damaged in two packets that are far apart.
    #[test]
    fn damaged_numbers_confirm_each_other_only_in_a_row() {
        let range = NumberRange::new(1, 65_535);
        for number in 1..600_u64 {
            if number % 100 == 50 {
                let _ = range.continued(number ^ 0x8000, "frame");
            } else {
                assert_eq!(range.continued(number, "frame"), Ok(number));
            }
        }
    }

    #[test]
    fn stream_continues_far_away_after_two_numbers() {
        let range = NumberRange::new(1, 65_535);
        assert_eq!(range.continued(10, "frame"), Ok(10));
        // The sender restarts at lower or higher numbers more than half of the range away in total.
        for number in [25_000, 25_001, 50_000, 50_001] {
            assert_eq!(range.continued(number, "frame"), Ok(number));
        }
        assert_eq!(range.continued(3, "frame"), Ok(65_538));
    }

    #[test]
    fn first_number_is_that_of_the_packet() {
        let range = NumberRange::new(1, 65_535);
        assert_eq!(range.continued(65_535, "frame"), Ok(65_535));
        assert_eq!(range.continued(1, "frame"), Ok(65_536));
        assert_eq!(range.restarted().continued(1, "frame"), Ok(1));
    }
}
