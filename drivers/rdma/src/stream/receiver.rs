//! The receiving side of a stream: an engine whose slots are filled by a sender on another host.
//!
//! ```text
//!   sender ══ rails ══▶ slots of a ring         the engine: completions in frame order, credits back
//!      └─── connects ──▶ accepting thread     after an interruption: new queue pairs and memory regions
//! ```
//! # Guarantees
//! - A frame is delivered once, and only when both its payload and its record have arrived. Frames that were not
//!   delivered when a link ended are requested again.
//! - On a reliable connection every frame that the NIC has acknowledged is delivered, even if its completion appears
//!   only when the queue pair is stopped, because the sender may have freed the frame. The exception is a NIC that
//!   fails silently.
//! - After a link has ended nothing is written: its queue pairs are destroyed first, then its memory regions. The
//!   next sender gets new remote keys.
//! - A sender that violates the protocol is disconnected, and a fault is counted. On a reliable connection
//!   such a sender can damage only the slots that were offered to that sender.

mod control;
mod link;
mod rejections;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use control::FAULTS;

use super::after;
use crate::connect::Listener;
use crate::engine::RegisteredSlots;
use crate::registration::set::RegistrationSet;
use crate::verbs::{Access, Nic, Service};
use crate::wire::{KeptNames, Mode, Record, SamplePlaces};
use control::{Connected, Control, Fault, PendingSender, Phase, Shared, Terms};
use daq_core::dma::{
    ArmError, Caps, CompletionOrder, Completions, DmaBuffer, DmaDevice, Done, Engine, EngineError,
    EngineInfo, Origin, QuiesceTimeout, SlotLimits, Slots,
};
use daq_core::frame::Flags;
use daq_core::ledger::Counter;
use daq_core::log_limit::{LogLimit, Suppressed};
use daq_core::region::Region;
use daq_core::units::counted;
use link::{CompletedFrame, Damage, EndReason, Link, Step};
use rejections::RejectionLog;
use shape::{Rejection, Shape};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time that a dropped engine waits for a sender that is being answered.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of streams whose position is remembered.
const REMEMBERED: usize = 8;
/// Maximum number of frames that can be lost during an interruption. A larger gap is treated as an invalid frame
/// number.
const MAX_GAP: u64 = 1 << 40;

/// Counters of a receiver. A sender is connected if `links` exceeds `ended` by one.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Number of links that were established.
    pub links: Counter,
    /// Number of links that have ended.
    pub ended: Counter,
}

/// Options of a receiver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the receiver's component in log messages, as in ``source `camera` ``.
    pub name: String,
    /// The transfer mode of the frames.
    pub mode: Mode,
    /// The transport service: [`Service::Rc`] for both modes, [`Service::Uc`] for writes, [`Service::Ud`] for sends.
    pub service: Service,
    /// Maximum number of packets per frame; 0 if frames do not consist of packets.
    pub packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub kept: KeptNames,
    /// The places of samples in frames; the default if they are not known.
    pub places: SamplePlaces,
    /// True: writes of the payload may become visible in any order.
    pub relaxed: bool,
    /// The counters that the receiver updates.
    pub counters: Counters,
}

/// Limits on log messages that peers can cause.
#[derive(Debug, Default)]
struct Limits {
    connected: LogLimit,
    ended: LogLimit,
    damaged: LogLimit,
}

impl Limits {
    /// Logs that a frame does not match its checksum.
    fn warn_of_damage(&self, name: &str, peer: &str, completed: &CompletedFrame) {
        self.damaged.run(|suppressed| {
            tracing::warn!(
                "{name}: frame {} from {peer} does not match its checksum and is lost; check the cables, network cards and \
                 switches between the hosts{suppressed}",
                completed.record.number
            );
        });
    }
}

/// The receiving side of a stream.
pub struct Receiver {
    name: String,
    shape: Shape,
    device: Arc<dyn DmaDevice>,
    payload: Arc<RegistrationSet>,
    record_device: Arc<RegistrationSet>,
    shared: Arc<Shared>,
    /// Maximum number of slots, and maximum slot size in bytes.
    max: (usize, usize),
    ring: Option<RegisteredSlots>,
    /// The current link. Declared before the memory that the peer writes, so that the link is dropped first.
    link: Option<Link>,
    records: Option<DmaBuffer>,
    /// The memory of the slots, for checksums. It is kept until the engine is armed again, because the last frames are
    /// completed after the engine was stopped.
    memory: Option<Arc<Region>>,
    /// Number of slots credited since the engine was armed.
    credited: u64,
    /// Number of slots completed since the engine was armed.
    completed: u64,
    /// Number of slots completed when the link started.
    base: u64,
    /// Known streams, most recent first, each with the number of its next frame.
    streams: Vec<(u64, u64)>,
    /// Number of missing frames that no later frame will report.
    missing: u64,
    counters: Counters,
    /// The stream number and the sender's epoch of the last frame, followed by the epoch number of this receiver.
    epoch: (Option<(u64, u64)>, u64),
    /// The record of the last frame.
    last: Record,
    present: Vec<u64>,
    thread: Option<JoinHandle<()>>,
    limits: Limits,
    /// Start of the interruption whose end must be logged.
    interrupted: Option<Instant>,
}

