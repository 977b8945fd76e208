//! The thread of a DMA engine, which submits credits, processes completions and publishes frames.
//!
//! ```text
//!   ring's slots ──addresses once──▶ engine ──completion──▶ describe ─▶ publish
//!        ▲                             │
//!        └────────── credits ──────────┘        an engine with backpressure writes the ring itself
//!
//!   slots of its own ◀── free-running engine     without backpressure, or if it cannot write the ring's memory
//!        └──copy──▶ open slots of the ring ──▶ overwritten in between? ──▶ publish
//! ```

mod frame_numbering;
mod port;
#[cfg(test)]
mod tests;
mod verification;

use super::control::STALL_TIMEOUT;
use super::{Control, FailureKind, Heartbeat, STOP_POLL_INTERVAL};
use daq_core::dma::{BounceCopyError, Completions, Done, Engine, EngineError, FrameSequence};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::CudaError;
use daq_core::gpu::{Backend, Writer};
use daq_core::kernel::DeviceDoorbell;
use daq_core::ledger::{Cause, EngineCounters, PathState, SourceLedger};
use daq_core::notify::Wait;
use daq_core::region::RegionError;
use daq_core::ring::Producer;
use frame_numbering::FrameNumbering;
use port::Port;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use verification::Verifier;

/// Maximum time for an engine to stop. If the engine needs longer, bus mastering is disabled.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of consecutive faults, with no frame between them, after which the pipeline fails.
const MAX_CONSECUTIVE_FAULTS: u32 = 8;
/// Time for which the thread polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Sleep time between polls of a device without interrupts.
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// Maximum time to wait for an interrupt. It is short, so that free slots are given to the engine in time.
const CREDIT_INTERVAL: Duration = Duration::from_millis(2);

/// Why an engine's thread ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum DmaError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    BounceCopy(#[from] BounceCopyError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The engine reported a transfer that is not possible.
    #[error("{0}")]
    Unbelievable(String),
}

/// Inputs of an engine's thread.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) engine: Box<dyn Engine>,
    pub(super) producer: Producer,
    pub(super) numbers: Option<FrameSequence>,
    pub(super) ledger: SourceLedger,
    pub(super) counters: EngineCounters,
    pub(super) wait: Wait,
    pub(super) started: Arc<AtomicU64>,
    pub(super) control: Arc<Control>,
    /// The doorbell that the engine rings after the data path is verified.
    pub(super) bell: Option<DeviceDoorbell>,
    /// Backends that can allocate GPU memory for a device.
    pub(super) backends: Vec<Backend>,
    pub(super) writer: Writer,
}

/// State of the verification of the engine's data path.
enum Path {
    /// The path is not verified yet, so the next transfer is checked. The flag is true after the first transfer was
    /// checked.
    Unverified(Verifier, bool),
    Verified,
    /// The data path does not work, and no other path is possible. No more frames are published.
    Abandoned,
}

/// An engine with its ring.
pub(super) struct Runner {
    name: String,
    port: Port,
    producer: Producer,
    numbering: FrameNumbering,
    path: Path,
    backends: Vec<Backend>,
    completions: Completions,
    /// Number of transfers since the engine was armed.
    transfers: u64,
    /// Buffer for the bytes of a frame's number, so that reading the number does not allocate memory.
    number: [u8; 8],
    /// Number of faults since the last frame.
    faults: u32,
    ledger: SourceLedger,
    counters: EngineCounters,
    wait: Wait,
    started: Arc<AtomicU64>,
    control: Arc<Control>,
}

impl Runner {
    /// Maps memory and creates everything that the thread needs. Does not start the engine.
    pub(super) fn new(parts: Parts) -> Result<Self, DmaError> {
        let Parts {
            mut engine,
            producer,
            ..
        } = parts;
        let control = parts.control.clone();
        engine.stop_when(Arc::new(move || control.is_stopping()));
        let faults = engine.info().faults.len();
        let (slots, packets_per_frame) = (
            producer.options().slots,
            producer.options().packets_per_frame,
        );
        // If frames are copied, at most half of the slots are copied at a time, while the engine fills the other half.
        let capacity = if engine.caps().supports_backpressure {
            slots
        } else {
            (slots / 2).max(1)
        };
        let port = Port::new(
            engine,
            &producer,
            parts.bell,
            &parts.counters,
            (parts.writer, &parts.backends),
        )?;
        let verifier = Verifier::new(&port, &producer, &parts.backends)?;
        Ok(Self {
            name: parts.name,
            port,
            producer,
            numbering: FrameNumbering::new(parts.numbers),
            path: Path::Unverified(verifier, false),
            backends: parts.backends,
            completions: Completions::with_packets_per_frame(capacity, faults, packets_per_frame),
            transfers: 0,
            number: [0; 8],
            faults: 0,
            ledger: parts.ledger,
            counters: parts.counters,
            wait: parts.wait,
            started: parts.started,
            control: parts.control,
        })
    }

