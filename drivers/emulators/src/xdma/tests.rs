//! Tests of the device through its registers.

use super::*;
use crate::Fault;
use crate::pattern::{Pattern, verify};
use daq_core::units::{BitRate, ByteSize};
use std::cell::RefCell;

const RUN: u32 = 1;
const POLL: u32 = 1 << 26;
/// Mask that enables all status bits.
const LOG: u32 = 0x00f8_3e7e;
const SLOT: usize = 4096;
const SLOTS: usize = 8;
/// Addresses in the memory of these tests.
const DESCRIPTORS: u64 = 0x1000;
const RESULTS: u64 = 0x2000;
const COUNT: u64 = 0x3000;
const PAYLOAD: u64 = 0x1_0000;

/// Memory with a record of all writes in order, and the raised interrupts.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    writes: RefCell<Vec<(u64, usize)>>,
    interrupts: RefCell<Vec<u16>>,
}

impl Memory {
    fn new() -> Self {
        Self {
            bytes: RefCell::new(vec![0; 0x2_0000]),
            writes: RefCell::default(),
            interrupts: RefCell::default(),
        }
    }

    fn word(&self, address: u64) -> u32 {
        let mut word = [0; 4];
        Host::read(self, address, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn put(&self, address: u64, words: &[u32]) {
        let at = usize::try_from(address).unwrap();
        for (place, word) in words.iter().enumerate() {
            let at = at + 4 * place;
            self.bytes.borrow_mut()[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn slot(&self, slot: usize, bytes: usize) -> Vec<u8> {
        let at = usize::try_from(PAYLOAD).unwrap() + slot * SLOT;
        self.bytes.borrow()[at..at + bytes].to_vec()
    }
}

impl Host for Memory {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(address).unwrap();
        let mut memory = self.bytes.borrow_mut();
        let place = memory.get_mut(at..at + bytes.len()).ok_or(Fault {
            address,
            bytes: bytes.len(),
        })?;
        place.copy_from_slice(bytes);
        self.writes.borrow_mut().push((address, bytes.len()));
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let at = usize::try_from(address).unwrap();
        let memory = self.bytes.borrow();
        let place = memory.get(at..at + bytes.len()).ok_or(Fault {
            address,
            bytes: bytes.len(),
        })?;
        bytes.copy_from_slice(place);
        Ok(())
    }

    fn interrupt(&self, vector: u16) {
        self.interrupts.borrow_mut().push(vector);
    }
}

/// A device and a ring of [`SLOTS`] slots for its channel 1.
struct Bench {
    card: Xdma,
    memory: Memory,
}

/// The channel under test. This is not the first channel, so that errors in offset calculations are detected.
const CHANNEL: u64 = 1;

impl Bench {
    fn new(options: &EmulatedOptions) -> Self {
        options.check(FAULTS).unwrap();
        let this = Self {
            card: Xdma::new(options),
            memory: Memory::new(),
        };
        for slot in 0..SLOTS {
            this.descriptor(slot, |_| {});
        }
        this
    }

    /// Writes descriptor `slot` of the ring, modified by `change`.
    fn descriptor(&self, slot: usize, change: impl FnOnce(&mut [u32; 8])) {
        let low = |address: u64| u32::try_from(address).unwrap();
        let next = (slot + 1) % SLOTS;
        let adjacent = u32::try_from(SLOTS - 1 - next).unwrap();
        let mut words = [
            0xad4b_0002 | adjacent << 8,
            u32::try_from(SLOT).unwrap(),
            low(RESULTS) + 32 * u32::try_from(slot).unwrap(),
            0,
            low(PAYLOAD) + u32::try_from(slot * SLOT).unwrap(),
            0,
            low(DESCRIPTORS) + 32 * u32::try_from(next).unwrap(),
            0,
        ];
        change(&mut words);
        self.memory.put(DESCRIPTORS + 32 * slot as u64, &words);
    }

    fn set(&mut self, offset: u64, value: u32) {
        self.card.write(SUBSYSTEM, offset, value, &self.memory);
    }

    fn get(&mut self, offset: u64) -> u32 {
        self.card.read(SUBSYSTEM, offset)
    }

    fn start(&mut self, has_credits: bool, control: u32) {
        let (base, sgdma) = (0x1000 + 0x100 * CHANNEL, 0x5000 + 0x100 * CHANNEL);
        self.set(0x6024, u32::from(has_credits) << (16 + CHANNEL));
        self.set(base + 0x88, u32::try_from(COUNT).unwrap());
        self.set(base + 0x8c, 0);
        self.set(sgdma + 0x80, u32::try_from(DESCRIPTORS).unwrap());
        self.set(sgdma + 0x84, 0);
        self.set(sgdma + 0x88, u32::try_from(SLOTS - 1).unwrap());
        self.set(base + 0x04, control | RUN);
    }

    fn credit(&mut self, credits: u32) {
        self.set(0x508c + 0x100 * CHANNEL, credits);
    }

    fn status(&mut self) -> u32 {
        self.get(0x1040 + 0x100 * CHANNEL)
    }

    fn completed(&mut self) -> u32 {
        self.get(0x1048 + 0x100 * CHANNEL)
    }

    /// Runs steps until there is no more immediate work.
    fn run(&mut self) -> Step {
        for _ in 0..10_000 {
            let step = self.card.step(&self.memory);
            if step != Step::Busy {
                return step;
            }
        }
        Step::Busy
    }

    fn result(&self, slot: u64) -> (u32, u32) {
        (
            self.memory.word(RESULTS + 32 * slot),
            self.memory.word(RESULTS + 32 * slot + 4),
        )
    }
}

fn with(fault: &str) -> EmulatedOptions {
    EmulatedOptions {
        faults: vec![fault.parse().unwrap()],
        ..EmulatedOptions::default()
    }
}

#[test]
fn identification_registers_are_correct() {
    let mut bench = Bench::new(&EmulatedOptions::default());
    assert_eq!(bench.get(0x2000) >> 16, 0x1fc2);
    assert_eq!(bench.get(0x3000) >> 16, 0x1fc3);
    assert_eq!(bench.get(0x6000) >> 16, 0x1fc6);
    for channel in 0..4 {
        let id = bench.get(0x1000 + 0x100 * channel);
        assert_eq!((id >> 16, id >> 15 & 1), (0x1fc1, 1));
        assert_eq!(u64::from(id >> 8 & 0xf), channel);
        assert_eq!(bench.get(0x5000 + 0x100 * channel) >> 16, 0x1fc5);
    }
    for absent in [0, 0x100, 0x1400, 0x4000, 0x7000, 0x5400] {
        assert_eq!(bench.get(absent), 0, "{absent:#x}");
    }
    assert_eq!(bench.card.read(USER, 0), USER_MARK);
}

#[test]
fn credits_apply_backpressure_and_ring_wraps() {
    let mut bench = Bench::new(&EmulatedOptions::default());
    bench.start(true, LOG | POLL);
    assert_eq!(bench.run(), Step::Idle);
    assert!(bench.memory.writes.borrow().is_empty());
    let mut at = 0;
    for (credits, slots) in [(3, 0..3), (7, 3..10), (1, 10..11), (8, 11..19)] {
        bench.credit(credits);
        assert_eq!(bench.run(), Step::Idle);
        assert_eq!(bench.get(0x508c + 0x100 * CHANNEL), 0);
        for transfer in slots {
            let slot = transfer % SLOTS;
            assert_eq!(
                bench.result(slot as u64),
                (0x52b4_0000, u32::try_from(SLOT).unwrap())
            );
            let payload = bench.memory.slot(slot, SLOT);
            assert_eq!(verify(Pattern::Counter, SLOT as u64, at, &payload), None);
            at += SLOT as u64;
            assert!(bench.memory.word(COUNT) > u32::try_from(transfer).unwrap());
        }
    }
    assert_eq!((bench.completed(), bench.memory.word(COUNT)), (19, 19));
    // The required order is payload, result, count.
    let writes = bench.memory.writes.borrow();
    assert_eq!(
        writes[..4],
        [
            (PAYLOAD, SLOT),
            (RESULTS, 8),
            (COUNT, 4),
            (PAYLOAD + SLOT as u64, SLOT)
        ]
    );
}

#[test]
fn ring_without_credits_is_free_running() {
    let mut bench = Bench::new(&EmulatedOptions {
        packets: Some(20),
        ..EmulatedOptions::default()
    });
    bench.start(false, LOG | POLL);
    bench.credit(5);
    assert_eq!(
        bench.get(0x508c + 0x100 * CHANNEL),
        0,
        "credits are ignored without credit mode"
    );
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.memory.word(COUNT), 20);
    // The end of the stream ends a packet.
    assert_eq!(bench.result(19 % 8).0, 0x52b4_0001);
    assert_eq!(bench.result(18 % 8).0, 0x52b4_0000);
    assert_eq!(bench.status() & 1, 1, "the channel waits for more data");
    bench.set(0x100c + 0x100 * CHANNEL, RUN);
    bench.run();
    assert_eq!(bench.status(), 1 << 6 | 1 << 2);
}

#[test]
fn packet_end_completes_slot_early() {
    for (packet, lengths) in [
        (1000, vec![(1000, 1); 6]),
        (4096, vec![(4096, 1); 6]),
        (
            10_000,
            vec![
                (4096, 0),
                (4096, 0),
                (1808, 1),
                (4096, 0),
                (4096, 0),
                (1808, 1),
            ],
        ),
    ] {
        let mut bench = Bench::new(&EmulatedOptions {
            packet: Some(ByteSize(packet)),
            pattern: Pattern::Sequence,
            ..EmulatedOptions::default()
        });
        bench.start(true, LOG);
        bench.credit(6);
        bench.run();
        let mut at = 0;
        for (slot, (length, end)) in lengths.into_iter().enumerate() {
            assert_eq!(bench.result(slot as u64), (0x52b4_0000 | end, length));
            let payload = bench.memory.slot(slot, length as usize);
            assert_eq!(verify(Pattern::Sequence, packet, at, &payload), None);
            at += u64::from(length);
        }
    }
}

#[test]
fn enabled_error_bits_are_logged_and_stop_channel() {
    for (name, bit) in &ERRORS {
        for is_logged in [true, false] {
            let mut bench = Bench::new(&with(&format!("{name}@2")));
            let log = if is_logged { LOG } else { LOG & !bit };
            bench.start(true, log | POLL);
            bench.credit(5);
            assert_eq!(bench.run(), Step::Idle);
            let expected = if is_logged { *bit } else { 0 } | 1 << 2;
            assert_eq!(bench.status(), expected, "{name}");
            assert_eq!(bench.memory.word(COUNT), 1 << 31 | 2);
            assert_eq!(bench.result(2), (0, 0));
            // Reading the status clears it, and it is not set again.
            assert_eq!(bench.get(0x1044 + 0x100 * CHANNEL), expected);
            assert_eq!(bench.status(), 0);
            bench.set(0x1004 + 0x100 * CHANNEL, 0);
            bench.start(true, log | POLL);
            assert_eq!(bench.completed(), 0, "the count restarts");
            bench.credit(5);
            bench.run();
            assert_eq!((bench.completed(), bench.status()), (5, 1 << 2 | 1));
        }
    }
}

#[test]
fn invalid_descriptor_is_rejected() {
    type Change = fn(&mut [u32; 8]);
    let wrong: [(Change, u32); 4] = [
        (|words| words[0] &= 0xffff, 1 << 4),
        (|words| words[1] = 0, 1 << 5),
        (|words| words[4] += 4, 1 << 3),
        (|words| words[6] = 0x7fff_0000, 1 << 19),
    ];
    for (change, bit) in wrong {
        let mut bench = Bench::new(&EmulatedOptions::default());
        bench.descriptor(1, change);
        bench.start(false, LOG);
        assert_eq!(bench.run(), Step::Idle);
        assert_eq!(bench.status() & !(1 << 2), bit);
    }
    // This block of descriptors crosses a page boundary.
    let mut bench = Bench::new(&EmulatedOptions::default());
    bench.start(true, LOG);
    bench.set(0x1004 + 0x100 * CHANNEL, 0);
    bench.set(0x5080 + 0x100 * CHANNEL, 0x1fe0);
    bench.set(0x1004 + 0x100 * CHANNEL, LOG | RUN);
    bench.credit(8);
    bench.run();
    assert_eq!(bench.status(), 1 << 19);
}

#[test]
fn stop_descriptor_stops_channel() {
    let mut bench = Bench::new(&EmulatedOptions::default());
    bench.descriptor(3, |words| words[0] |= 1);
    bench.start(false, LOG);
    bench.run();
    assert_eq!((bench.completed(), bench.status()), (4, 1 << 1 | 1 << 2));
}

#[test]
fn only_started_transfer_is_finished_after_stop() {
    let options = EmulatedOptions {
        // One packet per second; two packets are available after two seconds.
        rate: Some(BitRate(8.0 * 1024.0)),
        packet: Some(ByteSize(1024)),
        ..EmulatedOptions::default()
    };
    let mut bench = Bench::new(&options);
    bench.start(false, LOG);
    assert!(matches!(bench.run(), Step::After(_)));
    bench.set(0x1004 + 0x100 * CHANNEL, LOG);
    assert_eq!(bench.status() & 1, 1, "the channel is still busy");
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.status(), 1 << 6);
}

#[test]
fn interrupt_is_raised_on_rising_status() {
    let mut bench = Bench::new(&EmulatedOptions::default());
    // Vector 9 for channel 1; not raised before it is enabled.
    bench.set(0x20a0, 9 << 8 | 3);
    bench.set(0x1094 + 0x100 * CHANNEL, 1 << 2);
    bench.start(true, LOG);
    bench.credit(1);
    bench.run();
    assert!(bench.memory.interrupts.borrow().is_empty());
    assert_eq!((bench.get(0x2044), bench.get(0x204c)), (2, 0));
    bench.set(0x2014, 2);
    assert_eq!(*bench.memory.interrupts.borrow(), [9]);
    // The cause is still set, so no new interrupt is raised.
    bench.credit(1);
    bench.run();
    assert_eq!(bench.memory.interrupts.borrow().len(), 1);
    bench.get(0x1044 + 0x100 * CHANNEL);
    assert_eq!(bench.get(0x204c), 0);
    bench.credit(1);
    bench.run();
    assert_eq!(*bench.memory.interrupts.borrow(), [9, 9]);
}

#[test]
fn faults_have_named_effect() {
    let mut bench = Bench::new(&with("stuck@2"));
    bench.start(true, LOG | POLL);
    bench.credit(5);
    assert_eq!(bench.run(), Step::Idle);
    bench.set(0x1004 + 0x100 * CHANNEL, 0);
    bench.run();
    assert_eq!((bench.status() & 1, bench.memory.word(COUNT)), (1, 2));
    bench.card.reset();
    assert_eq!(bench.status(), 0);
    bench.start(true, LOG | POLL);
    bench.credit(5);
    bench.run();
    assert_eq!(bench.memory.word(COUNT), 5);

    let mut bench = Bench::new(&with("remove@2"));
    bench.start(true, LOG | POLL);
    bench.credit(5);
    assert_eq!(bench.run(), Step::Removed);

    let mut bench = Bench::new(&with("lie@2"));
    bench.start(true, LOG | POLL);
    bench.credit(5);
    bench.run();
    assert_eq!(bench.result(2), (0x52b4_0000, 4096));
    assert_eq!(bench.memory.slot(2, SLOT), [0; SLOT]);
    let after = bench.memory.slot(3, SLOT);
    assert_eq!(verify(Pattern::Counter, 4096, 3 * 4096, &after), None);

    let mut bench = Bench::new(&with("late@2"));
    bench.start(true, LOG | POLL);
    bench.credit(3);
    assert!(matches!(bench.card.step(&bench.memory), Step::After(_)));
    assert_eq!((bench.memory.word(COUNT), bench.result(2)), (3, (0, 0)));
    while bench.run() != Step::Idle {}
    assert_eq!(bench.result(2), (0x52b4_0000, 4096));

    let mut bench = Bench::new(&EmulatedOptions {
        packet: Some(ByteSize(4096)),
        pattern: Pattern::Sequence,
        ..with("overrun@2")
    });
    bench.start(true, LOG | POLL);
    bench.credit(5);
    bench.run();
    let first = |slot| u64::from_le_bytes(bench.memory.slot(slot, 8).try_into().unwrap());
    assert_eq!([0, 1, 2, 3, 4].map(first), [0, 1, 3, 4, 5]);
}

#[test]
fn closed_gate_blocks_stream() {
    let mut bench = Bench::new(&EmulatedOptions::default());
    bench.card.write(USER, 4, 0, &bench.memory);
    bench.start(true, LOG);
    bench.credit(2);
    assert_eq!(bench.run(), Step::Idle);
    assert_eq!(bench.completed(), 0);
    bench.card.write(USER, 4, 1, &bench.memory);
    bench.run();
    assert_eq!(bench.completed(), 2);
}
