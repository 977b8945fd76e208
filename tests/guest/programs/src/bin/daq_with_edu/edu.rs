//! `edu`: QEMU's educational device (`docs/specs/edu.rst` in QEMU), for tests of VFIO in a guest.
//!
//! The device copies from its own buffer on command, which gives backpressure. A slot is filled by several copies of
//! 2 KiB. The data is the first half of the buffer, and QEMU takes 100 ms per copy.

use daq_core::config::Problem;
use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, Done, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use daq_drivers::fpga::device::{Device, GONE, Interrupt, Registers};
use daq_drivers::fpga::engines::{
    NoKeys, Opening, check_slots, now, quiesce_timeout, unfit, wait_until,
};
use daq_drivers::fpga::{CompletionMode, FpgaConfig, FpgaEngine};
use std::sync::Arc;
use std::time::Duration;

/// PCI vendor and device identifiers.
const IDS: (u16, u16) = (0x1234, 0x11e8);
/// Size of a copy in bytes: half of the device's buffer. QEMU before version 8 exits if a copy extends to the end of
/// the buffer.
const COPY: usize = 2048;
/// Address of the buffer in the device's own address space.
const BUFFER_AT: u32 = 0x4_0000;
/// Maximum size of a slot in bytes. At 20 KiB per second, a larger slot would take minutes.
const MAX_SLOT: usize = 1 << 20;
const MAX_SLOTS: usize = 1024;
/// Width of DMA addresses in bits: registers are written as 32-bit words, and the upper half of an address cannot be written.
const ADDRESS_BITS: u32 = 32;

/// Registers in BAR 0.
mod register {
    /// Identification register: 0xVVvv00ed, where VVvv is the version.
    pub const ID: u64 = 0x00;
    /// Pending interrupt causes.
    pub const CAUSES: u64 = 0x24;
    /// Acknowledge register: clears the pending causes whose bits are written as 1.
    pub const ACKNOWLEDGE: u64 = 0x64;
    /// Source address.
    pub const SOURCE: u64 = 0x80;
    /// Destination address.
    pub const TARGET: u64 = 0x88;
    /// Number of bytes to copy.
    pub const BYTES: u64 = 0x90;
    /// Bit 0: run. Bit 1: copy from the device to memory. Bit 2: raise an interrupt at the end.
    pub const COMMAND: u64 = 0x98;
    /// Offset of the first byte after the registers.
    pub const END: u64 = 0xa0;
}

const RUN: u32 = 1;
const TO_MEMORY: u32 = 1 << 1;
const INTERRUPT: u32 = 1 << 2;

/// The DMA engine of the device.
pub struct Edu {
    device: Arc<dyn DmaDevice>,
    registers: Arc<dyn Registers>,
    interrupt: Option<Interrupt>,
    slots: Slots,
    /// Number of free slots that the engine may fill.
    credits: u64,
    /// Number of filled slots.
    filled: u64,
    /// Number of bytes that were already copied to the slot in progress.
    copied: usize,
    /// Size in bytes of the copy in progress; 0 if no copy is in progress.
    in_flight: usize,
}

impl FpgaEngine for Edu {
    const INFO: EngineInfo = EngineInfo {
        name: "edu",
        summary: "QEMU's educational device",
        limits: SlotLimits {
            alignment: 64,
            max_slot: MAX_SLOT,
            max_slots: MAX_SLOTS,
            preferred: 2 * COPY,
        },
        faults: &[],
        supports_backpressure: true,
        // QEMU has copied all bytes, to any memory, before the register shows the end of the copy.
        order: CompletionOrder::AfterPayload,
    };

    type Keys = NoKeys;

    fn problems(config: &FpgaConfig, _: &NoKeys) -> Vec<Problem> {
        if config.channel == 0 {
            return Vec::new();
        }
        vec![Problem::at("channel", "`edu` has one channel").help("remove `channel`")]
    }

    fn recognises(device: &dyn Device) -> bool {
        let identity = device.identity();
        (identity.vendor, identity.device) == IDS
    }

