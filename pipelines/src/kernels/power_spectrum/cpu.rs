//! The CPU side of `power-spectrum`.
//!
//! Two blocks `a` and `b` of real samples go through one complex transform `Z` of `a + i b`. From the symmetry of
//! their transforms, |A[k]|² + |B[k]|² = (|Z[k]|² + |Z[N-k]|²) / 2. So where both go into one sum, |Z|² is summed
//! as for complex samples, and the sum is folded once when it is finished.

use super::super::account::Account;
use super::super::blend::{Blend, Step};
use super::super::samples::{Number, Walk, with_number};
use super::super::{emit, whole};
use super::{Gap, Incomplete, PowerSpectrum, Scaling, Shape};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Lease, SlotsMut};
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::marker::PhantomData;
use std::sync::Arc;

pub(super) fn build(
    keys: &PowerSpectrum,
    input: &Layout,
    shape: Shape,
    factor: f64,
) -> Box<dyn Kernel> {
    let fft = FftPlanner::new().plan_fft_forward(shape.size);
    let zero = Complex::new(0.0, 0.0);
    #[expect(clippy::cast_possible_truncation, reason = "the transform is float32")]
    let window = (0..shape.size)
        .map(|n| keys.window.at(n, shape.size) as f32)
        .collect();
    let real = || vec![0.0; if input.complex { 0 } else { shape.size }].into();
    let transform = Transform {
        window,
        reals: [real(), real()],
        block: vec![zero; shape.size].into(),
        scratch: vec![zero; fft.get_inplace_scratch_len()].into(),
        fft,
    };
    let sums = vec![0.0; shape.size * input.channels as usize].into();
    let plan = Plan {
        shape,
        input_bytes: input.frame_bytes(),
        walk: Walk::through(input),
        complex: input.complex,
        rate: input.sample_rate().filter(|rate| *rate > 0.0),
        skip: keys.incomplete == Incomplete::Skip,
        restart: keys.gap == Gap::Restart,
        factor,
        db: keys.scaling == Scaling::Db,
    };
    let (account, blend) = (Account::default(), Blend::default());
    with_number!(input.scalar, N => Box::new(Integrator::<N> {
        plan, transform, sums, summed: 0, account, blend, number: PhantomData,
    }))
}

/// What does not change.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one answer of the configuration"
)]
struct Plan {
    shape: Shape,
    input_bytes: usize,
    walk: Walk,
    complex: bool,
    /// Points per second and channel.
    rate: Option<f64>,
    skip: bool,
    restart: bool,
    factor: f64,
    db: bool,
}

impl Plan {
    /// The number of the output whose first spectrum is spectrum `i` of the frame.
    #[expect(clippy::cast_possible_truncation, reason = "numbers wrap at 64 bits")]
    fn number(&self, meta: &FrameMeta, i: usize) -> u64 {
        let first = u128::from(meta.sequence) * self.shape.spectra as u128 + i as u128;
        (first / u128::from(self.shape.integrate)) as u64
    }

    /// Nanoseconds from a frame's first sample to that of its spectrum `i`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; never negative"
    )]
    fn delay_ns(&self, i: usize) -> u64 {
        self.rate.map_or(0, |rate| {
            ((i * self.shape.hop) as f64 / rate * 1e9).round() as u64
        })
    }
}

struct Transform {
    window: Box<[f32]>,
    /// Two blocks of real samples.
    reals: [Box<[f32]>; 2],
    block: Box<[Complex<f32>]>,
    scratch: Box<[Complex<f32>]>,
    fft: Arc<dyn Fft<f32>>,
}

impl Transform {
    /// The block of complex samples from point `first` on.
    fn load_complex<N: Number>(
        &mut self,
        pairs: &[[N::Raw; 2]],
        walk: Walk,
        channel: usize,
        first: usize,
    ) {
        let convert = |[re, im]: [N::Raw; 2]| Complex::new(N::f32(re), N::f32(im));
        walk.gather(pairs, channel, first, &mut self.block, convert);
        for (sample, w) in self.block.iter_mut().zip(&self.window) {
            *sample = Complex::new(sample.re * w, sample.im * w);
        }
    }

    /// The block of real samples from point `first` on and, as imaginary parts, the one from `second` on.
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

    /// Transforms the block and adds the squared magnitudes to `sums`.
    fn add_to(&mut self, sums: &mut [f64]) {
        self.fft
            .process_with_scratch(&mut self.block, &mut self.scratch);
        for (sum, z) in sums.iter_mut().zip(&self.block) {
            *sum += f64::from(z.re * z.re + z.im * z.im);
        }
    }
}

