//! The reorder window: the open slots of a ring, into which packets are sorted in whatever order they arrive.
//!
//! ```text
//!       closed, not final            open                  not yet open
//!   … ┆ late or lost?          │ packets are placed   │ a packet here makes the
//!     ┆                        │                      │ window slide
//!     └── window frames ───────┴── window frames ─────┴── window frames ──┐ beyond: rejected until
//!                              base                                       │ several packets agree,
//!                                                                           then a new epoch opens
//! ```
//! Packets from beyond are kept aside until that is decided: they are placed once the new epoch is confirmed and
//! counted as rejected if it is not. A packet that was recently closed as missing is late: it never confirms an
//! epoch, however many such packets agree.
//!
//! Any number of threads may fill one window, each through its own [`ReorderWindow`] handle. Handle 0 is the
//! *sequencer*: it alone closes frames, in order, and publishes them to the ring.
//!
//! # Ledger
//! `expected` covers the lowest to the highest packet seen in each epoch; a packet counts once it has arrived, or
//! once its frame is closed without it. A packet is `delivered` when its frame is published with it. A missing packet
//! stays `pending` until the window no longer tracks its frame, the stream has been idle for a second, or the stream
//! has ended. So a packet that arrives late is counted as `late` and not as a gap. Then its cause is final, and no
//! counter ever decreases.
//!
//! A frame without a slot is still tracked: its packets that arrive are lost to `ring_full`, the others to the wire.

mod batch;
mod candidates;
mod classification;
mod history;
mod numbering;
mod sequencer;
mod shared;
mod size;

pub use batch::{Batch, Outcome, Place};
pub use numbering::{Numbering, PacketId};
pub use size::{Arrival, WindowSize};

use crate::frame::Timestamp;
use crate::ledger::SourceLedger;
use crate::ring::{Fill, Producer};
use crate::sync::{Arc, Ordering};
use candidates::{Candidates, Content};
use classification::Candidate;
use sequencer::Sequencer;
use shared::{Epoch, Shared};
use std::time::Instant;

/// How frames are divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of packets in a frame, at least 1.
    pub places: u32,
    /// Payload bytes of the first packet of a frame.
    pub first_bytes: usize,
    /// Payload bytes of every packet but the first and the last.
    pub place_bytes: usize,
    /// Payload bytes of a frame; the last packet has the rest.
    pub frame_bytes: usize,
    /// How packets are numbered.
    pub numbering: Numbering,
    /// Number of frames open at a time, at least 1.
    pub window: usize,
    /// Maximum number of packets, beyond twice the window, that may be missing in a row. If packets agree on a
    /// forward step that is no longer, the packets in between are lost; a longer step opens an epoch.
    pub max_gap: u64,
    /// Number of successive packets beyond twice the window that must agree before the window accepts them, at least
    /// 1. The packets before the last of them are kept aside meanwhile.
    pub resync_after: u32,
    /// Nanoseconds of signal in a frame, if each packet carries the time of its own payload: the start of a frame is
    /// then known even if its first packets are missing. 0 = unknown, or a packet carries the time of its frame.
    pub frame_ns: u64,
}

impl Geometry {
    /// Frames of `places` packets of `place_bytes` each, numbered by a 64-bit counter, with a window of 4.
    pub const fn new(places: u32, place_bytes: usize) -> Self {
        Self {
            places,
            first_bytes: place_bytes,
            place_bytes,
            frame_bytes: places as usize * place_bytes,
            numbering: Numbering::PLAIN,
            window: 4,
            max_gap: 0,
            resync_after: 4,
            frame_ns: 0,
        }
    }

    /// Nanoseconds of signal in a frame before packet `i`; 0 if unknown.
    pub fn nanoseconds_before(&self, i: u32) -> u64 {
        if self.frame_ns == 0 {
            return 0;
        }
        let bytes = self.extent(i).start as u128 * u128::from(self.frame_ns);
        u64::try_from(bytes / self.frame_bytes.max(1) as u128).unwrap_or(u64::MAX)
    }

