//! Finds the UDP datagram in a packet, with the same checks as the Linux network stack.

use crate::packet::Flow;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Reason why a packet contains no usable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The packet ends before its headers do.
    #[error("the packet ends within its headers")]
    Short,
    /// The packet is of a kind that the XDP program should not have selected.
    #[error(
        "the packet is not a UDP datagram over IPv4 without options and fragmentation, or over IPv6 without \
         extension headers"
    )]
    Other,
    /// The length fields of the packet contradict each other.
    #[error("the lengths in the packet's headers contradict each other")]
    Length,
    /// The checksum of IPv4 or of UDP is wrong.
    #[error("the checksum of the packet is wrong, so the packet was damaged on its way")]
    Checksum,
}

impl Wrong {
    /// Returns the reason under which such packets are counted as rejected.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Short | Self::Other | Self::Length => "headers",
        }
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_TAGS: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_UDP: u8 = 17;
const UDP: usize = 8;

#[inline]
fn word(bytes: &[u8], at: usize) -> Result<u16, Wrong> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map(|word| u16::from_be_bytes(*word))
        .ok_or(Wrong::Short)
}

/// Returns whether the network header of `packet` should be that of IPv4.
#[inline]
pub(super) fn is_ipv4(packet: &[u8]) -> Result<bool, Wrong> {
    let first = word(packet, 12)?;
    let is_tagged = ETHERTYPE_TAGS.contains(&first);
    let kind = if is_tagged { word(packet, 16)? } else { first };
    Ok(kind == ETHERTYPE_IPV4)
}

/// Returns the byte range of the UDP payload in `packet`. The packet must begin with its Ethernet header and at most
/// one VLAN tag, followed by IPv4 without options and fragmentation, or by IPv6 without extension headers, then UDP.
///
/// Ethernet padding after the datagram is excluded. [`verify`](super::checksum::verify) verifies the checksums.
///
/// ```
/// let mut packet = [0; 60];
/// packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
/// packet[16..18].copy_from_slice(&32_u16.to_be_bytes());
/// packet[23] = 17;
/// packet[38..40].copy_from_slice(&12_u16.to_be_bytes());
/// assert_eq!(daq_drivers::xdp::headers::payload(&packet), Ok(42..46));
/// ```
#[inline]
pub fn payload(packet: &[u8]) -> Result<Range<usize>, Wrong> {
    let first = word(packet, 12)?;
    let (kind, network) = if ETHERTYPE_TAGS.contains(&first) {
        (word(packet, 16)?, 18)
    } else {
        (first, 14)
    };
    // Offset of the UDP header, and maximum size of the datagram with its header.
    let (start, max) = match kind {
        ETHERTYPE_IPV4 => {
            let header: &[u8; 20] = packet[network..].first_chunk().ok_or(Wrong::Short)?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
            if header[0] != 0x45 || header[9] != PROTOCOL_UDP || fragment != 0 {
                return Err(Wrong::Other);
            }
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            (network + 20, total.checked_sub(20).ok_or(Wrong::Length)?)
        }
        ETHERTYPE_IPV6 => {
            let header: &[u8; 40] = packet[network..].first_chunk().ok_or(Wrong::Short)?;
            if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
                return Err(Wrong::Other);
            }
            let bytes = usize::from(u16::from_be_bytes([header[4], header[5]]));
            (network + 40, bytes)
        }
        _ => return Err(Wrong::Other),
    };
    let bytes = usize::from(word(packet, start + 4)?);
    if packet.len() < start + UDP {
        return Err(Wrong::Short);
    }
    if bytes < UDP || bytes > max || start + max > packet.len() {
        return Err(Wrong::Length);
    }
    Ok(start + UDP..start + bytes)
}

/// Returns the sender of `packet`, if [`payload`] accepts the packet's headers.
pub fn sender(packet: &[u8]) -> Option<SocketAddr> {
    flow(packet)?.source
}

