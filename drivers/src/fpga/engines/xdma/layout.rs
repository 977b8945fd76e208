//! Registers and memory structures of XDMA, from AMD's product guide PG195, "Register Space" and "Descriptors".

/// Size of the register space in bytes.
pub(super) const SPACE: u64 = 0x1_0000;
/// Maximum number of channels per direction.
pub(super) const CHANNELS: usize = 4;

/// Upper half of the identifier of a channel from host to card, at `H2C + CHANNEL * n`.
pub(super) const ID_H2C: u32 = 0x1fc0;
/// Upper half of the identifier of a channel from card to host.
pub(super) const ID_C2H: u32 = 0x1fc1;
/// Upper half of the identifier of the interrupt block.
pub(super) const ID_IRQ: u32 = 0x1fc2;
/// Upper half of the identifier of the configuration block.
pub(super) const ID_CONFIG: u32 = 0x1fc3;
/// Bit of a channel's identifier: the channel carries a stream.
pub(super) const ID_STREAM: u32 = 1 << 15;

/// Offset of the registers of the first channel from host to card.
pub(super) const H2C: u64 = 0x0000;
/// Offset of the registers of the first channel from card to host.
pub(super) const C2H: u64 = 0x1000;
/// Offset of the registers of the interrupt block.
pub(super) const IRQ: u64 = 0x2000;
/// Offset of the registers of the configuration block.
pub(super) const CONFIG: u64 = 0x3000;
/// Offset of the scatter-gather registers of the first channel from card to host.
pub(super) const C2H_SGDMA: u64 = 0x5000;
/// Offset of the scatter-gather registers of all channels.
pub(super) const COMMON: u64 = 0x6000;
/// Distance in bytes between the registers of two channels.
pub(super) const CHANNEL: u64 = 0x100;

/// Registers of a channel.
pub(super) mod channel {
    use crate::fpga::register_table::Register;

    /// Identifier.
    pub(crate) const ID: Register = Register::read_only("id", 0x00);
    /// Control register.
    pub(crate) const CONTROL: Register = Register::read_write("control", 0x04);
    /// Control register; bits written as 1 are cleared.
    pub(crate) const CONTROL_CLEAR: Register = Register::write_only("control clear", 0x0c);
    /// Status register.
    pub(crate) const STATUS: Register = Register::read_only("status", 0x40);
    /// Status register; a read clears it.
    pub(crate) const STATUS_CLEAR: Register = Register::read_clears("status clear", 0x44);
    /// Number of completed descriptors since RUN was set.
    pub(crate) const COUNT: Register = Register::read_only("count", 0x48);
    /// Bits 16 to 23: alignment of addresses. Bits 8 to 15: alignment of lengths. Bits 0 to 7: width of addresses in
    /// bits.
    pub(crate) const ALIGNMENTS: Register = Register::read_only("alignments", 0x4c);
    /// Low half of the address to which the engine writes the number of completed descriptors.
    pub(crate) const WRITE_BACK_LOW: Register = Register::read_write("write back low", 0x88);
    /// High half of the address to which the engine writes the number of completed descriptors.
    pub(crate) const WRITE_BACK_HIGH: Register = Register::read_write("write back high", 0x8c);
    /// Mask of the status bits that raise an interrupt.
    pub(crate) const INTERRUPTS: Register = Register::read_write("interrupts", 0x90);
    /// Interrupt mask; bits written as 1 are set.
    pub(crate) const INTERRUPTS_SET: Register = Register::write_only("interrupts set", 0x94);
    /// Interrupt mask; bits written as 1 are cleared.
    pub(crate) const INTERRUPTS_CLEAR: Register = Register::write_only("interrupts clear", 0x98);
}

/// Scatter-gather registers of a channel.
pub(super) mod sgdma {
    use crate::fpga::register_table::Register;

    /// Address of the first descriptor, low half.
    pub(crate) const FIRST_LOW: Register = Register::read_write("first low", 0x80);
    /// Address of the first descriptor, high half.
    pub(crate) const FIRST_HIGH: Register = Register::read_write("first high", 0x84);
    /// Number of descriptors that follow the first contiguously and are fetched with it.
    pub(crate) const ADJACENT: Register = Register::read_write("adjacent", 0x88);
    /// Credit register: the written value is added to the credits of the channel, up to 1023.
    pub(crate) const CREDITS: Register = Register::write_only("credits", 0x8c);
}

/// Registers for all channels; bits 16 to 19 belong to the card-to-host channels.
pub(super) mod common {
    use crate::fpga::register_table::Register;

    /// Mask of the channels whose descriptor fetch is halted; bits written as 1 are cleared.
    pub(crate) const HALT_CLEAR: Register = Register::write_only("halt clear", 0x18);
    /// Mask of the channels that need a credit for each descriptor.
    pub(crate) const CREDIT_MODE: Register = Register::read_write("credit mode", 0x20);
    /// Credit mode; bits written as 1 are set.
    pub(crate) const CREDIT_MODE_SET: Register = Register::write_only("credit mode set", 0x24);
    /// Credit mode; bits written as 1 are cleared.
    pub(crate) const CREDIT_MODE_CLEAR: Register = Register::write_only("credit mode clear", 0x28);
    /// Bit of the first channel from card to host.
    pub(crate) const C2H_BIT: u32 = 16;
}

