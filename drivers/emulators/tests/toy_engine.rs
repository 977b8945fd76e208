//! A complete DMA engine in one file, with an emulated device to test it. `docs/src/hardware/write-an-engine.md` shows
//! parts of this file, and a test checks that both are equal.

use daq_core::dma::{
    Armed, Caps, Completions, DmaDevice, DmaMap, Done, Engine, EngineError, EngineInfo, Limits,
    QuiesceTimeout, Slots,
};
use daq_core::entry::Registry;
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::{Device, GONE, Registers};
use daq_drivers::fpga::engines::{
    NoKeys, Opening, check_slots, disable_and_reset, now, unfit, wait_until,
};
use daq_drivers::fpga::{FpgaEngine, FpgaSource};
use daq_emulators::{EmulatedDevice, Host, Identity, Step, in_process};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Registers in BAR 0, from the documentation of the device.
mod register {
    /// Identifier; reads as [`super::TOY`].
    pub const ID: u64 = 0x00;
    /// Address of a slot, low half.
    pub const LOW: u64 = 0x04;
    /// Address of a slot, high half. A write adds the slot to the device's list.
    pub const PUSH: u64 = 0x08;
    /// Size of a slot in bytes.
    pub const BYTES: u64 = 0x0c;
    /// 1 starts the engine with a count of 0. 0 stops it after the current slot and clears its list.
    pub const RUN: u64 = 0x10;
    /// Reads as 1 while the engine writes.
    pub const BUSY: u64 = 0x14;
    /// A write adds this number of slots to those that may be filled.
    pub const CREDIT: u64 = 0x18;
    /// Number of slots filled since the last start, modulo 256. It keeps its value when the engine stops.
    pub const FILLED: u64 = 0x1c;
}

const TOY: u32 = 0x7079_0001;
/// Timeout to stop an engine that was left running.
const LEFT_RUNNING: Duration = Duration::from_millis(100);

struct Toy {
    device: Arc<dyn DmaDevice>,
    registers: Arc<dyn Registers>,
    slot_bytes: usize,
    is_armed: bool,
    /// The last value that was read from the count register.
    filled: u32,
    /// Number of slots that may be filled but are not filled yet.
    credits: u32,
    /// Number of filled slots that were not reported yet.
    finished: u32,
}

impl FpgaEngine for Toy {
    const INFO: EngineInfo = EngineInfo {
        name: "toy",
        summary: "an engine to learn from",
        limits: Limits {
            alignment: 64,
            max_slot: 1 << 20,
            max_slots: 64,
            preferred: 4096,
        },
        faults: &[],
        supports_backpressure: true,
    };

    type Keys = NoKeys;

    fn recognises(device: &dyn Device) -> bool {
        device.identity().vendor == 0x7079
    }

    fn open(opening: &Opening<NoKeys>) -> Result<Self, EngineError> {
        let device = opening.device.clone();
        let registers = device.registers(0)?;
        let id = registers.read(register::ID);
        if id != TOY {
            let why = format!("the register at 0x0 is {id:#010x}; a toy has {TOY:#010x}");
            return Err(unfit(device.name(), why));
        }
        Ok(Self {
            registers,
            slot_bytes: 0,
            is_armed: false,
            filled: 0,
            credits: 0,
            finished: 0,
            device: device.as_dma(),
        })
    }
}

impl Toy {
    fn gone(&self) -> EngineError {
        let device = self.device.name().to_owned();
        EngineError::Gone { device }
    }

    /// Stops the engine and waits until no write is in flight. Returns false after a timeout.
    fn stop(&self, timeout: Duration) -> bool {
        self.registers.write(register::RUN, 0);
        wait_until(timeout, || {
            matches!(self.registers.read(register::BUSY), 0 | GONE)
        })
    }

    /// Reads the device and records the finished slots.
    fn read_progress(&mut self) -> Result<(), EngineError> {
        let filled = self.registers.read(register::FILLED);
        if filled == GONE {
            return Err(self.gone());
        }
        // The engine has at most 64 credits, so an 8-bit count does not wrap between two polls. The number of filled slots
        // is limited to the credits, whatever the register reads.
        let new = (filled.wrapping_sub(self.filled) & 0xff).min(self.credits);
        self.filled = (self.filled + new) & 0xff;
        self.credits -= new;
        self.finished += new;
        Ok(())
    }
}

