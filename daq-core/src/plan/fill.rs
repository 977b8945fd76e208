//! The key `fill` of a ring.

use super::RingSection;
use super::config::at;
use crate::config::Diagnostics;
use crate::layout::Layout;
use crate::ring::Fill;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The value of a ring's `fill` key: the bytes of missing packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillKey {
    /// Zeros.
    #[default]
    Zero,
    /// NaN, for float types.
    Nan,
    /// The same byte everywhere.
    Byte(u8),
}

impl FillKey {
    /// Returns the pattern of the bytes.
    pub const fn pattern(self) -> Fill {
        match self {
            Self::Zero => Fill::ZERO,
            Self::Nan => Fill::nan(),
            Self::Byte(byte) => Fill::byte(byte),
        }
    }
}

/// Returns whether numbers of `layout` can have the fill value of `ring`.
pub(super) fn check(ring: &RingSection, layout: &Layout, diagnostics: &mut Diagnostics) -> bool {
    if ring.keys.fill != FillKey::Nan || layout.scalar.is_float() {
        return true;
    }
    let (name, scalar) = (ring.section.name(), layout.scalar);
    let message = format!(
        "`fill` is \"nan\", but ring `{name}` has numbers of type {scalar}, of which none is NaN"
    );
    diagnostics.push(at(&ring.section, "fill", message).help(
        "write \"zero\" or a byte from 0 to 255; if the numbers are floats, correct `type` in the source's `samples`",
    ));
    false
}

impl<'de> Deserialize<'de> for FillKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = FillKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"zero\", \"nan\" or a byte from 0 to 255")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<FillKey, E> {
                match text {
                    "zero" => Ok(FillKey::Zero),
                    "nan" => Ok(FillKey::Nan),
                    _ => Err(E::custom(format!(
                        "unknown fill \"{text}\"; write \"zero\", \"nan\" or a byte from 0 to 255"
                    ))),
                }
            }

            fn visit_i64<E: Error>(self, byte: i64) -> Result<FillKey, E> {
                from_byte(byte)
            }

            fn visit_u64<E: Error>(self, byte: u64) -> Result<FillKey, E> {
                from_byte(byte)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

fn from_byte<E: Error>(byte: impl TryInto<u8> + Copy + fmt::Display) -> Result<FillKey, E> {
    byte.try_into().map(FillKey::Byte).map_err(|_| {
        E::custom(format!(
            "{byte} is out of range; write a byte from 0 to 255"
        ))
    })
}

impl JsonSchema for FillKey {
    fn schema_name() -> Cow<'static, str> {
        "Fill".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "enum": ["zero", "nan"] }, { "type": "integer", "minimum": 0, "maximum": 255 }]
        })
    }
}
