//! Packet formats: which unit a datagram belongs to, and which packet of the unit it is.
//!
//! ```text
//!   datagram ──▶ Parse::parse ──▶ Data    { unit, sub, payload, timestamp }
//!                             ├─▶ Control   end of stream, or a unit that is not a frame
//!                             └─▶ Reject    reason why the packet is invalid
//! ```
//! A *unit* is the part of the stream that has one sequence number: a packet of `raw`, or a heap of `spead`. A unit
//! consists of one or more packets. Parsers do not allocate, never panic, and read only the header, so the payload may
//! already be stored somewhere else ([`Parse::parse_split`]).
//!
//! The units and packets of a format mean the same for sockets, AF_XDP and captures: [`datagram::Depacketizer`] places them in
//! the reorder window. A new format is one folder with its keys, its [`PacketFormat`] and its recogniser, and one line in
//! [`FORMATS`].
//!
//! A [`Format`] stores the header lengths of the sender's last packets, so each receiving thread has its own clone.

pub mod datagram;
pub mod pcap;
pub(crate) mod raw;
pub mod recognise;
pub mod section;
pub mod spead;
mod vdif;
mod vita49;

mod checks;
mod field;
mod format;
pub(crate) mod frames;
pub(crate) mod keep;
pub(crate) mod keys;
mod layout;
mod outgoing;
mod parts;
pub(crate) mod selector;
mod streams;
mod time;

pub use daq_core::reorder::Numbering;
pub use field::{Endian, Field, FieldKeys};
pub use format::{
    Build, Detect, FORMATS, Finding, FlowNeeds, Format, FormatEntry, FormatFacts, PacketClock,
    PacketFormat, Parse, Progress, SizeDetector, SourceOfFormat, UnknownSizes, hold_bytes,
};
pub use keep::{KeptFieldConfig, KeptItemConfig};
pub(crate) use keys::PacketKeys;
pub use layout::PacketLayout;
pub use parts::{Origin, Origins};
pub use raw::{Raw, RawConfig};
pub use selector::Selector;
pub use streams::StreamIds;
pub use time::{TimeScale, TimeWrap};
pub use vdif::{Vdif, VdifConfig};
pub use vita49::{KeptValue, Vita49, Vita49Config};

use daq_core::reorder::PacketId;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

/// The addresses of a packet, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The address and port from which the packet was sent.
    pub source: Option<SocketAddr>,
    /// The address and port to which the packet was sent.
    pub destination: Option<SocketAddr>,
}

/// One packet with payload at a known position of its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's sequence number exactly as in the packet. [`Numbering`] describes when it wraps.
    pub unit: u64,
    /// Index of the packet in its unit, below [`Numbering::packets_per_unit`].
    pub sub: u32,
    /// Byte range of the payload in the packet.
    pub payload: Range<usize>,
    /// The sender's timestamp in ticks, if the packet contains one; see [`Parse::clock`].
    pub timestamp: Option<u64>,
}

impl Packet {
    /// Returns the sequence number of the packet.
    #[inline]
    pub const fn id(&self) -> PacketId {
        PacketId {
            unit: self.unit,
            sub: self.sub,
        }
    }
}

/// A packet that contains a message instead of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender has ended the stream; the message itself used the number `unit`.
    EndOfStream {
        /// The sequence number that the message used, if messages have sequence numbers.
        unit: Option<u64>,
    },
    /// The packet belongs to a unit that is not a frame: a descriptor or a start of stream. The packets of a frame with this
    /// number do not count as lost.
    OtherUnit {
        /// The sequence number of that unit, if it has one.
        unit: Option<u64>,
        /// Size of the unit in bytes as stated in the packet; 0 for a start of stream.
        bytes: u64,
    },
    /// The packet contains bytes of a frame's unit that are not part of the frame, such as descriptors.
    Beside,
}