    fn open(opening: &Opening<NoKeys>) -> Result<Self, EngineError> {
        let device = &opening.device;
        let (name, identity) = (device.name(), device.identity());
        if (identity.vendor, identity.device) != IDS {
            return Err(unfit(
                name,
                format!(
                    "the device is {:04x}:{:04x}, but QEMU's edu is {:04x}:{:04x}: correct `engine`",
                    identity.vendor, identity.device, IDS.0, IDS.1
                ),
            ));
        }
        let registers = device.registers(0)?;
        let id = if registers.bytes() >= register::END {
            registers.read(register::ID)
        } else {
            0
        };
        if id == GONE {
            return Err(EngineError::Gone {
                device: name.to_owned(),
            });
        }
        if id & 0xffff != 0xed {
            return Err(unfit(
                name,
                format!("the register at 0x0 reads {id:#010x}, expected 0x....00ed for QEMU's edu"),
            ));
        }
        let interrupt = match opening.config.completion {
            CompletionMode::Poll => None,
            CompletionMode::Interrupt => Some(device.interrupts(1)?.swap_remove(0)),
        };
        Ok(Self {
            registers,
            interrupt,
            slots: Slots::none(),
            credits: 0,
            filled: 0,
            copied: 0,
            in_flight: 0,
            device: device.clone().as_dma(),
        })
    }
}

impl Edu {
    /// Starts the next copy if a slot is free and no copy is in progress.
    fn start_copy(&mut self) {
        let Slots {
            addresses,
            bytes,
            first,
            ..
        } = &self.slots;
        if self.in_flight > 0 || self.credits == 0 || self.copied == *bytes {
            return;
        }
        let slot = usize::try_from((*first as u64 + self.filled) % addresses.len() as u64);
        let address = addresses[slot.unwrap_or(0)] + self.copied as u64;
        self.in_flight = (bytes - self.copied).min(COPY);
        let low = |value: u64| u32::try_from(value).unwrap_or(0);
        self.registers.write(register::SOURCE, BUFFER_AT);
        self.registers.write(register::TARGET, low(address));
        self.registers
            .write(register::BYTES, low(self.in_flight as u64));
        let interrupt = if self.interrupt.is_some() {
            INTERRUPT
        } else {
            0
        };
        self.registers
            .write(register::COMMAND, RUN | TO_MEMORY | interrupt);
    }

    /// Reads the device and updates the state if the copy in progress has finished. Returns whether the copy has finished.
    fn finish_copy(&mut self) -> Result<bool, EngineError> {
        let command = self.registers.read(register::COMMAND);
        if command == GONE {
            return Err(EngineError::Gone {
                device: self.device.name().to_owned(),
            });
        }
        if command & RUN != 0 {
            return Ok(false);
        }
        self.copied += std::mem::take(&mut self.in_flight);
        Ok(true)
    }

    /// Checks that no copy is in progress, and prepares to fill `slots`. No copy starts.
    fn prepare(&mut self, slots: &Slots) -> Result<(), EngineError> {
        check_slots(self.device.name(), slots, &self.caps(), ADDRESS_BITS)?;
        let command = self.registers.read(register::COMMAND);
        if command == GONE {
            let device = self.device.name().to_owned();
            return Err(EngineError::Gone { device });
        }
        if command & RUN != 0 {
            let why = "a copy is already in progress: reset the device";
            return Err(unfit(self.device.name(), why));
        }
        self.slots = slots.clone();
        (self.credits, self.filled, self.copied, self.in_flight) = (0, 0, 0, 0);
        Ok(())
    }
}

// SAFETY: `start_copy` writes the address of a slot and a length within the slot. A copy starts only in `credit` and
// `poll`, and `quiesce` waits until the last copy has ended. `arm` starts no copy.
unsafe impl Engine for Edu {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        self.prepare(slots).map_err(ArmError::Stopped)
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.in_flight > 0 && !self.finish_copy()? {
            return Ok(());
        }
        self.poll_stopped(done)?;
        self.start_copy();
        Ok(())
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.copied == self.slots.bytes && self.credits > 0 {
            let finished = Done {
                length: self.slots.bytes,
                is_bad: false,
                timestamp: now(),
                ..Done::default()
            };
            if done.push(finished) {
                self.copied = 0;
                self.filled += 1;
                self.credits -= 1;
            }
        }
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        let was_out = self.credits == 0;
        self.credits += u64::from(slots);
        // Otherwise `poll` starts the next copy when this one has finished.
        if was_out {
            self.start_copy();
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, EngineError> {
        let Some(interrupt) = &self.interrupt else {
            return Ok(false);
        };
        if self.in_flight == 0 {
            return Ok(false);
        }
        if interrupt.wait(limit) {
            let causes = self.registers.read(register::CAUSES);
            self.registers.write(register::ACKNOWLEDGE, causes);
        }
        Ok(true)
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if self.in_flight == 0 {
            return Ok(());
        }
        // A copy cannot be aborted. A removed device does not copy.
        let is_over = wait_until(timeout, || self.finish_copy().unwrap_or(true));
        // A copy that did not finish in time is not reported, even if it finishes later.
        self.in_flight = 0;
        if is_over {
            Ok(())
        } else {
            Err(quiesce_timeout(self, timeout))
        }
    }
}