impl Receiver {
    /// Creates a receiver with one rail for each of `rails`; a NIC may occur several times. The receiver answers
    /// connectors of `listener` once the receiver is armed.
    ///
    /// # Errors
    /// If a NIC is unsuitable, or the thread cannot be started.
    pub fn new(
        options: &Options,
        rails: Vec<Arc<dyn Nic>>,
        listener: Listener,
    ) -> Result<Self, EngineError> {
        let unfit = |device: &str, why: String| EngineError::Unfit {
            device: device.to_owned(),
            why,
        };
        let limits = |of: fn(&dyn Nic) -> u64| rails.iter().map(|nic| of(&**nic)).min();
        let work = limits(|nic| {
            nic.limits()
                .max_work
                .min(nic.limits().max_completions)
                .into()
        });
        let bytes = limits(|nic| nic.limits().max_message).unwrap_or(0);
        let Some(work) = work else {
            return Err(unfit(
                &options.name,
                "a receiver needs at least one NIC".to_owned(),
            ));
        };
        for nic in &rails {
            let limits = nic.limits();
            if limits.max_inline < 8 || limits.max_sges < 2 {
                let why =
                    "the NIC must support inline sends of 8 bytes and receives with two scatter/gather elements"
                        .to_owned();
                return Err(unfit(nic.name(), why));
            }
        }
        let is_possible = match options.service {
            Service::Rc => true,
            Service::Uc => options.mode == Mode::Write,
            Service::Ud => options.mode == Mode::Send && rails.len() == 1,
        };
        if !is_possible {
            let why = format!(
                "service {} does not support this mode: use mode = \"write\" with rc or uc, and mode = \"send\" with rc, or with ud over one rail",
                options.service.name()
            );
            return Err(unfit(rails[0].name(), why));
        }
        let shape = Shape {
            mode: options.mode,
            service: options.service,
            transport: rails[0].transport(),
            rails: rails.len(),
            // A frame without packet slots counts as one packet slot.
            packets_per_frame: options.packets_per_frame.max(1),
            kept: options.kept,
            places: options.places,
        };
        // A message consists of a record and the payload. A datagram must fit into one packet.
        let record = shape.record() as u64;
        let bytes = match (shape.mode, shape.service) {
            // Reliable senders may split a frame into several writes.
            (Mode::Write, Service::Rc) => u64::MAX,
            (Mode::Write, _) => bytes,
            (Mode::Send, Service::Ud) => {
                let port = rails[0].port();
                let mtu = port
                    .map_err(|error| unfit(rails[0].name(), error.to_string()))?
                    .mtu;
                bytes.min(mtu.into()).saturating_sub(record)
            }
            (Mode::Send, _) => bytes.saturating_sub(record),
        };
        let slots =
            (work.saturating_sub(u64::from(control::SENDS) + 1)).saturating_mul(rails.len() as u64);
        let slots = slots.min(1 << 31);
        let shared = Shared::new();
        let access = match shape.mode {
            Mode::Write => Access::WRITE,
            Mode::Send => Access {
                local_write: true,
                ..Access::default()
            },
        };
        let relaxed = Access {
            relaxed: options.relaxed,
            ..access
        };
        let payload = RegistrationSet::new(&rails, relaxed, shared.close_links());
        let record_device = RegistrationSet::new(&rails, access, shared.close_links());
        let control = Control {
            name: options.name.clone(),
            shared: shared.clone(),
            shape,
            rails,
            listener,
            payload: payload.clone(),
            records: record_device.clone(),
            rejections: RejectionLog::default(),
            limits: control::Limits::default(),
        };
        let thread = std::thread::Builder::new()
            .name("daq-stream-link".to_owned())
            .spawn(|| control.run())
            .map_err(|error| {
                unfit(
                    payload.name(),
                    format!("cannot start the receiver's thread: {error}"),
                )
            })?;
        Ok(Self {
            name: options.name.clone(),
            shape,
            device: payload.clone(),
            payload,
            record_device,
            shared,
            max: (
                usize::try_from(slots).unwrap_or(usize::MAX),
                usize::try_from(bytes).unwrap_or(usize::MAX),
            ),
            ring: None,
            link: None,
            records: None,
            memory: None,
            credited: 0,
            completed: 0,
            base: 0,
            streams: Vec::with_capacity(REMEMBERED + 1),
            missing: 0,
            counters: options.counters.clone(),
            epoch: (None, 0),
            last: Record::default(),
            present: vec![0; (shape.packets_per_frame as usize).div_ceil(64)],
            thread: Some(thread),
            limits: Limits::default(),
            interrupted: None,
        })
    }

