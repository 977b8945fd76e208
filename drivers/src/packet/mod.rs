//! Packet formats: from the bytes of one datagram to "payload of place `sub` in unit `unit`".
//!
//! ```text
//!   datagram ──▶ Format::parse ──▶ Data    { unit, sub, offset, payload, timestamp }
//!                              ├─▶ Control   end of stream, or a unit that carries no frame
//!                              └─▶ Reject    why the bytes cannot be trusted
//! ```
//! A *unit* is what carries the sender's running number: a packet of `raw`, a heap of `spead`. A unit
//! has one or more *places*, one a packet. Parsers allocate nothing, never panic, and look at nothing
//! beyond the header, so the payload may already lie elsewhere ([`Format::parse_split`]).
//!
//! A [`Format`] keeps what it learned of the sender's header lengths: each receiving thread owns a clone.

pub mod config;
pub mod datagram;
pub mod pcap;
pub mod raw;
pub mod section;
pub mod spead;

mod field;
pub(crate) mod frames;
mod places;

pub use config::{RawConfig, SpeadConfig};
pub use daq_core::reorder::Numbering;
pub use field::{Endian, Field, TimeScale};
pub use frames::Frames;
pub use places::Places;
pub use raw::Raw;
pub use spead::Spead;

use daq_core::reorder::Geometry;
use std::ops::Range;

/// One packet that carries payload of a known place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's running number as it stands in the packet; it wraps as [`Numbering`] says.
    pub unit: u64,
    /// The packet's place in the unit, below [`Numbering::places_per_unit`].
    pub sub: u32,
    /// Where the payload belongs, in bytes from the start of the unit.
    pub offset: usize,
    /// Where the payload lies, in bytes from the start of the packet.
    pub payload: Range<usize>,
    /// The sender's time in its own ticks, where the packet carries one; see [`Format::time_scale`].
    pub timestamp: Option<u64>,
}

/// What a sender says beside data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender has sent everything; the message itself used the number `unit`.
    EndOfStream {
        /// The number that the message used.
        unit: u64,
    },
    /// The number `unit` is used by something that is no frame (a descriptor, a start of stream):
    /// its places are not lost, they never existed.
    OtherHeap {
        /// The number so used.
        unit: u64,
        /// Bytes that the heap says it has; 0 where it only says that a stream starts.
        bytes: u64,
    },
    /// Bytes of a heap beside those of its frame: descriptors.
    Beside,
}

/// A packet of a unit that is cut into other packets than most: its payload covers places in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sender's running number as it stands in the packet.
    pub unit: u64,
    /// Where the payload belongs, in bytes from the start of the unit.
    pub offset: usize,
    /// Where the payload lies, in bytes from the start of the packet.
    pub payload: Range<usize>,
    /// The sender's time in its own ticks, where the packet carries one.
    pub timestamp: Option<u64>,
}

/// A packet understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// It carries payload.
    Data(Packet),
    /// It carries payload that is cut otherwise.
    Part(Part),
    /// It carries a message.
    Control(Control),
}

/// The outcome of [`Format::parse_split`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// The given bytes held the whole header.
    Whole(Parsed),
    /// The header is longer than the given bytes: gather at least `header` bytes and parse again.
    Longer {
        /// Bytes of the whole header.
        header: usize,
    },
}

/// Why a packet is rejected. The number of such a packet cannot be trusted, so they are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Fewer bytes than the packet says it has.
    #[error("the packet has {got} bytes, but needs at least {need}")]
    Short {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        got: usize,
    },
    /// More bytes than the packet says it has.
    #[error("the packet has {got} bytes, but its header states {expected}")]
    Long {
        /// Bytes stated.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// A packet of fixed length has another one.
    #[error(
        "the packet has {got} bytes, but header, payload and trailer add up to {expected}: check `header`, `payload` and `trailer`"
    )]
    Length {
        /// Bytes expected.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// It does not begin as a packet of this format does.
    #[error(
        "the packet begins with {found:#06x}, not {expected:#06x}: it has another format, or another sender uses this port"
    )]
    BadMagic {
        /// The first two bytes.
        found: u16,
        /// What they must be.
        expected: u16,
    },
    /// Another variant of the format.
    #[error("the packet is SPEAD-{}-{found}, but SPEAD-64-{expected} is configured: set `address_bits = {found}`", u32::from(*.pointer) + u32::from(*.found))]
    Flavour {
        /// Bits of an item's mode and identifier.
        pointer: u16,
        /// Bits of an item's address, in the packet.
        found: u16,
        /// Bits of an item's address, as configured.
        expected: u32,
    },
    /// An item without which the packet cannot be placed is missing.
    #[error("the packet has no {item}")]
    MissingItem {
        /// What is missing.
        item: &'static str,
    },
    /// The payload begins where no packet of the configured size begins.
    #[error(
        "the payload begins at byte {offset} of the heap, which is not a packet boundary: check `packet` and `first`"
    )]
    Misplaced {
        /// Where it begins.
        offset: u64,
    },
    /// The payload is not as long as its place.
    #[error(
        "the packet has {got} bytes of payload at byte {offset} of the heap, but should have {expected}: check `packet` and `first`"
    )]
    PayloadLength {
        /// Where the payload begins.
        offset: u64,
        /// Bytes of the place.
        expected: usize,
        /// Bytes that the packet says it has.
        got: u64,
    },
}

