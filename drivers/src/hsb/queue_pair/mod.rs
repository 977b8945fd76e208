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
//! from the one before, [`Order`] says how many frames lie between them: those that never ended are missing. After an
//! outage of more than 2^19 packets these bits have come round; then the metadata of both ends, which hold the number in
//! full and the frame's own, say how many. Where they cannot either, or there are none, the sensor is taken to count anew.
//!
//! Of packets lost inside of a frame no completion tells, for the number counts those that were sent. So each packet's
//! place in a page is given a mark of 8 bytes before the page's turn comes, and a place that still has it was not written:
//! it is missing, and filled once it is copied. A frame of which no place was written is lost. The CPU must reach the pages
//! for that.
//!
//! Metadata that came with an end and are in its page no more, or are another frame's, prove that the page was written
//! since: the frame is lost.
//!
//! An end that comes again, as of a packet that the network has doubled, is left. Ends with numbers of the past that go
//! on, each with another number to the next page, are a sensor that counts anew once there are a few of them; until then
//! what it may have written is given up.
//!
//! # How far the sensor may be
//! Behind the newest frame that ended, it may be writing the next one; and of frames whose end was lost on the way nothing
//! is heard. [`UNHEARD`] of those in a row are allowed for. More of them, all within one copy of frames, and that on
//! all the pages that are left, would leave a torn frame unseen unless its metadata were overwritten, too: many pages make
//! that as unlikely as one likes. An end of the past to any other page than the next one, and more ends at a time than
//! there were receives for, leave no page that is known to be whole: all frames that have ended are given up. So they are
//! when the card or its completions fail while the sensor may go on, and where it is not seen to fall silent at its end.
//!
//! A card may deliver writes of one sensor in no other order than they came, unless it was asked for relaxed ordering.
//! Not yet run on a ConnectX with a Holoscan Sensor Bridge.

use super::filler::Supervision;
use super::order::Order;
use super::pages::{GRAIN, Pages};
use super::seen::{Counters, Seen};
use super::supervisor::{Rearm, Supervisor, Target};
use daq_core::dma::{
    Caps, Completions, DmaDevice, Engine, EngineError, QuiesceTimeout, Sentinel, Slots,
};
use daq_core::source::SourceError;
use daq_rdma::registration::set::{RailRegions, RegistrationSet};
use daq_rdma::verbs::{self, Access, Nic, NicEvent, Side, Status, WorkCompletion};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod arming;
mod ends;
mod parts;
mod steps;
mod tell;
#[cfg(test)]
mod tests;

use parts::{End, Ended, Fault, Habits, Mark, Ring, Run};

pub(super) use parts::FAULTS;

/// Fewest pages: the one that is copied, those that the sensor may be at, and one between them.
pub(super) const MIN_PAGES: usize = 4;
/// Most pages: an immediate has 12 bits for them.
pub(super) const MAX_PAGES: usize = 4096;
/// Frames in a row whose end may be lost without what they overwrite being taken for whole.
pub(super) const UNHEARD: u64 = 1;
/// Frames that may end while nobody looks, at least; twice as many as there are pages.
const RECEIVES: u32 = 4096;
/// Completions collected at a time, and receives that are posted anew together.
const BATCH: usize = 64;
/// Polls that found nothing, after which the card is asked what has happened to it.
const IDLE: u32 = 1024;
/// A sensor that was disarmed is silent when nothing has ended for so long.
const SILENCE: Duration = Duration::from_millis(20);

/// Bits of an immediate that name the page.
const PAGE_BITS: u32 = 12;
/// Ends of the past that go on from each other and are given up; after more of them the sensor counts anew.
const REPEATS: u64 = 4;

/// What the engine is made of.
pub(super) struct Parts {
    /// Whose it is, for messages.
    pub(super) name: String,
    pub(super) nic: Arc<dyn Nic>,
    /// Whether the card is made of software, which listens on a port of its own.
    pub(super) is_emulated_nic: bool,
    /// The sensor; the pages in its orders are those of each arming.
    pub(super) target: Target,
    /// How the sensor cuts frames.
    pub(super) pages: Pages,
    /// Silence after which registers are read back; zero for never.
    pub(super) rearm_after: Duration,
    /// Whether writes may pass each other on the bus.
    pub(super) relaxed: bool,
    /// Those of `COUNTS`.
    pub(super) counters: Counters,
}

/// The source's engine: a queue pair, with the pages that a sensor writes through it.
pub(super) struct QueuePair {
    name: String,
    // In the order in which they are undone: the sensor is disarmed, then nothing is written any more, then the keys end.
    supervisor: Supervisor,
    queue: Option<Box<dyn verbs::QueuePair>>,
    keys: Option<Arc<RailRegions>>,
    nic: Arc<dyn Nic>,
    registrar: Arc<RegistrationSet>,
    device: Arc<dyn DmaDevice>,
    pages: Pages,
    /// The pages of an arming that waits until the device is found.
    deferred: Option<Pages>,
    is_emulated_nic: bool,
    /// Receives of a queue, and those that are not posted.
    receives: u32,
    unposted: u32,
    collected: [WorkCompletion; BATCH],
    ring: Option<Ring>,
    order: Order,
    /// The newest frame that ended, by its transfer and by its number.
    newest: Option<(u64, u64)>,
    /// The newest whose metadata came.
    last: Option<Mark>,
    habits: Habits,
    /// For each page, the end of the frame that it holds.
    ends: Vec<Option<End>>,
    epoch: u64,
    ended: VecDeque<Ended>,
    /// Frames that were let go to make room, and the slots and frames that were passed over before them.
    overrun: u64,
    owed: (u64, u64),
    /// Frames that had ended when it was armed anew, and those missing before them.
    discarded: (u64, u64),
    sentinel: Sentinel,
    /// For each page, the transfer that will find marks in it.
    marked: Vec<Option<u64>>,
    /// Transfers below it were told of, and are copied by the next poll; those below the other have their page marked.
    told: u64,
    ready: u64,
    present: Vec<u64>,
    faults: [u64; FAULTS.len()],
    failure: Option<Fault>,
    /// The queue itself has failed: it takes no writes.
    has_stopped: bool,
    idle: u32,
    /// Ends of the past that go on from each other.
    past: Option<Run>,
    /// Transfers below it may have been overwritten, whatever else is known.
    floor: u64,
    seen: Seen,
    /// Number of frames that ended, for the supervisor.
    accepted: u64,
    counters: Counters,
}