    const fn supports_backpressure(&self) -> bool {
        !matches!(self.shape.service, Service::Uc)
    }

    /// Checks the slots and finds their memory.
    fn ring(&self, slots: &Slots) -> Result<RegisteredSlots, String> {
        let (count, (max, bytes)) = (slots.addresses.len(), self.max);
        if count > max || slots.bytes > bytes {
            return Err(format!(
                "the ring has {} of {} bytes, but the NICs support at most {max} slots of {bytes} bytes",
                counted(count, "slot"),
                slots.bytes
            ));
        }
        RegisteredSlots::find(&self.payload, slots)
    }

    /// Handles the faults, requests and links that the accepting thread has stored for the engine.
    fn handle_thread(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        shared.attention.store(false, Ordering::Release);
        for fault in state.faults.drain(..) {
            done.fault(fault as usize);
        }
        if let Some(device) = state.lost.take() {
            return Err(EngineError::Gone { device });
        }
        if let Phase::PendingSender(pending_sender) = &state.phase {
            let pending_sender = pending_sender.clone();
            drop(state);
            if let Some(answer) = self.answer(&pending_sender) {
                shared.change(|state| state.phase = answer);
            }
        } else if matches!(state.phase, Phase::Ready(_))
            && let Phase::Ready(connected) = std::mem::replace(&mut state.phase, Phase::Open)
        {
            drop(state);
            // The thread may wait for this change before it passes on another sender.
            shared.wake();
            self.adopt(*connected);
        }
        Ok(())
    }

    /// Decides whether a new sender is accepted; `None` while an earlier link still has frames to deliver.
    fn answer(&mut self, pending_sender: &PendingSender) -> Option<Phase> {
        if let Some(link) = &mut self.link {
            if link.is_live() && link.stream() != pending_sender.hello.stream && !link.is_silent() {
                let peer = link.peer();
                return Some(Phase::Denied(Rejection {
                    sender: format!(
                        "the receiver already receives from {peer}: stop that sender, or use another source of the receiver"
                    ),
                    receiver: format!(
                        "this source already receives from {peer}: stop one of the two senders, or add a source with another port"
                    ),
                }));
            }
            if link.is_live() {
                self.limits.connected.run(|suppressed| {
                    tracing::info!(
                        "{}: the connection from {} is replaced by a new connection from {}{suppressed}",
                        self.name,
                        link.peer(),
                        pending_sender.peer
                    );
                });
                link.end(false);
            }
            // The thread's request is answered in a later poll, once the frames of the old link are delivered.
            self.shared.attention.store(true, Ordering::Release);
            return None;
        }
        let ring = self.ring?;
        if pending_sender.hello.slot > ring.bytes as u64 {
            let (wanted, slot) = (pending_sender.hello.slot, ring.bytes);
            return Some(Phase::Denied(Rejection {
                sender: format!(
                    "frames of {wanted} bytes do not fit into the receiver's slots of {slot}: set `slot = \"{wanted} B\"` in the receiver's ring"
                ),
                receiver: format!(
                    "the sender's frames of {wanted} bytes do not fit into slots of {slot}: set `slot = \"{wanted} B\"` in this source's ring"
                ),
            }));
        }
        let hello = &pending_sender.hello;
        let known = self
            .streams
            .iter()
            .find(|(stream, _)| *stream == hello.stream);
        let next = known.map_or(hello.first, |(_, next)| hello.first.max(*next));
        let missing = known.map_or(0, |(_, next)| hello.first.saturating_sub(*next));
        if missing > MAX_GAP {
            return Some(Phase::Denied(Rejection {
                sender: format!(
                    "this sink skipped {missing} frames, but the maximum is {MAX_GAP}: restart daq on this host"
                ),
                receiver: format!(
                    "the sender skipped {missing} frames, but the maximum is {MAX_GAP}: restart the sender"
                ),
            }));
        }
        if !self.supports_backpressure() {
            self.credited = self.completed + u64::from(ring.count);
        }
        Some(Phase::Granted(Terms {
            stream: hello.stream,
            next,
            missing,
            slots: RegisteredSlots {
                first: ring.slot(self.completed),
                ..ring
            },
            credits: self.credited - self.completed,
            records: self.records.as_ref()?.address(),
        }))
    }