impl Reject {
    /// A short name for counters.
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

/// One of the known formats, ready to parse; clone it for each receiving thread.
#[derive(Clone, Debug)]
pub enum Format {
    /// Fixed header, running number at a declared offset.
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

    /// Parses a datagram of which only the first `header.len()` bytes are at hand; `rest` more follow.
    ///
    /// The payload's range still counts from the start of the packet: where it begins before
    /// `header.len()`, the first bytes of the payload are in `header`.
    #[inline]
    pub fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        match self {
            Self::Raw(raw) => raw.parse_split(header, rest),
            Self::Spead(spead) => spead.parse_split(header, rest),
        }
    }

    /// Whether sizes are still to be learned, so that no packet can be parsed yet.
    pub fn is_learning(&self) -> bool {
        matches!(self, Self::Spead(spead) if spead.given().is_some())
    }

    /// The same format, ready to learn what it does not know in frames of `geometry` at most; clones learn together.
    #[must_use]
    pub fn start_learning(&self, geometry: &Geometry, threads: usize) -> Self {
        match self {
            Self::Spead(spead) if spead.given().is_some() => {
                Self::Spead(spead.start_learning(geometry.frame_bytes, geometry.places, threads))
            }
            other => other.clone(),
        }
    }

    /// Bytes of the packet that `bytes` begins with, header included; `None` where the bytes do not state it.
    pub fn packet_len(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Raw(raw) => Some(raw.packet_len()),
            Self::Spead(_) => Spead::packet_len(bytes),
        }
    }

    /// Header bytes to expect of the packet of place `sub`: exact for `raw`, the last seen for `spead`.
    #[inline]
    pub fn header_len(&self, sub: u32) -> usize {
        match self {
            Self::Raw(raw) => raw.header_len(),
            Self::Spead(spead) => spead.header_len(sub),
        }
    }

    /// Bytes after the payload of every packet.
    pub fn trailer_len(&self) -> usize {
        match self {
            Self::Raw(raw) => raw.trailer_len(),
            Self::Spead(_) => 0,
        }
    }

    /// How units are numbered.
    pub fn numbering(&self) -> Numbering {
        match self {
            Self::Raw(raw) => raw.numbering(),
            Self::Spead(spead) => spead.numbering(),
        }
    }

    /// The bits that a unit's number may have.
    pub fn unit_mask(&self) -> u64 {
        u64::MAX >> (64 - self.numbering().width.clamp(1, 64))
    }

    /// How a unit is cut into places.
    pub fn places(&self) -> Places {
        match self {
            Self::Raw(raw) => raw.places(),
            Self::Spead(spead) => spead.places(),
        }
    }

    /// What a timestamp's ticks mean, where packets carry timestamps.
    pub fn time_scale(&self) -> Option<TimeScale> {
        match self {
            Self::Raw(raw) => raw.time_scale(),
            Self::Spead(spead) => spead.time_scale(),
        }
    }

    /// Appends the packet of place `sub` of `unit` to `out`, as a sender would make it.
    ///
    /// `payload` should be as long as the place; it is written as it is, so that wrong packets can be made.
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

/// One format of the registry.
#[derive(Clone, Copy, Debug)]
pub struct FormatEntry {
    /// The value of `format.kind`.
    pub name: &'static str,
    /// One line of what it is.
    pub summary: &'static str,
    /// The keys of a `[source.NAME.format]` section, without its heading.
    pub example: &'static str,
}

/// Every format, in the order in which they are listed.
pub const FORMATS: &[FormatEntry] = &[raw::ENTRY, spead::ENTRY];
