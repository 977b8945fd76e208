//! Reads a [`Node`] into a type with serde. Each error carries its location in the configuration.

use super::groups::{Groups, is_group};
use super::placeholder::PlaceholderDeserializer;
use super::suggest;
use super::tree::{Entry, Node, Step, Table, Value};
use serde::de::{
    self, DeserializeSeed, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use std::fmt;

/// The error for a node that cannot be read into a type.
#[derive(Debug)]
pub(crate) struct ReadError {
    pub(crate) fault: Fault,
    /// Path from the table that is read to the fault, last step first.
    pub(crate) path: Vec<Step>,
    /// Whether the fault is about a placeholder value instead of a value that the user wrote.
    pub(crate) is_placeholder_error: bool,
}

/// The kind of a read error.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The last step of the path is a key that the type does not have. The list contains the keys of the type.
    UnknownKey(Vec<&'static str>),
    /// The string is not one of the listed variants.
    UnknownVariant(&'static [&'static str]),
    /// The table at the path does not have this required key.
    Missing(String),
    /// The value has the wrong type. The string describes the expected type.
    Type(String),
    /// The value has the right type but is out of range. The string describes the expected range.
    Range(String),
    /// An error message that the type's own deserializer returned.
    Custom(String),
}

impl ReadError {
    pub(crate) fn new(fault: Fault) -> Self {
        Self {
            fault,
            path: Vec::new(),
            is_placeholder_error: false,
        }
    }

    pub(super) fn below(mut self, step: Step) -> Self {
        self.path.push(step);
        self
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Fault::Custom(message.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Fault::Type(expected.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Fault::Range(expected.to_string()))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownVariant(expected))
    }

    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Fault::UnknownKey(expected.to_vec()))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Fault::Missing(field.to_owned()))
    }
}

impl Node {
    fn read_placeholder<T>(
        &self,
        read: impl FnOnce(PlaceholderDeserializer<'_>) -> Result<T, ReadError>,
    ) -> Option<Result<T, ReadError>> {
        let Value::Placeholder(placeholder) = &self.value else {
            return None;
        };
        Some(
            read(PlaceholderDeserializer::new(placeholder)).map_err(|mut error| {
                error.is_placeholder_error = true;
                error.path.clear();
                error
            }),
        )
    }

    /// Returns the string value, or the original text of an override that may be used as a string.
    fn as_text(&self) -> Option<&str> {
        match (&self.loose, &self.value) {
            (Some(text), _) | (None, Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// Defines the `deserialize_*` methods for values that are not text. A placeholder returns a value of the requested
/// type.
macro_rules! placeholder_or_any {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            if matches!(self.value, Value::Placeholder(_)) {
                return self
                    .read_placeholder(|placeholder| placeholder.$method(visitor))
                    .expect("the value was checked to be a placeholder");
            }
            self.deserialize_any(visitor)
        }
    )*};
}

/// Defines the `deserialize_*` methods that also accept a string. A placeholder returns a value of the requested type.
macro_rules! textual {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            if matches!(self.value, Value::Placeholder(_)) {
                return self
                    .read_placeholder(|placeholder| placeholder.$method(visitor))
                    .expect("the value was checked to be a placeholder");
            }
            match self.as_text() {
                Some(text) => visitor.visit_str(text),
                None => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &Node {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            // The types that accept a date or time read it from text.
            Value::String(text) | Value::Datetime(text) => visitor.visit_str(text),
            Value::Integer(number) => {
                if let Ok(number) = i64::try_from(*number) {
                    visitor.visit_i64(number)
                } else if let Ok(number) = u64::try_from(*number) {
                    visitor.visit_u64(number)
                } else {
                    visitor.visit_i128(*number)
                }
            }
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Array(array) => {
                let mut items = Items { array, next: 0 };
                let value = visitor.visit_seq(&mut items)?;
                if items.next < array.len() {
                    let message = format!(
                        "the array has {} elements, but {} are expected",
                        array.len(),
                        items.next
                    );
                    return Err(de::Error::custom(message));
                }
                Ok(value)
            }
            Value::Table(table) => visitor.visit_map(Pairs::new(table)),
            Value::Placeholder(_) => self
                .read_placeholder(|placeholder| placeholder.deserialize_any(visitor))
                .expect("this match arm handles only placeholders"),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Placeholder(placeholder) if !placeholder.other => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.value {
            Value::Placeholder(_) => self
                .read_placeholder(|placeholder| placeholder.deserialize_tuple(length, visitor))
                .expect("this match arm handles only placeholders"),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Placeholder(_) => self
                .read_placeholder(|placeholder| {
                    placeholder.deserialize_struct(name, fields, visitor)
                })
                .expect("this match arm handles only placeholders"),
            Value::Table(table) if fields.iter().any(|field| is_group(field)) => {
                visitor.visit_map(Groups::new(table, fields))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if matches!(self.value, Value::Placeholder(_)) {
            return self
                .read_placeholder(|placeholder| {
                    placeholder.deserialize_enum(name, variants, visitor)
                })
                .expect("the value was checked to be a placeholder");
        }
        if let Some(text) = self.as_text() {
            return visitor.visit_enum(de::value::StrDeserializer::new(text));
        }
        match &self.value {
            Value::Table(table) if table.entries.len() == 1 => {
                visitor.visit_enum(Variant(&table.entries[0]))
            }
            _ => Err(ReadError::new(Fault::Type(format!(
                "one of {}",
                suggest::list(variants, 12)
            )))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    placeholder_or_any! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_seq deserialize_map
    }

    textual! { deserialize_char deserialize_str deserialize_string }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct identifier }
}

struct Items<'n> {
    array: &'n [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for &mut Items<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        let Some(node) = self.array.get(self.next) else {
            return Ok(None);
        };
        let step = Step::Index(self.next);
        self.next += 1;
        seed.deserialize(node)
            .map(Some)
            .map_err(|error| error.below(step))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.array.len() - self.next)
    }
}

/// The keys of a table and their values.
pub(super) struct Pairs<'n> {
    pub(super) entries: std::slice::Iter<'n, Entry>,
    value: Option<&'n Entry>,
    /// Keys to read; `None` for all keys.
    only: Option<&'static [&'static str]>,
}