    fn adopt(&mut self, connected: Connected) {
        let link = Link::new(connected, self.shape);
        let (next, missing) = link.position();
        let log = |after: &str, suppressed: Suppressed| {
            let lost = if missing > 0 {
                format!("; lost before that: {}", counted(missing, "frame"))
            } else {
                String::new()
            };
            tracing::info!(
                "{}: {} connected{after}, starting at frame {next}, over {} into {}{lost}{suppressed}",
                self.name,
                link.peer(),
                counted(self.shape.rails, self.shape.transport.rail()),
                link.methods()
            );
        };
        match self.interrupted.take() {
            // Each interruption in the log is followed by its end.
            Some(since) => log(&after(since), Suppressed(0)),
            None => self.limits.connected.run(|suppressed| log("", suppressed)),
        }
        self.remember(link.stream(), next);
        self.base = self.completed;
        self.counters.links.add(1);
        self.link = Some(link);
    }

    fn remember(&mut self, stream: u64, next: u64) {
        self.streams.retain(|(known, _)| *known != stream);
        self.streams.insert(0, (stream, next));
        self.streams.truncate(REMEMBERED);
    }

    /// Releases a link whose frames are all delivered or no longer needed.
    fn release_link(&mut self) {
        if let Some(mut link) = self.link.take() {
            link.end(true);
            let (next, missing) = link.last();
            self.missing += missing;
            self.counters.ended.add(1);
            self.remember(link.stream(), next);
        }
    }

    /// Creates the engine's completion of a frame.
    fn done(&mut self, stream: u64, completed: &CompletedFrame) -> Done {
        let record = match completed.damage {
            Some(Damage::Record) => self.assumed_record(stream, completed.record.number),
            Some(Damage::Payload) | None => completed.record,
        };
        self.last = record;
        let epoch = Some((stream, record.epoch));
        if self.epoch.0 != epoch {
            self.epoch = (epoch, self.epoch.1 + 1);
        }
        Done {
            length: usize::try_from(record.length).unwrap_or(usize::MAX),
            is_bad: completed.damage.is_some(),
            timestamp: record.timestamp,
            missing: completed.missing,
            passed: completed.skipped,
            origin: Some(Origin {
                sequence: record.sequence,
                epoch: self.epoch.1,
                flags: Flags(record.flags),
                packets_per_frame: record.packets_per_frame,
                arrived: record.arrived,
                packet_sizes: record.packet_sizes,
                kept: completed.kept,
            }),
        }
    }

    /// Returns the record of a frame whose own record is damaged: that of the frame after the last one. If the frame is the
    /// first of its stream, nothing is known about it.
    fn assumed_record(&self, stream: u64, number: u64) -> Record {
        let last = &self.last;
        if self.epoch.0 != Some((stream, last.epoch)) {
            return Record {
                number,
                ..Record::default()
            };
        }
        Record {
            number,
            sequence: last.sequence.wrapping_add(1),
            epoch: last.epoch,
            packets_per_frame: last.packets_per_frame,
            packet_sizes: last.packet_sizes,
            ..Record::default()
        }
    }

    /// Delivers available frames in order. Returns the number of delivered frames, and true if no further frame is
    /// available.
    fn complete_frames(&mut self, done: &mut Completions) -> (u64, bool) {
        let mut count = 0;
        while done.room() > 0 {
            let (Some(link), Some(records), Some(memory)) =
                (&mut self.link, &self.records, &self.memory)
            else {
                break;
            };
            match link.step(records, memory, &mut self.present) {
                Step::Frame(completed) => {
                    let stream = link.stream();
                    if completed.damage.is_some() {
                        done.fault(Fault::BadChecksum as usize);
                        self.limits
                            .warn_of_damage(&self.name, link.peer(), &completed);
                    }
                    let frame = self.done(stream, &completed);
                    if frame
                        .origin
                        .is_some_and(|origin| origin.packets_per_frame > 0)
                    {
                        done.push_with(frame, &self.present);
                    } else {
                        done.push(frame);
                    }
                    self.completed += 1 + completed.skipped;
                    count += 1;
                }
                Step::Nothing => return (count, true),
                Step::Bad(fault, why) => {
                    self.limits.ended.run(|suppressed| {
                        tracing::warn!(
                            "{}: {} violates the protocol: {why}; connection closed{suppressed}",
                            self.name,
                            link.peer()
                        );
                    });
                    done.fault(fault as usize);
                    link.end(true);
                    link.discard_completions();
                }
            }
        }
        (count, false)
    }

