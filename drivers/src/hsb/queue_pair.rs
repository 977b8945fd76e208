//! The data plane by a real queue pair: a card that does RDMA takes the sensor's writes into the pages itself.
//!
//! ```text
//!   sensor ─ writes, unreliable connection ─▶ card ─▶ pages: the slots of the engine's own ──copied──▶ ring
//!     ▲                                        └─ the write that ends a frame ─▶ completion: page, number
//!     └─ armed with the queue pair's number, the pages' addresses and their key
//! ```
//! The sensor knows no credits: it goes round over the pages, and what it may have overtaken is thrown away.
//!
//! # What is known of a frame
//! A completion tells the page and the low 20 bits of the number of the packet that ended the frame. By how far that is
//! from the one before, [`Order`] says how many frames lie between them: those that never ended are missing. Of packets
//! lost inside of a frame no completion tells, for the number counts those that were sent. So each packet's place in a
//! page is given a mark of 8 bytes before the page's turn comes, and a place that still has it was not written: it is
//! missing, and what the page held before is in its place. Where the CPU does not reach the pages there are no marks and
//! no metadata: frames have no timestamps there, and packets missing inside of them stay unknown.
//!
//! An end that comes again, as of a packet that the network has doubled, is left; a few of them in a row are a sensor that
//! counts anew.
//!
//! The first frame after each arming only tells where the count begins; it is neither delivered nor counted.
//!
//! # How far the sensor may be
//! Behind the newest frame that ended, it may be writing the next one; and of frames whose end was lost on the way nothing
//! is heard. [`UNHEARD`] of those in a row are allowed for. More of them, all within one copy of frames, and that on
//! all the pages that are left, would leave a torn frame unseen: many pages make that as unlikely as one likes.
//!
//! A card may deliver writes of one sensor in no other order than they came, unless it was asked for relaxed ordering.
//! Not yet run on a ConnectX with a Holoscan Sensor Bridge.

use super::arm::{Armed, Orders};
use super::ecb::{Ecb, Taken};
use super::filler::Control;
use super::metadata::{self, Metadata};
use super::order::Order;
use super::pages::{GRAIN, Pages};
use super::seen::{Counters, Seen};
use crate::sys::words;
use daq_core::dma::{
    Caps, Completions, DmaDevice, Done, Engine, EngineError, Origin, Sentinel, Slots, Stuck,
};
use daq_core::frame::{Flags, Timestamp};
use daq_rdma::registrar::{Keys, Registrar};
use daq_rdma::verbs::{Access, Endpoint, Nic, NicEvent, Queue, Side, Status, WorkDone};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod arming;
mod ends;
mod parts;
#[cfg(test)]
mod tests;

use parts::{Ended, Fault, Ring};

pub(super) use parts::FAULTS;

/// Fewest pages: the one that is copied, those that the sensor may be at, and one between them.
pub(super) const LEAST_PAGES: usize = 4;
/// Most pages: an immediate has 12 bits for them.
pub(super) const MOST_PAGES: usize = 4096;
/// Frames in a row whose end may be lost without what they overwrite being taken for whole.
pub(super) const UNHEARD: u64 = 1;
/// Frames that may end while nobody looks.
const RECEIVES: u32 = 4096;
/// Completions collected at a time, and receives that are posted anew together.
const BATCH: usize = 64;
/// Polls that found nothing, after which the card is asked what has happened to it.
const IDLE: u32 = 1024;
/// A sensor that was disarmed is silent when nothing has ended for so long.
const SILENCE: Duration = Duration::from_millis(20);

/// Bits of an immediate that name the page.
const PAGE_BITS: u32 = 12;
/// Ends of the past in a row that are repeated; after more of them the sensor counts anew.
const REPEATS: u32 = 4;

/// What the engine is made of.
pub(super) struct Parts {
    /// Whose it is, for messages.
    pub(super) name: String,
    pub(super) nic: Arc<dyn Nic>,
    /// Whether the card is made of software, which listens on a port of its own.
    pub(super) is_software: bool,
    /// The sensor's end, as far as it has one.
    pub(super) peer: Endpoint,
    /// What the sensor is to do; the pages are those of each arming.
    pub(super) control: Control,
    /// Whether writes may pass each other on the bus.
    pub(super) relaxed: bool,
    /// Those of `COUNTS`.
    pub(super) counters: Counters,
}

