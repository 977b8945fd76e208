//! A packet format: a magic number, a 32-bit counter in network byte order, and 512 bytes of payload.

use daq_core::reorder::Numbering;
use daq_drivers::packet::recognise::{
    CapturedPacket, Key, Recognised, Recogniser, be, by_parser, mode,
};
use daq_drivers::packet::{
    Build, FormatEntry, FormatFacts, Packet, PacketFormat, PacketLayout, Parse, Parsed, Reject,
    Split,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The registry entry of the format. All sources that receive packets support the format, and `inspect` recognises it.
pub const ENTRY: FormatEntry = FormatEntry::of::<Counted>(
    "counted",
    "A magic number, a 32-bit counter and 512 bytes of payload",
    "kind = \"counted\"\nmagic = 0xda01\n",
)
.recognised_by(&[Recogniser::new(recognise)]);

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

/// Reads packets.
impl Parse for Counted {
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
}

/// Builds packets, for sinks that send.
impl Build for Counted {
    fn build_header(&self, unit: u64, _: u32, _: Option<u64>, _: usize, out: &mut Vec<u8>) {
        out.extend(self.magic.to_be_bytes());
        out.extend((unit & 0xffff_ffff).to_be_bytes().split_at(2).1);
    }
}

impl PacketFormat for Counted {
    fn facts(&self) -> FormatFacts {
        let numbering = Numbering { width: 32, step: 1, packets_per_unit: 1 };
        FormatFacts {
            header: Some(HEADER),
            ..FormatFacts::new(numbering, PacketLayout::single(PAYLOAD))
        }
    }
}

/// Recognises packets for `inspect`: the most frequent first two bytes are the magic number if the parser then accepts the packets.
fn recognise(packets: &[&CapturedPacket]) -> Option<Recognised> {
    let (magic, _) = mode(packets.iter().filter_map(|packet| be::<2>(&packet.head, 0)))?;
    let keys = vec![Key::plain(format!("magic = {magic:#06x}"))];
    let parser = Counted { magic: u16::try_from(magic).ok()? };
    by_parser("counted packets", "counted", parser, keys, packets)
}
