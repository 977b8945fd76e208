//! Compares the emulated device with the real gateware. The same register writes in the same order must give the same
//! reads, the same bytes in memory and the same number of interrupts.

use crate::litepcie::bench::{BASE, Bench, IRQ_DISABLE};
use crate::litepcie::gateware::{Gateware, Names};
use crate::litepcie::gateware_bench;
use daq_core::units::{BitRate, ByteSize};
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_emulators::{EmulatedDevice, litepcie};
use daq_testkit::{Random, skip};
use std::sync::atomic::Ordering;

/// Size of the memory to which descriptors point, in bytes.
const MEMORY: u32 = 16 << 10;
/// Registers of the writer.
const REGISTERS: [&str; 7] = [
    "enable",
    "table_value",
    "table_we",
    "table_loop_prog_n",
    "table_loop_status",
    "table_level",
    "table_reset",
];

/// A device whose stream receives data on request.
pub trait Fed: EmulatedDevice {
    /// Adds `words` words to the stream.
    fn more(&mut self, words: u64);

    /// Removes the remaining words.
    fn none(&mut self);
}

impl Fed for Gateware {
    fn more(&mut self, words: u64) {
        self.feed().fetch_add(words, Ordering::Relaxed);
    }

    fn none(&mut self) {
        self.feed().store(0, Ordering::Relaxed);
    }
}

impl Fed for litepcie::LitePcie {
    fn more(&mut self, words: u64) {
        self.hurry(8 * words);
    }

    /// The stream restarts when the writer is enabled, so there is nothing to remove.
    fn none(&mut self) {}
}

/// One action on a device.
#[derive(Clone, Copy, Debug)]
enum Act {
    Enable(u32),
    Loop(u32),
    Reset(u32),
    Push { length: u32, address: u64 },
    Interrupts(bool),
    Clear,
    Feed(u64),
}

impl Act {
    fn random(random: &mut Random) -> Self {
        let bit = |random: &mut Random| u32::from(random.below(3) > 0);
        match random.below(20) {
            0 | 1 => Self::Enable(bit(random)),
            2 => Self::Enable(0),
            3 | 4 => Self::Loop(bit(random)),
            5 => Self::Reset(bit(random)),
            6..=10 => {
                // From one word to some packets, often complete packets.
                let words = match random.below(3) {
                    0 => 32 * (1 + random.below(8)),
                    1 => 1 + random.below(31),
                    _ => 1 + random.below(300),
                };
                let place = random.below(u64::from(MEMORY) / 8 - words);
                let silent = [0, IRQ_DISABLE][usize::from(random.below(4) == 0)];
                Self::Push {
                    length: u32::try_from(8 * words).unwrap() | silent,
                    address: BASE + 8 * place,
                }
            }
            11 => Self::Interrupts(random.below(4) > 0),
            12 => Self::Clear,
            _ => Self::Feed(random.below(500)),
        }
    }
}

impl<C: Fed> Bench<C> {
    fn act(&mut self, act: Act) {
        let bit = 1 << self.names.constant("pcie_dma0_writer_interrupt");
        match act {
            Act::Enable(value) => {
                if self.writer("enable") & 1 == 0 {
                    self.card.none();
                }
                self.set_writer("enable", value);
            }
            Act::Loop(value) => self.set_writer("table_loop_prog_n", value),
            Act::Reset(value) => self.set_writer("table_reset", value),
            Act::Push { length, address } => self.push("writer", length, address),
            Act::Interrupts(yes) => self.write("pcie_msi_enable", bit * u32::from(yes)),
            Act::Clear => self.write("pcie_msi_clear", bit),
            // Stream data that is not read must not be kept for later, so data is added only while the writer is
            // enabled.
            Act::Feed(words) if self.writer("enable") & 1 != 0 => self.card.more(words),
            Act::Feed(_) => {}
        }
        self.finish();
    }

