//! Tests of the device through its registers. The repository's tests compare the registers with LitePCIe's gateware.

use super::*;
use crate::Fault;
use crate::pattern::{Pattern, verify};
use daq_core::units::{BitRate, ByteSize};
use std::cell::{Cell, RefCell};

const SLOT: u32 = 4096;
const SLOTS: u32 = 4;
/// Device address of the first slot.
const BASE: u32 = 0x8000_0000;

struct Memory {
    bytes: RefCell<Vec<u8>>,
    interrupts: Cell<u32>,
}

impl Host for Memory {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(address - u64::from(BASE)).unwrap();
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let bytes = bytes.len();
        Err(Fault { address, bytes })
    }

    fn interrupt(&self, vector: u16) {
        assert_eq!(vector, 0);
        self.interrupts.set(self.interrupts.get() + 1);
    }
}

struct Bench {
    card: LitePcie,
    memory: Memory,
}

impl Bench {
    fn new(options: &EmulatedOptions) -> Self {
        Self {
            card: LitePcie::new(options).unwrap(),
            memory: Memory {
                bytes: RefCell::new(vec![0xa5; (SLOTS * SLOT) as usize]),
                interrupts: Cell::new(0),
            },
        }
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.card.write(0, offset, value, &self.memory);
    }

    /// Starts the writer in loop mode over all slots, with interrupts.
    fn start(&mut self) {
        for (offset, value) in [(ENABLE, 0), (RESET, 1), (LOOPS, 0), (MSI_ENABLE, 1)] {
            self.write(offset, value);
        }
        for slot in 0..SLOTS {
            for (offset, value) in [
                (VALUE_HIGH, SLOT),
                (VALUE_LOW, BASE + slot * SLOT),
                (PUSH, 0),
            ] {
                self.write(offset, value);
            }
        }
        self.write(LOOPS, 1);
        self.write(ENABLE, 1);
    }

    /// Runs steps until there is no more immediate work.
    fn run(&mut self) -> Step {
        loop {
            let step = self.card.step(&self.memory);
            if step != Step::Busy {
                return step;
            }
        }
    }

    fn slot(&self, slot: u32) -> Vec<u8> {
        let at = (slot * SLOT) as usize;
        self.memory.bytes.borrow()[at..at + SLOT as usize].to_vec()
    }

    /// Returns the number of the transfer whose bytes are in a slot.
    fn transfer(&self, slot: u32) -> Option<u64> {
        let bytes = self.slot(slot);
        let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        // Bytes that were never written are not a valid position in the stream.
        let at = first.checked_mul(8)?;
        verify(Pattern::Counter, 8, at, &bytes)
            .is_none()
            .then(|| at / u64::from(SLOT))
    }

    fn status(&mut self) -> (u32, u32) {
        let status = self.card.read(0, STATUS);
        (status >> 16, status & 0xffff)
    }
}

/// Options for a stream that ends after this number of transfers, with faults.
fn ending(transfers: u64, faults: &[&str]) -> EmulatedOptions {
    EmulatedOptions {
        packet: Some(ByteSize(SLOT.into())),
        packets: Some(transfers),
        faults: faults.iter().map(|fault| fault.parse().unwrap()).collect(),
        ..EmulatedOptions::default()
    }
}

#[test]
fn loop_mode_wraps_and_restarts() {
    let mut bench = Bench::new(&ending(10, &[]));
    for interrupts in [10, 20] {
        bench.start();
        assert_eq!(bench.run(), Step::Idle);
        assert_eq!(bench.status(), (2, 1));
        let found: Vec<_> = (0..SLOTS).map(|slot| bench.transfer(slot)).collect();
        assert_eq!(found, [Some(8), Some(9), Some(6), Some(7)]);
        assert_eq!(bench.memory.interrupts.get(), interrupts);
        assert_eq!(bench.card.read(0, MSI_VECTOR), 1);
        bench.write(MSI_CLEAR, 1);
        assert_eq!(bench.card.read(0, MSI_VECTOR), 0);
    }
}

#[test]
fn first_transfer_is_not_visible_in_status() {
    for (transfers, status) in [
        (0, (0, 0)),
        (1, (0, 0)),
        (2, (0, 1)),
        (4, (0, 3)),
        (5, (1, 0)),
    ] {
        let mut bench = Bench::new(&ending(20, &[&format!("stuck@{transfers}")]));
        bench.start();
        assert_eq!(bench.run(), Step::Idle);
        assert_eq!(bench.status(), status, "{transfers}");
        assert_eq!(bench.memory.interrupts.get(), transfers);
    }
}

