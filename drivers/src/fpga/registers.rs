//! Register steps of the configuration that run when an engine starts and stops.

use super::config::{RegisterPhase, RegisterStep};
use super::device::{Device, DeviceError, GONE, Registers};
use super::engines::wait_until;
use daq_core::dma::{
    ArmError, Caps, Completions, DmaDevice, Engine, EngineError, EngineInfo, QuiesceTimeout, Slots,
};
use std::sync::Arc;
use std::time::Duration;

/// One register step with the registers that it accesses.
struct Action {
    registers: Arc<dyn Registers>,
    step: RegisterStep,
}

impl Action {
    /// Writes the register, or waits at most `limit` until the register has the expected value. The error is the last value
    /// that was read.
    fn run(&self, limit: Duration) -> Result<(), u32> {
        let RegisterStep {
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
        let mut read = 0;
        let seen = wait_until(wait.0.min(limit), || {
            read = self.registers.read(offset);
            read & mask == value & mask || read == GONE
        });
        if seen && (read != GONE || mask & value == GONE) {
            Ok(())
        } else {
            Err(read)
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
            engine,
        }))
    }
}

impl EngineWithRegisters {
    /// Runs all steps of a stop. A failed step is logged; the remaining steps still run.
    fn run_stop_steps(&self, actions: &[Action], timeout: Duration) {
        for action in actions {
            if let Err(read) = action.run(timeout) {
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

    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn faults(&self) -> &'static [&'static str] {
        self.engine.faults()
    }

    fn caps(&self) -> Caps {
        self.engine.caps()
    }

    fn writes_past_length(&self) -> bool {
        self.engine.writes_past_length()
    }

    fn packet_bytes(&self) -> usize {
        self.engine.packet_bytes()
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.engine.arm(slots) }?;
        for action in &self.start {
            action.run(Duration::MAX).map_err(|read| {
                let device = self.engine.device().name().to_owned();
                if read == GONE {
                    return ArmError::Started(EngineError::Gone { device });
                }
                let RegisterStep { bar, offset, value, wait, .. } = &action.step;
                let waited = wait.unwrap_or_default();
                let why = format!(
                        "start step timed out: register {offset:#x} of BAR {bar} reads {read:#x} after {waited}, expected {value:#x}: check that the design is clocked and out of reset, correct `value` and `mask`, or raise `wait`"
                );
                ArmError::Started(EngineError::Unfit { device, why })
            })?;
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
