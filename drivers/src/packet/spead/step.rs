//! Detects the step of heap counters by majority vote, and checks it afterwards. Checks the step of frame numbers in items.

use super::Numbering;
use std::sync::Arc;

/// Maximum number of counters in a vote.
pub(super) const MAX_COUNTERS: usize = 16;
/// Number of unevenly spaced counters that make a vote certain, and minimum number of counters that must agree (all
/// counters if there are fewer).
const SUFFICIENT_COUNTERS: usize = 8;
const MIN_VOTES: usize = 4;

/// Maximum number of threads or streams over which a sender distributes frames in turn.
const MAX_STREAMS: u64 = 64;

/// Distinct heap counters in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct Counters(Vec<u64>);

/// The result of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vote {
    /// The common increment of the counters; 0 if there are fewer than two counters.
    pub(super) step: u64,
    /// Whether more counters are unlikely to change the step.
    pub(super) is_certain: bool,
}

impl Default for Counters {
    fn default() -> Self {
        Self(Vec::with_capacity(MAX_COUNTERS))
    }
}

impl Counters {
    /// Adds a counter, unless it is already present or the list is full.
    pub(super) fn add(&mut self, counter: u64) {
        if self.0.len() < MAX_COUNTERS && !self.0.contains(&counter) {
            self.0.push(counter);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) const fn is_full(&self) -> bool {
        self.0.len() == MAX_COUNTERS
    }

    /// Returns the largest step for which at least two thirds of the counters differ from each other by multiples of
    /// the step. Lost heaps do not change the step. A minority of counters that do not fit, such as forged counters or
    /// those of heaps with their own numbering, is ignored.
    pub(super) fn vote(&self, address_bits: u32) -> Vote {
        let numbering = Numbering {
            width: address_bits,
            ..Numbering::PLAIN
        };
        let first = self.0.first().copied().unwrap_or(0);
        let mut at: Vec<i64> = self
            .0
            .iter()
            .map(|n| numbering.distance(first, *n))
            .collect();
        at.sort_unstable();
        let apart = |a: i64, b: i64| a.abs_diff(b);
        let needed = (2 * at.len()).div_ceil(3).max(MIN_VOTES.min(at.len()));
        // Returns the step of the counters that differ from `a` by a multiple of `divisor`, if they are a sufficient
        // majority.
        let step_of = |a: i64, divisor: u64| {
            let on_grid = || at.iter().filter(|n| apart(a, **n).is_multiple_of(divisor));
            let step = on_grid().fold(0, |step, n| gcd(step, apart(a, *n)));
            (on_grid().count() >= needed).then_some(step)
        };
        let mut step = at.iter().fold(0, |step, n| gcd(step, apart(at[0], *n)));
        for (i, a) in at.iter().enumerate() {
            for (j, b) in at.iter().enumerate().skip(i + 1) {
                for c in &at[j + 1..] {
                    let divisor = gcd(apart(*a, *b), apart(*a, *c));
                    if divisor > step {
                        step = step.max(step_of(*a, divisor).unwrap_or(0));
                    }
                }
            }
        }
        let is_even = at.windows(2).all(|pair| apart(pair[0], pair[1]) == step);
        Vote {
            step,
            is_certain: at.len() >= SUFFICIENT_COUNTERS || is_even,
        }
    }
}

/// Compares heap counters with the detected step, and logs a contradiction once.
#[derive(Clone, Debug)]
pub(super) struct StepCheck {
    /// Name of the source.
    name: Arc<str>,
    step: u64,
    address_bits: u32,
    /// The maximum multiple of the step that is normal, because this thread may receive only every n-th heap or frame.
    max_multiple: u64,
    /// The item that contains the numbers; `None` for heap counters.
    item: Option<u64>,
    last: Option<u64>,
    counters: Counters,
    is_logged: bool,
}

impl StepCheck {
    pub(super) fn new(name: &str, step: u64, address_bits: u32, threads: usize) -> Self {
        Self {
            name: name.into(),
            step,
            address_bits,
            max_multiple: if threads <= 1 { 1 } else { u64::MAX },
            item: None,
            last: None,
            counters: Counters::default(),
            is_logged: false,
        }
    }

    /// Creates the check of frame numbers in `item`, whose step is configured. `threads` is `None` if their number is unknown.
    pub(super) fn of_item(
        name: &str,
        item: u64,
        step: u64,
        address_bits: u32,
        threads: Option<usize>,
    ) -> Self {
        let is_alone = threads.is_some_and(|threads| threads <= 1);
        Self {
            item: Some(item),
            max_multiple: if is_alone { 1 } else { MAX_STREAMS },
            ..Self::new(name, step, address_bits, 1)
        }
    }

