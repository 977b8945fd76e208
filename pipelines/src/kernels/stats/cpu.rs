//! The CPU implementation of `stats`.
//!
//! Numbers are processed in tiles that stay in the L1 cache. For 8-bit types only the codes are counted; the fields are
//! computed from the number of occurrences of each of the 256 codes.

use super::super::grouping::{CpuKernel, Grouping, Sums};
use super::super::parameters::Tally;
use super::super::samples::{Number, Walk, with_number};
use super::super::unsupported;
use super::FIELDS;
use super::histogram::Histogram;
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::Layout;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;

/// Number of samples per channel that are processed together.
const TILE: usize = 512;
/// Number of sums computed in parallel.
const LANES: usize = 4;
/// Number of code tables. Consecutive numbers use different tables, so that increments for equal codes do not depend on
/// each other.
const TABLES: usize = 4;
/// Number of samples after which the code tables are added to the sums and cleared. This number is small enough that no
/// 32-bit count can overflow.
const MAX_COUNTED: usize = 1 << 30;
/// Total size in bytes of the buffers that do not depend on the configuration.
pub(super) const WORK_BYTES: usize = TILE * 18 + TABLES * 256 * 4;

pub(super) fn build(
    input: &Layout,
    grouping: Grouping,
    limits: (f64, f64),
    histogram: Option<Histogram>,
) -> Result<Box<dyn Kernel>, KernelError> {
    let count = histogram
        .as_ref()
        .map_or(0, |histogram| histogram.bins.count);
    let channels = input.channels as usize;
    let state = State {
        source: Source {
            walk: Walk::through(input),
            points: input.points,
            complex: input.complex,
        },
        limits,
        histogram,
        channels: (0..channels).map(|_| Tally::EMPTY).collect(),
        counts: vec![0; channels * count].into(),
    };
    with_number!(input.scalar, N => Ok(Box::new(CpuKernel {
        grouping,
        sums: Counter::<N> {
            state,
            tile: Box::new([0.0; TILE * 2]),
            bytes: Box::new([0; TILE * 2]),
            codes: Box::new([[0; 256]; TABLES]),
            number: PhantomData,
        },
    })), _ => Err(unsupported(input, "stats")))
}

impl Tally {
    /// A tally of no values.
    const EMPTY: Self = Self {
        count: 0,
        clip: 0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        sum: 0.0,
        squares: 0.0,
    };

    /// Returns the bytes of an empty tally for device code.
    pub(super) fn empty_bytes() -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Self>()];
        let mut put = |offset, value: [u8; 8]| bytes[offset..][..8].copy_from_slice(&value);
        put(offset_of!(Self, count), Self::EMPTY.count.to_le_bytes());
        put(offset_of!(Self, clip), Self::EMPTY.clip.to_le_bytes());
        put(offset_of!(Self, min), Self::EMPTY.min.to_le_bytes());
        put(offset_of!(Self, max), Self::EMPTY.max.to_le_bytes());
        put(offset_of!(Self, sum), Self::EMPTY.sum.to_le_bytes());
        put(offset_of!(Self, squares), Self::EMPTY.squares.to_le_bytes());
        bytes
    }

    /// Adds `numbers`; skips NaNs.
    fn add(&mut self, numbers: &[f64], limits: (f64, f64)) {
        let (chunks, rest) = numbers.as_chunks::<LANES>();
        let mut lanes = [Self::EMPTY; LANES];
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                lane.add_one(*x, limits);
            }
        }
        for x in rest {
            lanes[0].add_one(*x, limits);
        }
        for lane in lanes {
            self.min = self.min.min(lane.min);
            self.max = self.max.max(lane.max);
            self.sum += lane.sum;
            self.squares += lane.squares;
            self.count += lane.count;
            self.clip += lane.clip;
        }
    }

    #[inline]
    fn add_one(&mut self, x: f64, (low, high): (f64, f64)) {
        // Comparisons with a NaN are false, so a NaN changes neither the minimum nor the maximum.
        self.min = if x < self.min { x } else { self.min };
        self.max = if x > self.max { x } else { self.max };
        let value = if x.is_nan() { 0.0 } else { x };
        self.sum += value;
        self.squares += value * value;
        self.count += u64::from(!x.is_nan());
        self.clip += u64::from(x <= low) | u64::from(x >= high);
    }

    /// Adds the number `x`, counted `times` times; `x` must not be NaN.
    fn add_many(&mut self, x: f64, times: u64, (low, high): (f64, f64)) {
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.sum += x * times as f64;
        self.squares += x * x * times as f64;
        self.count += times;
        self.clip += if x <= low || x >= high { times } else { 0 };
    }

    fn fields(&self) -> [f64; FIELDS.len()] {
        let count = self.count as f64;
        let some = |value: f64| if self.count == 0 { f64::NAN } else { value };
        let rms = (self.squares / count).sqrt();
        [
            count,
            some(self.min),
            some(self.max),
            some(self.sum / count),
            some(rms),
            self.clip as f64,
        ]
    }
}

