//! Reads numbers of any [`Scalar`](daq_core::layout::Scalar) type from the bytes of a frame.
//!
//! ```text
//!   interleaved, 2 channels, complex     re im | re im | re im | re im     a "number" is one re or im
//!                                        ch 0    ch 1    ch 0    ch 1
//!                                        └── point 0 ──┘ └── point 1 ──┘
//! ```

use daq_core::layout::{Layout, Order};

/// A type of number in a frame, stored as little-endian.
pub(super) trait Number: 'static {
    /// Byte representation of a number.
    type Raw: Copy + Send + Sync;
    /// Whether float32 can represent every value of this type exactly.
    const EXACT_IN_F32: bool;

    /// Splits bytes into numbers. Ignores an incomplete number at the end.
    fn cut(bytes: &[u8]) -> &[Self::Raw];
    /// Returns the value as float32, rounded to nearest.
    fn f32(raw: Self::Raw) -> f32;
    /// Returns the exact value as float64.
    fn f64(raw: Self::Raw) -> f64;
    /// Returns the lowest byte. For 8-bit types, this byte is the whole number.
    fn code(raw: Self::Raw) -> u8;
    /// Returns the value of a number whose lowest byte is `code` and whose other bytes are 0.
    fn value(code: u8) -> f64;
}

macro_rules! number {
    ($($type:ident, $bytes:literal, $exact:literal;)*) => {$(
        impl Number for $type {
            type Raw = [u8; $bytes];
            const EXACT_IN_F32: bool = $exact;

            fn cut(bytes: &[u8]) -> &[Self::Raw] {
                bytes.as_chunks().0
            }

            #[inline]
            #[expect(clippy::allow_attributes, reason = "only some number types cause these lints")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, reason = "the value must be rounded")]
            fn f32(raw: Self::Raw) -> f32 {
                $type::from_le_bytes(raw) as f32
            }

            #[inline]
            fn f64(raw: Self::Raw) -> f64 {
                f64::from($type::from_le_bytes(raw))
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

number! {
    i8, 1, true;
    u8, 1, true;
    i16, 2, true;
    i32, 4, false;
    f32, 4, true;
    f64, 8, false;
}

/// Evaluates an expression in which `$N` stands for the number type of a scalar.
macro_rules! with_number {
    ($scalar:expr, $N:ident => $value:expr) => {
        with_number!($scalar, $N => $value, Int8 i8, Uint8 u8, Int16 i16, Int32 i32, Float32 f32, Float64 f64)
    };
    ($scalar:expr, $N:ident => $value:expr, $($variant:ident $type:ident),*) => {
        match $scalar {
            $(daq_core::layout::Scalar::$variant => {
                type $N = $type;
                $value
            })*
        }
    };
}
pub(super) use with_number;

/// Locates the samples of a channel in a frame, counted in samples (a complex sample counts once).
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Distance between the samples of two channels at the same point.
    pub(super) channel: usize,
    /// Distance between two successive points.
    pub(super) point: usize,
}

impl Walk {
    pub(super) const fn of(order: Order, channels: usize, points: usize) -> Self {
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

    pub(super) const fn through(layout: &Layout) -> Self {
        Self::of(layout.order, layout.channels as usize, layout.points)
    }

    /// Fills `target` with the converted samples of `channel`, starting at point `first`.
    ///
    /// Contiguous samples use a separate loop, which the compiler can vectorise.
    #[inline]
    pub(super) fn gather<T: Copy, U>(
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
