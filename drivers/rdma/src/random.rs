//! Random keys, numbers and addresses.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number of `bits` bits that is not 0. The standard library seeds its hash maps from the random
/// generator of Linux.
pub(crate) fn random(bits: u32) -> u64 {
    loop {
        let number = RandomState::new().build_hasher().finish() >> (64 - bits);
        if number != 0 {
            return number;
        }
    }
}

/// Returns a random number of at most 32 `bits` that is not 0.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`random` returns no more bits than requested"
)]
pub(crate) fn random_word(bits: u32) -> u32 {
    random(bits.min(32)) as u32
}
