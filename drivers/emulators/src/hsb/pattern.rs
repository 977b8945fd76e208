//! The contents of frames: every byte can be verified from the sensor, the frame number and the position.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Size of a word in bytes.
const WORD: usize = 8;
/// Number of bits for the position of a word in its frame.
const PLACE: u32 = 24;
/// Number of bits for the frame number in a word.
const FRAME: u32 = 32;

/// Maximum size of a frame in bytes, so that all its words are distinct.
pub const LARGEST_FRAME: u64 = (WORD as u64) << PLACE;

/// The contents of the 64-bit little-endian words of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SensorPattern")]
pub enum Pattern {
    /// Bits 56 to 63: sensor; bits 24 to 55: frame number; bits 0 to 23: position of the word in the frame.
    #[default]
    Counter,
    /// The words of `counter`, mixed so that every bit of a word changes irregularly.
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

/// Mixes the bits of a word with the finalizer of SplitMix64, which maps distinct words to distinct words.
const fn scatter(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn base(sensor: u8, frame: u64) -> u64 {
    (u64::from(sensor) << (PLACE + FRAME)) | ((frame & ((1 << FRAME) - 1)) << PLACE)
}

/// Fills `into` with the bytes of frame `frame` of sensor `sensor`, starting at byte `at`.
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

/// Returns the position of the first byte in which `bytes`, which start at byte `at` of the frame, differ from the
/// pattern.
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
    crate::pattern::first_difference(at, bytes, |at, into| fill(pattern, sensor, frame, at, into))
}

/// Returns the sensor and the frame number of a whole word of the pattern `counter`.
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
