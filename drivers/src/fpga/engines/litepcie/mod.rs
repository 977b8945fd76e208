//! LitePCIe: the DMA writer of the open core of that name (`litepcie/frontend/dma.py` of release 2024.12).
//!
//! The writer cycles through a table of slot addresses. It has no backpressure, so frames may be overwritten. A counter
//! shows its progress, and each poll reads it once.
//!
//! # The counter
//! `loop_status` has the index of the slot that was finished last and the number of passes through the table, 16 bits, both
//! 0 before the first. With N slots, `count · N + index` is one less than the number of finished transfers, or 0 if
//! none is finished. This module uses the value as the number of finished transfers, so the last one is reported after
//! the next. The delay also covers its last packet: the index advances when that packet is sent, not when it arrives.
//! The value wraps at 65536 · N and is extended. 65536 rounds of at least four slots of 512 bytes are 128 MiB, which
//! takes at least 10 ms. If polls are rarer, all those frames are overwritten anyway, and multiples of 65536 rounds are
//! not counted.
//!
//! # The stop
//! Frames that were finished but not polled are complete and are reported after the stop. Signals of `LitePCIeDMAWriter`, its
//! `table` and its `splitter`:
//! - Off (`enable` low), the `fsm` still ends the packet that it is in (`MEM-WR`), for which it has all data, and stays
//!   in `IDLE`. There it holds `splitter.reset`, so that no descriptor is accepted any more (`splitter.sink.ready`).
//! - `_enable.storage[1]` shows `fsm.ongoing("IDLE")`, a cycle late, which no access over the bus can see. On, it is also
//!   high between two packets; off, it says that `loop_index` and `loop_count` have their last values.
//! - These are cleared by `table.reset` (a write to the register `reset`) alone: `enable` does not touch them, so they are
//!   read between the two.
//! - A descriptor leaves the table with the last packet of its slot. One that was half done is not counted: its slot is
//!   written in part, and that is the only one that can be.
//!
//! So with L as above, L + 1 transfers are finished, the last one with them. Two things the gateware does not show:
//! - At L = 0, whether the first was finished (`loop_first` is no register). It is treated as not finished: a run that
//!   stops before its second transfer is finished may have written one more frame than it reports.
//! - Whether the next one was begun. It is treated as started: if a whole round was not polled, its oldest transfer is
//!   counted as overrun even if it was not overwritten. That is at most one too many.
//!
//! Older cores do not report when they are idle, and it is not specified that they can be disabled within a packet. Their
//! table is reset first, while the writer runs, which clears the counter. It is unknown whether frames that were not
//! polled by then are complete, so all of them are counted as overrun. That is an upper bound.

mod csr;
#[cfg(test)]
mod tests;

use crate::fpga::config::{CompletionMode, DeviceKey, FpgaConfig};
use crate::fpga::device::{GONE, Interrupt, Registers};
use crate::fpga::engines::{
    self, Count, EngineEntry, Limits, Opening, check_slots, now, unfit, wait_until,
};
use csr::{ADDRESS_BITS, Map, Msi};
use daq_core::config::Problem;
use daq_core::dma::{
    Caps, Completions, DmaDevice, Done, Engine, EngineError, QuiesceTimeout, Slots,
};
use std::sync::Arc;
use std::time::Duration;

/// The registry entry.
pub const ENTRY: EngineEntry = EngineEntry {
    name: "litepcie",
    summary: "the DMA writer of LitePCIe",
    limits: Limits {
        alignment: ALIGNMENT,
        max_slot: MAX_TRANSFER,
        max_slots: TABLE,
        preferred: 64 << 10,
    },
    faults: FAULTS,
    keys: &["csr", "base"],
    supports_backpressure: |_| false,
    rings: |_| false,
    problems,
    recognises: |_| false,
    open: |opening| Ok(Box::new(Writer::open(opening)?)),
};

