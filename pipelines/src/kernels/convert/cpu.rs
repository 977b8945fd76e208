//! The CPU implementation of `convert`.

use super::super::account::Account;
use super::super::samples::{Be, Bf16, F16, Number, Walk, with_number};
use super::super::{emit, whole};
use super::packed::Unpacker;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::{Layout, Order};
use daq_core::ring::{Lease, SlotsMut};
use std::marker::PhantomData;

/// Number of samples per channel that are reordered together. This number is small enough that the output of these
/// samples stays in the L1 cache.
const TILE: usize = 512;
/// Number of packed numbers that are unpacked together; a multiple of every group of packed numbers.
const PIECE: usize = 4096;

pub(super) fn build(input: &Layout, output: &Layout, factor: f64, offset: f64) -> Box<dyn Kernel> {
    let reordered = is_reordered(input, output.order);
    let unpacker = unpacker(input, output.order);
    let shape = Shape {
        input_bytes: input.frame_bytes(),
        output_bytes: output.frame_bytes(),
        points: input.points,
        channels: input.channels as usize,
        reordered: reordered.then_some((Walk::through(input), output.order)),
        complex: input.complex,
    };
    let line = Line { factor, offset };
    macro_rules! converter {
        ($N:ty) => {
            Box::new(Converter::<$N> {
                shape,
                line,
                unpacker,
                number: PhantomData,
            })
        };
    }
    with_number!(
        input.scalar, N => converter!(N),
        // Packed numbers become `i16` first.
        _ => converter!(i16),
        Int8 i8, Uint8 u8, Int16 i16, Uint16 u16, Int32 i32, Uint32 u32, Int64 i64,
        Float16 F16, Bfloat16 Bf16, Float32 f32, Float64 f64,
        Int16be Be<i16>, Uint16be Be<u16>, Int32be Be<i32>, Uint32be Be<u32>, Float32be Be<f32>
    )
}

/// Returns the number of bytes that the converter allocates.
pub(super) fn memory(input: &Layout, order: Order) -> usize {
    unpacker(input, order).map_or(0, |unpacker| unpacker.memory())
}

fn is_reordered(input: &Layout, order: Order) -> bool {
    input.order != order && input.channels > 1
}

/// Returns the unpacker of a packed type. Samples are reordered only when the whole frame is unpacked.
fn unpacker(input: &Layout, order: Order) -> Option<Unpacker> {
    let numbers = if is_reordered(input, order) {
        input.numbers()
    } else {
        PIECE
    };
    Some(Unpacker::new(input.scalar.packing()?, numbers))
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    input_bytes: usize,
    output_bytes: usize,
    points: usize,
    channels: usize,
    /// Location of the input's samples and order of the output; `None` if the order does not change.
    reordered: Option<(Walk, Order)>,
    complex: bool,
}

/// The conversion `y = x * factor + offset`.
#[derive(Clone, Copy, Debug)]
struct Line {
    factor: f64,
    offset: f64,
}

impl Line {
    /// Returns the function that converts one number. Called once per frame.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is float32"
    )]
    fn convert<N: Number>(self) -> impl Fn(N::Raw) -> [u8; 4] {
        let (factor, offset) = (self.factor as f32, self.offset as f32);
        move |raw| {
            if N::EXACT_IN_F32 {
                (N::f32(raw) * factor + offset).to_le_bytes()
            } else {
                ((N::f64(raw) * self.factor + self.offset) as f32).to_le_bytes()
            }
        }
    }
}

struct Converter<N> {
    shape: Shape,
    line: Line,
    /// `None` if each number has its own bytes.
    unpacker: Option<Unpacker>,
    number: PhantomData<fn() -> N>,
}

impl<N: Number> Kernel for Converter<N> {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let mut account = Account::default();
        for frame in burst.iter() {
            let Some(bytes) = whole(&frame, self.shape.input_bytes)? else {
                account.fail();
                continue;
            };
            let unpacker = &mut self.unpacker;
            emit(out, self.shape.output_bytes, *frame.meta(), |slot| {
                let target = slot.as_chunks_mut::<4>().0;
                let numbers = match (unpacker, self.shape.reordered) {
                    (Some(unpacker), None) => {
                        unpacker.each_piece(bytes, |from, numbers| {
                            let target = target.get_mut(from..).unwrap_or_default();
                            straight::<N>(N::cut(numbers), target, self.line);
                        });
                        return;
                    }
                    (Some(unpacker), Some(_)) => N::cut(unpacker.unpack(bytes)),
                    (None, _) => N::cut(bytes),
                };
                match self.shape.reordered {
                    None => straight::<N>(numbers, target, self.line),
                    Some((walk, order)) if self.shape.complex => {
                        let (pairs, targets) =
                            (numbers.as_chunks::<2>().0, target.as_chunks_mut::<2>().0);
                        let convert = self.line.convert::<N>();
                        reorder(pairs, targets, walk, order, self.shape, |[re, im]| {
                            [convert(re), convert(im)]
                        });
                    }
                    Some((walk, order)) => {
                        reorder(
                            numbers,
                            target,
                            walk,
                            order,
                            self.shape,
                            self.line.convert::<N>(),
                        );
                    }
                }
            })?;
            account.take();
        }
        Ok(account.submit())
    }
}

fn straight<N: Number>(numbers: &[N::Raw], target: &mut [[u8; 4]], line: Line) {
    let convert = line.convert::<N>();
    for (target, raw) in target.iter_mut().zip(numbers) {
        *target = convert(*raw);
    }
}

/// Converts all samples and changes their order. Works in tiles of points, so that each cache line is read once and
/// used for every channel.
fn reorder<S: Copy, T: Copy>(
    source: &[S],
    target: &mut [T],
    walk: Walk,
    order: Order,
    shape: Shape,
    convert: impl Fn(S) -> T,
) {
    let into = Walk::of(order, shape.channels, shape.points);
    for first in (0..shape.points).step_by(TILE) {
        let count = TILE.min(shape.points - first);
        for channel in 0..shape.channels {
            let start = channel * into.channel + first * into.point;
            let places = target.get_mut(start..).unwrap_or_default();
            if into.point == 1 {
                walk.gather(source, channel, first, &mut places[..count], &convert);
            } else {
                let start = channel * walk.channel + first * walk.point;
                let samples = source
                    .get(start..)
                    .unwrap_or_default()
                    .iter()
                    .step_by(walk.point);
                for (place, sample) in places
                    .iter_mut()
                    .step_by(into.point)
                    .zip(samples)
                    .take(count)
                {
                    *place = convert(*sample);
                }
            }
        }
    }
}
