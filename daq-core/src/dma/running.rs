//! The state of a DMA engine, and the memory that it may write.

use super::{
    ArmError, Caps, CompletionOrder, Completions, DmaDevice, DmaMap, Engine, EngineError,
    QuiesceTimeout, SlotLayout, Slots,
};
use crate::leak::leak;
use crate::region::Placement;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for an engine that is dropped while running to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A running engine, with the memory of its slots and of its doorbell.
///
/// Only [`stop`](Self::stop) returns the engine and the memory. Dropping stops the engine first.
pub struct Running {
    /// What `stop` or `drop` moves out exactly once.
    parts: ManuallyDrop<Parts>,
}

/// An engine, and all memory that it may write while it runs.
#[derive(Debug)]
struct Parts {
    stopped: Stopped,
    /// Released after the engine is stopped.
    doorbell: Option<Arc<DmaMap>>,
}

/// A stopped engine, with the memory that it wrote.
///
/// The engine itself is not accessible, because only a running engine may be polled and given credits.
#[derive(Debug)]
pub struct Stopped {
    engine: Box<dyn Engine>,
    memory: DmaMap,
    quiesce_timeout: Option<QuiesceTimeout>,
}

/// An engine that could not be armed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The engine and the memory; `None` if both were leaked, see [`Running::stop`].
    pub stopped: Option<Stopped>,
    /// The reason.
    pub error: EngineError,
}

impl Running {
    /// Returns the capabilities of the engine.
    pub fn caps(&self) -> Caps {
        self.parts.stopped.engine.caps()
    }

    /// Returns the memory of the slots.
    pub fn memory(&self) -> &DmaMap {
        &self.parts.stopped.memory
    }

    /// Calls [`Engine::poll`].
    pub fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.parts.stopped.engine.poll(done)
    }

    /// Calls [`Engine::credit`].
    pub fn credit(&mut self, slots: u32) {
        self.parts.stopped.engine.credit(slots);
    }

    /// Calls [`Engine::overwritten`].
    pub fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.parts.stopped.engine.overwritten()
    }

    /// Calls [`Engine::wait`].
    pub fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.parts.stopped.engine.wait(limit)
    }

    /// Stops the engine. When this returns, no transfer is in flight.
    ///
    /// # Errors
    /// If the engine could not be stopped and its device could not be reset. The engine and all memory that it may
    /// still write are leaked.
    pub fn stop(self, timeout: Duration) -> Result<Stopped, QuiesceTimeout> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again. Its drop, which also moves the parts out, does not run.
        let parts = unsafe { ManuallyDrop::take(&mut this.parts) };
        parts.stop(timeout)
    }
}

impl Stopped {
    /// Combines an engine that was never armed with the memory for its slots.
    pub const fn new(engine: Box<dyn Engine>, memory: DmaMap) -> Self {
        Self {
            engine,
            memory,
            quiesce_timeout: None,
        }
    }

    /// Arms the engine to fill the slots of `layout` in its memory, beginning with the slot `first`. The engine writes
    /// its count to the start of `doorbell`, if given.
    ///
    /// # Errors
    /// Returns the stopped engine and the memory with the reason.
    ///
    /// # Panics
    /// Panics if the slots exceed the memory.
    pub fn start(
        mut self,
        layout: SlotLayout,
        first: usize,
        doorbell: Option<Arc<DmaMap>>,
    ) -> Result<Running, Box<Refused>> {
        self.quiesce_timeout = None;
        let armed = self
            .slots(layout, first, doorbell.as_deref())
            .map_err(ArmError::Stopped)
            .and_then(|slots| {
                // SAFETY: the engine is stopped, because only `start` arms an engine, and `Running` returns it only after
                // it has stopped or its device was reset. The slots and the doorbell are in memory that `parts` below
                // owns, and releases only after the engine has stopped or its device was reset.
                unsafe { self.engine.arm(&slots) }
            });
        let parts = Parts {
            stopped: self,
            doorbell,
        };
        let (error, stopped) = match armed {
            Ok(()) => {
                return Ok(Running {
                    parts: ManuallyDrop::new(parts),
                });
            }
            Err(ArmError::Stopped(error)) => (error, Some(parts.stopped)),
            Err(ArmError::Started(error)) => (error, parts.stop(STOP_TIMEOUT).ok()),
        };
        Err(Box::new(Refused { stopped, error }))
    }