/// Packets have at most so many bytes and must not cross a 4 KiB boundary: the core cuts a slot from its start.
const ALIGNMENT: usize = 512;
/// Most bytes of a slot: a length of 24 bits.
const MAX_TRANSFER: usize = (1 << 24) - ALIGNMENT;
/// Slots that the core's table holds unless it is built with more.
const TABLE: usize = 256;
/// Slots from the counter on that may be being written: the one that it does not tell yet, the one after, and one more
/// that older cores do not tell.
const AHEAD: u64 = 3;
/// The same once it is off and idle: the one that it may have left half done.
const HALF_DONE: u64 = 1;
/// How long the core takes to give up what it has begun when its table is taken away, and its last packet to leave it.
const SETTLE_TIME: Duration = Duration::from_millis(1);
/// Timeout to stop a writer that was left running by another program.
const LEFT_RUNNING: Duration = Duration::from_millis(100);

/// Registers of a writer.
mod register {
    /// Bit 0: on. Reads bit 1 as 1 while nothing is being written, in cores that tell it.
    pub const ENABLE: u64 = 0x00;
    /// Length [23:0], no interrupt [24], no end at the end of a packet [25].
    pub const VALUE_HIGH: u64 = 0x04;
    /// Address, low half.
    pub const VALUE_LOW: u64 = 0x08;
    /// Address, high half; being written adds the entry to the table.
    pub const PUSH: u64 = 0x0c;
    /// Whether the table is cyclic (loop mode).
    pub const LOOP: u64 = 0x10;
    /// Index [15:0] and count [31:16].
    pub const LOOP_STATUS: u64 = 0x14;
    /// Being written empties the table.
    pub const RESET: u64 = 0x1c;
}

/// In [`register::ENABLE`]: on.
const ON: u32 = 1;
/// In [`register::ENABLE`]: nothing is being written.
const IDLE: u32 = 1 << 1;
/// In an entry: a slot is filled whole, whatever the design says of packets. The core does not tell how long a shorter one is.
const FULL_SLOT: u32 = 1 << 25;
/// In an entry: no interrupt at its end.
const NO_INTERRUPT: u32 = 1 << 24;
/// Wraps of the round counter.
const ROUNDS: u64 = 1 << 16;

const FAULTS: &[&str] = &["index-beyond-table", "count-went-back"];

fn problems(config: &FpgaConfig) -> Vec<Problem> {
    let mut found = Vec::new();
    match (&config.csr, config.base) {
        // The emulated device provides its register addresses.
        (None, None) if config.device == DeviceKey::Emulated("litepcie".to_owned()) => {}
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
                found.push(Problem::at("completion", message).help("use `csr` instead of `base`"));
            }
        }
        (Some(_), None) => {}
    }
    found
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
    map: Map,
    signal: Option<WriterInterrupt>,
    /// Of the last time that it was armed.
    slots: u64,
    slot_bytes: usize,
    is_armed: bool,
    /// Whether the core reports when it is idle; `None` until known.
    reports_idle: Option<bool>,
    count: Count,
    /// Transfers that were finished when it was stopped.
    end: u64,
    /// Slots from the finished ones on that may have been written, in part or whole; `None` where that is not known.
    ahead: Option<u64>,
    /// Number of transfers that were reported or skipped.
    reported: u64,
}

