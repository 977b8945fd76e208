//! The CPU implementation of `correlate`.

use super::super::grouping::{CpuKernel, Grouping, Sums};
use super::super::samples::{F16, Number, with_number};
use super::shape::Shape;
use super::{Correlate, VisibilityType};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::Layout;
use daq_fft::Complex;
use std::marker::PhantomData;

/// Number of times of all antennas that are processed together. They stay in the cache.
const STEP: usize = 64;

/// Returns the number of bytes that the kernel allocates.
pub(super) fn memory(shape: &Shape) -> usize {
    shape.extents.channels * shape.baselines() * 16 + shape.extents.antennas * STEP * 8
}

pub(super) fn build(
    keys: &Correlate,
    input: &Layout,
    grouping: Grouping,
    shape: Shape,
) -> Result<Box<dyn Kernel>, KernelError> {
    let sums = vec![Complex::new(0.0, 0.0); shape.extents.channels * shape.baselines()].into();
    let block = vec![[0.0; STEP]; 2 * shape.extents.antennas].into();
    with_number!(input.scalar, N => Ok(Box::new(CpuKernel {
        grouping,
        sums: Visibilities::<N> {
            shape,
            sums,
            block,
            output: keys.output,
            scale: keys.scale,
            number: PhantomData,
        },
    })), _ => Err(super::super::unsupported(input, "correlate")),
    Int8 i8, Int16 i16, Float16 F16, Float32 f32)
}

struct Visibilities<N> {
    shape: Shape,
    /// Sums of all baselines of channel 0, of channel 1, …
    sums: Box<[Complex<f64>]>,
    /// Real parts and imaginary parts of each antenna.
    block: Box<[[f32; STEP]]>,
    output: VisibilityType,
    scale: f64,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Visibilities<N> {
    /// Loads the samples of `count` times from `time` of a channel. The other times of the block become zeros.
    fn load(&mut self, pairs: &[[N::Raw; 2]], channel: usize, time: usize, count: usize) {
        let steps = self.shape.extents.steps;
        for (antenna, parts) in self.block.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *parts = [[0.0; STEP]; 2];
            let [re, im] = parts;
            let start = antenna * steps.antenna + channel * steps.channel + time * steps.time;
            let samples = pairs.get(start..).unwrap_or_default();
            let samples = samples.iter().step_by(steps.time).take(count);
            for ((re, im), [x, y]) in re.iter_mut().zip(im).zip(samples) {
                (*re, *im) = (N::f32(*x), N::f32(*y));
            }
        }
    }

    /// Adds the products of the block to the sums of a channel.
    fn multiply(&mut self, channel: usize) {
        let baselines = self.shape.baselines();
        let antennas = self.block.as_chunks::<2>().0;
        let sums = &mut self.sums[channel * baselines..][..baselines];
        let pairs = antennas
            .iter()
            .enumerate()
            .flat_map(|(i, one)| antennas[i..].iter().map(move |other| (one, other)));
        for (sum, ([a, b], [c, d])) in sums.iter_mut().zip(pairs) {
            let (mut re, mut im) = (0.0, 0.0);
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                let [a, b, c, d] = [*a, *b, *c, *d].map(f64::from);
                re += a * c + b * d;
                im += b * c - a * d;
            }
            *sum += Complex::new(re, im);
        }
    }
}

impl<N: Number> Sums for Visibilities<N> {
    fn output_bytes(&self) -> usize {
        self.sums.len() * 8
    }

    fn add(&mut self, frame: &[u8], first: usize, count: usize) {
        let numbers = N::cut(frame);
        let pairs = numbers.as_chunks::<2>().0;
        let end = (first + count) * self.shape.length;
        for channel in 0..self.shape.extents.channels {
            for time in (first * self.shape.length..end).step_by(STEP) {
                self.load(pairs, channel, time, STEP.min(end - time));
                self.multiply(channel);
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is float32, or int32 with sums that fit"
    )]
    fn write(&self, slot: &mut [u8]) {
        let places = slot.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
        for (place, sum) in places.iter_mut().zip(&self.sums) {
            *place = [sum.re, sum.im].map(|x| match self.output {
                VisibilityType::Float32 => ((x * self.scale) as f32).to_le_bytes(),
                VisibilityType::Int32 => (x as i32).to_le_bytes(),
            });
        }
    }

    fn clear(&mut self) {
        self.sums.fill(Complex::new(0.0, 0.0));
    }
}
