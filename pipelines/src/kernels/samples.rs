//! Reads numbers of any [`Scalar`](daq_core::layout::Scalar) type from the bytes of a frame.
//!
//! ```text
//!   interleaved, 2 channels, complex     re im | re im | re im | re im     a "number" is one re or im
//!                                        ch 0    ch 1    ch 0    ch 1
//!                                        └── point 0 ──┘ └── point 1 ──┘
//! ```

use daq_core::layout::{Layout, Order, Scalar};
use std::marker::PhantomData;

/// A type of number in a frame.
pub(crate) trait Number: 'static {
    /// Byte representation of a number.
    type Raw: Copy + Send + Sync;
    /// Whether float32 can represent every value of this type exactly.
    const EXACT_IN_F32: bool;

    /// Splits bytes into numbers. Ignores an incomplete number at the end.
    fn cut(bytes: &[u8]) -> &[Self::Raw];
    /// Returns the value as float32, rounded to nearest.
    fn f32(raw: Self::Raw) -> f32;
    /// Returns the value as float64. Only values of `i64` can be rounded.
    fn f64(raw: Self::Raw) -> f64;
    /// Returns the first byte. For 8-bit types, this byte is the whole number.
    fn code(raw: Self::Raw) -> u8;
    /// Returns the value of a number whose first byte is `code` and whose other bytes are 0.
    fn value(code: u8) -> f64;
}

macro_rules! number {
    ($($type:ty, $bytes:literal, $exact:literal, $raw:ident => $value:expr;)*) => {$(
        impl Number for $type {
            type Raw = [u8; $bytes];
            const EXACT_IN_F32: bool = $exact;

            fn cut(bytes: &[u8]) -> &[Self::Raw] {
                bytes.as_chunks().0
            }

            #[inline]
            #[expect(clippy::allow_attributes, reason = "only some number types cause these lints")]
            #[allow(
                clippy::cast_possible_truncation, clippy::cast_lossless, clippy::cast_precision_loss,
                clippy::unnecessary_cast, reason = "the value must be rounded"
            )]
            fn f32($raw: Self::Raw) -> f32 {
                $value as f32
            }

            #[inline]
            #[expect(clippy::allow_attributes, reason = "only some number types cause these lints")]
            #[allow(
                clippy::cast_lossless, clippy::cast_precision_loss, clippy::unnecessary_cast,
                reason = "the value must be rounded"
            )]
            fn f64($raw: Self::Raw) -> f64 {
                $value as f64
            }

            #[inline]
            fn code(raw: Self::Raw) -> u8 {
                raw[0]
            }

            fn value(code: u8) -> f64 {
                let mut raw = [0; $bytes];
                raw[0] = code;
                Self::f64(raw)
            }
        }
    )*};
}

/// The number type `float16`.
pub(crate) enum F16 {}
/// The number type `bfloat16`.
pub(crate) enum Bf16 {}
/// The big-endian number type of a type.
pub(crate) struct Be<N>(PhantomData<N>);

number! {
    i8, 1, true, raw => i8::from_le_bytes(raw);
    u8, 1, true, raw => u8::from_le_bytes(raw);
    i16, 2, true, raw => i16::from_le_bytes(raw);
    u16, 2, true, raw => u16::from_le_bytes(raw);
    i32, 4, false, raw => i32::from_le_bytes(raw);
    u32, 4, false, raw => u32::from_le_bytes(raw);
    i64, 8, false, raw => i64::from_le_bytes(raw);
    F16, 2, true, raw => from_float16(u16::from_le_bytes(raw));
    Bf16, 2, true, raw => f32::from_bits(u32::from(u16::from_le_bytes(raw)) << 16);
    f32, 4, true, raw => f32::from_le_bytes(raw);
    f64, 8, false, raw => f64::from_le_bytes(raw);
    Be<i16>, 2, true, raw => i16::from_be_bytes(raw);
    Be<u16>, 2, true, raw => u16::from_be_bytes(raw);
    Be<i32>, 4, false, raw => i32::from_be_bytes(raw);
    Be<u32>, 4, false, raw => u32::from_be_bytes(raw);
    Be<f32>, 4, true, raw => f32::from_be_bytes(raw);
}

/// Returns the value of a binary16. NaNs keep their sign and payload.
#[inline]
fn from_float16(bits: u16) -> f32 {
    /// 2^112, the difference between the exponent offsets of binary32 and binary16.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    // The multiplication is exact for denormal numbers too.
    let magnitude = (f32::from_bits((bits & 0x7fff) << 13) * REBIAS).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits((bits & 0x8000) << 16 | special | magnitude)
}

/// Evaluates an expression in which `$N` stands for the number type of a scalar, or `$otherwise` for a scalar that only
/// `convert` supports.
macro_rules! with_number {
    ($scalar:expr, $N:ident => $value:expr, _ => $otherwise:expr) => {
        with_number!(
            $scalar, $N => $value, _ => $otherwise,
            Int8 i8, Uint8 u8, Int16 i16, Uint16 u16, Int32 i32, Float32 f32, Float64 f64
        )
    };
    ($scalar:expr, $N:ident => $value:expr, _ => $otherwise:expr, $($variant:ident $type:ty),*) => {
        match $scalar {
            $(daq_core::layout::Scalar::$variant => {
                type $N = $type;
                $value
            })*
            _ => $otherwise,
        }
    };
}
pub(crate) use with_number;

/// Returns whether all kernels support numbers of type `scalar`, not only `convert`.
pub(crate) fn is_common(scalar: Scalar) -> bool {
    with_number!(scalar, N => size_of::<<N as Number>::Raw>() > 0, _ => false)
}

/// Locates the samples of a channel in a frame, counted in samples (a complex sample counts once).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    /// Distance between the samples of two channels at the same point.
    pub(crate) channel: usize,
    /// Distance between two successive points.
    pub(crate) point: usize,
}

impl Walk {
    pub(crate) const fn of(order: Order, channels: usize, points: usize) -> Self {
        match order {
            Order::Interleaved => Self {
                channel: 1,
                point: channels,
            },
            Order::Planar => Self {
                channel: points,
                point: 1,
            },
        }
    }

    pub(crate) const fn through(layout: &Layout) -> Self {
        Self::of(layout.order, layout.channels as usize, layout.points)
    }

    /// Fills `target` with the converted samples of `channel`, starting at point `first`.
    ///
    /// Contiguous samples use a separate loop, which the compiler can vectorise.
    #[inline]
    pub(crate) fn gather<T: Copy, U>(
        self,
        frame: &[T],
        channel: usize,
        first: usize,
        target: &mut [U],
        convert: impl Fn(T) -> U,
    ) {
        let start = channel * self.channel + first * self.point;
        let samples = frame.get(start..).unwrap_or_default();
        if self.point == 1 {
            for (place, sample) in target.iter_mut().zip(samples) {
                *place = convert(*sample);
            }
        } else {
            for (place, sample) in target.iter_mut().zip(samples.iter().step_by(self.point)) {
                *place = convert(*sample);
            }
        }
    }
}
