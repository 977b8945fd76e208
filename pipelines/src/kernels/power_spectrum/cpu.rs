//! The CPU implementation of `power-spectrum`.
//!
//! One complex transform `Z` of `a + i b` processes two blocks `a` and `b` of real samples. Because of the symmetry of
//! their transforms, |A[k]|² + |B[k]|² = (|Z[k]|² + |Z[N-k]|²) / 2. If both blocks belong to the same sum, |Z|² is
//! summed as for complex samples, and the finished sum is folded once.

use super::super::grouping::{CpuKernel, Grouping, Sums};
use super::super::samples::{Number, Walk, with_number};
use super::super::unsupported;
use super::cross::Cross;
use super::median::History;
use super::{Average, Detrend, PowerSpectrum, Scaling, Shape};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::{Layout, Order};
use daq_fft::{Complex, Fft};
use std::marker::PhantomData;
use std::sync::Arc;

pub(super) fn build(
    keys: &PowerSpectrum,
    input: &Layout,
    grouping: Grouping,
    shape: Shape,
    factor: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let fft = daq_fft::forward(shape.fft);
    let zero = Complex::new(0.0, 0.0);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the transform uses float32 values"
    )]
    let window = (0..shape.size)
        .map(|n| keys.window.at(n, shape.size) as f32)
        .collect();
    let real = || vec![0.0; if input.complex { 0 } else { shape.size }].into();
    let transform = Transform {
        detrend: keys.detrend,
        window,
        reals: [real(), real()],
        block: vec![zero; shape.fft].into(),
        scratch: vec![zero; fft.get_inplace_scratch_len()].into(),
        fft,
    };
    let channels = input.channels as usize;
    let joined = keys.continuous.then(|| Joined::new(input, &shape));
    let walk = joined
        .as_ref()
        .map_or_else(|| Walk::through(input), |joined| joined.walk);
    let average = match keys.average {
        _ if !keys.pairs.is_empty() => Averaging::Cross(Cross::new(&keys.pairs, &shape, channels)),
        Average::Mean => Averaging::Mean(vec![0.0; shape.fft * channels].into()),
        Average::Median => Averaging::Median(History::new(&shape, channels)),
    };
    let plan = Plan {
        shape,
        walk,
        complex: input.complex,
        factor,
        channels,
        rows: shape.rows,
        db: keys.scaling == Scaling::Db,
    };
    with_number!(input.scalar, N => Ok(Box::new(CpuKernel {
        grouping,
        sums: Summer::<N> { plan, transform, average, joined, number: PhantomData },
    })), _ => Err(unsupported(input, "power-spectrum")))
}

/// Values that are computed once and do not change from block to block.
struct Plan {
    shape: Shape,
    walk: Walk,
    complex: bool,
    channels: usize,
    /// Number of channels of an output.
    rows: usize,
    /// Factor by which an average is multiplied.
    factor: f64,
    db: bool,
}

struct Transform {
    detrend: Detrend,
    window: Box<[f32]>,
    /// Buffers for the samples of two real blocks.
    reals: [Box<[f32]>; 2],
    block: Box<[Complex<f32>]>,
    scratch: Box<[Complex<f32>]>,
    fft: Arc<dyn Fft<f32>>,
}

impl Transform {
    /// Loads the block of complex samples that starts at point `first`.
    fn load_complex<N: Number>(
        &mut self,
        pairs: &[[N::Raw; 2]],
        walk: Walk,
        channel: usize,
        first: usize,
    ) {
        let convert = |[re, im]: [N::Raw; 2]| Complex::new(N::f32(re), N::f32(im));
        let (block, padding) = self.block.split_at_mut(self.window.len());
        walk.gather(pairs, channel, first, block, convert);
        if self.detrend == Detrend::Constant {
            let re = mean(block.iter().map(|sample| sample.re));
            let im = mean(block.iter().map(|sample| sample.im));
            for sample in &mut *block {
                *sample -= Complex::new(re, im);
            }
        }
        for (sample, w) in block.iter_mut().zip(&self.window) {
            *sample = Complex::new(sample.re * w, sample.im * w);
        }
        padding.fill(Complex::new(0.0, 0.0));
    }

