//! A packet of the data plane: RoCE v2, an RDMA write of an unreliable connection that fits into one packet.
//!
//! ```text
//!   base header 12 │ RDMA header 16 │ immediate 4 (last packet of a frame) │ payload │ checksum 4
//! ```
//! Field layout and invariant checksum: InfiniBand Architecture Specification 1, sections 9.2, 9.3 and annex A17.

use super::crc::Crc;
use std::net::SocketAddrV4;

/// Opcode of an RDMA write on an unreliable connection whose message has only this packet.
pub(super) const WRITE: u8 = 0x2a;
/// Opcode of an RDMA write with immediate data on an unreliable connection whose message has only this packet.
pub(super) const WRITE_IMMEDIATE: u8 = 0x2b;
/// Size of the metadata in bytes.
pub(super) const METADATA: usize = 128;
/// Addresses and the sizes of packets and metadata are multiples of this number of bytes.
pub(super) const PAGE: usize = 128;
/// Size of a packet in bytes without payload and immediate data.
pub(super) const OVERHEAD: usize = 12 + 16 + 4;

/// Partition key of the default partition.
const PARTITION: u16 = 0xffff;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// Source and destination address of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
}

/// The header fields of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) opcode: u8,
    pub(super) queue: u32,
    pub(super) psn: u32,
    pub(super) address: u64,
    pub(super) key: u32,
    /// Number of bytes in the header field for the length. A fault can make this number differ from the size of the
    /// payload.
    pub(super) length: u32,
    pub(super) immediate: Option<u32>,
    /// True: one bit of the checksum is inverted.
    pub(super) is_broken: bool,
}

/// Appends a packet to `into`; `payload` writes the `bytes` payload bytes.
pub(super) fn push(
    into: &mut Vec<u8>,
    flow: &Flow,
    headers: &Headers,
    bytes: usize,
    payload: impl FnOnce(&mut [u8]),
) {
    let start = into.len();
    into.extend([headers.opcode, 0]);
    into.extend(PARTITION.to_be_bytes());
    into.extend((headers.queue & 0x00ff_ffff).to_be_bytes());
    into.extend((headers.psn & 0x00ff_ffff).to_be_bytes());
    into.extend(headers.address.to_be_bytes());
    into.extend(headers.key.to_be_bytes());
    into.extend(headers.length.to_be_bytes());
    if let Some(immediate) = headers.immediate {
        into.extend(immediate.to_be_bytes());
    }
    let place = into.len();
    into.resize(place + bytes, 0);
    payload(&mut into[place..]);
    let sum = checksum(flow, &into[start..]) ^ u32::from(headers.is_broken);
    into.extend(sum.to_le_bytes());
}

/// Returns the invariant checksum of `packet`, which starts with its base header and ends before the checksum. The
/// checksum covers all bytes from the IP header on. For the calculation, all bits of fields that may change on the way
/// are set to 1.
pub(super) fn checksum(flow: &Flow, packet: &[u8]) -> u32 {
    let udp = u16::try_from(UDP_HEADER + packet.len() + 4).unwrap_or(u16::MAX);
    let ip = u16::try_from(IP_HEADER + UDP_HEADER + packet.len() + 4).unwrap_or(u16::MAX);
    // Eight bytes of ones replace the local route header.
    let mut masked = Vec::with_capacity(8 + IP_HEADER + UDP_HEADER);
    masked.extend([0xff; 8]);
    // Version and header length; type of service (masked).
    masked.extend([0x45, 0xff]);
    masked.extend(ip.to_be_bytes());
    // Identification 0; don't-fragment flag.
    masked.extend([0, 0, 0x40, 0]);
    // Time to live (masked), UDP, header checksum (masked).
    masked.extend([0xff, 17, 0xff, 0xff]);
    masked.extend(flow.from.ip().octets());
    masked.extend(flow.to.ip().octets());
    masked.extend(flow.from.port().to_be_bytes());
    masked.extend(flow.to.port().to_be_bytes());
    masked.extend(udp.to_be_bytes());
    // UDP checksum (masked).
    masked.extend([0xff, 0xff]);
    let (before, rest) = packet.split_at(packet.len().min(4));
    let (_, after) = rest.split_at(rest.len().min(1));
    Crc::new()
        .with(&masked)
        .with(before)
        // The reserved byte, which contains the congestion bits, is masked.
        .with(&[0xff])
        .with(after)
        .value()
}

/// The metadata of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// The sequence number of the packet with the immediate data.
    pub(super) psn: u32,
    /// Start time of the frame: seconds and nanoseconds.
    pub(super) start: (u64, u32),
    /// Size of the frame in bytes.
    pub(super) bytes: u64,
    /// The frame number.
    pub(super) frame: u16,
    /// Creation time of the metadata: seconds and nanoseconds.
    pub(super) made: (u64, u32),
}