/// The source's engine: a queue pair, with the pages that a sensor writes through it.
pub(super) struct QueuePair {
    name: String,
    // In the order in which they are undone: the sensor is disarmed, then nothing is written any more, then the keys end.
    armed: Option<Armed>,
    queue: Option<Box<dyn Queue>>,
    keys: Option<Arc<Keys>>,
    nic: Arc<dyn Nic>,
    registrar: Arc<Registrar>,
    device: Arc<dyn DmaDevice>,
    peer: Endpoint,
    ecb: Arc<Mutex<Ecb>>,
    orders: Orders,
    is_software: bool,
    /// Receives of a queue, and those that are not posted.
    receives: u32,
    unposted: u32,
    collected: [WorkDone; BATCH],
    ring: Option<Ring>,
    order: Order,
    /// The newest frame that ended, by its transfer and by its number.
    newest: Option<(u64, u64)>,
    epoch: u64,
    ended: VecDeque<Ended>,
    /// Frames that were let go to make room, and the slots and frames that were passed over before them.
    overrun: u64,
    owed: (u64, u64),
    sentinel: Sentinel,
    /// For each page, the transfer that will find marks in it.
    marked: Vec<Option<u64>>,
    /// Transfers below it were told of, and are copied by the next poll; those below the other have their page marked.
    told: u64,
    ready: u64,
    present: Vec<u64>,
    faults: [u64; FAULTS.len()],
    failure: Option<Fault>,
    idle: u32,
    /// Ends of the past in a row.
    past: u32,
    seen: Seen,
    counters: Counters,
    /// Given back when the sensor is disarmed.
    _taken: Taken,
}

impl QueuePair {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            name,
            nic,
            is_software,
            peer,
            control,
            relaxed,
            counters,
        } = parts;
        let Control { ecb, orders, taken } = control;
        let access = Access {
            local_write: true,
            remote_write: true,
            relaxed,
        };
        // A link is a queue here, which `quiesce` destroys whatever happens.
        let registrar = Registrar::new(std::slice::from_ref(&nic), access, Box::new(|| Ok(())));
        let limits = nic.limits();
        let places = orders.pages.packets();
        let none = WorkDone {
            id: 0,
            side: Side::Received,
            status: Status::Flushed,
            bytes: 0,
            immediate: None,
        };
        Self {
            name,
            armed: None,
            queue: None,
            keys: None,
            device: registrar.clone(),
            registrar,
            peer,
            ecb,
            receives: RECEIVES.min(limits.max_work).min(limits.max_completions),
            nic,
            unposted: 0,
            collected: [none; BATCH],
            ring: None,
            order: order(&orders.pages, LEAST_PAGES),
            orders,
            is_software,
            newest: None,
            epoch: 0,
            ended: VecDeque::new(),
            overrun: 0,
            owed: (0, 0),
            sentinel: Sentinel::new(RandomState::new().build_hasher().finish()),
            marked: Vec::new(),
            told: 0,
            ready: 0,
            present: vec![0; places.div_ceil(64)],
            faults: [0; FAULTS.len()],
            failure: None,
            idle: 0,
            past: 0,
            seen: Seen::default(),
            counters,
            _taken: taken,
        }
    }

    fn unfit(&self, why: impl Into<String>) -> EngineError {
        EngineError::Unfit {
            device: self.nic.name().to_owned(),
            why: why.into(),
        }
    }

    fn count(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    fn fail(&mut self, fault: Fault, why: &str) {
        if self.failure.is_none() {
            tracing::warn!("{}: {}: {why}", self.name, self.nic.name());
            self.failure = Some(fault);
        }
    }

    /// Where the packets' places of a page begin.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let Pages { frame, packet, .. } = self.orders.pages;
        (0..frame).step_by(packet)
    }

    /// Lays marks in the page of `transfer`; false where the CPU does not reach it.
    fn mark(&self, ring: &Ring, transfer: u64) -> bool {
        let at = ring.at(transfer);
        ring.region.cpu_address().is_some()
            && self
                .places()
                .all(|place| self.sentinel.lay(&ring.region, at + place, 8))
    }

    /// Asks the card what has happened to it.
    fn attend(&mut self) {
        while let Some(event) = self.nic.event() {
            match event {
                NicEvent::Fatal => self.fail(Fault::Card, "the card has failed; see dmesg"),
                NicEvent::CompletionOverrun => self.fail(
                    Fault::Queue,
                    "more frames ended than its completion queue holds",
                ),
                NicEvent::PortDown => tracing::warn!(
                    "{}: the port of {} is down: frames are lost until it is up",
                    self.name,
                    self.nic.name()
                ),
                NicEvent::PortUp | NicEvent::Other(_) => {
                    tracing::info!("{}: {}: {event:?}", self.name, self.nic.name());
                }
            }
        }
    }

    /// The frame's time, by its metadata.
    fn time(&mut self, at: usize, ended: &Ended) -> Timestamp {
        let Some(ring) = &self.ring else {
            return Timestamp::default();
        };
        let mut bytes = [0; metadata::BYTES];
        let behind = at + Pages::metadata_at(self.orders.pages.frame);
        if !words::read(&ring.region, behind, &mut bytes) {
            return Timestamp::default();
        }
        let metadata = Metadata::parse(&bytes);
        if (metadata.psn ^ ended.psn) & ((1 << (32 - PAGE_BITS)) - 1) != 0 {
            self.count(Fault::Metadata);
            return Timestamp::default();
        }
        if self.epoch == ended.epoch {
            let bytes = self.orders.pages.frame;
            self.seen.note(ended.frame, bytes, &metadata);
            self.seen.tell(&self.counters);
        }
        metadata.time()
    }

    /// Looks which places of the frame were written; how many of them.
    fn look(&mut self, at: usize) -> Option<u32> {
        let ring = self.ring.as_ref()?;
        self.present.fill(0);
        let mut arrived = 0;
        for (i, place) in self.places().enumerate() {
            let seen = self.sentinel.look(&ring.region, at + place, 8, 8)?;
            if seen.unwritten == 0 {
                self.present[i / 64] |= 1 << (i % 64);
                arrived += 1;
            }
        }
        Some(arrived)
    }

    fn tell(&mut self, ended: Ended, done: &mut Completions) {
        let Some(ring) = &self.ring else {
            return;
        };
        let at = ring.at(ended.transfer);
        let places = u32::try_from(self.orders.pages.packets()).unwrap_or(u32::MAX);
        let is_reached = ring.region.cpu_address().is_some();
        let is_marked = self.marked[ring.page(ended.transfer)] == Some(ended.transfer);
        let timestamp = self.time(at, &ended);
        let arrived = (is_reached && is_marked).then(|| self.look(at)).flatten();
        let is_bad = is_reached && arrived.is_none();
        if is_bad {
            self.count(Fault::Overtaken);
        }
        let arrived_of = arrived.unwrap_or(places);
        let is_whole = arrived_of >= places;
        if !is_whole {
            self.count(Fault::Incomplete);
        }
        let (passed, missing) = std::mem::take(&mut self.owed);
        let told = Done {
            length: self.orders.pages.frame,
            is_bad,
            timestamp,
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
                arrived: arrived_of,
            }),
        };
        if is_whole {
            done.push(told);
        } else {
            done.push_with(told, &self.present);
        }
        self.told = ended.transfer + 1;
    }
}

