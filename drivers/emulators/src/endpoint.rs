//! An emulated device on its bus: configuration space, memory and interrupts.

use super::config_space::{ConfigSpace, Effect, TABLE_BYTES, sizes};
use super::{BARS, EmulatedDevice, Fault, Host, Identity, Step};
use crate::sys::memory::DeviceMemory;
use std::cell::Cell;
use std::os::fd::OwnedFd;

/// The value of a register that does not respond.
const ALL_ONES: u32 = u32::MAX;

/// A card with its configuration space, the memory that it was given and its interrupts.
///
/// One thread owns it, so unmapped memory is not written after the unmapping returns.
pub struct Endpoint {
    card: Box<dyn EmulatedDevice>,
    identity: Identity,
    sizes: [u32; BARS],
    config: ConfigSpace,
    /// The table of MSI-X: words that can be read and written. Who connects events does not need them.
    table: Vec<u32>,
    bus: Bus,
    is_removed: bool,
}

/// The card's side of the bus.
#[derive(Debug, Default)]
struct Bus {
    memory: DeviceMemory,
    vectors: Vec<Option<OwnedFd>>,
    may_master: bool,
    faults: Cell<u64>,
}

impl Endpoint {
    /// `card` as after power-on.
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

    /// What the card shows.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Bytes of each base address register, with the one for MSI-X.
    pub const fn sizes(&self) -> &[u32; BARS] {
        &self.sizes
    }

    /// Whether the card was pulled out.
    pub const fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Accesses of the card that nothing answered, since it was powered on.
    pub fn faults(&self) -> u64 {
        self.bus.faults.get()
    }

    /// A register.
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

    /// Sets a register.
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

    /// What the card may reach.
    pub const fn memory(&mut self) -> &mut DeviceMemory {
        &mut self.bus.memory
    }

    /// Connects a vector with an event, or with none; false if there is no such vector.
    pub fn connect(&mut self, vector: usize, event: Option<OwnedFd>) -> bool {
        let place = self.bus.vectors.get_mut(vector);
        place.map(|place| *place = event).is_some()
    }

    /// Raises a vector, as a test of the connection.
    pub fn trigger(&self, vector: u16) {
        self.bus.raise(vector);
    }

    /// Everything of the card as after power-on; memory and events stay. Without effect on one that was pulled out.
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

    /// A bounded piece of the card's work.
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
    /// Counts an access that nothing answered. Logged with increasing intervals.
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
            // A write to an eventfd fails only at a count that is never reached.
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
        // A message that signals an interrupt is a write like any other.
        if self.may_master {
            self.raise(vector);
        }
    }
}

/// Which word of the table an offset is.
fn word(offset: u64) -> Option<usize> {
    usize::try_from(offset / 4).ok()
}