    /// Payload bytes of the longest packet.
    fn max_payload(&self) -> usize {
        let last = self.extent(self.places - 1).len();
        self.first_bytes
            .max(self.place_bytes)
            .max(last)
            .min(self.frame_bytes)
    }

    /// The frame, and the index in it, of the packet at `position`.
    const fn split(&self, position: u64) -> (u64, u32) {
        let places = self.places as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below `places`, a u32")]
        let place = (position % places) as u32;
        (position / places, place)
    }

    /// The byte range of packet `i` in the frame.
    pub const fn extent(&self, i: u32) -> std::ops::Range<usize> {
        let start = if i == 0 {
            0
        } else {
            self.first_bytes + (i as usize - 1) * self.place_bytes
        };
        let bytes = if i == 0 {
            self.first_bytes
        } else {
            self.place_bytes
        };
        let end = if i + 1 == self.places {
            self.frame_bytes
        } else {
            start + bytes
        };
        start..end
    }
}

/// One thread's handle to a window.
#[derive(Debug)]
pub struct ReorderWindow {
    shared: Arc<Shared>,
    state: WriterState,
    /// Whether this handle uses a pinned geometry, see [`pin`](Self::pin).
    is_pinned: bool,
}

/// The state of one writer thread.
#[derive(Debug)]
struct WriterState {
    writer: usize,
    /// The epoch as this thread last saw it; its reference follows the packets.
    epoch: Epoch,
    candidate: Option<Candidate>,
    /// The packets that the candidate stands for.
    candidates: Candidates,
    /// The position of the next expected packet.
    cursor: u64,
    /// Whether the next packet opens an epoch, whatever its number.
    restarts: bool,
    /// The same as packet, frame and index; `None` = must be computed.
    next: Option<(PacketId, u64, u32)>,
    /// Whether payload was copied with streaming stores that other threads may not see yet.
    streamed: bool,
    ledger: SourceLedger,
    sequencer: Option<Sequencer>,
}

impl ReorderWindow {
    /// Creates a window over `producer`, filled by `writers` threads, with one handle each; the first is the
    /// sequencer.
    ///
    /// # Panics
    /// If `writers`, `geometry.window`, `geometry.places` or `geometry.numbering.step` is 0, or a frame does not fit
    /// the ring's slots.
    pub fn new(
        producer: Producer,
        geometry: Geometry,
        writers: usize,
        ledger: &SourceLedger,
    ) -> Vec<Self> {
        assert!(
            writers > 0 && geometry.window > 0 && geometry.places > 0,
            "an empty window: {geometry:?}"
        );
        assert!(
            geometry.numbering.step > 0 && geometry.numbering.places_per_unit > 0,
            "{geometry:?}"
        );
        assert!(
            geometry.frame_bytes <= producer.options().slot_bytes,
            "frames larger than slots: {geometry:?}"
        );
        let last = geometry.extent(geometry.places - 1);
        assert!(
            last.start < last.end,
            "the last place is empty: {geometry:?}"
        );
        assert!(
            geometry.places <= producer.options().places,
            "more places than the ring keeps: {geometry:?}"
        );
        let shared = Arc::new(Shared::new(geometry, writers));
        let mut sequencer = Some(Sequencer::new(producer, ledger.clone(), &shared));
        (0..writers)
            .map(|writer| {
                let state = WriterState {
                    writer,
                    epoch: Epoch::default(),
                    candidate: None,
                    candidates: Candidates::new(geometry.resync_after, geometry.max_payload()),
                    cursor: 0,
                    restarts: false,
                    next: None,
                    streamed: false,
                    ledger: ledger.clone(),
                    sequencer: sequencer.take(),
                };
                Self {
                    shared: shared.clone(),
                    state,
                    is_pinned: false,
                }
            })
            .collect()
    }

