//! The CPU implementation of `beamform`.

use super::super::account::Account;
use super::super::antennas::Extents;
use super::super::quantise::OutputType;
use super::super::samples::{F16, Number, with_number};
use super::super::{emit, unsupported, whole};
use super::weights::Weights;
use super::{Beamform, Detect};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Lease, SlotsMut};
use daq_fft::Complex;
use std::marker::PhantomData;

const ZERO: Complex<f64> = Complex::new(0.0, 0.0);

/// Returns the number of bytes that the kernel allocates in addition to the weights.
pub(super) fn memory(extents: &Extents) -> usize {
    extents.times * (extents.antennas * 8 + 16)
}

pub(super) fn build(
    keys: &Beamform,
    input: &Layout,
    extents: Extents,
    weights: Weights,
) -> Result<Box<dyn Kernel>, KernelError> {
    let factor = match keys.detect {
        Detect::None => weights.factor * keys.scale,
        Detect::Power => weights.factor * weights.factor * keys.scale,
    };
    with_number!(input.scalar, N => Ok(Box::new(Beamformer::<N> {
        beams: keys.beams,
        extents,
        weights,
        samples: vec![Complex::new(0.0, 0.0); extents.antennas * extents.times].into(),
        sums: vec![ZERO; extents.times].into(),
        factor,
        detect: keys.detect,
        integrate: keys.integrate,
        output: keys.output,
        bytes: [input.frame_bytes(), keys.output(input, &extents).frame_bytes()],
        account: Account::default(),
        number: PhantomData,
    })), _ => Err(unsupported(input, "beamform")),
    Int8 i8, Int16 i16, Float16 F16, Float32 f32)
}

struct Beamformer<N> {
    beams: usize,
    extents: Extents,
    weights: Weights,
    /// The samples of a channel: all times of antenna 0, of antenna 1, …
    samples: Box<[Complex<f32>]>,
    /// All times of a beam.
    sums: Box<[Complex<f64>]>,
    factor: f64,
    detect: Detect,
    integrate: usize,
    output: OutputType,
    /// Sizes of an input and of an output frame.
    bytes: [usize; 2],
    account: Account,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Beamformer<N> {
    fn load(&mut self, frame: &[u8], channel: usize) {
        let Extents { times, steps, .. } = self.extents;
        let numbers = N::cut(frame);
        let pairs = numbers.as_chunks::<2>().0;
        for (antenna, samples) in self.samples.chunks_exact_mut(times).enumerate() {
            let start = antenna * steps.antenna + channel * steps.channel;
            let from = pairs.get(start..).unwrap_or_default();
            for (sample, [re, im]) in samples.iter_mut().zip(from.iter().step_by(steps.time)) {
                *sample = Complex::new(N::f32(*re), N::f32(*im));
            }
        }
    }

    /// Computes all times of a beam.
    fn add_up(&mut self, channel: usize, beam: usize) {
        let Extents {
            antennas, times, ..
        } = self.extents;
        let channel = if self.weights.by_channel { channel } else { 0 };
        let first = (channel * self.beams + beam) * antennas;
        self.sums.fill(ZERO);
        let weights = &self.weights.numbers[first..first + antennas];
        for (weight, samples) in weights.iter().zip(self.samples.chunks_exact(times)) {
            let wide = |z: &Complex<f32>| Complex::new(f64::from(z.re), f64::from(z.im));
            let weight = wide(weight);
            for (sum, sample) in self.sums.iter_mut().zip(samples) {
                *sum += weight * wide(sample);
            }
        }
    }

    /// Writes the output of a beam and channel.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is at most float32"
    )]
    fn write(&self, row: &mut [u8]) {
        let factor = self.factor;
        match self.detect {
            Detect::None => {
                let narrow =
                    |z: &Complex<f64>| Complex::new((z.re * factor) as f32, (z.im * factor) as f32);
                self.output.write(row, self.sums.iter().map(narrow));
            }
            Detect::Power => {
                let places = row.as_chunks_mut::<4>().0;
                for (place, sums) in places.iter_mut().zip(self.sums.chunks(self.integrate)) {
                    let power: f64 = sums.iter().map(Complex::norm_sqr).sum();
                    *place = ((power * factor) as f32).to_le_bytes();
                }
            }
        }
    }
}

impl<N: Number> Kernel for Beamformer<N> {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let [input_bytes, output_bytes] = self.bytes;
        let channels = self.extents.channels;
        let row_bytes = output_bytes / (self.beams * channels);
        for frame in burst.iter() {
            let Some(bytes) = whole(&frame, input_bytes)? else {
                self.account.fail();
                continue;
            };
            emit(out, output_bytes, *frame.meta(), |slot| {
                for channel in 0..channels {
                    self.load(bytes, channel);
                    for beam in 0..self.beams {
                        self.add_up(channel, beam);
                        let start = (beam * channels + channel) * row_bytes;
                        self.write(&mut slot[start..start + row_bytes]);
                    }
                }
            })?;
            self.account.take();
        }
        Ok(self.account.submit())
    }
}
