//! Puts frames into the order of their numbers, drops repeated frames, and finds missing frames.
//!
//! A publisher numbers the frames of a run without gaps, and publishes frame `n + window` only after frame `n` was stored or
//! refused. Messages of a stream are received in the order in which the server stored them. So when frame `m` arrives, all
//! frames up to `m - window` that the stream contains have arrived before. A frame that has not is missing. The caller must
//! keep this order when the connection is interrupted.
//!
//! The numbers of an unordered run show nothing about missing frames. Its frames are delivered as they arrive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Number of runs whose position is remembered.
const MAX_RUNS: usize = 64;
/// Number of frames that a run remembers: missing frames, to recognise them if they arrive late, or delivered frames of an
/// unordered run.
const MAX_REMEMBERED: usize = 1 << 16;
/// Maximum number of frames of a run that wait for earlier ones.
const MAX_WINDOW: u64 = 1 << 16;

/// Result of inserting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The frame is new.
    New,
    /// The frame arrived before and is not delivered yet.
    Waiting,
    /// The frame was delivered before.
    Delivered,
    /// The frame was counted as missing, or precedes the frame at which its run was joined.
    Late,
}

/// A frame in its order.
#[derive(Debug, PartialEq, Eq)]
pub struct Ordered<T> {
    /// The frame.
    pub item: T,
    /// Number of frames that are missing before it.
    pub missing: u64,
}

#[derive(Debug)]
struct Run<T> {
    name: String,
    /// All frames below this number are delivered or missing.
    next: u64,
    /// Highest number that proves frames below it as missing: of all received frames the maximum of `number - window`.
    proven: Option<u64>,
    waiting: BTreeMap<u64, T>,
    /// When the oldest gap appeared.
    gap_since: Option<Instant>,
    missed: BTreeSet<u64>,
    /// The largest window of the sender.
    window: u64,
    /// Delivered frames of an unordered run; `None` if the run is ordered.
    delivered: Option<BTreeSet<u64>>,
    /// Frames below this number were never expected: the run was joined at this frame.
    start: u64,
}

/// The runs of one consumer.
#[derive(Debug)]
pub struct Runs<T> {
    runs: VecDeque<Run<T>>,
    /// Time after which a gap counts as missing if no further frame proves it.
    timeout: Duration,
}

impl<T> Runs<T> {
    /// Creates an empty list. A frame counts as missing at the latest `timeout` after a later frame arrived.
    pub const fn new(timeout: Duration) -> Self {
        Self {
            runs: VecDeque::new(),
            timeout,
        }
    }

    /// Declares that all frames of `run` below `next` were delivered by an earlier process.
    pub fn resume(&mut self, run: &str, next: u64) {
        let run = self.run(run, next);
        run.start = 0;
        run.next = run.next.max(next);
        let next = run.next;
        run.waiting.retain(|number, _| *number >= next);
    }

    /// Returns whether a frame of `run` has arrived before.
    pub fn knows(&self, run: &str) -> bool {
        self.runs.iter().any(|known| known.name == run)
    }

    /// Declares that frame `start` is the first of the unknown run `run` that can be delivered. Lower numbers that arrive later
    /// are [`Inserted::Late`].
    pub fn begin(&mut self, run: &str, start: u64) {
        self.run(run, start);
    }

    /// Declares that the frames of `run` arrive in any order and with any gaps.
    pub fn set_unordered(&mut self, run: &str) {
        self.run(run, 0).delivered.get_or_insert_default();
    }

    fn run(&mut self, name: &str, next: u64) -> &mut Run<T> {
        let at = self.runs.iter().position(|run| run.name == name);
        let at = at.unwrap_or_else(|| {
            if self.runs.len() == MAX_RUNS
                && let Some(idle) = self.runs.iter().position(|run| run.waiting.is_empty())
            {
                self.runs.remove(idle);
            }
            self.runs.push_back(Run {
                name: name.to_owned(),
                next,
                proven: None,
                waiting: BTreeMap::new(),
                gap_since: None,
                missed: BTreeSet::new(),
                window: 0,
                delivered: None,
                start: next,
            });
            self.runs.len() - 1
        });
        &mut self.runs[at]
    }

    /// Returns the state of frame `number` of `run` without inserting it.
    pub fn state(&self, run: &str, number: u64) -> Inserted {
        let Some(run) = self.runs.iter().find(|known| known.name == run) else {
            return Inserted::New;
        };
        let is_past = match &run.delivered {
            Some(delivered) => delivered.contains(&number),
            None => number < run.next,
        };
        if run.waiting.contains_key(&number) {
            Inserted::Waiting
        } else if !is_past {
            Inserted::New
        } else if run.missed.contains(&number) || number < run.start {
            Inserted::Late
        } else {
            Inserted::Delivered
        }
    }

    /// Inserts frame `number` of `run`, whose sender has the window `window`.
    pub fn insert(&mut self, run: &str, number: u64, window: u64, item: T) -> Inserted {
        let state = self.state(run, number);
        if state != Inserted::New {
            return state;
        }
        let run = self.run(run, number);
        run.waiting.insert(number, item);
        run.prove(number, window);
        Inserted::New
    }