    /// How frames are divided into packets.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Replaces the planned geometry, which is an upper bound, by the one that the first packets show. Each thread
    /// calls it with the same geometry before it places its first packet; the first call decides.
    ///
    /// # Panics
    /// If frames or their packets exceed the planned ones, or an epoch is open.
    pub fn pin(&mut self, geometry: Geometry) {
        self.adopt_pinned();
        if self.is_pinned {
            return;
        }
        let planned = &self.shared.geometry;
        assert!(
            (1..=planned.places).contains(&geometry.places)
                && geometry.frame_bytes <= planned.frame_bytes
                && geometry.extent(geometry.places - 1).start < geometry.frame_bytes,
            "a geometry beyond the planned one: {geometry:?}, planned {planned:?}"
        );
        assert!(
            self.state.epoch.number == 0,
            "pinned after the first packet"
        );
        let writers = self.shared.pins.len();
        self.shared
            .pinned
            .get_or_init(|| Arc::new(Shared::new(geometry, writers)));
        self.adopt_pinned();
    }

    /// Uses the pinned geometry if a thread has pinned one.
    fn adopt_pinned(&mut self) {
        let Some(pinned) = self.shared.pinned.get().cloned() else {
            return;
        };
        self.shared = pinned;
        self.is_pinned = true;
        let geometry = &self.shared.geometry;
        self.state.candidates = Candidates::new(geometry.resync_after, geometry.max_payload());
    }

    /// Whether only this thread fills the window, so that Linux can receive packets directly into their final
    /// position (see [`Batch::predict`]).
    pub fn is_exclusive(&self) -> bool {
        self.shared.is_exclusive()
    }

