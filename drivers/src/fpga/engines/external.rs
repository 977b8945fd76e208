//! `external`: an engine that daq does not program. The card keeps its vendor's driver or has none. A user-supplied
//! command receives the addresses of the slots and starts and stops the card.
//!
//! ```text
//!   daq ──▶ command ◀── JSON: slots, count, credits          addresses from daq_dmabuf
//!              │ vendor's interface (driver, library, registers)
//!              ▼
//!   card ──DMA──▶ slots in order, and the count after each slot
//! ```
//! The design fills the slots in order and wraps around. After each slot it writes the total number of filled slots,
//! 64 bits, little-endian, to a page in host memory. The count must not overtake the payload: both must be posted writes
//! without relaxed ordering. With backpressure the design reads the number of slots that it may fill, and waits.

mod command;
#[cfg(test)]
mod tests;

pub(super) use command::{Action, CommandError, CommandInput, ExternalCommand};

use crate::fpga::device::{Device, DeviceError};
use crate::fpga::engines::{
    FpgaEngine, Opening, check_slots, quiesce_timeout, report_full_slots, unfit,
};
use crate::fpga::keys::{CompletionMode, DeviceKey, FpgaConfig};
use crate::fpga::transports::kernel_driver::KernelDriverDevice;
use crate::fpga::transports::{self, Open};
use daq_core::check::{FileUse, NamedFile};
use daq_core::config::Problem;
use daq_core::dma::{
    ArmError, Caps, CompletionOrder, Completions, DmaBuffer, DmaDevice, Engine, EngineError,
    EngineInfo, QuiesceTimeout, SlotLimits, Slots, StopCheck,
};
use daq_core::units::Span;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

const ALIGNMENT: usize = 64;
const MAX_SLOT: usize = 1 << 30;
const MAX_SLOTS: usize = 1 << 16;
/// Default timeout of the command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Size in bytes of the page with the two counters, followed by the offsets of the counters in different cache lines.
const PAGE: usize = 4096;
const COUNT: usize = 0;
const CREDITS: usize = 64;
/// Number of transfers after the counted ones that may be in progress, because the card writes the count after each transfer.
const MAX_AHEAD: u64 = 1;
/// Number of polls between two checks that the addresses are still valid.
const POLLS_PER_CHECK: u32 = 64;

const FAULTS: &[&str] = &["count-went-back", "more-than-credited"];

/// The keys of the engine `external`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExternalKeys {
    /// True applies backpressure, so the card waits while no slot is free. False lets the card
    /// overwrite frames; frames that were not copied in time are counted as `overrun`. Default: true for `xdma`, false
    /// for `external`.
    pub credits: Option<bool>,
    /// The program that starts and stops the card's engine, with its arguments. A path that contains `/` is
    /// relative to the directory of the configuration file.
    pub command: Option<Vec<String>>,
    /// Maximum run time of the command. Default: 2 s.
    pub timeout: Option<Span>,
    /// Width of the engine's DMA addresses in bits, for a card without a driver. Default: 32. A driver sets the
    /// width itself.
    pub address_bits: Option<u16>,
}

/// An engine that a user-supplied command programs.
pub(super) struct ExternalEngine {
    device: Arc<dyn Device>,
    dma: Arc<dyn DmaDevice>,
    command: ExternalCommand,
    words: DmaBuffer,
    supports_backpressure: bool,
    slots: Slots,
    /// Number of finished transfers, number of reported transfers, and number of transfers with a credit.
    finished: u64,
    reported: u64,
    credited: u64,
    polls: u32,
    is_stopping: StopCheck,
}

impl FpgaEngine for ExternalEngine {
    const INFO: EngineInfo = EngineInfo {
        name: "external",
        summary: "a card with its own driver, started and stopped by your program",
        limits: SlotLimits {
            alignment: ALIGNMENT,
            max_slot: MAX_SLOT,
            max_slots: MAX_SLOTS,
            preferred: 64 << 10,
        },
        faults: FAULTS,
        supports_backpressure: false,
        order: CompletionOrder::AfterPayload,
    };

    type Keys = ExternalKeys;

