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
use super::order::{Course, Order};
use super::pages::{GRAIN, Pages, Spot};
use super::seen::{CONTROL_ERRORS, Counters, Seen};
use crate::sys::words;
use daq_core::dma::{
    Caps, Completions, DmaDevice, Done, Engine, EngineError, Origin, Sentinel, Slots, Stuck,
};
use daq_core::frame::{Flags, Timestamp};
use daq_rdma::registrar::{Keys, Registrar};
use daq_rdma::verbs::{
    Access, Endpoint, Nic, NicEvent, Queue, QueueOptions, Service, Side, Status, WorkDone,
};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
        let registrar = Registrar::new(&[nic.clone()], access, Box::new(|| Ok(())));
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

    /// Looks at the ring and makes it known to the card and the sensor.
    fn begin(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let least = Pages::page_bytes(self.orders.pages.frame);
        let count = slots.addresses.len();
        if !(LEAST_PAGES..=MOST_PAGES).contains(&count) {
            return Err(self.unfit(format!(
                "{count} slots are no ring for a sensor that goes round: give the ring {LEAST_PAGES} to {MOST_PAGES}"
            )));
        }
        if slots.bytes < least {
            return Err(self.unfit(format!(
                "slots of {} bytes have no room for a frame and its metadata: set `slot = \"{least} B\"` in the ring's \
                 section",
                slots.bytes
            )));
        }
        let base = slots.addresses[0];
        let stride = usize::try_from(slots.addresses[1].wrapping_sub(base)).unwrap_or(0);
        let is_even = slots
            .addresses
            .windows(2)
            .all(|pair| pair[1].wrapping_sub(pair[0]) == stride as u64);
        if !is_even || stride < slots.bytes || !stride.is_multiple_of(GRAIN) {
            return Err(self.unfit(format!(
                "slots that are {stride} bytes apart: a sensor takes multiples of {GRAIN}"
            )));
        }
        let (memory, _) = self
            .registrar
            .around(base)
            .ok_or_else(|| self.unfit("it was given slots that were not mapped for it"))?;
        let keys = self.registrar.lend(memory)?;
        let key = keys.of(0);
        let offset = usize::try_from(base - memory).unwrap_or(usize::MAX);
        let room = key.region().bytes().saturating_sub(offset);
        if (count - 1)
            .checked_mul(stride)
            .is_none_or(|last| last + slots.bytes > room)
        {
            return Err(self.unfit("it was given slots that end beyond what was mapped for it"));
        }
        let pages = Pages {
            base: key.address() + offset as u64,
            stride: stride as u64,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            rkey: key.remote(),
            ..self.orders.pages
        };
        if !pages.base.is_multiple_of(GRAIN as u64) {
            let base = pages.base;
            return Err(self.unfit(format!(
                "pages at {base:#x}: a sensor takes multiples of {GRAIN}"
            )));
        }
        let ring = Ring {
            region: key.region().clone(),
            offset,
            stride,
            pages: count as u64,
            first: (slots.first % count) as u64,
        };
        self.keys = Some(keys);
        self.reset(ring);
        self.connect(pages)
    }

    /// Forgets the arming before.
    fn reset(&mut self, ring: Ring) {
        let pages = usize::try_from(ring.pages).unwrap_or(0);
        self.order = order(&self.orders.pages, pages);
        (self.newest, self.overrun, self.owed) = (None, 0, (0, 0));
        self.epoch += 1;
        self.ended.clear();
        self.ended.reserve(pages);
        self.marked = vec![None; pages];
        (self.told, self.ready, self.failure) = (0, 0, None);
        (self.idle, self.past) = (0, 0);
        self.seen.begin();
        for transfer in 0..ring.pages {
            self.marked[ring.page(transfer)] = self.mark(&ring, transfer).then_some(transfer);
        }
        self.ring = Some(ring);
    }

    fn connect(&mut self, mut pages: Pages) -> Result<(), EngineError> {
        let options = QueueOptions {
            service: Service::Uc,
            sends: 1,
            receives: self.receives,
            pieces: 1,
            inline: 0,
            events: true,
        };
        let refused = |error: daq_rdma::verbs::VerbsError| EngineError::Unfit {
            device: error.nic.clone(),
            why: error.to_string(),
        };
        let mut queue = self.nic.queue(&options).map_err(refused)?;
        for id in 0..self.receives {
            queue.receive(id.into(), &[]).map_err(refused)?;
        }
        self.unposted = 0;
        queue.connect(&self.peer).map_err(refused)?;
        let endpoint = queue.endpoint();
        pages.queue_pair = endpoint.number;
        self.queue = Some(queue);
        let mut orders = Orders {
            pages,
            ..self.orders
        };
        if self.is_software {
            orders.host.set_port(endpoint.lid);
        }
        let errors = self.counters[CONTROL_ERRORS].clone();
        let armed = Armed::arm(self.ecb.clone(), orders, errors);
        let armed = armed.map_err(|error| EngineError::Unfit {
            device: format!("sensor {}", orders.sensor),
            why: error.to_string(),
        })?;
        tracing::info!(
            "{}: sensor {} writes through queue pair {} of {} into {} pages on {}",
            self.name,
            orders.sensor,
            pages.queue_pair,
            self.nic.name(),
            pages.count,
            self.keys
                .as_ref()
                .map_or_else(String::new, |keys| keys.ways())
        );
        self.armed = Some(armed);
        Ok(())
    }

    /// Undoes an arming, in order.
    fn end(&mut self) {
        self.armed = None;
        self.queue = None;
        self.keys = None;
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

    /// Transfers that may be, or be being, overwritten by now.
    fn bound(&self) -> u64 {
        let pages = self.ring.as_ref().map_or(0, |ring| ring.pages);
        let begun = self.newest.map_or(0, |(newest, _)| newest + 2 + UNHEARD);
        begun.saturating_sub(pages)
    }

    /// Makes the pages ready whose frames were copied since the last poll.
    fn make_ready(&mut self) {
        if self.queue.is_none() {
            // Nothing is written any more.
            return;
        }
        let before = self.bound();
        let Some(ring) = self.ring.take() else {
            return;
        };
        let from = self.ready.max(self.told.saturating_sub(ring.pages));
        if from < self.told {
            for transfer in from..self.told {
                let is_marked = transfer >= before && self.mark(&ring, transfer);
                self.marked[ring.page(transfer)] = is_marked.then_some(transfer + ring.pages);
            }
            self.ready = self.told;
            self.ring = Some(ring);
            self.collect();
            let after = self.bound();
            let Some(ring) = &self.ring else {
                return;
            };
            for transfer in from..self.told.min(after) {
                self.marked[ring.page(transfer)] = None;
            }
        } else {
            self.ring = Some(ring);
        }
    }

    /// Takes all completions that there are.
    fn collect(&mut self) {
        while self.failure.is_none() {
            let Some(queue) = &mut self.queue else {
                return;
            };
            let count = match queue.poll(&mut self.collected) {
                Ok(count) => count,
                Err(error) => return self.fail(Fault::Queue, &error.to_string()),
            };
            for i in 0..count {
                self.completed(self.collected[i]);
            }
            self.post();
            if count < self.collected.len() {
                return;
            }
        }
    }

    /// Posts the receives that were used up.
    fn post(&mut self) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        while self.unposted > 0 {
            if let Err(error) = queue.receive(self.unposted.into(), &[]) {
                return self.fail(Fault::Queue, &error.to_string());
            }
            self.unposted -= 1;
        }
    }

    fn completed(&mut self, done: WorkDone) {
        if done.status != Status::Success {
            let why = format!("its queue failed: {}", done.status.name());
            return self.fail(Fault::Queue, &why);
        }
        if done.side != Side::Received {
            return;
        }
        self.unposted += 1;
        let Some(ring) = &self.ring else {
            return;
        };
        let page = done
            .immediate
            .map(|immediate| u64::from(immediate) & ((1 << PAGE_BITS) - 1));
        let (Some(immediate), Some(page)) =
            (done.immediate, page.filter(|page| *page < ring.pages))
        else {
            return self.count(Fault::Immediate);
        };
        let psn = immediate >> PAGE_BITS;
        let spot = Spot {
            page: immediate & ((1 << PAGE_BITS) - 1),
            index: u32::try_from(self.orders.pages.packets()).unwrap_or(u32::MAX),
            bytes: 0,
            metadata: Some(0),
        };
        let Some((newest, frame)) = self.newest else {
            let transfer = (page + ring.pages - ring.first) % ring.pages;
            self.order.begin(psn, &spot);
            self.order.ends(done.bytes as usize == metadata::BYTES);
            self.newest = Some((transfer, 0));
            self.owed.0 += transfer + 1;
            self.told = self.told.max(transfer + 1);
            return;
        };
        let course = self.order.find(psn, &spot);
        let is_past = match course {
            Course::Frame(next) => next <= frame,
            Course::Past => true,
            Course::Astray | Course::Anew => false,
        };
        self.past = if is_past { self.past + 1 } else { 0 };
        if (1..=REPEATS).contains(&self.past) {
            return self.count(Fault::Repeated);
        }
        let (ahead, frame, missing) = match course {
            Course::Frame(next) if !is_past => {
                self.order.follow(next, psn, &spot);
                (next - frame, next, next - frame - 1)
            }
            // The sensor counts anew. How many frames it did not end before is not known.
            _ => {
                let ahead = ring.ahead(newest, page);
                self.order.begin(psn, &spot);
                self.seen.begin();
                (self.epoch, self.past) = (self.epoch + 1, 0);
                self.count(Fault::Order);
                (ahead, 0, 0)
            }
        };
        self.newest = Some((newest + ahead, frame));
        if self.ended.len() == self.marked.len()
            && let Some(oldest) = self.ended.pop_front()
        {
            self.overrun += 1;
            self.owed.0 += oldest.passed;
            self.owed.1 += oldest.missing;
        }
        self.ended.push_back(Ended {
            transfer: newest + ahead,
            frame,
            epoch: self.epoch,
            psn,
            passed: ahead - 1,
            missing,
        });
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
