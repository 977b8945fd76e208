//! What a packet format implements, and the registry of formats.

use super::spead::Detector;
use super::{Numbering, PacketLayout, Parsed, Raw, Reject, Spead, Split, TimeScale, raw, spead};
use daq_core::config::{Diagnostics, Section};
use daq_core::entry::Registered;
use daq_core::reorder::Geometry;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// A packet format that is ready to parse. Methods must not allocate or panic.
pub trait PacketFormat: Debug + Send + Sync {
    /// Parses a datagram of which only the first `header.len()` bytes are in `header`; `rest` more bytes follow.
    ///
    /// The payload range counts from the start of the packet. If the payload begins before `header.len()`, its first
    /// bytes are in `header`.
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject>;

    /// Parses one whole datagram.
    #[inline]
    fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        match self.parse_split(packet, 0)? {
            Split::Whole(parsed) => Ok(parsed),
            Split::Longer { header } => Err(Reject::Short {
                need: header,
                got: packet.len(),
            }),
        }
    }

    /// Returns the size in bytes of the packet at the start of `bytes`, including its header, or `None` if it cannot be
    /// determined.
    fn packet_len(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the expected header size in bytes of packet `sub`: exact, or the size in the last packet of the same
    /// kind.
    fn header_len(&self, sub: u32) -> usize;

    /// Returns the header size in bytes if it is the same in every packet.
    fn fixed_header_len(&self) -> Option<usize> {
        None
    }

    /// Returns the number of bytes after the payload of every packet.
    fn trailer_len(&self) -> usize {
        0
    }

    /// Returns how units are numbered.
    fn numbering(&self) -> Numbering;

    /// Returns how the payload of a unit is divided into packets.
    fn packet_layout(&self) -> PacketLayout;

    /// Returns the key that sets the size of a unit, which also names a unit in messages.
    fn unit_key(&self) -> &'static str {
        "packet"
    }

    /// Returns whether a unit is a frame. Otherwise, a frame contains as many units as fit.
    fn is_unit_frame(&self) -> bool {
        false
    }

    /// Returns the time scale of packet timestamps, or `None` if packets have no timestamps.
    fn time_scale(&self) -> Option<TimeScale> {
        None
    }

    /// Returns why `packet` has no timestamp, or `None` if no timestamp is expected.
    fn why_no_time(&self, packet: &[u8]) -> Option<String> {
        let _ = packet;
        None
    }

    /// Returns what is known about sizes that are detected at run time, or `None` if all sizes are known. While sizes
    /// are unknown, packets cannot be parsed.
    fn unknown_sizes(&self) -> Option<UnknownSizes> {
        None
    }

    /// Appends packet `sub` of `unit` to `out`, as a sender would build it.
    ///
    /// `payload` should have the size of the packet slot. Payload of another size is written unchanged, so that tests
    /// can build invalid packets.
    fn build(&self, unit: u64, sub: u32, timestamp: Option<u64>, payload: &[u8], out: &mut Vec<u8>);

    /// Returns a clone for another thread.
    fn boxed_clone(&self) -> Box<dyn PacketFormat>;
}

/// A format whose sizes are detected at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSizes {
    /// Number of payload bytes of a frame; `None` if it is detected too.
    pub frame: Option<usize>,
}

/// A packet format that is ready to parse. Each receiving thread needs its own clone.
///
/// The variants of the built-in formats exist because each packet is parsed, and a call through a trait object costs
/// more than a predicted branch. A format needs no variant of its own.
#[derive(Debug)]
pub enum Format {
    /// Packets with a fixed header and a sequence number at a configured offset.
    Raw(Raw),
    /// SPEAD heaps.
    Spead(Spead),
    /// Any other format.
    Other(Box<dyn PacketFormat>),
}

impl Clone for Format {
    fn clone(&self) -> Self {
        match self {
            Self::Raw(raw) => Self::Raw(raw.clone()),
            Self::Spead(spead) => Self::Spead(spead.clone()),
            Self::Other(other) => Self::Other(other.boxed_clone()),
        }
    }
}

impl Deref for Format {
    type Target = dyn PacketFormat;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Raw(raw) => raw,
            Self::Spead(spead) => spead,
            Self::Other(other) => &**other,
        }
    }
}

impl Format {
    /// Parses one whole datagram, see [`PacketFormat::parse`].
    #[inline]
    pub fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        match self {
            Self::Raw(raw) => raw.parse(packet),
            Self::Spead(spead) => spead.parse(packet),
            Self::Other(other) => other.parse(packet),
        }
    }

    /// Parses the start of a datagram, see [`PacketFormat::parse_split`].
    #[inline]
    pub fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        match self {
            Self::Raw(raw) => raw.parse_split(header, rest),
            Self::Spead(spead) => spead.parse_split(header, rest),
            Self::Other(other) => other.parse_split(header, rest),
        }
    }

    /// Returns the expected header size of packet `sub`, see [`PacketFormat::header_len`].
    #[inline]
    pub fn header_len(&self, sub: u32) -> usize {
        match self {
            Self::Raw(raw) => raw.header_len(sub),
            Self::Spead(spead) => spead.header_len(sub),
            Self::Other(other) => other.header_len(sub),
        }
    }

    /// Returns the time scale of packet timestamps, see [`PacketFormat::time_scale`].
    #[inline]
    pub fn time_scale(&self) -> Option<TimeScale> {
        match self {
            Self::Raw(raw) => raw.time_scale(),
            Self::Spead(spead) => spead.time_scale(),
            Self::Other(other) => other.time_scale(),
        }
    }

    /// Returns whether sizes are not detected yet, so that packets cannot be parsed.
    pub fn is_detecting(&self) -> bool {
        self.unknown_sizes().is_some()
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

    /// Returns the detector that the clones of this format share while sizes are unknown.
    pub(super) fn detector(&self) -> Option<&Arc<Detector>> {
        match self {
            Self::Spead(spead) => spead.detector(),
            Self::Raw(_) | Self::Other(_) => None,
        }
    }

    /// Returns the mask of the bits that the sequence number of a unit can have.
    pub fn unit_mask(&self) -> u64 {
        u64::MAX >> (64 - self.numbering().width.clamp(1, 64))
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
    /// Returns the JSON schema of the keys, without `kind`.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Reads the keys, without `kind`. Returns `None` after reporting an error.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Format>,
}

impl FormatEntry {
    /// Creates the entry of a format whose keys are the fields of the type `F`.
    pub const fn of<F>(name: &'static str, summary: &'static str, example: &'static str) -> Self
    where
        F: PacketFormat + DeserializeOwned + JsonSchema + 'static,
    {
        Self {
            name,
            summary,
            example,
            schema: F::json_schema,
            parse: |table, diagnostics| {
                let format = table.finish::<F>(&[], diagnostics)?;
                Some(Format::Other(Box::new(format)))
            },
        }
    }
}

impl Registered for FormatEntry {
    fn kind(&self) -> &'static str {
        "packet formats"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }
}

/// The built-in formats.
pub const FORMATS: &[FormatEntry] = &[raw::ENTRY, spead::ENTRY];