    /// Returns the slots that the engine may write, or why it cannot write to this memory.
    fn slots(
        &self,
        layout: SlotLayout,
        first: usize,
        doorbell: Option<&DmaMap>,
    ) -> Result<Slots, EngineError> {
        let engine = &self.engine;
        let placement = self.memory.region().placement();
        if placement != Placement::Host && engine.info().order == CompletionOrder::HostMemory {
            return Err(EngineError::Unfit {
                device: engine.device().name().to_owned(),
                why: format!(
                    "the engine `{}` reads its completions from a register, which does not prove that the payload has arrived \
                     in GPU memory: set path = \"staged\"",
                    engine.info().name
                ),
            });
        }
        Ok(Slots {
            addresses: layout.addresses(&self.memory)?,
            bytes: layout.bytes,
            first,
            doorbell: doorbell.map(DmaMap::address),
            placement,
        })
    }

    /// Returns the device of the engine.
    pub fn device(&self) -> &Arc<dyn DmaDevice> {
        self.engine.device()
    }

    /// Returns the memory of the slots.
    pub const fn memory(&self) -> &DmaMap {
        &self.memory
    }

    /// Replaces the memory of the slots, and returns the previous memory.
    pub const fn replace_memory(&mut self, memory: DmaMap) -> DmaMap {
        std::mem::replace(&mut self.memory, memory)
    }

    /// Returns the timeout if the engine did not stop in time and its device was reset.
    pub const fn quiesce_timeout(&self) -> Option<&QuiesceTimeout> {
        self.quiesce_timeout.as_ref()
    }

    /// Calls [`Engine::poll_stopped`].
    pub fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.engine.poll_stopped(done)
    }

    /// Calls [`Engine::overwritten_stopped`].
    pub fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.engine.overwritten_stopped()
    }
}

