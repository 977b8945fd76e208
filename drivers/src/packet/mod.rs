//! Packet formats: parse a datagram into the payload of packet `sub` of unit `unit`.
//!
//! ```text
//!   datagram ──▶ Format::parse ──▶ Data    { unit, sub, offset, payload, timestamp }
//!                              ├─▶ Control   end of stream, or a unit that is not a frame
//!                              └─▶ Reject    reason why the packet is invalid
//! ```
//! A *unit* is the part of the stream that has one sequence number: a packet of `raw`, or a heap of `spead`. A unit
//! consists of one or more packets. Parsers do not allocate, never panic, and read only the header, so the payload may
//! already be stored somewhere else ([`Format::parse_split`]).
//!
//! A [`Format`] stores the header lengths of the sender's last packets, so each receiving thread has its own clone.

pub mod config;
pub mod datagram;
pub mod pcap;
pub mod raw;
pub mod section;
pub mod spead;

mod field;
pub(crate) mod frames;
mod layout;

pub use config::{RawConfig, SpeadConfig};
pub use daq_core::reorder::Numbering;
pub use field::{Endian, Field, TimeScale};
pub use frames::Frames;
pub use layout::PacketLayout;
pub use raw::Raw;
pub use spead::Spead;

use daq_core::reorder::Geometry;
use std::ops::Range;

/// One packet with payload at a known position of its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's sequence number exactly as in the packet. [`Numbering`] describes when it wraps.
    pub unit: u64,
    /// Index of the packet in its unit, below [`Numbering::packets_per_unit`].
    pub sub: u32,
    /// Offset of the payload in the unit, in bytes.
    pub offset: usize,
    /// Byte range of the payload in the packet.
    pub payload: Range<usize>,
    /// The sender's timestamp in ticks, if the packet contains one; see [`Format::time_scale`].
    pub timestamp: Option<u64>,
}

/// A packet that contains a message instead of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender has ended the stream; the message itself used the number `unit`.
    EndOfStream {
        /// The sequence number that the message used.
        unit: u64,
    },
    /// The number `unit` belongs to a heap that is not a frame: a descriptor or a start of stream. Its packets do not
    /// count as lost.
    OtherHeap {
        /// The sequence number of that heap.
        unit: u64,
        /// Heap size in bytes as stated in the packet; 0 for a start of stream.
        bytes: u64,
    },
    /// The packet contains bytes of a frame's heap that are not part of the frame, such as descriptors.
    Beside,
}

/// A packet of a unit whose packet boundaries differ from the regular layout. Its payload may cover packet slots only
/// partly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sender's sequence number exactly as in the packet.
    pub unit: u64,
    /// Offset of the payload in the unit, in bytes.
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
    /// The packet contains payload whose boundaries differ from the regular layout.
    Part(Part),
    /// The packet contains a message instead of samples.
    Control(Control),
}

/// The result of [`Format::parse_split`].
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
        "the packet has {got} bytes, but header, payload and trailer add up to {expected}: check `header`, `payload` and `trailer`"
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
    #[error("the packet is SPEAD-{}-{found}, but SPEAD-64-{expected} is configured: set `address_bits = {found}`", u32::from(*.pointer) + u32::from(*.found))]
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
            Self::Misplaced { .. } => "misplaced",
            Self::PayloadLength { .. } => "payload_length",
        }
    }
}

/// A packet format that is ready to parse. Each receiving thread needs its own clone.
#[derive(Clone, Debug)]
pub enum Format {
    /// Packets with a fixed header and a sequence number at a configured offset.
    Raw(Raw),
    /// SPEAD heaps.
    Spead(Spead),
}

impl Format {
    /// Parses one whole datagram.
    #[inline]
    pub fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        match self {
            Self::Raw(raw) => raw.parse(packet),
            Self::Spead(spead) => spead.parse(packet),
        }
    }

    /// Parses a datagram of which only the first `header.len()` bytes are in `header`; `rest` more bytes follow.
    ///
    /// The payload range counts from the start of the packet. If the payload begins before `header.len()`, its first
    /// bytes are in `header`.
    #[inline]
    pub fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        match self {
            Self::Raw(raw) => raw.parse_split(header, rest),
            Self::Spead(spead) => spead.parse_split(header, rest),
        }
    }

    /// Returns whether sizes are not detected yet, so that packets cannot be parsed.
    pub fn is_detecting(&self) -> bool {
        matches!(self, Self::Spead(spead) if spead.given().is_some())
    }

    /// Returns a clone that detects the unknown sizes. Frames have at most the size of `geometry`. All clones of the
    /// result detect the sizes together.
    #[must_use]
    pub fn start_detection(&self, geometry: &Geometry, threads: usize) -> Self {
        match self {
            Self::Spead(spead) if spead.given().is_some() => Self::Spead(spead.start_detection(
                geometry.frame_bytes,
                geometry.packets_per_frame,
                threads,
            )),
            other => other.clone(),
        }
    }

    /// Returns the size in bytes of the packet at the start of `bytes`, including its header, or `None` if it cannot be
    /// determined.
    pub fn packet_len(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Raw(raw) => Some(raw.packet_len()),
            Self::Spead(_) => Spead::packet_len(bytes),
        }
    }

    /// Returns the expected header size in bytes of packet `sub`: exact for `raw`; for `spead`, the size in the last packet
    /// of the same kind.
    #[inline]
    pub fn header_len(&self, sub: u32) -> usize {
        match self {
            Self::Raw(raw) => raw.header_len(),
            Self::Spead(spead) => spead.header_len(sub),
        }
    }

    /// Returns the number of bytes after the payload of every packet.
    pub fn trailer_len(&self) -> usize {
        match self {
            Self::Raw(raw) => raw.trailer_len(),
            Self::Spead(_) => 0,
        }
    }

    /// Returns how units are numbered.
    pub fn numbering(&self) -> Numbering {
        match self {
            Self::Raw(raw) => raw.numbering(),
            Self::Spead(spead) => spead.numbering(),
        }
    }

    /// Returns the mask of the bits that the sequence number of a unit can have.
    pub fn unit_mask(&self) -> u64 {
        u64::MAX >> (64 - self.numbering().width.clamp(1, 64))
    }

    /// Returns how the payload of a unit (a packet of `raw`, a heap of `spead`) is divided into packets.
    pub fn packet_layout(&self) -> PacketLayout {
        match self {
            Self::Raw(raw) => raw.packet_layout(),
            Self::Spead(spead) => spead.packet_layout(),
        }
    }

    /// Returns the time scale of packet timestamps, or `None` if packets have no timestamps.
    pub fn time_scale(&self) -> Option<TimeScale> {
        match self {
            Self::Raw(raw) => raw.time_scale(),
            Self::Spead(spead) => spead.time_scale(),
        }
    }

    /// Appends packet `sub` of `unit` to `out`, as a sender would build it.
    ///
    /// `payload` should have the size of the packet slot. Payload of another size is written unchanged, so that tests
    /// can build invalid packets.
    pub fn build(
        &self,
        unit: u64,
        sub: u32,
        timestamp: Option<u64>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Raw(raw) => raw.build(unit, timestamp, payload, out),
            Self::Spead(spead) => spead.build(unit, sub, timestamp, payload, out),
        }
    }
}

/// One entry of the format registry.
#[derive(Clone, Copy, Debug)]
pub struct FormatEntry {
    /// The value of `format.kind`.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// Example keys of a `[source.NAME.format]` section, without its heading.
    pub example: &'static str,
}

/// All formats, in the order in which they are listed.
pub const FORMATS: &[FormatEntry] = &[raw::ENTRY, spead::ENTRY];