impl Writer {
    fn open(opening: &Opening) -> Result<Self, EngineError> {
        let (device, config) = (&opening.device, opening.config);
        let name = device.name();
        let map = match (&config.csr, config.base) {
            (Some(file), _) => {
                let path = opening.directory.join(file);
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
        inside("the writer", map.writer, register::RESET + 4)?;
        if let Some(Msi { enable, clear, .. }) = map.msi {
            inside("interrupts", enable, 4)?;
            inside("interrupts", clear.unwrap_or(enable), 4)?;
        }
        let read = registers.read(map.writer + register::LOOP);
        if read == GONE {
            return Err(EngineError::Gone {
                device: name.to_owned(),
            });
        }
        // The only register of the writer with one bit.
        if read > 1 {
            return Err(unfit(
                name,
                format!(
                    "no LitePCIe writer at {:#x} of BAR 0: its register at {:#x} reads {read:#x}, expected 0 or 1; check that this csr.csv belongs to the loaded design",
                    map.writer,
                    map.writer + register::LOOP
                ),
            ));
        }
        let signal = match config.completion {
            CompletionMode::Poll => None,
            CompletionMode::Interrupt => {
                let Some(msi) = map.msi else {
                    return Err(unfit(
                        name,
                        "the csr.csv lists no `pcie_msi_enable`: set `completion = \"poll\"`",
                    ));
                };
                // Where interrupts are cleared one vector serves all.
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
            map,
            signal,
            slots: 1,
            slot_bytes: 0,
            is_armed: false,
            reports_idle: None,
            count: Count::new(ROUNDS),
            end: 0,
            ahead: None,
            reported: 0,
            device: device.clone().as_dma(),
        })
    }

    fn read(&self, offset: u64) -> u32 {
        self.registers.read(self.map.writer + offset)
    }

    fn write(&self, offset: u64, value: u32) {
        self.registers.write(self.map.writer + offset, value);
    }

    fn faulted(&self, fault: usize) -> EngineError {
        EngineError::Faulted {
            device: self.device.name().to_owned(),
            engine: ENTRY.name,
            faults: vec![FAULTS[fault]],
        }
    }

    /// Transfers that are finished for sure; reads the device.
    fn finished(&self) -> Result<u64, EngineError> {
        let status = self.read(register::LOOP_STATUS);
        if status == GONE {
            return Err(EngineError::Gone {
                device: self.device.name().to_owned(),
            });
        }
        let (index, count) = (u64::from(status & 0xffff), u64::from(status >> 16));
        if index >= self.slots {
            return Err(self.faulted(0));
        }
        let finished = self.count.peek(count * self.slots + index);
        // Half of all rounds within one look is a count that went back: the card was reset or reprogrammed.
        if finished - self.count.total() > ROUNDS / 2 * self.slots {
            return Err(self.faulted(1));
        }
        Ok(finished)
    }

    /// Transfers that may be overwritten once `finished` are finished: all of them if the progress is unknown.
    const fn overwritten_at(&self, finished: u64) -> u64 {
        match self.ahead {
            Some(ahead) => (finished + ahead).saturating_sub(self.slots),
            None => finished,
        }
    }

    /// Switches the writer off, notes how far it came, and only then empties its table; what it read last where it did
    /// not become idle.
    fn end(&mut self, timeout: Duration) -> Result<(), u32> {
        self.write(register::ENABLE, 0);
        let idle = self.wait_idle(timeout);
        // Idle, its last packet was handed on (`port.source.ready`). It also has to leave the core, where a read's answer
        // may have a way of its own; from there on the read below pushes it.
        std::thread::sleep(SETTLE_TIME);
        if let Ok(finished) = self.finished() {
            let finished = self.count.advance(finished);
            (self.end, self.ahead) = match (idle, finished) {
                (Ok(()), 0) => (0, Some(HALF_DONE + 1)),
                (Ok(()), _) => (finished + 1, Some(HALF_DONE)),
                (Err(_), _) => (finished, Some(AHEAD)),
            };
        }
        self.write(register::LOOP, 0);
        self.write(register::RESET, 1);
        idle
    }

    /// Has a writer of any age give up what it does, and empties its table; clears the counter before it is at its end.
    fn halt(&self) {
        self.write(register::LOOP, 0);
        self.write(register::RESET, 1);
        std::thread::sleep(SETTLE_TIME);
        self.write(register::ENABLE, 0);
        self.write(register::RESET, 1);
    }

    /// Waits until the writer is idle, in a core that reports it. The error is the last value of the register.
    fn wait_idle(&self, timeout: Duration) -> Result<(), u32> {
        let mut enable = 0;
        let is_idle = wait_until(timeout, || {
            enable = self.read(register::ENABLE);
            enable == GONE || self.reports_idle == Some(false) || enable & IDLE != 0
        });
        if is_idle { Ok(()) } else { Err(enable) }
    }

    /// The writer's interrupt on or off.
    fn set_interrupt(&self, is_on: bool) {
        let Some(WriterInterrupt { msi, .. }) = &self.signal else {
            return;
        };
        let (bit, others) = (1 << msi.bit, self.registers.read(msi.enable));
        let value = if is_on { others | bit } else { others & !bit };
        self.registers.write(msi.enable, value);
    }
}

impl Engine for Writer {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: false,
            doorbell_bits: 0,
            end_of_packet: false,
            alignment: ALIGNMENT,
            max_transfer: MAX_TRANSFER,
            max_slots: TABLE,
        }
    }

