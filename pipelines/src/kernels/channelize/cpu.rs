//! The CPU implementation of `channelize`.

use super::super::account::Account;
use super::super::quantise::OutputType;
use super::super::samples::{Number, Walk, with_number};
use super::super::{emit, unsupported, whole};
use super::continuity::{Before, Continuity};
use super::{Channelize, Shape};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Lease, SlotsMut};
use daq_fft::{Complex, Fft};
use std::marker::PhantomData;
use std::sync::Arc;

const ZERO: Complex<f32> = Complex::new(0.0, 0.0);

pub(super) fn build(
    keys: &Channelize,
    input: &Layout,
    shape: Shape,
    coefficients: Box<[f32]>,
) -> Result<Box<dyn Kernel>, KernelError> {
    let fft = daq_fft::forward(shape.size);
    let per_input = shape.history() + shape.points;
    let bank = FilterBank {
        shape,
        complex: input.complex,
        coefficients,
        block: vec![ZERO; shape.size].into(),
        scratch: vec![ZERO; fft.get_inplace_scratch_len()].into(),
        fft,
    };
    let continuity = Continuity::new(shape.history(), shape.points);
    with_number!(input.scalar, N => Ok(Box::new(Channelizer::<N> {
        bank,
        continuity,
        walk: Walk::through(input),
        samples: vec![ZERO; per_input * shape.inputs].into(),
        input_bytes: input.frame_bytes(),
        output_bytes: keys.output(input, &shape).frame_bytes(),
        output: keys.output,
        account: Account::default(),
        number: PhantomData,
    })), _ => Err(unsupported(input, "channelize")))
}

struct FilterBank {
    shape: Shape,
    complex: bool,
    coefficients: Box<[f32]>,
    block: Box<[Complex<f32>]>,
    scratch: Box<[Complex<f32>]>,
    fft: Arc<dyn Fft<f32>>,
}

impl FilterBank {
    /// Computes the spectrum of the samples in `window`, of which the first has the number `first` modulo `size`.
    fn spectrum(&mut self, window: &[Complex<f32>], first: usize) {
        let size = self.shape.size;
        self.block.fill(ZERO);
        // Sample `t` is added to point `t` modulo `size`, so that the phases do not depend on the window's position.
        let (wrapped, direct) = self.block.split_at_mut(first);
        let split = direct.len();
        let taps = window
            .chunks_exact(size)
            .zip(self.coefficients.chunks_exact(size));
        for (samples, coefficients) in taps {
            add(direct, &samples[..split], &coefficients[..split]);
            add(wrapped, &samples[split..], &coefficients[split..]);
        }
        self.fft
            .process_with_scratch(&mut self.block, &mut self.scratch);
    }

    /// Returns the channels of the last spectrum in the order of the output.
    fn channels(&self) -> impl Iterator<Item = Complex<f32>> {
        let (from_zero, negative) = if self.complex {
            self.block.split_at(self.shape.size.div_ceil(2))
        } else {
            (&self.block[..self.shape.channels], &[] as &[_])
        };
        negative.iter().chain(from_zero).copied()
    }
}

fn add(sums: &mut [Complex<f32>], samples: &[Complex<f32>], coefficients: &[f32]) {
    for ((sum, sample), h) in sums.iter_mut().zip(samples).zip(coefficients) {
        *sum += sample * h;
    }
}

struct Channelizer<N> {
    bank: FilterBank,
    continuity: Continuity,
    walk: Walk,
    /// For each input, the samples before the frame, then the samples of the frame.
    samples: Box<[Complex<f32>]>,
    input_bytes: usize,
    output_bytes: usize,
    output: OutputType,
    account: Account,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Channelizer<N> {
    /// Appends a frame to the samples.
    fn load(&mut self, frame: &[u8], before: Before) {
        let Shape { points, .. } = self.bank.shape;
        let history = self.bank.shape.history();
        let numbers = N::cut(frame);
        let pairs = numbers.as_chunks::<2>().0;
        let real = |raw| Complex::new(N::f32(raw), 0.0);
        let complex = |[re, im]: [N::Raw; 2]| Complex::new(N::f32(re), N::f32(im));
        for (input, samples) in self.samples.chunks_exact_mut(history + points).enumerate() {
            match before {
                Before::Previous => samples.copy_within(points.., 0),
                Before::Zeros => samples[..history].fill(ZERO),
            }
            let target = &mut samples[history..];
            if self.bank.complex {
                self.walk.gather(pairs, input, 0, target, complex);
            } else {
                self.walk.gather(numbers, input, 0, target, real);
            }
        }
    }
}

impl<N: Number> Kernel for Channelizer<N> {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let shape = self.bank.shape;
        let history = shape.history();
        let spectrum_bytes = self.output_bytes / (shape.spectra * shape.inputs);
        for frame in burst.iter() {
            let Some(bytes) = whole(&frame, self.input_bytes)? else {
                self.continuity.fail(frame.meta());
                self.account.fail();
                continue;
            };
            let (before, meta) = self.continuity.accept(frame.meta());
            self.load(bytes, before);
            let phase = phase(&shape, meta.sequence);
            let (bank, samples, output) = (&mut self.bank, &self.samples, self.output);
            emit(out, self.output_bytes, meta, |slot| {
                let rows = slot.chunks_exact_mut(spectrum_bytes);
                for (i, row) in rows.enumerate() {
                    let (spectrum, input) = (i / shape.inputs, i % shape.inputs);
                    let start = input * (history + shape.points) + spectrum * shape.hop;
                    let window = &samples[start..start + shape.size * shape.taps];
                    bank.spectrum(window, (phase + spectrum * shape.hop) % shape.size);
                    output.write(row, bank.channels());
                }
            })?;
            self.account.take();
        }
        Ok(self.account.submit())
    }
}

/// Returns the number of the first sample of the first window of frame `sequence`, modulo the size of a transform.
pub(super) fn phase(shape: &Shape, sequence: u64) -> usize {
    let size = shape.size as u128;
    let frame = u128::from(sequence) * shape.points as u128 % size;
    let before = shape.history() as u128 % size;
    usize::try_from((frame + size - before) % size).unwrap_or(0)
}
