//! The CPU implementation of `convert`.

use super::super::account::Account;
use super::super::samples::{Be, Bf16, F16, Number, Walk, with_number};
use super::super::{finish_with_packets, whole, write_slot};
use super::converted_packets;
use super::packed::Unpacker;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::{Layout, Order, Scalar};
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
    let parts = (shape, line, unpacker, [input.clone(), output.clone()]);
    if output.scalar == Scalar::Int16 {
        converter::<ToInt16>(input.scalar, parts)
    } else {
        converter::<ToFloat32>(input.scalar, parts)
    }
}

/// Returns the converter of numbers of type `scalar`.
fn converter<T: Target>(scalar: Scalar, parts: Parts) -> Box<dyn Kernel> {
    macro_rules! converter {
        ($N:ty) => {
            Box::new(Converter::<$N, T>::new(parts))
        };
    }
    with_number!(
        scalar, N => converter!(N),
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

/// What a converter consists of: its shape, conversion and unpacker, and the layouts of input and output.
type Parts = (Shape, Line, Option<Unpacker>, [Layout; 2]);

/// The type of the numbers of the output.
trait Target: 'static {
    /// The bytes of a number.
    type Bytes: Copy;

    fn bytes(number: f64) -> Self::Bytes;

    /// Returns the same as [`bytes`](Self::bytes) for a number that was computed in float32.
    fn bytes_of_f32(number: f32) -> Self::Bytes;

    /// Divides a slot into numbers.
    fn numbers(slot: &mut [u8]) -> &mut [Self::Bytes];
}

/// Float32.
struct ToFloat32;

impl Target for ToFloat32 {
    type Bytes = [u8; 4];

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the output type is float32"
    )]
    fn bytes(number: f64) -> [u8; 4] {
        (number as f32).to_le_bytes()
    }

    #[inline]
    fn bytes_of_f32(number: f32) -> [u8; 4] {
        number.to_le_bytes()
    }

    fn numbers(slot: &mut [u8]) -> &mut [[u8; 4]] {
        slot.as_chunks_mut().0
    }
}

/// Int16, rounded to nearest, half to even, and limited to its range. NaN becomes 0.
struct ToInt16;

impl Target for ToInt16 {
    type Bytes = [u8; 2];

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast limits the number to the range of int16"
    )]
    fn bytes(number: f64) -> [u8; 2] {
        (number.round_ties_even() as i16).to_le_bytes()
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast limits the number to the range of int16"
    )]
    fn bytes_of_f32(number: f32) -> [u8; 2] {
        (number.round_ties_even() as i16).to_le_bytes()
    }

    fn numbers(slot: &mut [u8]) -> &mut [[u8; 2]] {
        slot.as_chunks_mut().0
    }
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
        reason = "factor and offset are rounded to the type of the arithmetic"
    )]
    fn convert<N: Number, T: Target>(self) -> impl Fn(N::Raw) -> T::Bytes {
        let (factor, offset) = (self.factor as f32, self.offset as f32);
        move |raw| {
            if N::EXACT_IN_F32 {
                T::bytes_of_f32(N::f32(raw) * factor + offset)
            } else {
                T::bytes(N::f64(raw) * self.factor + self.offset)
            }
        }
    }
}

struct Converter<N, T> {
    shape: Shape,
    line: Line,
    /// `None` if each number has its own bytes.
    unpacker: Option<Unpacker>,
    layouts: [Layout; 2],
    types: PhantomData<fn() -> (N, T)>,
}

impl<N, T> Converter<N, T> {
    fn new((shape, line, unpacker, layouts): Parts) -> Self {
        Self {
            shape,
            line,
            unpacker,
            layouts,
            types: PhantomData,
        }
    }
}

impl<N: Number, T: Target> Kernel for Converter<N, T> {
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
            let output_bytes = self.shape.output_bytes;
            write_slot(out, output_bytes, |slot| {
                let target = T::numbers(slot);
                let numbers = match (unpacker, self.shape.reordered) {
                    (Some(unpacker), None) => {
                        unpacker.each_piece(bytes, |from, numbers| {
                            let target = target.get_mut(from..).unwrap_or_default();
                            straight::<N, T>(N::cut(numbers), target, self.line);
                        });
                        return;
                    }
                    (Some(unpacker), Some(_)) => N::cut(unpacker.unpack(bytes)),
                    (None, _) => N::cut(bytes),
                };
                match self.shape.reordered {
                    None => straight::<N, T>(numbers, target, self.line),
                    Some((walk, order)) if self.shape.complex => {
                        let (pairs, targets) =
                            (numbers.as_chunks::<2>().0, target.as_chunks_mut::<2>().0);
                        let convert = self.line.convert::<N, T>();
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
                            self.line.convert::<N, T>(),
                        );
                    }
                }
            })?;
            let [input, output] = &self.layouts;
            finish_with_packets(out, output_bytes, &frame, |sizes| {
                converted_packets(input, output, sizes)
            });
            account.take();
        }
        Ok(account.submit())
    }
}

fn straight<N: Number, T: Target>(numbers: &[N::Raw], target: &mut [T::Bytes], line: Line) {
    let convert = line.convert::<N, T>();
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