struct Integrator<N> {
    plan: Plan,
    transform: Transform,
    /// Sums of squared magnitudes, `size` a channel, in the order of the transform.
    sums: Box<[f64]>,
    /// Spectra in them.
    summed: u64,
    account: Account,
    blend: Blend,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Kernel for Integrator<N> {
    fn outputs(&self, frames: usize) -> usize {
        let spectra = self.plan.shape.spectra as u128 * frames as u128 + u128::from(self.summed);
        usize::try_from(spectra / u128::from(self.plan.shape.integrate)).unwrap_or(usize::MAX)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        for frame in burst.iter() {
            let meta = frame.meta();
            self.meet(meta);
            match whole(&frame, self.plan.input_bytes)? {
                Some(bytes) if !(self.plan.skip && meta.is_incomplete()) => {
                    self.integrate(meta, N::cut(bytes), out)?;
                }
                _ => {
                    self.account.fail();
                    self.blend.mark_incomplete();
                }
            }
        }
        Ok(self.account.submit())
    }
}

impl<N: Number> Integrator<N> {
    /// Starts anew where `meta` does not go with what has been integrated.
    fn meet(&mut self, meta: &FrameMeta) {
        let step = self.blend.step(meta);
        let restart = match step {
            Step::Next => false,
            Step::Gap => self.plan.restart,
            Step::Epoch => true,
        };
        if restart {
            self.account.drop_held();
            self.blend.clear();
            self.sums.fill(0.0);
            self.summed = 0;
        } else if step == Step::Gap {
            self.blend.mark_incomplete();
        }
        if step == Step::Epoch {
            self.blend.open_epoch();
        }
    }

    fn integrate(
        &mut self,
        meta: &FrameMeta,
        numbers: &[N::Raw],
        out: &mut SlotsMut<'_>,
    ) -> Result<(), KernelError> {
        let Shape {
            spectra, integrate, ..
        } = self.plan.shape;
        let mut next = 0;
        while next < spectra {
            let room = usize::try_from(integrate - self.summed).unwrap_or(usize::MAX);
            let count = room.min(spectra - next);
            self.blend
                .add(meta, self.plan.number(meta, next), self.plan.delay_ns(next));
            self.sum(numbers, next, count);
            self.summed += count as u64;
            next += count;
            if self.summed == integrate {
                self.finish(out)?;
                self.account.release_held();
            }
        }
        if self.summed == 0 {
            self.account.take();
        } else {
            self.account.hold();
        }
        Ok(())
    }

    /// Adds spectra `first` to `first + count` of every channel to the sums.
    fn sum(&mut self, numbers: &[N::Raw], first: usize, count: usize) {
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

    /// Writes the sums out as one frame and empties them.
    fn finish(&mut self, out: &mut SlotsMut<'_>) -> Result<(), KernelError> {
        let Plan {
            shape,
            complex,
            factor,
            db,
            ..
        } = self.plan;
        let factor = factor / self.summed as f64;
        let meta = self.blend.finish();
        let channels = self.sums.len() / shape.size;
        let sums = &self.sums;
        emit(out, channels * shape.bins * 4, meta, |slot| {
            for (sums, slot) in sums
                .chunks_exact(shape.size)
                .zip(slot.chunks_exact_mut(shape.bins * 4))
            {
                let places = slot.as_chunks_mut::<4>().0;
                if complex {
                    // The second half of the transform's order are the negative frequencies.
                    let (from_zero, negative) = sums.split_at(shape.size.div_ceil(2));
                    write(
                        places,
                        negative.iter().chain(from_zero).copied(),
                        factor,
                        db,
                    );
                } else {
                    let mirrored = sums[..1].iter().chain(sums.iter().rev());
                    let folded = sums.iter().zip(mirrored).map(|(a, b)| (a + b) / 2.0);
                    write(places, folded, factor, db);
                }
            }
        })?;
        self.sums.fill(0.0);
        self.summed = 0;
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the output is float32")]
fn write(places: &mut [[u8; 4]], sums: impl Iterator<Item = f64>, factor: f64, db: bool) {
    for (place, sum) in places.iter_mut().zip(sums) {
        let power = sum * factor;
        *place = (if db { 10.0 * power.log10() } else { power } as f32).to_le_bytes();
    }
}
