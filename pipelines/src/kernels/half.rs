//! Float16 numbers.

/// Returns the bits of the float16 number nearest to `x`, half to even.
pub(super) fn half(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = u16::try_from(bits >> 16 & 0x8000).unwrap_or(0);
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x477f_f000 {
        // The number is at least half a step above the largest float16.
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Rounds 23 bits of the fraction to 10, and changes the offset of the exponent from 127 to 15.
        (magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23)) >> 13
    } else {
        // A denormal number is a multiple of 2^-24. The sum has this step, so it is rounded correctly.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    };
    sign | u16::try_from(rounded).unwrap_or(0x7c00)
}

/// Returns the float16 number nearest to `x`.
pub(super) fn rounded(x: f32) -> f32 {
    use super::samples::{F16, Number};
    F16::f32(half(x).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_half() {
        use crate::kernels::samples::{F16, Number};
        for bits in 0..=u16::MAX {
            let x = F16::f32(bits.to_le_bytes());
            if x.is_nan() {
                assert!(rounded(x).is_nan());
            } else {
                assert_eq!(half(x), bits, "{x}");
            }
        }
    }

    #[test]
    fn numbers_between_are_rounded_half_to_even() {
        for (x, want) in [
            (1.0 + 1.0 / 2048.0, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0),
            (1.0 + 1.01 / 2048.0, 1.0 + 1.0 / 1024.0),
            (65_519.0, 65_504.0),
            (65_520.0, f32::INFINITY),
            (2_f32.powi(-25), 0.0),
            (1.5 * 2_f32.powi(-25), 2_f32.powi(-24)),
            (-1e-3, -0.001_000_404_4),
        ] {
            assert_eq!(rounded(x), want, "{x}");
        }
    }
}
