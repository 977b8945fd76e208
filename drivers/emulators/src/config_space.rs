//! The PCI configuration space of an emulated device: a type 0 header with MSI, MSI-X and PCI Express capabilities.
//!
//! Layout from the PCI Local Bus specification 3.0 (chapter 6) and the PCI Express base specification (chapter 7.5).

use super::{BARS, Identity};

/// Size of the configuration space in bytes. Bytes beyond the first 256 read as zero because the device has no extended
/// capabilities.
pub(crate) const BYTES: usize = 4096;
/// Number of bytes of the configuration space that the device uses.
const USED: usize = 256;

/// Offset of the command register, and bits of the register: memory space, bus master, no INTx.
const COMMAND: usize = 0x04;
const MEMORY: u8 = 1 << 1;
const MASTER: u8 = 1 << 2;
const BAR: usize = 0x10;
const CAPABILITIES: usize = 0x34;

/// Offsets of the capabilities.
const MSI: usize = 0x50;
const EXPRESS: usize = 0x70;
const MSIX: usize = 0xb0;
/// Offset of the device control register in the PCI Express capability. Bit 15 of this register resets the function.
const DEVICE_CONTROL: usize = EXPRESS + 8;

/// Size in bytes of the base address register (BAR) that contains the MSI-X table, if a BAR is free.
pub(crate) const TABLE_BYTES: u32 = 4096;
/// Offset of the MSI-X pending bits in this BAR.
const PENDING: u32 = 0x800;

/// The effect of a write to the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The write changed only the stored bytes.
    None,
    /// The function must be reset.
    Reset,
}

/// The bytes of the configuration space, with a mask of the writable bits.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: [u8; USED],
    /// Mask of the bits that a write may change.
    writable: [u8; USED],
    first: [u8; USED],
    table: Option<usize>,
}

impl ConfigSpace {
    /// Creates the configuration space of a device.
    pub(crate) fn new(identity: &Identity) -> Self {
        let mut this = Self {
            bytes: [0; USED],
            writable: [0; USED],
            first: [0; USED],
            table: None,
        };
        let [vendor, device, subsystem_vendor, subsystem] = identity.ids;
        this.put(0x00, &vendor.to_le_bytes());
        this.put(0x02, &device.to_le_bytes());
        // Status register: the device has capabilities.
        this.put(0x06, &0x0010_u16.to_le_bytes());
        this.put(0x09, &identity.class.to_le_bytes()[..3]);
        this.put(0x2c, &subsystem_vendor.to_le_bytes());
        this.put(0x2e, &subsystem.to_le_bytes());
        this.allow(COMMAND, &[MEMORY | MASTER, 0x04]);
        // Cache line size and interrupt line are writable but have no effect.
        this.allow(0x0c, &[0xff]);
        this.allow(0x3c, &[0xff]);
        let mut bars = identity.bars;
        this.table = (identity.vectors > 0)
            .then(|| bars.iter().position(|bytes| *bytes == 0))
            .flatten();
        if let Some(bar) = this.table {
            bars[bar] = TABLE_BYTES;
        }
        for (bar, bytes) in bars.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            // The size is a power of two: after a write of all ones, the writable bits show the size.
            this.allow(BAR + 4 * bar, &(!(bytes - 1)).to_le_bytes());
        }
        this.capabilities(identity.vectors);
        this.first = this.bytes;
        this
    }

    /// Adds the PCI Express capability, followed by MSI-X or MSI.
    fn capabilities(&mut self, vectors: u16) {
        self.put(CAPABILITIES, &[low(EXPRESS)]);
        // Capability version 2, endpoint. The device control register can reset the function.
        self.put(EXPRESS, &[0x10, 0, 0x02, 0]);
        self.put(EXPRESS + 4, &(1_u32 << 28).to_le_bytes());
        self.allow(DEVICE_CONTROL, &[0xff, 0x7f]);
        // Link capability and status: 8 lanes at 8 GT/s.
        self.put(EXPRESS + 0x0c, &0x0000_0083_u32.to_le_bytes());
        self.put(EXPRESS + 0x12, &0x0083_u16.to_le_bytes());
        if vectors == 0 {
            return;
        }
        self.put(EXPRESS + 1, &[low(MSI)]);
        let log = vectors.next_power_of_two().trailing_zeros().min(5);
        // 64-bit addresses, and the number of vectors rounded up to a power of two.
        let control = 0x0080 | low(log as usize) << 1;
        self.put(MSI, &[0x05, 0, control, 0]);
        self.allow(MSI + 2, &[0x71]);
        self.allow(
            MSI + 4,
            &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        );
        let Some(bar) = self.table else {
            return;
        };
        self.put(MSI + 1, &[low(MSIX)]);
        self.put(MSIX, &[0x11, 0]);
        self.put(MSIX + 2, &(vectors - 1).to_le_bytes());
        self.allow(MSIX + 3, &[0xc0]);
        self.put(MSIX + 4, &[low(bar), 0, 0, 0]);
        self.put(MSIX + 8, &(PENDING | u32::from(low(bar))).to_le_bytes());
    }

    /// Returns the index of the BAR that contains the MSI-X table.
    pub(crate) const fn table(&self) -> Option<usize> {
        self.table
    }

    /// Returns true if the device responds to memory accesses.
    pub(crate) const fn has_memory(&self) -> bool {
        self.bytes[COMMAND] & MEMORY != 0
    }

    /// Returns true if the device may access memory and raise interrupts (bus mastering).
    pub(crate) const fn has_master(&self) -> bool {
        self.bytes[COMMAND] & MASTER != 0
    }

    /// Reads bytes starting at `offset`. Unused bytes read as zero.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (place, byte) in (offset..).zip(bytes) {
            *byte = self.bytes.get(place).copied().unwrap_or(0);
        }
    }

    /// Writes the writable bits of the bytes starting at `offset`.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Effect {
        let mut effect = Effect::None;
        for (place, byte) in (offset..).zip(bytes) {
            let Some(writable) = self.writable.get(place) else {
                break;
            };
            if place == DEVICE_CONTROL + 1 && byte & 0x80 != 0 {
                effect = Effect::Reset;
            }
            self.bytes[place] = self.bytes[place] & !writable | byte & writable;
        }
        effect
    }

    /// Restores the values after power-on.
    pub(crate) fn reset(&mut self) {
        self.bytes = self.first;
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, offset: usize, bits: &[u8]) {
        self.writable[offset..offset + bits.len()].copy_from_slice(bits);
    }
}

