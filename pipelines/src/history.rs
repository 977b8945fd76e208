//! The history of the ledgers: how much arrived and what was lost in each second and each minute.
//!
//! ```text
//!  ledgers ──5 times a second──▶ the last 10 minutes, per second ──▶ /history?span=10m
//!                          └───▶ the last 24 hours, per minute ────▶ /history?span=24h
//!                                        └──once a minute──▶ file in the state directory
//! ```
//! The monitor thread fills the history with the differences between reports. Its memory is fixed: about 16 kB per
//! number of a source or ring. A restarted daemon continues the 24-hour history.

mod file;
mod numbers;
mod sentence;
mod track;

pub(crate) use file::Saver;

use daq_core::ledger::{ReaderReport, Report, RingReport, SourceReport};
use numbers::{RingNumbers, SourceNumbers};
use sentence::{Account, Completeness, RECENT};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use track::{Column, Columns, Track};

/// Maximum number of marks; the oldest are dropped.
const MAX_MARKS: usize = 512;
/// Number of minutes of the long history.
const DAY_MINUTES: usize = 1440;
/// Seconds of the long history.
const DAY: u64 = 86_400;
/// If the system clock is set back by more than this number of seconds, the history begins again.
const MAX_STEP_BACK: u64 = 120;

/// The time that a history covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// The last 10 minutes, per second.
    #[default]
    Minutes,
    /// The last 24 hours, per minute.
    Day,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "10m" => Ok(Self::Minutes),
            "24h" => Ok(Self::Day),
            _ => Err(format!("span `{text}` is neither 10m nor 24h")),
        }
    }
}

/// The kind of an event in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// daq started, without an earlier history.
    Start,
    /// The run ended.
    Stop,
    /// A sender restarted or its numbers made a jump.
    Epoch,
    /// daq started again and continues the history of an earlier run.
    Restart,
}

/// An event in a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Time in seconds since 1970.
    pub at: u64,
    /// What happened.
    pub kind: MarkKind,
    /// The source, for an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What happened, in words.
    pub text: String,
    /// Seconds before a restart that are not in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<u64>,
}

/// The response of `/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistoryAnswer {
    /// Seconds per bucket.
    step: u64,
    /// Start of the first bucket, in seconds since 1970.
    start: u64,
    sources: BTreeMap<String, SourceHistory>,
    rings: BTreeMap<String, RingHistory>,
    marks: Vec<Mark>,
}

/// The history of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SourceHistory {
    /// What the source counts: `packets` or `frames`.
    unit: &'static str,
    /// The ring that the source fills.
    ring: String,
    #[serde(flatten)]
    numbers: SourceNumbers<Column>,
    sentence: String,
    /// Time since which the data are complete, in seconds since 1970; `None` without data and while data are lost.
    complete_since: Option<u64>,
}

/// The history of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RingHistory {
    capacity: u64,
    #[serde(flatten)]
    numbers: RingNumbers<Column>,
}

/// The history that a file keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedHistory {
    /// Version of the format.
    format: u32,
    /// Time of the last check of the counters, in seconds since 1970.
    checked: u64,
    /// Whether the run ended cleanly.
    ended: bool,
    minutes: Columns,
    marks: VecDeque<Mark>,
}

/// The version of the format of [`SavedHistory`].
const FORMAT: u32 = 1;

/// The history of a pipeline. One thread records, any thread reads.
#[derive(Debug)]
pub struct History(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The ring that each source fills.
    sources: BTreeMap<String, String>,
    rings: Vec<String>,
    /// Time of the last check of the counters, in seconds since 1970.
    checked: u64,
    /// The counters at the last check.
    before: Report,
    seconds: Track,
    minutes: Track,
    completeness: BTreeMap<String, Completeness>,
    marks: VecDeque<Mark>,
    ended: bool,
}

