//! An engine that may write memory, and the memory that it may write.

use super::{Caps, Completions, DmaMap, Engine, EngineError, QuiesceTimeout, Slots};
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::time::Duration;

/// How long a running engine that is dropped may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A running engine, with the memory of its slots and of its doorbell.
///
/// Only [`stop`](Self::stop) returns the memory. Dropping stops the engine first.
pub struct Armed {
    /// Moved out once, by `stop` or by `drop`.
    parts: ManuallyDrop<Idle>,
}

/// A stopped engine, with the memory that it wrote.
#[derive(Debug)]
pub struct Idle {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// The memory; `None` if the engine could neither be stopped nor its device reset, so that the memory is leaked.
    pub memory: Option<DmaMap>,
    /// Set if the engine did not stop in time and its device was reset.
    pub quiesce_timeout: Option<QuiesceTimeout>,
    /// The memory of the doorbell, released once the engine is stopped.
    doorbell: Option<Arc<DmaMap>>,
}

/// An engine that could not be armed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The engine and the memory.
    pub idle: Idle,
    /// Why.
    pub error: EngineError,
}

impl Armed {
    /// Arms `engine` to fill `slots`, which are in `memory`. The caller must keep the memory of a doorbell while this
    /// exists.
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

    /// As [`arm`](Self::arm); also keeps `bell`, the memory of the doorbell of `slots`.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
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

    /// What the engine can do.
    pub fn caps(&self) -> Caps {
        self.parts.engine.caps()
    }

    /// The memory.
    ///
    /// # Panics
    /// Never: only an idle engine has lost its memory.
    pub fn memory(&self) -> &DmaMap {
        self.parts
            .memory
            .as_ref()
            .expect("an armed engine has its memory")
    }

    /// [`Engine::poll`].
    pub fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.parts.engine.poll(done)
    }

    /// [`Engine::credit`].
    pub fn credit(&mut self, slots: u32) {
        self.parts.engine.credit(slots);
    }

    /// [`Engine::overwritten`].
    pub fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.parts.engine.overwritten()
    }

    /// [`Engine::wait`].
    pub fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.parts.engine.wait(limit)
    }

    /// Stops the engine: when this returns no transfer is in flight.
    pub fn stop(self, timeout: Duration) -> Idle {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its drop, which also moves the parts out, does not run.
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
                        "{quiesce_timeout}; bus mastering was disabled and its device reset"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        "{quiesce_timeout}; {error}; its memory is leaked until this process exits"
                    );
                    if let Some(memory) = self.memory.take() {
                        memory.leak();
                    }
                    mem::forget(self.doorbell.take());
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
        // SAFETY: this runs once, and `stop`, which also moves the parts out, prevents it from running.
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

    /// A device that says what was done to it, in turn.
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

    /// An engine that stops if it is said to, and is armed if it is given slots.
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

    /// Returns what the device records from arming on, while the other holder of the doorbell releases it; and the number of
    /// holders of the doorbell's memory at the end.
    fn course(stops: bool, can_be_cut_off: bool, slots: usize) -> (Vec<String>, usize) {
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
            let (recorded, holders) = course(true, true, slots);
            assert_eq!(recorded, ["quiesced", "unmapped 4096", "unmapped 8192"]);
            assert_eq!(holders, 0);
            let (recorded, holders) = course(false, true, slots);
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
            let (recorded, holders) = course(false, false, slots);
            assert_eq!(recorded, ["quiesced", "cut off"], "nothing is unmapped");
            assert_eq!(holders, 1);
        }
    }
}
