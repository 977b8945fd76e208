//! The engine of the source: copies received frames into the slots of the ring.

use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, Done, Engine, EngineError, EngineInfo,
    HostMemory, Origin, QuiesceTimeout, SlotLimits, SlotWriter, Slots,
};
use daq_nats::{Consumer, NatsError, Received};
use std::sync::Arc;
use std::time::Duration;

/// The description of the engine.
pub(super) const INFO: EngineInfo = EngineInfo {
    name: "nats",
    summary: "frames that a NATS server stores",
    limits: SlotLimits {
        alignment: 1,
        max_slot: 1 << 40,
        max_slots: 1 << 16,
        preferred: super::PREFERRED,
    },
    faults: &[],
    supports_backpressure: true,
    order: CompletionOrder::AfterPayload,
};

/// Fills slots on the thread that polls.
pub(super) struct NatsEngine {
    device: Arc<dyn DmaDevice>,
    memory: Arc<HostMemory>,
    consumer: Consumer,
    slots: Option<SlotWriter>,
    /// Frames that were reported in the last poll. They are in the ring when the next poll begins.
    reported: Vec<Received>,
}

impl NatsEngine {
    pub(super) fn new(name: String, consumer: Consumer) -> Self {
        let memory = HostMemory::new(name);
        Self {
            device: memory.clone(),
            memory,
            consumer,
            slots: None,
            reported: Vec::new(),
        }
    }

    /// Returns the frames of the last poll, which are in the ring, to the client.
    fn acknowledge(&mut self) {
        if self.reported.is_empty() {
            return;
        }
        for frame in self.reported.drain(..) {
            self.consumer.finish(frame);
        }
        self.consumer.commit();
    }
}

/// Describes a frame for the runtime.
fn describe(frame: &Received, length: usize) -> Done {
    let meta = &frame.meta;
    Done {
        length,
        timestamp: meta.timestamp,
        missing: frame.missing,
        origin: Some(Origin {
            sequence: meta.sequence,
            // Both a new run and a new epoch of the sender begin an epoch.
            epoch: frame.run << 32 | u64::from(meta.epoch),
            flags: meta.flags,
            packets_per_frame: meta.packets_per_frame,
            arrived: meta.arrived,
            packet_sizes: meta.packet_sizes,
            kept: meta.kept,
        }),
        ..Done::default()
    }
}

// SAFETY: only `poll` writes, on the thread that calls it, through a `SlotWriter` that gets exactly the credits of `credit`.
// No slot is written after `quiesce`, because it drops the writer.
unsafe impl Engine for NatsEngine {
    fn info(&self) -> &'static EngineInfo {
        &INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.reported.reserve(slots.addresses.len());
        // SAFETY: `credit` passes on the credits since this call, and `quiesce` drops the writer.
        let writer = unsafe { self.memory.writer(slots) };
        self.slots = Some(writer.map_err(|error| ArmError::Stopped(EngineError::Dma(error)))?);
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.acknowledge();
        if let Some(NatsError { what, why, .. }) = self.consumer.failure() {
            return Err(EngineError::Unfit { device: what, why });
        }
        let losses = self.consumer.take_losses();
        done.add_missing(losses.missing);
        done.expire(losses.expired);
        done.reject(losses.rejected);
        let Some(slots) = &mut self.slots else {
            return Ok(());
        };
        while done.room() > 0 && slots.room() > 0 {
            let Some(frame) = self.consumer.peek() else {
                break;
            };
            // The client delivers only frames that fit.
            let Some(length) = slots.fill(frame.parts()) else {
                break;
            };
            done.expire(frame.expired);
            let described = describe(frame, length);
            if frame.present.is_empty() {
                done.push(described);
            } else {
                done.push_with(described, &frame.present);
            }
            self.reported.extend(self.consumer.take());
        }
        Ok(())
    }

    fn credit(&mut self, credits: u32) {
        if let Some(slots) = &mut self.slots {
            slots.credit(credits);
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.consumer.wait(limit);
        Ok(true)
    }

    fn quiesce(&mut self, _: Duration) -> Result<(), QuiesceTimeout> {
        self.slots = None;
        Ok(())
    }
}

impl Drop for NatsEngine {
    /// A stopped engine is polled until no frames are left. If frames of the last poll are still here, the run failed before
    /// they were in the ring. They are not acknowledged, so that they are received again.
    fn drop(&mut self) {
        self.consumer.close();
    }
}
