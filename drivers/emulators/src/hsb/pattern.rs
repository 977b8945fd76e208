//! What frames contain, so that every byte can be checked from sensor, frame number and place alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of a word.
const WORD: usize = 8;
/// Bits of a word's place in its frame.
const PLACE: u32 = 24;
/// Bits of a frame's number in a word.
const FRAME: u32 = 32;

/// Maximum bytes of a frame, so that all its words are distinct.
pub const LARGEST_FRAME: u64 = (WORD as u64) << PLACE;

/// What the 64-bit little-endian words of a frame are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SensorPattern")]
pub enum Pattern {
    /// Bits 56 to 63 the sensor, 24 to 55 the frame's number, 0 to 23 the word's place in the frame.
    #[default]
    Counter,
    /// The same, scattered over all bits.
    Noise,
}

impl Pattern {
    fn word(self, base: u64, place: u64) -> u64 {
        let word = base | (place & ((1 << PLACE) - 1));
        match self {
            Self::Counter => word,
            Self::Noise => scatter(word),
        }
    }
}

/// One to one, so that no two words are alike: the finalizer of SplitMix64.
const fn scatter(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn base(sensor: u8, frame: u64) -> u64 {
    (u64::from(sensor) << (PLACE + FRAME)) | ((frame & ((1 << FRAME) - 1)) << PLACE)
}

/// Makes the bytes of frame `frame` of sensor `sensor` from its byte `at` on.
pub fn fill(pattern: Pattern, sensor: u8, frame: u64, at: u64, into: &mut [u8]) {
    let base = base(sensor, frame);
    let mut place = at / WORD as u64;
    let skip = usize::try_from(at % WORD as u64).unwrap_or(0);
    let mut rest = into;
    if skip > 0 {
        let word = pattern.word(base, place).to_le_bytes();
        let count = (WORD - skip).min(rest.len());
        let (head, after) = rest.split_at_mut(count);
        head.copy_from_slice(&word[skip..skip + count]);
        rest = after;
        place += 1;
    }
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (word, place) in words.iter_mut().zip(place..) {
        *word = pattern.word(base, place).to_le_bytes();
    }
    place += words.len() as u64;
    let left = tail.len();
    tail.copy_from_slice(&pattern.word(base, place).to_le_bytes()[..left]);
}

/// The first byte at which `bytes`, which begin at byte `at` of the frame, differ from it.
///
/// ```
/// use daq_emulators::hsb::pattern::{Pattern, fill, verify};
/// let mut bytes = [0; 100];
/// fill(Pattern::Noise, 1, 7, 1003, &mut bytes);
/// assert_eq!(verify(Pattern::Noise, 1, 7, 1003, &bytes), None);
/// bytes[7] ^= 1;
/// assert_eq!(verify(Pattern::Noise, 1, 7, 1003, &bytes), Some(1010));
/// ```
pub fn verify(pattern: Pattern, sensor: u8, frame: u64, at: u64, bytes: &[u8]) -> Option<u64> {
    let mut expected = [0; 4096];
    let mut at = at;
    for piece in bytes.chunks(expected.len()) {
        let expected = &mut expected[..piece.len()];
        fill(pattern, sensor, frame, at, expected);
        if piece != expected {
            let same = piece.iter().zip(&*expected).take_while(|(a, b)| a == b);
            return Some(at + same.count() as u64);
        }
        at += piece.len() as u64;
    }
    None
}

/// Sensor and number of the frame that a whole word of pattern `counter` belongs to.
pub fn whose(word: [u8; WORD]) -> (u8, u64) {
    let word = u64::from_le_bytes(word);
    let [.., sensor] = word.to_le_bytes();
    (sensor, (word >> PLACE) & ((1 << FRAME) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pattern_of_part_equals_part_of_frame(
            noise: bool,
            sensor: u8,
            frame in 0_u64..1 << 32,
            at in 0_usize..2000,
            bytes in 0_usize..9000,
            damage: usize,
        ) {
            let pattern = if noise { Pattern::Noise } else { Pattern::Counter };
            let whole: Vec<u8> = (0..2000_u64)
                .flat_map(|place| {
                    let word = (u64::from(sensor) << 56) + (frame << 24) + place;
                    (if noise { scatter(word) } else { word }).to_le_bytes()
                })
                .collect();
            let part = &whole[at..at + bytes];
            let mut made = vec![0xa5; bytes];
            fill(pattern, sensor, frame, at as u64, &mut made);
            prop_assert_eq!(&made, part);
            if bytes > 0 {
                let place = damage % bytes;
                made[place] ^= 0x40;
                prop_assert_eq!(verify(pattern, sensor, frame, at as u64, &made), Some((at + place) as u64));
            }
            if !noise {
                prop_assert_eq!(whose(whole[..8].try_into().unwrap()), (sensor, frame));
            }
        }
    }
}