    /// Loads the block of real samples that starts at point `first` and, as imaginary parts, the block that starts at
    /// `second`.
    fn load_real<N: Number>(
        &mut self,
        numbers: &[N::Raw],
        walk: Walk,
        channel: usize,
        first: usize,
        second: Option<usize>,
    ) {
        let [left, right] = &mut self.reals;
        walk.gather(numbers, channel, first, left, N::f32);
        match second {
            Some(second) => walk.gather(numbers, channel, second, right, N::f32),
            None => right.fill(0.0),
        }
        if self.detrend == Detrend::Constant {
            for block in [left, right] {
                let mean = mean(block.iter().copied());
                block.iter_mut().for_each(|sample| *sample -= mean);
            }
        }
        let [left, right] = &self.reals;
        let (block, padding) = self.block.split_at_mut(self.window.len());
        for (((sample, w), a), b) in block
            .iter_mut()
            .zip(&self.window)
            .zip(left.iter())
            .zip(right.iter())
        {
            *sample = Complex::new(a * w, b * w);
        }
        padding.fill(Complex::new(0.0, 0.0));
    }

    /// Transforms the loaded block.
    fn run(&mut self) {
        self.fft
            .process_with_scratch(&mut self.block, &mut self.scratch);
    }

    /// Returns the squared magnitudes of the transformed block.
    fn squares(&self) -> impl Iterator<Item = f32> {
        self.block.iter().map(|z| z.re * z.re + z.im * z.im)
    }
}

/// Returns the mean. The sum is computed in float64.
#[expect(clippy::cast_possible_truncation, reason = "samples are float32")]
fn mean(samples: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = samples.len() as f64;
    (samples.map(f64::from).sum::<f64>() / count) as f32
}

/// What is kept of the spectra of the output in progress.
enum Averaging {
    /// Sums of squared magnitudes, `fft` per channel, in the order of the transform's output.
    Mean(Box<[f64]>),
    Median(History),
    Cross(Cross),
}