impl Engine for Toy {
    fn name(&self) -> &'static str {
        Self::INFO.name
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: true,
            doorbell_bits: 0,
            end_of_packet: false,
            alignment: Self::INFO.limits.alignment,
            max_transfer: Self::INFO.limits.max_slot,
            max_slots: Self::INFO.limits.max_slots,
        }
    }

    fn faults(&self) -> &'static [&'static str] {
        Self::INFO.faults
    }

    fn arm(&mut self, slots: &Slots) -> Result<(), EngineError> {
        check_slots(self.device.name(), slots, &self.caps(), 64)?;
        // A killed process may have left the engine running.
        if !self.stop(LEFT_RUNNING) {
            let why = "the engine is busy before it was started: reset the card";
            return Err(unfit(self.device.name(), why));
        }
        if self.registers.read(register::ID) == GONE {
            return Err(self.gone());
        }
        let half = |address: u64, shift: u32| (address >> shift & 0xffff_ffff) as u32;
        self.registers
            .write(register::BYTES, half(slots.bytes as u64, 0));
        // The device fills its list from the beginning, so the first slot must be first in the list.
        let (before, from_first) = slots.addresses.split_at(slots.first);
        for address in from_first.iter().chain(before) {
            self.registers.write(register::LOW, half(*address, 0));
            self.registers.write(register::PUSH, half(*address, 32));
        }
        self.slot_bytes = slots.bytes;
        (self.filled, self.credits, self.finished) = (0, 0, 0);
        self.is_armed = true;
        self.registers.write(register::RUN, 1);
        Ok(())
    }

    fn credit(&mut self, slots: u32) {
        if self.is_armed {
            self.credits += slots;
            self.registers.write(register::CREDIT, slots);
        }
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        if self.is_armed {
            self.read_progress()?;
        }
        while self.finished > 0
            && done.push(Done {
                length: self.slot_bytes,
                is_bad: false,
                timestamp: now(),
                ..Done::default()
            })
        {
            self.finished -= 1;
        }
        Ok(())
    }

    fn quiesce(&mut self, timeout: Duration) -> Result<(), QuiesceTimeout> {
        if !std::mem::take(&mut self.is_armed) {
            return Ok(());
        }
        if !self.stop(timeout) {
            let engine = format!("{} of {}", Self::INFO.name, self.device.name());
            return Err(QuiesceTimeout {
                engine,
                waited: timeout,
            });
        }
        // Slots that were filled before the stop can still be polled. A removed device has filled no more slots.
        let _ = self.read_progress();
        Ok(())
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        if self.quiesce(Duration::from_secs(1)).is_err() {
            disable_and_reset(&self.device);
        }
    }
}

/// The emulated device. It fills each slot with the frame number.
#[derive(Default)]
struct EmulatedToy {
    slots: Vec<u64>,
    low: u32,
    bytes: u32,
    runs: bool,
    credits: u32,
    filled: u32,
}

impl EmulatedDevice for EmulatedToy {
    fn identity(&self) -> Identity {
        Identity {
            ids: [0x7079, 1, 0, 0],
            class: 0x11_8000,
            bars: [4096, 0, 0, 0, 0, 0],
            vectors: 0,
        }
    }

    fn read(&mut self, _: usize, offset: u64) -> u32 {
        match offset {
            register::ID => TOY,
            register::FILLED => self.filled & 0xff,
            // Each step writes a whole slot, and registers are read only between steps, so the engine never reads as
            // busy.
            _ => 0,
        }
    }

