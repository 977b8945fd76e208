//! LitePCIe: the DMA writer of the open-source LitePCIe core (`litepcie/frontend/dma.py` of release 2024.12).
//!
//! The writer cycles through a table of slot addresses. It has no backpressure, so frames may be overwritten. A counter
//! shows its progress, and each poll reads it once.
//!
//! # The counter
//! `loop_status` contains the index of the last finished slot and the number of passes through the table (16 bits).
//! Both are 0 before the first slot is finished. With N slots, `count · N + index` is one less than the number of
//! finished transfers, or 0 if no transfer is finished. This module uses the value as the number of finished transfers.
//! The last finished transfer is therefore reported only after the next one. The delay also covers the last packet of a
//! transfer, because the index advances when that packet is sent, not when it arrives.
//!
//! The value wraps at 65536 · N and is extended. 65536 passes over at least four slots of 512 bytes are 128 MiB, which
//! takes at least 10 ms. If polls are less frequent, all these frames are overwritten anyway, and multiples of 65536
//! passes are not counted. A reset of the card also clears the counter, but disables the writer. So `enable` is read when the
//! counter decreases, and from time to time while it does not change.
//!
//! # The stop
//! Frames that were finished but not polled are complete and are reported after the stop. The reasons follow from the
//! signals of `LitePCIeDMAWriter`, its `table` and its `splitter`:
//! - When disabled (`enable` low), the `fsm` still finishes the current packet (`MEM-WR`), whose data is complete, and
//!   then stays in `IDLE`. In this state it asserts `splitter.reset`, so no descriptor is accepted
//!   (`splitter.sink.ready`).
//! - `_enable.storage[1]` shows `fsm.ongoing("IDLE")` with a delay of one cycle, which is too short to be visible on
//!   the bus. While enabled, the bit is also high between two packets. While disabled, it means that `loop_index` and
//!   `loop_count` have their final values.
//! - `loop_index` and `loop_count` are cleared only by `table.reset` (a write to the register `reset`), not by
//!   `enable`. They are therefore read after disabling and before the reset.
//! - A descriptor leaves the table with the last packet of its slot. A partly written slot is not counted, and there is
//!   at most one such slot.
//!
//! Let L be the value of `count · N + index` at the stop. Then L + 1 transfers are finished, including the last one.
//! The gateware does not show two facts:
//! - At L = 0, whether the first transfer was finished (`loop_first` is not a register). It is treated as not finished:
//!   a run that stops before its second transfer is finished may have written one more frame than it reports.
//! - Whether the next transfer was started. It is treated as started: if a whole pass was not polled, its oldest
//!   transfer is counted as overrun even if it was not overwritten. This counts at most one transfer too many.
//!
//! Older cores do not report when they are idle, and it is not specified that they can be disabled within a packet.
//! Their table is therefore reset first, while the writer runs, which clears the counter. It is unknown whether frames
//! that were not polled before are complete, so all of them are counted as overrun. The counted loss is an upper bound.

mod csr;
#[cfg(test)]
mod tests;

use crate::fpga::device::{GONE, Interrupt, Registers, halves};
use crate::fpga::engines::{
    Count, FpgaEngine, IdleCheck, Opening, check_slots, quiesce_timeout, report_full_slots,
    too_few_slots, unfit, wait_until,
};
use crate::fpga::keys::{CompletionMode, DeviceKey, FpgaConfig};
use crate::fpga::register_table::Window;
use csr::{ADDRESS_BITS, Map, Msi};
use daq_core::check::{ContentCheck, FileUse, NamedFile};
use daq_core::config::Problem;
use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Maximum packet size in bytes. A packet must not cross a 4 KiB boundary, and the core splits a slot into packets from
/// its start.
const ALIGNMENT: usize = 512;
/// Maximum size of a slot in bytes: lengths have 24 bits.
const MAX_TRANSFER: usize = (1 << 24) - ALIGNMENT;
/// Default number of entries in the core's table.
const TABLE: usize = 256;
/// Number of slots after the last reported one that the core may be writing: the finished one that is not reported yet,
/// the next one, and one more that older cores do not report.
const AHEAD: u64 = MIN_SLOTS as u64 - 1;
/// Minimum number of slots of a free-running engine.
const MIN_SLOTS: usize = 4;
/// Number of slots that may be overwritten after the core is disabled and idle: only the slot that may be partly written.
const HALF_DONE: u64 = 1;
/// Time for the core to abort its current work after its table was reset, and to send its last packet.
const SETTLE_TIME: Duration = Duration::from_millis(1);
/// Timeout to stop a writer that was left running by another program.
const LEFT_RUNNING: Duration = Duration::from_millis(100);

