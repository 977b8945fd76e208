//! The payload of an emulated device's stream; every byte can be verified.

pub use daq_drivers::fpga::transports::emulated::Pattern;

/// Size of a word in bytes.
const WORD: usize = 8;

/// Returns word number `place` of a stream with packets of `packet` bytes.
fn word_of(pattern: Pattern, place: u64, packet: u64) -> u64 {
    let words = (packet / WORD as u64).max(1);
    match pattern {
        Pattern::Sequence if place.is_multiple_of(words) => place / words,
        _ => place,
    }
}

/// Fills `into` with the bytes of a stream, starting at byte `at`. `packet` is the packet size in bytes.
pub fn fill(pattern: Pattern, packet: u64, at: u64, into: &mut [u8]) {
    let (mut at, mut rest) = (at, into);
    let head = partial(at).min(rest.len());
    if head > 0 {
        let (bytes, after) = rest.split_at_mut(head);
        let word = word_of(pattern, at / WORD as u64, packet).to_le_bytes();
        let skip = WORD - partial(at);
        bytes.copy_from_slice(&word[skip..skip + head]);
        at += head as u64;
        rest = after;
    }
    let first = at / WORD as u64;
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (word, place) in words.iter_mut().zip(first..) {
        *word = place.to_le_bytes();
    }
    let end = first + words.len() as u64;
    if pattern == Pattern::Sequence {
        let step = (packet / WORD as u64).max(1);
        let mut place = first.next_multiple_of(step);
        while place < end {
            // `words` contains the words `first..end` of the stream.
            if let Some(word) = usize::try_from(place - first)
                .ok()
                .and_then(|index| words.get_mut(index))
            {
                *word = (place / step).to_le_bytes();
            }
            place += step;
        }
    }
    let left = tail.len();
    tail.copy_from_slice(&word_of(pattern, end, packet).to_le_bytes()[..left]);
}

/// Returns the position of the first byte in which `bytes`, which start at byte `at`, differ from the stream.
///
/// ```
/// use daq_emulators::pattern::{Pattern, fill, verify};
/// let mut bytes = [0; 100];
/// fill(Pattern::Sequence, 64, 1003, &mut bytes);
/// assert_eq!(verify(Pattern::Sequence, 64, 1003, &bytes), None);
/// bytes[7] ^= 1;
/// assert_eq!(verify(Pattern::Sequence, 64, 1003, &bytes), Some(1010));
/// ```
pub fn verify(pattern: Pattern, packet: u64, at: u64, bytes: &[u8]) -> Option<u64> {
    first_difference(at, bytes, |at, into| fill(pattern, packet, at, into))
}

/// Returns the position of the first byte in which `bytes`, which start at byte `at`, differ from the bytes that `fill`
/// writes for a position.
pub(crate) fn first_difference(
    mut at: u64,
    bytes: &[u8],
    fill: impl Fn(u64, &mut [u8]),
) -> Option<u64> {
    let mut expected = [0; 4096];
    for piece in bytes.chunks(expected.len()) {
        let expected = &mut expected[..piece.len()];
        fill(at, expected);
        if piece != expected {
            let same = piece.iter().zip(&*expected).take_while(|(a, b)| a == b);
            return Some(at + same.count() as u64);
        }
        at += piece.len() as u64;
    }
    None
}

/// Returns the number of bytes from `at` to the next word boundary; 0 on a boundary.
fn partial(at: u64) -> usize {
    usize::try_from(at.wrapping_neg() % WORD as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes a stream word by word.
    fn by_words(pattern: Pattern, packet: u64, words: u64) -> Vec<u8> {
        (0..words)
            .flat_map(|place| {
                let is_first = place * 8 % packet == 0;
                let word = match pattern {
                    Pattern::Sequence if is_first => place * 8 / packet,
                    _ => place,
                };
                word.to_le_bytes()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn pattern_of_part_equals_part_of_stream(
            sequence: bool,
            packet in 1_u64..40,
            at in 0_usize..2000,
            bytes in 0_usize..9000,
            damage: usize,
        ) {
            let pattern = if sequence { Pattern::Sequence } else { Pattern::Counter };
            let packet = packet * 8;
            let stream = by_words(pattern, packet, 2000);
            let part = &stream[at..at + bytes];
            let mut made = vec![0xa5; bytes];
            fill(pattern, packet, at as u64, &mut made);
            prop_assert_eq!(&made, part);
            prop_assert_eq!(verify(pattern, packet, at as u64, part), None);
            if bytes > 0 {
                let place = damage % bytes;
                made[place] ^= 0x40;
                prop_assert_eq!(verify(pattern, packet, at as u64, &made), Some((at + place) as u64));
            }
        }
    }
}
