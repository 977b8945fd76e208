//! A packet format: a magic number, a 32-bit counter in network byte order, and 512 bytes of payload.

use daq_core::reorder::Numbering;
use daq_drivers::packet::{FormatEntry, Packet, PacketFormat, PacketLayout, Parsed, Reject, Split};
use schemars::JsonSchema;
use serde::Deserialize;

/// The registry entry of the format. All sources that receive packets support the format.
pub const ENTRY: FormatEntry = FormatEntry::of::<Counted>(
    "counted",
    "A magic number, a 32-bit counter and 512 bytes of payload",
    "kind = \"counted\"\nmagic = 0xda01\n",
);

const HEADER: usize = 8;
const PAYLOAD: usize = 512;
const PACKET: usize = HEADER + PAYLOAD;

/// The keys of the table `format`, and the format itself.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Counted {
    /// First two bytes of each packet.
    magic: u16,
}

impl PacketFormat for Counted {
    fn parse_split(&mut self, header: &[u8], rest: usize) -> Result<Split, Reject> {
        let got = header.len() + rest;
        if got != PACKET {
            return Err(Reject::Length { expected: PACKET, got });
        }
        let &[high, low, _, _, a, b, c, d, ..] = header else {
            return Ok(Split::Longer { header: HEADER });
        };
        let (expected, found) = (self.magic, u16::from_be_bytes([high, low]));
        if found != expected {
            return Err(Reject::BadMagic { found, expected });
        }
        Ok(Split::Whole(Parsed::Data(Packet {
            unit: u32::from_be_bytes([a, b, c, d]).into(),
            sub: 0,
            payload: HEADER..PACKET,
            timestamp: None,
        })))
    }

    fn packet_len(&self, _: &[u8]) -> Option<usize> {
        Some(PACKET)
    }

    fn header_len(&self, _: u32) -> usize {
        HEADER
    }

    fn numbering(&self) -> Numbering {
        Numbering { width: 32, step: 1, packets_per_unit: 1 }
    }

    fn packet_layout(&self) -> PacketLayout {
        PacketLayout::single(PAYLOAD)
    }

    fn build_header(&self, unit: u64, _: u32, _: Option<u64>, _: usize, out: &mut Vec<u8>) {
        out.extend(self.magic.to_be_bytes());
        out.extend((unit & 0xffff_ffff).to_be_bytes().split_at(2).1);
    }

    fn boxed_clone(&self) -> Box<dyn PacketFormat> {
        Box::new(self.clone())
    }
}
