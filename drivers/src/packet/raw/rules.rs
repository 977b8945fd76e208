//! Rules that tell packets with data from other packets, such as leaders and trailers of a frame.

use super::{Endian, Field};
use crate::packet::checks::{Check, LARGEST_PACKET};
use crate::packet::field::FieldKeys;
use daq_core::units::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

/// A condition of `match`: `offset`, `bytes` and `values`, or `length`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatchConfig {
    /// Offset of a number in bytes from the start of the packet.
    pub offset: Option<usize>,
    /// Size of the number in bytes, 1 to 8.
    pub bytes: Option<usize>,
    /// Byte order of the number; default `"big"`.
    #[serde(default)]
    pub endian: Endian,
    /// Number of significant bits, by default all.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
    /// The values of the number in packets with data.
    #[serde(default)]
    pub values: Vec<u64>,
    /// Size of packets with data, with header and trailer.
    pub length: Option<ByteSize>,
}

/// A condition that packets with data meet.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    Values(Field, Box<[u64]>),
    Length(usize),
}

impl MatchConfig {
    /// Returns whether the condition selects the payload packets of a GigE Vision stream, whose packet format is 3.
    pub(super) fn is_gvsp_payload(&self) -> bool {
        let bits = (self.shift, self.bits.unwrap_or(8));
        (self.offset, self.bytes) == (Some(4), Some(1))
            && matches!(bits, (0, 4..))
            && self.values == [3]
    }

    /// Returns the rule. `header` is the size of the header in bytes.
    pub(super) fn rule(&self, header: usize, check: &mut Check) -> Rule {
        let is_field = self.offset.is_some() || self.bytes.is_some() || !self.values.is_empty();
        check.must(self.length.is_some() != is_field, "match", || {
            let message =
                "a condition needs either `length`, or `offset`, `bytes` and `values`".to_owned();
            (message, "write two conditions if both must hold".to_owned())
        });
        if let Some(length) = self.length {
            return Rule::Length(check.size("match.length", length, 1, LARGEST_PACKET));
        }
        check.must(!self.values.is_empty(), "match.values", || {
            (
                "no value is listed".to_owned(),
                "list the values in packets with data".to_owned(),
            )
        });
        let (offset, bytes) = (self.offset.unwrap_or(0), self.bytes.unwrap_or(1));
        let keys = FieldKeys::new(offset, bytes, self.endian).cut(self.bits, self.shift);
        let field = keys.checked("match", header, check);
        Rule::Values(field, self.values.clone().into())
    }
}

impl Rule {
    /// Returns whether a packet of `length` bytes with this header meets the condition.
    #[inline]
    pub(super) fn holds(&self, header: &[u8], length: usize) -> bool {
        match self {
            Self::Values(field, values) => field
                .read(header)
                .is_some_and(|value| values.contains(&value)),
            Self::Length(wanted) => length == *wanted,
        }
    }

    /// Writes a value into `header` with which the condition holds.
    pub(super) fn write(&self, header: &mut [u8]) {
        if let Self::Values(field, values) = self
            && let Some(value) = values.first()
        {
            field.write(header, *value);
        }
    }
}
