//! Long gaps that are not final yet.
//!
//! Some consistent packets with numbers far ahead of the stream make the window cross a gap. They may be strays, for example of
//! a second sender. Then packets of the old numbers continue to arrive, and no packets follow the strays. The window therefore
//! counts a long gap as lost only once the stream has continued behind the gap, and until then it can go back.

use super::Sequencer;
use crate::ledger::Cause;
use crate::reorder::shared::Shared;
use crate::sync::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of gaps that are not final.
const MAX_GAPS: usize = 8;
/// Minimum time for which a gap is not final. Strays can come in a burst that is longer than a window.
const MIN_AGE: Duration = Duration::from_secs(1);

/// A gap that the window has crossed.
#[derive(Clone, Copy, Debug)]
struct HeldGap {
    /// The position of the first missing packet.
    first: u64,
    /// One past the position of the last missing packet; `None` if this is the newest gap.
    end: Option<u64>,
    /// Number of packets in the gap that are not missing, if it consists of several gaps.
    between: u64,
    /// Linux's drop count before the gap.
    drops: u64,
}

/// The gaps that are not final, from the oldest to the newest. Packets have arrived between them.
#[derive(Debug)]
pub(super) struct HeldGaps {
    gaps: Vec<HeldGap>,
    /// Time of the first tick after the newest gap was crossed.
    since: Option<Instant>,
}

impl HeldGaps {
    pub(super) fn new() -> Self {
        Self {
            gaps: Vec::with_capacity(MAX_GAPS),
            since: None,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Makes one gap of the two oldest gaps.
    fn merge_oldest(&mut self) {
        let second = self.gaps.remove(1);
        let oldest = &mut self.gaps[0];
        let arrived = oldest.end.map_or(0, |end| second.first.saturating_sub(end));
        oldest.between += arrived + second.between;
        oldest.end = second.end;
    }
}

impl Sequencer {
    /// Holds a gap whose first packet is at `first`. `start` is the first packet of the segment before the gap.
    pub(super) fn hold_gap(&mut self, shared: &Shared, first: u64, start: u64) {
        if let Some(newest) = self.held.gaps.last_mut() {
            newest.end = Some(start);
        }
        if self.held.gaps.len() == MAX_GAPS {
            self.held.merge_oldest();
        }
        self.held.gaps.push(HeldGap {
            first,
            end: None,
            between: 0,
            drops: self.drops,
        });
        self.held.since = None;
        self.publish_held(shared);
    }

    /// Returns whether the window may go back to `position`, because the gap that contains it is not final.
    pub(super) fn may_go_back(&self, shared: &Shared, position: u64) -> bool {
        let start = newest_end(shared);
        let gaps = self.held.gaps.iter();
        let mut gaps = gaps.map(|gap| gap.first..gap.end.unwrap_or(start));
        gaps.any(|gap| gap.contains(&position))
    }

    /// Drops the gaps after `position`, to which the window goes back. Packets before it in the same gap are lost.
    pub(super) fn go_back(&mut self, shared: &Shared, position: u64) {
        let gaps = std::mem::replace(&mut self.held, HeldGaps::new()).gaps;
        for gap in gaps.into_iter().filter(|gap| gap.first < position) {
            self.count_gap(shared, gap, position);
        }
    }

    /// Makes the gaps final once the stream has continued for a window of frames and for some time.
    pub(super) fn tick_held_gaps(&mut self, shared: &Shared, now: Instant) {
        if self.held.gaps.is_empty() {
            return;
        }
        let since = *self.held.since.get_or_insert(now);
        let end = shared.floor.load(Ordering::Acquire) + shared.geometry.window as u64;
        let is_followed = shared.base.load(Ordering::Relaxed) >= end;
        if is_followed && now.saturating_duration_since(since) >= MIN_AGE {
            self.count_held_gaps(shared);
            self.account(shared);
        }
    }

    /// Counts all gaps as lost.
    pub(super) fn count_held_gaps(&mut self, shared: &Shared) {
        let start = newest_end(shared);
        for i in 0..self.held.gaps.len() {
            self.count_gap(shared, self.held.gaps[i], start);
        }
        self.held.gaps.clear();
        self.publish_held(shared);
    }

    /// Counts the packets of `gap` before `end`.
    fn count_gap(&mut self, shared: &Shared, gap: HeldGap, end: u64) {
        let end = gap.end.map_or(end, |own| own.min(end));
        let missing = end.saturating_sub(gap.first + gap.between);
        self.absent += missing;
        if gap.drops == shared.drops() {
            self.note_gaps(shared, missing);
        } else {
            self.ledger.lost(Cause::KernelDrop).add(missing);
        }
    }

    /// Shows the writers which packets are in gaps that are not final.
    pub(super) fn publish_held(&self, shared: &Shared) {
        let first = self.held.gaps.first().map_or(u64::MAX, |gap| gap.first);
        shared.held.store(first, Ordering::Release);
    }
}

/// Returns one past the last missing packet of the newest gap. Before the first packet behind the gap is placed, this is the first
/// packet of its frame.
fn newest_end(shared: &Shared) -> u64 {
    let floor = shared.floor.load(Ordering::Acquire);
    match shared.start.load(Ordering::Acquire) {
        u64::MAX => floor * u64::from(shared.geometry.packets_per_frame),
        start => start,
    }
}
