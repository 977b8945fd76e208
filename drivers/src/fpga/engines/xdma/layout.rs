//! XDMA's registers and what it reads and writes in memory: AMD's product guide PG195, "Register Space" and "Descriptors".

/// Bytes of the register space.
pub const SPACE: u64 = 0x1_0000;
/// Most channels of one direction.
pub const CHANNELS: usize = 4;

/// Upper half of the identifier of a channel from host to card, at `H2C + CHANNEL * n`.
pub const ID_H2C: u32 = 0x1fc0;
/// Upper half of the identifier of a channel from card to host.
pub const ID_C2H: u32 = 0x1fc1;
/// Upper half of the identifier of the interrupt block.
pub const ID_IRQ: u32 = 0x1fc2;
/// Upper half of the identifier of the configuration block.
pub const ID_CONFIG: u32 = 0x1fc3;
/// In a channel's identifier: it carries a stream.
pub const ID_STREAM: u32 = 1 << 15;

/// First channel from host to card.
pub const H2C: u64 = 0x0000;
/// First channel from card to host.
pub const C2H: u64 = 0x1000;
/// Interrupt block.
pub const IRQ: u64 = 0x2000;
/// Configuration block.
pub const CONFIG: u64 = 0x3000;
/// Scatter-gather registers of the first channel from card to host.
pub const C2H_SGDMA: u64 = 0x5000;
/// Scatter-gather registers of all channels.
pub const COMMON: u64 = 0x6000;
/// From one channel to the next.
pub const CHANNEL: u64 = 0x100;

/// Registers of a channel.
pub mod channel {
    /// Identifier.
    pub const ID: u64 = 0x00;
    /// Control.
    pub const CONTROL: u64 = 0x04;
    /// Control, bits written as 1 are cleared.
    pub const CONTROL_CLEAR: u64 = 0x0c;
    /// Status.
    pub const STATUS: u64 = 0x40;
    /// Status, cleared by being read.
    pub const STATUS_CLEAR: u64 = 0x44;
    /// Completed descriptors since RUN was set.
    pub const COUNT: u64 = 0x48;
    /// Alignment of addresses [23:16], of lengths [15:8], bits of addresses [7:0].
    pub const ALIGNMENTS: u64 = 0x4c;
    /// Where the count is written to, low half.
    pub const WRITE_BACK_LOW: u64 = 0x88;
    /// High half.
    pub const WRITE_BACK_HIGH: u64 = 0x8c;
    /// Interrupts for these bits of the status.
    pub const INTERRUPTS: u64 = 0x90;
    /// The same, bits written as 1 are set.
    pub const INTERRUPTS_SET: u64 = 0x94;
    /// The same, bits written as 1 are cleared.
    pub const INTERRUPTS_CLEAR: u64 = 0x98;
}

/// Scatter-gather registers of a channel.
pub mod sgdma {
    /// First descriptor, low half.
    pub const FIRST_LOW: u64 = 0x80;
    /// High half.
    pub const FIRST_HIGH: u64 = 0x84;
    /// Descriptors that lie behind the first and are fetched with it.
    pub const ADJACENT: u64 = 0x88;
    /// What is written is added to the credits, at most 1023.
    pub const CREDITS: u64 = 0x8c;
}

/// Registers for all channels; those from card to host have bits 16 to 19.
pub mod common {
    /// No descriptors are fetched: bits written as 1 are cleared.
    pub const HALT_CLEAR: u64 = 0x18;
    /// Descriptors are only taken on credit.
    pub const CREDIT_MODE: u64 = 0x20;
    /// The same, bits written as 1 are set.
    pub const CREDIT_MODE_SET: u64 = 0x24;
    /// The same, bits written as 1 are cleared.
    pub const CREDIT_MODE_CLEAR: u64 = 0x28;
    /// Bit of the first channel from card to host.
    pub const C2H_BIT: u32 = 16;
}

/// Registers of the interrupt block.
pub mod irq {
    /// Channels that interrupt: bits written as 1 are set. Those from host to card come first.
    pub const CHANNELS_SET: u64 = 0x14;
    /// The same, bits written as 1 are cleared.
    pub const CHANNELS_CLEAR: u64 = 0x18;
    /// Interrupt vectors of channels, four of 5 bits in the bytes of each register.
    pub const VECTORS: u64 = 0xa0;
}

/// Control: runs.
pub const RUN: u32 = 1;
/// Status: busy.
pub const BUSY: u32 = 1;
/// Control and status: a descriptor with [`COMPLETED`] is done.
pub const DESCRIPTOR_DONE: u32 = 1 << 2;
/// Control: the count is written to memory.
pub const WRITE_BACK: u32 = 1 << 26;

/// Error bits of the status, in the order of [`FAULTS`].
pub const ERRORS: [u32; 13] = [
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
/// All of them.
pub const ANY_ERROR: u32 = {
    let (mut all, mut i) = (0, 0);
    while i < ERRORS.len() {
        all |= ERRORS[i];
        i += 1;
    }
    all
};

/// What can go wrong: first the bits of [`ERRORS`], then what is found in memory.
pub const FAULTS: &[&str] = &[
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
];
/// In [`FAULTS`]: the count word reports an error, but the status does not name it.
pub const UNNAMED: usize = ERRORS.len();
/// In [`FAULTS`]: an invalid result.
pub const DAMAGED: usize = UNNAMED + 1;
/// In [`FAULTS`]: the count includes a transfer whose result is missing.
pub const MISSING: usize = UNNAMED + 2;
/// In [`FAULTS`], and the engine continues: a packet was longer than a slot and was split into several frames.
pub const CUT: usize = UNNAMED + 3;
/// In [`FAULTS`]: the count is lower than it was, or has moved by half of its range within one look.
pub const WENT_BACK: usize = UNNAMED + 4;

/// Bytes of a descriptor, and of the space of a result.
pub const DESCRIPTOR: usize = 32;
/// Upper half of a descriptor's first word.
pub const DESCRIPTOR_MAGIC: u32 = 0xad4b << 16;
/// In a descriptor's first word: count it when it is done.
pub const COMPLETED: u32 = 1 << 1;
/// Bits of a descriptor's length.
pub const LENGTH_BITS: u32 = 28;
/// Upper half of a result's first word.
pub const RESULT_MAGIC: u32 = 0x52b4;
/// In a result's first word: the packet ends with this transfer.
pub const END_OF_PACKET: u32 = 1;

/// Bits of the count in the word that is written to memory.
pub const COUNT_BITS: u32 = 24;
/// In that word: there was an error.
pub const COUNT_ERROR: u32 = 1 << 31;
/// Most credits that a channel has_credits.
pub const MAX_CREDITS: usize = 1023;