impl<'n> Pairs<'n> {
    pub(super) fn new(table: &'n Table) -> Self {
        Self {
            entries: table.entries.iter(),
            value: None,
            only: None,
        }
    }

    /// Returns only the entries with the given `keys`.
    pub(super) fn only(table: &'n Table, keys: &'static [&'static str]) -> Self {
        Self {
            only: Some(keys),
            ..Self::new(table)
        }
    }
}

impl<'de> MapAccess<'de> for Pairs<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        let only = self.only;
        let is_read = |entry: &&Entry| only.is_none_or(|only| only.contains(&entry.key.as_str()));
        let Some(entry) = self.entries.find(is_read) else {
            return Ok(None);
        };
        self.value = Some(entry);
        seed.deserialize(de::value::StrDeserializer::new(&entry.key))
            .map(Some)
            .map_err(|error: ReadError| error.below(Step::Key(entry.key.clone())))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let Some(entry) = self.value.take() else {
            return Err(de::Error::custom("the value was requested before its key"));
        };
        seed.deserialize(&entry.node)
            .map_err(|error| error.below(Step::Key(entry.key.clone())))
    }
}

/// An enum variant written as a table with one key: `{ name = content }`.
struct Variant<'n>(&'n Entry);

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let value = seed
            .deserialize(de::value::StrDeserializer::new(&self.0.key))
            .map_err(|error: ReadError| error.below(Step::Key(self.0.key.clone())))?;
        Ok((value, self))
    }
}

impl Variant<'_> {
    fn placed(&self, error: ReadError) -> ReadError {
        error.below(Step::Key(self.0.key.clone()))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        match &self.0.node.value {
            Value::Table(table) if table.entries.is_empty() => Ok(()),
            _ => Err(self.placed(ReadError::new(Fault::Type("an empty table".to_owned())))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(&self.0.node)
            .map_err(|error| self.placed(error))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        de::Deserializer::deserialize_tuple(&self.0.node, length, visitor)
            .map_err(|error| self.placed(error))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        de::Deserializer::deserialize_struct(&self.0.node, "", fields, visitor)
            .map_err(|error| self.placed(error))
    }
}
