//! Items of SPEAD packets: reading and building item pointers.

/// First byte of every packet.
pub(super) const MAGIC: u8 = 0x53;
/// Second byte of every packet: the protocol version.
pub(super) const VERSION: u8 = 4;
/// Size in bytes of the header before the item pointers, and of each item pointer.
pub(super) const WORD: usize = 8;
/// Mode bit of an item pointer: set if the pointer contains the value itself.
pub(super) const IMMEDIATE: u64 = 1 << 63;
/// Identifiers of the items that the protocol defines.
pub mod item {
    /// Heap counter: the sequence number of the heap.
    pub const HEAP_COUNTER: u64 = 1;
    /// Number of payload bytes in the heap.
    pub const HEAP_LENGTH: u64 = 2;
    /// Offset of this packet's payload in the heap, in bytes.
    pub const HEAP_OFFSET: u64 = 3;
    /// Number of payload bytes in this packet.
    pub const PAYLOAD_LENGTH: u64 = 4;
    /// A descriptor of another item.
    pub const DESCRIPTOR: u64 = 5;
    /// Start (0) or end (2) of the stream.
    pub const STREAM_CONTROL: u64 = 6;
    /// The identifier that the `build` functions use for the samples.
    pub const SAMPLES: u64 = 0x3300;
}

/// The items that determine the position of a packet.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) counter: Option<u64>,
    pub(super) heap: Option<u64>,
    pub(super) offset: Option<u64>,
    pub(super) payload: Option<u64>,
    pub(super) control: Option<u64>,
    pub(super) timestamp: Option<u64>,
}

impl Fields {
    #[inline]
    pub(super) fn read(bytes: &[u8], address_bits: u32, timestamp: Option<u64>) -> Self {
        let mut items = Self::default();
        let mask = (1u64 << address_bits) - 1;
        for word in bytes.as_chunks::<WORD>().0 {
            let word = u64::from_be_bytes(*word);
            if word & IMMEDIATE == 0 {
                continue;
            }
            let (id, value) = ((word & !IMMEDIATE) >> address_bits, Some(word & mask));
            match id {
                item::HEAP_COUNTER => items.counter = value,
                item::HEAP_LENGTH => items.heap = value,
                item::HEAP_OFFSET => items.offset = value,
                item::PAYLOAD_LENGTH => items.payload = value,
                item::STREAM_CONTROL => items.control = value,
                _ if Some(id) == timestamp => items.timestamp = value,
                _ => {}
            }
        }
        items
    }
}

/// Returns the value of the immediate item `id` among the item pointers `bytes`.
#[inline]
pub(super) fn find_item(bytes: &[u8], address_bits: u32, id: u64) -> Option<u64> {
    let wanted = IMMEDIATE >> address_bits | id;
    let mut words = bytes.as_chunks::<WORD>().0.iter();
    let word = words.find_map(|word| {
        let word = u64::from_be_bytes(*word);
        (word >> address_bits == wanted).then_some(word)
    })?;
    Some(word & ((1 << address_bits) - 1))
}

/// Returns whether the item pointers `bytes` point to a descriptor.
pub(super) fn has_descriptor(bytes: &[u8], address_bits: u32) -> bool {
    let mut words = bytes.as_chunks::<WORD>().0.iter();
    words.any(|word| u64::from_be_bytes(*word) >> address_bits == item::DESCRIPTOR)
}

/// An item pointer of a packet to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Identifier; excess high bits are dropped.
    pub id: u64,
    /// Value, or address in the heap; excess high bits are dropped.
    pub value: u64,
    /// Whether the pointer contains the value itself.
    pub immediate: bool,
}

impl Item {
    /// Creates an item whose value is in its pointer.
    pub const fn immediate(id: u64, value: u64) -> Self {
        Self {
            id,
            value,
            immediate: true,
        }
    }

    /// Creates an item whose value begins at byte `address` of the heap.
    pub const fn addressed(id: u64, address: u64) -> Self {
        Self {
            id,
            value: address,
            immediate: false,
        }
    }

    /// Returns the item pointer.
    fn pointer(&self, address_bits: u32) -> u64 {
        let id = (self.id << address_bits) & !IMMEDIATE;
        let value = self.value & ((1 << address_bits) - 1);
        let mode = if self.immediate { IMMEDIATE } else { 0 };
        mode | id | value
    }
}

/// Appends the header of a packet to a buffer.
pub(super) struct HeaderBuilder<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    address_bits: u32,
    count: u16,
}

impl<'o> HeaderBuilder<'o> {
    pub(super) fn new(address_bits: u32, out: &'o mut Vec<u8>) -> Self {
        let address_bits = address_bits.clamp(8, 56);
        let address = u8::try_from(address_bits / 8).unwrap_or(u8::MAX);
        let start = out.len();
        out.extend_from_slice(&[MAGIC, VERSION, 8 - address, address, 0, 0, 0, 0]);
        Self {
            out,
            start,
            address_bits,
            count: 0,
        }
    }

    /// Appends an item pointer. More items than a header can count are ignored.
    pub(super) fn push(&mut self, item: Item) {
        if self.count < u16::MAX {
            self.count += 1;
            let pointer = item.pointer(self.address_bits);
            self.out.extend_from_slice(&pointer.to_be_bytes());
            self.out[self.start + 6..self.start + WORD].copy_from_slice(&self.count.to_be_bytes());
        }
    }
}

/// Appends a packet with arbitrary items to `out`. Test senders use it, also to build invalid packets.
///
/// `address_bits` is 40 or 48 in valid packets. The number of items is truncated to 16 bits.
pub fn build_packet(address_bits: u32, items: &[Item], payload: &[u8], out: &mut Vec<u8>) {
    let mut header = HeaderBuilder::new(address_bits, out);
    for item in items {
        header.push(*item);
    }
    out.extend_from_slice(payload);
}
