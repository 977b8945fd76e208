//! An engine and the slots that it fills: either slots of the ring, or separate slots of the engine.

use super::DmaError;
use daq_core::dma::{
    BounceCopy, BounceCopyError, Completions, DmaDevice, DmaMap, Engine, EngineError, Running,
    SlotLayout, Stopped,
};
use daq_core::gpu::driver::Device;
use daq_core::gpu::{Backend, Writer};
use daq_core::kernel::DeviceDoorbell;
use daq_core::ledger::EngineCounters;
use daq_core::region::{HostOptions, Placement, Region, RegionError};
use daq_core::ring::Producer;
use daq_core::staging::StagingError;
use std::sync::Arc;
use std::time::Duration;

/// State of an engine.
enum State {
    Stopped(Stopped),
    Running(Running),
    /// The engine cannot be used: it could not be stopped or disabled, or a change of its state failed.
    Lost,
}

/// An engine with its slots.
pub(super) struct Port {
    state: State,
    name: String,
    supports_backpressure: bool,
    /// Whether the engine writes packet by packet and may therefore write beyond the end of a frame.
    writes_past_length: bool,
    packet_bytes: usize,
    faults: &'static [&'static str],
    /// Copies frames from the engine's own slots to the ring's slots; `None` if the engine writes directly to the ring.
    bounce_copy: Option<BounceCopy>,
    /// Number of the engine's own slots that have not been given to the engine yet.
    ungiven: u64,
    /// Number of slots that were given to the engine and for which it has not reported completion.
    given: u64,
    /// The doorbell that an armed engine rings, and the DMA mapping of that doorbell.
    bell: Option<(DeviceDoorbell, Arc<DmaMap>)>,
    is_ringing: bool,
    /// The GPU to flush, so that kernels see the writes of the device.
    flushed: Option<&'static Device>,
    layout: SlotLayout,
    /// Index of the slot that the engine filled first after it was armed.
    first: usize,
    slots: usize,
}

/// Allocates an engine's own slots on the GPU of `producer`'s ring, or in host memory if the ring is in host memory.
fn own(
    producer: &Producer,
    writer: Writer,
    backends: &[Backend],
) -> Result<Arc<Region>, RegionError> {
    let Placement::Cuda(ordinal) = producer.region().placement() else {
        return own_on_host(producer);
    };
    let bytes = producer.options().region_bytes();
    let device = Device::open(ordinal).map_err(RegionError::from)?;
    match Region::mapped(device, bytes, writer, backends) {
        // The NIC driver receives the address of the memory, as for unreliable writes of the source `stream`, so the
        // region needs no BAR mapping. If the CPU reads received data, the plan has already requested a BAR mapping.
        Err(RegionError::Unmappable(error)) if writer == Writer::Nic => {
            tracing::debug!("cannot map the engine's own slots: {error}");
            Region::cuda(device, bytes)
        }
        made => made,
    }
}

/// Allocates an engine's own slots in host memory.
fn own_on_host(producer: &Producer) -> Result<Arc<Region>, RegionError> {
    Region::host(
        producer.options().region_bytes(),
        HostOptions {
            lock: true,
            huge: true,
            shared: true,
            ..HostOptions::default()
        },
    )
}

/// Returns the layout of the slots of `producer`'s ring, which the engine's own slots have too.
fn layout(producer: &Producer) -> SlotLayout {
    let options = producer.options();
    SlotLayout {
        slots: options.slots,
        stride: options.stride(),
        bytes: options.slot_bytes,
    }
}

/// Maps `region` for DMA by `device`. Fails if a slot has no consecutive device addresses.
fn map(
    device: &Arc<dyn DmaDevice>,
    region: &Arc<Region>,
    producer: &Producer,
) -> Result<DmaMap, EngineError> {
    let map = DmaMap::new(device.clone(), region.clone())?;
    layout(producer).addresses(&map)?;
    Ok(map)
}