    fn faults(&self) -> &'static [&'static str] {
        ENTRY.faults
    }

    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
        let name = self.device.name();
        check_slots(name, slots, &self.caps(), self.map.address_bits)?;
        let count = slots.addresses.len();
        if count as u64 <= AHEAD {
            return Err(unfit(
                name,
                format!(
                    "the ring has {count} slots, all of which the engine may be overwriting: give the ring at least {} `slots`",
                    AHEAD + 1
                ),
            ));
        }
        let enable = self.read(register::ENABLE);
        if enable != GONE && enable & ON != 0 {
            self.halt();
        }
        self.write(register::ENABLE, 0);
        self.write(register::RESET, 1);
        self.write(register::LOOP, 0);
        let idle = self.wait_idle(LEFT_RUNNING);
        if self.read(register::ENABLE) == GONE {
            return Err(EngineError::Gone {
                device: self.device.name().to_owned(),
            });
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
        // A core that has not reported idle by now never does.
        self.reports_idle.get_or_insert(idle.is_ok());
        let entry = u32::try_from(slots.bytes).unwrap_or(0) | FULL_SLOT;
        let entry = entry
            | if self.signal.is_some() {
                0
            } else {
                NO_INTERRUPT
            };
        let (before, from_first) = slots.addresses.split_at(slots.first);
        for address in from_first.iter().chain(before) {
            let (low, high) = halves(*address);
            self.write(register::VALUE_HIGH, entry);
            self.write(register::VALUE_LOW, low);
            self.write(register::PUSH, high);
        }
        self.slots = count as u64;
        self.slot_bytes = slots.bytes;
        self.count = Count::new(ROUNDS * self.slots);
        (self.end, self.ahead) = (0, Some(AHEAD));
        self.reported = 0;
        self.set_interrupt(true);
        self.is_armed = true;
        self.write(register::LOOP, 1);
        self.write(register::ENABLE, ON);
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let finished = if self.is_armed {
            let finished = self.finished()?;
            self.count.advance(finished)
        } else {
            self.end
        };
        let overwritten = self.overwritten_at(finished);
        if self.reported < overwritten {
            done.skip(overwritten - self.reported);
            self.reported = overwritten;
        }
        if self.reported < finished {
            let timestamp = now();
            let length = self.slot_bytes;
            while self.reported < finished
                && done.push(Done {
                    length,
                    is_bad: false,
                    timestamp,
                    ..Done::default()
                })
            {
                self.reported += 1;
            }
        }
        Ok(())
    }

    fn credit(&mut self, _: u32) {}

    fn overwritten(&mut self) -> Result<u64, EngineError> {
        let finished = if self.is_armed {
            self.finished()?
        } else {
            self.end
        };
        Ok(self.overwritten_at(finished))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let Some(WriterInterrupt { interrupt, msi }) = &self.signal else {
            return Ok(false);
        };
        if !self.is_armed {
            return Ok(false);
        }
        if interrupt.wait(limit)
            && let Some(clear) = msi.clear
        {
            self.registers.write(clear, 1 << msi.bit);
        }
        Ok(true)
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if !self.is_armed {
            return Ok(());
        }
        // Counts them in every case; the stop reports errors.
        if let Ok(finished) = self.finished() {
            self.count.advance(finished);
        }
        self.is_armed = false;
        (self.end, self.ahead) = (self.count.total(), None);
        let idle = if self.reports_idle == Some(true) {
            self.end(timeout)
        } else {
            self.halt();
            // Its reads also push what is on its way before them.
            self.wait_idle(timeout)
        };
        self.set_interrupt(false);
        idle.map_err(|_| QuiesceTimeout {
            engine: format!("{} of {}", ENTRY.name, self.device.name()),
            waited: timeout,
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.quiesce(Duration::from_secs(1)).is_err() {
            engines::disable_and_reset(&self.device);
        }
    }
}

/// An address as two registers.
#[expect(clippy::cast_possible_truncation, reason = "the halves of it")]
const fn halves(address: u64) -> (u32, u32) {
    (address as u32, (address >> 32) as u32)
}