/// Registers of a writer.
mod register {
    use crate::fpga::register_table::{Field, Register};

    /// Bit 0: enable. Bit 1 reads as 1 while no write is in progress, in cores that report it.
    pub(super) const ENABLE: Register = Register::read_write("enable", 0x00);
    /// Length and flags of a table entry. Bits 0 to 23: length. Bit 24: no interrupt. Bit 25: the slot does not end at the end
    /// of a packet.
    pub(super) const VALUE_HIGH: Register = Register::read_write("table_value high", 0x04);
    /// Low half of the address in a table entry.
    pub(super) const VALUE_LOW: Register = Register::read_write("table_value low", 0x08);
    /// High half of the address in a table entry. A write adds the entry to the table.
    pub(super) const PUSH: Register = Register::write_only("table_we", 0x0c);
    /// With the value 1, the table is cyclic (loop mode).
    pub(super) const LOOP: Register = Register::read_write("table_loop_prog_n", 0x10);
    /// Progress of the writer.
    pub(super) const LOOP_STATUS: Register = Register::read_only("table_loop_status", 0x14);
    /// Field of [`LOOP_STATUS`]: index of the last finished slot.
    pub(super) const INDEX: Field = Field::bits(0, 16);
    /// Field of [`LOOP_STATUS`]: number of passes through the table.
    pub(super) const PASSES: Field = Field::bits(16, 16);
    /// A write empties the table.
    pub(super) const RESET: Register = Register::write_only("table_reset", 0x1c);
}

/// Bit of [`register::ENABLE`]: the writer is enabled.
const ON: u32 = 1;
/// Bit of [`register::ENABLE`]: no write is in progress.
const IDLE: u32 = 1 << 1;
/// Bit of a table entry: a slot is always filled completely, independently of packets. The core does not report the
/// length of a partly filled slot.
const FULL_SLOT: u32 = 1 << 25;
/// Bit of a table entry: no interrupt at the end of the slot.
const NO_INTERRUPT: u32 = 1 << 24;
/// Modulus of the pass counter.
const ROUNDS: u64 = 1 << 16;

const FAULTS: &[&str] = &["index-beyond-table", "count-went-back", "disabled"];
/// Index in [`FAULTS`]: the writer is not enabled, because the card was reset or another program stopped the writer.
const DISABLED: usize = 2;

/// Why a design without interrupt registers cannot use interrupts.
const NO_MSI: &str = "the csr.csv lists no `pcie_msi_enable`: set `completion = \"poll\"`";

/// The keys of the engine `litepcie`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LitePcieKeys {
    /// Path of the `csr.csv` file from the build of the design. It contains the register addresses.
    pub csr: Option<PathBuf>,
    /// Offset of the DMA writer's registers in BAR 0, as an alternative to `csr`.
    pub base: Option<u64>,
}

/// The writer's interrupt.
struct WriterInterrupt {
    interrupt: Interrupt,
    msi: Msi,
}

/// The writer of one channel.
pub struct Writer {
    device: Arc<dyn DmaDevice>,
    registers: Arc<dyn Registers>,
    window: Window,
    map: Map,
    signal: Option<WriterInterrupt>,
    /// Number and size of the slots at the last start.
    slots: u64,
    slot_bytes: usize,
    /// Whether the core reports when it is idle, or `None` until this is known.
    reports_idle: Option<bool>,
    count: Count,
    /// Number of finished transfers at the stop.
    end: u64,
    /// Number of slots after the finished ones that may have been written partly or completely; `None` if unknown.
    ahead: Option<u64>,
    /// Number of transfers that were reported or skipped.
    reported: u64,
    /// When the idle writer is checked.
    idle: IdleCheck,
}

impl FpgaEngine for Writer {
    const INFO: EngineInfo = EngineInfo {
        name: "litepcie",
        summary: "the DMA writer of LitePCIe",
        limits: SlotLimits {
            alignment: ALIGNMENT,
            max_slot: MAX_TRANSFER,
            max_slots: TABLE,
            preferred: 64 << 10,
        },
        faults: FAULTS,
        supports_backpressure: false,
        // A transfer is reported only after the next one, as explained above.
        order: CompletionOrder::AfterPayload,
    };

    type Keys = LitePcieKeys;