impl Metadata {
    /// Encodes the metadata. The frame checksum is 0, as in the sensor's own data generator.
    pub(super) fn bytes(&self) -> [u8; METADATA] {
        let mut bytes = [0; METADATA];
        let fields: [&[u8]; 10] = [
            // Flags.
            &0_u32.to_be_bytes(),
            &self.psn.to_be_bytes(),
            // Checksum of the frame.
            &0_u32.to_be_bytes(),
            &self.start.0.to_be_bytes(),
            &self.start.1.to_be_bytes(),
            &self.bytes.to_be_bytes(),
            // Padding.
            &0_u16.to_be_bytes(),
            &self.frame.to_be_bytes(),
            &self.made.0.to_be_bytes(),
            &self.made.1.to_be_bytes(),
        ];
        let all = fields.into_iter().flatten();
        for (byte, value) in bytes.iter_mut().zip(all) {
            *byte = *value;
        }
        bytes
    }
}

/// Returns the immediate data of a frame in page `page` that ends with packet `psn`: bits 0 to 11 are the page, bits 12
/// to 31 the low 20 bits of the sequence number.
pub(super) const fn immediate(page: u32, psn: u32) -> u32 {
    (page & 0xfff) | (psn << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: Flow = Flow {
        from: SocketAddrV4::new(std::net::Ipv4Addr::new(192, 168, 0, 2), 12288),
        to: SocketAddrV4::new(std::net::Ipv4Addr::new(192, 168, 0, 101), 4791),
    };

    #[test]
    fn packet_layout_matches_specification() {
        let headers = Headers {
            opcode: WRITE_IMMEDIATE,
            queue: 0xab12_3456,
            psn: 0x01ff_fffe,
            address: 0x1122_3344_5566_7788,
            key: 0xa1b2_c3d4,
            length: 5,
            immediate: Some(immediate(0x123, 0xff_fffe)),
            is_broken: false,
        };
        let mut packet = vec![0xee];
        push(&mut packet, &FLOW, &headers, 5, |into| {
            into.copy_from_slice(b"hello");
        });
        assert_eq!(packet[0], 0xee);
        let packet = &packet[1..];
        assert_eq!(packet.len(), OVERHEAD + 4 + 5);
        let expected = [
            &[
                0x2b, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xff, 0xff, 0xfe,
            ][..],
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            &[0xa1, 0xb2, 0xc3, 0xd4, 0, 0, 0, 5, 0xff, 0xff, 0xe1, 0x23],
            b"hello",
        ]
        .concat();
        assert_eq!(packet[..packet.len() - 4], expected);
    }

    #[test]
    fn icrc_covers_masked_packet() {
        let headers = Headers {
            opcode: WRITE,
            queue: 2,
            psn: 7,
            address: 0x1000,
            key: 3,
            length: 4,
            immediate: None,
            is_broken: false,
        };
        let mut packet = Vec::new();
        push(&mut packet, &FLOW, &headers, 4, |into| {
            into.copy_from_slice(&[1, 2, 3, 4]);
        });
        let (body, sum) = packet.split_at(packet.len() - 4);
        // Compute the checksum in one step over the whole packet, starting at the IP header, with the variable fields
        // masked by ones.
        let mut masked = vec![0xff; 8];
        masked.extend([
            0x45, 0xff, 0, 64, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff, 192, 168, 0, 2, 192, 168, 0,
            101,
        ]);
        masked.extend([0x30, 0, 0x12, 0xb7, 0, 44, 0xff, 0xff]);
        masked.extend(body);
        masked[8 + 20 + 8 + 4] = 0xff;
        assert_eq!(sum, Crc::new().with(&masked).value().to_le_bytes());
        let mut broken = Vec::new();
        let headers = Headers {
            is_broken: true,
            ..headers
        };
        push(&mut broken, &FLOW, &headers, 4, |into| {
            into.copy_from_slice(&[1, 2, 3, 4]);
        });
        assert_eq!(broken[..body.len()], *body);
        assert_ne!(broken, packet);
    }

    #[test]
    fn metadata_fields_are_at_specified_offsets() {
        let bytes = Metadata {
            psn: 0x0102_0304,
            start: (0x1111_1111_2222_2222, 0x3333_3333),
            bytes: 0x4444_4444_5555_5555,
            frame: 0x6666,
            made: (0x7777_7777_8888_8888, 0x9999_9999),
        }
        .bytes();
        let at = |from: usize, count: usize| &bytes[from..from + count];
        assert_eq!(at(0, 4), [0; 4]);
        assert_eq!(at(4, 4), [1, 2, 3, 4]);
        assert_eq!(at(12, 8), [0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22]);
        assert_eq!(at(20, 4), [0x33; 4]);
        assert_eq!(at(24, 8), [0x44, 0x44, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55]);
        assert_eq!(at(34, 2), [0x66; 2]);
        assert_eq!(at(36, 8), [0x77, 0x77, 0x77, 0x77, 0x88, 0x88, 0x88, 0x88]);
        assert_eq!(at(44, 4), [0x99; 4]);
        assert!(bytes[48..].iter().all(|byte| *byte == 0));
    }
}
