//! Which frame an end is of: by its number, by its metadata where that has come round, or of a count that begins anew.

use super::super::metadata::{self, Metadata};
use super::super::order::Course;
use super::super::pages::{Pages, Spot};
use super::{End, Fault, Mark, PAGE_BITS, QueuePair, REPEATS, Run, UNHEARD};

/// Bits of a packet's number that an immediate has, and those that metadata have.
const LOW: u32 = 32 - PAGE_BITS;
const FULL: u32 = 24;
/// Frames that are numbered in turn before their numbers come round, and the most packets that are.
const NUMBERS: u64 = 1 << 16;
const MAX_PACKETS: u64 = 1 << FULL;
/// Packets after which the bits of an immediate may have come round.
const HALF: u64 = 1 << (LOW - 1);

/// Where an end leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To the frame of this number.
    On(u64),
    /// Nowhere: it is of the past.
    Past,
    /// To the first frame of another count, before which so many came that were taken for the past.
    Anew(u64),
}

/// The numbers from `from` to `to` that have `bits` bits.
const fn distance(from: u32, to: u32, bits: u32) -> u32 {
    to.wrapping_sub(from) & ((1 << bits) - 1)
}

impl QueuePair {
    /// What the end of `bytes` bytes with the number `psn` says of the frame in `page`.
    pub(super) fn heard(&self, page: u64, psn: u32, bytes: usize) -> End {
        let Pages { frame, packet, .. } = self.pages;
        let last = frame - (self.pages.packets() - 1) * packet;
        let ring = self.ring.as_ref();
        let found = ring.and_then(|ring| {
            let page = usize::try_from(page).ok()?;
            self.notes(ring, ring.offset + page * ring.stride)
        });
        let found = found.filter(|found| distance(found.psn, psn, LOW) == 0);
        // Data of as many bytes end a frame that has no metadata.
        let alone = bytes == metadata::BYTES && (last != metadata::BYTES || found.is_some());
        let came = alone || bytes > last;
        End {
            page,
            psn,
            alone,
            metadata: found.filter(|_| came),
            is_torn: came && found.is_none(),
            is_short: !alone && bytes < last,
        }
    }

    /// The place of `end` in its frame, by where frames end as far as is known.
    pub(super) fn spot(&self, end: &End) -> Spot {
        let packets = u32::try_from(self.pages.packets()).unwrap_or(u32::MAX);
        Spot {
            page: u32::try_from(end.page).unwrap_or(u32::MAX),
            index: packets + u32::from(end.alone) - u32::from(self.habits.alone),
            bytes: 0,
            metadata: Some(0),
        }
    }

    /// Where `end` leads after frame `frame`, the newest.
    pub(super) fn step(&mut self, end: &End, frame: u64) -> Step {
        let spot = self.spot(end);
        let course = self.order.find(end.psn, &spot);
        let next = match course {
            Course::Frame(next) if next > frame => Some(next),
            _ => None,
        };
        let found = match (&self.last, &end.metadata) {
            (Some(last), Some(metadata)) => {
                let full = 1 << LOW;
                self.habits.wide |= last.metadata.psn >= full || metadata.psn >= full;
                next.filter(|next| self.agrees(last, next - last.frame, metadata))
                    .or_else(|| {
                        self.frame_of(last, end, metadata)
                            .filter(|next| *next > frame)
                    })
            }
            _ => next,
        };
        match (found, course) {
            (Some(next), _) => Step::On(next),
            (None, Course::Frame(_) | Course::Past) if next.is_none() => self.pass(end),
            _ => Step::Anew(0),
        }
    }

    /// Whether `metadata` can be those of the frame that is `frames` behind `last`: the sensor may have numbered more frames
    /// than it sent.
    fn agrees(&self, last: &Mark, frames: u64, metadata: &Metadata) -> bool {
        let ours = u64::from(distance(last.metadata.psn, metadata.psn, FULL));
        let off = ours.wrapping_sub(frames.wrapping_mul(self.stride())) % MAX_PACKETS;
        // The low bits have been looked at.
        let is_near = !self.habits.wide || !(HALF..MAX_PACKETS - HALF).contains(&off);
        let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
        is_near && (!self.habits.numbered || numbered.wrapping_sub(frames) % NUMBERS < NUMBERS / 2)
    }

