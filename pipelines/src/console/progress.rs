//! The progress of a command: one live line at the bottom of the terminal, with a bar and the remaining time.

use super::estimate::{Estimate, Rounds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which the line appears. A command that ends sooner shows nothing.
const DELAY: Duration = Duration::from_secs(1);
/// Interval at which the line is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the progress of a command while it runs. Clones belong to the same line.
///
/// The default shows nothing. All methods are cheap; a separate thread draws the line.
#[derive(Clone, Debug, Default)]
pub struct Progress(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    start: Instant,
    state: Mutex<State>,
    /// How much of [`Work::Amount`] is done.
    done: AtomicU64,
}

#[derive(Debug)]
struct State {
    what: String,
    /// Number of the current part of the work, and number of parts.
    part: (usize, usize),
    work: Work,
    /// The name of the current step.
    step: Option<String>,
    /// The highest shown share of the current part. The bar does not move back if an estimate was too optimistic.
    share: f64,
    is_paused: bool,
    has_ended: bool,
    /// The line on the terminal.
    shown: Option<String>,
}

#[derive(Debug)]
enum Work {
    /// Nothing is known yet.
    Unknown,
    /// An amount of this total, such as the bytes of a file, that is processed since a time.
    Amount(u64, Duration),
    Rounds(Rounds),
}

impl Progress {
    /// Shows the progress of `what` if stderr is a terminal; otherwise shows nothing. The line appears when the amount
    /// of work is known, but not in the first second. [`end`](Self::end) removes it.
    pub fn start(what: &str) -> Self {
        if !super::is_interactive() {
            return Self::default();
        }
        super::start();
        let shared = Arc::new(Shared::new(what));
        let drawn = shared.clone();
        let thread = std::thread::Builder::new().name("daq-progress".to_owned());
        let draw = move || {
            while drawn.draw() {
                std::thread::sleep(DRAW_INTERVAL);
            }
        };
        Self(thread.spawn(draw).is_ok().then_some(shared))
    }

    /// Announces that the work consists of `parts`, each of which calls [`rounds`](Self::rounds) once. The bar and the
    /// remaining time are those of the current part.
    pub fn set_parts(&self, parts: usize) {
        self.change(|state, _| state.part = (0, parts));
    }

    /// Begins work of `rounds` rounds with the same `steps` steps.
    pub fn rounds(&self, rounds: usize, steps: usize) {
        self.change(|state, _| state.begin(Work::Rounds(Rounds::new(rounds, vec![None; steps]))));
    }

    /// Begins work of `rounds` rounds, each of which takes `time`.
    pub fn timed_rounds(&self, rounds: usize, time: Duration) {
        self.change(|state, _| state.begin(Work::Rounds(Rounds::new(rounds, vec![Some(time)]))));
    }

    /// Ends the current step and begins the next. Without a `name`, the line shows the number of the step.
    pub fn step(&self, name: Option<String>) {
        self.change(|state, now| {
            state.step = name;
            if let Work::Rounds(rounds) = &mut state.work {
                rounds.begin_step(now);
            }
        });
    }

    /// Begins to process an amount of `total`, for example the bytes of a file. Shows nothing if it is 0, which means
    /// unknown.
    pub fn amount(&self, total: u64) {
        self.set_done(0);
        self.change(|state, now| state.begin(Work::Amount(total, now)));
    }

    /// Sets how much of the amount is done. Takes no lock.
    pub fn set_done(&self, done: u64) {
        if let Some(shared) = &self.0 {
            shared.done.store(done, Ordering::Relaxed);
        }
    }

    /// Removes the line, calls `print`, which may write to the same terminal, and shows the line again.
    pub fn paused<T>(&self, print: impl FnOnce() -> T) -> T {
        self.hide(|state| state.is_paused = true);
        let result = print();
        self.change(|state, _| state.is_paused = false);
        result
    }

    /// Removes the line for good.
    pub fn end(&self) {
        self.hide(|state| state.has_ended = true);
    }

    /// Changes the state and waits until the line is removed, at most as long as [`flush`](super::flush).
    fn hide(&self, change: impl FnOnce(&mut State)) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.lock();
        change(&mut state);
        if state.shown.take().is_some() {
            super::show_block(Vec::new());
        }
        drop(state);
        super::flush();
    }

    fn change(&self, change: impl FnOnce(&mut State, Duration)) {
        if let Some(shared) = &self.0 {
            change(&mut shared.lock(), shared.start.elapsed());
        }
    }
}