    fn problems(config: &FpgaConfig, keys: &LitePcieKeys) -> Vec<Problem> {
        let mut found = Vec::new();
        match (&keys.csr, keys.base) {
            // The emulated device provides its register addresses.
            (None, None) if config.device == DeviceKey::Emulated("litepcie".to_owned()) => {
                if config.channel > 0 {
                    let message = format!("the emulated card has no channel {}", config.channel);
                    found.push(Problem::at("channel", message).help("use channel = 0"));
                }
            }
            (None, None) => found.push(
                Problem::at(
                    "csr",
                    "the register addresses of the design are not configured",
                )
                .help("add `csr = \"csr.csv\"`, the file from the build of the design"),
            ),
            (Some(_), Some(_)) => found.push(
                Problem::at("base", "`csr` and `base` are mutually exclusive")
                    .help("remove one of them"),
            ),
            (None, Some(base)) => {
                if !base.is_multiple_of(4) {
                    let message = format!("{base:#x} is not aligned to 4 bytes");
                    found.push(Problem::at("base", message).help("use a multiple of 4"));
                }
                if config.completion == CompletionMode::Interrupt {
                    let message = "interrupts need register addresses that `base` does not give";
                    found.push(
                        Problem::at("completion", message).help("use `csr` instead of `base`"),
                    );
                }
            }
            (Some(_), None) => {}
        }
        found
    }

    fn min_slots(_: &LitePcieKeys) -> usize {
        MIN_SLOTS
    }

    fn files(config: &FpgaConfig, keys: &LitePcieKeys) -> Vec<NamedFile> {
        let (channel, needs_msi) = (
            config.channel,
            config.completion == CompletionMode::Interrupt,
        );
        let check: ContentCheck = Arc::new(move |bytes| {
            let map = Map::read(&String::from_utf8_lossy(bytes), channel)?;
            if needs_msi && map.msi.is_none() {
                return Err(NO_MSI.to_owned());
            }
            Ok(())
        });
        let csr = keys.csr.iter();
        csr.map(|csr| NamedFile::new("csr", csr, FileUse::Reads).with_content(check.clone()))
            .collect()
    }

    fn open(opening: &Opening<LitePcieKeys>) -> Result<Self, EngineError> {
        let Opening {
            device,
            config,
            keys,
            directory,
        } = opening;
        let name = device.name();
        let map = match (&keys.csr, keys.base) {
            (Some(file), _) => {
                let path = directory.join(file);
                let fail = |why: String| unfit(name, format!("{}: {why}", path.display()));
                let text = daq_core::file::read(&path).map_err(|error| fail(error.to_string()))?;
                let text = String::from_utf8_lossy(&text);
                Map::read(&text, config.channel).map_err(fail)?
            }
            (None, None) if let Some(csr) = device.csr() => {
                Map::read(csr, config.channel).map_err(|why| unfit(name, why))?
            }
            (None, base) => Map {
                writer: base.unwrap_or(0),
                msi: None,
                address_bits: ADDRESS_BITS,
            },
        };
        let registers = device.registers(0)?;
        let bytes = registers.bytes();
        let inside = |what: &str, at: u64, length: u64| {
            let is_inside = at.checked_add(length).is_some_and(|end| end <= bytes);
            if is_inside && at.is_multiple_of(4) {
                return Ok(());
            }
            Err(unfit(
                name,
                format!(
                    "the registers of {what} at {at:#x} are beyond the {bytes:#x} bytes of BAR 0 or not aligned: check that this csr.csv belongs to the loaded design"
                ),
            ))
        };
        inside("the writer", map.writer, register::RESET.offset + 4)?;
        if let Some(Msi { enable, clear, .. }) = map.msi {
            inside("interrupts", enable, 4)?;
            inside("interrupts", clear.unwrap_or(enable), 4)?;
        }
        let window = Window::new(&registers, map.writer);
        let read = window.read(register::LOOP);
        if read == GONE {
            return Err(EngineError::Gone {
                device: name.to_owned(),
            });
        }
        // The loop register is the only register of the writer with a single bit, so it identifies the writer.
        if read > 1 {
            return Err(unfit(
                name,
                format!(
                    "no LitePCIe writer at {:#x} of BAR 0: its register at {:#x} reads {read:#x}, expected 0 or 1; check that this csr.csv belongs to the loaded design",
                    map.writer,
                    window.offset(register::LOOP)
                ),
            ));
        }
        let signal = match config.completion {
            CompletionMode::Poll => None,
            CompletionMode::Interrupt => {
                let Some(msi) = map.msi else {
                    return Err(unfit(name, NO_MSI));
                };
                // A core with a register that acknowledges interrupts uses one vector for all of them.
                let vector = if msi.clear.is_some() {
                    0
                } else {
                    msi.bit as usize
                };
                let interrupt = device.interrupts(vector + 1)?.swap_remove(vector);
                Some(WriterInterrupt { interrupt, msi })
            }
        };
        Ok(Self {
            registers,
            window,
            map,
            signal,
            slots: 1,
            slot_bytes: 0,
            reports_idle: None,
            count: Count::new(ROUNDS),
            end: 0,
            ahead: None,
            reported: 0,
            idle: IdleCheck::start(),
            device: device.clone().as_dma(),
        })
    }
}

