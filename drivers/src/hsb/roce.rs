//! One RDMA write in one UDP datagram: the RoCE v2 headers of InfiniBand's unreliable connected service.
//!
//! ```text
//!   BTH   0  opcode │ flags: pad << 4 and version │ P_Key (2) │ reserved │ queue pair (3) │ reserved │ PSN (3)
//!   RETH 12  virtual address (8) │ rkey (4) │ length (4)
//!        28  immediate (4), opcode 0x2B only
//!         …  payload │ pad │ invariant CRC (4)
//! ```
//! All fields are big-endian. Source: InfiniBand Architecture Specification, volume 1, chapter 9 and annex A17.
//!
//! The invariant CRC is not checked: it covers the identification field of the IP header, which a UDP socket does not return.
//! The NIC (frame check sequence) and Linux (UDP checksum, if the sender sets one) reject damaged packets.

use std::ops::Range;

/// Opcode of "UC RDMA WRITE Only".
const WRITE_ONLY: u8 = 0x2a;
/// Opcode of "UC RDMA WRITE Only with Immediate".
const WRITE_ONLY_WITH_IMMEDIATE: u8 = 0x2b;
/// The default partition key, which sensors use.
const PARTITION: u16 = 0xffff;
/// Size in bytes of the BTH and RETH headers.
const HEADERS: usize = 28;
/// Size in bytes of an immediate.
const IMMEDIATE: usize = 4;
/// Size in bytes of the invariant CRC that follows the payload.
const CRC: usize = 4;

/// The headers of a write, and the range of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Destination queue pair, 24 bits.
    pub queue_pair: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Destination address.
    pub address: u64,
    /// Key of the destination memory.
    pub rkey: u32,
    /// Immediate data, if the write contains immediate data.
    pub immediate: Option<u32>,
    /// Range of the payload in the packet.
    pub payload: Range<usize>,
}

/// Reason why a packet is not a valid write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet is shorter than its headers.
    #[error("the packet has {got} bytes; its headers need {need}")]
    Short {
        /// Number of bytes that the headers need.
        need: usize,
        /// Number of bytes in the packet.
        got: usize,
    },
    /// The packet contains another operation.
    #[error("opcode {opcode:#04x} is not an RDMA write (0x2a, or 0x2b with immediate data)")]
    Opcode {
        /// Opcode in the packet.
        opcode: u8,
    },
    /// The packet has another transport version or another partition.
    #[error(
        "transport version {version} or partition {partition:#06x} is wrong: sensors use version 0 and partition 0xffff"
    )]
    Transport {
        /// The version.
        version: u8,
        /// The partition key.
        partition: u16,
    },
    /// The length in the header differs from the payload.
    #[error("the header states {stated} payload bytes, but the packet has {got}")]
    Length {
        /// Length in the header.
        stated: u32,
        /// Number of payload bytes in the packet.
        got: usize,
    },
}

fn word<const N: usize>(packet: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    let bytes = packet.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().ok_or(Malformed::Short {
        need: at + N,
        got: packet.len(),
    })
}

