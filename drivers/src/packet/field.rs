//! An unsigned number at a fixed offset in a header, and the time scale of timestamps in ticks.

use daq_core::frame::Clock;

/// Byte order of a number in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Endian {
    /// Most significant byte first: network order.
    #[default]
    Big,
    /// Least significant byte first.
    Little,
}

/// An unsigned number of 1 to 8 bytes in a header. Only the `bits` bits above bit `shift` belong to the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    bytes: usize,
    endian: Endian,
    shift: u32,
    bits: u32,
}

impl Field {
    /// Creates a field of `bytes` bytes (1 to 8) at `offset`. Its value consists of the `bits` bits above bit `shift`.
    /// Arguments out of range are clamped.
    pub fn new(offset: usize, bytes: usize, endian: Endian, shift: u32, bits: u32) -> Self {
        let bytes = bytes.clamp(1, 8);
        let shift = shift.min(63);
        Self {
            offset,
            bytes,
            endian,
            shift,
            bits: bits.clamp(1, 64),
        }
    }

    /// Returns the offset of the first byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.bytes
    }

    /// Returns the number of significant bits.
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    const fn mask(&self) -> u64 {
        if self.bits >= 64 {
            u64::MAX
        } else {
            (1 << self.bits) - 1
        }
    }

    /// Returns the number in `header`, or `None` if `header` ends before the end of the field.
    #[inline]
    pub fn read(&self, header: &[u8]) -> Option<u64> {
        Some((self.word(header)? >> self.shift) & self.mask())
    }

    #[inline]
    fn word(&self, header: &[u8]) -> Option<u64> {
        let bytes = header.get(self.offset..self.end())?;
        if let Ok(whole) = <[u8; 8]>::try_from(bytes) {
            return Some(match self.endian {
                Endian::Big => u64::from_be_bytes(whole),
                Endian::Little => u64::from_le_bytes(whole),
            });
        }
        let push = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
        Some(match self.endian {
            Endian::Big => bytes.iter().fold(0, push),
            Endian::Little => bytes.iter().rev().fold(0, push),
        })
    }

    /// Writes `value` into `header`. Bits outside the field are unchanged. If `header` is too short, nothing is
    /// written.
    pub fn write(&self, header: &mut [u8], value: u64) {
        let Some(old) = self.word(header) else { return };
        let kept = old & !(self.mask() << self.shift);
        let word = kept | ((value & self.mask()) << self.shift);
        let (big, little) = (word.to_be_bytes(), word.to_le_bytes());
        let bytes = match self.endian {
            Endian::Big => &big[8 - self.bytes..],
            Endian::Little => &little[..self.bytes],
        };
        header[self.offset..self.offset + self.bytes].copy_from_slice(bytes);
    }
}

/// Conversion of a sender's timestamp in ticks to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// Duration of `ticks` ticks in nanoseconds, at least 1.
    pub nanoseconds: u64,
    /// Number of ticks in `nanoseconds`, at least 1.
    pub ticks: u64,
    /// Nanoseconds from 1970-01-01T00:00:00Z to tick 0; `None` if unknown.
    pub origin_ns: Option<u64>,
}

impl TimeScale {
    /// Converts `ticks` to nanoseconds, rounded down. Times beyond the year 2554 saturate.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        let scaled =
            u128::from(ticks) * u128::from(self.nanoseconds) / u128::from(self.ticks.max(1));
        u64::try_from(scaled)
            .unwrap_or(u64::MAX)
            .saturating_add(self.origin_ns.unwrap_or(0))
    }

    /// Returns the clock that the converted timestamps refer to.
    pub const fn clock(&self) -> Clock {
        match self.origin_ns {
            Some(_) => Clock::SensorUtc,
            None => Clock::Sensor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fast_clock_ticks_do_not_drift() {
        let scale = TimeScale {
            nanoseconds: 1_000_000_000,
            ticks: 1_712_000_000,
            origin_ns: Some(5),
        };
        assert_eq!(scale.ns(1_712_000_000 * 1000), 1_000_000_000_005);
        assert_eq!(scale.ns(u64::MAX), 10_774_967_332_774_270_803 + 5);
        assert_eq!(
            TimeScale {
                nanoseconds: 1000,
                ticks: 1,
                origin_ns: None
            }
            .ns(u64::MAX),
            u64::MAX
        );
    }

    #[test]
    fn field_write_keeps_adjacent_bits() {
        let field = Field::new(1, 2, Endian::Big, 4, 8);
        let mut header = [0xff; 4];
        field.write(&mut header, 0x1ab);
        assert_eq!(header, [0xff, 0xfa, 0xbf, 0xff]);
        assert_eq!(field.read(&header), Some(0xab));
        assert_eq!(field.read(&header[..2]), None);
    }

    proptest! {
        #[test]
        fn field_round_trips(
            offset in 0usize..20, bytes in 1usize..=8, little: bool, shift in 0u32..8, value: u64, noise: [u8; 32],
        ) {
            let endian = if little { Endian::Little } else { Endian::Big };
            let bits = u32::try_from(bytes * 8).unwrap() - shift;
            let field = Field::new(offset, bytes, endian, shift, bits);
            let mut header = noise;
            field.write(&mut header, value);
            prop_assert_eq!(field.read(&header), Some(value & field.mask()));
            prop_assert_eq!(&header[..offset], &noise[..offset]);
            prop_assert_eq!(&header[field.end()..], &noise[field.end()..]);
        }
    }
}