impl Port {
    /// Maps the ring's slots for the engine, or the engine's own slots if the engine does not support backpressure.
    ///
    /// If the device cannot access a ring on a GPU at all, the engine uses host memory from the beginning.
    pub(super) fn new(
        engine: Box<dyn Engine>,
        producer: &Producer,
        bell: Option<DeviceDoorbell>,
        counters: &EngineCounters,
        (writer, backends): (Writer, &[Backend]),
    ) -> Result<Self, DmaError> {
        let (info, caps) = (engine.info(), engine.caps());
        let supports_backpressure = caps.supports_backpressure;
        let device = engine.device().clone();
        let is_host = producer.region().placement() == Placement::Host;
        let region = if supports_backpressure {
            producer.region().clone()
        } else {
            own(producer, writer, backends)?
        };
        let gpu = match producer.region().placement() {
            Placement::Cuda(ordinal) => Some(Device::open(ordinal)?),
            Placement::Host => None,
        };
        let mapped = match gpu {
            Some(gpu) if gpu.needs_flush().is_none() => Err(EngineError::Unfit {
                device: engine.device().name().to_owned(),
                why: format!(
                    "kernels on {} may read stale data after the device has written to GPU memory, and the writes \
                     cannot be flushed (attributes 117, 118); a newer driver may support this",
                    gpu.name()
                ),
            }),
            _ => map(&device, &region, producer),
        };
        let (mapped, region) = match mapped {
            Err(error) if !is_host => {
                tracing::warn!("{error}; frames go through host memory instead");
                counters.ledger.fallbacks.add(1);
                let region = own_on_host(producer)?;
                (map(&device, &region, producer), region)
            }
            mapped => (mapped, region),
        };
        let map = mapped?;
        let is_straight = supports_backpressure && Arc::ptr_eq(&region, producer.region());
        let bell = match bell {
            Some(bell) if is_straight && caps.doorbell_bits >= DeviceDoorbell::BITS => {
                let map = DmaMap::new(device, bell.region().clone()).map_err(EngineError::from)?;
                Some((bell, Arc::new(map)))
            }
            Some(bell) => {
                bell.disable_device();
                None
            }
            None => None,
        };
        let options = producer.options();
        Ok(Self {
            name: format!("{} of {}", info.name, engine.device().name()),
            faults: info.faults,
            writes_past_length: caps.writes_past_length,
            packet_bytes: caps.packet_bytes,
            flushed: gpu.filter(|gpu| gpu.needs_flush() == Some(true)),
            bounce_copy: (!is_straight)
                .then(|| BounceCopy::new(region, producer))
                .transpose()?,
            state: State::Stopped(Stopped::new(engine, map)),
            supports_backpressure,
            ungiven: 0,
            given: 0,
            bell,
            is_ringing: false,
            layout: layout(producer),
            first: 0,
            slots: options.slots,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn faults(&self) -> &'static [&'static str] {
        self.faults
    }

    pub(super) const fn is_carried(&self) -> bool {
        self.bounce_copy.is_some()
    }

    pub(super) const fn supports_backpressure(&self) -> bool {
        self.supports_backpressure
    }

    pub(super) const fn writes_past_length(&self) -> bool {
        self.writes_past_length
    }

    /// Returns the size of a packet slot in bytes if packets that did not arrive must be filled, otherwise 0.
    pub(super) const fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    pub(super) const fn is_armed(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    pub(super) const fn is_ringing(&self) -> bool {
        self.is_ringing
    }

    /// Returns whether the engine has a doorbell but does not ring it yet.
    pub(super) const fn wants_to_ring(&self) -> bool {
        self.bell.is_some() && !self.is_ringing
    }

    /// Returns the memory that the engine writes.
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        match &self.state {
            State::Stopped(stopped) => Some(stopped.memory().region()),
            State::Running(running) => Some(running.memory().region()),
            State::Lost => None,
        }
    }

    /// Returns the slot of a transfer. Transfers are counted from the last arming of the engine.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder of a division by a usize fits into a usize"
    )]
    pub(super) const fn slot_of(&self, transfer: u64) -> usize {
        ((self.first as u64 + transfer) % self.slots as u64) as usize
    }

