//! The queue-pair engine: an RDMA NIC writes the sensor's frames directly into pages.
//!
//! ```text
//!   sensor ─ writes, unreliable connection ─▶ NIC ─▶ pages: slots owned by the engine ──copied──▶ ring
//!     ▲                                        └─ the write that ends a frame ─▶ completion: page, PSN
//!     └─ armed with the queue pair's number, the pages' addresses and their key
//! ```
//! The sensor has no flow control: it overwrites the pages in cyclic order, and frames that it may have overwritten are
//! discarded.
//!
//! # Frame numbers
//! A completion contains the page and the low 20 bits of the PSN of the packet that ended the frame. From the distance to the
//! previous PSN, [`PsnTracker`] computes how many frames lie between the two: those whose end never arrived are missing.
//! After an outage of more than 2^19 packets these bits are ambiguous. The metadata of both frame ends then resolve it,
//! because they contain the full PSN and the frame number of the sensor. If the metadata do not resolve it, or there are
//! none, the sensor is assumed to have restarted its count.
//!
//! # Missing packets
//! No completion reports packets lost inside a frame, because a PSN counts the packets that were sent. A marker of 8 bytes is
//! therefore written to the start of each packet's position in a page before the sensor reuses the page. If the marker is
//! still there afterwards, the packet is missing, and its bytes are filled after the frame is copied. A frame without any
//! packet is lost. The CPU must be able to access the pages for that.
//!
//! If metadata arrived with a frame end but the page now holds other metadata, the page was overwritten and the frame is lost.
//!
//! A frame end that arrives again, for example because the network duplicated a packet, is ignored. If several old frame ends
//! continue each other, each with a new PSN and in the next page, the sensor has restarted its count. Until that is
//! confirmed, the pages that it may have written are treated as overwritten.
//!
//! # How far the sensor may have written
//! After the newest completed frame the sensor may already be writing the next frame, and a frame whose end was lost is not
//! reported. Up to [`UNREPORTED`] such frames in a row are allowed for. If more frame ends are lost within one copy, on all
//! remaining pages, a damaged frame goes undetected unless its metadata were overwritten too; more pages make this less likely.
//! If an old frame end names a page other than the next, or if more frames end in quick succession than receives are posted, no
//! page is known to be intact: all completed frames are discarded. The same applies if the NIC or its completions fail while
//! the sensor may continue, and if the sensor does not stop sending when it is disarmed.
//!
//! Without relaxed ordering, the NIC must make the writes of a sensor visible in the order of their arrival.
//! Not yet tested on a ConnectX with a Holoscan Sensor Bridge.

use super::counts::{SensorCounts, Statistics};
use super::filler::Supervision;
use super::pages::{ALIGNMENT, Pages};
use super::psn::PsnTracker;
use super::supervisor::{Rearm, Supervisor, Target};
use daq_core::dma::{
    ArmError, Caps, CompletionOrder, Completions, DmaDevice, Engine, EngineError, EngineInfo,
    QuiesceTimeout, Sentinel, SlotLimits, Slots,
};
use daq_core::source::SourceError;
use daq_rdma::engine::ReceiveQueue;
use daq_rdma::registration::set::{RailRegions, RegistrationSet};
use daq_rdma::verbs::{Access, Nic, NicEvent, WorkCompletion};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod arming;
mod ends;
mod parts;
mod report;
mod steps;
#[cfg(test)]
mod tests;

use parts::{End, EndPattern, Ended, Fault, LastMetadata, Ring, Run};

use parts::FAULTS;

/// Minimum number of pages: one being copied, the pages that the sensor may be writing, and one in between.
pub(super) const MIN_PAGES: usize = 4;
/// Maximum number of pages: the page number in an immediate has 12 bits.
pub(super) const MAX_PAGES: usize = 4096;
/// Number of lost frame ends in a row for which overwritten frames are still detected.
pub(super) const UNREPORTED: u64 = 1;
/// Minimum number of posted receives; at least twice the number of pages.
const MIN_RECEIVES: u32 = 4096;
/// Maximum number of completions that one call polls.
const BATCH: usize = 64;
/// Number of polls without a completion after which the NIC's asynchronous events are read.
const EVENT_POLLS: u32 = 1024;
/// A disarmed sensor is considered silent after this time without a completion.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(20);

/// Bits of an immediate that contain the page number.
const PAGE_BITS: u32 = 12;
/// Number of old frame ends in a row that are ignored; one more confirms that the sensor restarted its count.
const MAX_OLD_ENDS: u64 = 4;

