//! The CPU implementation of `stats`.
//!
//! Numbers are processed in tiles that stay in the L1 cache. For 8-bit types only the codes are counted; the fields are
//! computed from the number of occurrences of each of the 256 codes.

use super::super::samples::{Number, Walk, with_number};
use super::super::{emit, whole};
use super::FIELDS;
use super::histogram::Histogram;
use super::merging::{Merging, Tallies};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease, SlotsMut};
use std::marker::PhantomData;

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
    every: u64,
    limits: (f64, f64),
    histogram: Option<Histogram>,
) -> Box<dyn Kernel> {
    let count = histogram
        .as_ref()
        .map_or(0, |histogram| histogram.bins.count);
    let channels = input.channels as usize;
    let state = State {
        input_bytes: input.frame_bytes(),
        walk: Walk::through(input),
        points: input.points,
        complex: input.complex,
        limits,
        histogram,
        channels: (0..channels).map(|_| Tally::default()).collect(),
        counts: vec![0; channels * count].into(),
    };
    let merging = Merging::new(input, every);
    with_number!(input.scalar, N => Box::new(Merger::<N> {
        merging,
        counter: Counter {
            state,
            tile: Box::new([0.0; TILE * 2]),
            bytes: Box::new([0; TILE * 2]),
            codes: Box::new([[0; 256]; TABLES]),
            number: PhantomData,
        },
    }))
}

/// The statistics of one channel, as sums.
#[derive(Clone, Copy, Debug)]
struct Tally {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
    clip: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            count: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
            squares: 0.0,
            clip: 0,
        }
    }
}

impl Tally {
    /// Adds `numbers`; skips NaNs.
    fn add(&mut self, numbers: &[f64], limits: (f64, f64)) {
        let (chunks, rest) = numbers.as_chunks::<LANES>();
        let mut lanes = [Self::default(); LANES];
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
    input_bytes: usize,
    walk: Walk,
    points: usize,
    complex: bool,
    /// Numbers at or below the first value, or at or above the second, are clipped.
    limits: (f64, f64),
    histogram: Option<Histogram>,
    channels: Box<[Tally]>,
    /// Counts of the histograms of all channels, one channel after another.
    counts: Box<[u64]>,
}

impl State {
    /// Writes the counters as one output frame and resets the counters.
    fn finish(&mut self, meta: FrameMeta, out: &mut SlotsMut<'_>) -> Result<(), KernelError> {
        let bins = self.counts.len() / self.channels.len();
        let fields = FIELDS.len() + bins;
        let (channels, counts) = (&self.channels, &self.counts);
        emit(out, channels.len() * fields * 8, meta, |slot| {
            let mut places = slot.as_chunks_mut::<8>().0.iter_mut();
            for (c, tally) in channels.iter().enumerate() {
                let histogram = counts[c * bins..][..bins].iter().map(|count| *count as f64);
                let values = tally.fields().into_iter().chain(histogram);
                // The other fields precede the histogram.
                for (value, place) in values.zip(places.by_ref()) {
                    *place = value.to_le_bytes();
                }
            }
        })?;
        self.channels.fill(Tally::default());
        self.counts.fill(0);
        Ok(())
    }
}

struct Counter<N> {
    state: State,
    tile: Box<[f64; TILE * 2]>,
    bytes: Box<[u8; TILE * 2]>,
    codes: Box<[[u32; 256]; TABLES]>,
    number: PhantomData<fn() -> N>,
}

struct Merger<N> {
    merging: Merging,
    counter: Counter<N>,
}

impl<N: Number> Kernel for Merger<N> {
    fn outputs(&self, frames: usize) -> usize {
        Merging::outputs(frames)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let counter = &mut self.counter;
        self.merging.run(burst, &mut Writing { counter, out })
    }
}

/// The counters, and the output slots to which the statistics are written.
struct Writing<'a, 'b, N> {
    counter: &'a mut Counter<N>,
    out: &'a mut SlotsMut<'b>,
}

impl<N: Number> Tallies for Writing<'_, '_, N> {
    fn add(&mut self, _: usize, frame: &Frame<'_>) -> Result<(), KernelError> {
        if let Some(bytes) = whole(frame, self.counter.state.input_bytes)? {
            self.counter.count(N::cut(bytes));
        }
        Ok(())
    }

    fn finish(&mut self, meta: FrameMeta) -> Result<(), KernelError> {
        self.counter.state.finish(meta, self.out)
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
        for first in (0..state.points).step_by(TILE) {
            let samples = TILE.min(state.points - first);
            let values = if state.complex {
                let pairs = tile.as_chunks_mut::<2>().0;
                let convert = |[re, im]: [N::Raw; 2]| [N::f64(re), N::f64(im)];
                let source = numbers.as_chunks::<2>().0;
                state
                    .walk
                    .gather(source, channel, first, &mut pairs[..samples], convert);
                &tile[..samples * 2]
            } else {
                state
                    .walk
                    .gather(numbers, channel, first, &mut tile[..samples], N::f64);
                &tile[..samples]
            };
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
        for part in (0..state.points).step_by(MAX_COUNTED) {
            let end = state.points.min(part + MAX_COUNTED);
            for first in (part..end).step_by(TILE) {
                let samples = TILE.min(end - first);
                let values = if state.complex {
                    let pairs = bytes.as_chunks_mut::<2>().0;
                    let convert = |[re, im]: [N::Raw; 2]| [N::code(re), N::code(im)];
                    let source = numbers.as_chunks::<2>().0;
                    state
                        .walk
                        .gather(source, channel, first, &mut pairs[..samples], convert);
                    &bytes[..samples * 2]
                } else {
                    state
                        .walk
                        .gather(numbers, channel, first, &mut bytes[..samples], N::code);
                    &bytes[..samples]
                };
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
