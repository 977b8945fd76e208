//! Divides transforms into passes, and computes the number of threads.

use std::f64::consts::TAU;

/// Maximum length of a transform.
const MAX_SIZE: usize = 1 << 20;
/// Number of points that a thread holds at a time, as in the device code.
const POINTS: usize = 8;
/// Maximum number of threads per block, as in the device code.
const MAX_THREADS: usize = 1024;
/// Number of points per block if sizes leave a choice. Short transforms have few, so that blocks wait less for their
/// own threads; columns and rows have many, so that memory is read in long contiguous parts.
const SHORT_POINTS: usize = 2048;
const LONG_POINTS: usize = 4096;
/// Maximum number of short transforms side by side.
const MAX_SIDE_BY_SIDE: usize = 64;

/// Whether transforms of `size` points are supported.
pub(super) fn has(size: usize) -> bool {
    (2..=MAX_SIZE).contains(&size) && Radices::of(size).is_some()
}

/// Radices of the passes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Radices {
    /// Four bits per radix; the first is the lowest.
    packed: u64,
    count: u32,
}

impl Radices {
    /// Returns `None` if `size` has a prime factor above 7 or needs more than 16 passes.
    fn of(size: usize) -> Option<Self> {
        let mut radices = Self {
            packed: 0,
            count: 0,
        };
        let mut rest = size;
        // Two passes of radix 4 instead of one of radix 2 and one of radix 8.
        let twos = size.trailing_zeros();
        let fours = match twos % 3 {
            1 if twos >= 4 => 2,
            2 => 1,
            _ => 0,
        };
        for radix in std::iter::repeat_n(4, fours).chain([3, 5, 7, 8, 2]) {
            let most = if radix == 4 { 1 } else { u32::MAX };
            let mut times = 0;
            while rest.is_multiple_of(radix) && times < most {
                radices.push(radix)?;
                rest /= radix;
                times += 1;
            }
        }
        (rest == 1).then_some(radices)
    }

    fn push(&mut self, radix: usize) -> Option<()> {
        if self.count == 16 {
            return None;
        }
        self.packed |= (radix as u64) << (4 * self.count);
        self.count += 1;
        Some(())
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |i| (self.packed >> (4 * i) & 15) as usize)
    }
}

/// Transforms of one length that a block computes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) size: usize,
    pub(super) count: usize,
    /// Radices in the device code's format.
    pub(super) radices: u64,
    pub(super) threads: usize,
    /// Bytes of shared memory.
    pub(super) shared: usize,
}

impl Batch {
    /// Returns `None` if a block with `max_shared` bytes of shared memory cannot hold them.
    fn new(size: usize, count: usize, max_shared: usize) -> Option<Self> {
        let radices = Radices::of(size)?;
        let threads = radices
            .iter()
            .map(|radix| (size / radix * count).div_ceil(POINTS / radix))
            .max()?
            .next_multiple_of(32);
        // Points are padded and transforms separated as in the device code's `Batch`; two addresses per transform
        // follow.
        let pitch = (size + size / 16) | 1;
        let shared = count * (pitch + 2) * 8;
        let fits = threads <= MAX_THREADS && shared <= max_shared;
        fits.then_some(Self {
            size,
            count,
            radices: radices.packed,
            threads,
            shared,
        })
    }

    /// Uses as many transforms as have `points` points together, at most `most`.
    fn of(size: usize, points: usize, most: usize, max_shared: usize) -> Option<Self> {
        let wanted = (points / size).min(MAX_SIDE_BY_SIDE).min(most).max(1);
        (1..=wanted)
            .rev()
            .find_map(|count| Self::new(size, count, max_shared))
    }
}

/// Method for transforms of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passes {
    /// Transforms in shared memory.
    Short(Batch),
    /// Columns, then rows.
    Long { columns: Batch, rows: Batch },
}

impl Passes {
    /// Selects the method for transforms of `size` points, of which up to `most` go into one sum, in blocks with
    /// `max_shared` bytes of shared memory. Returns `None` if [`has`] is false.
    pub(super) fn new(size: usize, most: usize, max_shared: usize) -> Option<Self> {
        if !has(size) {
            return None;
        }
        if let Some(batch) = Batch::of(size, SHORT_POINTS, most, max_shared) {
            return Some(Self::Short(batch));
        }
        // Columns and rows have similar lengths.
        (2..=size.isqrt())
            .rev()
            .filter(|down| size.is_multiple_of(*down))
            .find_map(|down| {
                let across = size / down;
                Some(Self::Long {
                    columns: Batch::of(down, LONG_POINTS, across, max_shared)?,
                    rows: Batch::of(across, LONG_POINTS, down, max_shared)?,
                })
            })
    }
}

/// Returns `exp(-2 π i k / size)` for every `k` below `size`, real and imaginary parts in float32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the transform is float32; the angle is not"
)]
pub(super) fn roots(size: usize) -> impl Iterator<Item = [f32; 2]> {
    (0..size).map(move |k| {
        let (sin, cos) = (TAU * k as f64 / size as f64).sin_cos();
        [cos as f32, -sin as f32]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radices_multiply_to_transform_size() {
        let mut had = 0;
        for size in 2..=5000 {
            let mut rest = size;
            for prime in [2, 3, 5, 7] {
                while rest % prime == 0 {
                    rest /= prime;
                }
            }
            assert_eq!(has(size), rest == 1, "{size}");
            let Some(radices) = Radices::of(size) else {
                continue;
            };
            had += 1;
            assert_eq!(radices.iter().product::<usize>(), size);
            assert!(
                radices.iter().all(|radix| (2..=8).contains(&radix)),
                "{size}"
            );
        }
        assert!(had > 200, "{had} sizes");
        let order = |size| Radices::of(size).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(order(4096), [8, 8, 8, 8]);
        assert_eq!(order(8192), [4, 4, 8, 8, 8]);
        assert_eq!(order(16_384), [4, 8, 8, 8, 8]);
        assert!(!has(1) && !has(1 << 21) && !has(11));
    }

    #[test]
    fn passes_of_every_size_fit_one_block() {
        let smooth = (2..=MAX_SIZE).filter(|size| has(*size));
        // 48 KiB, Turing's 64 KiB, Hopper's 227 KiB
        for (size, shared) in smooth.flat_map(|size| [48, 64, 227].map(|kib| (size, kib << 10))) {
            let batches = match Passes::new(size, 7, shared) {
                Some(Passes::Short(batch)) => {
                    assert_eq!(batch.size, size);
                    vec![batch]
                }
                Some(Passes::Long { columns, rows }) => {
                    assert_eq!(columns.size * rows.size, size);
                    vec![columns, rows]
                }
                None => panic!("{size} points with {shared} bytes"),
            };
            for batch in batches {
                assert!(batch.threads <= MAX_THREADS && batch.shared <= shared);
                // Device code divides by numbers below 2^16.
                assert!(batch.size * batch.count < 1 << 16);
            }
        }
        let short = |size, shared| matches!(Passes::new(size, 1, shared), Some(Passes::Short(_)));
        assert!(short(4096, 48 << 10) && short(8192, 227 << 10) && !short(8192, 48 << 10));
    }
}
