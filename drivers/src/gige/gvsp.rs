//! Packets of the GigE Vision Streaming Protocol (GVSP). All fields are big-endian.
//!
//! ```text
//!   standard  0  status (2) │ block id (2) │ format (1) │ packet id (3)
//!   extended  0  status (2) │ flags (2)    │ format (1) │ reserved (3) │ block id (8) │ packet id (4)
//! ```
//! Bit 7 of the format is set in extended headers. A block is an image: a leader with packet id 0, payload packets from packet
//! id 1, and a trailer. Ids of blocks start at 1, and 16-bit ids wrap from 65535 to 1.

/// Size in bytes of a header with a 16-bit block id.
pub(super) const STANDARD_HEADER: usize = 8;
/// Size in bytes of a header with a 64-bit block id.
pub(super) const EXTENDED_HEADER: usize = 20;
/// Size in bytes of the IP and UDP headers, which the packet size of a camera includes.
pub(super) const IP_UDP: usize = 28;

/// Bit of the format: the header is extended.
pub(super) const EXTENDED: u8 = 0x80;
/// Packet formats.
pub(super) const LEADER: u8 = 1;
pub(super) const TRAILER: u8 = 2;
pub(super) const PAYLOAD: u8 = 3;
/// Bit of the status: the packet reports an error.
const ERROR: u16 = 0x8000;
/// Status: the packet was sent again.
const RESENT: u16 = 0x0100;
/// Statuses of requested packets that the camera cannot send: unavailable, and removed from memory.
const UNAVAILABLE: [u16; 3] = [0x800c, 0x8011, 0x8012];
/// Statuses of requested packets that the camera cannot send now: not yet available, and temporarily unavailable.
const NOT_NOW: [u16; 2] = [0x8010, 0x8014];
/// Payload type of an uncompressed image.
pub(super) const IMAGE: u16 = 0x0001;
/// Bit of the payload type: chunk data follow the image.
const CHUNKS: u16 = 0x4000;
/// Minimum size in bytes of a leader of an image after the header.
const LEADER_BYTES: usize = 36;
/// Exclusive limit of block ids, so that arithmetic with them does not overflow. A camera cannot send that many blocks.
const MAX_BLOCK: u64 = 1 << 62;

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Id of the block.
    pub block: u64,
    /// Id of the packet in the block.
    pub id: u32,
    /// Whether the block id has 64 bits.
    pub is_extended: bool,
    /// Whether the camera marked the packet as sent again.
    pub is_resent: bool,
    /// What the packet contains.
    pub content: Content<'a>,
}

/// What a packet contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The start of a block that is an image.
    Leader(Leader),
    /// The start of a block with another payload type.
    OtherLeader {
        /// The payload type.
        kind: u16,
    },
    /// A part of the image.
    Payload(&'a [u8]),
    /// The end of a block.
    Trailer,
    /// The camera cannot send this packet again.
    Unavailable {
        /// Whether the camera can send the packet later.
        is_temporary: bool,
    },
}

/// The description of an image in its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Time of the image in ticks of the camera.
    pub ticks: u64,
    /// Code of the pixel format.
    pub pixel_format: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Number of padding bytes per line, and at the end of the image.
    pub padding: (u16, u16),
}

/// Reason why a packet cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet is shorter than its header and its fixed fields.
    #[error("the packet has {bytes} bytes, but its header and fields need {needed}")]
    Short {
        /// Size of the packet.
        bytes: usize,
        /// Minimum size.
        needed: usize,
    },
    /// The status is an error that belongs to no requested packet.
    #[error("the camera reports status {0:#06x} instead of data")]
    Status(u16),
    /// The packet format is not supported.
    #[error(
        "packet format {0} is not supported: set the camera to send images in leader, payload and trailer packets"
    )]
    Format(u8),
    /// The payload type is not an image without chunks.
    #[error("payload type {kind:#06x} is not supported: set the camera to send plain images{}", chunk_hint(*.kind))]
    PayloadType {
        /// The payload type.
        kind: u16,
    },
    /// The block id is not valid.
    #[error("block id {0} is not valid: ids start at 1")]
    Block(u64),
}

impl Malformed {
    /// Returns the name of the reason in the ledger.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Short { .. } => "short",
            Self::Status(_) => "status",
            Self::Format(_) => "format",
            Self::PayloadType { .. } => "payload_type",
            Self::Block(_) => "block_id",
        }
    }
}

const fn chunk_hint(kind: u16) -> &'static str {
    if kind & CHUNKS == 0 {
        ""
    } else {
        " without chunk data (feature ChunkModeActive)"
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The fields that all packets have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    status: u16,
    /// Id of the block.
    pub(super) block: u64,
    /// Id of the packet in the block.
    pub(super) id: u32,
    /// Whether the block id has 64 bits.
    pub(super) is_extended: bool,
    /// The packet format: [`LEADER`], [`TRAILER`], [`PAYLOAD`], or a number that daq does not support.
    pub(super) format: u8,
}

impl Header {
    /// Returns the size in bytes of the header at the start of `bytes`.
    #[inline]
    fn size_in(bytes: &[u8]) -> usize {
        match bytes.get(4) {
            Some(format) if format & EXTENDED != 0 => EXTENDED_HEADER,
            _ => STANDARD_HEADER,
        }
    }

