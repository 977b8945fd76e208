//! Register steps of the configuration that run when an engine starts and stops.

use super::device::{Device, DeviceError, GONE, Registers};
use super::keys::{RegisterPhase, RegisterStep};
use super::wait::{SlowWait, wait_until};
use daq_core::dma::{
    ArmError, Caps, Completions, DmaDevice, Engine, EngineError, EngineInfo, QuiesceTimeout, Slots,
    StopCheck,
};
use std::sync::Arc;
use std::time::Duration;

/// One register step with the registers that it accesses.
struct Action {
    registers: Arc<dyn Registers>,
    step: RegisterStep,
}

/// Reason why a register step did not end.
enum Unfinished {
    /// The last value that was read.
    TimedOut(u32),
    /// The pipeline stops.
    Cancelled,
}

impl Action {
    /// Writes the register, or waits at most `limit` until the register has the expected value. `is_stopping` ends the wait.
    fn run(&self, limit: Duration, is_stopping: &dyn Fn() -> bool) -> Result<(), Unfinished> {
        let RegisterStep {
            bar,
            offset,
            value,
            mask,
            ..
        } = self.step;
        let mask = mask.unwrap_or(u32::MAX);
        let Some(wait) = self.step.wait else {
            let kept = if mask == u32::MAX {
                0
            } else {
                self.registers.read(offset) & !mask
            };
            self.registers.write(offset, kept | (value & mask));
            return Ok(());
        };
        let (mut read, mut is_cancelled) = (0, false);
        let mut slow = SlowWait::start();
        let ended = wait_until(wait.0.min(limit), || {
            read = self.registers.read(offset);
            if read & mask == value & mask || read == GONE {
                return true;
            }
            slow.log(|| {
                format!(
                    "register {offset:#x} of BAR {bar}, which reads {read:#x}, expected {value:#x}"
                )
            });
            is_cancelled = is_stopping();
            is_cancelled
        });
        if is_cancelled {
            return Err(Unfinished::Cancelled);
        }
        if ended && (read != GONE || mask & value == GONE) {
            Ok(())
        } else {
            Err(Unfinished::TimedOut(read))
        }
    }
}

/// An engine with register steps. The steps start the design after the engine is armed, and stop the design before or after the
/// engine is stopped.
pub struct EngineWithRegisters {
    engine: Box<dyn Engine>,
    start: Vec<Action>,
    stop: Vec<Action>,
    stopped: Vec<Action>,
    is_stopping: StopCheck,
}

impl EngineWithRegisters {
    /// Adds `steps` on registers of `device` to `engine`. Returns `engine` itself if there are no steps.
    pub fn wrap(
        engine: Box<dyn Engine>,
        device: &dyn Device,
        steps: &[RegisterStep],
    ) -> Result<Box<dyn Engine>, DeviceError> {
        if steps.is_empty() {
            return Ok(engine);
        }
        let actions = |when: RegisterPhase| {
            let selected = steps.iter().filter(|step| step.when == when);
            selected
                .map(|step| {
                    let registers = device.registers(step.bar)?;
                    let bytes = registers.bytes();
                    if step.offset + 4 > bytes {
                        let RegisterStep { bar, offset, .. } = step;
                        return Err(DeviceError::new(
                            device.name(),
                            format!(
                                "`registers` contains offset {offset:#x} of BAR {bar}, but the BAR has {bytes:#x} bytes: correct `bar` or `offset`"
                            ),
                        ));
                    }
                    Ok(Action {
                        registers,
                        step: step.clone(),
                    })
                })
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Box::new(Self {
            start: actions(RegisterPhase::Start)?,
            stop: actions(RegisterPhase::Stop)?,
            stopped: actions(RegisterPhase::Stopped)?,
            is_stopping: Arc::new(|| false),
            engine,
        }))
    }
}

impl EngineWithRegisters {
    /// Returns the error of a start step that did not end.
    fn not_started(&self, action: &Action, why: &Unfinished) -> EngineError {
        let device = self.engine.device().name().to_owned();
        let read = match why {
            Unfinished::Cancelled => return EngineError::Cancelled { device },
            Unfinished::TimedOut(GONE) => return EngineError::Gone { device },
            Unfinished::TimedOut(read) => read,
        };
        let RegisterStep {
            bar,
            offset,
            value,
            wait,
            ..
        } = &action.step;
        let waited = wait.unwrap_or_default();
        let why = format!(
            "start step timed out: register {offset:#x} of BAR {bar} reads {read:#x} after {waited}, expected {value:#x}: check that the design is clocked and out of reset, correct `value` and `mask`, or raise `wait`"
        );
        EngineError::Unfit { device, why }
    }

    /// Runs all steps of a stop. A failed step is logged; the remaining steps still run.
    fn run_stop_steps(&self, actions: &[Action], timeout: Duration) {
        for action in actions {
            if let Err(Unfinished::TimedOut(read)) = action.run(timeout, &|| false) {
                let RegisterStep {
                    bar, offset, value, ..
                } = &action.step;
                tracing::warn!(
                    "{}: stop step timed out: register {offset:#x} of BAR {bar} reads {read:#x}, expected {value:#x}",
                    self.engine.device().name()
                );
            }
        }
    }
}

// SAFETY: `engine` fulfils the contract; the register steps are the user's own and belong to the design, not to the
// engine. A step that fails after `engine` was armed is `ArmError::Started`.
unsafe impl Engine for EngineWithRegisters {
    fn info(&self) -> &'static EngineInfo {
        self.engine.info()
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        self.engine.device()
    }

    fn caps(&self) -> Caps {
        self.engine.caps()
    }

    fn stop_when(&mut self, is_stopping: StopCheck) {
        self.engine.stop_when(is_stopping.clone());
        self.is_stopping = is_stopping;
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.engine.arm(slots) }?;
        for action in &self.start {
            (action.run(Duration::MAX, &*self.is_stopping))
                .map_err(|why| ArmError::Started(self.not_started(action, &why)))?;
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.engine.poll(done)
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.engine.poll_stopped(done)
    }

    fn credit(&mut self, slots: u32) {
        self.engine.credit(slots);
    }

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        self.engine.overwritten()
    }

    fn overwritten_stopped(&mut self) -> Result<u64, EngineError> {
        self.engine.overwritten_stopped()
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        self.engine.wait(limit)
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        self.run_stop_steps(&self.stop, timeout);
        let stopped = self.engine.quiesce(timeout);
        // Also after a quiesce timeout: the reset that follows may not reset the design.
        self.run_stop_steps(&self.stopped, timeout);
        stopped
    }
}
