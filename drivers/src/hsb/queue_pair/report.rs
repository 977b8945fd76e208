//! Reports frames that ended: which of their packets arrived, and whether the page is intact.

use super::super::metadata::{self, Metadata};
use super::super::pages::Pages;
use super::{Ended, Fault, QueuePair, Ring};
use daq_core::dma::{Completions, Done, Origin};
use daq_core::frame::{Flags, Timestamp};

impl QueuePair {
    /// Reads the metadata of the page at offset `at`. Returns `None` if the CPU cannot access the page.
    pub(super) fn read_metadata(&self, ring: &Ring, at: usize) -> Option<Metadata> {
        let mut bytes = [0; metadata::BYTES];
        let behind = at + Pages::metadata_at(self.pages.frame);
        ring.region
            .read(behind, &mut bytes)
            .then(|| Metadata::parse(&bytes))
    }

    /// Checks which packets of the frame were written. `written` is the number of bytes that the sensor reports; `is_short`
    /// means that the last packet was shorter than that of a full frame. Returns the number of packets that arrived.
    fn check_packets(&mut self, at: usize, written: u64, is_short: bool) -> Option<u32> {
        let ring = self.ring.as_ref()?;
        let Pages { frame, packet, .. } = self.pages;
        self.present.fill(0);
        let (mut arrived, mut last) = (0, None);
        for (i, place) in self.packet_offsets().enumerate() {
            let seen = self.sentinel.inspect(&ring.region, at + place, 8, 8)?;
            let is_inside = frame.min(place + packet) as u64 <= written;
            if seen.unwritten == 0 && is_inside {
                self.present[i / 64] |= 1 << (i % 64);
                (arrived, last) = (arrived + 1, Some(i));
            }
        }
        // The last packet is short, so the bytes after its end belong to an earlier frame.
        if is_short && let Some(i) = last {
            self.present[i / 64] &= !(1 << (i % 64));
            arrived -= 1;
        }
        Some(arrived)
    }

    pub(super) fn report(&mut self, ended: Ended, done: &mut Completions) {
        let Some(ring) = &self.ring else {
            return;
        };
        let at = ring.at(ended.transfer);
        let packets_per_frame = u32::try_from(self.pages.packets()).unwrap_or(u32::MAX);
        let is_marked = self.marked[ring.page(ended.transfer)] == Some(ended.transfer);
        let is_intact = !ended.is_overwritten
            && ended
                .metadata
                .is_none_or(|metadata| self.read_metadata(ring, at) == Some(metadata));
        // The marker at the start of a packet does not show how much of the packet was written.
        let written = ended.metadata.filter(|_| is_intact);
        let written = written.map_or(u64::MAX, |metadata| metadata.bytes_written);
        let arrived = is_marked
            .then(|| self.check_packets(at, written, ended.is_short))
            .flatten();
        if !is_intact {
            self.count(Fault::Metadata);
        }
        if !is_intact || arrived.is_none() {
            self.count(Fault::Overtaken);
        }
        // A frame of which only the end arrived is bad.
        let is_bad = !is_intact || arrived.is_none_or(|arrived| arrived == 0);
        let arrived = arrived.filter(|_| !is_bad).unwrap_or(0);
        let is_whole = arrived >= packets_per_frame;
        let metadata = ended.metadata.filter(|_| is_intact);
        if let Some(metadata) = metadata.filter(|_| self.epoch == ended.epoch) {
            let bytes = self.pages.frame;
            self.seen.note(ended.frame, bytes, &metadata);
            self.seen.store(&self.counters);
        } else if ended.is_short && self.epoch == ended.epoch {
            self.seen.short += 1;
            self.seen.store(&self.counters);
        }
        let (passed, missing) = std::mem::take(&mut self.carried_over);
        let frame = Done {
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
                packets_per_frame,
                arrived,
                ..Origin::default()
            }),
        };
        if is_whole {
            done.push(frame);
        } else {
            let present: &[u64] = if is_bad { &[] } else { &self.present };
            done.push_with(frame, present);
        }
        self.reported = ended.transfer + 1;
    }
}