    fn problems(config: &FpgaConfig, keys: &ExternalKeys) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: &str, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        must(
            matches!(config.device, DeviceKey::Pci(_)),
            "device",
            "`external` needs a PCI device",
            "use the PCI address of the card, as printed by lspci -D",
        );
        must(
            keys.command
                .as_ref()
                .is_some_and(|words| words.first().is_some_and(|word| !word.is_empty())),
            "command",
            "`external` needs the program that starts and stops the card",
            "add it: command = [\"./program-card\"]",
        );
        must(
            keys.timeout.is_none_or(|timeout| !timeout.0.is_zero()),
            "timeout",
            "`timeout` must be longer than zero",
            "raise `timeout`, or remove this key for the default of 2 s",
        );
        must(
            keys.address_bits
                .is_none_or(|bits| (1..=64).contains(&bits)),
            "address_bits",
            "`address_bits` must be 1 to 64",
            "use the width of the engine's DMA addresses, usually 32 or 64",
        );
        must(
            config.channel == 0,
            "channel",
            "`external` does not support channels",
            "pass the channel to the command as an argument",
        );
        must(
            config.completion == CompletionMode::Poll,
            "completion",
            "`external` does not support interrupts, which belong to the card's driver",
            "remove `completion`",
        );
        must(
            config.registers.is_empty(),
            "registers",
            "`external` cannot write registers, which belong to the card's driver",
            "let the program in `command` write the registers",
        );
        found
    }

    fn files(_: &FpgaConfig, keys: &ExternalKeys) -> Vec<NamedFile> {
        let program = keys.command.iter().filter_map(|words| words.first());
        program
            .filter(|program| !program.is_empty())
            .map(|program| NamedFile::new("command", program, FileUse::Runs))
            .collect()
    }

    fn supports_backpressure(keys: &ExternalKeys) -> bool {
        keys.credits == Some(true)
    }

    fn open_device(
        config: &FpgaConfig,
        keys: &ExternalKeys,
        open: &Open,
    ) -> Result<Arc<dyn Device>, DeviceError> {
        match &config.device {
            DeviceKey::Pci(address) => Ok(KernelDriverDevice::open(address, keys.address_bits)?),
            device => transports::open(device, open),
        }
    }

    fn open(opening: &Opening<ExternalKeys>) -> Result<Self, EngineError> {
        let (device, keys) = (opening.device.clone(), opening.keys);
        let dma = device.clone().as_dma();
        let words = keys.command.as_deref().unwrap_or_default();
        let timeout = keys.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0);
        let command = ExternalCommand::new(words, opening.directory, timeout)
            .ok_or_else(|| unfit(device.name(), "`command` is not configured"))?;
        Ok(Self {
            words: DmaBuffer::new(dma.clone(), PAGE)?,
            command,
            supports_backpressure: Self::supports_backpressure(keys),
            slots: Slots::none(),
            finished: 0,
            reported: 0,
            credited: 0,
            polls: 0,
            is_stopping: Arc::new(|| false),
            device,
            dma,
        })
    }
}

impl ExternalEngine {
    fn run(&self, action: Action, is_stopping: &dyn Fn() -> bool) -> Result<(), CommandError> {
        let base = self.words.address();
        let credits = self.supports_backpressure.then_some(base + CREDITS as u64);
        let count = base + COUNT as u64;
        let name = self.device.name();
        let input = CommandInput::new(action, name, &self.slots, count, credits);
        self.command.run(&input, is_stopping)
    }

    /// Reads the number of finished transfers, which the card writes. Fails if the number went back, or exceeds the number of
    /// credited transfers.
    fn count(&self) -> Result<u64, EngineError> {
        let count = self.words.read64(COUNT);
        let new = count.wrapping_sub(self.finished);
        let fault = if new > u64::MAX / 2 {
            0
        } else if self.supports_backpressure && new > self.credited.wrapping_sub(self.finished) {
            1
        } else {
            return Ok(count);
        };
        Err(EngineError::Faulted {
            device: self.device.name().to_owned(),
            engine: Self::INFO.name,
            faults: vec![FAULTS[fault]],
        })
    }

    /// Returns the number of transfers that may be overwritten when `finished` transfers are finished.
    const fn overwritten_at(&self, finished: u64) -> u64 {
        if self.supports_backpressure {
            return 0;
        }
        (finished.saturating_add(MAX_AHEAD)).saturating_sub(self.slots.addresses.len() as u64)
    }

    /// Checks the slots and the device, and resets the counts. The start command has not run yet.
    fn prepare(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let name = self.device.name();
        check_slots(name, slots, &self.caps(), 64)?;
        if !self.supports_backpressure && slots.addresses.len() as u64 <= MAX_AHEAD {
            let why = "the engine always overwrites the only slot of the ring: set at least 2 `slots` in the ring";
            return Err(unfit(name, why));
        }
        self.device.check()?;
        self.words.clear();
        self.slots = slots.clone();
        (self.finished, self.reported, self.credited, self.polls) = (0, 0, 0, 0);
        Ok(())
    }
}

// SAFETY: the command gets the addresses of the slots, and its documentation requires that the card writes nothing
// else. A stop command that fails is a quiesce timeout, and so is a start command that fails, because it may have
// started the card.
unsafe impl Engine for ExternalEngine {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.dma
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: self.supports_backpressure,
            ..Caps::of(&Self::INFO)
        }
    }

    fn stop_when(&mut self, is_stopping: StopCheck) {
        self.is_stopping = is_stopping;
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.prepare(slots).map_err(ArmError::Stopped)?;
        // A failed command may have started the engine.
        let started = self.run(Action::Start, &*self.is_stopping);
        let name = self.device.name();
        started.map_err(|error| {
            ArmError::Started(match error {
                CommandError::Failed(why) => unfit(name, why),
                CommandError::Cancelled => EngineError::Cancelled {
                    device: name.to_owned(),
                },
            })
        })
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.finished = self.count()?;
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CHECK) {
            self.device.check()?;
        }
        self.poll_stopped(done)
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let intact = self.overwritten_at(self.finished)..self.finished;
        report_full_slots(&mut self.reported, intact, self.slots.bytes, done);
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        if self.supports_backpressure {
            self.credited += u64::from(slots);
            self.words.write64(CREDITS, self.credited);
        }
    }

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        Ok(self.overwritten_at(self.count()?))
    }

    fn overwritten_stopped(&mut self) -> Result<u64, EngineError> {
        Ok(self.overwritten_at(self.finished))
    }

    fn quiesce(&mut self, _: Duration) -> Result<(), QuiesceTimeout> {
        // The configured timeout of the command applies.
        let stopped = self.run(Action::Stop, &|| false);
        // Finished transfers can still be polled. The stop command reports errors.
        if let Ok(finished) = self.count() {
            self.finished = finished;
        }
        stopped.map_err(|error| {
            if let CommandError::Failed(why) = error {
                tracing::warn!("{}: {why}", self.device.name());
            }
            quiesce_timeout(self, self.command.timeout())
        })
    }
}
