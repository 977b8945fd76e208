//! How much of some work is done, and how long the rest will take.

use std::fmt;
use std::time::Duration;

/// Width of a bar in characters.
const BAR_WIDTH: u64 = 10;
/// Minimum time of work from which a remaining time is estimated.
const MIN_BASIS: Duration = Duration::from_secs(1);
/// Number of steps of different kinds that must have ended before a remaining time is estimated.
const MIN_STEPS: usize = 2;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Returns a bar of which `part` of `whole` is filled. A part above 0 fills at least one character.
pub fn bar(part: u64, whole: u64) -> String {
    let filled = part.saturating_mul(BAR_WIDTH).div_ceil(whole.max(1));
    let bar = (0..BAR_WIDTH).map(|i| if i < filled { '█' } else { '·' });
    bar.collect()
}

/// The share of some work that is done, and the time until its end.
///
/// ```
/// use daq_pipelines::console::Estimate;
/// use std::time::Duration;
/// let estimate = Estimate::of_amount(30, 120, Duration::from_secs(4));
/// assert_eq!(estimate.to_string(), "███·······  25 %  about 12 s left");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// From 0 to 1.
    pub share: f64,
    /// `None` without a basis for an estimate.
    pub remaining: Option<Duration>,
}

impl Estimate {
    /// Estimates from the mean rate: `done` of `total` in any unit were processed in `elapsed`. Without progress, and in
    /// the first second, the remaining time is unknown.
    pub fn of_amount(done: u64, total: u64, elapsed: Duration) -> Self {
        if total == 0 {
            return Self::default();
        }
        let share = done.min(total) as f64 / total as f64;
        let has_basis = done > 0 && elapsed >= MIN_BASIS;
        let remaining = elapsed.as_secs_f64() * (1.0 - share) / share;
        Self {
            share,
            // The number of seconds can be too large for a duration.
            remaining: has_basis
                .then(|| Duration::try_from_secs_f64(remaining).ok())
                .flatten(),
        }
    }

    /// Returns the share in percent. It is 100 only if all work is done.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share is between 0 and 1"
    )]
    pub fn percent(&self) -> u64 {
        (self.share * 100.0) as u64
    }

    /// Returns the remaining time as text such as `about 12 s left`; `None` if it is unknown or zero.
    pub fn left(&self) -> Option<String> {
        let remaining = self.remaining.filter(|time| !time.is_zero());
        remaining.map(|time| format!("about {} left", rounded(time)))
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.percent();
        write!(f, "{} {percent:>3} %", bar(percent, 100))?;
        self.left().map_or(Ok(()), |left| write!(f, "  {left}"))
    }
}

/// Formats a duration in units that fit the precision of an estimate.
fn rounded(time: Duration) -> String {
    let seconds = time.saturating_add(Duration::from_millis(500)).as_secs();
    let to = |unit: u64| seconds.saturating_add(unit / 2) / unit * unit;
    match seconds {
        0..20 => format!("{} s", seconds.max(1)),
        20..55 => format!("{} s", to(5)),
        55..3570 => format!("{} min", (to(MINUTE) / MINUTE).max(1)),
        3570..36_000 => {
            let time = to(10 * MINUTE);
            match (time / HOUR, time % HOUR / MINUTE) {
                (hours, 0) => format!("{hours} h"),
                (hours, minutes) => format!("{hours} h {minutes} min"),
            }
        }
        36_000..172_800 => format!("{} h", to(HOUR) / HOUR),
        _ => format!("{} days", to(DAY) / DAY),
    }
}

/// Work that repeats the same steps in several rounds. A step is expected to take as long as in the previous round, or,
/// in the first round, as long as the mean of the other steps.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    /// Number of rounds.
    count: usize,
    /// The last duration of each step of a round; `None` before it has been measured.
    times: Vec<Option<Duration>>,
    /// Number of the steps that began, over all rounds.
    begun: usize,
    /// The times at which the first step and the current step began.
    since: Duration,
    step_since: Duration,
}

