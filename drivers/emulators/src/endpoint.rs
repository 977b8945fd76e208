//! An emulated device on its bus: configuration space, memory and interrupts.

use super::config_space::{ConfigSpace, Effect, TABLE_BYTES, sizes};
use super::{BARS, EmulatedDevice, Fault, Host, Identity, Step};
use crate::sys::memory::DeviceMemory;
use std::cell::Cell;
use std::os::fd::OwnedFd;

/// The value of a register that does not respond.
const ALL_ONES: u32 = u32::MAX;

/// An emulated device with its configuration space, its mapped memory and its interrupts.
///
/// A single thread owns the device. Therefore the device does not write memory after that memory was unmapped.
pub struct Endpoint {
    card: Box<dyn EmulatedDevice>,
    identity: Identity,
    sizes: [u32; BARS],
    config: ConfigSpace,
    /// The MSI-X table as plain storage. Interrupts do not use this table, because clients connect event file
    /// descriptors instead.
    table: Vec<u32>,
    bus: Bus,
    is_removed: bool,
}

/// The memory and the interrupts that the device can access.
#[derive(Debug, Default)]
struct Bus {
    memory: DeviceMemory,
    vectors: Vec<Option<OwnedFd>>,
    may_master: bool,
    faults: Cell<u64>,
}

impl Endpoint {
    /// Creates the endpoint of `card` in its state after power-on.
    pub fn new(card: Box<dyn EmulatedDevice>) -> Self {
        let identity = card.identity();
        let config = ConfigSpace::new(&identity);
        let vectors = std::iter::repeat_with(|| None)
            .take(identity.vectors.into())
            .collect();
        Self {
            sizes: sizes(&identity, &config),
            table: vec![0; config.table().map_or(0, |_| TABLE_BYTES as usize / 4)],
            config,
            bus: Bus {
                vectors,
                ..Bus::default()
            },
            card,
            identity,
            is_removed: false,
        }
    }

    /// Returns the identity in the configuration space.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the size in bytes of each base address register (BAR), including the BAR for MSI-X.
    pub const fn sizes(&self) -> &[u32; BARS] {
        &self.sizes
    }

    /// Returns true if the device was removed.
    pub const fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Returns the number of DMA faults since power-on.
    pub fn faults(&self) -> u64 {
        self.bus.faults.get()
    }

    /// Reads a register.
    pub fn read(&mut self, bar: usize, offset: u64) -> u32 {
        if self.is_removed || !self.config.has_memory() || !self.is_inside(bar, offset) {
            return ALL_ONES;
        }
        if self.config.table() == Some(bar) {
            return word(offset)
                .and_then(|index| self.table.get(index))
                .copied()
                .unwrap_or(ALL_ONES);
        }
        self.card.read(bar, offset)
    }

    /// Writes a register.
    pub fn write(&mut self, bar: usize, offset: u64, value: u32) {
        if self.is_removed || !self.config.has_memory() || !self.is_inside(bar, offset) {
            return;
        }
        if self.config.table() == Some(bar) {
            if let Some(word) = word(offset).and_then(|index| self.table.get_mut(index)) {
                *word = value;
            }
            return;
        }
        self.card.write(bar, offset, value, &self.bus);
    }

    /// Reads the configuration space.
    pub fn config_read(&self, offset: usize, bytes: &mut [u8]) {
        if self.is_removed {
            bytes.fill(0xff);
        } else {
            self.config.read(offset, bytes);
        }
    }

    /// Writes the configuration space.
    pub fn config_write(&mut self, offset: usize, bytes: &[u8]) {
        if self.is_removed {
            return;
        }
        if self.config.write(offset, bytes) == Effect::Reset {
            self.reset();
        }
        self.bus.may_master = self.config.has_master();
    }

    /// Returns the memory that the device may access.
    pub const fn memory(&mut self) -> &mut DeviceMemory {
        &mut self.bus.memory
    }

    /// Connects an interrupt vector to an event file descriptor; `None` disconnects the vector. Returns false if the
    /// vector does not exist.
    pub fn connect(&mut self, vector: usize, event: Option<OwnedFd>) -> bool {
        let place = self.bus.vectors.get_mut(vector);
        place.map(|place| *place = event).is_some()
    }

    /// Raises an interrupt vector to test its connection.
    pub fn trigger(&self, vector: u16) {
        self.bus.raise(vector);
    }

    /// Restores the state after power-on; mappings and event file descriptors remain. No effect if the device was
    /// removed.
    pub fn reset(&mut self) {
        if self.is_removed {
            return;
        }
        self.card.reset();
        self.config.reset();
        self.table.fill(0);
        self.bus.may_master = false;
    }

    /// Removes all mappings and interrupts of the client, and power-cycles the device.
    pub fn detach(&mut self) {
        self.bus.memory.clear();
        self.bus.vectors.fill_with(|| None);
        self.bus.faults.set(0);
        self.is_removed = false;
        self.reset();
    }

    /// Performs a bounded amount of the device's work.
    pub fn step(&mut self) -> Step {
        if self.is_removed {
            return Step::Removed;
        }
        let step = self.card.step(&self.bus);
        self.is_removed = step == Step::Removed;
        step
    }

    fn is_inside(&self, bar: usize, offset: u64) -> bool {
        let bytes = self.sizes.get(bar).copied().unwrap_or(0);
        offset.is_multiple_of(4) && offset < bytes.into()
    }
}

impl Bus {
    /// Counts a DMA fault. Repeated faults are logged at increasing intervals.
    fn fault(&self, what: &str, address: u64, bytes: usize) -> Fault {
        let count = self.faults.get() + 1;
        self.faults.set(count);
        if count.is_power_of_two() {
            let why = if self.may_master {
                "the memory is not mapped"
            } else {
                "bus mastering is disabled"
            };
            tracing::warn!(
                "DMA fault: the emulated device {what} {bytes} bytes at {address:#x}, but {why} ({count} faults so far)"
            );
        }
        Fault { address, bytes }
    }

    fn raise(&self, vector: u16) {
        if let Some(Some(event)) = self.vectors.get(usize::from(vector)) {
            // A write to an eventfd fails only if its counter overflows, which cannot happen here.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

impl Host for Bus {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if self.may_master && self.memory.write(address, bytes) {
            Ok(())
        } else {
            Err(self.fault("writes", address, bytes.len()))
        }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if self.may_master && self.memory.read(address, bytes) {
            Ok(())
        } else {
            Err(self.fault("reads", address, bytes.len()))
        }
    }

    fn interrupt(&self, vector: u16) {
        // MSI messages are memory writes, so they require bus mastering too.
        if self.may_master {
            self.raise(vector);
        }
    }
}

/// Returns the index of the MSI-X table word at `offset`.
fn word(offset: u64) -> Option<usize> {
    usize::try_from(offset / 4).ok()
}
