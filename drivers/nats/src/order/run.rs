//! The frames of one run.

use super::{Inserted, MAX_GAP, MAX_WINDOW, MIN_LEAP, Ordered, last_of, remember};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A run: the numbers of its frames, and the frames that wait.
#[derive(Debug)]
pub(super) struct Run<T> {
    pub(super) name: String,
    /// All frames below this number are delivered or missing, except those below `start` and those in `skipped`.
    pub(super) next: u64,
    /// Highest number that proves frames below it as missing: of all received frames the maximum of `number - window`.
    proven: Option<u64>,
    /// Frames that wait; `None` for a lost frame.
    waiting: BTreeMap<u64, Option<T>>,
    /// When the oldest gap appeared.
    pub(super) gap_since: Option<Instant>,
    missed: BTreeSet<u64>,
    /// The largest window of the sender.
    window: u64,
    /// Delivered frames of an unordered run; `None` if the run is ordered.
    pub(super) delivered: Option<BTreeSet<u64>>,
    /// The run was joined at this frame. Frames below it are delivered as they arrive.
    start: u64,
    /// Delivered frames below `start`.
    early: BTreeSet<u64>,
    /// An earlier process may have received frames below this number.
    uncertain: u64,
    /// Frames below `uncertain` that were neither delivered nor counted as missing.
    skipped: BTreeSet<u64>,
    /// Number of frames that the server deleted and that are not counted yet.
    deleted: u64,
    /// Frames up to this number need no confirmation.
    pub(super) trusted: u64,
    /// A frame far beyond the others, which no second frame has confirmed.
    leap: Option<(u64, T)>,
    /// The frame at which the sender was restarted.
    restart: Option<u64>,
}

impl<T> Run<T> {
    pub(super) fn new(name: &str, next: u64) -> Self {
        Self {
            name: name.to_owned(),
            next,
            proven: None,
            waiting: BTreeMap::new(),
            gap_since: None,
            missed: BTreeSet::new(),
            window: 0,
            delivered: None,
            start: next,
            early: BTreeSet::new(),
            uncertain: 0,
            skipped: BTreeSet::new(),
            deleted: 0,
            trusted: 0,
            leap: None,
            restart: None,
        }
    }

    pub(super) fn resume(&mut self, next: u64, window: u64) {
        self.start = 0;
        self.next = self.next.max(next);
        self.uncertain = self.next.saturating_add(window);
        let next = self.next;
        self.waiting.retain(|number, _| *number >= next);
    }

    /// Whether no frame waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.leap.is_none()
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &T> {
        let leap = self.leap.as_ref().map(|(_, item)| item);
        self.waiting.values().flatten().chain(leap)
    }

    pub(super) fn state(&self, number: u64) -> Inserted {
        let is_leap = self.leap.as_ref().is_some_and(|(leap, _)| *leap == number);
        if is_leap || self.waiting.contains_key(&number) {
            return Inserted::Waiting;
        }
        let is_past = match &self.delivered {
            Some(delivered) => delivered.contains(&number),
            None if number < self.start => self.early.contains(&number),
            None => number < self.next && !self.skipped.contains(&number),
        };
        if !is_past {
            Inserted::New
        } else if self.missed.contains(&number) {
            Inserted::Late
        } else {
            Inserted::Delivered
        }
    }

    /// Returns the distance beyond which a number must be confirmed.
    fn max_distance(&self, window: u64) -> u64 {
        2 * self.window.max(window).clamp(MIN_LEAP, MAX_WINDOW)
    }

    /// Returns whether `number` is so far beyond the others that a second frame must confirm it.
    fn is_leap(&self, number: u64, window: u64) -> bool {
        let floor = self.next.max(self.uncertain).max(self.trusted);
        let is_explained = self
            .proven
            .is_some_and(|proven| proven.saturating_add(1) >= number);
        self.delivered.is_none()
            && !is_explained
            && number.saturating_sub(floor) > self.max_distance(window)
    }

