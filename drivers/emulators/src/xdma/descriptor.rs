//! A descriptor: what a channel is to do next.

/// Bytes of a descriptor.
pub const BYTES: usize = 32;
/// Bytes of a page, which no block of descriptors may cross.
pub const PAGE: usize = 4096;

/// What is at the top of its first word.
const MAGIC: u32 = 0xad4b;

/// A descriptor as it was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    control: u32,
    /// Bytes of the slot: 28 bits.
    pub bytes: u32,
    /// Where the result goes; a stream has no source.
    pub result: u64,
    /// Where the payload goes.
    pub destination: u64,
    /// The next one.
    pub next: u64,
}

impl Descriptor {
    /// Reads one.
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
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

    /// Whether it is one.
    pub const fn has_magic(&self) -> bool {
        self.control >> 16 == MAGIC
    }

    /// How many descriptors lie behind the next one, side by side.
    pub const fn adjacent(&self) -> u32 {
        self.control >> 8 & 0x3f
    }

    /// Whether the channel stops after it.
    pub const fn stops(&self) -> bool {
        self.control & 1 != 0
    }

    /// Whether its completion is reported.
    pub const fn is_reported(&self) -> bool {
        self.control & 2 != 0
    }
}
