//! Register tables: the names, offsets, access and fields of a device's registers, as its documentation lists them.
//!
//! ```
//! use daq_drivers::fpga::register_table::{Field, Register};
//!
//! const STATUS: Register = Register::read_only("status", 0x14);
//! const COUNT: Field = Field::bits(16, 16);
//! assert_eq!(COUNT.of(0x0003_0001), 3);
//! ```

use super::device::Registers;
use std::fmt;
use std::sync::Arc;

/// How a register may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads have no effect on the device. Writes are not allowed.
    ReadOnly,
    /// A read clears bits of the register. Writes are not allowed.
    ReadClears,
    /// A write has an effect, such as adding an entry to a list. The value that a read returns is not specified.
    WriteOnly,
    /// Reads return the last written value, or the value that the device has set since.
    ReadWrite,
}

/// A 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The name in the documentation of the device.
    pub name: &'static str,
    /// Offset in bytes from the start of the window, a multiple of 4.
    pub offset: u64,
    /// How the register may be accessed.
    pub access: Access,
}

impl Register {
    const fn new(name: &'static str, offset: u64, access: Access) -> Self {
        assert!(
            offset.is_multiple_of(4),
            "a register has an offset that is a multiple of 4"
        );
        Self {
            name,
            offset,
            access,
        }
    }

    /// Creates a register that is only read.
    pub const fn read_only(name: &'static str, offset: u64) -> Self {
        Self::new(name, offset, Access::ReadOnly)
    }

    /// Creates a register that a read clears.
    pub const fn read_clears(name: &'static str, offset: u64) -> Self {
        Self::new(name, offset, Access::ReadClears)
    }

    /// Creates a register that is only written.
    pub const fn write_only(name: &'static str, offset: u64) -> Self {
        Self::new(name, offset, Access::WriteOnly)
    }

    /// Creates a register that is read and written.
    pub const fn read_write(name: &'static str, offset: u64) -> Self {
        Self::new(name, offset, Access::ReadWrite)
    }
}

/// Consecutive bits of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    low: u32,
    mask: u32,
}

impl Field {
    /// Creates a field of `count` bits, 1 to 32, whose lowest bit is bit `low` of the register.
    ///
    /// # Panics
    /// If the field is empty or longer than the register.
    pub const fn bits(low: u32, count: u32) -> Self {
        assert!(
            count >= 1 && low + count <= 32,
            "a field has 1 to 32 bits inside the register"
        );
        Self {
            low,
            mask: u32::MAX >> (32 - count) << low,
        }
    }

    /// Returns the value of the field in the register value `word`.
    pub const fn of(self, word: u32) -> u32 {
        (word & self.mask) >> self.low
    }

    /// Returns the register value `word` with the field set to the low bits of `value`.
    pub const fn set(self, word: u32, value: u32) -> u32 {
        word & !self.mask | value << self.low & self.mask
    }
}

/// A window of a BAR: the registers of one block, whose offsets count from the start of the window.
#[derive(Clone)]
pub struct Window {
    registers: Arc<dyn Registers>,
    base: u64,
}

impl Window {
    /// Creates a window that starts `base` bytes after the start of the BAR.
    pub fn new(registers: &Arc<dyn Registers>, base: u64) -> Self {
        Self {
            registers: registers.clone(),
            base,
        }
    }

    /// Returns the offset of a register in the BAR.
    pub const fn offset(&self, register: Register) -> u64 {
        self.base + register.offset
    }

    /// Reads a register.
    pub fn read(&self, register: Register) -> u32 {
        debug_assert!(register.access != Access::WriteOnly, "{}", register.name);
        self.registers.read(self.offset(register))
    }

    /// Writes a register.
    pub fn write(&self, register: Register, value: u32) {
        debug_assert!(
            matches!(register.access, Access::WriteOnly | Access::ReadWrite),
            "{}",
            register.name
        );
        self.registers.write(self.offset(register), value);
    }

    /// Writes a 64-bit value to a register and to the register after it, as [`Registers::write64`] does.
    ///
    /// # Panics
    /// If the address of the register in its BAR is not a multiple of 8.
    pub fn write64(&self, register: Register, value: u64) {
        debug_assert!(
            matches!(register.access, Access::WriteOnly | Access::ReadWrite),
            "{}",
            register.name
        );
        self.registers.write64(self.offset64(register), value);
    }

    /// Reads a 64-bit value from a register and the register after it, as [`Registers::read64`] does.
    ///
    /// # Panics
    /// If the address of the register in its BAR is not a multiple of 8.
    pub fn read64(&self, register: Register) -> u64 {
        debug_assert!(register.access != Access::WriteOnly, "{}", register.name);
        self.registers.read64(self.offset64(register))
    }

    /// Returns the offset of a register of 64 bits. The check fails for emulated devices too, whose accesses are two of 32
    /// bits.
    fn offset64(&self, register: Register) -> u64 {
        let offset = self.offset(register);
        assert!(
            offset.is_multiple_of(8),
            "the offset {offset:#x} of the 64-bit register `{}` is not a multiple of 8",
            register.name
        );
        offset
    }

    /// Describes the value of a register for an error, as in `the register "id" at 0x1000 reads 0x1fc10000`.
    pub fn describe(&self, register: Register, value: u32) -> String {
        let at = self.offset(register);
        format!(
            "the register \"{}\" at {at:#x} reads {value:#010x}",
            register.name
        )
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("base", &format_args!("{:#x}", self.base))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fpga::device::Identity;
    use crate::fpga::mock::Mock;

    #[test]
    fn field_is_read_and_set() {
        let field = Field::bits(8, 5);
        assert_eq!(field.of(0xffff_f3ff), 0x13);
        assert_eq!(field.set(0xffff_ffff, 0x22), 0xffff_e2ff);
        let all = Field::bits(0, 32);
        assert_eq!((all.of(7), all.set(7, 9)), (7, 9));
    }

    #[test]
    fn window_adds_its_base() {
        const LOW: Register = Register::read_write("low", 8);
        let mock = Mock::new(64, Identity::default(), |_, _, _| true);
        let registers: Arc<dyn Registers> = mock.registers.clone();
        let window = Window::new(&registers, 16);
        window.write64(LOW, 0x5_0000_0007);
        assert_eq!(mock.registers.writes(), [(24, 7), (28, 5)]);
        assert_eq!((window.read(LOW), window.read64(LOW)), (7, 0x5_0000_0007));
        assert_eq!(
            window.describe(LOW, 7),
            "the register \"low\" at 0x18 reads 0x00000007"
        );
    }
}
