//! `raw`: a fixed header that contains a sequence number, a fixed payload, and optionally a fixed trailer.
//!
//! ```text
//!   | header: ... sequence ... timestamp ... | payload | trailer |
//! ```
//! One packet is one unit.

use super::checks::{Check, LARGEST_PACKET};
use super::{
    Format, FormatEntry, Numbering, Packet, PacketFormat, PacketLayout, Parsed, Reject, Split,
    TimeScale, section,
};
use daq_core::config::Problem;
use daq_core::units::{ByteSize, Frequency, Period, UtcTime};
use schemars::JsonSchema;
use serde::Deserialize;

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "raw",
    summary: "Packets with a header of fixed size that contains a sequence number, and a payload of fixed size",
    example: r#"kind     = "raw"
header   = "16 B"        # before the payload of each packet
payload  = "8 KiB"       # of each packet
sequence = { offset = 0, bytes = 8, endian = "big" }
"#,
    schema: RawConfig::json_schema,
    parse: |table, diagnostics| section::finish(table, diagnostics, RawConfig::build),
};

/// An unsigned number at a fixed position of the header.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field.
    #[serde(default)]
    pub endian: Endian,
    /// Increment of the number from one packet to the next.
    #[serde(default = "one")]
    pub step: u64,
    /// Number of significant bits, by default all. The sequence number wraps at 2 to the power of `bits`.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
}

/// The time in the header of a `raw` packet. Set at most one of `tick` and `rate`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimestampConfig {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field.
    #[serde(default)]
    pub endian: Endian,
    /// Duration of one tick, such as `"8 ns"` or `"1 ps"`; default `"1 ns"` unless `rate` is set.
    pub tick: Option<Period>,
    /// Number of ticks per second, a whole number of Hz. Use it if a tick is not a whole number of nanoseconds.
    pub rate: Option<Frequency>,
    /// UTC time of tick 0: `"2026-11-22T10:00:00Z"` (RFC 3339), or the time since 1970-01-01T00:00:00Z such as `"10 s"`. If it
    /// is set, timestamps are UTC (clock `sensor-utc`) and files contain `core:datetime`; the ticks must not skip or repeat
    /// leap seconds. Otherwise, timestamps are the ticks in nanoseconds (clock `sensor`).
    pub origin: Option<UtcTime>,
}

/// `kind = "raw"`: a fixed header with a sequence number, a fixed payload, optionally a trailer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// Number of bytes before the payload in each packet.
    pub header: ByteSize,
    /// Number of payload bytes in each packet.
    pub payload: ByteSize,
    /// Number of bytes after the payload in each packet.
    #[serde(default)]
    pub trailer: ByteSize,
    /// The sequence number of packets.
    pub sequence: SequenceConfig,
    /// The time of a packet, if the header contains it.
    pub timestamp: Option<TimestampConfig>,
}

fn one() -> u64 {
    1
}