    /// Allocates what the ring needs. No sender can connect yet.
    fn prepare(&mut self, slots: &Slots) -> Result<(), EngineError> {
        self.release_link();
        let ring = self.ring(slots).map_err(|why| EngineError::Unfit {
            device: self.device.name().to_owned(),
            why,
        })?;
        let bytes = ring.count as usize * self.shape.record();
        if self
            .records
            .as_ref()
            .is_none_or(|records| records.bytes() < bytes)
        {
            self.records = None;
            self.records = Some(DmaBuffer::new(self.record_device.clone(), bytes)?);
        }
        if let Some(records) = &self.records {
            records.clear();
        }
        self.memory = self.payload.region(ring.memory);
        (self.credited, self.completed, self.base) = (0, 0, 0);
        self.ring = Some(ring);
        Ok(())
    }
}

/// The description of the engine.
pub const INFO: EngineInfo = EngineInfo {
    name: "stream",
    summary: "frames that another host writes over queue pairs",
    limits: SlotLimits {
        alignment: 1,
        // If a NIC supports less, the error is reported at startup.
        max_slot: 1 << 40,
        max_slots: 1 << 16,
        preferred: 1 << 20,
    },
    faults: FAULTS,
    supports_backpressure: true,
    order: CompletionOrder::AfterPayload,
};

// SAFETY: the sender writes only through the queue pairs and memory regions of its link, which cover the slots of the
// ring. `quiesce` ends the link, after which the NIC drops all writes. `arm` fails before a sender can connect.
unsafe impl Engine for Receiver {
    fn info(&self) -> &'static EngineInfo {
        &INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: self.supports_backpressure(),
            alignment: 1,
            max_transfer: self.max.1,
            max_slots: self.max.0,
            ..Caps::of(&INFO)
        }
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.prepare(slots).map_err(ArmError::Stopped)?;
        self.shared.open();
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.shared.attention.load(Ordering::Acquire) {
            self.handle_thread(done)?;
        }
        done.add_missing(std::mem::take(&mut self.missing));
        if let (Service::Uc, Some(ring)) = (self.shape.service, self.ring) {
            // Frames that were delivered before have been copied already, so their slots are free.
            self.credited = self.completed + u64::from(ring.count);
        }
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        link.collect();
        let was_live = link.is_live();
        let (count, is_dry) = self.complete_frames(done);
        let credits = self.credited - self.base;
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        link.serve(credits, count == 0);
        if let Some(EndReason { fault, why }) = link.failure() {
            if let Some(fault) = fault {
                self.limits.ended.run(|suppressed| {
                    tracing::warn!(
                        "{}: {} disconnected: {why}; waiting for a sender{suppressed}",
                        self.name,
                        link.peer()
                    );
                    self.interrupted = Some(Instant::now());
                });
                done.fault(fault as usize);
            } else {
                self.limits.ended.run(|suppressed| {
                    tracing::info!(
                        "{}: {} disconnected normally: {why}; waiting for the next sender{suppressed}",
                        self.name,
                        link.peer()
                    );
                });
            }
            link.end(false);
        }
        if is_dry && !was_live {
            self.release_link();
            done.add_missing(std::mem::take(&mut self.missing));
        }
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        if self.supports_backpressure() {
            self.credited += u64::from(slots);
        }
    }

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        let slots = self.ring.map_or(0, |ring| u64::from(ring.count));
        Ok(if self.supports_backpressure() {
            0
        } else {
            self.credited.saturating_sub(slots)
        })
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        if self.shared.attention.load(Ordering::Acquire) {
            return Ok(false);
        }
        Ok(if let Some(link) = &mut self.link {
            link.wait(limit)
        } else {
            self.shared.sleep(limit);
            true
        })
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        let connected = self
            .shared
            .close(timeout)
            .map_err(|control::Busy| QuiesceTimeout {
                engine: format!("{} of {}", INFO.name, self.device.name()),
                waited: timeout,
            })?;
        if let Some(connected) = connected {
            self.adopt(*connected);
        }
        if let Some(link) = &mut self.link {
            link.end(true);
        }
        self.ring = None;
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.end();
        if self.quiesce(CLOSE_TIMEOUT).is_err() {
            tracing::warn!(
                "{}: stopped while a connection attempt was still in progress",
                self.name
            );
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("{}: the thread that accepts senders has failed", self.name);
        }
    }
}
