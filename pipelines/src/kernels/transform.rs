//! The memory of Fourier transforms on the CPU.

/// The prime factors of sizes that are transformed without the algorithm of Bluestein on every processor.
const DIRECT_PRIMES: [usize; 5] = [2, 3, 5, 7, 11];

/// Returns the maximum number of bytes that a transform of `size` complex float32 points needs, with its factors, its work space
/// and the block that it transforms.
pub(super) fn bytes(size: usize) -> usize {
    points(size).saturating_mul(8)
}

/// Returns this number in complex numbers.
fn points(size: usize) -> usize {
    // The block, the work space, and the factors with those of smaller transforms inside.
    let own = size.saturating_mul(4);
    let rest = other_factors(size);
    if rest == 1 {
        return own;
    }
    // The algorithm of Bluestein transforms a padded block, whose size is a power of two or three times a power of two. It needs
    // this block, its product, and the factors and the work space of its transform.
    own.saturating_add(rest.saturating_mul(2))
        .saturating_add(padded(rest).saturating_mul(4))
}

/// Returns the size of the padded block for a transform of `size` points.
fn padded(size: usize) -> usize {
    let min = 2 * size - 1;
    let power = min.next_power_of_two();
    let smaller = power / 4 * 3;
    if smaller >= min { smaller } else { power }
}

/// Returns the product of the prime factors of `size` that are not in [`DIRECT_PRIMES`].
fn other_factors(size: usize) -> usize {
    let mut rest = size.max(1);
    for prime in DIRECT_PRIMES {
        while rest.is_multiple_of(prime) {
            rest /= prime;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_factors_are_found() {
        for (size, rest) in [
            (0, 1),
            (1, 1),
            (4096, 1),
            (1000, 1),
            (11 * 169, 169),
            (2018, 1009),
            (1_048_573, 1_048_573),
        ] {
            assert_eq!(other_factors(size), rest, "{size}");
        }
    }

    #[test]
    fn memory_contains_the_work_space_of_every_size() {
        let large = [65_537, 65_521, 2 * 32_749, 3 * 10_007, 98_304, 100_000];
        for size in (1..600).chain(large) {
            let scratch = daq_fft::forward(size).get_inplace_scratch_len();
            // The block, and at least one factor per point.
            let least = 2 * size + scratch;
            // Tiny transforms use the registers of the processor, which have a few more numbers.
            assert!(
                points(size) + 64 >= least,
                "{size}: {} < {least}",
                points(size)
            );
        }
    }

    #[test]
    fn large_primes_need_the_padded_block_four_times() {
        let prime: usize = 1_048_573;
        assert_eq!(points(prime), 6 * prime + 4 * (1 << 21));
        assert_eq!(points(1 << 20), 4 << 20);
    }
}