    fn write(&mut self, _: usize, offset: u64, value: u32, _: &dyn Host) {
        match offset {
            register::LOW => self.low = value,
            register::PUSH => self
                .slots
                .push(u64::from(value) << 32 | u64::from(self.low)),
            register::BYTES => self.bytes = value,
            register::CREDIT if self.runs => self.credits += value,
            register::RUN if value == 1 => (self.runs, self.filled) = (true, 0),
            register::RUN => {
                (self.runs, self.credits) = (false, 0);
                self.slots.clear();
            }
            _ => {}
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn step(&mut self, host: &dyn Host) -> Step {
        if !self.runs || self.credits == 0 || self.slots.is_empty() {
            return Step::Idle;
        }
        let slot = self.slots[self.filled as usize % self.slots.len()];
        let frame = self.filled.to_le_bytes().repeat(self.bytes as usize / 4);
        host.write(slot, &frame).unwrap();
        self.filled += 1;
        self.credits -= 1;
        Step::Busy
    }
}

fn open(card: impl EmulatedDevice + 'static) -> (Arc<dyn Device>, Result<Toy, EngineError>) {
    let device = in_process::open(Box::new(card)).unwrap();
    let source =
        FpgaSource::<Toy>::from_text("device = \"vfio-user:toy.sock\"", &Registry::default())
            .unwrap();
    let engine = source.open(device.clone(), Path::new(""));
    (device, engine)
}

#[test]
fn toy_engine_fills_ring_in_order() {
    const SLOTS: usize = 5;
    const BYTES: usize = 4096;
    let (device, engine) = open(EmulatedToy::default());
    let mut engine: Box<dyn Engine> = Box::new(engine.unwrap());
    let options = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let region = Region::host(SLOTS * BYTES, options).unwrap();
    let registers = device.registers(0).unwrap();
    let mut memory = DmaMap::new(device.as_dma(), region.clone()).unwrap();
    let check = |first: usize, frame: u32| {
        let slot = (first + frame as usize) % SLOTS;
        let mut bytes = [0; BYTES];
        let file = region.file().unwrap();
        rustix::io::pread(file, &mut bytes, (slot * BYTES) as u64).unwrap();
        assert_eq!(bytes[..], frame.to_le_bytes().repeat(BYTES / 4));
    };
    // Simulates another program that left the engine running.
    registers.write(register::RUN, 1);
    registers.write(register::PUSH, 0xffff);
    // Arms the engine several times, each time for more frames than the count register can represent.
    for first in 0..3 {
        let slots = Slots {
            addresses: (0..SLOTS)
                .map(|slot| memory.address() + (slot * BYTES) as u64)
                .collect(),
            bytes: BYTES,
            first,
            doorbell: None,
        };
        let mut armed = Armed::arm(engine, memory, &slots).unwrap();
        let mut done = Completions::new(SLOTS, 0);
        armed.credit(5);
        let mut frames = 0_u32;
        while frames < 600 {
            done.clear(SLOTS);
            armed.poll(&mut done).unwrap();
            for finished in done.as_slice() {
                assert_eq!((finished.length, finished.is_bad), (BYTES, false));
                check(first, frames);
                frames += 1;
                armed.credit(1);
            }
        }
        // Transfers that finished before the stop are reported once after it.
        while registers.read(register::FILLED) != (frames + 5) & 0xff {
            std::thread::yield_now();
        }
        let mut idle = armed.stop(Duration::from_secs(10));
        assert!(idle.quiesce_timeout.is_none());
        for count in [3, 2, 0] {
            done.clear(3);
            idle.engine.poll(&mut done).unwrap();
            assert_eq!(done.as_slice().len(), count);
            for _ in 0..count {
                check(first, frames);
                frames += 1;
            }
        }
        (engine, memory) = (idle.engine, idle.memory.unwrap());
    }
}

#[test]
fn other_device_is_rejected_with_its_id() {
    struct Other;
    impl EmulatedDevice for Other {
        fn identity(&self) -> Identity {
            EmulatedToy::default().identity()
        }
        fn read(&mut self, _: usize, _: u64) -> u32 {
            0x1234
        }
        fn write(&mut self, _: usize, _: u64, _: u32, _: &dyn Host) {}
        fn reset(&mut self) {}
        fn step(&mut self, _: &dyn Host) -> Step {
            Step::Idle
        }
    }
    let error = open(Other).1.err().unwrap().to_string();
    assert!(error.contains("0x00001234"), "{error}");
}

/// Returns the Rust code blocks of the Markdown text `text`.
fn blocks(text: &str) -> Vec<&str> {
    let rest = text.split("```rust\n").skip(1);
    rest.map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[test]
fn guide_contains_this_code() {
    let guide = include_str!("../../../docs/src/hardware/write-an-engine.md");
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect()
    };
    let here = lines(include_str!("toy_engine.rs"));
    let blocks = blocks(guide);
    assert!(blocks.len() >= 7, "{} blocks", blocks.len());
    for block in blocks {
        let block = lines(block);
        assert!(
            here.windows(block.len()).any(|window| window == block),
            "the guide contains code that tests/toy_engine.rs does not contain:\n{}",
            block.join("\n")
        );
    }
}