/// What follows the frames of a sensor over `pages` pages.
fn order(sensor: &Pages, pages: usize) -> Order {
    let packets = u32::try_from(sensor.packets()).unwrap_or(u32::MAX);
    // Nothing comes late over a queue pair, and completions are believed at once.
    Order::new(u32::try_from(pages).unwrap_or(u32::MAX), packets, 0, 1)
}

impl Engine for QueuePair {
    fn name(&self) -> &'static str {
        "hsb"
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            holdable: false,
            bell_bits: 0,
            end_of_packet: true,
            alignment: GRAIN,
            max_transfer: 1 << 32,
            max_slots: MOST_PAGES,
        }
    }

    fn faults(&self) -> &'static [&'static str] {
        FAULTS
    }

    fn writes_behind(&self) -> bool {
        true
    }

    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let begun = self.begin(slots);
        if begun.is_err() {
            self.end();
        }
        begun
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.make_ready();
        self.collect();
        done.skip(std::mem::take(&mut self.overrun));
        self.idle += 1;
        while done.room() > 0
            && let Some(ended) = self.ended.pop_front()
        {
            self.idle = 0;
            self.tell(ended, done);
        }
        if self.queue.is_some() && (self.idle >= IDLE || self.failure.is_some()) {
            self.idle = 0;
            self.attend();
        }
        for (kind, times) in self.faults.iter_mut().enumerate() {
            for _ in 0..std::mem::take(times) {
                done.fault(kind);
            }
        }
        match self.failure {
            Some(fault) if self.ended.is_empty() => Err(EngineError::Faulted {
                device: self.nic.name().to_owned(),
                engine: "the queue pair of its sensor",
                faults: vec![FAULTS[fault as usize]],
            }),
            _ => Ok(()),
        }
    }

    fn credit(&mut self, _: u32) {}

    fn lapsed(&mut self) -> Result<u64, EngineError> {
        self.collect();
        Ok(self.bound())
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let Some(queue) = &mut self.queue else {
            return Ok(false);
        };
        match queue.wait(limit) {
            Ok(waited) => Ok(waited),
            Err(error) => {
                self.fail(Fault::Queue, &error.to_string());
                Ok(false)
            }
        }
    }

    fn quiesce(&mut self, patience: Duration) -> Result<(), Stuck> {
        self.armed = None;
        let deadline = Instant::now() + patience;
        let mut heard = Instant::now();
        while self.queue.is_some() && self.failure.is_none() {
            let before = self.newest;
            self.collect();
            let now = Instant::now();
            if self.newest != before {
                heard = now;
            }
            if now.duration_since(heard) >= SILENCE || now >= deadline {
                break;
            }
            // What fails here is told by the next look.
            let _ = self.wait(SILENCE);
        }
        self.end();
        self.failure = None;
        Ok(())
    }
}