    pub(super) fn run(mut self, heartbeat: &Heartbeat) {
        let worked = self.work(heartbeat);
        let is_cancelled = |error: &DmaError| {
            matches!(error, DmaError::Engine(EngineError::Cancelled { .. }))
                && self.control.is_stopping()
        };
        if let Err(error) = worked
            && !is_cancelled(&error)
        {
            // The device or its memory mapping may be the cause of this error.
            let kind = FailureKind::Device;
            let name = format!("source `{}`", self.name);
            self.control.fail(kind, name, error.to_string());
        }
        if let Err(error) = self.stop() {
            tracing::warn!("source {}: cannot stop cleanly: {error}", self.name);
        }
    }

    fn work(&mut self, heartbeat: &Heartbeat) -> Result<(), DmaError> {
        self.arm()?;
        self.started.fetch_add(1, Ordering::AcqRel);
        let (mut idle, mut is_logged) = (None, false);
        while !self.control.is_stopping() {
            heartbeat.beat();
            match self.step() {
                Ok(true) => (idle, is_logged) = (None, false),
                Ok(false) => {
                    let idle = idle.get_or_insert_with(Instant::now).elapsed();
                    if idle > STALL_TIMEOUT && !is_logged {
                        is_logged = true;
                        self.log_silence(idle);
                    }
                    self.pause(idle)?;
                }
                Err(DmaError::Engine(error @ EngineError::Faulted { .. })) => {
                    self.restart(error)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Logs that a device has free slots but completes no transfers.
    fn log_silence(&self, idle: Duration) {
        if !self.port.is_starved(&self.producer) {
            tracing::warn!(
                "source {}: {} has completed no transfer for {} s; the sender is silent, sends to another address, or \
                 hangs",
                self.name,
                self.port.name(),
                idle.as_secs()
            );
        }
    }

    fn is_verified(&self) -> bool {
        matches!(self.path, Path::Verified)
    }

    /// Arms the engine, starting at the slot of the next frame, and gives the free slots to the engine.
    fn arm(&mut self) -> Result<(), DmaError> {
        self.transfers = 0;
        if let Path::Unverified(verifier, is_looked_at) = &mut self.path {
            *is_looked_at = false;
            verifier.lay(&self.port)?;
        }
        self.port.arm(&self.producer, self.is_verified())
    }

    /// Gives the engine the free slots (only one until the data path is verified), and publishes completed transfers.
    /// Returns whether any transfer was completed.
    fn step(&mut self) -> Result<bool, DmaError> {
        let is_verifying = !self.is_verified();
        self.port.credit(&mut self.producer, is_verifying);
        let limit = self.port.wanted(&mut self.producer, is_verifying);
        self.completions.clear(limit);
        let polled = self.port.poll(&mut self.completions);
        self.count_faults();
        // Transfers that completed before a fault are intact.
        let moved = self.take()?;
        polled?;
        Ok(moved)
    }

    fn count_faults(&mut self) {
        let names = self.port.faults();
        for (name, times) in names.iter().zip(self.completions.faults()) {
            if *times > 0 && self.counters.fault(name, *times) {
                tracing::warn!(
                    "source {}: the DMA engine reports fault {name}; further faults are only counted",
                    self.name
                );
            }
        }
    }

    /// Counts losses that the engine does not report as completions, and transfers that the engine has overwritten.
    fn count_lost(&mut self) -> u64 {
        let overrun = self.completions.overrun();
        if overrun > 0 {
            let first = self.completions.as_slice().first();
            match first.and_then(|done| done.origin) {
                Some(_) => FrameNumbering::lose_reported(overrun, 0, Cause::Overrun, &self.ledger),
                None => self.numbering.lose(overrun, Cause::Overrun, &self.ledger),
            }
            self.transfers += overrun;
        }
        FrameNumbering::lose_reported(
            self.completions.discarded(),
            0,
            Cause::Overrun,
            &self.ledger,
        );
        FrameNumbering::lose_reported(0, self.completions.missing(), Cause::WireGap, &self.ledger);
        FrameNumbering::lose_reported(self.completions.expired(), 0, Cause::Expired, &self.ledger);
        self.ledger.rejected.add(self.completions.rejected());
        overrun
    }

    fn take(&mut self) -> Result<bool, DmaError> {
        let overrun = self.count_lost();
        if self.completions.as_slice().is_empty() {
            return Ok(overrun > 0);
        }
        self.faults = 0;
        self.port.flush()?;
        if !self.is_verified() && !self.verify()? {
            return Ok(true);
        }
        if self.port.is_carried() {
            self.bounce_copy()?;
        } else {
            self.publish_in_place()?;
        }
        Ok(true)
    }

    /// Verifies that the first transfer wrote exactly the reported bytes. Returns true if the completed transfers can
    /// be published. Otherwise this frame is not published, and the engine changes to another data path.
    fn verify(&mut self) -> Result<bool, DmaError> {
        // If an error interrupts the verification, nothing may be published.
        let Path::Unverified(verifier, is_looked_at) =
            std::mem::replace(&mut self.path, Path::Abandoned)
        else {
            return Ok(false);
        };
        let Some(first) = self.completions.as_slice().first().copied() else {
            self.path = Path::Unverified(verifier, is_looked_at);
            return Ok(false);
        };
        // A transfer with missing packets proves nothing if the engine does not write the missing packets.
        let is_whole = !self.port.writes_past_length()
            || first
                .origin
                .is_none_or(|origin| origin.arrived >= origin.packets_per_frame);
        let written = if first.is_bad || !is_whole {
            0
        } else {
            self.done(0)?.length
        };
        let slot = self.port.slot_of(self.transfers + first.passed);
        // Linux maps host memory for a device that has a driver, so the mapping is not the cause of a fault. The sender
        // may be the cause, or it may have died during an earlier frame in this slot.
        let is_mapped = first.origin.is_some() && !self.port.can_fall_back();
        let Some(seen) = verifier.inspect(&self.port, slot, written, !is_looked_at)? else {
            // This transfer cannot be verified, so it counts as damaged, and the next transfer is checked instead.
            self.path = Path::Unverified(verifier, true);
            if !is_mapped {
                self.completions.mark_first_bad();
            }
            return Ok(true);
        };
        if self.port.overwritten()? > self.transfers + first.passed {
            // Another transfer has overwritten this one in the meantime.
            self.path = Path::Unverified(verifier, is_looked_at);
            self.completions.mark_first_bad();
            return Ok(true);
        }
        let is_right = match first.origin {
            None => seen.is_exact(),
            Some(_) => seen.own.unwritten == 0 && (is_mapped || seen.neighbours.is_exact()),
        };
        if is_right {
            return self.verified(written);
        }
        if is_mapped {
            self.path = Path::Unverified(verifier, true);
            self.completions.mark_first_bad();
            return Ok(true);
        }
        self.counters.set_path(PathState::Failed);
        // The device no longer has the data, and host memory does not contain the data either.
        self.drop_frames(0, 1, Cause::BadPacket);
        let seen = seen.own + seen.neighbours;
        let why = format!(
            "{} reported {written} bytes written, but {} words of these bytes are unchanged, and \
             {} neighbouring words changed",
            self.port.name(),
            seen.unwritten,
            seen.touched
        );
        if !self.port.can_fall_back() {
            return Err(DmaError::Unbelievable(format!(
                "{why}; check for rejected accesses: dmesg | grep -iE 'dmar|iommu|aer'"
            )));
        }
        if self.control.is_stopping() {
            return Ok(false);
        }
        tracing::warn!(
            "source {}: {why}; the direct path does not work on this machine, so frames now go through host memory",
            self.name
        );
        self.counters.ledger.fallbacks.add(1);
        self.stop_to_go_on()?;
        self.port.fall_back(&self.producer)?;
        let verifier = Verifier::new(&self.port, &self.producer, &self.backends)?;
        self.path = Path::Unverified(verifier, false);
        self.numbering.interrupt();
        self.arm()?;
        Ok(false)
    }

    /// Records that the first transfer is correct. Returns true if the caller must publish the frame, false if this
    /// function has published the frame.
    fn verified(&mut self, written: usize) -> Result<bool, DmaError> {
        self.path = Path::Verified;
        // The fallback path is verified separately and does not count here.
        if self.counters.ledger.fallbacks.get() == 0 {
            self.counters.set_path(PathState::Verified);
        }
        tracing::info!(
            "source {}: data path verified ({written} bytes written exactly, neighbours unchanged)",
            self.name
        );
        if self.port.wants_to_ring() && !self.control.is_stopping() {
            self.publish_in_place()?;
            self.ring_from_now_on()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Rearms the engine so that it rings the doorbell of a kernel.
    fn ring_from_now_on(&mut self) -> Result<(), DmaError> {
        self.stop_to_go_on()?;
        self.port.ring_from(self.producer.published())?;
        self.arm()
    }

    /// Restarts the engine after a fault. Unfinished transfers are lost, and the stream continues with the next
    /// transfer.
    fn restart(&mut self, error: EngineError) -> Result<(), DmaError> {
        let EngineError::Faulted { faults, .. } = &error else {
            return Err(error.into());
        };
        for name in faults {
            self.counters.fault(name, 1);
        }
        self.faults += 1;
        if self.faults >= MAX_CONSECUTIVE_FAULTS {
            return Err(DmaError::Unbelievable(format!(
                "{error}; stopped after {MAX_CONSECUTIVE_FAULTS} consecutive faults; check the FPGA design, and bus errors: dmesg | grep \
                 -iE 'dmar|iommu|aer'"
            )));
        }
        if self.port.is_ringing() {
            return Err(DmaError::Unbelievable(format!(
                "{error}; the engine rings the doorbell of a persistent kernel, whose frame count cannot restart; set doorbell = \
                 \"cpu\" for a source that must continue after faults"
            )));
        }
        tracing::warn!("source {}: {error}; restarting the engine", self.name);
        self.counters.ledger.restarts.add(1);
        self.stop_to_go_on()?;
        self.drain()?;
        self.numbering.interrupt();
        self.arm()
    }

    /// Stops the engine. Returns true if bus mastering had to be disabled.
    fn stop_engine(&mut self) -> bool {
        let is_cut_off = self.port.stop(STOP_TIMEOUT);
        if is_cut_off {
            self.counters.ledger.quiesce_timeouts.add(1);
        }
        is_cut_off
    }

    /// Stops the engine in order to rearm it. Returns an error if bus mastering had to be disabled, because the engine
    /// cannot be rearmed in this case.
    fn stop_to_go_on(&mut self) -> Result<(), DmaError> {
        if self.stop_engine() {
            return Err(DmaError::Unbelievable(format!(
                "{} did not stop within {STOP_TIMEOUT:?}, so its bus mastering was disabled; the device stays stopped in this run",
                self.port.name()
            )));
        }
        Ok(())
    }

    /// Ends the stream. Stops the engine, then publishes the completed transfers, or counts them as lost if they cannot
    /// be published.
    fn stop(&mut self) -> Result<(), DmaError> {
        let drained = if self.port.is_armed() {
            self.stop_engine();
            self.drain()
        } else {
            // The remaining completions refer to slots from before the engine was rearmed, so their frames cannot be
            // located.
            Ok(())
        };
        let rest = self.lose_rest();
        self.numbering.settle(&self.ledger);
        drained.and(rest)
    }

    /// Counts the remaining completions of a stopped engine as lost.
    fn lose_rest(&mut self) -> Result<(), DmaError> {
        let cause = match self.path {
            Path::Abandoned => Cause::BadPacket,
            Path::Unverified(..) | Path::Verified => Cause::Overrun,
        };
        loop {
            self.completions.clear(usize::MAX);
            let polled = self.port.poll(&mut self.completions);
            self.count_faults();
            self.count_lost();
            let count = self.completions.as_slice().len() as u64;
            self.drop_frames(0, count, cause);
            match polled {
                Ok(()) | Err(DmaError::Engine(EngineError::Faulted { .. })) if count > 0 => {}
                // The reason has already been logged.
                Ok(()) | Err(DmaError::Engine(EngineError::Faulted { .. })) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Processes all completions of a stopped engine.
    fn drain(&mut self) -> Result<(), DmaError> {
        while !matches!(self.path, Path::Abandoned) {
            let max = if self.is_verified() { usize::MAX } else { 1 };
            self.completions.clear(max);
            let polled = self.port.poll(&mut self.completions);
            self.count_faults();
            let taken = self.take()?;
            match polled {
                // The reason has already been logged.
                Ok(()) | Err(DmaError::Engine(EngineError::Faulted { .. })) if taken => {}
                Ok(()) | Err(DmaError::Engine(EngineError::Faulted { .. })) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Publishes transfers that the engine has written directly to the ring.
    fn publish_in_place(&mut self) -> Result<(), DmaError> {
        let Self {
            producer,
            completions,
            ..
        } = self;
        let count = completions.as_slice().len() as u64;
        if count > producer.open() {
            return Err(DmaError::Unbelievable(format!(
                "{} reported {count} completed transfers, but only {} slots were open",
                self.port.name(),
                producer.open()
            )));
        }
        for i in 0..count {
            let done = self.done(i)?;
            if done.passed > 0 {
                return Err(DmaError::Unbelievable(format!(
                    "{} skipped {} slots, but must fill the slots in order",
                    self.port.name(),
                    done.passed
                )));
            }
            self.describe(i, i, done);
        }
        self.transfers += count;
        self.producer.publish(count);
        Ok(())
    }

    /// Returns the `i`-th completion, or an error if it is not plausible.
    fn done(&self, i: u64) -> Result<Done, DmaError> {
        let done = self.completions.as_slice()[usize::try_from(i).unwrap_or(usize::MAX)];
        let max = self.producer.options().slot_bytes;
        if done.length > max {
            return Err(DmaError::Unbelievable(format!(
                "{} reported {} bytes written to a slot of {max} bytes",
                self.port.name(),
                done.length
            )));
        }
        Ok(done)
    }

    /// Fills the packets that did not arrive in the `i`-th open slot, according to `done`, the `at`-th completion.
    /// Returns false if no packet arrived, or if the CPU cannot access the slot, which then still contains old data.
    fn fill_missing(&self, i: u64, at: u64, done: &Done) -> bool {
        let bytes = self.port.packet_bytes();
        let Some(origin) = done
            .origin
            .filter(|origin| origin.arrived < origin.packets_per_frame)
        else {
            return true;
        };
        if bytes == 0 || done.is_bad {
            return true;
        }
        if origin.arrived == 0 {
            return false;
        }
        let present = self
            .completions
            .present(usize::try_from(at).unwrap_or(usize::MAX));
        (0..origin.packets_per_frame as usize)
            .filter(|place| {
                present
                    .get(place / 64)
                    .is_none_or(|word| word >> (place % 64) & 1 == 0)
            })
            .map(|place| place * bytes..((place + 1) * bytes).min(done.length))
            .filter(|extent| !extent.is_empty())
            .all(|extent| self.producer.fill(i, extent))
    }

    /// Writes the metadata of the `i`-th open slot. The slot contains the frame of `done`, the `at`-th completion.
    fn describe(&mut self, i: u64, at: u64, done: Done) {
        let raw = self.numbering.numbers().and_then(|numbers| {
            let bytes = &mut self.number[..numbers.bytes.min(8)];
            let is_inside = !done.is_bad && numbers.extent().end <= done.length;
            (is_inside && self.producer.peek(i, numbers.offset, bytes)).then(|| numbers.read(bytes))
        });
        let is_damaged = done.is_bad
            || !self.fill_missing(i, at, &done)
            || (done.origin.is_none() && raw.is_none() && self.numbering.numbers().is_some());
        let (meta, is_blank) = match done.origin {
            Some(origin) if is_damaged => {
                let origin = self
                    .numbering
                    .reported_damaged(origin, done.missing, &self.ledger);
                (origin, true)
            }
            None if is_damaged => (self.numbering.damaged(&self.ledger), true),
            Some(origin) => (
                self.numbering.reported(origin, done.missing, &self.ledger),
                false,
            ),
            None => {
                let meta = self.numbering.frame(raw, Cause::WireGap, &self.ledger);
                // A frame with a doubtful number has no arrived packets.
                (meta, meta.arrived == 0)
            }
        };
        if self.numbering.has_lost_sync() {
            tracing::warn!(
                "source {}: frame numbers do not continue any known sequence, so the frames count as damaged; check \
                 `offset`, `bytes`, `endian` and `step` of `sequence`; each frame must begin with a packet of the \
                 design, so no packet may be longer than a slot of the ring",
                self.name
            );
        }
        if is_blank {
            self.producer.blank(i);
            // If frames may be shorter than slots, use the reported length.
            let length = if self.port.writes_past_length() {
                done.length
            } else {
                self.producer.options().slot_bytes
            };
            let meta = FrameMeta {
                length,
                timestamp: done.timestamp,
                ..meta
            };
            self.producer.describe(i, &meta, std::iter::once(0));
            return;
        }
        let meta = FrameMeta {
            length: done.length,
            timestamp: done.timestamp,
            ..meta
        };
        self.ledger.bytes.add(done.length as u64);
        self.ledger.delivered.add(1);
        if meta.is_incomplete()
            || (self.port.packet_bytes() > 0 && meta.arrived < meta.packets_per_frame)
        {
            self.ledger.incomplete.add(1);
        }
        let present = self
            .completions
            .present(usize::try_from(at).unwrap_or(usize::MAX));
        self.producer.describe(i, &meta, present.iter().copied());
    }

    /// Copies frames from the engine's own slots to the ring. Drops frames that the engine may have overwritten during
    /// the copy, and publishes the other frames.
    fn bounce_copy(&mut self) -> Result<(), DmaError> {
        let count = self.completions.as_slice().len() as u64;
        let supports_backpressure = self.port.supports_backpressure();
        let mut at = 0;
        // Number of the transfer after the last checked frame.
        let mut turn = self.transfers;
        while at < count {
            let missing = (count - at).saturating_sub(self.producer.open());
            self.producer.claim(missing);
            let batch = self.producer.open().min(count - at);
            if batch == 0 {
                self.drop_frames(at, count - at, Cause::RingFull);
                self.producer.refuse(count - at);
                break;
            }
            let mut next = turn;
            for i in 0..batch {
                let done = self.done(at + i)?;
                next += done.passed;
                if !done.is_bad {
                    self.port
                        .bounce_copy(next, done.length, &self.producer, i)?;
                }
                next += 1;
            }
            self.port.settle()?;
            let overtaken = self.port.overwritten()?;
            let mut overwritten = 0;
            while overwritten < batch {
                let done = self.done(at + overwritten)?;
                if turn + done.passed >= overtaken {
                    break;
                }
                turn += done.passed + 1;
                overwritten += 1;
            }
            if overwritten > 0 {
                // The copies of the dropped frames occupy the first open slots, so the remaining frames are copied
                // again.
                self.drop_frames(at, overwritten, Cause::Overrun);
                at += overwritten;
                continue;
            }
            for i in 0..batch {
                let done = self.done(at + i)?;
                self.describe(i, at + i, done);
            }
            self.producer.publish(batch);
            (at, turn) = (at + batch, next);
        }
        for i in 0..count {
            self.transfers += self.done(i)?.passed + 1;
        }
        if supports_backpressure {
            self.port.give_back(count);
        }
        Ok(())
    }

    /// Counts `count` completions, starting with completion number `at`, as lost to `cause`. Also counts the frames
    /// that are missing before these completions.
    fn drop_frames(&mut self, at: u64, count: u64, cause: Cause) {
        let done = self.completions.as_slice().iter();
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for done in done.skip(at).take(count) {
            match done.origin {
                Some(_) => FrameNumbering::lose_reported(1, done.missing, cause, &self.ledger),
                None => self.numbering.lose(1, cause, &self.ledger),
            }
        }
    }

    /// Waits briefly. If the engine has no slot to fill, waits for a free ring slot; otherwise waits for a completion.
    fn pause(&mut self, idle: Duration) -> Result<(), DmaError> {
        if self.port.is_starved(&self.producer) {
            self.producer.wait(self.wait, STOP_POLL_INTERVAL);
            return Ok(());
        }
        match self.wait {
            Wait::Busy => std::hint::spin_loop(),
            Wait::Adaptive if idle < SPIN_TIME => std::hint::spin_loop(),
            _ => {
                if !self.port.wait(CREDIT_INTERVAL)? {
                    std::thread::sleep(IDLE_SLEEP);
                }
            }
        }
        Ok(())
    }
}