impl History {
    /// Creates an empty history at the time `now`, in seconds since 1970. `sources` are the names of the sources, with the
    /// ring that each source fills.
    pub fn new(sources: BTreeMap<String, String>, rings: Vec<String>, now: u64) -> Self {
        let track = |step, complete| {
            let sources = sources.keys().map(String::as_str);
            Track::new(
                step,
                complete,
                now,
                sources,
                rings.iter().map(String::as_str),
            )
        };
        Self(Mutex::new(State {
            seconds: track(1, 600),
            minutes: track(60, DAY_MINUTES),
            sources,
            rings,
            checked: now,
            before: Report::default(),
            completeness: BTreeMap::new(),
            marks: VecDeque::new(),
            ended: false,
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks the start of the run. `saved` is the history of an earlier run; an error says why it cannot be continued.
    pub(crate) fn start(&self, saved: Option<SavedHistory>) -> Result<(), String> {
        self.with(|state| {
            let now = state.checked;
            // Nothing of an older history would be left.
            let is_recent = |saved: &SavedHistory| now.saturating_sub(saved.checked) < DAY;
            let saved = saved.filter(is_recent);
            let restored = saved.map(|saved| state.restore(saved));
            match restored {
                Some(Ok(mark)) => {
                    state.mark(mark);
                    Ok(())
                }
                other => {
                    state.mark(Mark {
                        at: now,
                        kind: MarkKind::Start,
                        source: None,
                        text: "daq started".to_owned(),
                        unrecorded: None,
                    });
                    other.map_or(Ok(()), |error| error.map(|_| ()))
                }
            }
        })
    }

    /// Adds the changes since the last call. `now` is the time in seconds since 1970.
    pub(crate) fn record(&self, report: &Report, now: u64) {
        self.with(|state| state.record(report, now));
    }

    /// Marks the end of the run.
    pub(crate) fn end(&self) {
        self.with(|state| {
            state.ended = true;
            state.mark(Mark {
                at: state.checked,
                kind: MarkKind::Stop,
                source: None,
                text: "daq stopped".to_owned(),
                unrecorded: None,
            });
        });
    }

    /// Returns the part of the history that a file keeps.
    pub(crate) fn saved(&self) -> SavedHistory {
        self.with(|state| SavedHistory {
            format: FORMAT,
            checked: state.checked,
            ended: state.ended,
            minutes: state.minutes.columns(0, true),
            marks: state.marks.clone(),
        })
    }

    /// Returns the complete buckets of `span` that begin at or after `since`, in seconds since 1970.
    pub fn answer(&self, span: Span, since: u64) -> HistoryAnswer {
        self.with(|state| state.answer(span, since))
    }
}

impl State {
    fn restore(&mut self, saved: SavedHistory) -> Result<Mark, String> {
        if saved.format != FORMAT {
            return Err(format!("its format {} is not {FORMAT}", saved.format));
        }
        let now = self.checked;
        self.minutes.restore(&saved.minutes)?;
        let is_past = |mark: &Mark| mark.at <= now;
        self.marks = saved.marks.into_iter().filter(is_past).collect();
        let gap = now.saturating_sub(saved.checked);
        let time = sentence::duration(gap);
        let text = if saved.ended {
            format!("daq started again, {time} after the last run ended")
        } else {
            format!(
                "daq started again after the last run was killed; the last {time} are not in the history"
            )
        };
        Ok(Mark {
            at: now,
            kind: MarkKind::Restart,
            source: None,
            text,
            unrecorded: Some(gap),
        })
    }

    fn mark(&mut self, mark: Mark) {
        self.marks.push_back(mark);
        while self.marks.len() > MAX_MARKS {
            self.marks.pop_front();
        }
    }

    fn record(&mut self, report: &Report, now: u64) {
        if now + MAX_STEP_BACK < self.checked {
            tracing::warn!(
                "the system clock was set back by {} s, so the history of the ledgers begins again",
                self.checked - now
            );
            let (sources, rings) = (self.sources.clone(), self.rings.clone());
            let again = History::new(sources, rings, now).0.into_inner();
            let before = std::mem::take(&mut self.before);
            *self = again.unwrap_or_else(PoisonError::into_inner);
            self.before = before;
        }
        let now = now.max(self.checked);
        self.checked = now;
        self.seconds.advance(now);
        self.minutes.advance(now);
        while self.marks.front().is_some_and(|mark| mark.at + DAY < now) {
            self.marks.pop_front();
        }
        let before = std::mem::replace(&mut self.before, report.clone());
        for (name, source) in &report.sources {
            self.record_source(name, source, &before, report, now);
        }
        for (name, ring) in &report.rings {
            let readers = report.readers.values();
            // Clients report what they have read only from time to time.
            let is_own = |reader: &&ReaderReport| reader.ring == *name && reader.process.is_none();
            let pending = readers.filter(is_own);
            let pending = pending.map(|reader| reader.pending).max().unwrap_or(0);
            let old = before.rings.get(name);
            let change = RingNumbers::between(old.unwrap_or(&RingReport::default()), ring, pending);
            self.seconds.add_ring(name, &change);
            self.minutes.add_ring(name, &change);
        }
    }

    fn record_source(
        &mut self,
        name: &str,
        source: &SourceReport,
        before: &Report,
        report: &Report,
        now: u64,
    ) {
        let Some(ring) = self.sources.get(name) else {
            return;
        };
        let empty = SourceReport::default();
        let old = before.sources.get(name).unwrap_or(&empty);
        let readers = report.readers.iter();
        let readers = readers.filter(|(_, reader)| reader.ring == *ring);
        let readers = readers.map(|(name, reader)| {
            let old = before.readers.get(name).map_or(0, |old| old.blocked);
            (name.as_str(), old, reader)
        });
        let change = SourceNumbers::between(old, source, readers);
        self.seconds.add_source(name, &change);
        self.minutes.add_source(name, &change);
        let completeness = self.completeness.entry(name.to_owned());
        completeness.or_default().add(now, &change);
        // The first epoch is the start of the stream.
        if source.epochs > old.epochs.max(1) {
            self.mark(Mark {
                at: now,
                kind: MarkKind::Epoch,
                source: Some(name.to_owned()),
                text: format!(
                    "the sender restarted or its numbers made a jump (epoch {}, {} {} skipped)",
                    source.epochs,
                    change.skipped,
                    source.unit()
                ),
                unrecorded: None,
            });
        }
    }

    fn answer(&self, span: Span, since: u64) -> HistoryAnswer {
        let track = match span {
            Span::Minutes => &self.seconds,
            Span::Day => &self.minutes,
        };
        let columns = track.columns(since, false);
        let sources = columns.sources.into_iter().map(|(name, numbers)| {
            let account = self.account(&name);
            let source = SourceHistory {
                unit: account.unit,
                ring: self.sources.get(&name).cloned().unwrap_or_default(),
                numbers,
                sentence: account.sentence(),
                complete_since: account
                    .completeness
                    .since
                    .filter(|_| !account.completeness.is_losing(self.checked)),
            };
            (name, source)
        });
        let rings = columns.rings.into_iter().map(|(name, numbers)| {
            let ring = RingHistory {
                capacity: self.before.rings.get(&name).map_or(0, |ring| ring.capacity),
                numbers,
            };
            (name, ring)
        });
        let marks = self.marks.iter();
        HistoryAnswer {
            step: columns.step,
            start: columns.start,
            sources: sources.collect(),
            rings: rings.collect(),
            marks: marks
                .filter(|mark| mark.at >= columns.start)
                .cloned()
                .collect(),
        }
    }

    fn account(&self, source: &str) -> Account<'static> {
        let report = self.before.sources.get(source);
        let gaps = self.marks.iter().filter_map(|mark| mark.unrecorded);
        Account {
            now: self.checked,
            unit: report.map_or("packets", SourceReport::unit),
            completeness: self.completeness.get(source).copied().unwrap_or_default(),
            recent: self.seconds.sum(source, RECENT + 1),
            day: self.minutes.sum(source, DAY_MINUTES as u64),
            unrecorded: gaps.fold(0, u64::saturating_add),
        }
    }
}

#[cfg(test)]
mod tests;
