//! The state of a DMA engine, and the memory that it may write.

use super::{
    ArmError, Caps, CompletionOrder, Completions, DmaMap, Engine, EngineError, QuiesceTimeout,
    SlotLayout, Slots,
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
/// Only [`stop`](Self::stop) returns the memory. Dropping stops the engine first.
pub struct Running {
    /// The engine and its memory, which `stop` or `drop` moves out exactly once.
    parts: ManuallyDrop<Stopped>,
}

/// A stopped engine, with the memory that it wrote.
#[derive(Debug)]
pub struct Stopped {
    /// The stopped engine.
    pub engine: Box<dyn Engine>,
    /// The memory; `None` if the memory was leaked because the engine could not be stopped and its device could not be
    /// reset.
    pub memory: Option<DmaMap>,
    /// Set if the engine did not stop in time and its device was reset.
    pub quiesce_timeout: Option<QuiesceTimeout>,
    /// The memory of the doorbell, released after the engine is stopped.
    doorbell: Option<Arc<DmaMap>>,
}

/// An engine that could not be armed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The engine and the memory.
    pub stopped: Stopped,
    /// The reason.
    pub error: EngineError,
}

impl Running {
    /// Arms `engine` to fill the slots of `layout` in `memory`, beginning with the slot `first`. The engine writes its
    /// count to the start of `doorbell`, if given.
    ///
    /// # Errors
    /// Returns the stopped engine and the memory with the reason.
    ///
    /// # Panics
    /// Panics if the slots exceed the memory.
    pub fn start(
        mut engine: Box<dyn Engine>,
        memory: DmaMap,
        layout: SlotLayout,
        first: usize,
        doorbell: Option<Arc<DmaMap>>,
    ) -> Result<Self, Box<Refused>> {
        let armed = slots(&*engine, &memory, layout, first, doorbell.as_deref())
            .map_err(ArmError::Stopped)
            .and_then(|slots| {
                // SAFETY: the engine is stopped, because only `start` arms engines, and an engine that it armed is
                // returned only after it has stopped. The slots and the doorbell are in `memory` and `doorbell`, which
                // `stopped` below releases only after the engine has stopped or its device was reset.
                unsafe { engine.arm(&slots) }
            });
        let parts = Stopped {
            doorbell,
            ..Stopped::new(engine, memory)
        };
        match armed {
            Ok(()) => Ok(Self {
                parts: ManuallyDrop::new(parts),
            }),
            Err(error) => {
                let stopped = match &error {
                    ArmError::Stopped(_) => parts,
                    ArmError::Started(_) => parts.stopped(STOP_TIMEOUT),
                };
                let error = error.into_reason();
                Err(Box::new(Refused { stopped, error }))
            }
        }
    }

    /// Returns the capabilities of the engine.
    pub fn caps(&self) -> Caps {
        self.parts.engine.caps()
    }

    /// Returns the memory of the slots.
    ///
    /// # Panics
    /// Never panics, because only a stopped engine can have lost its memory.
    pub fn memory(&self) -> &DmaMap {
        self.parts
            .memory
            .as_ref()
            .expect("a running engine owns its memory")
    }

    /// Calls [`Engine::poll`].
    pub fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.parts.engine.poll(done)
    }

    /// Calls [`Engine::credit`].
    pub fn credit(&mut self, slots: u32) {
        self.parts.engine.credit(slots);
    }

    /// Calls [`Engine::overwritten`].
    pub fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.parts.engine.overwritten()
    }

    /// Calls [`Engine::wait`].
    pub fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.parts.engine.wait(limit)
    }

    /// Stops the engine. When this returns, no transfer is in flight.
    pub fn stop(self, timeout: Duration) -> Stopped {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again. Its drop, which also moves the parts out, does not run.
        let parts = unsafe { ManuallyDrop::take(&mut this.parts) };
        parts.stopped(timeout)
    }
}

/// Returns the slots that the engine may write, or why it cannot write to this memory.
fn slots(
    engine: &dyn Engine,
    memory: &DmaMap,
    layout: SlotLayout,
    first: usize,
    doorbell: Option<&DmaMap>,
) -> Result<Slots, EngineError> {
    let placement = memory.region().placement();
    if placement != Placement::Host && engine.info().order == CompletionOrder::HostMemory {
        return Err(EngineError::Unfit {
            device: engine.device().name().to_owned(),
            why: format!(
                "the engine `{}` reads its completions from a register, which does not prove that the payload has arrived \
                 in GPU memory: set path = \"staged\"",
                engine.name()
            ),
        });
    }
    Ok(Slots {
        addresses: layout.addresses(memory)?,
        bytes: layout.bytes,
        first,
        doorbell: doorbell.map(DmaMap::address),
        placement,
    })
}

impl Stopped {
    /// Creates the state of an engine that was never armed, with the memory for its slots.
    pub const fn new(engine: Box<dyn Engine>, memory: DmaMap) -> Self {
        Self {
            engine,
            memory: Some(memory),
            quiesce_timeout: None,
            doorbell: None,
        }
    }

    /// Calls [`Engine::poll_stopped`].
    pub fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.engine.poll_stopped(done)
    }

    /// Calls [`Engine::overwritten_stopped`].
    pub fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.engine.overwritten_stopped()
    }

    /// Stops the engine.
    fn stopped(mut self, timeout: Duration) -> Self {
        if let Err(quiesce_timeout) = self.engine.quiesce(timeout) {
            match self.engine.device().disable_and_reset() {
                Ok(()) => {
                    tracing::warn!(
                        "{quiesce_timeout}; bus mastering was disabled and the device was reset"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        "{quiesce_timeout}; {error}; the engine's memory is leaked until this process exits"
                    );
                    leak((self.memory.take(), self.doorbell.take()));
                }
            }
            self.quiesce_timeout = Some(quiesce_timeout);
        }
        self.doorbell = None;
        self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: `drop` runs at most once. `stop`, which also moves the parts out, prevents it from running.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        drop(parts.stopped(STOP_TIMEOUT));
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
        write!(f, "{} of {}", self.name(), self.device().name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DmaDevice, DmaError, EngineInfo, SlotLimits};
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
        drop(Running::start(
            engine,
            memory,
            layout,
            0,
            Some(doorbell_map),
        ));
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