    /// Records that a message of frame `number` of `run` has arrived, although the frame is not complete.
    pub fn saw(&mut self, run: &str, number: u64, window: u64) {
        self.run(run, number).prove(number, window);
    }

    /// Declares that the frames before frame `number` of `run` are missing, if they are not more than `deleted`: the server has
    /// deleted that many messages before this frame.
    pub fn explain(&mut self, run: &str, number: u64, deleted: u64) {
        let run = self.run(run, number);
        if (1..=deleted).contains(&number.saturating_sub(run.next)) {
            run.proven = run.proven.max(Some(number - 1));
        }
    }

    /// Returns the next frame that is in order.
    pub fn pop(&mut self, now: Instant) -> Option<Ordered<T>> {
        let timeout = self.timeout;
        self.runs.iter_mut().find_map(|run| run.pop(now, timeout))
    }

    /// Returns the number of frames that wait for frames before them.
    pub fn waiting(&self) -> usize {
        self.runs.iter().map(|run| run.waiting.len()).sum()
    }

    /// Returns the frames that wait for frames before them.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.runs.iter().flat_map(|run| run.waiting.values())
    }

    /// Returns the sum of the windows of all runs that have waiting frames or for which `has_partial` returns true.
    pub fn windows(&self, has_partial: impl Fn(&str) -> bool) -> usize {
        let active = |run: &&Run<T>| !run.waiting.is_empty() || has_partial(&run.name);
        let windows = self.runs.iter().filter(active).map(|run| run.window);
        usize::try_from(windows.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Restarts the timeouts of all gaps, because no frames can arrive at the moment.
    pub fn restart_timeouts(&mut self) {
        for run in &mut self.runs {
            run.gap_since = None;
        }
    }
}

/// Adds `numbers` to a set of limited size.
fn remember(set: &mut BTreeSet<u64>, numbers: impl IntoIterator<Item = u64>) {
    set.extend(numbers);
    while set.len() > MAX_REMEMBERED {
        set.pop_first();
    }
}

impl<T> Run<T> {
    fn prove(&mut self, number: u64, window: u64) {
        self.window = self.window.max(window.min(MAX_WINDOW));
        let below = number.checked_sub(window);
        self.proven = self.proven.max(below);
    }

    fn pop(&mut self, now: Instant, timeout: Duration) -> Option<Ordered<T>> {
        let (&first, _) = self.waiting.first_key_value()?;
        if let Some(delivered) = &mut self.delivered {
            remember(delivered, [first]);
            let (_, item) = self.waiting.pop_first()?;
            return Some(Ordered { item, missing: 0 });
        }
        let is_proven = self.proven.is_some_and(|proven| proven + 1 >= first);
        let is_next = first == self.next;
        let gap_since = *self.gap_since.get_or_insert(now);
        if !is_next && !is_proven && now.duration_since(gap_since) < timeout {
            return None;
        }
        self.gap_since = None;
        let missing = first - self.next;
        let oldest = self.next.max(first.saturating_sub(MAX_REMEMBERED as u64));
        remember(&mut self.missed, oldest..first);
        self.next = first + 1;
        let (_, item) = self.waiting.pop_first()?;
        Some(Ordered { item, missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Returns the numbers that can be delivered, each with the number of missing frames before it.
    fn popped(runs: &mut Runs<u64>, now: Instant) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| runs.pop(now))
            .map(|found| (found.item, found.missing))
            .collect()
    }

    #[test]
    fn gaps_are_missing_once_the_window_has_passed() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        for number in [10, 12] {
            assert_eq!(runs.insert("r", number, 4, number), Inserted::New);
        }
        assert_eq!(popped(&mut runs, now), [(10, 0)]);
        assert_eq!(runs.insert("r", 12, 4, 12), Inserted::Waiting);
        assert_eq!(runs.insert("r", 10, 4, 10), Inserted::Delivered);
        runs.insert("r", 14, 4, 14);
        assert_eq!(popped(&mut runs, now), [], "frame 11 may still arrive");
        runs.insert("r", 15, 4, 15);
        assert_eq!(
            popped(&mut runs, now),
            [(12, 1)],
            "frame 15 proves that 11 is missing"
        );
        runs.insert("r", 13, 4, 13);
        assert_eq!(popped(&mut runs, now), [(13, 0), (14, 0), (15, 0)]);
        assert_eq!(runs.insert("r", 11, 4, 11), Inserted::Late);
    }

    #[test]
    fn gap_at_the_end_is_missing_after_timeout() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.insert("r", 0, 100, 0);
        runs.insert("r", 3, 100, 3);
        assert_eq!(popped(&mut runs, now), [(0, 0)]);
        assert_eq!(
            (popped(&mut runs, now + TIMEOUT / 2), runs.waiting()),
            (vec![], 1)
        );
        assert_eq!(popped(&mut runs, now + TIMEOUT), [(3, 2)]);
    }

    #[test]
    fn deleted_frames_are_missing_at_once() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 5);
        runs.insert("r", 9, 100, 9);
        runs.explain("r", 9, 3);
        assert_eq!(popped(&mut runs, now), [], "four frames are missing");
        runs.explain("r", 9, 4);
        assert_eq!(popped(&mut runs, now), [(9, 4)]);
    }

    #[test]
    fn frames_of_an_earlier_process_are_not_delivered_again() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 8);
        assert_eq!(runs.insert("r", 7, 4, 7), Inserted::Delivered);
        assert_eq!(runs.insert("r", 12, 4, 12), Inserted::New);
        runs.insert("r", 13, 4, 13);
        assert_eq!(popped(&mut runs, now + TIMEOUT), [] as [(u64, u64); 0]);
        assert_eq!(popped(&mut runs, now + 3 * TIMEOUT), [(12, 4), (13, 0)]);
    }

    /// A server with a full stream stores frames in the order in which room for them appears.
    #[test]
    fn run_begins_with_its_first_frame_in_any_order() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        assert!(!runs.knows("r"));
        runs.begin("r", 0);
        runs.insert("r", 2, 8, 2);
        assert_eq!(popped(&mut runs, now), []);
        for number in [1, 0] {
            assert_eq!(runs.insert("r", number, 8, number), Inserted::New);
        }
        assert_eq!(popped(&mut runs, now), [(0, 0), (1, 0), (2, 0)]);
        // A run that was joined later has lower numbers that were never delivered.
        runs.begin("other", 5);
        runs.insert("other", 5, 8, 5);
        assert_eq!(popped(&mut runs, now), [(5, 0)]);
        assert_eq!(runs.insert("other", 4, 8, 4), Inserted::Late);
        assert_eq!(runs.insert("other", 5, 8, 5), Inserted::Delivered);
    }

    #[test]
    fn frames_of_unordered_runs_are_delivered_once_in_any_order() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.set_unordered("r");
        runs.insert("r", 5, 4, 5);
        runs.insert("r", 9, 4, 9);
        assert_eq!(popped(&mut runs, now), [(5, 0), (9, 0)]);
        assert_eq!(runs.insert("r", 3, 4, 3), Inserted::New);
        assert_eq!(popped(&mut runs, now), [(3, 0)]);
        for number in [3, 5, 9] {
            assert_eq!(runs.insert("r", number, 4, number), Inserted::Delivered);
        }
    }

    #[test]
    fn waiting_frames_of_each_run_have_a_window() {
        let mut runs = Runs::new(TIMEOUT);
        for name in ["a", "b", "c"] {
            runs.resume(name, 0);
            runs.saw(name, 1, 16);
        }
        runs.insert("a", 1, 16, 1);
        runs.insert("b", 1, u64::MAX, 1);
        let window = usize::try_from(MAX_WINDOW).unwrap();
        assert_eq!(runs.windows(|_| false), 16 + window);
        assert_eq!(runs.windows(|run| run == "c"), 32 + window);
    }

    #[test]
    fn gap_does_not_time_out_while_no_frames_can_arrive() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 0);
        runs.insert("r", 1, 16, 1);
        assert_eq!(popped(&mut runs, now), []);
        runs.restart_timeouts();
        assert_eq!(popped(&mut runs, now + 2 * TIMEOUT), []);
        assert_eq!(popped(&mut runs, now + 3 * TIMEOUT), [(1, 1)]);
    }

    proptest! {
        /// Frames of a window arrive in any order, some of them twice and some not at all.
        #[test]
        fn frames_are_delivered_once_and_in_order(
            window in 1_u64..20, copies in prop::collection::vec(0_u8..4, 1..200), seed: u64,
        ) {
            let mut sent = Vec::new();
            for (number, kind) in (0_u64..).zip(&copies) {
                for _ in 0..match kind { 0 => 0, 1 => 2, _ => 1 } {
                    sent.push(number);
                }
            }
            // A deterministic shuffle that moves no frame behind one that is `window` later.
            let mut order = sent.clone();
            let mut random = seed | 1;
            for i in 1..order.len() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let back = usize::try_from(random >> 33).unwrap() % usize::try_from(window).unwrap();
                let to = i.saturating_sub(back);
                if order[to..i].iter().all(|earlier| earlier.abs_diff(order[i]) < window) {
                    let moved = order.remove(i);
                    order.insert(to, moved);
                }
            }
            let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
            runs.resume("r", 0);
            let mut found = Vec::new();
            for number in order {
                runs.insert("r", number, window, number);
                found.extend(popped(&mut runs, now));
            }
            // Each gap at the end waits for its timeout.
            let mut later = now;
            for _ in 0..2 * window {
                later += TIMEOUT;
                found.extend(popped(&mut runs, later));
            }
            prop_assert_eq!(runs.waiting(), 0);
            sent.dedup();
            let delivered: Vec<_> = found.iter().map(|(number, _)| *number).collect();
            prop_assert_eq!(&delivered, &sent);
            let mut next = 0;
            for (number, missing) in found {
                prop_assert_eq!(number, next + missing);
                next = number + 1;
            }
        }
    }
}
