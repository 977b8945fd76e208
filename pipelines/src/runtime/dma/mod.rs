//! The thread of a DMA engine: submits credits, takes completions, publishes frames.
//!
//! ```text
//!   ring's slots ──addresses once──▶ engine ──completion──▶ describe ─▶ publish
//!        ▲                             │
//!        └────────── credits ──────────┘        an engine with backpressure writes the ring itself
//!
//!   slots of its own ◀── free-running engine     without backpressure, or if it cannot write the ring's memory
//!        └──copy──▶ open slots of the ring ──▶ overwritten meanwhile? ──▶ publish
//! ```

mod frame_numbering;
mod port;
mod proof;
#[cfg(test)]
mod tests;

use super::control::STALL_TIMEOUT;
use super::{Control, FailureKind, Heartbeat, STOP_POLL_INTERVAL};
use daq_core::dma::{BounceCopyError, Completions, Done, Engine, EngineError, FrameSequence};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::CudaError;
use daq_core::gpu::{Backend, Writer};
use daq_core::kernel::DeviceDoorbell;
use daq_core::ledger::{Cause, EngineCounters, Proof, SourceLedger};
use daq_core::notify::Wait;
use daq_core::region::RegionError;
use daq_core::ring::Producer;
use frame_numbering::FrameNumbering;
use port::Port;
use proof::Prover;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timeout for an engine to stop; afterwards bus mastering is disabled.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of consecutive faults without a frame after which the pipeline fails.
const MAX_CONSECUTIVE_FAULTS: u32 = 8;
/// Polling time before the thread sleeps.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// Sleep time without interrupts.
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// Maximum wait for an interrupt, so that freed slots are credited in time.
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
    /// The engine reported an impossible transfer.
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
    /// Doorbell that the engine rings after its path is verified.
    pub(super) bell: Option<DeviceDoorbell>,
    /// Backends that can allocate GPU memory for a device, and the device's role.
    pub(super) backends: Vec<Backend>,
    pub(super) writer: Writer,
}