/// Returns the addresses of `packet`, if [`payload`] accepts the packet's headers.
pub fn flow(packet: &[u8]) -> Option<Flow> {
    let payload = payload(packet).ok()?;
    let from = word(packet, payload.start - UDP).ok()?;
    let to = word(packet, payload.start - UDP + 2).ok()?;
    let network = if ETHERTYPE_TAGS.contains(&word(packet, 12).ok()?) {
        18
    } else {
        14
    };
    let rest = packet.get(network..)?;
    let is_four = rest.first()? >> 4 == 4;
    let address = |four: usize, six: usize| -> Option<IpAddr> {
        Some(if is_four {
            IpAddr::from(*rest.get(four..)?.first_chunk::<4>()?)
        } else {
            IpAddr::from(*rest.get(six..)?.first_chunk::<16>()?)
        })
    };
    Some(Flow {
        source: Some((address(12, 8)?, from).into()),
        destination: Some((address(16, 24)?, to).into()),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a packet, and returns it with the offset of its payload.
    pub(in crate::xdp) fn packet(
        six: bool,
        tag: Option<u16>,
        payload: &[u8],
        padding: usize,
    ) -> Vec<u8> {
        let mut packet = vec![2; 12];
        if let Some(kind) = tag {
            packet.extend(kind.to_be_bytes());
            packet.extend([0x20, 0x05]);
        }
        let length = |extra: usize| {
            u16::try_from(UDP + payload.len() + extra)
                .unwrap()
                .to_be_bytes()
        };
        if six {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(length(0));
            packet.extend([17, 64]);
            packet.extend([0xfd; 32]);
        } else {
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend(length(20));
            packet.extend([1, 2, 0x40, 0, 64, 17, 0, 0]);
            packet.extend([10; 8]);
        }
        packet.extend([9, 9, 0x13, 0x56]);
        packet.extend(length(0));
        packet.extend([0, 0]);
        packet.extend(payload);
        packet.resize(packet.len() + padding, 0xee);
        packet
    }

    proptest! {
        #[test]
        fn payload_is_located(six: bool, tag in prop::option::of(prop::sample::select(&ETHERTYPE_TAGS[..])),
                                bytes in prop::collection::vec(any::<u8>(), 0..3000), padding in 0_usize..64) {
            let whole = packet(six, tag, &bytes, padding);
            let found = payload(&whole);
            prop_assert_eq!(found.clone().map(|found| &whole[found]), Ok(&bytes[..]));
            // A truncated packet is either parsed completely or rejected.
            let end = found.unwrap().end;
            for cut in (0..whole.len()).step_by(1 + whole.len() / 200) {
                prop_assert_eq!(payload(&whole[..cut]).is_ok(), cut >= end, "cut at {}", cut);
            }
        }

        #[test]
        fn random_bytes_are_located_inside_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200), six: bool) {
            let mut whole = packet(six, None, &[1; 32], 0);
            for (to, from) in whole.iter_mut().skip(14).zip(&bytes) {
                *to = *from;
            }
            for packet in [&bytes, &whole] {
                if let Ok(found) = payload(packet) {
                    prop_assert!(found.start <= found.end && found.end <= packet.len());
                }
            }
        }
    }

    #[test]
    fn sender_is_found_with_and_without_vlan_tag() {
        for tag in [None, Some(0x8100)] {
            let found = |six| sender(&packet(six, tag, &[1; 32], 0)).unwrap();
            assert_eq!(found(false), "10.10.10.10:2313".parse().unwrap());
            let six = "[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:2313";
            assert_eq!(found(true), six.parse().unwrap());
        }
        assert_eq!(sender(&[0; 60]), None);
    }

    #[test]
    fn packets_passed_by_program_are_rejected() {
        let whole = packet(false, None, &[1; 100], 0);
        let with = |at: usize, byte: u8| {
            let mut other = whole.clone();
            other[at] = byte;
            payload(&other)
        };
        // In this order: IP options, another protocol, the first fragment, a later fragment, and another EtherType.
        for (at, byte) in [(14, 0x46), (23, 6), (20, 0x20), (21, 1), (13, 6)] {
            assert_eq!(with(at, byte), Err(Wrong::Other), "byte {at}");
        }
        // IP and UDP lengths beyond the end of the packet, then lengths smaller than their headers.
        for (at, byte) in [(16, 1), (38, 1), (17, 10), (39, 7)] {
            assert_eq!(with(at, byte), Err(Wrong::Length), "byte {at}");
        }
        assert_eq!(payload(&whole).map(|found| found.len()), Ok(100));
    }
}