    /// Checks the counter of a heap that begins, or the number of its frame. Heaps of several parts have the same number.
    #[inline]
    pub(super) fn see(&mut self, counter: u64) {
        let last = self.last.replace(counter);
        if self.item.is_some() && last == Some(counter) {
            return;
        }
        if last.is_some_and(|last| last.wrapping_add(self.step) == counter) {
            self.counters.clear();
        } else if !self.is_logged {
            self.collect(counter);
        }
    }

    /// Records an unexpected counter. If [`MAX_COUNTERS`] different counters arrived without an expected counter, they vote on
    /// the step.
    #[cold]
    fn collect(&mut self, counter: u64) {
        self.counters.add(counter);
        if !self.counters.is_full() {
            return;
        }
        if let Some(step) = self.contradiction() {
            self.is_logged = true;
            let (name, detected) = (&self.name, self.step);
            if let Some(item) = self.item {
                tracing::warn!(
                    "source {name}: the value of item {item:#x} grows by {step} from frame to frame, but `step` is {detected}, so \
                     frames are wrongly counted as lost or rejected: set `frame = {{ item = {item:#x}, step = {step} }}` in \
                     [source.{name}.format]"
                );
                return;
            }
            tracing::warn!(
                "source {name}: heap counters grow by {step}, but a step of {detected} was detected from the first heaps, so frames \
                 are wrongly counted as lost or rejected: set `heap_step = {step}` in [source.{name}.format] and restart"
            );
        }
        self.counters.clear();
    }

    /// Returns the step that the counters show, if it contradicts the detected step.
    fn contradiction(&self) -> Option<u64> {
        let step = self.counters.vote(self.address_bits).step;
        let is_explained = step.is_multiple_of(self.step) && step / self.step <= self.max_multiple;
        (step > 0 && !is_explained).then_some(step)
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(counters: &[u64]) -> Vote {
        Counters(counters.to_vec()).vote(40)
    }

    #[test]
    fn step_is_that_of_most_counters() {
        let top = 1 << 40;
        for (counters, step, is_certain) in [
            (&[][..], 0, true),
            (&[7], 0, true),
            (&[7, 9], 2, true),
            (&[1, 2, 3, 4], 1, true),
            (&[8, 4, 0, 12], 4, true),
            (&[top - 4, top - 2, 0, 2], 2, true),
            // Lost heaps leave gaps.
            (&[0, 1, 3, 4], 1, false),
            (&[0, 4, 6, 10, 16, 18, 20, 24], 2, true),
            // One forged counter between the others, and one distant counter.
            (&[0, 2, 3, 4, 6], 2, false),
            (&[5, 1 << 30, 7, 9, 11, 13], 2, false),
            // Heaps of descriptors use a separate count.
            (&[0, 1 << 35, 16, 32, 1 << 35 | 1, 48, 64, 80, 96], 16, true),
        ] {
            assert_eq!(vote(counters), Vote { step, is_certain }, "{counters:?}");
        }
    }

    fn seen(step: u64, threads: usize, counters: impl Iterator<Item = u64>) -> bool {
        let mut check = StepCheck::new("adc", step, 40, threads);
        for counter in counters {
            check.see(counter);
        }
        check.is_logged
    }

    #[test]
    fn wrong_step_of_frames_is_logged() {
        let is_logged = |step, numbers: &mut dyn Iterator<Item = u64>| {
            let mut check = StepCheck::of_item("array", 0x1600, step, 48, None);
            numbers.for_each(|number| check.see(number));
            check.is_logged
        };
        // Each number is that of four heaps.
        let frames = |step| (0..200_u64).map(move |n| 77 + n / 4 * step);
        assert!(is_logged(1, &mut frames(4096)));
        assert!(is_logged(4096, &mut frames(2048)));
        assert!(is_logged(3000, &mut frames(4096)));
        assert!(!is_logged(4096, &mut frames(4096)));
        // Heaps of two frames arrive at the same time.
        assert!(!is_logged(
            4096,
            &mut (0..200).map(|n| (n / 8 + n % 2) * 4096)
        ));
        // Every 8th frame is in this stream.
        assert!(!is_logged(4096, &mut frames(8 * 4096)));
        let mut alone = StepCheck::of_item("array", 0x1600, 2048, 48, Some(1));
        frames(4096).for_each(|number| alone.see(number));
        assert!(alone.is_logged);
    }

    #[test]
    fn wrongly_detected_step_is_logged() {
        assert!(seen(1, 1, (0..40).map(|n| 2 * n)));
        assert!(seen(2, 1, 0..40));
        assert!(seen(2, 4, 0..40));
        assert!(!seen(1, 4, (0..40).map(|n| 2 * n)));
        assert!(!seen(2, 1, (0..400).map(|n| 2 * n)));
        // Lost heaps, forged heaps and restarts do not contradict the step.
        assert!(!seen(1, 1, (0..400).filter(|n| n % 3 != 0)));
        assert!(!seen(
            2,
            1,
            (0..400).map(|n| if n % 5 == 0 { 1 << 30 | n } else { 2 * n })
        ));
    }
}
