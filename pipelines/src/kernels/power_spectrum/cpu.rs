//! The CPU implementation of `power-spectrum`.
//!
//! One complex transform `Z` of `a + i b` processes two blocks `a` and `b` of real samples. Because of the symmetry of
//! their transforms, |A[k]|² + |B[k]|² = (|Z[k]|² + |Z[N-k]|²) / 2. If both blocks belong to the same sum, |Z|² is
//! summed as for complex samples, and the finished sum is folded once.

use super::super::grouping::{CpuKernel, Grouping, Sums};
use super::super::samples::{Number, Walk, with_number};
use super::super::unsupported;
use super::{Detrend, PowerSpectrum, Scaling, Shape};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::Layout;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::marker::PhantomData;
use std::sync::Arc;

pub(super) fn build(
    keys: &PowerSpectrum,
    input: &Layout,
    grouping: Grouping,
    shape: Shape,
    factor: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let fft = FftPlanner::new().plan_fft_forward(shape.size);
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
        block: vec![zero; shape.size].into(),
        scratch: vec![zero; fft.get_inplace_scratch_len()].into(),
        fft,
    };
    let sums = vec![0.0; shape.size * input.channels as usize].into();
    let plan = Plan {
        shape,
        walk: Walk::through(input),
        complex: input.complex,
        factor: factor / shape.integrate as f64,
        db: keys.scaling == Scaling::Db,
    };
    with_number!(input.scalar, N => Ok(Box::new(CpuKernel {
        grouping,
        sums: Summer::<N> { plan, transform, sums, number: PhantomData },
    })), _ => Err(unsupported(input, "power-spectrum")))
}

/// Values that are computed once and do not change from block to block.
struct Plan {
    shape: Shape,
    walk: Walk,
    complex: bool,
    /// Factor by which a finished sum is multiplied.
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
        walk.gather(pairs, channel, first, &mut self.block, convert);
        if self.detrend == Detrend::Constant {
            let re = mean(self.block.iter().map(|sample| sample.re));
            let im = mean(self.block.iter().map(|sample| sample.im));
            for sample in &mut self.block {
                *sample -= Complex::new(re, im);
            }
        }
        for (sample, w) in self.block.iter_mut().zip(&self.window) {
            *sample = Complex::new(sample.re * w, sample.im * w);
        }
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
        for (((sample, w), a), b) in self
            .block
            .iter_mut()
            .zip(&self.window)
            .zip(left.iter())
            .zip(right.iter())
        {
            *sample = Complex::new(a * w, b * w);
        }
    }

    /// Transforms the loaded block and adds the squared magnitudes to `sums`.
    fn add_to(&mut self, sums: &mut [f64]) {
        self.fft
            .process_with_scratch(&mut self.block, &mut self.scratch);
        for (sum, z) in sums.iter_mut().zip(&self.block) {
            *sum += f64::from(z.re * z.re + z.im * z.im);
        }
    }
}

/// Returns the mean. The sum is computed in float64.
#[expect(clippy::cast_possible_truncation, reason = "samples are float32")]
fn mean(samples: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = samples.len() as f64;
    (samples.map(f64::from).sum::<f64>() / count) as f32
}

struct Summer<N> {
    plan: Plan,
    transform: Transform,
    /// Sums of squared magnitudes, `size` per channel, in the order of the transform's output.
    sums: Box<[f64]>,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Sums for Summer<N> {
    fn output_bytes(&self) -> usize {
        self.sums.len() / self.plan.shape.size * self.plan.shape.bins * 4
    }

    fn add(&mut self, frame: &[u8], first: usize, count: usize) {
        let numbers = N::cut(frame);
        let Shape { size, hop, .. } = self.plan.shape;
        let (walk, transform) = (self.plan.walk, &mut self.transform);
        let pairs = numbers.as_chunks::<2>().0;
        let mut i = first;
        while i < first + count {
            let paired = !self.plan.complex && i + 1 < first + count;
            for (channel, sums) in self.sums.chunks_exact_mut(size).enumerate() {
                let start = i * hop;
                if self.plan.complex {
                    transform.load_complex::<N>(pairs, walk, channel, start);
                } else {
                    transform.load_real::<N>(
                        numbers,
                        walk,
                        channel,
                        start,
                        paired.then_some(start + hop),
                    );
                }
                transform.add_to(sums);
            }
            i += if paired { 2 } else { 1 };
        }
    }

    fn write(&self, slot: &mut [u8]) {
        let Plan {
            shape,
            complex,
            factor,
            db,
            ..
        } = self.plan;
        for (sums, slot) in self
            .sums
            .chunks_exact(shape.size)
            .zip(slot.chunks_exact_mut(shape.bins * 4))
        {
            let places = slot.as_chunks_mut::<4>().0;
            if complex {
                // The second half of the transform contains the negative frequencies.
                let (from_zero, negative) = sums.split_at(shape.size.div_ceil(2));
                let ordered = negative.iter().chain(from_zero).copied();
                write(places, ordered, factor, db);
            } else {
                let mirrored = sums[..1].iter().chain(sums.iter().rev());
                let folded = sums.iter().zip(mirrored).enumerate().map(|(k, (a, b))| {
                    let is_doubled = (1..shape.doubled).contains(&k);
                    if is_doubled { a + b } else { (a + b) / 2.0 }
                });
                write(places, folded, factor, db);
            }
        }
    }

    fn clear(&mut self) {
        self.sums.fill(0.0);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the output type is float32"
)]
fn write(places: &mut [[u8; 4]], sums: impl Iterator<Item = f64>, factor: f64, db: bool) {
    for (place, sum) in places.iter_mut().zip(sums) {
        let power = sum * factor;
        *place = (if db { 10.0 * power.log10() } else { power } as f32).to_le_bytes();
    }
}
