//! An unsigned number in a packet header: its position, and the keys that describe it.

use super::checks::Check;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;

/// Byte order of a number in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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

/// An unsigned number at a fixed position of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldKeys {
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field; default `"big"`.
    pub endian: Option<Endian>,
    /// Increment of the number from one packet or frame to the next. For `position`: the unit in bytes.
    #[serde(default = "one")]
    pub step: u64,
    /// Number of significant bits, by default all. A sequence or frame number wraps at 2 to the power of `bits`.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
    /// The lowest and the highest number, if the number does not use all its bits: `[1, 65535]` for a number of 16 bits that skips
    /// 0. The lowest number follows the highest. Only for `sequence` and `frame`.
    pub range: Option<[u64; 2]>,
    /// The number of the first packet of a part. Only for `packet`.
    #[serde(default)]
    pub first: u64,
}

fn one() -> u64 {
    1
}

impl FieldKeys {
    /// Returns a number of `bytes` bytes at `offset` that grows by 1.
    pub const fn new(offset: usize, bytes: usize, endian: Endian) -> Self {
        Self {
            offset,
            bytes,
            endian: Some(endian),
            step: 1,
            bits: None,
            shift: 0,
            range: None,
            first: 0,
        }
    }

    /// Returns a number in network byte order.
    pub const fn big(offset: usize, bytes: usize) -> Self {
        Self::new(offset, bytes, Endian::Big)
    }

    /// Returns a number whose least significant byte is the first.
    pub const fn little(offset: usize, bytes: usize) -> Self {
        Self::new(offset, bytes, Endian::Little)
    }

    /// Returns the number with the increment `step`.
    #[must_use]
    pub const fn stepping(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// Returns the `bits` bits of the number above its lowest `shift` bits.
    pub(super) const fn cut(self, bits: Option<u32>, shift: u32) -> Self {
        Self {
            bits,
            shift,
            ..self
        }
    }

    /// Returns the offset of the first byte after the number.
    pub const fn end(&self) -> usize {
        self.offset + self.bytes
    }

    /// Returns the position of the number.
    pub fn field(&self) -> Field {
        let bits = self
            .bits
            .unwrap_or_else(|| self.width().saturating_sub(self.shift).max(1));
        let endian = self.endian.unwrap_or_default();
        Field::new(self.offset, self.bytes, endian, self.shift, bits)
    }

    /// Returns the number in `head`, or `None` if `head` ends before the end of the number.
    pub fn read(&self, head: &[u8]) -> Option<u64> {
        self.field().read(head)
    }

    /// Returns whether the two numbers have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Returns the position of the number in words.
    pub fn words(&self) -> String {
        if self.bytes == 1 {
            return format!("byte {}", self.offset);
        }
        let endian = self.endian.unwrap_or_default();
        let (first, last) = (self.offset, self.end() - 1);
        format!("bytes {first} to {last} ({endian} endian)")
    }

    fn width(&self) -> u32 {
        u32::try_from(self.bytes.clamp(1, 8) * 8).unwrap_or(64)
    }

    /// Returns the position of the number, and reports problems of the position to `check`. `key` is the key of the table;
    /// `header` is the size of the header in bytes.
    pub(super) fn checked(&self, key: &str, header: usize, check: &mut Check) -> Field {
        check.field(key, self.offset, self.bytes, header);
        let bits = check.bits(key, self.bytes, self.bits, self.shift);
        let endian = self.endian.unwrap_or_default();
        Field::new(self.offset, self.bytes, endian, self.shift, bits)
    }
}

/// Writes the keys as in an inline table, without braces and without keys that have their default values.
impl fmt::Display for FieldKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset = {}, bytes = {}", self.offset, self.bytes)?;
        if let Some(endian) = self.endian.filter(|_| self.bytes > 1) {
            write!(f, ", endian = \"{endian}\"")?;
        }
        if let Some(bits) = self.bits {
            write!(f, ", bits = {bits}")?;
        }
        for (key, value, default) in [("shift", self.shift.into(), 0), ("step", self.step, 1)] {
            if value != default {
                write!(f, ", {key} = {value}")?;
            }
        }
        if let Some([first, last]) = self.range {
            write!(f, ", range = [{first}, {last}]")?;
        }
        if self.first > 0 {
            write!(f, ", first = {}", self.first)?;
        }
        Ok(())
    }
}

impl fmt::Display for Endian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Big => "big",
            Self::Little => "little",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn written_keys_are_read_again() {
        let plain = FieldKeys::little(6, 4);
        assert_eq!(
            plain.to_string(),
            "offset = 6, bytes = 4, endian = \"little\""
        );
        assert_eq!(FieldKeys::big(3, 1).to_string(), "offset = 3, bytes = 1");
        let all = FieldKeys {
            bits: Some(20),
            shift: 4,
            range: Some([16, 65_535]),
            first: 1,
            ..plain.stepping(16)
        };
        for keys in [plain, all] {
            let tables: BTreeMap<String, FieldKeys> =
                toml::from_str(&format!("number = {{ {keys} }}")).unwrap();
            assert_eq!(tables["number"], keys);
        }
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