    /// Declares that frames get their times when they end ([`Batch::end`]), separately from their packets. A complete
    /// frame then stays open until it has its time, leaves the window, or no packets arrive any more.
    pub fn await_times(&mut self) {
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.await_times();
        }
    }

    /// Whether this handle closes frames.
    pub const fn is_sequencer(&self) -> bool {
        self.state.sequencer.is_some()
    }

    /// The pattern that missing packets are filled with.
    pub fn fill(&self) -> Fill {
        self.state
            .sequencer
            .as_ref()
            .map_or(Fill::ZERO, |sequencer| sequencer.producer().options().fill)
    }

    /// Begins a batch: until it is dropped, open frames stay open.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch::new(&self.shared, &mut self.state)
    }

    /// Waits until a slot is freed or about `limit` has passed.
    pub fn wait(&self, policy: crate::notify::Wait, limit: std::time::Duration) {
        if let Some(sequencer) = &self.state.sequencer {
            sequencer.producer().wait(policy, limit);
        }
    }

    /// Reports the drops that the kernel has counted so far at this thread's socket. They are evidence for the cause
    /// of gaps, not for their number.
    pub fn note_drops(&self, total: u64) {
        self.shared.drops[self.state.writer].store(total, Ordering::Relaxed);
        self.shared.readings.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether gaps wait for their cause, so that [`note_drops`](Self::note_drops) should be called.
    pub fn wants_drops(&self) -> bool {
        self.state
            .sequencer
            .as_ref()
            .is_some_and(Sequencer::has_gaps)
            || self.state.sequencer.is_none()
    }

    /// Declares that the sender restarts its numbering: the next packet opens an epoch, however close its number is.
    ///
    /// For sources that know this, such as a recording that is replayed. Effective only for exclusive windows; other
    /// windows require packets to agree.
    pub fn restart(&mut self) {
        if self.shared.is_exclusive() {
            self.state.restarts = true;
            self.state.next = None;
        }
    }

    /// Counts packets that carry no readable sequence number.
    pub fn reject(&self, packets: u64) {
        self.state.ledger.rejected.add_shared(packets);
    }

    /// Counts packets that carry no data by design.
    pub fn control(&self, packets: u64) {
        self.state.ledger.control.add_shared(packets);
    }

    /// Declares that `unit` carries no data by design (a SPEAD heap of descriptors): its packets are not expected.
    ///
    /// Effective only where a unit is a frame, and while none of its packets has arrived. Payload of the unit that
    /// arrives before payload of a later unit cancels the request. A unit that later ones have overtaken is skipped
    /// at once, and its packets are rejected. If its frame was closed already, its packets count as `late`.
    pub fn skip(&mut self, unit: u64) {
        let is_frame =
            self.shared.geometry.numbering.places_per_unit == self.shared.geometry.places;
        if !is_frame || self.state.opens_epoch() && self.is_sequencer() {
            return;
        }
        if !self.state.candidates.is_empty() {
            // The unit may belong to an epoch that is not confirmed yet.
            let _ = self.state.keep(
                &self.shared,
                PacketId::of(unit),
                Content::NoData,
                Timestamp::default(),
            );
        }
        self.state.skip(&self.shared, unit);
    }

    /// The sequencer's work between batches: requests of other threads, complete frames, and frames that have waited
    /// too long. Every thread calls it after each poll for packets, and at least every few milliseconds while it does
    /// not wait for packets.
    pub fn tick(&mut self, now: Instant) {
        self.adopt_pinned();
        let (shared, state) = (&self.shared, &mut self.state);
        if !state.candidates.is_empty() && state.candidates.is_too_old(now) {
            state.reject_candidates(shared);
        }
        if let Some(sequencer) = &mut state.sequencer {
            sequencer.tick(shared, state.writer, now);
        } else {
            shared.rounds[state.writer].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends the stream: publishes open frames up to the last packet seen and finalises the ledger. All other threads
    /// must have stopped.
    pub fn finish(&mut self) {
        self.adopt_pinned();
        self.state.reject_candidates(&self.shared);
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.finish(&self.shared, self.state.writer);
        }
    }
}

impl WriterState {
    /// Adopts the epoch that the sequencer opened.
    fn refresh(&mut self, shared: &Shared) {
        self.epoch = *shared
            .epoch
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !shared.is_exclusive() {
            shared.requests().firsts[self.writer] = None;
        }
        self.cursor = self.epoch.position;
        self.restarts = false;
        self.next = None;
        self.candidate = None;
    }

    /// Asks to skip `unit`, which carries no data by design, see [`ReorderWindow::skip`].
    fn skip(&mut self, shared: &Shared, unit: u64) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.skip(shared, self.writer, unit);
            return;
        }
        let mut requests = shared.requests();
        if requests.skips.len() < requests.skips.capacity() {
            requests.skips.push(unit);
        }
        drop(requests);
        shared.has_requests.store(1, Ordering::Release);
    }

    /// Keeps a candidate and returns the memory for its payload; `None` if it cannot be kept.
    fn keep(
        &mut self,
        shared: &Shared,
        id: PacketId,
        content: Content,
        time: Timestamp,
    ) -> Option<&mut [u8]> {
        if !shared.is_exclusive() && content != Content::NoData {
            let first = self.lowest_candidate(&shared.geometry, id);
            shared.requests().firsts[self.writer] = Some(first);
        }
        let (memory, dropped) = self.candidates.push(id, content, time);
        self.ledger.rejected.add_shared(dropped);
        memory
    }

    /// The candidate with the lowest position, including `id`.
    fn lowest_candidate(&self, geometry: &Geometry, id: PacketId) -> PacketId {
        geometry.numbering.lowest(id, self.candidates.ids())
    }

    /// Counts the candidates as rejected, because the stream continued elsewhere.
    fn reject_candidates(&mut self, shared: &Shared) {
        if self.candidates.is_empty() {
            return;
        }
        self.ledger.rejected.add_shared(self.candidates.clear());
        if !shared.is_exclusive() {
            shared.requests().firsts[self.writer] = None;
        }
    }
}

impl Drop for ReorderWindow {
    fn drop(&mut self) {
        self.adopt_pinned();
        if self.state.sequencer.is_some() {
            // During unwinding the window may be inconsistent: an open ledger is better than a second panic.
            if !std::thread::panicking() {
                self.finish();
            }
            self.shared.closed.store(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
