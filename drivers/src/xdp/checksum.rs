//! Verifies the checksums of IPv4 and UDP. A checksum of 0 means that the sender computed none; other checksums are verified as in
//! the Linux network stack, which also drops IPv4 headers and UDP over IPv6 with a checksum of 0.
//!
//! Packets of the same host, such as those of a container, can have a partial checksum: Linux leaves the rest to the NIC,
//! which never sees the packet. XDP sockets have no metadata for it, but the checksum field shows it: it contains the
//! sum of the addresses, the protocol and the length only, without the payload.

use super::headers::{Wrong, is_ipv4};
use std::ops::Range;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP: usize = 8;

/// Verifies the checksums of `packet`, whose UDP payload is at `payload` according to
/// [`headers::payload`](super::headers::payload). A checksum of 0 means that the sender computed none.
#[inline]
pub fn verify(packet: &[u8], payload: &Range<usize>) -> Result<(), Wrong> {
    let start = payload.start - UDP;
    let datagram = packet.get(start..payload.end).ok_or(Wrong::Short)?;
    let is_four = is_ipv4(packet)?;
    let header = if is_four { IPV4_HEADER } else { IPV6_HEADER };
    let header = start
        .checked_sub(header)
        .and_then(|network| packet.get(network..start))
        .ok_or(Wrong::Short)?;
    if is_four && header[10..12] != [0, 0] && fold(sum(header)) != u16::MAX {
        return Err(Wrong::Checksum);
    }
    if datagram[6..8] == [0, 0] {
        return Ok(());
    }
    // The addresses are the last fields of both headers.
    let addresses = &header[if is_four { 12 } else { 8 }..];
    let length = [0, 17, datagram[4], datagram[5]];
    let pseudo = sum(addresses) + sum(&length);
    let is_partial = fold(pseudo) == u16::from_ne_bytes([datagram[6], datagram[7]]);
    if is_partial || fold(pseudo + sum(datagram)) == u16::MAX {
        Ok(())
    } else {
        Err(Wrong::Checksum)
    }
}

/// Returns the sum of the 16-bit words of `bytes`, not folded, in the byte order of this machine.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    words.sum::<u64>() + u64::from(u32::from_ne_bytes(last))
}

/// Adds the carries of a sum, as one's complement arithmetic does.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the loop ends when the sum has 16 bits"
)]
fn fold(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::super::headers::payload;
    use super::super::headers::tests::packet;
    use super::*;
    use proptest::prelude::*;

    /// Returns the checksum as RFC 1071 defines it.
    fn reference(bytes: &[u8]) -> u32 {
        let words = bytes.chunks(2).map(|pair| {
            let last = pair.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([pair[0], last]))
        });
        words.fold(0, |sum, word| {
            let sum = sum + word;
            (sum & 0xffff) + (sum >> 16)
        })
    }

    fn store(packet: &mut [u8], at: usize, sum: u32) {
        let sum = u16::try_from(sum).unwrap();
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Fills the checksums of `packet`; that of UDP partially if `is_partial`.
    fn complete(packet: &mut [u8], six: bool, is_partial: bool) {
        let found = payload(packet).unwrap();
        let start = found.start - UDP;
        let network = start - if six { 40 } else { 20 };
        store(packet, start + 6, 0);
        if !six {
            store(packet, network + 10, 0);
            let sum = reference(&packet[network..start]);
            store(packet, network + 10, sum ^ 0xffff);
        }
        let addresses = packet[network + if six { 8 } else { 12 }..start].to_vec();
        let pseudo = [&addresses[..], &[0, 17], &packet[start + 4..start + 6]].concat();
        let whole = [&pseudo[..], &packet[start..found.end]].concat();
        let sum = if is_partial {
            reference(&pseudo)
        } else {
            match reference(&whole) ^ 0xffff {
                0 => 0xffff,
                sum => sum,
            }
        };
        store(packet, start + 6, sum);
    }

    proptest! {
        #[test]
        fn damaged_packets_are_found(six: bool, is_tagged: bool, bytes in prop::collection::vec(any::<u8>(), 1..200),
                                     padding in 0_usize..20, at: prop::sample::Index, bit in 0_u32..8) {
            let tag = is_tagged.then_some(0x8100);
            let mut whole = packet(six, tag, &bytes, padding);
            let found = payload(&whole).unwrap();
            // Without checksums.
            prop_assert_eq!(verify(&whole, &found), Ok(()));
            complete(&mut whole, six, true);
            prop_assert_eq!(verify(&whole, &found), Ok(()));
            complete(&mut whole, six, false);
            prop_assert_eq!(verify(&whole, &found), Ok(()));
            let at = found.start + at.index(found.len());
            whole[at] ^= 1 << bit;
            let pseudo_equals = {
                let mut partial = whole.clone();
                complete(&mut partial, six, true);
                partial == whole
            };
            prop_assert_eq!(verify(&whole, &found).is_err(), !pseudo_equals);
        }

        #[test]
        fn random_bytes_are_verified_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), six: bool) {
            let mut whole = packet(six, None, &[1; 32], 0);
            for (to, from) in whole.iter_mut().skip(14).zip(&bytes) {
                *to = *from;
            }
            for packet in [&bytes, &whole] {
                if let Ok(found) = payload(packet) {
                    let _ = verify(packet, &found);
                }
            }
        }
    }

    #[test]
    fn damaged_ipv4_header_is_found() {
        let mut whole = packet(false, None, &[7; 64], 0);
        complete(&mut whole, false, false);
        let found = payload(&whole).unwrap();
        // The time to live, which the checksum of UDP does not cover.
        whole[22] ^= 1;
        assert_eq!(verify(&whole, &found), Err(Wrong::Checksum));
    }
}