/// Parses the write in a whole datagram.
#[inline]
pub fn parse(packet: &[u8]) -> Result<Write, Malformed> {
    let [opcode, flags, p0, p1, _, q0, q1, q2, _, s0, s1, s2] = word(packet, 0)?;
    let has_immediate = match opcode {
        WRITE_ONLY => false,
        WRITE_ONLY_WITH_IMMEDIATE => true,
        opcode => return Err(Malformed::Opcode { opcode }),
    };
    let (version, partition) = (flags & 15, u16::from_be_bytes([p0, p1]));
    if version != 0 || partition != PARTITION {
        return Err(Malformed::Transport { version, partition });
    }
    let address = u64::from_be_bytes(word(packet, 12)?);
    let rkey = u32::from_be_bytes(word(packet, 20)?);
    let stated = u32::from_be_bytes(word(packet, 24)?);
    let (start, immediate) = if has_immediate {
        let immediate = u32::from_be_bytes(word(packet, HEADERS)?);
        (HEADERS + IMMEDIATE, Some(immediate))
    } else {
        (HEADERS, None)
    };
    let pad = usize::from(flags >> 4 & 3);
    let got = packet.len().checked_sub(start + pad + CRC);
    let got = got.ok_or(Malformed::Short {
        need: start + pad + CRC,
        got: packet.len(),
    })?;
    if usize::try_from(stated) != Ok(got) {
        return Err(Malformed::Length { stated, got });
    }
    Ok(Write {
        queue_pair: u32::from_be_bytes([0, q0, q1, q2]),
        psn: u32::from_be_bytes([0, s0, s1, s2]),
        address,
        rkey,
        immediate,
        payload: start..start + got,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_testkit::hsb_packet::Packet;
    use proptest::prelude::*;

    #[test]
    fn packet_bytes_are_parsed() {
        let mut packet = vec![
            0x2b, 0x10, 0xff, 0xff, 0, 0x01, 0x02, 0x03, 0, 0x0a, 0x0b, 0x0c,
        ];
        packet.extend([0, 0, 0, 1, 0, 0, 2, 0]);
        packet.extend([0xde, 0xad, 0xbe, 0xef]);
        packet.extend([0, 0, 0, 3]);
        packet.extend([0, 0x12, 0x34, 0x56]);
        packet.extend([7, 8, 9, 0]);
        packet.extend([0; 4]);
        let expected = Write {
            queue_pair: 0x01_0203,
            psn: 0x0a_0b0c,
            address: 0x1_0000_0200,
            rkey: 0xdead_beef,
            immediate: Some(0x12_3456),
            payload: 32..35,
        };
        assert_eq!(parse(&packet), Ok(expected));
    }

    #[test]
    fn malformed_packets_are_rejected() {
        let good = Packet::default().bytes();
        assert!(parse(&good).is_ok());
        for length in 0..32 {
            assert!(matches!(
                parse(&good[..length]),
                Err(Malformed::Short { .. })
            ));
        }
        for length in 32..good.len() {
            assert!(matches!(
                parse(&good[..length]),
                Err(Malformed::Length { .. })
            ));
        }
        let with = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            parse(&packet)
        };
        for opcode in (0..=255).filter(|opcode| !(0x2a..=0x2b).contains(opcode)) {
            assert_eq!(with(0, opcode), Err(Malformed::Opcode { opcode }));
        }
        assert!(matches!(with(1, 1), Err(Malformed::Transport { .. })));
        assert!(matches!(with(2, 0), Err(Malformed::Transport { .. })));
        assert!(matches!(with(1, 0x10), Err(Malformed::Length { .. })));
        assert!(matches!(with(24, 0xff), Err(Malformed::Length { .. })));
    }

    proptest! {
        #[test]
        fn built_packets_are_parsed(
            queue_pair in 0_u32..1 << 24,
            psn in 0_u32..1 << 24,
            address: u64,
            rkey: u32,
            immediate: Option<u32>,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let packet = Packet { queue_pair, psn, address, rkey, immediate, payload: payload.clone() };
            let bytes = packet.bytes();
            let write = parse(&bytes).unwrap();
            prop_assert_eq!(&bytes[write.payload.clone()], &payload[..]);
            let start = write.payload.start;
            let expected = Write { queue_pair, psn, address, rkey, immediate, payload: start..start + payload.len() };
            prop_assert_eq!(write, expected);
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(mut packet in proptest::collection::vec(any::<u8>(), 0..80), opcode in 0x2a_u8..=0x2b, flags: bool) {
            if flags && packet.len() > 4 {
                packet[..4].copy_from_slice(&[opcode, 0, 0xff, 0xff]);
            }
            if let Ok(write) = parse(&packet) {
                prop_assert!(write.payload.start <= write.payload.end && write.payload.end + CRC <= packet.len());
            }
        }
    }
}
