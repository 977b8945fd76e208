//! Output types of the kernels that produce complex numbers.

use super::half::half;
use super::require;
use daq_core::config::Problem;
use daq_core::layout::Scalar;
use daq_fft::Complex;
use schemars::JsonSchema;
use serde::Deserialize;

/// Type of the real and imaginary parts of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputType {
    /// Float32, not rounded to integers.
    #[default]
    Float32,
    /// Float16, rounded to nearest.
    Float16,
    /// Integers from -32767 to 32767.
    Int16,
    /// Integers from -127 to 127.
    Int8,
}

impl OutputType {
    pub(super) const fn scalar(self) -> Scalar {
        match self {
            Self::Float32 => Scalar::Float32,
            Self::Float16 => Scalar::Float16,
            Self::Int16 => Scalar::Int16,
            Self::Int8 => Scalar::Int8,
        }
    }

    /// Writes complex numbers to successive places of `slot`.
    pub(super) fn write(self, slot: &mut [u8], numbers: impl Iterator<Item = Complex<f32>>) {
        match self {
            Self::Float32 => put(slot, numbers, f32::to_le_bytes),
            Self::Float16 => put(slot, numbers, |x| half(x).to_le_bytes()),
            Self::Int16 => put(slot, numbers, |x| limited::<32_767>(x).to_le_bytes()),
            Self::Int8 => put(slot, numbers, |x| [limited::<127>(x).to_le_bytes()[0]]),
        }
    }
}

fn put<const BYTES: usize>(
    slot: &mut [u8],
    numbers: impl Iterator<Item = Complex<f32>>,
    convert: impl Fn(f32) -> [u8; BYTES],
) {
    let places = slot.as_chunks_mut::<BYTES>().0.as_chunks_mut::<2>().0;
    for (place, z) in places.iter_mut().zip(numbers) {
        *place = [convert(z.re), convert(z.im)];
    }
}

/// Rounds to the nearest integer, half to even, and limits the result to ±`MAX`. A NaN becomes 0.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the value is limited to a range that fits"
)]
fn limited<const MAX: i16>(x: f32) -> i16 {
    let max = f32::from(MAX);
    x.round_ties_even().clamp(-max, max) as i16
}

/// Rejects factors that destroy the output, because kernels compute with float32 numbers.
pub(super) fn check_scale(scale: f64) -> Result<(), Problem> {
    check_factor(scale, "output", "")
}

/// Rejects a `scale` that is 0, subnormal or infinite as a float32 number and therefore destroys the `target`. `others`
/// names further values that the key accepts.
pub(super) fn check_factor(scale: f64, target: &str, others: &str) -> Result<(), Problem> {
    require(
        narrow(scale).is_normal(),
        "scale",
        format!("`scale` cannot be {scale:?}, because this value destroys the {target}"),
        format!(
            "write a number other than 0 whose magnitude is {:e} to {:e}{others}",
            f32::MIN_POSITIVE,
            f32::MAX
        ),
    )
}

/// Rejects an `offset` that is not finite as a float32 number.
pub(super) fn check_offset(offset: f64) -> Result<(), Problem> {
    require(
        narrow(offset).is_finite(),
        "offset",
        format!("`offset` cannot be {offset:?}, because this value destroys the samples"),
        format!("write a number from {:e} to {:e}", f32::MIN, f32::MAX),
    )
}

/// Returns `value` as the float32 number with which kernels compute.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounds to the nearest float; values that become infinite are rejected"
)]
pub(super) const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_float32_are_rejected() {
        for (scale, is_valid) in [
            (1.0, true),
            (-1e-30, true),
            (1e38, true),
            (0.0, false),
            (1e-60, false),
            (1e-40, false),
            (-1e60, false),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            let checked = check_scale(scale);
            assert_eq!(checked.is_ok(), is_valid, "{scale:?}");
            if let Err(problem) = checked {
                assert_eq!(problem.key.as_deref(), Some("scale"));
                assert!(problem.message.contains(&format!("{scale:?}")));
            }
        }
        for (offset, is_valid) in [
            (0.0, true),
            (1e-60, true),
            (-1e38, true),
            (1e308, false),
            (-1e39, false),
            (f64::NAN, false),
        ] {
            assert_eq!(check_offset(offset).is_ok(), is_valid, "{offset:?}");
        }
    }
}