impl Writer {
    fn faulted(&self, fault: usize) -> EngineError {
        EngineError::Faulted {
            device: self.device.name().to_owned(),
            engine: Self::INFO.name,
            faults: vec![FAULTS[fault]],
        }
    }

    /// Reads the device and returns the number of transfers that are certainly finished.
    ///
    /// The counter decreases once in 65536 passes, and when the card is reset. A reset also disables the writer.
    fn finished(&self) -> Result<u64, EngineError> {
        let finished = self.progress()?;
        let modulus = ROUNDS * self.slots;
        if finished % modulus < self.count.total() % modulus {
            self.check_enabled()?;
        }
        // A step of more than half of the range means that the count went back, because the card was reset or
        // reprogrammed.
        if finished - self.count.total() > modulus / 2 {
            return Err(self.faulted(1));
        }
        Ok(finished)
    }

    /// Returns an error if the writer is not enabled.
    fn check_enabled(&self) -> Result<(), EngineError> {
        match self.window.read(register::ENABLE) {
            GONE => Err(EngineError::Gone {
                device: self.device.name().to_owned(),
            }),
            enable if enable & ON == 0 => Err(self.faulted(DISABLED)),
            _ => Ok(()),
        }
    }

    /// Reads the counter and extends it.
    fn progress(&self) -> Result<u64, EngineError> {
        let status = self.window.read(register::LOOP_STATUS);
        if status == GONE {
            return Err(EngineError::Gone {
                device: self.device.name().to_owned(),
            });
        }
        let (index, count) = (register::INDEX.of(status), register::PASSES.of(status));
        let (index, count) = (u64::from(index), u64::from(count));
        if index >= self.slots {
            return Err(self.faulted(0));
        }
        Ok(self.count.peek(count * self.slots + index))
    }

    /// Returns the number of transfers that may be overwritten if `finished` transfers are finished; all of them if the
    /// progress is unknown.
    const fn overwritten_at(&self, finished: u64) -> u64 {
        match self.ahead {
            Some(ahead) => (finished + ahead).saturating_sub(self.slots),
            None => finished,
        }
    }

    /// Reports the transfers below `finished` that were not reported yet.
    fn report(&mut self, finished: u64, done: &mut Completions) {
        let intact = self.overwritten_at(finished)..finished;
        report_full_slots(&mut self.reported, intact, self.slot_bytes, done);
    }

    /// Disables the writer, records its progress if `counts`, and only then empties its table. If the writer does not
    /// become idle in time, the error is the last value of the enable register.
    fn end(&mut self, timeout: Duration, counts: bool) -> Result<(), u32> {
        self.window.write(register::ENABLE, 0);
        let idle = self.wait_idle(timeout);
        // The idle writer has passed on its last packet (`port.source.ready`), but the packet may still be inside the
        // core. The replies to reads may use a separate path there. Once the packet has left the core, the read below
        // waits for its arrival.
        std::thread::sleep(SETTLE_TIME);
        if counts && let Ok(finished) = self.progress() {
            let finished = self.count.advance(finished);
            (self.end, self.ahead) = match (idle, finished) {
                (Ok(()), 0) => (0, Some(HALF_DONE + 1)),
                (Ok(()), _) => (finished + 1, Some(HALF_DONE)),
                (Err(_), _) => (finished, Some(AHEAD)),
            };
        }
        self.window.write(register::LOOP, 0);
        self.window.write(register::RESET, 1);
        idle
    }

    /// Stops a writer of any version and empties its table. This clears the counter before the writer has stopped.
    fn halt(&self) {
        self.window.write(register::LOOP, 0);
        self.window.write(register::RESET, 1);
        std::thread::sleep(SETTLE_TIME);
        self.window.write(register::ENABLE, 0);
        self.window.write(register::RESET, 1);
    }

