//! The numbers in a frame, for text output.

use crate::kernels::convert::packed::Unpacker;
use crate::kernels::samples::{Be, Bf16, F16, Number as Stored, with_number};
use daq_core::layout::Scalar;
use serde::{Serialize, Serializer};
use std::fmt;

/// A number of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A number of an integer type.
    Integer(i64),
    /// A number of a float type.
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
        }
    }
}

/// JSON has no NaN and no infinity; they become `null`.
impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(number) => serializer.serialize_i64(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
        }
    }
}

/// Returns the numbers of type `scalar` in `bytes`. Ignores an incomplete number or group at the end.
///
/// ```
/// use daq_core::layout::Scalar;
/// use daq_pipelines::numbers::{Number, numbers};
/// assert_eq!(numbers(Scalar::Int16, &[1, 0, 255, 255]), [Number::Integer(1), Number::Integer(-1)]);
/// ```
pub fn numbers(scalar: Scalar, bytes: &[u8]) -> Vec<Number> {
    if let Some(packing) = scalar.packing() {
        let (group, packed) = packing.group();
        let count = bytes.len() / packed * group;
        let mut unpacker = Unpacker::new(packing, count);
        return numbers(Scalar::Int16, unpacker.unpack(bytes));
    }
    if scalar == Scalar::Int64 {
        let numbers = bytes.as_chunks().0.iter();
        return numbers
            .map(|number| Number::Integer(i64::from_le_bytes(*number)))
            .collect();
    }
    let is_float = scalar.is_float();
    let number = |value: f64| {
        if is_float {
            Number::Float(value)
        } else {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the value is a whole number of at most 32 bits"
            )]
            let value = value as i64;
            Number::Integer(value)
        }
    };
    with_number!(
        scalar, N => N::cut(bytes).iter().map(|raw| number(N::f64(*raw))).collect(), _ => Vec::new(),
        Int8 i8, Uint8 u8, Int16 i16, Uint16 u16, Int32 i32, Uint32 u32, Float16 F16, Bfloat16 Bf16, Float32 f32,
        Float64 f64, Int16be Be<i16>, Uint16be Be<u16>, Int32be Be<i32>, Uint32be Be<u32>, Float32be Be<f32>
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_numbers() {
        for scalar in Scalar::ALL {
            let (group, bytes) = scalar
                .packing()
                .map_or((1, scalar.bits() / 8), daq_core::layout::Packing::group);
            let numbers = numbers(scalar, &vec![0; 3 * bytes]);
            assert_eq!(numbers.len(), 3 * group, "{scalar}");
            let zero = if scalar.is_float() {
                Number::Float(0.0)
            } else {
                Number::Integer(0)
            };
            assert!(numbers.iter().all(|number| *number == zero), "{scalar}");
        }
    }

    #[test]
    fn numbers_keep_sign_and_precision() {
        let of = |scalar, bytes: &[u8]| numbers(scalar, bytes)[0];
        assert_eq!(
            of(Scalar::Int64, &i64::MIN.to_le_bytes()),
            Number::Integer(i64::MIN)
        );
        assert_eq!(
            of(Scalar::Uint32, &[255; 4]),
            Number::Integer(u32::MAX.into())
        );
        assert_eq!(of(Scalar::Int12p, &[255, 15, 0]), Number::Integer(-1));
        assert_eq!(of(Scalar::Uint12p, &[255, 15, 0]), Number::Integer(4095));
        assert_eq!(
            of(Scalar::Float32, &0.5_f32.to_le_bytes()),
            Number::Float(0.5)
        );
        assert_eq!(
            serde_json::to_string(&Number::Float(f64::NAN)).unwrap(),
            "null"
        );
    }
}
