//! Assigns a frame end to a frame: by its PSN, by its metadata if the PSN is ambiguous, or as the start of a new count.

use super::super::metadata::{self, Metadata};
use super::super::pages::{PacketPosition, Pages};
use super::super::psn::PsnMatch;
use super::{End, Fault, LastMetadata, MAX_OLD_ENDS, PAGE_BITS, QueuePair, Run, UNREPORTED};

/// Number of PSN bits in an immediate and in metadata.
const SHORT_PSN_BITS: u32 = 32 - PAGE_BITS;
const FULL_PSN_BITS: u32 = 24;
/// Number of distinct frame numbers in metadata, and number of distinct PSNs.
const FRAME_NUMBERS: u64 = 1 << 16;
const PSNS: u64 = 1 << FULL_PSN_BITS;
/// Distance in packets from which the PSN bits of an immediate are ambiguous.
const HALF: u64 = 1 << (SHORT_PSN_BITS - 1);

/// The frame to which a received frame end (the packet that completes a frame) is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The frame end belongs to the frame with this number.
    Frame(u64),
    /// The frame end belongs to an old frame.
    Old,
    /// The frame end belongs to the first frame after the sensor restarted its frame count. The value is the number of earlier
    /// frame ends of the new count that were treated as old.
    Restarted(u64),
}

/// Returns the distance from `from` to `to` in numbers of `bits` bits.
const fn distance(from: u32, to: u32, bits: u32) -> u32 {
    to.wrapping_sub(from) & ((1 << bits) - 1)
}

impl QueuePair {
    /// Combines a completion of `bytes` bytes with PSN `psn` and the metadata in `page`.
    pub(super) fn frame_end(&self, page: u64, psn: u32, bytes: usize) -> End {
        let Pages { frame, packet, .. } = self.pages;
        let last = frame - (self.pages.packets() - 1) * packet;
        let ring = self.ring.as_ref();
        let found = ring.and_then(|ring| {
            let page = usize::try_from(page).ok()?;
            self.read_metadata(ring, ring.slots.offset_of(page))
        });
        let found = found.filter(|found| distance(found.psn, psn, SHORT_PSN_BITS) == 0);
        // If the last packet has as many bytes as metadata, only metadata in the page distinguish the two.
        let alone = bytes == metadata::BYTES && (last != metadata::BYTES || found.is_some());
        let came = alone || bytes > last;
        End {
            page,
            psn,
            alone,
            metadata: found.filter(|_| came),
            is_overwritten: came && found.is_none(),
            is_short: !alone && bytes < last,
        }
    }

    /// Returns the position of `end` in its frame, based on how the sensor ends frames.
    pub(super) fn position(&self, end: &End) -> PacketPosition {
        let packets = u32::try_from(self.pages.packets()).unwrap_or(u32::MAX);
        PacketPosition {
            page: u32::try_from(end.page).unwrap_or(u32::MAX),
            index: packets + u32::from(end.alone) - u32::from(self.pattern.alone),
            bytes: 0,
            metadata: Some(0),
        }
    }

    /// Assigns `end` to a frame, where `frame` is the newest frame.
    pub(super) fn step(&mut self, end: &End, frame: u64) -> Step {
        let position = self.position(end);
        let classification = self.tracker.find(end.psn, &position);
        let next = match classification {
            PsnMatch::Frame(next) if next > frame => Some(next),
            _ => None,
        };
        let found = match (&self.last, &end.metadata) {
            (Some(last), Some(metadata)) => {
                let full = 1 << SHORT_PSN_BITS;
                self.pattern.wide |= last.metadata.psn >= full || metadata.psn >= full;
                next.filter(|next| self.is_consistent(last, next - last.frame, metadata))
                    .or_else(|| {
                        self.frame_of(last, end, metadata)
                            .filter(|next| *next > frame)
                    })
            }
            _ => next,
        };
        match (found, classification) {
            (Some(next), _) => Step::Frame(next),
            (None, PsnMatch::Frame(_) | PsnMatch::Old) if next.is_none() => self.handle_old(end),
            _ => Step::Restarted(0),
        }
    }

    /// Returns whether `metadata` are consistent with a frame `frames` after `last`. The sensor may have numbered more
    /// frames than it sent.
    fn is_consistent(&self, last: &LastMetadata, frames: u64, metadata: &Metadata) -> bool {
        let ours = u64::from(distance(last.metadata.psn, metadata.psn, FULL_PSN_BITS));
        let off = ours.wrapping_sub(frames.wrapping_mul(self.stride())) % PSNS;
        // The low bits were already compared.
        let is_near = !self.pattern.wide || !(HALF..PSNS - HALF).contains(&off);
        let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
        is_near
            && (!self.pattern.numbered
                || numbered.wrapping_sub(frames) % FRAME_NUMBERS < FRAME_NUMBERS / 2)
    }