impl Rounds {
    /// `times` are the durations of the steps of a round, as far as they are known.
    pub(super) fn new(count: usize, times: Vec<Option<Duration>>) -> Self {
        Self {
            count,
            times,
            begun: 0,
            since: Duration::ZERO,
            step_since: Duration::ZERO,
        }
    }

    /// Ends the current step, and begins the next step at the time `now`.
    pub(super) fn begin_step(&mut self, now: Duration) {
        match self.begun.checked_sub(1) {
            None => self.since = now,
            Some(current) => {
                let step = current % self.times.len().max(1);
                if let Some(time) = self.times.get_mut(step) {
                    *time = Some(now.saturating_sub(self.step_since));
                }
            }
        }
        self.step_since = now;
        self.begun += 1;
    }

    pub(super) fn estimate(&self, now: Duration) -> Estimate {
        let remaining = self.remaining(now);
        let elapsed = now.saturating_sub(self.since).as_secs_f64();
        let share = match remaining {
            Some(remaining) => elapsed / (elapsed + remaining.as_secs_f64()),
            None => self.begun.saturating_sub(1) as f64 / (self.count * self.times.len()) as f64,
        };
        // The last step has not ended, even if it takes longer than expected. NaN becomes 0.
        let share = share.clamp(0.0, 0.99).max(0.0);
        Estimate { share, remaining }
    }

    /// Returns the expected time until the end. It is unknown while few steps have been measured, and while a step takes
    /// longer than expected in its first round, because it differs from the other steps.
    fn remaining(&self, now: Duration) -> Option<Duration> {
        let (current, steps) = (self.begun.checked_sub(1)?, self.times.len());
        let known: Vec<_> = self.times.iter().flatten().collect();
        if known.len() < MIN_STEPS.min(steps).max(1) {
            return None;
        }
        let sum: Duration = known.iter().copied().sum();
        let mean = sum / u32::try_from(known.len()).ok()?;
        let expected = |step: usize| self.times[step].unwrap_or(mean);
        let (round, step) = (current / steps, current % steps);
        let in_step = now.saturating_sub(self.step_since);
        if self.times[step].is_none() && in_step > mean {
            return None;
        }
        let after: Duration = (step + 1..steps).map(expected).sum();
        let whole: Duration = (0..steps).map(expected).sum();
        let rounds = u32::try_from(self.count.saturating_sub(round + 1)).ok()?;
        Some(expected(step).saturating_sub(in_step) + after + whole.saturating_mul(rounds))
    }

