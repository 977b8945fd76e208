//! Puts frames into the order of their numbers, drops repeated frames, and finds missing frames.
//!
//! A publisher numbers the frames of a run without gaps, and publishes frame `n + window` only after frame `n` was stored or
//! refused. Messages of a stream are received in the order in which the server stored them. So when frame `m` arrives, all
//! frames up to `m - window` that the stream contains have arrived before. A frame that has not is missing. The caller must
//! keep this order when the connection is interrupted.
//!
//! A frame whose number is far beyond the window waits until a second frame confirms its number, because one wrong number
//! must not make all frames before it missing.
//!
//! The numbers of an unordered run show nothing about missing frames. Its frames are delivered as they arrive. The same holds
//! for frames below the number at which a run was joined, and for the first frames after a restart of the receiver.

mod run;

use run::Run;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Number of runs whose state is remembered.
const MAX_RUNS: usize = 64;
/// Number of further runs whose position is remembered.
const MAX_POSITIONS: usize = 4096;
/// Number of frames that a run remembers: missing frames, to recognise them if they arrive late, or delivered frames of an
/// unordered run.
const MAX_REMEMBERED: usize = 1 << 16;
/// Maximum window of a sender.
const MAX_WINDOW: u64 = 1 << 16;
/// A number that is more than twice this number, or twice the window, beyond the next one must be confirmed by a second frame.
const MIN_LEAP: u64 = 32;
/// Maximum number of frames that one gap counts as missing. A larger jump is a restart of the sender.
const MAX_GAP: u64 = 1 << 40;

/// Result of inserting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The frame is new.
    New,
    /// The frame arrived before and is not delivered yet.
    Waiting,
    /// The frame was delivered before.
    Delivered,
    /// The frame was counted as missing.
    Late,
}

/// A frame in its order.
#[derive(Debug, PartialEq, Eq)]
pub struct Ordered<T> {
    /// The frame; `None` if only missing frames are reported.
    pub item: Option<T>,
    /// Number of frames that are missing before it.
    pub missing: u64,
    /// Whether the number is so far from the others that the sender was restarted.
    pub is_restart: bool,
}

/// The runs of one consumer.
#[derive(Debug)]
pub struct Runs<T> {
    /// The last one was used last.
    recent: VecDeque<Run<T>>,
    /// The next frames of runs that were removed from `recent`.
    positions: HashMap<String, u64>,
    /// Whether positions were forgotten.
    has_forgotten: bool,
    /// Frames whose number no second frame has confirmed.
    rejected: Vec<T>,
    /// Time after which a gap counts as missing if no further frame proves it.
    timeout: Duration,
}

impl<T> Runs<T> {
    /// Creates an empty list. A frame counts as missing at the latest `timeout` after a later frame arrived.
    pub fn new(timeout: Duration) -> Self {
        Self {
            recent: VecDeque::new(),
            positions: HashMap::new(),
            has_forgotten: false,
            rejected: Vec::new(),
            timeout,
        }
    }

    /// Declares that all frames of `run` below `next` were delivered by an earlier process, which may also have delivered some
    /// of the `window` frames from `next` on.
    pub fn resume(&mut self, run: &str, next: u64, window: u64) {
        self.run(run, next).resume(next, window.min(MAX_WINDOW));
    }

    /// Returns whether a frame of `run` has arrived before, or may have arrived before.
    pub fn knows(&self, run: &str) -> bool {
        self.has_forgotten || self.positions.contains_key(run) || self.find(run).is_some()
    }

    /// Declares that frame `start` is the first of the unknown run `run` that is expected. Lower numbers that arrive later are
    /// delivered as they arrive.
    pub fn begin(&mut self, run: &str, start: u64) {
        self.run(run, start);
    }

    /// Declares that the frames of `run` arrive in any order and with any gaps.
    pub fn set_unordered(&mut self, run: &str) {
        self.run(run, 0).delivered.get_or_insert_default();
    }

    /// Records that frame `number` of the unordered run `run` was delivered.
    pub fn remember(&mut self, run: &str, number: u64) {
        if let Some(delivered) = &mut self.run(run, number).delivered {
            remember(delivered, [number]);
        }
    }

    fn find(&self, name: &str) -> Option<&Run<T>> {
        self.recent.iter().rev().find(|run| run.name == name)
    }

    fn run(&mut self, name: &str, next: u64) -> &mut Run<T> {
        let last = self.recent.len().wrapping_sub(1);
        match self.recent.iter().rposition(|run| run.name == name) {
            Some(at) if at == last => {}
            Some(at) => {
                if let Some(run) = self.recent.remove(at) {
                    self.recent.push_back(run);
                }
            }
            None => {
                if self.recent.len() >= MAX_RUNS {
                    self.forget_one();
                }
                let known = self.positions.remove(name);
                let mut run = Run::new(name, known.unwrap_or(next));
                if let Some(next) = known {
                    run.resume(next, 0);
                }
                self.recent.push_back(run);
            }
        }
        let last = self.recent.len() - 1;
        &mut self.recent[last]
    }

