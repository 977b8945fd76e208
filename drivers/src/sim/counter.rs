//! The pattern `counter`: each byte of the stream depends only on its position.
//!
//! The stream consists of 64-bit little-endian words that count up from 0. Byte `n` of the stream is byte
//! `n % 8` of the word `n / 8`. The packet with sequence number `s` begins at byte `s * packet`, a frame with
//! sequence number `f` at byte `f * frame_bytes`.

/// Number of bytes that [`write`] generates at a time; they fit into the first-level cache.
const CHUNK: usize = 1024;

/// Returns the byte at `offset` of the stream.
///
/// ```
/// use daq_drivers::sim::expected_byte;
/// assert_eq!(expected_byte(8), 1);
/// assert_eq!(expected_byte(9), 0);
/// assert_eq!(expected_byte(8 * 0x0201 + 1), 2);
/// ```
pub const fn expected_byte(offset: u64) -> u8 {
    (offset / 8).to_le_bytes()[(offset % 8) as usize]
}

/// Compares `bytes` with the stream, starting at `first_offset`. Returns the stream offset of the first byte that
/// differs.
///
/// ```
/// use daq_drivers::sim::verify;
/// assert_eq!(verify(&[0, 0, 3, 0], 22), None);
/// assert_eq!(verify(&[0, 0, 4, 0], 22), Some(24));
/// ```
pub fn verify(bytes: &[u8], first_offset: u64) -> Option<u64> {
    let mut scratch = [0; CHUNK];
    let mut at = first_offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let made = make(&mut scratch, at, rest.len());
        let (piece, after) = rest.split_at(made.len());
        if piece != made {
            let differs = piece
                .iter()
                .zip(made)
                .take_while(|(found, expected)| found == expected)
                .count();
            return Some(at.wrapping_add(differs as u64));
        }
        at = at.wrapping_add(piece.len() as u64);
        rest = after;
    }
    None
}

/// Passes `bytes` bytes of the stream, starting at `offset`, to `out` in pieces.
pub(super) fn write(offset: u64, bytes: usize, mut out: impl FnMut(&[u8])) {
    let mut scratch = [0; CHUNK];
    let mut done = 0;
    while done < bytes {
        let made = make(&mut scratch, offset.wrapping_add(done as u64), bytes - done);
        out(made);
        done += made.len();
    }
}

/// Generates the stream, starting at `offset`: at least one byte, at most `bytes`.
fn make(scratch: &mut [u8; CHUNK], offset: u64, bytes: usize) -> &[u8] {
    let skip = (offset % 8) as usize;
    let end = skip.saturating_add(bytes).min(CHUNK);
    let first = offset / 8;
    for (word, number) in scratch[..end.next_multiple_of(8)]
        .chunks_exact_mut(8)
        .zip(0_u64..)
    {
        // The last word of a stream of 2^64 bytes is followed by the first.
        let number = first.wrapping_add(number) & (u64::MAX >> 3);
        word.copy_from_slice(&number.to_le_bytes());
    }
    &scratch[skip..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_bytes_are_expected(offset in prop_oneof![0_u64..100_000, any::<u64>()], bytes in 0_usize..10_000) {
            let mut stream = Vec::new();
            write(offset, bytes, |piece| stream.extend_from_slice(piece));
            prop_assert_eq!(stream.len(), bytes);
            for (i, byte) in stream.iter().enumerate() {
                prop_assert_eq!(*byte, expected_byte(offset.wrapping_add(i as u64)));
            }
            prop_assert_eq!(verify(&stream, offset), None);
        }

        #[test]
        fn wrong_byte_is_found(offset in 0_u64..100_000, bytes in 1_usize..10_000, at: prop::sample::Index, flip in 1_u8..) {
            let mut stream: Vec<u8> = (0..bytes as u64).map(|i| expected_byte(offset + i)).collect();
            let at = at.index(bytes);
            stream[at] ^= flip;
            prop_assert_eq!(verify(&stream, offset), Some(offset + at as u64));
        }
    }
}
