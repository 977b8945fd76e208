//! Writes values from the configuration into the user's `struct Params`.

use daq_core::config::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Size in bytes of the description of one member in a module, as defined in daq.cuh.
const MEMBER_BYTES: usize = 24;
/// Maximum number of array values that messages show.
const SHOWN: usize = 6;

/// A parameter value in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A number without a decimal point.
    Integer(i128),
    /// A number with a decimal point.
    Float(f64),
    /// An array of values.
    Array(Vec<Self>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Array(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().take(SHOWN).enumerate() {
                    write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(if values.len() > SHOWN { ", …]" } else { "]" })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a boolean or an array of them")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Boolean(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Integer(value.into()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
                Ok(Value::Integer(value.into()))
            }

            fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
                Ok(Value::Integer(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Float(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
                // Environment variables and `--set` pass NaN and infinity as strings.
                match value.parse::<f64>() {
                    Ok(number) if !number.is_finite() => Ok(Value::Float(number)),
                    _ => Err(E::invalid_type(de::Unexpected::Str(value), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = items.next_element()? {
                    values.push(value);
                }
                Ok(Value::Array(values))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl JsonSchema for Value {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Value".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let one = serde_json::json!({ "type": ["number", "boolean"] });
        schemars::json_schema!({
            "anyOf": [one, { "type": "array", "items": one }]
        })
    }
}

/// Returns whether `name` is a valid C++ identifier.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut letters = name.bytes();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
}

/// Checks that each key is a valid C++ member name and that no array contains an array. The user's code is not needed.
pub(super) fn check(params: &BTreeMap<String, Value>) -> Result<(), Problem> {
    for (key, value) in params {
        if !is_identifier(key) {
            return Err(Problem::at(
                format!("params.{key}"),
                format!("{key:?} is not a valid C++ member name"),
            )
            .help("write the member's name as in `struct Params`: letters, digits and `_`"));
        }
        if let Value::Array(values) = value
            && let Some(i) = values
                .iter()
                .position(|value| matches!(value, Value::Array(_)))
        {
            return Err(Problem::at(
                format!("params.{key}.{i}"),
                "nested arrays are not supported",
            )
            .help("make the member a one-dimensional array and write all values in one list"));
        }
    }
    Ok(())
}

/// Returns the bytes of the variable `name` in PTX text; `None` if the variable is missing or has another format.
pub(super) fn in_ptx(ptx: &str, name: &str) -> Option<Vec<u8>> {
    let (_, rest) = ptx.split_once(&format!(".b8 {name}["))?;
    let (size, rest) = rest.lines().next()?.split_once(']')?;
    let size: usize = size.parse().ok()?;
    let values = rest.trim_matches([' ', '=', '{', '}', ';']);
    let mut bytes = values
        .split(',')
        .map(str::trim)
        .filter(|value| !value.is_empty())
        .map(str::parse)
        .collect::<Result<Vec<u8>, _>>()
        .ok()?;
    // PTX omits trailing zeros.
    (bytes.len() <= size).then(|| bytes.resize(size, 0))?;
    Some(bytes)
}

/// Type of a member's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Signed,
    Unsigned,
    Float,
    Boolean,
}

/// A member of `struct Params`, as described by the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) offset: usize,
    /// Number of bytes per value, 1 to 8.
    pub(super) bytes: usize,
    /// Number of elements of an array; `None` if the member is not an array.
    pub(super) count: Option<usize>,
    pub(super) kind: Kind,
}

impl Member {
    /// Reads the description of a member from a module; returns `None` if the member's type is not supported.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MEMBER_BYTES] = bytes.first_chunk()?;
        let (offset, rest) = bytes.split_first_chunk()?;
        let word = |i: usize| -> Option<usize> {
            let word = u32::from_le_bytes(*rest.get(4 * i..)?.first_chunk()?);
            usize::try_from(word).ok()
        };
        let (size, count) = (word(0)?, word(1)?);
        let kind = match word(2)? {
            1 => Kind::Signed,
            2 => Kind::Unsigned,
            3 => Kind::Float,
            4 => Kind::Boolean,
            _ => return None,
        };
        let sizes = match kind {
            Kind::Signed | Kind::Unsigned => &[1, 2, 4, 8][..],
            Kind::Float => &[4, 8],
            Kind::Boolean => &[1],
        };
        sizes.contains(&size).then_some(())?;
        Some(Self {
            offset: usize::try_from(u64::from_le_bytes(*offset)).ok()?,
            bytes: size,
            count: (count > 0).then_some(count),
            kind,
        })
    }

    /// Returns the offset after the member's last byte.
    pub(super) fn end(&self) -> usize {
        self.offset + self.bytes * self.count.unwrap_or(1)
    }

    /// Returns the C++ name of the member's type, or of one element of an array.
    const fn type_name(&self) -> &'static str {
        match (self.kind, self.bytes) {
            (Kind::Boolean, _) => "bool",
            (Kind::Float, 4) => "float",
            (Kind::Float, _) => "double",
            (Kind::Signed, 1) => "signed char",
            (Kind::Signed, 2) => "short",
            (Kind::Signed, 4) => "int",
            (Kind::Signed, _) => "long long",
            (Kind::Unsigned, 1) => "unsigned char",
            (Kind::Unsigned, 2) => "unsigned short",
            (Kind::Unsigned, 4) => "unsigned int",
            (Kind::Unsigned, _) => "unsigned long long",
        }
    }

    /// Writes `value` to `image`, the bytes of the struct. On failure, returns the reason and a fix; `image` may then
    /// be partly changed.
    pub(super) fn set(&self, image: &mut [u8], value: &Value) -> Result<(), String> {
        let values = match (self.count, value) {
            (Some(count), Value::Array(values)) if values.len() == count => &values[..],
            (Some(count), Value::Array(values)) => {
                return Err(format!(
                    "the array has {} values; write {count} values",
                    values.len()
                ));
            }
            (Some(count), _) => {
                return Err(format!(
                    "the value is not an array; write an array of {count} values, for example [{value}, …]"
                ));
            }
            (None, Value::Array(_)) => {
                return Err("the value is an array; write one value".to_owned());
            }
            (None, value) => std::slice::from_ref(value),
        };
        let place = self
            .offset
            .checked_add(self.bytes * values.len())
            .and_then(|end| image.get_mut(self.offset..end))
            .ok_or("the description in the file points outside of `struct Params`; recompile the file with the header that `daq reference kernel-header` prints")?;
        for (i, (value, place)) in values
            .iter()
            .zip(place.chunks_exact_mut(self.bytes))
            .enumerate()
        {
            let bytes = self.bytes_of(value).map_err(|why| match self.count {
                Some(_) => format!("value {value} at index {i}: {why}"),
                None => why,
            })?;
            place.copy_from_slice(&bytes[..self.bytes]);
        }
        Ok(())
    }

    /// Encodes one value. Only the first `self.bytes` bytes of the result are used.
    fn bytes_of(&self, value: &Value) -> Result<[u8; 8], String> {
        match (self.kind, value) {
            (Kind::Boolean, Value::Boolean(value)) => Ok(u64::from(*value).to_le_bytes()),
            (Kind::Boolean, _) => Err("write true or false".to_owned()),
            (_, Value::Boolean(_)) => Err("a boolean is not a number; write a number".to_owned()),
            (_, Value::Array(_)) => Err("nested arrays are not supported".to_owned()),
            (Kind::Float, Value::Integer(value)) => self.float(*value as f64),
            (Kind::Float, Value::Float(value)) => self.float(*value),
            (Kind::Signed | Kind::Unsigned, Value::Float(value)) => Err(if value.fract() == 0.0 {
                format!("the member is an integer; write {value:.0}")
            } else {
                "the member is an integer; write an integer, or make the member a float".to_owned()
            }),
            (Kind::Signed | Kind::Unsigned, Value::Integer(value)) => self.integer(*value),
        }
    }

    fn integer(&self, value: i128) -> Result<[u8; 8], String> {
        let bits = 8 * self.bytes;
        let (min, max) = if self.kind == Kind::Signed {
            (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1)
        } else {
            (0, (1_i128 << bits) - 1)
        };
        if !(min..=max).contains(&value) {
            return Err(format!(
                "the value is out of range; write {min} to {max}, or use a wider type for the member"
            ));
        }
        let mut low = [0; 8];
        low.copy_from_slice(&value.to_le_bytes()[..8]);
        Ok(low)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounds to the nearest float; values that become infinite are rejected"
    )]
    fn float(&self, value: f64) -> Result<[u8; 8], String> {
        if self.bytes == 8 {
            return Ok(value.to_le_bytes());
        }
        let narrow = value as f32;
        if narrow.is_infinite() && value.is_finite() {
            return Err(format!(
                "the value is out of range; write {:e} to {:e}, or make the member a double",
                f32::MIN,
                f32::MAX
            ));
        }
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&narrow.to_le_bytes());
        Ok(bytes)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())?;
        match self.count {
            Some(count) => write!(f, "[{count}]"),
            None => Ok(()),
        }
    }
}

/// Returns the error message for parameter `key` of `file`.
pub(super) fn refused(file: &str, key: &str, value: &Value, member: &Member, why: &str) -> String {
    format!(
        "`params.{key}` = {value}: member `{key}` of `struct Params` in {file} is {member}; {why}"
    )
}
