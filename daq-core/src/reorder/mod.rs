//! Windows: the open slots of a ring that packets are placed into, in whatever order they come.
//!
//! ```text
//!        closed, fate open            open                  not yet
//!   … ┆ late or lost?          │ packets are placed   │ a packet here makes the
//!     ┆                        │                      │ window slide
//!     └── window frames ───────┴── window frames ─────┴── window frames ──┐ beyond: rejected until
//!                              base                                       │ several packets agree,
//!                                                                           then a new epoch opens
//! ```
//! Packets from beyond are kept aside until that is decided: they are placed once the new epoch is confirmed and counted
//! as rejected if it is not. A packet for a place that was closed as missing not long ago is late: it never confirms an
//! epoch, however many agree.
//!
//! Any number of threads may fill one window, each through its own [`ReorderWindow`] handle; handle 0 is the
//! *sequencer*, which alone closes frames, in order, and hands them to the ring.
//!
//! # Ledger
//! `expected` runs from the lowest to the highest place seen in each epoch; a place counts once it has arrived, or once its
//! frame is closed without it. A place is `delivered` when its frame is published with it. What is missing then stays
//! `pending` until the frame has left the window behind (or the stream has been idle for a second, or has ended), so that
//! a packet that comes late is counted as `late` and not as a gap; then its cause is settled, and no counter ever goes
//! back.
//!
//! A frame that finds no slot is still followed: what arrives for it is lost to `ring_full`, what does not
//! to the wire.

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

/// How frames are made of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Places of a frame, at least 1.
    pub places: u32,
    /// Payload bytes of the first place.
    pub first_bytes: usize,
    /// Payload bytes of every place but the first and the last.
    pub place_bytes: usize,
    /// Payload bytes of a frame; the last place has what the others leave.
    pub frame_bytes: usize,
    /// How packets name their places.
    pub numbering: Numbering,
    /// Frames open at a time, at least 1.
    pub window: usize,
    /// Places beyond twice the window that may be missing in a row: where packets agree on a jump that is no
    /// longer, what lies between is lost; a longer one opens an epoch.
    pub max_gap: u64,
    /// Successive packets beyond twice the window that must agree before any of them is believed, at least 1; those before
    /// the last are kept aside meanwhile.
    pub resync_after: u32,
    /// Nanoseconds of signal in a frame, where each packet's time is that of its own payload: a frame whose first
    /// packets are missing is then told its start nevertheless. 0 = not known, or a packet's time is its frame's.
    pub frame_ns: u64,
}

impl Geometry {
    /// Frames of `places` equal places of `place_bytes`, numbered by a 64-bit counter, with a window of 4.
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

    /// Nanoseconds of signal in a frame before place `i`, as far as known.
    pub fn nanoseconds_before(&self, i: u32) -> u64 {
        if self.frame_ns == 0 {
            return 0;
        }
        let bytes = self.extent(i).start as u128 * u128::from(self.frame_ns);
        u64::try_from(bytes / self.frame_bytes.max(1) as u128).unwrap_or(u64::MAX)
    }

    /// Payload bytes of the longest place.
    fn max_payload(&self) -> usize {
        let last = self.extent(self.places - 1).len();
        self.first_bytes
            .max(self.place_bytes)
            .max(last)
            .min(self.frame_bytes)
    }

    /// The frame and the place in it at a position in places.
    const fn split(&self, position: u64) -> (u64, u32) {
        let places = self.places as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below `places`, a u32")]
        let place = (position % places) as u32;
        (position / places, place)
    }

    /// The bytes of place `i` in the frame.
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

/// A thread's handle on a window.
#[derive(Debug)]
pub struct ReorderWindow {
    shared: Arc<Shared>,
    state: WriterState,
    /// Whether this handle uses a pinned geometry, see [`pin`](Self::pin).
    is_pinned: bool,
}

/// What belongs to one thread.
#[derive(Debug)]
struct WriterState {
    writer: usize,
    /// The epoch as this thread last saw it; its reference moves along with the packets.
    epoch: Epoch,
    candidate: Option<Candidate>,
    /// The packets that the candidate stands for.
    candidates: Candidates,
    /// Where the next packet is expected, as a position in places.
    cursor: u64,
    /// Whether the next packet opens an epoch, whatever its number.
    restarts: bool,
    /// The same as packet, frame and place; `None` = work it out.
    next: Option<(PacketId, u64, u32)>,
    /// Whether payload was copied past the cache and may not be seen by others yet.
    streamed: bool,
    ledger: SourceLedger,
    sequencer: Option<Sequencer>,
}

impl ReorderWindow {
    /// A window over `producer`, filled by `writers` threads: one handle each, the first is the sequencer.
    ///
    /// # Panics
    /// If `writers`, `geometry.window`, `geometry.places` or `geometry.numbering.step` is 0, or a frame does
    /// not fit the ring's slots.
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

