//! Drives channel 0 of an emulated XDMA device by its registers, over any transport.

use daq_core::dma::{DmaBuffer, DmaMap};
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::device::{Device, Registers};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which an operation counts as hanging; far longer than any operation takes on a slow machine.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Value of the control register: run, enable all status bits, write the count back.
const CONTROL: u32 = 1 | 0x00f8_3e7e | 1 << 26;
/// Offsets of the results and of the count after the descriptors.
const RESULTS: usize = 0x1000;
const COUNT: usize = 0x2000;

/// A ring of slots, and the channel that fills the ring.
pub struct Bench {
    pub device: Arc<dyn Device>,
    pub registers: Arc<dyn Registers>,
    pub region: Arc<Region>,
    pub map: Option<DmaMap>,
    notes: DmaBuffer,
    file: File,
    slots: usize,
    slot: usize,
}

impl Bench {
    pub fn new(device: Arc<dyn Device>, slots: usize, slot: usize) -> Self {
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(slots * slot, options).unwrap();
        let file = region.file().unwrap().try_clone_to_owned().unwrap().into();
        let map = DmaMap::new(device.clone().as_dma(), region.clone()).unwrap();
        let notes = DmaBuffer::new(device.clone().as_dma(), COUNT + 64).unwrap();
        let registers = device.registers(1).unwrap();
        for place in 0..slots {
            let next = (place + 1) % slots;
            let at = 32 * place;
            notes.write32(at, 0xad4b_0002);
            notes.write32(at + 4, u32::try_from(slot).unwrap());
            notes.write64(at + 8, notes.address() + (RESULTS + 32 * place) as u64);
            notes.write64(at + 16, map.address() + (slot * place) as u64);
            notes.write64(at + 24, notes.address() + 32 * next as u64);
        }
        Self {
            device,
            registers,
            region,
            map: Some(map),
            notes,
            file,
            slots,
            slot,
        }
    }

    /// Starts channel 0 in credit mode, without credits.
    pub fn start(&self) {
        let low = |address: u64| u32::try_from(address & 0xffff_ffff).unwrap();
        let high = |address: u64| u32::try_from(address >> 32).unwrap();
        let (first, count) = (self.notes.address(), self.notes.address() + COUNT as u64);
        self.notes.write32(COUNT, 0);
        self.registers.write(0x6024, 1 << 16);
        self.registers.write(0x1088, low(count));
        self.registers.write(0x108c, high(count));
        self.registers.write(0x5080, low(first));
        self.registers.write(0x5084, high(first));
        self.registers.write(0x5088, 0);
        self.registers.write(0x1004, CONTROL);
    }

    pub fn credit(&self, credits: u32) {
        self.registers.write(0x508c, credits);
    }

    /// Clears RUN and waits until no transfer is in progress.
    pub fn stop(&self) {
        self.registers.write(0x100c, 1);
        until("the channel to stop", || {
            self.registers.read(0x1040) & 1 == 0
        });
    }

    /// Returns the count that was written back.
    pub fn count(&self) -> u32 {
        self.notes.read32(COUNT)
    }

    pub fn wait_count(&self, count: u32) {
        until("a count", || self.count() >= count);
    }

    /// Waits for the result of `slot` and returns its length in bytes.
    pub fn length(&self, slot: usize) -> usize {
        let word = self.notes.read64(RESULTS + 32 * slot);
        assert_eq!(word >> 16 & 0xffff, 0x52b4, "{word:#x}");
        usize::try_from(word >> 32).unwrap()
    }

    /// Returns the contents of `slot`.
    pub fn payload(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.slot];
        let at = (slot % self.slots * self.slot) as u64;
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Overwrites the ring with zeros.
    pub fn clear(&self) {
        let zeros = vec![0; self.slots * self.slot];
        self.file.write_all_at(&zeros, 0).unwrap();
    }

    pub fn is_clear(&self) -> bool {
        (0..self.slots).all(|slot| self.payload(slot).iter().all(|byte| *byte == 0))
    }
}

/// Waits until `is_so` returns true; `what` describes the condition in the error.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "waiting for {what}");
        std::thread::yield_now();
    }
}