    /// Arms the engine, starting at the slot of the ring's next frame.
    pub(super) fn arm(&mut self, producer: &Producer, is_verified: bool) -> Result<(), DmaError> {
        let Some(stopped) = self.take_stopped() else {
            return Err(DmaError::Unbelievable(format!(
                "{} cannot be armed, because the engine is not idle",
                self.name
            )));
        };
        let slots = self.slots as u64;
        self.first = match &self.bounce_copy {
            Some(_) => 0,
            None => usize::try_from(producer.published() % slots).unwrap_or(0),
        };
        let bell = self
            .bell
            .as_ref()
            .filter(|_| is_verified && self.is_ringing);
        (self.given, self.ungiven) = (0, slots);
        let bell = bell.map(|(_, map)| map.clone());
        match stopped.start(self.layout, self.first, bell) {
            Ok(running) => self.state = State::Running(running),
            Err(refused) => {
                self.state = refused.stopped.map_or(State::Lost, State::Stopped);
                return Err(refused.error.into());
            }
        }
        Ok(())
    }

    /// Moves the stopped engine and its memory out. `None` if the engine runs or is lost.
    fn take_stopped(&mut self) -> Option<Stopped> {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Stopped(stopped) => Some(stopped),
            State::Running(_) | State::Lost => None,
        }
    }

    /// Gives free slots to the engine: one slot until the path is verified, afterwards all free slots.
    pub(super) fn credit(&mut self, producer: &mut Producer, is_verifying: bool) {
        let State::Running(running) = &mut self.state else {
            return;
        };
        if !self.supports_backpressure {
            return;
        }
        let max = if is_verifying { 1 } else { u64::MAX };
        let slots = if self.bounce_copy.is_some() {
            let slots = self.ungiven.min(max.saturating_sub(self.given));
            self.ungiven -= slots;
            slots
        } else {
            let free = (self.slots as u64).min(max);
            if producer.open() < free {
                producer.claim(free - producer.open());
            }
            producer.open().min(max) - self.given
        };
        if slots > 0 {
            self.given += slots;
            running.credit(u32::try_from(slots).unwrap_or(u32::MAX));
        }
    }

    /// Returns the maximum number of completions that can be processed now.
    pub(super) fn wanted(&self, producer: &mut Producer, is_verifying: bool) -> usize {
        if is_verifying {
            return 1;
        }
        if self.bounce_copy.is_none() || !self.supports_backpressure {
            return usize::MAX;
        }
        // The engine supports backpressure, so completions without a free ring slot stay in its queue.
        let slots = self.slots as u64;
        producer.claim(slots.saturating_sub(producer.open()).min(self.given));
        usize::try_from(producer.open()).unwrap_or(usize::MAX)
    }

    /// Returns whether the engine has no slot to fill until a reader frees one.
    pub(super) fn is_starved(&self, producer: &Producer) -> bool {
        self.supports_backpressure
            && match self.bounce_copy {
                None => producer.open() == 0,
                Some(_) => self.ungiven == 0 && producer.open() == 0,
            }
    }

    pub(super) fn poll(&mut self, completions: &mut Completions) -> Result<(), DmaError> {
        let polled = match &mut self.state {
            State::Running(running) => running.poll(completions),
            // Completions remain valid after the engine has stopped.
            State::Stopped(stopped) => stopped.poll(completions),
            State::Lost => Ok(()),
        };
        if self.bounce_copy.is_none() {
            let finished = completions.as_slice().len() as u64;
            self.given = self.given.saturating_sub(finished);
        }
        Ok(polled?)
    }

    /// Waits for an interrupt for at most `limit`. Returns false if the device has no interrupts.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<bool, DmaError> {
        match &mut self.state {
            State::Running(running) => Ok(running.wait(limit)?),
            State::Stopped(_) | State::Lost => Ok(false),
        }
    }

    /// Returns the number of completed transfers whose data the engine may have overwritten.
    pub(super) fn overwritten(&mut self) -> Result<u64, DmaError> {
        match &mut self.state {
            State::Running(running) => Ok(running.overwritten()?),
            State::Stopped(stopped) => Ok(stopped.overwritten()?),
            State::Lost => Ok(u64::MAX),
        }
    }

    /// Copies a transfer's bytes to the `open`-th open slot of the ring.
    pub(super) fn bounce_copy(
        &mut self,
        transfer: u64,
        bytes: usize,
        producer: &Producer,
        open: u64,
    ) -> Result<(), DmaError> {
        let slot = self.slot_of(transfer);
        match &mut self.bounce_copy {
            Some(bounce_copy) => Ok(bounce_copy.copy(slot, bytes, producer, open)?),
            None => Ok(()),
        }
    }

    pub(super) fn settle(&mut self) -> Result<(), DmaError> {
        match &mut self.bounce_copy {
            Some(bounce_copy) => Ok(bounce_copy.settle()?),
            None => Ok(()),
        }
    }

    /// Returns `slots` slots to the engine, which may then fill these slots again.
    pub(super) fn give_back(&mut self, slots: u64) {
        self.given = self.given.saturating_sub(slots);
        self.ungiven += slots;
    }

    /// Stops the engine; returns true if bus mastering had to be disabled.
    pub(super) fn stop(&mut self, timeout: Duration) -> bool {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(running) => match running.stop(timeout) {
                Ok(stopped) => {
                    let was_reset = stopped.quiesce_timeout().is_some();
                    self.state = State::Stopped(stopped);
                    was_reset
                }
                Err(_) => true,
            },
            other => {
                self.state = other;
                false
            }
        }
    }

    /// Returns whether the engine can change to its own slots in host memory.
    pub(super) fn can_fall_back(&self) -> bool {
        let region = self.region();
        region.is_some_and(|region| region.placement() != Placement::Host)
    }

    /// Gives a stopped engine its own slots in host memory.
    pub(super) fn fall_back(&mut self, producer: &Producer) -> Result<(), DmaError> {
        let Some(mut stopped) = self.take_stopped() else {
            return Err(DmaError::Unbelievable(format!(
                "{} cannot be stopped, so its memory cannot be changed",
                self.name
            )));
        };
        let made = own_on_host(producer)
            .map_err(DmaError::from)
            .and_then(|region| {
                let map = map(stopped.device(), &region, producer)?;
                Ok((BounceCopy::new(region, producer)?, map))
            });
        let (bounce_copy, map) = match made {
            Ok(made) => made,
            Err(error) => {
                // The caller polls the remaining completions later.
                self.state = State::Stopped(stopped);
                return Err(error);
            }
        };
        drop(stopped.replace_memory(map));
        self.bounce_copy = Some(bounce_copy);
        if let Some((bell, _)) = self.bell.take() {
            bell.disable_device();
        }
        self.flushed = None;
        self.state = State::Stopped(stopped);
        Ok(())
    }

    /// Makes the device ring the doorbell after the engine is armed again, starting with the count `posted`.
    pub(super) fn ring_from(&mut self, posted: u64) -> Result<(), DmaError> {
        if let Some((bell, _)) = &self.bell {
            bell.ring_from(posted)
                .map_err(|error| BounceCopyError::from(StagingError::from(error)))?;
            self.is_ringing = true;
        }
        Ok(())
    }

    /// Makes the engine's writes visible to kernels.
    pub(super) fn flush(&self) -> Result<(), DmaError> {
        match self.flushed {
            Some(gpu) => Ok(gpu.flush_writes()?),
            None => Ok(()),
        }
    }
}