/// Registers of the interrupt block.
pub(super) mod irq {
    use crate::fpga::register_table::{Field, Register};

    /// Mask of the channels that may raise interrupts; bits written as 1 are set. The host-to-card channels come first.
    pub(crate) const CHANNELS_SET: Register = Register::write_only("channels set", 0x14);
    /// Mask of the channels that may raise interrupts; bits written as 1 are cleared.
    pub(crate) const CHANNELS_CLEAR: Register = Register::write_only("channels clear", 0x18);

    /// The register with the interrupt vector of the channel with interrupt bit `bit`: each register has the vectors of
    /// four channels.
    pub(crate) const fn vectors(bit: u32) -> Register {
        Register::read_write("channel vectors", 0xa0 + (bit as u64 / 4) * 4)
    }

    /// Field of [`vectors`]: the vector of the channel.
    pub(crate) const fn vector(bit: u32) -> Field {
        Field::bits(bit % 4 * 8, 5)
    }
}

/// Bit of the control register: run.
pub(super) const RUN: u32 = 1;
/// Bit of the status register: busy.
pub(super) const BUSY: u32 = 1;
/// Bit of the status register: a descriptor with [`COMPLETED`] is done. In the control register, the same bit enables this
/// status bit.
pub(super) const DESCRIPTOR_DONE: u32 = 1 << 2;
/// Bit of the control register: the engine writes the number of completed descriptors to memory.
pub(super) const WRITE_BACK: u32 = 1 << 26;

/// Error bits of the status register, in the order of [`FAULTS`].
pub(super) const ERRORS: [u32; 13] = [
    1 << 3,
    1 << 4,
    1 << 5,
    1 << 9,
    1 << 10,
    1 << 11,
    1 << 12,
    1 << 13,
    1 << 19,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 23,
];
/// All error bits.
pub(super) const ANY_ERROR: u32 = {
    let (mut all, mut i) = (0, 0);
    while i < ERRORS.len() {
        all |= ERRORS[i];
        i += 1;
    }
    all
};

/// Names of the faults: first the bits of [`ERRORS`], then faults detected in memory.
pub(super) const FAULTS: &[&str] = &[
    "align",
    "descriptor-magic",
    "invalid-length",
    "read-decode",
    "read-slave",
    "read-2",
    "read-3",
    "read-4",
    "descriptor-unsupported",
    "descriptor-abort",
    "descriptor-parity",
    "descriptor-poisoned",
    "descriptor-unexpected",
    "write-back-error",
    "result-damaged",
    "result-missing",
    "packet-cut",
    "count-went-back",
    "stopped",
];
/// Index in [`FAULTS`]: the count word reports an error, but the status register does not name it.
pub(super) const UNNAMED: usize = ERRORS.len();
/// Index in [`FAULTS`]: a result (C2H stream writeback) is invalid.
pub(super) const DAMAGED: usize = UNNAMED + 1;
/// Index in [`FAULTS`]: the count includes a transfer whose result (C2H stream writeback) is missing.
pub(super) const MISSING: usize = UNNAMED + 2;
/// Index in [`FAULTS`]: a packet was longer than a slot and was split into several frames. The engine continues.
pub(super) const CUT: usize = UNNAMED + 3;
/// Index in [`FAULTS`]: the count decreased, or advanced by more than half of its range between two polls.
pub(super) const WENT_BACK: usize = UNNAMED + 4;
/// Index in [`FAULTS`]: the channel does not run, although it was started.
pub(super) const STOPPED: usize = UNNAMED + 5;

/// Size in bytes of a descriptor, and of the memory for a result (C2H stream writeback).
pub(super) const DESCRIPTOR: usize = 32;
/// Upper half of a descriptor's first word.
pub(super) const DESCRIPTOR_MAGIC: u32 = 0xad4b << 16;
/// Bit of a descriptor's first word: the descriptor is counted when it is done.
pub(super) const COMPLETED: u32 = 1 << 1;
/// Width in bits of the length in a descriptor.
pub(super) const LENGTH_BITS: u32 = 28;
/// Magic number of a C2H stream writeback, in the upper half of its first word.
pub(super) const RESULT_MAGIC: u32 = 0x52b4;
/// Bit of the first word of a C2H stream writeback: the packet ends with this transfer.
pub(super) const END_OF_PACKET: u32 = 1;

/// Width in bits of the count in the count word, which the engine writes to memory.
pub(super) const COUNT_BITS: u32 = 24;
/// Bit of the count word: an error occurred.
pub(super) const COUNT_ERROR: u32 = 1 << 31;
/// Maximum number of credits of a channel.
pub(super) const MAX_CREDITS: usize = 1023;