impl Parts {
    /// Stops the engine, see [`Running::stop`].
    fn stop(mut self, timeout: Duration) -> Result<Stopped, QuiesceTimeout> {
        let engine = &mut self.stopped.engine;
        if let Err(quiesce_timeout) = engine.quiesce(timeout) {
            match engine.device().disable_and_reset() {
                Ok(()) => {
                    tracing::warn!(
                        "{quiesce_timeout}; bus mastering was disabled and the device was reset"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        "{quiesce_timeout}; {error}; the engine's memory is leaked until this process exits"
                    );
                    // The engine owns further memory that its device may write.
                    leak(self);
                    return Err(quiesce_timeout);
                }
            }
            self.stopped.quiesce_timeout = Some(quiesce_timeout);
        }
        drop(self.doorbell);
        Ok(self.stopped)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: `drop` runs at most once. `stop`, which also moves the parts out, prevents it from running.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        drop(parts.stop(STOP_TIMEOUT));
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("parts", &*self.parts)
            .finish()
    }
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.info().name, self.device().name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DmaError, EngineInfo, SlotLimits};
    use super::*;
    use crate::region::{HostOptions, Region};
    use std::sync::Mutex;

    /// A device that records the calls that it receives, in order.
    struct Recorder {
        can_be_cut_off: bool,
        recorded: Mutex<Vec<String>>,
    }

    impl Recorder {
        fn record(&self, what: String) {
            self.recorded.lock().unwrap().push(what);
        }

        fn recorded(&self) -> Vec<String> {
            self.recorded.lock().unwrap().clone()
        }
    }

    impl DmaDevice for Recorder {
        fn name(&self) -> &'static str {
            "recorded"
        }

        fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
            Ok(region.bytes() as u64)
        }

        fn unmap(&self, address: u64, _: usize) -> Result<(), DmaError> {
            self.record(format!("unmapped {address}"));
            Ok(())
        }

        fn disable_and_reset(&self) -> Result<(), DmaError> {
            self.record("cut off".to_owned());
            if self.can_be_cut_off {
                return Ok(());
            }
            Err(DmaError::Gone {
                device: "recorded".to_owned(),
            })
        }
    }

    /// An engine that can be stopped only if `stops` is set, and that can be armed only if the ring has slots.
    struct Runs {
        device: Arc<dyn DmaDevice>,
        recorded: Arc<Recorder>,
        stops: bool,
    }

    const RUNS: EngineInfo = EngineInfo {
        name: "runs",
        summary: "an engine of these tests",
        limits: SlotLimits {
            alignment: 1,
            max_slot: 1,
            max_slots: 1,
            preferred: 1,
        },
        faults: &[],
        supports_backpressure: true,
        order: CompletionOrder::AfterPayload,
    };

    // SAFETY: no device writes.
    unsafe impl Engine for Runs {
        fn info(&self) -> &'static EngineInfo {
            &RUNS
        }

        fn device(&self) -> &Arc<dyn DmaDevice> {
            &self.device
        }

        unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
            if slots.addresses.is_empty() {
                let device = "recorded".to_owned();
                return Err(ArmError::Started(DmaError::Gone { device }.into()));
            }
            Ok(())
        }

        fn poll(&mut self, _: &mut Completions) -> Result<(), EngineError> {
            Ok(())
        }

        fn credit(&mut self, _: u32) {}

        fn quiesce(&mut self, waited: Duration) -> Result<(), QuiesceTimeout> {
            self.recorded.record("quiesced".to_owned());
            if self.stops {
                return Ok(());
            }
            Err(QuiesceTimeout {
                engine: "runs".to_owned(),
                waited,
            })
        }
    }

    /// Returns the calls that the device records after arming, while the other owner of the doorbell releases it, and
    /// the number of owners of the doorbell's memory at the end.
    fn record_shutdown(stops: bool, can_be_cut_off: bool, slots: usize) -> (Vec<String>, usize) {
        let recorded = Arc::new(Recorder {
            can_be_cut_off,
            recorded: Mutex::default(),
        });
        let region = |pages: usize| Region::host(pages * 4096, HostOptions::default()).unwrap();
        let memory = DmaMap::new(recorded.clone(), region(2)).unwrap();
        let doorbell = region(1);
        let doorbell_map = Arc::new(DmaMap::new(recorded.clone(), doorbell.clone()).unwrap());
        let layout = SlotLayout {
            slots,
            stride: 1,
            bytes: 1,
        };
        let engine = Box::new(Runs {
            device: recorded.clone(),
            recorded: recorded.clone(),
            stops,
        });
        drop(Stopped::new(engine, memory).start(layout, 0, Some(doorbell_map)));
        (recorded.recorded(), Arc::strong_count(&doorbell) - 1)
    }

    #[test]
    fn doorbell_of_quiesced_engine_is_unmapped() {
        for slots in [0, 1] {
            let (recorded, holders) = record_shutdown(true, true, slots);
            assert_eq!(recorded, ["quiesced", "unmapped 4096", "unmapped 8192"]);
            assert_eq!(holders, 0);
            let (recorded, holders) = record_shutdown(false, true, slots);
            assert_eq!(
                recorded,
                ["quiesced", "cut off", "unmapped 4096", "unmapped 8192"]
            );
            assert_eq!(holders, 0);
        }
    }

    #[test]
    fn doorbell_of_engine_that_cannot_be_quiesced_stays_mapped() {
        for slots in [0, 1] {
            let (recorded, holders) = record_shutdown(false, false, slots);
            assert_eq!(recorded, ["quiesced", "cut off"], "nothing is unmapped");
            assert_eq!(holders, 1);
        }
    }
}
