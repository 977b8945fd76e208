//! `raw`: a fixed header that contains a sequence number, a fixed payload, and optionally a fixed trailer.
//!
//! ```text
//!   | header: ... sequence ... timestamp ... | payload | trailer |
//! ```
//! One packet is one unit.

use super::field::Field;
use super::{FormatEntry, Numbering, Packet, PacketLayout, Parsed, Reject, Split, TimeScale};

/// The registry entry of this format.
pub(super) const ENTRY: FormatEntry = FormatEntry {
    name: "raw",
    summary: "packets with a header of fixed size that contains a sequence number, and a payload of fixed size",
    example: r#"kind     = "raw"
header   = "16 B"        # before the payload of each packet
payload  = "8 KiB"       # of each packet
sequence = { offset = 0, bytes = 8, endian = "big" }
"#,
};

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
    pub const fn packet_len(&self) -> usize {
        self.header + self.payload + self.trailer
    }

    /// Returns the number of bytes before the payload.
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Returns the number of bytes after the payload.
    pub fn trailer_len(&self) -> usize {
        self.trailer
    }

    /// Returns the numbering: one packet per unit, with the bit width of the sequence field.
    pub fn numbering(&self) -> Numbering {
        Numbering {
            width: self.sequence.bits(),
            step: self.step,
            packets_per_unit: 1,
        }
    }

    /// Returns the layout: one packet with the whole payload.
    pub fn packet_layout(&self) -> PacketLayout {
        PacketLayout {
            unit_bytes: self.payload,
            first: self.payload,
            rest: self.payload,
        }
    }

    /// Returns the time scale of timestamps, or `None` if packets have no timestamps.
    pub fn time_scale(&self) -> Option<TimeScale> {
        self.scale
    }

    /// Parses one whole datagram.
    #[inline]
    pub fn parse(&self, packet: &[u8]) -> Result<Parsed, Reject> {
        self.check(packet, packet.len())
    }

    /// Parses a datagram whose first bytes are in `header`; `rest` more bytes follow.
    #[inline]
    pub fn parse_split(&self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        let length = header.len().saturating_add(rest);
        if header.len() < self.header && length >= self.header {
            return Ok(Split::Longer {
                header: self.header,
            });
        }
        self.check(header, length).map(Split::Whole)
    }

    #[inline]
    fn check(&self, header: &[u8], length: usize) -> Result<Parsed, Reject> {
        let expected = self.packet_len();
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
            offset: 0,
            payload,
            timestamp,
        }))
    }

    /// Writes the number and the timestamp into the first [`Self::header_len`] bytes of `packet`. The other header
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

    /// Appends one packet to `out`. Header bytes that belong to no field are zero.
    pub fn build(&self, unit: u64, timestamp: Option<u64>, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.header, 0);
        self.write_header(unit, timestamp, &mut out[start..]);
        out.extend_from_slice(payload);
        out.resize(out.len() + self.trailer, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Endian, Format};
    use proptest::prelude::*;

    fn format() -> Raw {
        let scale = TimeScale {
            nanoseconds: 8,
            ticks: 1,
            origin_ns: None,
        };
        Raw::new(16, 32, 4, Field::new(2, 6, Endian::Big, 0, 48), 2)
            .timestamped(Field::new(8, 4, Endian::Little, 0, 32), scale)
    }

    #[test]
    fn raw_packet_written_by_hand_is_parsed() {
        let mut packet = [0u8; 52];
        packet[..12].copy_from_slice(&[0xab, 0xcd, 0, 0, 0, 0, 1, 2, 0x10, 0x20, 0, 0]);
        let expected = Packet {
            unit: 258,
            sub: 0,
            offset: 0,
            payload: 16..48,
            timestamp: Some(0x2010),
        };
        assert_eq!(format().parse(&packet), Ok(Parsed::Data(expected)));
        assert_eq!(
            format().numbering(),
            Numbering {
                width: 48,
                step: 2,
                packets_per_unit: 1
            }
        );
    }

    #[test]
    fn raw_packet_of_other_length_is_rejected() {
        for length in (0..200).filter(|length| *length != 52) {
            let expected = Err(Reject::Length {
                expected: 52,
                got: length,
            });
            assert_eq!(format().parse(&vec![0; length]), expected);
        }
    }

    #[test]
    fn raw_field_outside_header_does_not_panic() {
        let raw = Raw::new(4, 4, 0, Field::new(6, 8, Endian::Big, 0, 64), 1);
        assert_eq!(raw.parse(&[0; 8]), Err(Reject::Short { need: 4, got: 8 }));
        let mut out = Vec::new();
        raw.build(1, None, &[0; 4], &mut out);
        assert_eq!(out, [0; 8]);
    }

    proptest! {
        #[test]
        fn raw_packet_round_trips(unit: u64, ticks: u32, payload in proptest::collection::vec(any::<u8>(), 32), cut in 0usize..=52) {
            let mut format = Format::Raw(format());
            let unit = unit & format.unit_mask();
            let mut packet = Vec::new();
            format.build(unit, 0, Some(ticks.into()), &payload, &mut packet);
            let parsed = format.parse(&packet);
            let expected = Packet { unit, sub: 0, offset: 0, payload: 16..48, timestamp: Some(ticks.into()) };
            prop_assert_eq!(&parsed, &Ok(Parsed::Data(expected.clone())));
            prop_assert_eq!(&packet[16..48], &payload[..]);
            let split = format.parse_split(&packet[..cut], packet.len() - cut);
            let whole = if cut < 16 { Split::Longer { header: 16 } } else { Split::Whole(Parsed::Data(expected)) };
            prop_assert_eq!(split, Ok(whole));
        }
    }
}
