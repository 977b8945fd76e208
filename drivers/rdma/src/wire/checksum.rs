//! The checksums of frames: CRC-32C, which x86-64 and ARM compute by instructions of their own.

use super::Record;
use daq_core::region::Region;

/// Number of bytes that are copied from a region at once. They fit into the first-level cache.
const CHUNK: usize = 16 << 10;

/// Returns the checksum of `bytes`.
pub(crate) fn of_bytes(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Returns the checksum of `bytes` bytes of `region` from `offset` on; `None` if the CPU cannot read them.
///
/// The peer may write the region at any time, so the bytes are copied before the checksum is computed.
pub(crate) fn of_region(region: &Region, offset: usize, bytes: usize) -> Option<u32> {
    let mut buffer = [0; CHUNK];
    let (mut sum, mut done) = (0, 0);
    while done < bytes {
        let chunk = &mut buffer[..CHUNK.min(bytes - done)];
        if !region.read(offset + done, chunk) {
            return None;
        }
        sum = crc32c::crc32c_append(sum, chunk);
        done += chunk.len();
    }
    Some(sum)
}

/// Returns the checksum of an encoded record with this head, in which the checksum of the record counts as 0, and with
/// these words after the head.
pub(crate) fn of_record(mut head: [u8; Record::HEAD], words: impl Iterator<Item = u64>) -> u32 {
    head[Record::CHECKSUM..].fill(0);
    words.fold(of_bytes(&head), |sum, word| {
        crc32c::crc32c_append(sum, &word.to_le_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Checksums;
    use daq_core::region::HostOptions;

    #[test]
    fn checksum_is_crc32c() {
        assert_eq!(of_bytes(b"123456789"), 0xe306_9283);
        let region = Region::host(3 * CHUNK, HostOptions::default()).unwrap();
        assert_eq!(
            of_region(&region, 5, 2 * CHUNK + 7),
            Some(of_bytes(&vec![0; 2 * CHUNK + 7]))
        );
        assert_eq!(of_region(&region, 1, region.bytes()), None);
    }

    #[test]
    fn record_is_covered_by_its_checksum() {
        let record = Record {
            number: 7,
            packets_per_frame: 65,
            checksums: Some(Checksums {
                payload: 0x1234_5678,
                record: 0,
            }),
            ..Record::default()
        };
        let words = [1, 2];
        let mut bytes = vec![0xff; Record::HEAD + 16];
        record.encode(words.into_iter(), &mut bytes);
        let found = Record::decode(&bytes).unwrap().checksums.unwrap();
        let head = *bytes.first_chunk().unwrap();
        assert_eq!(found.payload, 0x1234_5678);
        assert_eq!(found.record, of_record(head, words.into_iter()));
        assert_ne!(found.record, of_record(head, [1, 3].into_iter()));
    }
}