/// A packet whose boundaries differ from the regular layout of its unit. Its payload may cover packet slots only partly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The sender's sequence number exactly as in the packet.
    pub unit: u64,
    /// The part of the unit, below [`FormatFacts::parts`].
    pub part: u32,
    /// Offset of the payload in the part, in bytes.
    pub offset: usize,
    /// Byte range of the payload in the packet.
    pub payload: Range<usize>,
    /// The sender's timestamp in ticks, if the packet contains one.
    pub timestamp: Option<u64>,
}

/// A valid packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The packet contains the payload of one packet slot.
    Data(Packet),
    /// The packet contains the payload of one packet slot, in a unit whose size differs from that of other units. Each unit is a
    /// frame, and no unit is larger than [`FormatFacts::layout`] states. Only for formats with
    /// [`FormatFacts::has_sized_units`].
    Sized {
        /// The packet.
        packet: Packet,
        /// Number of payload bytes in the unit.
        unit_bytes: usize,
    },
    /// The packet contains payload whose boundaries differ from the regular layout.
    Fragment(Fragment),
    /// The packet contains a message instead of samples.
    Control(Control),
}

/// The result of [`Parse::parse_split`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// The given bytes contained the whole header.
    Whole(Parsed),
    /// The header is longer than the given bytes: pass at least `header` bytes and parse again.
    Longer {
        /// Size of the whole header in bytes.
        header: usize,
    },
}

/// Identifiers of SPEAD items that a packet does not contain; at most four are stored. They are small, because each parsed packet
/// returns the space of a [`Reject`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingItems([u32; 4]);

impl MissingItems {
    /// Adds an item, unless four are stored. The identifier 0 does not exist.
    pub(crate) fn add(&mut self, item: u64) {
        if let Some(free) = self.0.iter_mut().find(|item| **item == 0) {
            // Identifiers have at most 23 bits.
            *free = u32::try_from(item).unwrap_or(u32::MAX);
        }
    }
}

impl fmt::Display for MissingItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().filter(|item| **item != 0).enumerate() {
            write!(f, "{} {item:#x}", if i == 0 { "item" } else { ", item" })?;
        }
        Ok(())
    }
}

