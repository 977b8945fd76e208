//! Memory that a device can access. It counts the accesses.

use daq_emulators::{Fault, Host};
use std::cell::{Cell, RefCell};

/// Initial value of all bytes, which shows that a byte was never written.
pub const UNTOUCHED: u8 = 0xa5;

/// A range of device addresses.
pub struct Memory {
    base: u64,
    bytes: RefCell<Vec<u8>>,
    interrupts: Cell<u64>,
    written: Cell<u64>,
    faults: RefCell<Vec<Fault>>,
}

impl Memory {
    /// Creates `bytes` bytes of memory at the device address `base`.
    pub fn new(base: u64, bytes: usize) -> Self {
        Self {
            base,
            bytes: RefCell::new(vec![UNTOUCHED; bytes]),
            interrupts: Cell::new(0),
            written: Cell::new(0),
            faults: RefCell::default(),
        }
    }

    /// Reads at a device address.
    pub fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        let start = usize::try_from(address - self.base).unwrap();
        self.bytes.borrow()[start..start + bytes].to_vec()
    }

    /// Writes `data` at a device address. Also used to reset bytes to the initial value.
    pub fn put(&self, address: u64, data: &[u8]) {
        let start = usize::try_from(address - self.base).unwrap();
        self.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(data);
    }

    /// Returns whether no byte of a range was ever written.
    pub fn is_untouched(&self, address: u64, bytes: usize) -> bool {
        self.get(address, bytes)
            .iter()
            .all(|byte| *byte == UNTOUCHED)
    }

    /// Returns the number of interrupts that were raised.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.get()
    }

    /// Returns the number of bytes that were written.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Returns the accesses outside of the memory.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.borrow().clone()
    }

    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, Fault> {
        let fault = Fault { address, bytes };
        let start = address
            .checked_sub(self.base)
            .and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(bytes)?));
        range
            .filter(|range| range.end <= self.bytes.borrow().len())
            .ok_or_else(|| {
                self.faults.borrow_mut().push(fault);
                fault
            })
    }
}

impl Host for Memory {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let range = self.range(address, bytes.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        self.written.set(self.written.get() + bytes.len() as u64);
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let range = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn interrupt(&self, vector: u16) {
        assert_eq!(vector, 0, "the card has one vector");
        self.interrupts.set(self.interrupts.get() + 1);
    }
}
