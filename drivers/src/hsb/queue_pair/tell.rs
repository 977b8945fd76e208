//! Tells of frames that have ended: which of their places came, and whether they are whole still.

use super::super::metadata::{self, Metadata};
use super::super::pages::Pages;
use super::{Ended, Fault, QueuePair, Ring};
use crate::sys::words;
use daq_core::dma::{Completions, Done, Origin};
use daq_core::frame::{Flags, Timestamp};

impl QueuePair {
    /// The metadata in the page that begins `at`; none where the CPU does not reach it.
    pub(super) fn notes(&self, ring: &Ring, at: usize) -> Option<Metadata> {
        let mut bytes = [0; metadata::BYTES];
        let behind = at + Pages::metadata_at(self.pages.frame);
        words::read(&ring.region, behind, &mut bytes).then(|| Metadata::parse(&bytes))
    }

    /// Looks which places of the frame were written to their ends, where the sensor says that it wrote `written` bytes of
    /// it and `is_short` that the packet that ended it was shorter than a last one; how many of them.
    fn look(&mut self, at: usize, written: u64, is_short: bool) -> Option<u32> {
        let ring = self.ring.as_ref()?;
        let Pages { frame, packet, .. } = self.pages;
        self.present.fill(0);
        let (mut arrived, mut last) = (0, None);
        for (i, place) in self.places().enumerate() {
            let seen = self.sentinel.look(&ring.region, at + place, 8, 8)?;
            let is_inside = frame.min(place + packet) as u64 <= written;
            if seen.unwritten == 0 && is_inside {
                self.present[i / 64] |= 1 << (i % 64);
                (arrived, last) = (arrived + 1, Some(i));
            }
        }
        // The packet that ended it was the last to come, and behind its end are bytes of another frame.
        if is_short && let Some(i) = last {
            self.present[i / 64] &= !(1 << (i % 64));
            arrived -= 1;
        }
        Some(arrived)
    }

    pub(super) fn tell(&mut self, ended: Ended, done: &mut Completions) {
        let Some(ring) = &self.ring else {
            return;
        };
        let at = ring.at(ended.transfer);
        let places = u32::try_from(self.pages.packets()).unwrap_or(u32::MAX);
        let is_marked = self.marked[ring.page(ended.transfer)] == Some(ended.transfer);
        let is_kept = !ended.is_torn
            && ended
                .metadata
                .is_none_or(|told| self.notes(ring, at) == Some(told));
        // The mark at a place's beginning does not tell how much of it was written.
        let written = ended.metadata.filter(|_| is_kept);
        let written = written.map_or(u64::MAX, |told| told.bytes_written);
        let arrived = is_marked
            .then(|| self.look(at, written, ended.is_short))
            .flatten();
        if !is_kept {
            self.count(Fault::Metadata);
        }
        if !is_kept || arrived.is_none() {
            self.count(Fault::Overtaken);
        }
        // A frame of which nothing came but its end is none.
        let is_bad = !is_kept || arrived.is_none_or(|arrived| arrived == 0);
        let arrived = arrived.filter(|_| !is_bad).unwrap_or(0);
        let is_whole = arrived >= places;
        let metadata = ended.metadata.filter(|_| is_kept);
        if let Some(metadata) = metadata.filter(|_| self.epoch == ended.epoch) {
            let bytes = self.pages.frame;
            self.seen.note(ended.frame, bytes, &metadata);
            self.seen.tell(&self.counters);
        } else if ended.is_short && self.epoch == ended.epoch {
            self.seen.short += 1;
            self.seen.tell(&self.counters);
        }
        let (passed, missing) = std::mem::take(&mut self.owed);
        let told = Done {
            length: self.pages.frame,
            is_bad,
            timestamp: metadata.map_or_else(Timestamp::default, |metadata| metadata.time()),
            missing: ended.missing + missing,
            passed: ended.passed + passed,
            origin: Some(Origin {
                sequence: ended.frame,
                epoch: ended.epoch,
                flags: if is_whole {
                    Flags(0)
                } else {
                    Flags::INCOMPLETE
                },
                places,
                arrived,
            }),
        };
        if is_whole {
            done.push(told);
        } else {
            let present: &[u64] = if is_bad { &[] } else { &self.present };
            done.push_with(told, present);
        }
        self.told = ended.transfer + 1;
    }
}