impl RawConfig {
    /// Returns the format, or every problem of the configuration.
    pub fn build(&self) -> Result<Format, Vec<Problem>> {
        let mut check = Check::default();
        let header = check.size("header", self.header, 1, LARGEST_PACKET);
        let payload = check.size("payload", self.payload, 1, LARGEST_PACKET);
        let trailer = check.size("trailer", self.trailer, 0, LARGEST_PACKET);
        let length = header.saturating_add(payload).saturating_add(trailer);
        check.must(
            length <= LARGEST_PACKET || header.max(payload).max(trailer) > LARGEST_PACKET,
            "payload",
            || {
                let message = format!("header, payload and trailer have {length} bytes in total, which is too large for a UDP packet");
                (
                    message,
                    format!(
                        "lower `payload`, `header` or `trailer`: a UDP packet can carry at most {LARGEST_PACKET} bytes"
                    ),
                )
            },
        );
        let sequence = &self.sequence;
        check.field("sequence", sequence.offset, sequence.bytes, header);
        let width = u32::try_from(sequence.bytes.clamp(1, 8) * 8).unwrap_or(64);
        let bits = sequence
            .bits
            .unwrap_or_else(|| width.saturating_sub(sequence.shift).max(1));
        let fits = bits >= 1
            && bits
                .checked_add(sequence.shift)
                .is_some_and(|end| end <= width);
        check.must(
            fits,
            if sequence.bits.is_some() {
                "sequence.bits"
            } else {
                "sequence.shift"
            },
            || {
                let shift = sequence.shift;
                let message = format!("{bits} bits after a shift of {shift} bits exceed the {width} bits of the number");
                (
                    message,
                    "lower `bits` or `shift`, or raise `bytes`".to_owned(),
                )
            },
        );
        check.step("sequence.step", sequence.step, bits);
        let field = Field::new(
            sequence.offset,
            sequence.bytes,
            sequence.endian,
            sequence.shift,
            bits,
        );
        let mut raw = Raw::new(header, payload, trailer, field, sequence.step);
        if let Some(time) = &self.timestamp {
            check.field("timestamp", time.offset, time.bytes, header);
            let scale = check.scale(time.tick, time.rate, time.origin);
            raw = raw.timestamped(
                Field::new(time.offset, time.bytes, time.endian, 0, 64),
                scale,
            );
        }
        check.end(Format::Raw(raw))
    }
}

/// Byte order of a number in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Endian {
    /// Most significant byte first: network order.
    #[default]
    Big,
    /// Least significant byte first.
    Little,
}

/// An unsigned number of 1 to 8 bytes in a header. Only the `bits` bits above bit `shift` belong to the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    bytes: usize,
    endian: Endian,
    shift: u32,
    bits: u32,
}

impl Field {
    /// Creates a field of `bytes` bytes (1 to 8) at `offset`. Its value consists of the `bits` bits above bit `shift`.
    /// Arguments out of range are clamped.
    pub fn new(offset: usize, bytes: usize, endian: Endian, shift: u32, bits: u32) -> Self {
        let bytes = bytes.clamp(1, 8);
        let shift = shift.min(63);
        Self {
            offset,
            bytes,
            endian,
            shift,
            bits: bits.clamp(1, 64),
        }
    }

    /// Returns the offset of the first byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.bytes
    }

    /// Returns the number of significant bits.
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    const fn mask(&self) -> u64 {
        if self.bits >= 64 {
            u64::MAX
        } else {
            (1 << self.bits) - 1
        }
    }

    /// Returns the number in `header`, or `None` if `header` ends before the end of the field.
    #[inline]
    pub fn read(&self, header: &[u8]) -> Option<u64> {
        Some((self.word(header)? >> self.shift) & self.mask())
    }

    #[inline]
    fn word(&self, header: &[u8]) -> Option<u64> {
        let bytes = header.get(self.offset..self.end())?;
        if let Ok(whole) = <[u8; 8]>::try_from(bytes) {
            return Some(match self.endian {
                Endian::Big => u64::from_be_bytes(whole),
                Endian::Little => u64::from_le_bytes(whole),
            });
        }
        let push = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
        Some(match self.endian {
            Endian::Big => bytes.iter().fold(0, push),
            Endian::Little => bytes.iter().rev().fold(0, push),
        })
    }

    /// Writes `value` into `header`. Bits outside the field are unchanged. If `header` is too short, nothing is
    /// written.
    pub fn write(&self, header: &mut [u8], value: u64) {
        let Some(old) = self.word(header) else { return };
        let kept = old & !(self.mask() << self.shift);
        let word = kept | ((value & self.mask()) << self.shift);
        let (big, little) = (word.to_be_bytes(), word.to_le_bytes());
        let bytes = match self.endian {
            Endian::Big => &big[8 - self.bytes..],
            Endian::Little => &little[..self.bytes],
        };
        header[self.offset..self.offset + self.bytes].copy_from_slice(bytes);
    }
}