    /// Inserts a new frame. Returns a frame whose number is wrong.
    pub(super) fn insert(&mut self, number: u64, window: u64, item: T) -> Option<T> {
        let leap = self.leap.take();
        if !self.is_leap(number, window) {
            self.waiting.insert(number, Some(item));
            self.prove(number, window);
            // The sender would not publish this frame after one so far beyond it.
            return leap.map(|(_, item)| item);
        }
        let Some((other, waiting)) = leap else {
            self.leap = Some((number, item));
            return None;
        };
        if number.abs_diff(other) > self.max_distance(window) {
            self.leap = Some((number, item));
            return Some(waiting);
        }
        let first = number.min(other);
        if first.saturating_sub(self.next) > MAX_GAP {
            self.restart = Some(first);
        }
        self.trusted = number.max(other);
        self.waiting.insert(other, Some(waiting));
        self.waiting.insert(number, Some(item));
        self.prove(number.max(other), window);
        None
    }

    pub(super) fn saw(&mut self, number: u64, window: u64) {
        if !self.is_leap(number, window) {
            self.prove(number, window);
        }
    }

    pub(super) fn lose(&mut self, number: u64) -> bool {
        if self.is_leap(number, 0) {
            return false;
        }
        self.waiting.insert(number, None);
        self.proven = self.proven.max(number.checked_sub(1));
        true
    }

    pub(super) fn explain(&mut self, number: u64, deleted: u64) {
        self.deleted = deleted;
        if (1..=deleted).contains(&number.saturating_sub(self.next)) {
            self.proven = self.proven.max(Some(number - 1));
        }
    }

    pub(super) fn force(&mut self) -> bool {
        let Some((&first, _)) = self.waiting.first_key_value() else {
            return false;
        };
        self.proven = self.proven.max(Some(first));
        true
    }

    pub(super) fn take_leap(&mut self) -> Option<T> {
        self.leap.take().map(|(_, item)| item)
    }

    fn prove(&mut self, number: u64, window: u64) {
        self.window = self.window.max(window.min(MAX_WINDOW));
        self.proven = self.proven.max(number.checked_sub(window));
    }

    pub(super) fn pop(
        &mut self,
        now: Instant,
        timeout: Duration,
        rejected: &mut Vec<T>,
    ) -> Option<Ordered<T>> {
        if self.waiting.is_empty() {
            self.confirm(now, timeout, rejected);
        }
        let (&first, item) = self.waiting.first_key_value()?;
        let lost = u64::from(item.is_none());
        let missing = match &mut self.delivered {
            Some(delivered) => {
                remember(delivered, [first]);
                0
            }
            None if first < self.next => {
                self.skipped.remove(&first);
                remember(&mut self.early, [first]);
                0
            }
            None => self.missing(first, now, timeout)?,
        };
        let (_, item) = self.waiting.pop_first()?;
        Some(Ordered {
            item,
            missing: missing.saturating_add(lost),
            is_restart: self.restart.take_if(|restart| *restart == first).is_some(),
        })
    }

    /// Returns the number of frames that are missing before frame `first`; `None` if they may still arrive.
    fn missing(&mut self, first: u64, now: Instant, timeout: Duration) -> Option<u64> {
        let floor = self.next.max(self.uncertain.min(first));
        let is_proven = self
            .proven
            .is_some_and(|proven| proven.saturating_add(1) >= first);
        let gap_since = *self.gap_since.get_or_insert(now);
        if first != floor && !is_proven && now.duration_since(gap_since) < timeout {
            return None;
        }
        self.gap_since = None;
        let possible = floor - self.next;
        let deleted = possible.min(self.deleted);
        self.deleted -= deleted;
        let passed = last_of(self.next, floor);
        if deleted == possible {
            remember(&mut self.missed, passed);
        } else {
            remember(&mut self.skipped, passed);
        }
        remember(&mut self.missed, last_of(floor, first));
        self.next = first.saturating_add(1);
        if self.restart == Some(first) {
            return Some(0);
        }
        Some((first - floor).saturating_add(deleted))
    }

    /// Accepts or rejects a frame whose number no second frame has confirmed in time.
    fn confirm(&mut self, now: Instant, timeout: Duration, rejected: &mut Vec<T>) {
        if self.leap.is_none() {
            return;
        }
        let since = *self.gap_since.get_or_insert(now);
        if now.duration_since(since) < timeout {
            return;
        }
        let Some((number, item)) = self.leap.take() else {
            return;
        };
        if number.saturating_sub(self.next) > MAX_GAP {
            self.gap_since = None;
            rejected.push(item);
            return;
        }
        self.trusted = number;
        self.waiting.insert(number, Some(item));
    }
}