/// The state that does not depend on the type of the numbers.
struct State {
    source: Source,
    /// Numbers at or below the first value, or at or above the second, are clipped.
    limits: (f64, f64),
    histogram: Option<Histogram>,
    channels: Box<[Tally]>,
    /// Counts of the histograms of all channels, one channel after another.
    counts: Box<[u64]>,
}

/// Location of the numbers in a frame.
struct Source {
    walk: Walk,
    points: usize,
    complex: bool,
}

impl Source {
    /// Fills `tile` with the converted numbers of a range of points of `channel`, and returns them.
    #[inline]
    fn gather<'a, T: Copy, U>(
        &self,
        numbers: &[T],
        channel: usize,
        points: Range<usize>,
        tile: &'a mut [U],
        convert: impl Fn(T) -> U,
    ) -> &'a [U] {
        let (first, samples) = (points.start, points.len());
        if self.complex {
            let pairs = &mut tile.as_chunks_mut::<2>().0[..samples];
            let source = numbers.as_chunks::<2>().0;
            self.walk
                .gather(source, channel, first, pairs, |pair| pair.map(&convert));
            pairs.as_flattened()
        } else {
            let target = &mut tile[..samples];
            self.walk.gather(numbers, channel, first, target, convert);
            target
        }
    }
}

struct Counter<N> {
    state: State,
    tile: Box<[f64; TILE * 2]>,
    bytes: Box<[u8; TILE * 2]>,
    codes: Box<[[u32; 256]; TABLES]>,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Sums for Counter<N> {
    fn output_bytes(&self) -> usize {
        let State {
            channels, counts, ..
        } = &self.state;
        (channels.len() * FIELDS.len() + counts.len()) * 8
    }

    fn add(&mut self, frame: &[u8], _: usize, _: usize) {
        self.count(N::cut(frame));
    }

    fn write(&self, slot: &mut [u8]) {
        let State {
            channels, counts, ..
        } = &self.state;
        let bins = counts.len() / channels.len();
        let mut places = slot.as_chunks_mut::<8>().0.iter_mut();
        for (c, tally) in channels.iter().enumerate() {
            let histogram = counts[c * bins..][..bins].iter().map(|count| *count as f64);
            let values = tally.fields().into_iter().chain(histogram);
            // The other fields precede the histogram.
            for (value, place) in values.zip(places.by_ref()) {
                *place = value.to_le_bytes();
            }
        }
    }

    fn clear(&mut self) {
        self.state.channels.fill(Tally::EMPTY);
        self.state.counts.fill(0);
    }
}

impl<N: Number> Counter<N> {
    fn count(&mut self, numbers: &[N::Raw]) {
        for channel in 0..self.state.channels.len() {
            if size_of::<N::Raw>() == 1 {
                self.count_codes(numbers, channel);
            } else {
                self.count_numbers(numbers, channel);
            }
        }
    }

    fn count_numbers(&mut self, numbers: &[N::Raw], channel: usize) {
        let Self { state, tile, .. } = self;
        let bins = state.counts.len() / state.channels.len();
        let counts = &mut state.counts[channel * bins..][..bins];
        for first in (0..state.source.points).step_by(TILE) {
            let samples = TILE.min(state.source.points - first);
            let values = state.source.gather(
                numbers,
                channel,
                first..first + samples,
                &mut **tile,
                N::f64,
            );
            state.channels[channel].add(values, state.limits);
            if let Some(histogram) = &state.histogram {
                for x in values {
                    if let Some(bin) = histogram.bin(*x) {
                        counts[bin] += 1;
                    }
                }
            }
        }
    }

    fn count_codes(&mut self, numbers: &[N::Raw], channel: usize) {
        let Self {
            state,
            bytes,
            codes,
            ..
        } = self;
        let bins = state.counts.len() / state.channels.len();
        let counts = &mut state.counts[channel * bins..][..bins];
        for part in (0..state.source.points).step_by(MAX_COUNTED) {
            let end = state.source.points.min(part + MAX_COUNTED);
            for first in (part..end).step_by(TILE) {
                let samples = TILE.min(end - first);
                let points = first..first + samples;
                let values = state
                    .source
                    .gather(numbers, channel, points, &mut **bytes, N::code);
                let (chunks, rest) = values.as_chunks::<TABLES>();
                for chunk in chunks {
                    for (table, code) in codes.iter_mut().zip(chunk) {
                        table[usize::from(*code)] += 1;
                    }
                }
                for code in rest {
                    codes[0][usize::from(*code)] += 1;
                }
            }
            for code in 0..=u8::MAX {
                let times = codes
                    .iter_mut()
                    .map(|table| u64::from(std::mem::take(&mut table[usize::from(code)])));
                let times: u64 = times.sum();
                if times == 0 {
                    continue;
                }
                let x = N::value(code);
                state.channels[channel].add_many(x, times, state.limits);
                if let Some(bin) = state
                    .histogram
                    .as_ref()
                    .and_then(|histogram| histogram.bin(x))
                {
                    counts[bin] += times;
                }
            }
        }
    }
}