/// A packet format whose fields are all at fixed offsets.
#[derive(Clone, Debug)]
pub struct Raw {
    header: usize,
    payload: usize,
    trailer: usize,
    sequence: Field,
    step: u64,
    timestamp: Option<Field>,
    scale: Option<TimeScale>,
}

impl Raw {
    /// Creates a format of packets with `header`, `payload` and `trailer` bytes, numbered by the field `sequence` with
    /// increment `step`.
    ///
    /// `sequence` must be inside the header; otherwise every packet is rejected.
    pub fn new(header: usize, payload: usize, trailer: usize, sequence: Field, step: u64) -> Self {
        Self {
            header,
            payload,
            trailer,
            sequence,
            step: step.max(1),
            timestamp: None,
            scale: None,
        }
    }

    /// Adds a timestamp field in the header, whose ticks have the time scale `scale`.
    #[must_use]
    pub fn timestamped(self, field: Field, scale: TimeScale) -> Self {
        Self {
            timestamp: Some(field),
            scale: Some(scale),
            ..self
        }
    }

    /// Returns the size of a whole packet in bytes.
    const fn len(&self) -> usize {
        self.header + self.payload + self.trailer
    }

    #[inline]
    fn check(&self, header: &[u8], length: usize) -> Result<Parsed, Reject> {
        let expected = self.len();
        if length != expected {
            return Err(Reject::Length {
                expected,
                got: length,
            });
        }
        let short = Reject::Short {
            need: self.header,
            got: header.len(),
        };
        let unit = self.sequence.read(header).ok_or(short)?;
        let timestamp = match &self.timestamp {
            Some(field) => Some(field.read(header).ok_or(short)?),
            None => None,
        };
        let payload = self.header..self.header + self.payload;
        Ok(Parsed::Data(Packet {
            unit,
            sub: 0,
            payload,
            timestamp,
        }))
    }

    /// Writes the number and the timestamp into the first `header` bytes of `packet`. The other header
    /// bytes are unchanged. A shorter `packet` is not modified.
    pub fn write_header(&self, unit: u64, timestamp: Option<u64>, packet: &mut [u8]) {
        let Some(header) = packet.get_mut(..self.header) else {
            return;
        };
        self.sequence.write(header, unit);
        if let (Some(field), Some(ticks)) = (&self.timestamp, timestamp) {
            field.write(header, ticks);
        }
    }
}

impl PacketFormat for Raw {
    #[inline]
    fn parse(&mut self, packet: &[u8]) -> Result<Parsed, Reject> {
        self.check(packet, packet.len())
    }

    #[inline]
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        let length = header.len().saturating_add(rest);
        if header.len() < self.header && length >= self.header {
            return Ok(Split::Longer {
                header: self.header,
            });
        }
        self.check(header, length).map(Split::Whole)
    }

    fn packet_len(&self, _: &[u8]) -> Option<usize> {
        Some(self.len())
    }

    #[inline]
    fn header_len(&self, _: u32) -> usize {
        self.header
    }

    fn fixed_header_len(&self) -> Option<usize> {
        Some(self.header)
    }

    fn trailer_len(&self) -> usize {
        self.trailer
    }

    /// One packet is one unit, whose number has the bit width of the sequence field.
    fn numbering(&self) -> Numbering {
        Numbering {
            width: self.sequence.bits(),
            step: self.step,
            packets_per_unit: 1,
        }
    }

    fn packet_layout(&self) -> PacketLayout {
        PacketLayout {
            unit_bytes: self.payload,
            first: self.payload,
            rest: self.payload,
        }
    }

    fn unit_key(&self) -> &'static str {
        "payload"
    }

    #[inline]
    fn time_scale(&self) -> Option<TimeScale> {
        self.scale
    }

    /// Header bytes that belong to no field are zero.
    fn build(&self, unit: u64, _: u32, timestamp: Option<u64>, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.header, 0);
        self.write_header(unit, timestamp, &mut out[start..]);
        out.extend_from_slice(payload);
        out.resize(out.len() + self.trailer, 0);
    }

    fn boxed_clone(&self) -> Box<dyn PacketFormat> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
