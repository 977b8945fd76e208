//! A running DMA engine, and the memory that it may write.

use super::{Caps, Completions, DmaMap, Engine, EngineError, QuiesceTimeout, Slots};
use crate::leak::leak;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for an engine that is dropped while running to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A running engine, with the memory of its slots and of its doorbell.
///
/// Only [`stop`](Self::stop) returns the memory. Dropping stops the engine first.
pub struct Armed {
    /// The engine and its memory, which `stop` or `drop` moves out exactly once.
    parts: ManuallyDrop<Idle>,
}

/// A stopped engine, with the memory that it wrote.
#[derive(Debug)]
pub struct Idle {
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
    pub idle: Idle,
    /// The reason.
    pub error: EngineError,
}

impl Armed {
    /// Arms `engine` to fill `slots`, which are in `memory`. The caller must keep the memory of a doorbell while the
    /// returned value exists.
    ///
    /// # Errors
    /// Returns the stopped engine and the memory with the reason.
    pub fn arm(
        engine: Box<dyn Engine>,
        memory: DmaMap,
        slots: &Slots,
    ) -> Result<Self, Box<Refused>> {
        Self::arm_with_doorbell(engine, memory, None, slots)
    }

    /// Arms the engine as [`arm`](Self::arm) does, and also keeps `bell`, the memory of the doorbell of `slots`.
    ///
    /// # Errors
    /// Returns the same errors as [`arm`](Self::arm).
    pub fn arm_with_doorbell(
        mut engine: Box<dyn Engine>,
        memory: DmaMap,
        doorbell: Option<Arc<DmaMap>>,
        slots: &Slots,
    ) -> Result<Self, Box<Refused>> {
        let result = engine.arm(slots);
        let idle = Idle {
            engine,
            memory: Some(memory),
            quiesce_timeout: None,
            doorbell,
        };
        match result {
            Ok(()) => Ok(Self {
                parts: ManuallyDrop::new(idle),
            }),
            Err(error) => Err(Box::new(Refused {
                idle: idle.stopped(STOP_TIMEOUT),
                error,
            })),
        }
    }

    /// Returns the capabilities of the engine.
    pub fn caps(&self) -> Caps {
        self.parts.engine.caps()
    }

    /// Returns the memory of the slots.
    ///
    /// # Panics
    /// Never panics, because only an idle engine can have lost its memory.
    pub fn memory(&self) -> &DmaMap {
        self.parts
            .memory
            .as_ref()
            .expect("an armed engine owns its memory")
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
    pub fn stop(self, timeout: Duration) -> Idle {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again. Its drop, which also moves the parts out, does not run.
        let parts = unsafe { ManuallyDrop::take(&mut this.parts) };
        parts.stopped(timeout)
    }
}

impl Idle {
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

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: `drop` runs at most once. `stop`, which also moves the parts out, prevents it from running.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        drop(parts.stopped(STOP_TIMEOUT));
    }
}

impl fmt::Debug for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed")
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
    use super::super::{DmaDevice, DmaError};
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

    impl Engine for Runs {
        fn name(&self) -> &'static str {
            "runs"
        }

        fn device(&self) -> &Arc<dyn DmaDevice> {
            &self.device
        }

        fn caps(&self) -> Caps {
            Caps {
                supports_backpressure: true,
                doorbell_bits: 32,
                end_of_packet: false,
                alignment: 1,
                max_transfer: 1,
                max_slots: 1,
            }
        }

        fn faults(&self) -> &'static [&'static str] {
            &[]
        }

        fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
            if slots.addresses.is_empty() {
                let device = "recorded".to_owned();
                return Err(DmaError::Gone { device }.into());
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
        let slots = Slots {
            addresses: vec![memory.address(); slots],
            bytes: 1,
            first: 0,
            doorbell: Some(doorbell_map.address()),
        };
        let engine = Box::new(Runs {
            device: recorded.clone(),
            recorded: recorded.clone(),
            stops,
        });
        drop(Armed::arm_with_doorbell(
            engine,
            memory,
            Some(doorbell_map),
            &slots,
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
