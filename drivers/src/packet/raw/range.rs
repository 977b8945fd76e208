//! Numbers that wrap at the end of a range, such as block identifiers that skip 0.

use crate::packet::Reject;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No number was received.
const NEVER: u64 = u64::MAX;

/// A range of numbers. All clones share the highest number, so the threads of a source agree.
#[derive(Clone, Debug)]
pub(super) struct NumberRange {
    first: u64,
    /// Number of different numbers, at least 2.
    count: u64,
    /// The highest continued number.
    highest: Arc<AtomicU64>,
}

impl NumberRange {
    /// Returns the range from `first` to `last`, which must be higher.
    pub(super) fn new(first: u64, last: u64) -> Self {
        Self {
            first,
            count: last.saturating_sub(first).saturating_add(1).max(2),
            highest: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// Returns the same range without knowledge of previous numbers, for another run.
    pub(super) fn restarted(&self) -> Self {
        Self {
            highest: Arc::new(AtomicU64::new(NEVER)),
            ..*self
        }
    }

    /// Returns the number of different numbers.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Returns `value` plus a multiple of the range, so that it is nearest to the highest number so far.
    #[inline]
    pub(super) fn continued(&self, value: u64, key: &'static str) -> Result<u64, Reject> {
        let offset = value.wrapping_sub(self.first);
        if offset >= self.count {
            return Err(Reject::Number {
                name: "number_range",
                key,
                value,
                why: "which is outside its `range`: check its position, byte order and `range`",
            });
        }
        let highest = self.highest.load(Ordering::Relaxed);
        if highest == NEVER {
            self.highest.store(value, Ordering::Relaxed);
            return Ok(value);
        }
        let ahead = (offset + self.count - self.offset(highest)) % self.count;
        if ahead <= self.count / 2 {
            let number = highest.wrapping_add(ahead);
            if ahead > 0 {
                self.highest.store(number, Ordering::Relaxed);
            }
            return Ok(number);
        }
        Ok(highest.wrapping_sub(self.count - ahead))
    }

    /// Returns the number in packets for a continued number.
    pub(super) fn number(&self, continued: u64) -> u64 {
        self.first + self.offset(continued)
    }

    fn offset(&self, continued: u64) -> u64 {
        let before = self.count - self.first % self.count;
        (continued % self.count + before) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_at_the_end_of_their_range() {
        for (first, last) in [(1, 65_535), (0, 9), (7, 999), (1, u64::MAX / 4), (0, 255)] {
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

    #[test]
    fn first_number_is_that_of_the_packet() {
        let range = NumberRange::new(1, 65_535);
        assert_eq!(range.continued(65_535, "frame"), Ok(65_535));
        assert_eq!(range.continued(1, "frame"), Ok(65_536));
        assert_eq!(range.restarted().continued(1, "frame"), Ok(1));
    }
}