    /// How frames are made.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Replaces a planned geometry, which is an upper bound, by the one that the first packets show. Call it on each
    /// thread before its first packet is placed, with the same geometry; the first call decides.
    ///
    /// # Panics
    /// If frames or their places exceed the planned ones, or an epoch is open.
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

    /// Whether this thread alone fills the window, so that the kernel may be told to receive straight into
    /// places (see [`Batch::predict`]).
    pub fn is_exclusive(&self) -> bool {
        self.shared.is_exclusive()
    }

    /// Says that frames are told their times when they end ([`Batch::end`]), apart from their places: one that has all its
    /// places is kept open until it has its time too, the window leaves it behind, or nothing comes any more.
    pub fn await_times(&mut self) {
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.await_times();
        }
    }

    /// Whether this handle closes frames.
    pub const fn is_sequencer(&self) -> bool {
        self.state.sequencer.is_some()
    }

    /// What missing places are filled with.
    pub fn fill(&self) -> Fill {
        self.state
            .sequencer
            .as_ref()
            .map_or(Fill::ZERO, |sequencer| sequencer.producer().options().fill)
    }

    /// Begins a batch: until it is dropped, frames that are open stay where they are.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch::new(&self.shared, &mut self.state)
    }

    /// Waits for a slot to be freed, or about `limit`.
    pub fn wait(&self, policy: crate::notify::Wait, limit: std::time::Duration) {
        if let Some(sequencer) = &self.state.sequencer {
            sequencer.producer().wait(policy, limit);
        }
    }

    /// Reports the drops that the kernel has counted so far at this thread's socket: evidence for the cause
    /// of gaps, never the amount.
    pub fn note_drops(&self, total: u64) {
        self.shared.drops[self.state.writer].store(total, Ordering::Relaxed);
        self.shared.readings.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether gaps wait for their cause, so that a reading for [`note_drops`](Self::note_drops) is wanted.
    pub fn wants_drops(&self) -> bool {
        self.state
            .sequencer
            .as_ref()
            .is_some_and(Sequencer::has_gaps)
            || self.state.sequencer.is_none()
    }

    /// Says that the sender counts anew: the next packet opens an epoch, however near its number may be.
    ///
    /// For sources that know it, as a recording that is played again. Only for exclusive windows; elsewhere packets must
    /// agree.
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

    /// Says that `unit` carries no data by design (a SPEAD heap of descriptors): its places are not expected.
    ///
    /// Has an effect only where a unit is a frame, and while nothing has arrived for it. Payload that arrives before that
    /// of a later unit refutes it; a unit that later ones have overtaken is void at once, and what arrives for it is
    /// rejected. If the frame was closed already, its places count as `late`.
    pub fn skip(&mut self, unit: u64) {
        let is_frame =
            self.shared.geometry.numbering.places_per_unit == self.shared.geometry.places;
        if !is_frame || self.state.opens_epoch() && self.is_sequencer() {
            return;
        }
        if !self.state.candidates.is_empty() {
            // It may belong to the epoch that is not confirmed yet.
            let _ = self.state.keep(
                &self.shared,
                PacketId::of(unit),
                Content::NoData,
                Timestamp::default(),
            );
        }
        self.state.skip(&self.shared, unit);
    }

    /// The sequencer's work between batches: requests of other threads, frames that are complete, frames that
    /// have waited too long. Every thread calls it after each time that it has looked for packets, and at least every few
    /// milliseconds while it does not wait for packets.
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

    /// The end of the stream: publishes what is open up to the last place seen and settles the ledger.
    /// All other threads must have stopped filling.
    pub fn finish(&mut self) {
        self.adopt_pinned();
        self.state.reject_candidates(&self.shared);
        if let Some(sequencer) = &mut self.state.sequencer {
            sequencer.finish(&self.shared, self.state.writer);
        }
    }
}

impl WriterState {
    /// Takes over the epoch that the sequencer opened.
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

    /// Says that `unit` carries no data by design, see [`ReorderWindow::skip`].
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

    /// Keeps a candidate and returns the memory for its payload; `None` where it cannot be kept.
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

    /// The candidate with the lowest position, `id` among them.
    fn lowest_candidate(&self, geometry: &Geometry, id: PacketId) -> PacketId {
        geometry.numbering.lowest(id, self.candidates.ids())
    }

    /// Counts the candidates as rejected: something else is true.
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
            // While unwinding the window may be half moved: better an open ledger than a second fault.
            if !std::thread::panicking() {
                self.finish();
            }
            self.shared.closed.store(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