struct Summer<N> {
    plan: Plan,
    transform: Transform,
    average: Averaging,
    joined: Option<Joined>,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Sums for Summer<N> {
    fn output_bytes(&self) -> usize {
        let number = match self.average {
            Averaging::Cross(_) => 8,
            _ => 4,
        };
        self.plan.rows * self.plan.shape.bins * number
    }

    fn join(&mut self, frame: &[u8], tail: usize) {
        if let Some(joined) = &mut self.joined {
            joined.push(frame, tail);
        }
    }

    fn add(&mut self, frame: &[u8], first: usize, count: usize) {
        let numbers = N::cut(self.joined.as_ref().map_or(frame, |joined| &joined.bytes));
        let Shape { fft, hop, .. } = self.plan.shape;
        let (walk, transform) = (self.plan.walk, &mut self.transform);
        let pairs = numbers.as_chunks::<2>().0;
        // The spectra of a pair cannot be separated exactly, so a median needs one transform for each block.
        let can_pair = !self.plan.complex && !matches!(self.average, Averaging::Median(_));
        let mut i = first;
        while i < first + count {
            let paired = can_pair && i + 1 < first + count;
            for channel in 0..self.plan.channels {
                if matches!(&self.average, Averaging::Cross(cross) if !cross.has(channel)) {
                    continue;
                }
                let start = i * hop;
                if self.plan.complex {
                    transform.load_complex::<N>(pairs, walk, channel, start);
                } else {
                    let second = paired.then_some(start + hop);
                    transform.load_real::<N>(numbers, walk, channel, start, second);
                }
                transform.run();
                let squares = transform.squares();
                match &mut self.average {
                    Averaging::Mean(sums) => {
                        for (sum, square) in sums[channel * fft..][..fft].iter_mut().zip(squares) {
                            *sum += f64::from(square);
                        }
                    }
                    Averaging::Median(history) => history.add(channel, squares),
                    Averaging::Cross(cross) => cross.set(channel, &transform.block),
                }
            }
            if let Averaging::Cross(cross) = &mut self.average {
                cross.add();
            }
            i += if paired { 2 } else { 1 };
        }
    }

    fn write(&self, slot: &mut [u8]) {
        let plan = &self.plan;
        let shape = plan.shape;
        if let Averaging::Cross(cross) = &self.average {
            plan.write_cross(slot.as_chunks_mut::<4>().0, cross);
            return;
        }
        let places = slot.chunks_exact_mut(shape.bins * 4).enumerate();
        for (channel, places) in places {
            let places = places.as_chunks_mut::<4>().0;
            match &self.average {
                Averaging::Median(history) => plan.write(places, history.medians(channel)),
                Averaging::Cross(_) => {}
                Averaging::Mean(sums) => {
                    let count = shape.integrate as f64;
                    let sums = &sums[channel * shape.fft..][..shape.fft];
                    if plan.complex {
                        plan.write(places, sums.iter().map(|sum| sum / count));
                        continue;
                    }
                    let mirrored = sums[..1].iter().chain(sums.iter().rev());
                    let folded = sums.iter().zip(mirrored).map(|(a, b)| (a + b) / 2.0);
                    plan.write(places, folded.map(|sum| sum / count));
                }
            }
        }
    }

    fn clear(&mut self) {
        match &mut self.average {
            Averaging::Mean(sums) => sums.fill(0.0),
            Averaging::Median(history) => history.clear(),
            Averaging::Cross(cross) => cross.clear(),
        }
    }
}

impl Plan {
    /// Writes the average of each bin, in the order of the transform's output.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is float32"
    )]
    fn write(&self, places: &mut [[u8; 4]], averages: impl Iterator<Item = f64>) {
        let bins = self.shape.bins;
        for (k, average) in averages.take(bins).enumerate() {
            let is_doubled = (1..self.shape.doubled).contains(&k);
            let power = average * self.factor * if is_doubled { 2.0 } else { 1.0 };
            let power = if self.db { 10.0 * power.log10() } else { power };
            places[self.place(k)] = (power as f32).to_le_bytes();
        }
    }

    /// Writes the averages of all pairs.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is float32"
    )]
    fn write_cross(&self, places: &mut [[u8; 4]], cross: &Cross) {
        let bins = self.shape.bins;
        let factor = self.factor / self.shape.integrate as f64;
        for (pair, places) in places.chunks_exact_mut(2 * bins).enumerate() {
            for k in 0..bins {
                let is_doubled = (1..self.shape.doubled).contains(&k);
                let average =
                    cross.sum(pair, k, !self.complex) * factor * if is_doubled { 2.0 } else { 1.0 };
                let place = 2 * self.place(k);
                places[place] = (average.re as f32).to_le_bytes();
                places[place + 1] = (average.im as f32).to_le_bytes();
            }
        }
    }

    /// Returns the place of a bin in the output. The second half of a complex transform contains the negative frequencies,
    /// which come first.
    const fn place(&self, k: usize) -> usize {
        if self.complex {
            (k + self.shape.bins / 2) % self.shape.bins
        } else {
            k
        }
    }
}

/// Returns the maximum number of points of joined frames that are kept.
pub(super) const fn joined_points(input: &Layout, shape: &Shape) -> usize {
    input.points + shape.size
}

/// A frame, and the points before it that are part of the next block.
struct Joined {
    /// The points in the order of the input: one row of points or, in planar order, one row per channel.
    bytes: Box<[u8]>,
    walk: Walk,
    /// Number of points.
    length: usize,
    /// Sizes of a point in a row and of a row in bytes.
    point: usize,
    row: usize,
}

impl Joined {
    fn new(input: &Layout, shape: &Shape) -> Self {
        let points = joined_points(input, shape);
        let channels = input.channels as usize;
        let rows = if input.order == Order::Planar {
            channels
        } else {
            1
        };
        let all = input.frame_bytes() / input.points;
        let point = all / rows;
        Self {
            bytes: vec![0; points * all].into(),
            walk: Walk::of(input.order, channels, points),
            length: 0,
            point,
            row: points * point,
        }
    }

    /// Appends a frame after the last `tail` points.
    fn push(&mut self, frame: &[u8], tail: usize) {
        let rows = self.bytes.len() / self.row;
        let points = frame.len() / rows / self.point;
        let (kept, end) = (tail * self.point, self.length * self.point);
        for (row, new) in self
            .bytes
            .chunks_exact_mut(self.row)
            .zip(frame.chunks_exact(points * self.point))
        {
            row.copy_within(end - kept..end, 0);
            row[kept..][..new.len()].copy_from_slice(new);
        }
        self.length = tail + points;
    }
}
