//! A test bench for a device. It provides access to registers by name, and host memory.

use crate::litepcie::gateware::Names;
use crate::litepcie::memory::{Memory, UNTOUCHED};
use daq_emulators::{EmulatedDevice, Step};

/// Device address of the memory. It is not 0, and it differs from the address with swapped halves.
pub const BASE: u64 = 0x1234_0000;

/// Flag of a descriptor, above the 24 bits of its length.
pub const IRQ_DISABLE: u32 = 1 << 24;

/// The device, its memory and its register names.
pub struct Bench<C> {
    pub card: C,
    pub names: Names,
    pub memory: Memory,
}

impl<C: EmulatedDevice> Bench<C> {
    /// Creates a device with memory for `slots` slots of `slot` bytes. Each slot is followed by the same number of
    /// bytes, which must not change.
    pub fn new(card: C, names: Names, slots: u32, slot: u32) -> Self {
        let memory = Memory::new(BASE, 2 * slots as usize * slot as usize);
        Self {
            card,
            names,
            memory,
        }
    }

    /// Returns the address of a slot.
    pub fn slot(number: u32, slot: u32) -> u64 {
        BASE + 2 * u64::from(number) * u64::from(slot)
    }

    /// Reads a register of the DMA writer.
    pub fn writer(&mut self, name: &str) -> u32 {
        self.read(&format!("pcie_dma0_writer_{name}"))
    }

    /// Sets a register of the DMA writer.
    pub fn set_writer(&mut self, name: &str, value: u32) {
        self.write(&format!("pcie_dma0_writer_{name}"), value);
    }

    /// Reads a register.
    pub fn read(&mut self, name: &str) -> u32 {
        self.card.read(0, self.names.register(name))
    }

    /// Sets a register.
    pub fn write(&mut self, name: &str, value: u32) {
        self.card
            .write(0, self.names.register(name), value, &self.memory);
    }

    /// Writes a descriptor into the table of `engine` (`writer` or `reader`): flags and length, address.
    pub fn push(&mut self, engine: &str, length: u32, address: u64) {
        let value = self
            .names
            .register(&format!("pcie_dma0_{engine}_table_value"));
        let address = u32::try_from(address).unwrap();
        self.card.write(0, value, length, &self.memory);
        self.card.write(0, value + 4, address, &self.memory);
        // The address bits from 32 on, which this gateware does not use. This write also pushes the descriptor.
        self.write(&format!("pcie_dma0_{engine}_table_we"), 0);
    }

    /// Starts the writer in loop mode over `slots` slots of `slot` bytes.
    pub fn start(&mut self, slots: u32, slot: u32) {
        self.set_writer("enable", 0);
        self.set_writer("table_reset", 1);
        self.set_writer("table_loop_prog_n", 0);
        for number in 0..slots {
            self.push("writer", slot, Self::slot(number, slot));
        }
        self.set_writer("table_loop_prog_n", 1);
        self.set_writer("enable", 1);
    }

    /// Stops the writer.
    pub fn stop(&mut self) {
        self.set_writer("table_loop_prog_n", 0);
        self.set_writer("table_reset", 1);
        // A transfer that has started ends within the millisecond that a driver waits. These are some hundred steps of
        // a device with data; a device without data makes no step.
        for _ in 0..200 {
            self.step();
        }
        self.set_writer("enable", 0);
        self.set_writer("table_reset", 1);
    }

    /// Runs one step of the device.
    pub fn step(&mut self) -> Step {
        self.card.step(&self.memory)
    }

    /// Runs steps until the device is idle. Panics if it does not become idle.
    pub fn finish(&mut self) {
        const MAX_STEPS: usize = 1_000_000;
        let steps = (0..MAX_STEPS)
            .take_while(|_| self.step() == Step::Busy)
            .count();
        assert!(steps < MAX_STEPS, "the card did not become idle");
    }

    /// Marks a slot as untouched.
    pub fn clear(&self, number: u32, slot: u32) {
        self.memory
            .put(Self::slot(number, slot), &vec![UNTOUCHED; slot as usize]);
    }

    /// Panics unless a slot contains all of transfer `number` of the stream, and the bytes after the slot are
    /// unchanged.
    pub fn assert_holds(&self, number: u32, slot: u32, transfer: u64) {
        let address = Self::slot(number, slot);
        let words = u64::from(slot) / 8;
        let expected: Vec<u8> = (transfer * words..(transfer + 1) * words)
            .flat_map(u64::to_le_bytes)
            .collect();
        let found = self.memory.get(address, slot as usize);
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            wrong, None,
            "slot {number} must contain transfer {transfer}; index of the first wrong byte"
        );
        let behind = address + u64::from(slot);
        assert!(
            self.memory.is_untouched(behind, slot as usize),
            "the bytes after slot {number} must not change"
        );
    }
}