    /// Removes the run that was used least recently and has no waiting frames. Only its position is remembered.
    fn forget_one(&mut self) {
        let idle = self.recent.iter().position(Run::is_idle);
        let Some(run) = idle.and_then(|at| self.recent.remove(at)) else {
            return;
        };
        if self.positions.len() >= MAX_POSITIONS {
            self.positions.clear();
            self.has_forgotten = true;
        }
        if run.delivered.is_none() {
            self.positions.insert(run.name, run.next);
        }
    }

    /// Returns the state of frame `number` of `run` without inserting it.
    pub fn state(&self, run: &str, number: u64) -> Inserted {
        match self.find(run) {
            Some(run) => run.state(number),
            None if self.positions.get(run).is_some_and(|next| number < *next) => {
                Inserted::Delivered
            }
            None => Inserted::New,
        }
    }

    /// Inserts frame `number` of `run`, whose sender has the window `window`.
    pub fn insert(&mut self, run: &str, number: u64, window: u64, item: T) -> Inserted {
        let state = self.state(run, number);
        if state == Inserted::New {
            let rejected = self.run(run, number).insert(number, window, item);
            self.rejected.extend(rejected);
        }
        state
    }

    /// Records that a message of frame `number` of `run` has arrived, although the frame is not complete.
    pub fn saw(&mut self, run: &str, number: u64, window: u64) {
        self.run(run, number).saw(number, window);
    }

    /// Declares that the new frame `number` of `run` is lost, and that earlier frames do not arrive any more. Returns whether it
    /// counts as missing.
    pub fn lose(&mut self, run: &str, number: u64) -> bool {
        self.state(run, number) == Inserted::New && self.run(run, number).lose(number)
    }

    /// Declares that the server has deleted `deleted` frames before frame `number` of `run`. The frames before it are missing
    /// if they are not more.
    pub fn explain(&mut self, run: &str, number: u64, deleted: u64) {
        self.run(run, number).explain(number, deleted);
    }

    /// Declares that any number of frames before frame `number` of `run` may be missing.
    pub fn trust(&mut self, run: &str, number: u64) {
        self.run(run, number).trusted = number;
    }

    /// Returns the next frame that is in order.
    pub fn pop(&mut self, now: Instant) -> Option<Ordered<T>> {
        let timeout = self.timeout;
        let rejected = &mut self.rejected;
        self.recent
            .iter_mut()
            .find_map(|run| run.pop(now, timeout, rejected))
    }

    /// Declares that the frames before the first waiting frame are missing. If all waiting frames need a confirmation, one of them
    /// is rejected. Returns whether a frame waits.
    pub fn force(&mut self) -> bool {
        if self.recent.iter_mut().any(Run::force) {
            return true;
        }
        let leap = self.recent.iter_mut().find_map(Run::take_leap);
        let is_found = leap.is_some();
        self.rejected.extend(leap);
        is_found
    }

    /// Removes the frames whose numbers are wrong.
    pub fn take_rejected(&mut self) -> Vec<T> {
        std::mem::take(&mut self.rejected)
    }

    /// Returns whether no frame waits.
    pub fn is_idle(&self) -> bool {
        self.recent.iter().all(Run::is_idle)
    }

