//! Splits records that contain several datagrams, because segmentation offload was enabled where they were captured.
//!
//! The format is not known yet, so the size of a datagram is found in headers that state it, or from headers that repeat at
//! equal distances.

use daq_core::recognise::Recogniser;
use daq_drivers::packet::pcap::Datagram;

/// Number of bytes at the start of a datagram that are compared.
const COMPARED: usize = 16;
/// Minimum number of compared bytes that must be equal.
const EQUAL: usize = 8;
/// Size in bytes of the largest packets of networks. A larger record contains several datagrams, or was captured on the
/// loopback interface.
const JUMBO: usize = 9000;
/// Minimum size in bytes of a datagram whose size is found from repeated headers.
const MIN_SEGMENT: usize = 64;

/// Number of records in which repeated headers are searched until one is found, because the search is slow.
const MAX_SEARCHES: u32 = 32;

/// Splits the records of one flow.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The size of the datagrams in the last record that was split.
    last: Option<usize>,
    searches: u32,
}

impl Splitter {
    /// Returns the size of each datagram in the record, except the last; at least 1. `recognisers` read the sizes that datagrams
    /// state.
    pub(super) fn segment(&mut self, record: &Datagram<'_>, recognisers: &[Recogniser]) -> usize {
        let bytes = record.payload;
        let whole = bytes.len().max(1);
        // Offload leaves the checksum incomplete, so a valid checksum means a single datagram.
        if bytes.len() < MIN_SEGMENT + COMPARED || record.has_valid_checksum() {
            return whole;
        }
        for stated in recognisers.iter().map(|one| one.packet_len) {
            match stated(bytes) {
                Some(length) if length == bytes.len() => return whole,
                Some(length)
                    if length < bytes.len()
                        && bytes
                            .chunks(length)
                            .all(|each| stated(each) == Some(each.len())) =>
                {
                    return length;
                }
                _ => {}
            }
        }
        let known = self.last.filter(|size| repeats(bytes, *size));
        if known.is_some() || bytes.len() <= JUMBO || self.searches >= MAX_SEARCHES {
            return known.unwrap_or(whole);
        }
        self.searches += 1;
        let found = (MIN_SEGMENT..bytes.len()).find(|size| repeats(bytes, *size));
        self.last = found.or(self.last);
        found.unwrap_or(whole)
    }
}

/// Returns whether the first bytes of `bytes` repeat each `size` bytes, and not as much beside these positions.
fn repeats(bytes: &[u8], size: usize) -> bool {
    if size + COMPARED > bytes.len() {
        return false;
    }
    let equal = |shift: usize| {
        let later = bytes.chunks(size).skip(1).enumerate();
        let full = later.filter(|(_, chunk)| chunk.len() >= COMPARED);
        let counts = full.map(|(i, _)| {
            let at = (i + 1) * size + shift;
            let same = |k: usize| bytes.get(k) == bytes.get(at + k);
            (0..COMPARED).filter(|k| same(*k)).count()
        });
        counts.min().unwrap_or(0)
    };
    let here = equal(0);
    here >= EQUAL && [1, 3, 8].iter().all(|shift| equal(*shift) + 3 <= here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn segment(payload: &[u8]) -> usize {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let record = Datagram {
            timestamp_ns: 0,
            source: address,
            destination: address,
            checksum: 0,
            payload,
        };
        Splitter::default().segment(&record, &[])
    }

    #[test]
    fn repeated_headers_divide_record_and_constant_bytes_do_not() {
        let datagram = |number: u8, length: usize| {
            let mut bytes = vec![
                0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, number, 9, 8, 7, 6, 5, 4, 3, 2,
            ];
            bytes.extend((0..length).map(|i| (i * 37 + usize::from(number) * 11).to_le_bytes()[0]));
            bytes
        };
        let record = [
            datagram(1, 4000),
            datagram(2, 4000),
            datagram(3, 4000),
            datagram(4, 90),
        ]
        .concat();
        assert_eq!(segment(&record), 4016);
        assert_eq!(segment(&datagram(1, 10_000)), 10_016);
        assert_eq!(segment(&[0; 16_384]), 16_384);
        assert_eq!(segment(&[]), 1);
    }
}