/// The parameters of the engine.
pub(super) struct Parts {
    /// Name for log messages.
    pub(super) name: String,
    pub(super) nic: Arc<dyn Nic>,
    /// Whether the NIC is emulated; an emulated NIC listens on its own port.
    pub(super) is_emulated_nic: bool,
    /// The sensor; its arming parameters get the pages of each arming.
    pub(super) target: Target,
    /// Frame and packet sizes of the sensor.
    pub(super) pages: Pages,
    /// Silence after which the registers are read back; zero disables this check.
    pub(super) rearm_after: Duration,
    /// Whether PCIe writes may be reordered.
    pub(super) relaxed: bool,
    pub(super) counters: SensorCounts,
}

/// A queue pair and the pages that a sensor writes through it.
pub(super) struct QueuePair {
    name: String,
    // Fields are dropped in this order: the sensor is disarmed, the queue pair ends all writes, then the memory keys
    // are released.
    supervisor: Supervisor,
    queue: Option<ReceiveQueue>,
    keys: Option<Arc<RailRegions>>,
    nic: Arc<dyn Nic>,
    registrations: Arc<RegistrationSet>,
    device: Arc<dyn DmaDevice>,
    pages: Pages,
    /// The pages for an arming that waits until the device is found.
    deferred: Option<Pages>,
    is_emulated_nic: bool,
    /// Total number of receives.
    receives: u32,
    collected: [WorkCompletion; BATCH],
    ring: Option<Ring>,
    tracker: PsnTracker,
    /// Transfer and frame number of the newest frame that ended.
    newest: Option<(u64, u64)>,
    /// The newest frame with metadata.
    last: Option<LastMetadata>,
    pattern: EndPattern,
    /// For each page, the end of the frame that it holds.
    ends: Vec<Option<End>>,
    epoch: u64,
    ended: VecDeque<Ended>,
    /// Number of frames discarded to make room, and the slots and frames skipped before them.
    overrun: u64,
    carried_over: (u64, u64),
    /// Number of ended frames that were discarded because the sensor was armed again, and number of frames missing
    /// before them.
    discarded: (u64, u64),
    sentinel: Sentinel,
    /// For each page, the transfer for which markers were written to it.
    marked: Vec<Option<u64>>,
    /// Transfers below `reported` were reported and are copied by the next poll; those below `ready` have markers again.
    reported: u64,
    ready: u64,
    present: Vec<u64>,
    faults: [u64; FAULTS.len()],
    failure: Option<Fault>,
    /// Whether the queue pair itself has failed, so that it accepts no writes.
    has_stopped: bool,
    idle: u32,
    /// The current run of old frame ends that continue each other.
    old_ends: Option<Run>,
    /// Transfers below this bound may have been overwritten.
    floor: u64,
    seen: Statistics,
    /// Number of frames that ended, for the supervisor.
    accepted: u64,
    counters: SensorCounts,
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
            relaxed,
            ..Access::WRITE
        };
        // The only link is a queue pair, which `quiesce` always destroys.
        let registrations =
            RegistrationSet::new(std::slice::from_ref(&nic), access, Box::new(|| Ok(())));
        let packets_per_frame = pages.packets();
        Ok(Self {
            name,
            supervisor,
            queue: None,
            keys: None,
            device: registrations.clone(),
            registrations,
            receives: 0,
            nic,
            collected: [WorkCompletion::default(); BATCH],
            ring: None,
            tracker: tracker(&pages, MIN_PAGES),
            pages,
            deferred: None,
            is_emulated_nic,
            newest: None,
            last: None,
            pattern: EndPattern::default(),
            ends: Vec::new(),
            epoch: 0,
            ended: VecDeque::new(),
            overrun: 0,
            carried_over: (0, 0),
            discarded: (0, 0),
            sentinel: Sentinel::new(RandomState::new().build_hasher().finish()),
            marked: Vec::new(),
            reported: 0,
            ready: 0,
            present: vec![0; packets_per_frame.div_ceil(64)],
            faults: [0; FAULTS.len()],
            failure: None,
            has_stopped: false,
            idle: 0,
            old_ends: None,
            floor: 0,
            seen: Statistics::default(),
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

    /// Records a failure after which the sensor may continue to write without completions.
    fn fail(&mut self, fault: Fault, why: &str) {
        self.discard_all();
        self.halt(fault, why);
    }

    /// Records a failure after which the sensor cannot write any more.
    fn halt(&mut self, fault: Fault, why: &str) {
        if self.failure.is_none() {
            tracing::warn!("{}: {}: {why}", self.name, self.nic.name());
            self.failure = Some(fault);
        }
    }

    /// Returns the offsets of the packets in a page.
    fn packet_offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let Pages { frame, packet, .. } = self.pages;
        (0..frame).step_by(packet)
    }

    /// Writes markers to the page of `transfer`. Returns false if the CPU cannot access the page.
    fn mark(&self, ring: &Ring, transfer: u64) -> bool {
        let at = ring.at(transfer);
        ring.region.cpu_address().is_some()
            && self
                .packet_offsets()
                .all(|place| self.sentinel.lay(&ring.region, at + place, 8))
    }

    /// Handles the asynchronous events of the NIC.
    fn handle_events(&mut self) {
        while let Some(event) = self.nic.event() {
            match event {
                NicEvent::Fatal => self.fail(Fault::Nic, "the NIC has failed; see dmesg"),
                NicEvent::CompletionOverrun => self.fail(
                    Fault::Queue,
                    "the completion queue was overrun: more frames ended than the queue can hold",
                ),
                NicEvent::PortDown => tracing::warn!(
                    "{}: the port of {} is down: frames are lost until the port is up",
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

/// Returns a tracker for the frames of a sensor with `pages` pages.
fn tracker(sensor: &Pages, pages: usize) -> PsnTracker {
    let packets = u32::try_from(sensor.packets()).unwrap_or(u32::MAX);
    // Packets never arrive late over a queue pair, so one completion is sufficient evidence.
    let tracker = PsnTracker::new(u32::try_from(pages).unwrap_or(u32::MAX), packets, 0, 1);
    // Restarts with old PSNs are detected in `handle_old`.
    tracker.ignore_old_restarts()
}

/// The description of the engine.
pub(super) const INFO: EngineInfo = EngineInfo {
    name: "hsb",
    summary: "a sensor bridge that writes to memory over a queue pair",
    limits: SlotLimits {
        alignment: ALIGNMENT,
        max_slot: 1 << 32,
        max_slots: MAX_PAGES,
        preferred: 1 << 20,
    },
    faults: FAULTS,
    supports_backpressure: false,
    order: CompletionOrder::AfterPayload,
};

// SAFETY: the sensor writes only through the queue pair and the memory region of its pages. `end` destroys the queue
// pair, after which the NIC drops all writes. `begin` fails only before it has connected, or `end` follows.
unsafe impl Engine for QueuePair {
    fn info(&self) -> &'static EngineInfo {
        &INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            writes_past_length: true,
            packet_bytes: self.pages.packet,
            ..Caps::of(&INFO)
        }
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        let begun = self.begin(slots);
        if begun.is_err() {
            self.end();
        }
        begun.map_err(ArmError::Stopped)
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
            // A device that has lost its registers writes nothing; the frames that ended before are intact.
            self.halt(
                Fault::Restarted,
                "the sensor's device has lost its register values",
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
            self.report(ended, done);
        }
        if self.queue.is_some() && (self.idle >= EVENT_POLLS || self.failure.is_some()) {
            self.idle = 0;
            self.handle_events();
        }
        for (kind, times) in self.faults.iter_mut().enumerate() {
            for _ in 0..std::mem::take(times) {
                done.fault(kind);
            }
        }
        match self.failure {
            Some(fault) if self.ended.is_empty() => Err(EngineError::Faulted {
                device: self.nic.name().to_owned(),
                engine: "the queue pair that receives from the sensor",
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

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        self.supervisor.disarm();
        let mut last_completion = Instant::now();
        let deadline = last_completion + timeout;
        let mut is_silent = self.queue.is_none() || self.has_stopped;
        while !is_silent && self.failure.is_none() {
            // The time is read before polling, because this poll cannot see later completions.
            let now = Instant::now();
            let count = self.collect();
            if now >= deadline {
                break;
            }
            if count > 0 {
                last_completion = Instant::now();
            }
            is_silent = count == 0 && now.duration_since(last_completion) >= SILENCE_TIMEOUT;
            if !is_silent {
                // An error here is recorded as a failure.
                let _ = self.wait(SILENCE_TIMEOUT);
            }
        }
        if !is_silent && !self.has_stopped {
            // The sensor may have continued unobserved.
            self.discard_all();
        }
        self.end();
        self.failure = None;
        Ok(())
    }
}