    /// Waits until the writer is idle, in a core that reports it. The error is the last value of the register.
    fn wait_idle(&self, timeout: Duration) -> Result<(), u32> {
        let mut enable = 0;
        let is_idle = wait_until(timeout, || {
            enable = self.window.read(register::ENABLE);
            enable == GONE || self.reports_idle == Some(false) || enable & IDLE != 0
        });
        if is_idle { Ok(()) } else { Err(enable) }
    }

    /// Enables or disables the writer's interrupt.
    fn set_interrupt(&self, is_on: bool) {
        let Some(WriterInterrupt { msi, .. }) = &self.signal else {
            return;
        };
        let (bit, others) = (1 << msi.bit, self.registers.read(msi.enable));
        let value = if is_on { others | bit } else { others & !bit };
        self.registers.write(msi.enable, value);
    }

    /// Programs the table of slots. The writer stays disabled.
    fn program(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let name = self.device.name();
        check_slots(name, slots, &self.caps(), self.map.address_bits)?;
        let count = slots.addresses.len();
        if count as u64 <= AHEAD {
            return Err(too_few_slots(name, count, AHEAD));
        }
        let enable = self.window.read(register::ENABLE);
        if enable != GONE && enable & ON != 0 {
            self.halt();
        }
        self.window.write(register::ENABLE, 0);
        self.window.write(register::RESET, 1);
        self.window.write(register::LOOP, 0);
        let idle = self.wait_idle(LEFT_RUNNING);
        if self.window.read(register::ENABLE) == GONE {
            let device = self.device.name().to_owned();
            return Err(EngineError::Gone { device });
        }
        if let (Err(enable), Some(true)) = (idle, self.reports_idle) {
            return Err(unfit(
                self.device.name(),
                format!(
                    "the writer is already busy ({enable:#x} at {:#x}): reset the card",
                    self.map.writer
                ),
            ));
        }
        // A core that has not reported idle after this wait never reports it.
        self.reports_idle.get_or_insert(idle.is_ok());
        let entry = u32::try_from(slots.bytes).unwrap_or(0) | FULL_SLOT;
        let entry = entry
            | if self.signal.is_some() {
                0
            } else {
                NO_INTERRUPT
            };
        for address in slots.in_order() {
            let (low, high) = halves(address);
            self.window.write(register::VALUE_HIGH, entry);
            self.window.write(register::VALUE_LOW, low);
            self.window.write(register::PUSH, high);
        }
        self.slots = count as u64;
        self.slot_bytes = slots.bytes;
        self.count = Count::new(ROUNDS * self.slots);
        (self.end, self.ahead) = (0, Some(AHEAD));
        self.reported = 0;
        self.idle.restart();
        self.set_interrupt(true);
        self.window.write(register::LOOP, 1);
        Ok(())
    }
}

// SAFETY: the table has one entry per slot, with the length of the slot, and is filled only by `arm`. `arm` enables the
// writer as its last step. `quiesce` disables the writer and empties the table, and waits until the writer is idle.
unsafe impl Engine for Writer {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.program(slots).map_err(ArmError::Stopped)?;
        self.window.write(register::ENABLE, ON);
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let before = self.count.total();
        let finished = self.finished()?;
        let finished = self.count.advance(finished);
        self.report(finished, done);
        if finished > before {
            self.idle.restart();
        } else if self.idle.is_due() {
            self.check_enabled()?;
        }
        Ok(())
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.report(self.end, done);
        Ok(())
    }

    fn credit(&mut self, _: u32) {}

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        Ok(self.overwritten_at(self.finished()?))
    }

    fn overwritten_stopped(&mut self) -> Result<u64, EngineError> {
        Ok(self.overwritten_at(self.end))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let Some(WriterInterrupt { interrupt, msi }) = &self.signal else {
            return Ok(false);
        };
        if interrupt.wait(limit)
            && let Some(clear) = msi.clear
        {
            self.registers.write(clear, 1 << msi.bit);
        }
        Ok(true)
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        // The counter of a writer that was reset is not the number of finished transfers.
        let finished = self.finished();
        if let Ok(finished) = finished {
            self.count.advance(finished);
        }
        (self.end, self.ahead) = (self.count.total(), None);
        let idle = if self.reports_idle == Some(true) {
            self.end(timeout, finished.is_ok())
        } else {
            self.halt();
            // The reads of this wait also ensure that earlier writes of the device have arrived.
            self.wait_idle(timeout)
        };
        self.set_interrupt(false);
        idle.map_err(|_| quiesce_timeout(self, timeout))
    }
}