    /// Returns the frames that wait for frames before them.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.recent.iter().flat_map(Run::items)
    }

    /// Restarts the timeouts of all gaps, because no frames can arrive at the moment.
    pub fn restart_timeouts(&mut self) {
        for run in &mut self.recent {
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

/// Returns the last numbers of a range that are worth remembering.
fn last_of(from: u64, to: u64) -> std::ops::Range<u64> {
    from.max(to.saturating_sub(MAX_REMEMBERED as u64))..to
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Returns the numbers that can be delivered, each with the number of missing frames before it.
    fn popped(runs: &mut Runs<u64>, now: Instant) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| runs.pop(now))
            .map(|found| (found.item.unwrap_or(u64::MAX), found.missing))
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
            (popped(&mut runs, now + TIMEOUT / 2), runs.is_idle()),
            (vec![], false)
        );
        assert_eq!(popped(&mut runs, now + TIMEOUT), [(3, 2)]);
    }

    #[test]
    fn deleted_frames_are_missing_at_once() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 5, 0);
        runs.insert("r", 9, 100, 9);
        runs.explain("r", 9, 3);
        assert_eq!(popped(&mut runs, now), [], "four frames are missing");
        runs.explain("r", 9, 4);
        assert_eq!(popped(&mut runs, now), [(9, 4)]);
    }

    #[test]
    fn frames_of_an_earlier_process_are_not_delivered_again() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 8, 0);
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
        // A run that was joined later delivers lower numbers as they arrive.
        runs.begin("other", 5);
        runs.insert("other", 5, 8, 5);
        assert_eq!(popped(&mut runs, now), [(5, 0)]);
        assert_eq!(runs.insert("other", 4, 8, 4), Inserted::New);
        assert_eq!(popped(&mut runs, now), [(4, 0)]);
        for number in [4, 5] {
            let found = runs.insert("other", number, 8, number);
            assert_eq!(found, Inserted::Delivered);
        }
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

    /// The sender stored frame 6 after frames 7 to 9, so its position in the stream shows nothing about them.
    #[test]
    fn frames_that_an_earlier_process_may_have_received_are_not_missing() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 7, 8);
        runs.insert("r", 10, 8, 10);
        assert_eq!(popped(&mut runs, now), [(10, 0)]);
        assert_eq!(runs.insert("r", 8, 8, 8), Inserted::New);
        assert_eq!(popped(&mut runs, now), [(8, 0)]);
        assert_eq!(runs.insert("r", 8, 8, 8), Inserted::Delivered);
        // Two deleted frames are missing, although the earlier process may have received frames 11 to 14.
        runs.explain("r", 13, 2);
        runs.insert("r", 13, 8, 13);
        assert_eq!(popped(&mut runs, now), [(13, 2)]);
        runs.insert("r", 20, 1, 20);
        assert_eq!(popped(&mut runs, now), [(20, 5)]);
    }

    #[test]
    fn run_that_was_forgotten_continues_at_its_number() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        for number in 0..10 {
            runs.insert("old", number, 256, number);
        }
        for other in 0..MAX_RUNS {
            // A run that is in use is not forgotten.
            runs.insert("used", other as u64, 256, other as u64);
            runs.insert(&format!("run {other}"), 0, 256, 0);
            let _ = popped(&mut runs, now);
        }
        assert!(runs.find("old").is_none() && runs.find("used").is_some());
        assert!(runs.knows("old"));
        assert_eq!(runs.insert("old", 9, 256, 9), Inserted::Delivered);
        for number in 10..20 {
            runs.insert("old", number, 256, number);
        }
        let expected: Vec<_> = (10..20).map(|number| (number, 0)).collect();
        assert_eq!(popped(&mut runs, now), expected);
    }

    #[test]
    fn one_wrong_number_makes_no_frames_missing() {
        for window in [1, 8] {
            let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
            let wrong = u64::MAX >> 1;
            runs.insert("r", 0, window, 0);
            assert_eq!(runs.insert("r", wrong, window, wrong), Inserted::New);
            assert_eq!(runs.insert("r", wrong, window, wrong), Inserted::Waiting);
            runs.saw("r", wrong - 1, window);
            assert_eq!(popped(&mut runs, now), [(0, 0)]);
            for number in 1..4 {
                runs.insert("r", number, window, number);
            }
            assert_eq!(popped(&mut runs, now), [(1, 0), (2, 0), (3, 0)]);
            assert_eq!(runs.take_rejected(), [wrong]);
            // Nothing confirms the number.
            runs.insert("r", wrong, window, wrong);
            assert_eq!(popped(&mut runs, now), []);
            assert_eq!(popped(&mut runs, now + TIMEOUT), []);
            assert_eq!(runs.take_rejected(), [wrong]);
        }
    }

    #[test]
    fn two_frames_confirm_a_jump() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        for number in [0, 1000, 1001] {
            runs.insert("r", number, 8, number);
        }
        assert_eq!(popped(&mut runs, now), [(0, 0)]);
        runs.insert("r", 1008, 8, 1008);
        assert_eq!(popped(&mut runs, now), [(1000, 999), (1001, 0)]);
        // A jump beyond each plausible gap is a restart.
        let far = 1 << 50;
        runs.insert("r", 1002, 1, 1002);
        for number in [far, far + 1] {
            runs.insert("r", number, 1, number);
        }
        let found: Vec<_> = std::iter::from_fn(|| runs.pop(now)).collect();
        let seen: Vec<_> = found.iter().map(|f| (f.missing, f.is_restart)).collect();
        assert_eq!(
            seen,
            [(0, false), (5, false), (0, true), (0, false)],
            "frames 1003 to 1007 are missing"
        );
    }

    #[test]
    fn lost_frame_is_missing_without_a_later_one() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.insert("r", 0, 8, 0);
        assert!(runs.lose("r", 2) && !runs.lose("r", 0));
        assert_eq!(popped(&mut runs, now), [(0, 0), (u64::MAX, 2)]);
        assert_eq!(runs.state("r", 2), Inserted::Delivered);
    }

    #[test]
    fn gap_does_not_time_out_while_no_frames_can_arrive() {
        let (mut runs, now) = (Runs::new(TIMEOUT), Instant::now());
        runs.resume("r", 0, 0);
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
            runs.resume("r", 0, 0);
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
            prop_assert!(runs.is_idle());
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