/// Returns the size in bytes of each of the device's BARs, including the BAR for the MSI-X table.
pub(crate) fn sizes(identity: &Identity, config: &ConfigSpace) -> [u32; BARS] {
    let mut sizes = identity.bars;
    if let Some(bar) = config.table() {
        sizes[bar] = TABLE_BYTES;
    }
    sizes
}

/// Converts an offset or a count that is below 256.
const fn low(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ConfigSpace {
        ConfigSpace::new(&Identity {
            ids: [0x10ee, 0x9034, 0x10ee, 7],
            class: 0x05_80_00,
            bars: [0x1000, 0, 0x10000, 0, 0, 0],
            vectors: 5,
        })
    }

    fn word(config: &ConfigSpace, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        config.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn config_space_header_identifies_device() {
        let config = config();
        assert_eq!(word(&config, 0), 0x9034_10ee);
        assert_eq!(word(&config, 8) >> 8, 0x05_80_00);
        assert_eq!(word(&config, 0x2c), 0x0007_10ee);
        assert_eq!(word(&config, 4092), 0);
    }

    #[test]
    fn bar_written_with_all_ones_reads_its_size() {
        let mut config = config();
        for (bar, bytes) in [0x1000_u32, 0x1000, 0x10000, 0, 0, 0]
            .into_iter()
            .enumerate()
        {
            config.write(BAR + 4 * bar, &[0xff; 4]);
            let size = match word(&config, BAR + 4 * bar) {
                0 => 0,
                mask => !mask + 1,
            };
            assert_eq!(size, bytes, "{bar}");
        }
    }

    #[test]
    fn capability_list_terminates() {
        let config = config();
        let (mut at, mut ids) = (word(&config, 0x34) & 0xff, Vec::new());
        while at != 0 {
            let head = word(&config, at as usize);
            ids.push(head & 0xff);
            at = head >> 8 & 0xff;
            assert!(ids.len() < 10);
        }
        assert_eq!(ids, [0x10, 0x05, 0x11]);
        // MSI-X: five vectors, and the table in the first free BAR.
        assert_eq!(word(&config, MSIX) >> 16, 4);
        assert_eq!(word(&config, MSIX + 4), 1);
        assert_eq!(word(&config, MSIX + 8), 0x801);
        // MSI: eight vectors, the next power of two.
        assert_eq!(word(&config, MSI) >> 17 & 7, 3);
    }

    #[test]
    fn read_only_registers_keep_value_and_reset_is_detected() {
        let mut config = config();
        assert_eq!(config.write(0, &[0; 4]), Effect::None);
        assert_eq!(word(&config, 0), 0x9034_10ee);
        config.write(4, &[0xff, 0xff]);
        assert_eq!(word(&config, 4) & 0xffff, 0x0406);
        assert!(config.has_memory() && config.has_master());
        assert_eq!(config.write(DEVICE_CONTROL, &[0, 0x80]), Effect::Reset);
        config.reset();
        assert!(!config.has_memory() && !config.has_master());
        assert_eq!(config.write(300, &[1]), Effect::None);
    }
}