impl Shared {
    fn new(what: &str) -> Self {
        let state = State {
            what: what.to_owned(),
            part: (0, 1),
            work: Work::Unknown,
            step: None,
            share: 0.0,
            is_paused: false,
            has_ended: false,
            shown: None,
        };
        Self {
            start: Instant::now(),
            state: Mutex::new(state),
            done: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the line if it has changed. Returns false after the end.
    fn draw(&self) -> bool {
        let mut state = self.lock();
        if state.has_ended {
            return false;
        }
        if state.is_paused {
            return true;
        }
        let line = state.line(self.start.elapsed(), self.done.load(Ordering::Relaxed));
        if line != state.shown {
            super::show_block(line.iter().cloned().collect());
            state.shown = line;
        }
        true
    }
}

impl State {
    /// Begins the next part of the work.
    fn begin(&mut self, work: Work) {
        (self.work, self.step, self.share) = (work, None, 0.0);
        self.part.0 += 1;
    }

    /// Returns the line at the time `now`, when `done` of an amount is done. The details come last, because a narrow
    /// terminal shows only the start of the line.
    fn line(&mut self, now: Duration, done: u64) -> Option<String> {
        let (mut estimate, position) = match &self.work {
            Work::Unknown | Work::Amount(0, _) => return None,
            Work::Amount(total, since) => {
                let elapsed = now.saturating_sub(*since);
                (Estimate::of_amount(done, *total, elapsed), None)
            }
            Work::Rounds(rounds) => (rounds.estimate(now), rounds.position()),
        };
        if now < DELAY {
            return None;
        }
        self.share = self.share.max(estimate.share);
        estimate.share = self.share;
        let part = match self.part {
            (_, ..=1) => String::new(),
            (part, parts) => format!(", part {part} of {parts}"),
        };
        let detail = self.step.clone().or(position);
        let detail = detail.map_or_else(String::new, |detail| format!("  {detail}"));
        Some(format!("{}{part}  {estimate}{detail}", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn state() -> State {
        let shared = Shared::new("bench");
        shared.state.into_inner().unwrap()
    }

    #[test]
    fn line_appears_when_work_is_known_and_not_in_first_second() {
        let mut state = state();
        assert_eq!(state.line(s(5), 0), None);
        state.begin(Work::Amount(100, s(0)));
        assert_eq!(state.line(Duration::from_millis(999), 50), None);
        assert_eq!(
            state.line(s(5), 50).unwrap(),
            "bench  █████·····  50 %  about 5 s left"
        );
    }

    #[test]
    fn remaining_time_is_absent_without_basis() {
        let mut state = state();
        state.begin(Work::Rounds(Rounds::new(5, vec![None; 3])));
        assert_eq!(state.line(s(2), 0).unwrap(), "bench  ··········   0 %");
        let Work::Rounds(rounds) = &mut state.work else {
            unreachable!()
        };
        rounds.begin_step(s(2));
        assert_eq!(
            state.line(s(9), 0).unwrap(),
            "bench  ··········   0 %  round 1 of 5, step 1 of 3"
        );
    }

    #[test]
    fn each_part_has_a_bar_and_names_its_step() {
        let mut state = state();
        state.part = (0, 2);
        state.begin(Work::Amount(100, s(0)));
        assert!(
            state
                .line(s(4), 100)
                .unwrap()
                .starts_with("bench, part 1 of 2  ██████████ 100 %")
        );
        state.begin(Work::Rounds(Rounds::new(1, vec![Some(s(8))])));
        state.step = Some("data, vulkan".to_owned());
        let Work::Rounds(rounds) = &mut state.work else {
            unreachable!()
        };
        rounds.begin_step(s(4));
        assert_eq!(
            state.line(s(6), 0).unwrap(),
            "bench, part 2 of 2  ███·······  25 %  about 6 s left  data, vulkan"
        );
    }

    #[test]
    fn bar_does_not_move_back() {
        let mut state = state();
        state.begin(Work::Amount(100, s(0)));
        let before = state.line(s(5), 50).unwrap();
        let after = state.line(s(6), 40).unwrap();
        assert_eq!(before.split('%').next(), after.split('%').next());
    }

    #[test]
    fn progress_without_terminal_calls_print() {
        let progress = Progress::default();
        progress.rounds(1, 1);
        progress.step(None);
        assert_eq!(progress.paused(|| 7), 7);
        progress.end();
    }

    #[test]
    fn paused_or_ended_progress_draws_nothing() {
        let shared = Shared::new("bench");
        shared.lock().is_paused = true;
        assert!(shared.draw());
        shared.lock().has_ended = true;
        assert!(!shared.draw());
        assert_eq!(shared.lock().shown, None);
    }
}
