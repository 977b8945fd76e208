//! Divides transforms into passes, and determines the number of threads.

use super::super::device;
use std::f64::consts::TAU;

/// Maximum length of a transform.
const MAX_SIZE: usize = 1 << 20;
/// Number of points that a thread processes at a time. The device code uses the same value.
const POINTS: usize = 8;
/// Maximum number of threads per block. The device code uses the same value.
const MAX_THREADS: usize = 1024;
/// Preferred number of points per block. Blocks of short transforms have few points, so that threads spend less time
/// waiting at barriers. Blocks of columns and rows have many points, so that memory is read in long contiguous parts.
const SHORT_POINTS: usize = 2048;
const LONG_POINTS: usize = 4096;
/// Maximum number of short transforms that a block computes side by side.
const MAX_SIDE_BY_SIDE: usize = 64;

/// Number of points that a thread holds in registers, in the device code for powers of two.
const POWER_POINTS: usize = 16;
/// Sizes of the columns and rows of longer powers of two in this device code.
const MIN_LONG_POWER: usize = 128;
const MAX_LONG_POWER: usize = 1024;
/// Number of threads per multiprocessor that this device code reserves registers for.
const RESIDENT: usize = 512;

/// Returns whether transforms of `size` points are supported.
pub(super) fn has(size: usize) -> bool {
    (2..=MAX_SIZE).contains(&size) && Radices::of(size).is_some()
}

/// The radices of the passes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Radices {
    /// The radices with four bits each; the first is in the lowest bits.
    packed: u64,
    count: u32,
}

impl Radices {
    /// Returns the radices for `size`; `None` if `size` has a prime factor above 7 or needs more than 16 passes.
    fn of(size: usize) -> Option<Self> {
        let mut radices = Self {
            packed: 0,
            count: 0,
        };
        let mut rest = size;
        // Two passes of radix 4 replace one of radix 2 and one of radix 8.
        let twos = size.trailing_zeros();
        let fours = match twos % 3 {
            1 if twos >= 4 => 2,
            2 => 1,
            _ => 0,
        };
        for radix in std::iter::repeat_n(4, fours).chain([3, 5, 7, 8, 2]) {
            let max = if radix == 4 { 1 } else { u32::MAX };
            let mut times = 0;
            while rest.is_multiple_of(radix) && times < max {
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
    /// The radices in the format of the device code; 0 if `size` has device code of its own.
    pub(super) radices: u64,
    pub(super) threads: usize,
    /// Size of the shared memory per block in bytes.
    pub(super) shared: usize,
    /// Number of points between the two buffers of a block; 0 with one buffer.
    pub(super) second: usize,
}

impl Batch {
    /// Creates a batch of `count` transforms. Returns `None` if the transforms do not fit into `max_shared` bytes of
    /// shared memory.
    fn new(size: usize, count: usize, max_shared: usize) -> Option<Self> {
        let radices = Radices::of(size)?;
        let threads = radices
            .iter()
            .map(|radix| (size / radix * count).div_ceil(POINTS / radix))
            .max()?
            .next_multiple_of(32);
        // Points are padded and transforms are separated as in `Batch` of the device code. Two addresses per transform
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
            second: 0,
        })
    }

    /// Creates a batch for a size with device code of its own, of at least one and at most `max` transforms in at most about
    /// `threads` threads. Returns `None` if the transforms do not fit into `max_shared` bytes of shared memory.
    fn power(size: usize, threads: usize, max: usize, max_shared: usize) -> Option<Self> {
        let each = size / POWER_POINTS;
        let count = (threads / each).min(max).max(1);
        let threads = each * count;
        let points = count * ((size + size / 16) | 1);
        let buffer = points * 8;
        // Two buffers save barriers. They must not reduce the number of blocks that run at the same time.
        let is_double = 2 * buffer * (RESIDENT / threads).max(1) <= max_shared;
        (buffer <= max_shared).then_some(Self {
            size,
            count,
            radices: 0,
            threads,
            shared: if is_double { 2 * buffer } else { buffer },
            second: if is_double { points } else { 0 },
        })
    }

    /// Returns whether `size` has device code of its own.
    pub(super) const fn is_power(&self) -> bool {
        self.radices == 0
    }

    /// Returns a batch of at least one and at most `max` transforms, which have about `points` points in total. The
    /// batch is smaller if shared memory does not suffice.
    fn of(size: usize, points: usize, max: usize, max_shared: usize) -> Option<Self> {
        let wanted = (points / size).min(MAX_SIDE_BY_SIDE).min(max).max(1);
        (1..=wanted)
            .rev()
            .find_map(|count| Self::new(size, count, max_shared))
    }
}

/// How transforms of one size are performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passes {
    /// The columns of long transforms, which are transformed first; `None` if whole transforms fit into shared memory.
    pub(super) columns: Option<Batch>,
    /// The rows of long transforms, or whole transforms.
    pub(super) rows: Batch,
}

impl Passes {
    /// Selects the method for transforms of `size` points. At most `max` transforms belong to one sum, and a block has
    /// `max_shared` bytes of shared memory. If `is_padded`, the last points are zeros that are not read. Returns `None` if
    /// [`has`] is false.
    pub(super) fn new(size: usize, is_padded: bool, max: usize, max_shared: usize) -> Option<Self> {
        if !has(size) {
            return None;
        }
        // The device code for powers of two reads all points of a transform.
        if let Some(passes) = Self::power(size, max, max_shared).filter(|_| !is_padded) {
            return Some(passes);
        }
        if let Some(rows) = Batch::of(size, SHORT_POINTS, max, max_shared) {
            return Some(Self {
                columns: None,
                rows,
            });
        }
        // Choose columns and rows of similar length.
        (2..=size.isqrt())
            .rev()
            .filter(|down| size.is_multiple_of(*down))
            .find_map(|down| {
                let across = size / down;
                Some(Self {
                    columns: Some(Batch::of(down, LONG_POINTS, across, max_shared)?),
                    rows: Batch::of(across, LONG_POINTS, down, max_shared)?,
                })
            })
    }

    /// Selects device code of its own for `size`, if there is some.
    fn power(size: usize, max: usize, max_shared: usize) -> Option<Self> {
        if device::power_of_two(size).is_some() {
            // The same numbers of threads as in the device code.
            let threads = if size <= 2048 {
                128
            } else {
                size / POWER_POINTS
            };
            let rows = Batch::power(size, threads, max, max_shared)?;
            let columns = None;
            return Some(Self { columns, rows });
        }
        let down = 1 << (size.ilog2() / 2);
        let across = size / down;
        let is_long = size.is_power_of_two() && down >= MIN_LONG_POWER && across <= MAX_LONG_POWER;
        let batch = |size: usize| {
            let threads = match size {
                0..=256 => 128,
                257..=512 => 256,
                _ => 512,
            };
            Batch::power(size, threads, usize::MAX, max_shared)
        };
        if !is_long {
            return None;
        }
        Some(Self {
            columns: Some(batch(down)?),
            rows: batch(across)?,
        })
    }
}

/// Returns `exp(-2 π i k / size)` for every `k` below `size`, real and imaginary parts in float32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the transform uses float32 values; only the angle is computed in float64"
)]
pub(super) fn roots(size: usize) -> impl Iterator<Item = [f32; 2]> {
    (0..size).map(move |k| {
        let (sin, cos) = (TAU * k as f64 / size as f64).sin_cos();
        [cos as f32, -sin as f32]
    })
}

#[cfg(test)]
mod tests;