    /// Reads the header at the start of `bytes`; `None` if `bytes` ends before its end.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let is_extended = Self::size_in(bytes) == EXTENDED_HEADER;
        let (block, id) = if is_extended {
            (u64_at(bytes, 8)?, u32_at(bytes, 16)?)
        } else {
            (u16_at(bytes, 2)?.into(), u32_at(bytes, 4)? & 0x00ff_ffff)
        };
        Some(Self {
            status: u16_at(bytes, 0)?,
            block,
            id,
            is_extended,
            format: bytes.get(4)? & !EXTENDED,
        })
    }

    /// Returns the size of the header in bytes.
    #[inline]
    pub(super) const fn bytes(&self) -> usize {
        if self.is_extended {
            EXTENDED_HEADER
        } else {
            STANDARD_HEADER
        }
    }
}

/// Parses one packet.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    let short = |needed| Malformed::Short {
        bytes: bytes.len(),
        needed,
    };
    let Some(fields) = Header::read(bytes) else {
        return Err(short(Header::size_in(bytes)));
    };
    let Header {
        status, block, id, ..
    } = fields;
    let (header, data) = (fields.bytes(), &bytes[fields.bytes()..]);
    if block == 0 || block >= MAX_BLOCK {
        return Err(Malformed::Block(block));
    }
    let is_temporary = NOT_NOW.contains(&status);
    let content = if is_temporary || UNAVAILABLE.contains(&status) {
        Content::Unavailable { is_temporary }
    } else if status & ERROR != 0 {
        return Err(Malformed::Status(status));
    } else {
        match fields.format {
            LEADER => {
                let needs = || short(header + LEADER_BYTES);
                match u16_at(data, 2).ok_or_else(needs)? {
                    IMAGE => Content::Leader(leader(data).ok_or_else(needs)?),
                    kind => Content::OtherLeader { kind },
                }
            }
            TRAILER => Content::Trailer,
            PAYLOAD => Content::Payload(data),
            other => return Err(Malformed::Format(other)),
        }
    };
    Ok(Packet {
        block,
        id,
        is_extended: fields.is_extended,
        is_resent: status & (ERROR | RESENT) == RESENT,
        content,
    })
}

/// Returns the payload type and the image of a leader after its header.
pub(super) fn stated_image(data: &[u8]) -> Option<(u16, Leader)> {
    Some((u16_at(data, 2)?, leader(data)?))
}

fn leader(data: &[u8]) -> Option<Leader> {
    Some(Leader {
        ticks: u64_at(data, 4)?,
        pixel_format: u32_at(data, 12)?,
        width: u32_at(data, 16)?,
        height: u32_at(data, 20)?,
        padding: (u16_at(data, 32)?, u16_at(data, 34)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader of Debian's `arv-fake-gv-camera-0.8` (0.8.26), captured with tcpdump.
    const LEADER_PACKET: [u8; 44] = [
        0, 0, 0xff, 0x79, 1, 0, 0, 0, 0, 0, 0, 1, 0x18, 0xea, 0xb2, 0x16, 0x90, 0x68, 0x8e, 0xc0,
        1, 8, 0, 1, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn captured_leader_is_parsed() {
        let packet = parse(&LEADER_PACKET).unwrap();
        let leader = Leader {
            ticks: 0x18ea_b216_9068_8ec0,
            pixel_format: 0x0108_0001,
            width: 512,
            height: 512,
            padding: (0, 0),
        };
        let expected = Packet {
            block: 65_401,
            id: 0,
            is_extended: false,
            is_resent: false,
            content: Content::Leader(leader),
        };
        assert_eq!(packet, expected);
        for length in 0..LEADER_PACKET.len() {
            let short = parse(&LEADER_PACKET[..length]).unwrap_err();
            assert!(matches!(short, Malformed::Short { .. }), "{short}");
        }
    }

    #[test]
    fn extended_header_has_64_bit_block_id() {
        let mut bytes = vec![1, 0, 0, 0, 0x83, 0, 0, 0];
        bytes.extend(0x1_0000_0002_u64.to_be_bytes());
        bytes.extend(7_u32.to_be_bytes());
        bytes.extend([5; 10]);
        let packet = parse(&bytes).unwrap();
        assert_eq!((packet.block, packet.id), (0x1_0000_0002, 7));
        assert!(packet.is_extended && packet.is_resent);
        assert_eq!(packet.content, Content::Payload(&[5; 10]));
        assert!(parse(&bytes[..19]).is_err());
    }

    #[test]
    fn unsupported_packets_name_the_reason() {
        let header = |status: u16, block: u8, format: u8| {
            let [high, low] = status.to_be_bytes();
            vec![high, low, 0, block, format, 0, 0, 3]
        };
        for (bytes, reason) in [
            (header(0, 0, 3), "block_id"),
            (header(0, 1, 4), "format"),
            (header(0x8001, 1, 3), "status"),
        ] {
            assert_eq!(parse(&bytes).unwrap_err().name(), reason);
        }
        let mut chunks = LEADER_PACKET;
        chunks[10] = 0x40;
        let kind = 0x4001;
        let content = parse(&chunks).map(|packet| packet.content);
        assert_eq!(content, Ok(Content::OtherLeader { kind }));
        let error = Malformed::PayloadType { kind };
        assert!(error.to_string().contains("ChunkModeActive"), "{error}");
        for (status, is_temporary) in [(0x800c, false), (0x8010, true)] {
            let bytes = header(status, 1, 3);
            let content = parse(&bytes).map(|packet| packet.content);
            assert_eq!(content, Ok(Content::Unavailable { is_temporary }));
        }
    }
}