/// State of the engine's data path.
enum Path {
    /// The next transfers are verified; the flag is set after the first one.
    Unproven(Prover, bool),
    Proven,
    /// The path does not work and there is no other; nothing is published any more.
    GivenUp,
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
    /// Buffer for a frame's number, so that reading it does not allocate.
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
    /// Maps memory and creates everything the thread needs; does not start the engine.
    pub(super) fn new(parts: Parts) -> Result<Self, DmaError> {
        let Parts {
            engine, producer, ..
        } = parts;
        let faults = engine.faults().len();
        let (slots, places) = (producer.options().slots, producer.options().places);
        // If frames are copied, half of the slots at a time; the engine fills the other half meanwhile.
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
        let prover = Prover::new(&port, &producer, &parts.backends)?;
        Ok(Self {
            name: parts.name,
            port,
            producer,
            numbering: FrameNumbering::new(parts.numbers),
            path: Path::Unproven(prover, false),
            backends: parts.backends,
            completions: Completions::with_places(capacity, faults, places),
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
        if let Err(error) = self.work(heartbeat) {
            // Writes to the device or its host memory may be the cause.
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

    /// Logs that a device with free slots completes no transfers.
    fn log_silence(&self, idle: Duration) {
        if !self.port.is_starved(&self.producer) {
            tracing::warn!(
                "source {}: {} has completed no transfer for {} s; its sender is silent, sends to another address, or hangs",
                self.name,
                self.port.name(),
                idle.as_secs()
            );
        }
    }

    fn is_proven(&self) -> bool {
        matches!(self.path, Path::Proven)
    }

    /// Gives the engine the free slots, starting at the slot of the next frame.
    fn arm(&mut self) -> Result<(), DmaError> {
        self.transfers = 0;
        if let Path::Unproven(prover, is_looked_at) = &mut self.path {
            *is_looked_at = false;
            prover.lay(&self.port)?;
        }
        self.port.arm(&self.producer, self.is_proven())
    }

    /// Gives the engine the free slots (only one until the path is verified), and publishes what it has completed.
    /// Returns whether anything was completed.
    fn step(&mut self) -> Result<bool, DmaError> {
        let is_proving = !self.is_proven();
        self.port.credit(&mut self.producer, is_proving);
        let limit = self.port.wanted(&mut self.producer, is_proving);
        self.completions.clear(limit);
        let polled = self.port.poll(&mut self.completions);
        self.count_faults();
        // Transfers completed before a fault are intact.
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

    /// Counts losses that the engine reports outside completions, and overwritten transfers.
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
        overrun
    }

    fn take(&mut self) -> Result<bool, DmaError> {
        let overrun = self.count_lost();
        if self.completions.as_slice().is_empty() {
            return Ok(overrun > 0);
        }
        self.faults = 0;
        self.port.flush()?;
        if !self.is_proven() && !self.prove()? {
            return Ok(true);
        }
        if self.port.is_carried() {
            self.bounce_copy()?;
        } else {
            self.publish_in_place()?;
        }
        Ok(true)
    }

    /// Verifies that the first transfer wrote exactly the reported bytes. Returns true if completed transfers can be
    /// published. Otherwise its frame is not published, and the engine changes to another path.
    fn prove(&mut self) -> Result<bool, DmaError> {
        // Until the verification is complete, an error must leave nothing to publish.
        let Path::Unproven(prover, is_looked_at) = std::mem::replace(&mut self.path, Path::GivenUp)
        else {
            return Ok(false);
        };
        let Some(first) = self.completions.as_slice().first().copied() else {
            self.path = Path::Unproven(prover, is_looked_at);
            return Ok(false);
        };
        // A transfer with missing parts proves nothing if no one writes the missing parts.
        let is_whole = !self.port.writes_past_length()
            || first
                .origin
                .is_none_or(|origin| origin.arrived >= origin.places);
        let written = if first.is_bad || !is_whole {
            0
        } else {
            self.done(0)?.length
        };
        let slot = self.port.slot_of(self.transfers + first.passed);
        // Linux maps host memory for a device that has a driver. The fault may then lie with the sender, which may also
        // have died during an earlier frame in this slot.
        let is_mapped = first.origin.is_some() && !self.port.can_fall_back();
        let Some(seen) = prover.look(&self.port, slot, written, !is_looked_at)? else {
            // This transfer cannot be verified, so it counts as damaged, and the next one is checked.
            self.path = Path::Unproven(prover, true);
            if !is_mapped {
                self.completions.mark_first_bad();
            }
            return Ok(true);
        };
        if self.port.overwritten()? > self.transfers + first.passed {
            // Another transfer has overwritten it meanwhile.
            self.path = Path::Unproven(prover, is_looked_at);
            self.completions.mark_first_bad();
            return Ok(true);
        }
        let is_right = match first.origin {
            None => seen.is_exact(),
            Some(_) => seen.own.unwritten == 0 && (is_mapped || seen.beside.is_exact()),
        };
        if is_right {
            return self.proved(written);
        }
        if is_mapped {
            self.path = Path::Unproven(prover, true);
            self.completions.mark_first_bad();
            return Ok(true);
        }
        self.counters.prove(Proof::Disproved);
        // The device no longer has the data, and host memory does not contain it.
        self.drop_frames(0, 1, Cause::BadPacket);
        let seen = seen.own + seen.beside;
        let why = format!(
            "{} reported {written} bytes written, but {} words of them are unchanged, and {} neighbouring words \
             changed",
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
        let prover = Prover::new(&self.port, &self.producer, &self.backends)?;
        self.path = Path::Unproven(prover, false);
        self.numbering.interrupt();
        self.arm()?;
        Ok(false)
    }

    /// The first transfer is correct; it can be published unless this function publishes it.
    fn proved(&mut self, written: usize) -> Result<bool, DmaError> {
        self.path = Path::Proven;
        // The other path is verified separately.
        if self.counters.ledger.fallbacks.get() == 0 {
            self.counters.prove(Proof::Proven);
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

    /// Rearms the engine so that it rings a kernel's doorbell.
    fn ring_from_now_on(&mut self) -> Result<(), DmaError> {
        self.stop_to_go_on()?;
        self.port.ring_from(self.producer.published())?;
        self.arm()
    }

    /// Restarts the engine after a fault. Unfinished transfers are lost; the stream continues.
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

    /// Stops the engine; returns true if bus mastering had to be disabled.
    fn stop_engine(&mut self) -> bool {
        let is_cut_off = self.port.stop(STOP_TIMEOUT);
        if is_cut_off {
            self.counters.ledger.quiesce_timeouts.add(1);
        }
        is_cut_off
    }

    /// Stops the engine in order to rearm it, which is impossible if bus mastering had to be disabled.
    fn stop_to_go_on(&mut self) -> Result<(), DmaError> {
        if self.stop_engine() {
            return Err(DmaError::Unbelievable(format!(
                "{} did not stop within {STOP_TIMEOUT:?}, so its bus mastering was disabled; it stays stopped in this run",
                self.port.name()
            )));
        }
        Ok(())
    }

    /// Ends the stream: stops the engine, and publishes completed transfers, or counts them if they cannot be
    /// published.
    fn stop(&mut self) -> Result<(), DmaError> {
        let drained = if self.port.is_armed() {
            self.stop_engine();
            self.drain()
        } else {
            // The remaining completions refer to slots of an earlier arming, so their frames cannot be located.
            Ok(())
        };
        let rest = self.lose_rest();
        self.numbering.settle(&self.ledger);
        drained.and(rest)
    }

    /// Counts the remaining completions of a stopped engine as lost.
    fn lose_rest(&mut self) -> Result<(), DmaError> {
        let cause = match self.path {
            Path::GivenUp => Cause::BadPacket,
            Path::Unproven(..) | Path::Proven => Cause::Overrun,
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

    /// Takes all completions of a stopped engine.
    fn drain(&mut self) -> Result<(), DmaError> {
        while !matches!(self.path, Path::GivenUp) {
            let most = if self.is_proven() { usize::MAX } else { 1 };
            self.completions.clear(most);
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

    /// Publishes transfers that the engine has written to the ring itself.
    fn publish_in_place(&mut self) -> Result<(), DmaError> {
        let Self {
            producer,
            completions,
            ..
        } = self;
        let count = completions.as_slice().len() as u64;
        if count > producer.open() {
            return Err(DmaError::Unbelievable(format!(
                "{} reported {count} completed transfers, but it had only {} slots",
                self.port.name(),
                producer.open()
            )));
        }
        for i in 0..count {
            let done = self.done(i)?;
            if done.passed > 0 {
                return Err(DmaError::Unbelievable(format!(
                    "{} skipped {} slots that it had to fill in order",
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

    /// Returns the `i`-th completion if it is plausible.
    fn done(&self, i: u64) -> Result<Done, DmaError> {
        let done = self.completions.as_slice()[usize::try_from(i).unwrap_or(usize::MAX)];
        let most = self.producer.options().slot_bytes;
        if done.length > most {
            return Err(DmaError::Unbelievable(format!(
                "{} reported {} bytes written to a slot of {most} bytes",
                self.port.name(),
                done.length
            )));
        }
        Ok(done)
    }

    /// Fills the packets of the `i`-th open slot that did not arrive, according to `done`, the `at`-th completion.
    /// Returns false if the CPU cannot access the slot, so that it contains other data, or if no packet arrived.
    fn fill_missing(&self, i: u64, at: u64, done: &Done) -> bool {
        let bytes = self.port.place_bytes();
        let Some(origin) = done.origin.filter(|origin| origin.arrived < origin.places) else {
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
        (0..origin.places as usize)
            .filter(|place| {
                present
                    .get(place / 64)
                    .is_none_or(|word| word >> (place % 64) & 1 == 0)
            })
            .map(|place| place * bytes..((place + 1) * bytes).min(done.length))
            .filter(|extent| !extent.is_empty())
            .all(|extent| self.producer.fill(i, extent))
    }

    /// Writes the metadata of the `i`-th open slot, which contains the frame of `done`, the `at`-th completion.
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
                // A frame with a doubtful number.
                (meta, meta.arrived == 0)
            }
        };
        if self.numbering.has_lost_sync() {
            tracing::warn!(
                "source {}: frame numbers do not continue any known sequence, so the frames count as damaged; check `offset`, \
                 `bytes`, `endian` and `step` of `sequence`, and that each frame begins with a packet of the design, which \
                 a packet that is longer than a slot of the ring prevents",
                self.name
            );
        }
        if is_blank {
            self.producer.blank(i);
            // If frames are shorter than slots, their length is as reported.
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
        if meta.is_incomplete() || (self.port.place_bytes() > 0 && meta.arrived < meta.places) {
            self.ledger.incomplete.add(1);
        }
        let present = self
            .completions
            .present(usize::try_from(at).unwrap_or(usize::MAX));
        self.producer.describe(i, &meta, present.iter().copied());
    }

    /// Copies frames out of the engine's own slots, drops those that the engine may have overwritten meanwhile, and
    /// publishes the rest.
    fn bounce_copy(&mut self) -> Result<(), DmaError> {
        let count = self.completions.as_slice().len() as u64;
        let supports_backpressure = self.port.supports_backpressure();
        let mut at = 0;
        // The transfer after the last checked frame.
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
                // The remaining frames follow slots that were filled in vain; they are copied again.
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

    /// Counts `count` completions starting at the `at`-th as lost to `cause`, including the frames missing before them.
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

    /// Waits briefly: for a free slot if the engine has none to fill, otherwise for the engine.
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