    /// Returns all readable state, except for the position of the interrupt bit, which differs between designs.
    fn seen(&mut self) -> (Vec<u32>, u64, u64) {
        let bit = self.names.constant("pcie_dma0_writer_interrupt");
        let mut words: Vec<u32> = REGISTERS.iter().map(|name| self.writer(name)).collect();
        let low = self.names.register("pcie_dma0_writer_table_value") + 4;
        words.push(self.card.read(0, low));
        for name in ["pcie_msi_enable", "pcie_msi_clear", "pcie_msi_vector"] {
            words.push(self.read(name) >> bit);
        }
        (words, self.memory.interrupts(), self.memory.written())
    }
}

fn model() -> Bench<litepcie::LitePcie> {
    let options = EmulatedOptions {
        packet: Some(ByteSize(8)),
        // The rate is so low that data arrives only on request during this test.
        rate: Some(BitRate(1e-9)),
        ..EmulatedOptions::default()
    };
    let card = litepcie::LitePcie::new(&options).unwrap();
    Bench::new(card, Names::parse(litepcie::CSR), 1, MEMORY / 2)
}

#[test]
fn emulator_transfers_equal_gateware() {
    let mut seen = [0; 4];
    for seed in 0..300 {
        let mut real = match gateware_bench(1, MEMORY / 2) {
            Ok(bench) => bench,
            Err(why) => skip!("{why}"),
        };
        let mut model = model();
        let mut random = Random(seed);
        let mut done = Vec::new();
        for _ in 0..40 {
            let act = Act::random(&mut random);
            done.push(act);
            real.act(act);
            model.act(act);
            let (of_real, of_model) = (real.seen(), model.seen());
            assert_eq!(of_model, of_real, "seed {seed}: {done:#x?}");
        }
        let whole = MEMORY as usize;
        assert!(
            model.memory.get(BASE, whole) == real.memory.get(BASE, whole),
            "seed {seed}: gateware and emulated card wrote different memory"
        );
        assert_eq!(
            (real.memory.faults(), model.memory.faults()),
            (vec![], vec![])
        );
        // Totals over all scripts: transfers, loops, interrupts and bytes.
        let (words, interrupts, written) = real.seen();
        let status = words[4];
        seen[0] += u64::from(status & 0xffff);
        seen[1] += u64::from(status >> 16);
        seen[2] += interrupts;
        seen[3] += written;
    }
    assert!(
        seen.iter().all(|sum| *sum > 100),
        "the scripts test too little; transfers, loops, interrupts and bytes: {seen:?}"
    );
}

/// The writer is disabled after any part of three slots in loop mode. Both devices must have the same counter.
/// Disabling keeps the counter, and resetting the table clears it.
#[test]
fn emulator_stop_equals_gateware() {
    const SLOT: u32 = 512;
    for words in (0..400).step_by(16) {
        let mut real = match gateware_bench(1, MEMORY / 2) {
            Ok(bench) => bench,
            Err(why) => skip!("{why}"),
        };
        let mut model = model();
        let slot = |number| Act::Push {
            length: SLOT,
            address: BASE + number * u64::from(SLOT),
        };
        let start = [Act::Reset(1), slot(0), slot(1), slot(2), Act::Loop(1)];
        let stop = [Act::Enable(0), Act::Loop(0), Act::Reset(1)];
        let run = [Act::Enable(1), Act::Feed(words)];
        let acts = start.into_iter().chain(run).chain(stop);
        let mut reported = Vec::new();
        for act in acts {
            real.act(act);
            model.act(act);
            assert_eq!(model.seen(), real.seen(), "{words} words, {act:?}");
            reported.push(real.writer("table_loop_status"));
        }
        let finished = words * 8 / u64::from(SLOT);
        let expected = crate::litepcie::status(finished, 3);
        assert_eq!(
            reported[reported.len() - 4..],
            [expected, expected, expected, 0]
        );
    }
}