/// Reason why a packet is rejected. Rejected packets are counted separately, because their sequence numbers cannot be
/// trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// The packet is shorter than its header states.
    #[error("the packet has {got} bytes, but needs at least {need}")]
    Short {
        /// Minimum size in bytes.
        need: usize,
        /// Actual size in bytes.
        got: usize,
    },
    /// The packet is longer than its header states.
    #[error("the packet has {got} bytes, but its header states {expected}")]
    Long {
        /// Size in bytes stated in the header.
        expected: usize,
        /// Actual size in bytes.
        got: usize,
    },
    /// The size of the packet differs from the fixed size of the format.
    #[error(
        "the packet has {got} bytes, but header, payload and trailer of this packet add up to {expected}: check `header`, `payload`, `trailer`, and `packets` and `last` if frames are numbered"
    )]
    Length {
        /// Expected size in bytes.
        expected: usize,
        /// Actual size in bytes.
        got: usize,
    },
    /// The packet does not begin with the magic number of the format.
    #[error(
        "the packet begins with {found:#06x}, not {expected:#06x}: it has another format, or another sender uses this port"
    )]
    BadMagic {
        /// The first two bytes of the packet.
        found: u16,
        /// The magic number of the format.
        expected: u16,
    },
    /// The packet uses another SPEAD flavour (number of address bits).
    #[error("the packet is SPEAD-{}-{found}, but SPEAD-64-{expected} is configured: {}", u32::from(*.pointer) + u32::from(*.found), flavour_fix(*.pointer, *.found))]
    Flavour {
        /// Number of mode and identifier bits of an item pointer.
        pointer: u16,
        /// Number of address bits of an item pointer in the packet.
        found: u16,
        /// Number of address bits as configured.
        expected: u32,
    },
    /// A mandatory item is missing, so the position of the packet is unknown.
    #[error("the packet has no {item}")]
    MissingItem {
        /// The missing item.
        item: &'static str,
    },
    /// The packet does not contain the items that number its frame and its part, and no earlier packet of its heap did.
    #[error(
        "the packet does not contain {items}, and no packet of its heap with all items of `frame` and `part` arrived before it: \
         check their `item`, or configure the sender to repeat item pointers in each packet (spead2: `repeat_pointers`)"
    )]
    UnknownHeap {
        /// The items that the packet does not contain.
        items: MissingItems,
    },
    /// The payload begins at an offset that is not a packet boundary of the configured sizes.
    #[error(
        "the payload begins at byte {offset} of the heap, which is not a packet boundary: check `packet` and `first`"
    )]
    Misplaced {
        /// Offset of the payload in the heap, in bytes.
        offset: u64,
    },
    /// The payload does not have the size of its packet slot.
    #[error(
        "the packet has {got} bytes of payload at byte {offset} of the heap, but should have {expected}: check `packet` and `first`"
    )]
    PayloadLength {
        /// Offset of the payload in the heap, in bytes.
        offset: u64,
        /// Size of the packet slot in bytes.
        expected: usize,
        /// Payload size in bytes stated in the packet.
        got: u64,
    },
    /// A number in the packet has an unexpected value.
    #[error("`{key}` is {value}, {why}")]
    Number {
        /// Short name of the reason for counters.
        name: &'static str,
        /// The key that describes the number.
        key: &'static str,
        /// The value in the packet.
        value: u64,
        /// What is wrong with the value, and what to correct in the configuration.
        why: &'static str,
    },
    /// The packet belongs to another stream than the configured one.
    #[error(
        "the packet belongs to {what} {found:#x}, not {expected:#x}: {}, or receive this stream with another source `udp`, which may have the same port if both have one socket",
        other_stream_fix(what)
    )]
    OtherStream {
        /// The key of the format that selects the stream.
        what: &'static str,
        /// The stream of the packet.
        found: u32,
        /// The stream of the source.
        expected: u32,
    },
    /// The payload does not have the configured size.
    #[error(
        "the packet has {got} bytes of payload, not {expected}: if all packets do, set `payload = {got}`"
    )]
    PayloadSize {
        /// Configured size in bytes.
        expected: usize,
        /// Size in bytes in the packet.
        got: usize,
    },
    /// Another reason, which a format defines.
    #[error("{message}")]
    Other {
        /// Short name of the reason for counters, in lower case with underscores.
        name: &'static str,
        /// What is wrong with the packet, and what to correct in the configuration.
        message: &'static str,
    },
}

/// Returns the fix for packets of another stream than that of the key `what`.
fn other_stream_fix(what: &str) -> String {
    if what == "station" {
        return "remove `station` to receive all stations".to_owned();
    }
    format!("list both in `{what}` of the format, set `{what}` to receive only one")
}

/// Returns the fix for SPEAD packets with items of `pointer` and `address` bits.
fn flavour_fix(pointer: u16, address: u16) -> String {
    if pointer + address == 64 && [40, 48].contains(&address) {
        format!("set `address_bits = {address}`")
    } else {
        "daq supports SPEAD-64-40 and SPEAD-64-48, so set the sender to one of them".to_owned()
    }
}

impl Reject {
    /// Returns a short name of the reason for counters.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Short { .. } => "short",
            Self::Long { .. } => "long",
            Self::Length { .. } => "length",
            Self::BadMagic { .. } => "bad_magic",
            Self::Flavour { .. } => "flavour",
            Self::MissingItem { .. } => "missing_item",
            Self::UnknownHeap { .. } => "unknown_heap",
            Self::Misplaced { .. } => "misplaced",
            Self::PayloadLength { .. } => "payload_length",
            Self::OtherStream { .. } => "other_stream",
            Self::PayloadSize { .. } => "payload_size",
            Self::Number { name, .. } | Self::Other { name, .. } => name,
        }
    }
}