    /// The frame of `end` by its metadata alone.
    fn frame_of(&self, last: &Mark, end: &End, metadata: &Metadata) -> Option<u64> {
        let pages = self.ring.as_ref()?.pages;
        let (newest, frame) = self.newest?;
        let page = self.ring.as_ref()?.page(newest) as u64;
        // Pages from that of the last metadata on.
        let on = (end.page + 2 * pages - page + (frame - last.frame) % pages) % pages;
        let stride = self.stride();
        let bits = if self.habits.wide { FULL } else { LOW };
        let packets = u64::from(distance(last.metadata.psn, metadata.psn, bits));
        let fits = |frames: u64| {
            frames > 0
                && frames % pages == on
                && (frames * stride).wrapping_sub(packets) % (1 << bits) == 0
        };
        let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
        let is_numbered = |frames: u64| !self.habits.numbered || frames % NUMBERS == numbered;
        let ahead = packets / stride;
        if self.habits.wide && packets < MAX_PACKETS / 2 && fits(ahead) && is_numbered(ahead) {
            return Some(last.frame + ahead);
        }
        // What is behind by its number is of the past.
        let is_ahead = self.habits.numbered && (1..NUMBERS / 2).contains(&numbered);
        let mut rounds = (0..MAX_PACKETS / NUMBERS).map(|round| round * NUMBERS + numbered);
        let found = is_ahead.then(|| rounds.find(|frames| fits(*frames)))??;
        Some(last.frame + found)
    }

    /// Packets from one frame to the next.
    fn stride(&self) -> u64 {
        self.pages.packets() as u64 + u64::from(self.habits.alone)
    }

    /// Says that `end` is that of frame `frame`.
    pub(super) fn follow(&mut self, end: &End, frame: u64) {
        if end.alone && !self.habits.alone {
            self.habits.alone = true;
            self.order.ends(true);
        }
        let spot = self.spot(end);
        self.order.follow(frame, end.psn, &spot);
        if let (Some(last), Some(metadata)) = (&self.last, &end.metadata) {
            let numbered = u64::from(metadata.frame.wrapping_sub(last.metadata.frame));
            self.habits.numbered = numbered == (frame - last.frame) % NUMBERS && numbered > 0;
        }
        self.note(end, frame);
    }

    /// Begins to count with `end`, that of frame 0.
    pub(super) fn begin_count(&mut self, end: &End) {
        self.habits.alone = end.alone;
        let spot = self.spot(end);
        self.order.begin(end.psn, &spot);
        self.order.ends(end.alone);
        self.last = None;
        self.note(end, 0);
    }

    fn note(&mut self, end: &End, frame: u64) {
        if let Some(metadata) = end.metadata {
            self.last = Some(Mark { frame, metadata });
        }
        self.past = None;
        if let Some(page) = usize::try_from(end.page).ok()
            && let Some(ends) = self.ends.get_mut(page)
        {
            *ends = Some(*end);
        }
    }

    /// Takes an end of the past: one that comes again, or one of a sensor that counts anew and is not believed yet.
    fn pass(&mut self, end: &End) -> Step {
        let (Some(ring), Some((newest, _))) = (&self.ring, self.newest) else {
            return Step::Past;
        };
        let page = usize::try_from(end.page).unwrap_or(usize::MAX);
        let is_known = end.metadata.is_some() || ring.page(newest) == page;
        if is_known && self.ends.get(page) == Some(&Some(*end)) {
            // What it wrote was there before.
            self.count(Fault::Repeated);
            return Step::Past;
        }
        let run = self.past.filter(|run| {
            let ahead = distance(run.end.psn, end.psn, LOW);
            (run.end.page + 1) % ring.pages == end.page && (1..1 << (LOW - 1)).contains(&ahead)
        });
        let count = run.map_or(1, |run| run.count + 1);
        let bound = (newest + 2 + UNHEARD + count).saturating_sub(ring.pages);
        let is_next = ring.page(newest + count) == page;
        self.past = Some(Run { end: *end, count });
        if is_next {
            self.floor = self.floor.max(bound);
        } else {
            self.give_up();
        }
        if count > REPEATS {
            return Step::Anew(count - 1);
        }
        if is_next {
            self.marked[page] = None;
        }
        self.count(Fault::Repeated);
        Step::Past
    }

    /// The sensor may have written anywhere: nothing that has ended is known to be whole.
    pub(super) fn give_up(&mut self) {
        if let Some((newest, _)) = self.newest {
            self.floor = self.floor.max(newest + 1);
        }
        self.marked.fill(None);
    }
}