    /// Returns the frame of `end` according to its metadata alone.
    fn frame_of(&self, last: &LastMetadata, end: &End, metadata: &Metadata) -> Option<u64> {
        let pages = self.ring.as_ref()?.pages();
        let (newest, frame) = self.newest?;
        let page = self.ring.as_ref()?.page(newest) as u64;
        // Number of pages after the page of the last metadata.
        let on = (end.page + 2 * pages - page + (frame - last.frame) % pages) % pages;
        let stride = self.stride();
        let bits = if self.pattern.wide {
            FULL_PSN_BITS
        } else {
            SHORT_PSN_BITS
        };
        let packets = u64::from(distance(last.metadata.psn, metadata.psn, bits));
        let fits = |frames: u64| {
            frames > 0
                && frames % pages == on
                && (frames * stride).wrapping_sub(packets) % (1 << bits) == 0
        };
        let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
        let is_numbered =
            |frames: u64| !self.pattern.numbered || frames % FRAME_NUMBERS == numbered;
        let ahead = packets / stride;
        if self.pattern.wide && packets < PSNS / 2 && fits(ahead) && is_numbered(ahead) {
            return Some(last.frame + ahead);
        }
        // A frame number before the last one belongs to an old frame.
        let is_ahead = self.pattern.numbered && (1..FRAME_NUMBERS / 2).contains(&numbered);
        let mut rounds = (0..PSNS / FRAME_NUMBERS).map(|round| round * FRAME_NUMBERS + numbered);
        let found = is_ahead.then(|| rounds.find(|frames| fits(*frames)))??;
        Some(last.frame + found)
    }

    /// Returns the number of packets per frame.
    fn stride(&self) -> u64 {
        self.pages.packets() as u64 + u64::from(self.pattern.alone)
    }

    /// Records that `end` belongs to frame `frame`.
    pub(super) fn follow(&mut self, end: &End, frame: u64) {
        if end.alone && !self.pattern.alone {
            self.pattern.alone = true;
            self.tracker.set_separate_metadata(true);
        }
        let position = self.position(end);
        self.tracker.follow(frame, end.psn, &position);
        if let (Some(last), Some(metadata)) = (&self.last, &end.metadata) {
            let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
            self.pattern.numbered =
                numbered == (frame - last.frame) % FRAME_NUMBERS && numbered > 0;
        }
        self.note(end, frame);
    }

    /// Starts a new count: `end` belongs to frame 0.
    pub(super) fn restart_count(&mut self, end: &End) {
        self.pattern.alone = end.alone;
        let position = self.position(end);
        self.tracker.begin(end.psn, &position);
        self.tracker.set_separate_metadata(end.alone);
        self.last = None;
        self.note(end, 0);
    }

    fn note(&mut self, end: &End, frame: u64) {
        if let Some(metadata) = end.metadata {
            self.last = Some(LastMetadata { frame, metadata });
        }
        self.old_ends = None;
        if let Some(page) = usize::try_from(end.page).ok()
            && let Some(ends) = self.ends.get_mut(page)
        {
            *ends = Some(*end);
        }
    }

    /// Handles an old frame end: a repeated one, or one of a restarted count that is not confirmed yet.
    fn handle_old(&mut self, end: &End) -> Step {
        let (Some(ring), Some((newest, _))) = (&self.ring, self.newest) else {
            return Step::Old;
        };
        let page = usize::try_from(end.page).unwrap_or(usize::MAX);
        let is_known = end.metadata.is_some() || ring.page(newest) == page;
        if is_known && self.ends.get(page) == Some(&Some(*end)) {
            // The same frame end arrived again, so nothing was overwritten.
            self.count(Fault::Repeated);
            return Step::Old;
        }
        let run = self.old_ends.filter(|run| {
            let ahead = distance(run.end.psn, end.psn, SHORT_PSN_BITS);
            (run.end.page + 1) % ring.pages() == end.page
                && (1..1 << (SHORT_PSN_BITS - 1)).contains(&ahead)
        });
        let count = run.map_or(1, |run| run.count + 1);
        let bound = (newest + 2 + UNREPORTED + count).saturating_sub(ring.pages());
        let is_next = ring.page(newest + count) == page;
        self.old_ends = Some(Run { end: *end, count });
        if is_next {
            self.floor = self.floor.max(bound);
        } else {
            self.discard_all();
        }
        if count > MAX_OLD_ENDS {
            return Step::Restarted(count - 1);
        }
        if is_next {
            self.marked[page] = None;
        }
        self.count(Fault::Repeated);
        Step::Old
    }

    /// Marks all frames as possibly overwritten, because the sensor may have written anywhere.
    pub(super) fn discard_all(&mut self) {
        if let Some((newest, _)) = self.newest {
            self.floor = self.floor.max(newest + 1);
        }
        self.marked.fill(None);
    }
}
