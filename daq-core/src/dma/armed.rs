//! An engine that may write memory, and the memory that it may write.

use super::{Caps, Completions, DmaMap, Engine, EngineError, Slots, Stuck};
use std::fmt;
use std::mem::ManuallyDrop;
use std::time::Duration;

/// How long an engine that is dropped while it runs may take to stop.
const PATIENCE: Duration = Duration::from_millis(500);

/// An engine that runs, with the memory that its slots lie in.
///
/// The memory is given back by [`stop`](Self::stop) alone. One that is dropped stops its engine first.
pub struct Armed {
    /// Taken once, by `stop` or by `drop`.
    parts: ManuallyDrop<Idle>,
}

/// An engine that is quiet, with the memory that it wrote.
#[derive(Debug)]
pub struct Idle {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// The memory; `None` where the engine could be neither stopped nor cut off, and it is kept until the process ends.
    pub memory: Option<DmaMap>,
    /// That it would not stop and was cut off.
    pub stuck: Option<Stuck>,
}

/// An engine that could not be armed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Engine and memory.
    pub idle: Idle,
    /// Why.
    pub error: EngineError,
}

impl Armed {
    /// Has `engine` fill `slots`, which lie in `memory`.
    ///
    /// # Errors
    /// Engine and memory come back, quiet, with the reason.
    pub fn arm(
        mut engine: Box<dyn Engine>,
        memory: DmaMap,
        slots: &Slots,
    ) -> Result<Self, Box<Refused>> {
        match engine.arm(slots) {
            Ok(()) => Ok(Self {
                parts: ManuallyDrop::new(Idle {
                    engine,
                    memory: Some(memory),
                    stuck: None,
                }),
            }),
            Err(error) => {
                let idle = Idle {
                    engine,
                    memory: Some(memory),
                    stuck: None,
                };
                Err(Box::new(Refused {
                    idle: idle.quiet(PATIENCE),
                    error,
                }))
            }
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

    /// [`Engine::lapsed`].
    pub fn lapsed(&mut self) -> Result<u64, EngineError> {
        self.parts.engine.lapsed()
    }

    /// [`Engine::wait`].
    pub fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.parts.engine.wait(limit)
    }

    /// Stops the engine: when this returns no transfer is in flight.
    pub fn stop(self, patience: Duration) -> Idle {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and its drop, which takes the parts too, does not run.
        let parts = unsafe { ManuallyDrop::take(&mut this.parts) };
        parts.quiet(patience)
    }
}

impl Idle {
    /// The same with nothing in flight.
    fn quiet(mut self, patience: Duration) -> Self {
        if let Err(stuck) = self.engine.quiesce(patience) {
            match self.engine.device().cut_off() {
                Ok(()) => tracing::warn!("{stuck}; its device was cut off the bus and reset"),
                Err(error) => {
                    tracing::error!("{stuck}; {error}: its memory is kept until this process ends");
                    if let Some(memory) = self.memory.take() {
                        memory.keep();
                    }
                }
            }
            self.stuck = Some(stuck);
        }
        self
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: this runs once, and `stop`, which takes the parts as well, keeps it from running.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        drop(parts.quiet(PATIENCE));
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
