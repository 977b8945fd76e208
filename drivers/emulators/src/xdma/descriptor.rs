//! A descriptor of a channel.

/// Size of a descriptor in bytes.
pub(super) const BYTES: usize = 32;
/// Page size in bytes; no block of descriptors may cross a page boundary.
pub(super) const PAGE: usize = 4096;

/// The high half of a descriptor's first word.
const MAGIC: u32 = 0xad4b;

/// A decoded descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    control: u32,
    /// Size of the slot in bytes, 28 bits.
    pub bytes: u32,
    /// Address to which the result is written. A stream channel needs no source address, so this address is in the
    /// field for the source address.
    pub result: u64,
    /// Address to which the payload is written.
    pub destination: u64,
    /// Address of the next descriptor.
    pub next: u64,
}

impl Descriptor {
    /// Decodes a descriptor.
    pub(super) fn parse(bytes: &[u8; BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |place: usize| u32::from_le_bytes(words[place]);
        let address = |place| u64::from(word(place + 1)) << 32 | u64::from(word(place));
        Self {
            control: word(0),
            bytes: word(1) & 0x0fff_ffff,
            result: address(2),
            destination: address(4),
            next: address(6),
        }
    }

    /// Returns true if the descriptor has the valid magic number.
    pub(super) const fn has_magic(&self) -> bool {
        self.control >> 16 == MAGIC
    }

    /// Returns the number of descriptors that are adjacent to the next descriptor.
    pub(super) const fn adjacent(&self) -> u32 {
        self.control >> 8 & 0x3f
    }

    /// Returns true if the channel stops after this descriptor.
    pub(super) const fn stops(&self) -> bool {
        self.control & 1 != 0
    }

    /// Returns true if the completion of the descriptor is reported.
    pub(super) const fn is_reported(&self) -> bool {
        self.control & 2 != 0
    }
}
