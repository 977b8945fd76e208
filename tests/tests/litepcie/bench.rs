//! A card on a table: its registers by their names, its memory beside it.

use crate::gateware::Names;
use crate::memory::{Memory, UNTOUCHED};
use daq_drivers::cards::{Card, Step};

/// Where the memory begins: not at 0, and not where the addresses of a wrong half of a word would lie.
pub const BASE: u64 = 0x1234_0000;

/// A descriptor's flags, above the 24 bits of its length.
pub const IRQ_DISABLE: u32 = 1 << 24;

/// The card and all around it.
pub struct Bench<C> {
    pub card: C,
    pub names: Names,
    pub memory: Memory,
}

impl<C: Card> Bench<C> {
    /// A card with memory for `slots` slots of `slot` bytes, each with as much behind it that nobody may touch.
    pub fn new(card: C, names: Names, slots: u32, slot: u32) -> Self {
        let memory = Memory::new(BASE, 2 * slots as usize * slot as usize);
        Self {
            card,
            names,
            memory,
        }
    }

    /// Where a slot is.
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

    /// Puts a descriptor into the table of `engine`, `writer` or `reader`: its flags and length, its address.
    pub fn push(&mut self, engine: &str, length: u32, address: u64) {
        let value = self
            .names
            .register(&format!("pcie_dma0_{engine}_table_value"));
        let address = u32::try_from(address).unwrap();
        self.card.write(0, value, length, &self.memory);
        self.card.write(0, value + 4, address, &self.memory);
        // Its address bits from 32 on, of which this design has none; and the push.
        self.write(&format!("pcie_dma0_{engine}_table_we"), 0);
    }

    /// Starts the writer going round over `slots` slots of `slot` bytes.
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

    /// Ends it.
    pub fn stop(&mut self) {
        self.set_writer("table_loop_prog_n", 0);
        self.set_writer("table_reset", 1);
        // What was begun comes to its end in less time than the millisecond that a driver waits: some hundred steps of
        // a card with data, none of one without.
        for _ in 0..200 {
            self.step();
        }
        self.set_writer("enable", 0);
        self.set_writer("table_reset", 1);
    }

    /// One step of the card.
    pub fn step(&mut self) -> Step {
        self.card.step(&self.memory)
    }

    /// Steps until there is nothing to do, which must come.
    pub fn finish(&mut self) {
        const MAX_STEPS: usize = 1_000_000;
        let steps = (0..MAX_STEPS)
            .take_while(|_| self.step() == Step::Busy)
            .count();
        assert!(steps < MAX_STEPS, "the card does not come to rest");
    }

    /// Makes a slot untouched again.
    pub fn clear(&self, number: u32, slot: u32) {
        self.memory
            .put(Self::slot(number, slot), &vec![UNTOUCHED; slot as usize]);
    }

    /// Fails unless a slot holds transfer `number` of the stream, in whole, and nothing has touched what lies behind.
    pub fn assert_holds(&self, number: u32, slot: u32, transfer: u64) {
        let address = Self::slot(number, slot);
        let words = u64::from(slot) / 8;
        let expected: Vec<u8> = (transfer * words..(transfer + 1) * words)
            .flat_map(u64::to_le_bytes)
            .collect();
        let found = self.memory.get(address, slot as usize);
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "slot {number}, transfer {transfer}");
        let behind = address + u64::from(slot);
        assert!(
            self.memory.is_untouched(behind, slot as usize),
            "behind {number}"
        );
    }
}