#[test]
fn loop_counter_wraps() {
    let mut bench = Bench::new(&EmulatedOptions {
        packet: Some(ByteSize(8)),
        packets: Some(3 * 65_536 + 1),
        ..EmulatedOptions::default()
    });
    bench.write(RESET, 1);
    for _ in 0..3 {
        for (offset, value) in [(VALUE_HIGH, 8), (VALUE_LOW, BASE), (PUSH, 0)] {
            bench.write(offset, value);
        }
    }
    bench.write(LOOPS, 1);
    bench.write(ENABLE, 1);
    bench.run();
    assert_eq!(bench.status(), (0, 0));
    assert_eq!(bench.memory.interrupts.get(), 0, "interrupts are disabled");
}

#[test]
fn stuck_writer_keeps_running_until_reset() {
    let mut bench = Bench::new(&ending(10, &["stuck@3"]));
    bench.start();
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.status(), (0, 2));
    bench.start();
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.status(), (0, 0), "a start does not reset the counter");
    bench.card.reset();
    bench.start();
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.status(), (2, 1));
}

#[test]
fn removed_device_reads_all_ones() {
    let mut bench = Bench::new(&ending(10, &["remove@2"]));
    bench.start();
    assert_eq!(bench.run(), Step::Removed);
    assert_eq!(bench.card.read(0, STATUS), u32::MAX);
    assert_eq!([bench.transfer(1), bench.transfer(2)], [Some(1), None]);
}

#[test]
fn false_completion_is_reported_without_write() {
    let mut bench = Bench::new(&ending(3, &["lie@1", "lost-interrupt@2"]));
    bench.start();
    bench.run();
    assert_eq!(bench.status(), (0, 2));
    assert_eq!(bench.memory.interrupts.get(), 2);
    let found: Vec<_> = (0..3).map(|slot| bench.transfer(slot)).collect();
    assert_eq!(found, [Some(0), None, Some(2)]);
    assert!(bench.slot(1).iter().all(|byte| *byte == 0xa5));
}

/// A burst must write more than one loop in a single step, even if the stream has a rate. The burst must contain the
/// data of the stream.
#[test]
fn burst_overruns_every_reader() {
    for rate in [None, Some(BitRate(1e-6))] {
        let mut bench = Bench::new(&EmulatedOptions {
            rate,
            ..ending(20, &["overrun@0"])
        });
        bench.start();
        bench.card.step(&bench.memory);
        let (round, _) = bench.status();
        assert!(round >= 1, "{rate:?}");
        if rate.is_some() {
            // Seven transfers in one step: a whole loop, half a loop, and one.
            assert_eq!(bench.status(), (1, 2));
            assert_eq!(bench.transfer(2), Some(6));
            assert!(matches!(bench.run(), Step::After(_)));
        }
    }
}

#[test]
fn full_bus_packets_are_written_before_end_of_transfer() {
    let mut bench = Bench::new(&EmulatedOptions {
        packet: Some(ByteSize(8)),
        packets: Some(100),
        ..EmulatedOptions::default()
    });
    bench.start();
    assert_eq!(bench.run(), Step::Idle);
    let slot = bench.slot(0);
    assert_eq!(verify(Pattern::Counter, 8, 0, &slot[..768]), None);
    assert!(slot[768..].iter().all(|byte| *byte == 0xa5));
    bench.write(ENABLE, 0);
    bench.write(ENABLE, 1);
    bench.run();
    assert_eq!(bench.slot(0), slot, "the stream restarts");
}

/// The names in `csr.csv` must have the addresses that the device uses.
#[test]
fn register_names_match_csr_csv() {
    let address = |name: &str| {
        let line = CSR
            .lines()
            .find(|line| line.starts_with(&format!("csr_register,{name},")));
        let text = line.unwrap().split(',').nth(2).unwrap();
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    };
    for (name, offset) in [
        ("ctrl_scratch", SCRATCH),
        ("pcie_msi_enable", MSI_ENABLE),
        ("pcie_msi_clear", MSI_CLEAR),
        ("pcie_msi_vector", MSI_VECTOR),
        ("pcie_dma0_writer_enable", ENABLE),
        ("pcie_dma0_writer_table_value", VALUE_HIGH),
        ("pcie_dma0_writer_table_we", PUSH),
        ("pcie_dma0_writer_table_loop_prog_n", LOOPS),
        ("pcie_dma0_writer_table_loop_status", STATUS),
        ("pcie_dma0_writer_table_level", LEVEL),
        ("pcie_dma0_writer_table_reset", RESET),
    ] {
        assert_eq!(address(name), offset, "{name}");
    }
    assert!(CSR.contains("constant,pcie_dma0_writer_interrupt,0,"));
}
