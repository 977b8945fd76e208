//! A DMA engine with a FIFO of slot addresses, and an emulated card for machines without the hardware.

use daq_core::dma::{
    ArmError, CompletionOrder, Completions, DmaDevice, Engine, EngineError, EngineInfo,
    QuiesceTimeout, SlotLimits, Slots,
};
use daq_drivers::fpga::device::{GONE, Registers, halves};
use daq_drivers::fpga::engines::{
    Count, NoKeys, Opening, check_slots, quiesce_timeout, read_present, report_full_slots, unfit,
    wait_until,
};
use daq_drivers::fpga::{EngineEntry, FpgaEngine};
use daq_emulators::{EmulatedDevice, EmulatedDeviceEntry, Host, Identity, Step};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Identifier; reads as `MAGIC`.
const ID: u64 = 0x0;
/// Slot size in bytes.
const BYTES: u64 = 0x4;
/// 1 runs the engine with a count of 0. 0 stops it after the current slot and clears the FIFO.
const RUN: u64 = 0x8;
/// Reads as 1 while the engine writes.
const BUSY: u64 = 0xc;
/// Address of a slot, low half, then high half. A write of the high half adds the slot to the FIFO of 256 addresses.
const ADDRESS: u64 = 0x10;
const HIGH: u64 = ADDRESS + 4;
/// Number of filled slots, modulo 2^32.
const FILLED: u64 = 0x18;
const MAGIC: u32 = 0xf1f0;

/// The registry entry of the engine, for `engine = "fifo"`.
pub const ENTRY: EngineEntry = EngineEntry::of::<Fifo>();

/// The registry entry of the emulated card, for `device = "emulated:fifo"` and `daq emulate fifo`.
pub const DEVICE: EmulatedDeviceEntry =
    daq_emulators::entry::<Card>("fifo", "A card with a FIFO of slot addresses");

struct Fifo {
    device: Arc<dyn DmaDevice>,
    registers: Arc<dyn Registers>,
    slots: Slots,
    /// Numbers of slots since the engine was armed: written to the FIFO, filled by the card, and reported.
    credited: u64,
    filled: Count,
    reported: u64,
}

impl FpgaEngine for Fifo {
    const INFO: EngineInfo = EngineInfo {
        name: "fifo",
        summary: "An engine with a FIFO of slot addresses",
        limits: SlotLimits { alignment: 64, max_slot: 1 << 20, max_slots: 256, preferred: 4096 },
        faults: &[],
        supports_backpressure: true,
        order: CompletionOrder::HostMemory,
    };

    type Keys = NoKeys;

    fn open(opening: &Opening<NoKeys>) -> Result<Self, EngineError> {
        let registers = opening.device.registers(0)?;
        let device = opening.device.clone().as_dma();
        let id = registers.read(ID);
        if id != MAGIC {
            return Err(unfit(device.name(), format!("register 0x0 is {id:#x}, not {MAGIC:#x}")));
        }
        let (slots, filled) = (Slots::none(), Count::new(1 << 32));
        Ok(Self { device, registers, slots, credited: 0, filled, reported: 0 })
    }
}

impl Fifo {
    /// Requests a stop, and waits until no write is in flight. Returns false after a timeout.
    fn stop(&self, timeout: Duration) -> bool {
        self.registers.write(RUN, 0);
        wait_until(timeout, || matches!(self.registers.read(BUSY), 0 | GONE))
    }

    fn read_progress(&mut self) -> Result<(), EngineError> {
        let filled = read_present(&*self.device, &*self.registers, FILLED)?;
        self.filled.advance(filled.into());
        Ok(())
    }
}

// SAFETY: the FIFO has only addresses of slots, and `BYTES` is their size. The card writes only while it runs: `arm` starts
// it as its last step, and `quiesce` stops it, which clears the FIFO, and waits until the card is idle.
unsafe impl Engine for Fifo {
    fn info(&self) -> &'static EngineInfo {
        &Self::INFO
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        check_slots(self.device.name(), slots, &self.caps(), 64).map_err(ArmError::Stopped)?;
        // A killed process may have left the engine running.
        if !self.stop(Duration::from_millis(100)) {
            let why = "the engine does not stop: reset it";
            return Err(ArmError::Stopped(unfit(self.device.name(), why)));
        }
        (self.credited, self.filled, self.reported) = (0, Count::new(1 << 32), 0);
        self.slots = slots.clone();
        self.registers.write(BYTES, halves(slots.bytes as u64).0);
        self.registers.write(RUN, 1);
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        for _ in 0..slots {
            self.registers.write64(ADDRESS, self.slots.nth(self.credited));
            self.credited += 1;
        }
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        self.read_progress()?;
        self.poll_stopped(done)
    }

    fn poll_stopped(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        // The card fills only slots with an address, whatever the register reads.
        let filled = self.filled.total().min(self.credited);
        report_full_slots(&mut self.reported, 0..filled, self.slots.bytes, done);
        Ok(())
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if !self.stop(timeout) {
            return Err(quiesce_timeout(self, timeout));
        }
        // A removed card has filled no more slots.
        let _ = self.read_progress();
        Ok(())
    }
}

/// The emulated card. It fills each slot with the number of the slot.
#[derive(Default)]
struct Card {
    fifo: VecDeque<u64>,
    low: u32,
    bytes: u32,
    runs: bool,
    filled: u32,
}

impl EmulatedDevice for Card {
    fn identity(&self) -> Identity {
        let ids = [0xf1f0, 1, 0, 0];
        Identity { ids, class: 0x11_8000, bars: [4096, 0, 0, 0, 0, 0], vectors: 0 }
    }

    fn read(&mut self, _: usize, offset: u64) -> u32 {
        // A step fills a whole slot, and registers are read only between steps, so BUSY is always 0.
        match offset {
            ID => MAGIC,
            FILLED => self.filled,
            _ => 0,
        }
    }

    fn write(&mut self, _: usize, offset: u64, value: u32, _: &dyn Host) {
        match offset {
            BYTES => self.bytes = value,
            RUN => {
                self.runs = value == 1;
                self.fifo.clear();
                if self.runs {
                    self.filled = 0;
                }
            }
            ADDRESS => self.low = value,
            HIGH if self.runs => self.fifo.push_back(u64::from(value) << 32 | u64::from(self.low)),
            _ => {}
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        let Some(slot) = self.fifo.pop_front() else { return Step::Idle };
        let frame = self.filled.to_le_bytes().repeat(self.bytes as usize / 4);
        if host.write(slot, &frame).is_err() {
            return Step::Idle;
        }
        self.filled += 1;
        Step::Busy
    }
}