    /// Returns which step is current, such as `round 2 of 5, step 3 of 8`. Returns `None` before the first step, and if
    /// there is only one.
    pub(super) fn position(&self) -> Option<String> {
        let (current, steps) = (self.begun.checked_sub(1)?, self.times.len().max(1));
        let of = |noun: &str, number: usize, count: usize| {
            (count > 1).then(|| format!("{noun} {} of {count}", number + 1))
        };
        let round = of("round", current / steps, self.count);
        let step = of("step", current % steps, steps);
        let both: Vec<_> = round.into_iter().chain(step).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn left(seconds: f64) -> String {
        rounded(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn remaining_time_has_few_digits() {
        let cases = [
            (0.0, "1 s"),
            (3.4, "3 s"),
            (12.0, "12 s"),
            (19.9, "20 s"),
            (43.0, "45 s"),
            (54.4, "55 s"),
            (55.0, "1 min"),
            (89.0, "1 min"),
            (120.0, "2 min"),
            (3569.0, "59 min"),
            (3570.0, "1 h"),
            (4800.0, "1 h 20 min"),
            (35_990.0, "10 h"),
            (40_000.0, "11 h"),
            (172_700.0, "48 h"),
            (300_000.0, "3 days"),
        ];
        for (seconds, text) in cases {
            assert_eq!(left(seconds), text, "{seconds} s");
        }
    }

    #[test]
    fn amount_is_estimated_from_mean_rate_once_there_is_a_basis() {
        let estimate = |done, total, elapsed| Estimate::of_amount(done, total, elapsed);
        assert_eq!(estimate(0, 100, s(10)).remaining, None);
        assert_eq!(
            estimate(50, 100, Duration::from_millis(999)).remaining,
            None
        );
        assert_eq!(estimate(50, 100, s(10)).remaining, Some(s(10)));
        assert_eq!(estimate(100, 100, s(10)).remaining, Some(s(0)));
        assert_eq!(estimate(1, 0, s(10)), Estimate::default());
        // A file can grow while it is read.
        assert_eq!(estimate(300, 100, s(10)).to_string(), "██████████ 100 %");
        assert_eq!(estimate(999, 1000, s(10)).percent(), 99);
        assert_eq!(estimate(1, u64::MAX, Duration::MAX).remaining, None);
        let text = estimate(1, 1000, s(1)).to_string();
        assert_eq!(text, "··········   0 %  about 17 min left");
        assert_eq!(estimate(2, 100, s(0)).to_string(), "█·········   2 %");
    }

    /// Begins steps of the given durations in seconds.
    fn run(rounds: &mut Rounds, mut now: Duration, steps: &[u64]) -> Duration {
        for step in steps {
            rounds.begin_step(now);
            now += s(*step);
        }
        now
    }

    #[test]
    fn step_takes_as_long_as_in_previous_round() {
        let mut rounds = Rounds::new(3, vec![None; 2]);
        assert_eq!(
            (rounds.estimate(s(9)), rounds.position()),
            Default::default()
        );
        let now = run(&mut rounds, s(5), &[1, 9]);
        assert_eq!(rounds.position().unwrap(), "round 1 of 3, step 2 of 2");
        assert_eq!(
            rounds.estimate(now).remaining,
            None,
            "only one step has ended"
        );
        rounds.begin_step(now);
        let estimate = rounds.estimate(now);
        assert_eq!(estimate.remaining, Some(s(20)));
        assert_eq!(estimate.percent(), 33);
        // Most of a round is its second step.
        let now = run(&mut rounds, now + s(1), &[4]);
        assert_eq!(rounds.estimate(now).remaining, Some(s(5 + 10)));
        // The step takes longer than expected.
        assert_eq!(rounds.estimate(now + s(60)).remaining, Some(s(10)));
    }

    #[test]
    fn steps_not_measured_yet_take_the_mean() {
        let mut rounds = Rounds::new(1, vec![None; 5]);
        let now = run(&mut rounds, s(0), &[2, 4]);
        rounds.begin_step(now);
        assert_eq!(rounds.estimate(now).remaining, Some(s(9)));
        assert_eq!(rounds.position().unwrap(), "step 3 of 5");
        // This step differs from the others, so they are no basis.
        let estimate = rounds.estimate(now + s(4));
        assert_eq!((estimate.percent(), estimate.remaining), (40, None));
    }

    #[test]
    fn steps_of_known_duration_are_a_basis() {
        let mut rounds = Rounds::new(2, vec![Some(s(60))]);
        rounds.begin_step(s(0));
        let text = rounds.estimate(s(30)).to_string();
        assert_eq!(text, "███·······  25 %  about 2 min left");
        assert_eq!(rounds.position().unwrap(), "round 1 of 2");
        let mut once = Rounds::new(1, vec![Some(s(2))]);
        once.begin_step(s(0));
        assert_eq!(once.position(), None);
        assert_eq!(once.estimate(s(3)).to_string(), "██████████  99 %");
    }

    #[test]
    fn more_steps_than_announced_are_no_error() {
        let mut rounds = Rounds::new(1, vec![None; 2]);
        let now = run(&mut rounds, s(0), &[1; 5]);
        assert!(rounds.estimate(now).share > 0.8);
        let mut empty = Rounds::new(0, Vec::new());
        empty.begin_step(s(0));
        assert_eq!((empty.estimate(s(1)), empty.position()), Default::default());
    }
}
