//! Pixel formats of GigE Vision cameras.
//!
//! Names and codes are those of the Pixel Format Naming Convention (PFNC). Bits 16 to 23 of a code are the number of bits
//! per pixel.

use daq_core::layout::Scalar;
use std::fmt;

/// A pixel format that daq can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelFormat {
    /// Name in the PFNC, such as `Mono8`.
    pub name: &'static str,
    /// Code in the leader of each block.
    pub code: u32,
    /// Type of each number.
    pub scalar: Scalar,
    /// Number of numbers per pixel.
    pub channels: u32,
}

const fn format(name: &'static str, code: u32, scalar: Scalar, channels: u32) -> PixelFormat {
    PixelFormat {
        name,
        code,
        scalar,
        channels,
    }
}

/// All pixel formats that daq can store.
pub const FORMATS: &[PixelFormat] = &[
    format("Mono8", 0x0108_0001, Scalar::Uint8, 1),
    format("Mono8s", 0x0108_0002, Scalar::Int8, 1),
    format("BayerGR8", 0x0108_0008, Scalar::Uint8, 1),
    format("BayerRG8", 0x0108_0009, Scalar::Uint8, 1),
    format("BayerGB8", 0x0108_000a, Scalar::Uint8, 1),
    format("BayerBG8", 0x0108_000b, Scalar::Uint8, 1),
    format("RGB8", 0x0218_0014, Scalar::Uint8, 3),
    format("BGR8", 0x0218_0015, Scalar::Uint8, 3),
];

impl PixelFormat {
    /// Returns the format `name`.
    pub fn named(name: &str) -> Option<Self> {
        FORMATS.iter().copied().find(|format| format.name == name)
    }

    /// Returns the number of bits per pixel.
    pub const fn bits(self) -> u32 {
        self.code >> 16 & 0xff
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The code of a pixel format, shown with its name if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) u32);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FORMATS.iter().find(|format| format.code == self.0) {
            Some(format) => format.fmt(f),
            None => write!(f, "pixel format {:#010x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_states_bits_of_all_numbers_of_pixel() {
        for format in FORMATS {
            let bits = format.scalar.bits() * format.channels as usize;
            assert_eq!(format.bits() as usize, bits, "{format}");
        }
    }

    #[test]
    fn unknown_code_is_shown_as_number() {
        assert_eq!(Code(0x0108_0001).to_string(), "Mono8");
        assert_eq!(Code(0x0110_0007).to_string(), "pixel format 0x01100007");
    }
}
