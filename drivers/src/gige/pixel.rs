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

impl PixelFormat {
    /// Returns the colour filter or the order of the colours, such as `BayerRG` or `RGB`; `None` if pixels have no colour.
    pub fn colors(&self) -> Option<&'static str> {
        let letters = self
            .name
            .split(|letter: char| letter.is_ascii_digit())
            .next()?;
        (letters != "Mono").then_some(letters)
    }
}

/// All pixel formats that daq can store. In unpacked formats of 10 to 14 bits, the upper bits are 0.
pub const FORMATS: &[PixelFormat] = &[
    format("Mono8", 0x0108_0001, Scalar::Uint8, 1),
    format("Mono8s", 0x0108_0002, Scalar::Int8, 1),
    format("Mono10", 0x0110_0003, Scalar::Uint16, 1),
    format("Mono12", 0x0110_0005, Scalar::Uint16, 1),
    format("Mono14", 0x0110_0025, Scalar::Uint16, 1),
    format("Mono16", 0x0110_0007, Scalar::Uint16, 1),
    format("Mono4p", 0x0104_0039, Scalar::Uint4p, 1),
    format("Mono10p", 0x010a_0046, Scalar::Uint10p, 1),
    format("Mono12p", 0x010c_0047, Scalar::Uint12p, 1),
    format("BayerGR8", 0x0108_0008, Scalar::Uint8, 1),
    format("BayerRG8", 0x0108_0009, Scalar::Uint8, 1),
    format("BayerGB8", 0x0108_000a, Scalar::Uint8, 1),
    format("BayerBG8", 0x0108_000b, Scalar::Uint8, 1),
    format("BayerGR10", 0x0110_000c, Scalar::Uint16, 1),
    format("BayerRG10", 0x0110_000d, Scalar::Uint16, 1),
    format("BayerGB10", 0x0110_000e, Scalar::Uint16, 1),
    format("BayerBG10", 0x0110_000f, Scalar::Uint16, 1),
    format("BayerGR12", 0x0110_0010, Scalar::Uint16, 1),
    format("BayerRG12", 0x0110_0011, Scalar::Uint16, 1),
    format("BayerGB12", 0x0110_0012, Scalar::Uint16, 1),
    format("BayerBG12", 0x0110_0013, Scalar::Uint16, 1),
    format("BayerGR16", 0x0110_002e, Scalar::Uint16, 1),
    format("BayerRG16", 0x0110_002f, Scalar::Uint16, 1),
    format("BayerGB16", 0x0110_0030, Scalar::Uint16, 1),
    format("BayerBG16", 0x0110_0031, Scalar::Uint16, 1),
    format("BayerBG10p", 0x010a_0052, Scalar::Uint10p, 1),
    format("BayerGB10p", 0x010a_0054, Scalar::Uint10p, 1),
    format("BayerGR10p", 0x010a_0056, Scalar::Uint10p, 1),
    format("BayerRG10p", 0x010a_0058, Scalar::Uint10p, 1),
    format("BayerBG12p", 0x010c_0053, Scalar::Uint12p, 1),
    format("BayerGB12p", 0x010c_0055, Scalar::Uint12p, 1),
    format("BayerGR12p", 0x010c_0057, Scalar::Uint12p, 1),
    format("BayerRG12p", 0x010c_0059, Scalar::Uint12p, 1),
    format("RGB8", 0x0218_0014, Scalar::Uint8, 3),
    format("BGR8", 0x0218_0015, Scalar::Uint8, 3),
    format("RGB16", 0x0230_0033, Scalar::Uint16, 3),
    format("BGR16", 0x0230_004b, Scalar::Uint16, 3),
];

impl PixelFormat {
    /// Returns the format with the code of a leader.
    pub fn of_code(code: u32) -> Option<Self> {
        FORMATS.iter().copied().find(|format| format.code == code)
    }

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
        match PixelFormat::of_code(self.0) {
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
    fn names_and_codes_are_unique() {
        for (i, format) in FORMATS.iter().enumerate() {
            let earlier = FORMATS[..i].iter();
            let mut same =
                earlier.filter(|other| other.name == format.name || other.code == format.code);
            assert_eq!(same.next(), None, "{format}");
        }
    }

    #[test]
    fn unknown_code_is_shown_as_number() {
        assert_eq!(Code(0x0108_0001).to_string(), "Mono8");
        assert_eq!(Code(0x010c_0006).to_string(), "pixel format 0x010c0006");
    }
}