impl QueuePair {
    pub(super) fn new(parts: Parts) -> Result<Self, SourceError> {
        let Parts {
            name,
            nic,
            is_emulated_nic,
            target,
            pages,
            rearm_after,
            relaxed,
            counters,
        } = parts;
        let source = name.strip_prefix("source ").unwrap_or(&name);
        let supervision = Supervision {
            target,
            rearm: Rearm::Owner,
            rearm_after,
        };
        let supervisor = supervision.start(source, &counters)?;
        let access = Access {
            local_write: true,
            remote_write: true,
            relaxed,
        };
        // A link is a queue here, which `quiesce` destroys whatever happens.
        let registrar =
            RegistrationSet::new(std::slice::from_ref(&nic), access, Box::new(|| Ok(())));
        let places = pages.packets();
        let none = WorkCompletion {
            id: 0,
            side: Side::Received,
            status: Status::Flushed,
            bytes: 0,
            immediate: None,
        };
        Ok(Self {
            name,
            supervisor,
            queue: None,
            keys: None,
            device: registrar.clone(),
            registrar,
            receives: 0,
            nic,
            unposted: 0,
            collected: [none; BATCH],
            ring: None,
            order: order(&pages, MIN_PAGES),
            pages,
            deferred: None,
            is_emulated_nic,
            newest: None,
            last: None,
            habits: Habits::default(),
            ends: Vec::new(),
            epoch: 0,
            ended: VecDeque::new(),
            overrun: 0,
            owed: (0, 0),
            discarded: (0, 0),
            sentinel: Sentinel::new(RandomState::new().build_hasher().finish()),
            marked: Vec::new(),
            told: 0,
            ready: 0,
            present: vec![0; places.div_ceil(64)],
            faults: [0; FAULTS.len()],
            failure: None,
            has_stopped: false,
            idle: 0,
            past: None,
            floor: 0,
            seen: Seen::default(),
            accepted: 0,
            counters,
        })
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

    /// Remembers a failure after which the sensor may go on to write, and nobody hears how far.
    fn fail(&mut self, fault: Fault, why: &str) {
        self.give_up();
        self.halt(fault, why);
    }

    /// Remembers a failure after which nothing is written.
    fn halt(&mut self, fault: Fault, why: &str) {
        if self.failure.is_none() {
            tracing::warn!("{}: {}: {why}", self.name, self.nic.name());
            self.failure = Some(fault);
        }
    }

    /// Where the packets' places of a page begin.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let Pages { frame, packet, .. } = self.pages;
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
}

/// What follows the frames of a sensor over `pages` pages.
fn order(sensor: &Pages, pages: usize) -> Order {
    let packets = u32::try_from(sensor.packets()).unwrap_or(u32::MAX);
    // Nothing comes late over a queue pair, and completions are believed at once.
    let order = Order::new(u32::try_from(pages).unwrap_or(u32::MAX), packets, 0, 1);
    // Which ends of the past are a sensor that counts anew is looked at here.
    order.without_return()
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
            supports_backpressure: false,
            doorbell_bits: 0,
            end_of_packet: true,
            alignment: GRAIN,
            max_transfer: 1 << 32,
            max_slots: MAX_PAGES,
        }
    }

    fn faults(&self) -> &'static [&'static str] {
        FAULTS
    }

    fn writes_past_length(&self) -> bool {
        true
    }

    fn place_bytes(&self) -> usize {
        self.pages.packet
    }

    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let begun = self.begin(slots);
        if begun.is_err() {
            self.end();
        }
        begun
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.supervisor.link().take_found()
            && let Some(pages) = self.deferred.take()
        {
            self.connect(pages)?;
        }
        self.make_ready();
        self.collect();
        if self.queue.is_some() && self.supervisor.link().take_lost() {
            // A device that has lost its registers writes nothing; what ended before is whole.
            self.halt(
                Fault::Restarted,
                "the sensor's device has lost its registers",
            );
        }
        done.skip(std::mem::take(&mut self.overrun));
        let (discarded, missing) = std::mem::take(&mut self.discarded);
        done.discard(discarded);
        done.add_missing(missing);
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

    fn overwritten(&mut self) -> Result<u64, EngineError> {
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

    fn quiesce(&mut self, patience: Duration) -> Result<(), QuiesceTimeout> {
        self.supervisor.disarm();
        let mut heard = Instant::now();
        let deadline = heard + patience;
        let mut is_silent = self.queue.is_none() || self.has_stopped;
        while !is_silent && self.failure.is_none() {
            // Before the look: what ends later is not heard by it.
            let now = Instant::now();
            let count = self.collect();
            if now >= deadline {
                break;
            }
            if count > 0 {
                heard = Instant::now();
            }
            is_silent = count == 0 && now.duration_since(heard) >= SILENCE;
            if !is_silent {
                // What fails here is a failure like any other.
                let _ = self.wait(SILENCE);
            }
        }
        if !is_silent && !self.has_stopped {
            // It may have gone on while nobody looked.
            self.give_up();
        }
        self.end();
        self.failure = None;
        Ok(())
    }
}
