//! Reads nodes of a configuration into a type with serde. Each error carries its location in the configuration.
//!
//! There is one deserializer, and one access each to maps, arrays and enums, for written values and placeholders. So the
//! code that serde derives is compiled once per type.

use super::fault::{Fault, ReadError};
use super::groups::{Groups, Next, is_group};
use super::placeholder::{Any, PlaceholderValue, exhausted};
use super::suggest;
use super::tree::{Entry, Node, Step, Table, Value};
use serde::de::{
    self, DeserializeSeed, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use std::cell::RefCell;

type Result<T> = std::result::Result<T, ReadError>;

/// What a type is read from.
#[derive(Clone, Copy)]
pub(super) enum Input<'n> {
    /// A value of the configuration.
    Node(&'n Node),
    /// A placeholder, or a value nested in it.
    Placeholder(PlaceholderValue<'n>),
    /// The keys of a table that one group reads. The keys of the group are appended to the list.
    Group(&'n Table, &'n RefCell<Vec<&'static str>>),
}

impl<'n> Input<'n> {
    /// Returns the placeholder instead of its node.
    fn resolved(self) -> Self {
        match self {
            Self::Node(Node {
                value: Value::Placeholder(placeholder),
                ..
            }) => Self::Placeholder(PlaceholderValue::new(placeholder)),
            _ => self,
        }
    }

    /// Marks an error that a placeholder caused.
    fn marked<T>(self, result: Result<T>) -> Result<T> {
        result.map_err(|mut error| {
            if matches!(self, Self::Placeholder(value) if value.is_outermost()) {
                error.is_placeholder_error = true;
                error.path.clear();
            }
            error
        })
    }

    /// Returns the string value, or the original text of an override that may be used as a string.
    fn as_text(self) -> Option<&'n str> {
        match self {
            Self::Node(node) => match (&node.loose, &node.value) {
                (Some(text), _) | (None, Value::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Defines the `deserialize_*` methods of types for which a placeholder returns a value of its own.
macro_rules! plain {
    ($value:ident $visit:ident: $($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.resolved() {
                input @ Self::Placeholder(value) => {
                    input.marked(value.$value().and_then(|value| visitor.$visit(value)))
                }
                input => input.deserialize_any(visitor),
            }
        }
    )*};
}

/// Defines the `deserialize_*` methods that also accept a string.
macro_rules! textual {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            let input = self.resolved();
            if let Self::Placeholder(value) = input {
                return input.marked(value.text(&visitor).and_then(|text| visitor.visit_str(text)));
            }
            match input.as_text() {
                Some(text) => visitor.visit_str(text),
                None => input.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Input<'_> {
    type Error = ReadError;

    plain! { boolean visit_bool: deserialize_bool }
    plain! { float visit_f64: deserialize_f32 deserialize_f64 }
    plain! {
        integer visit_u64:
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    textual! { deserialize_char deserialize_str deserialize_string }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let input = self.resolved();
        let node = match input {
            Self::Node(node) => node,
            Self::Placeholder(value) => {
                let any = value.any(&visitor);
                return input.marked(any.and_then(|any| match any {
                    Any::Text(text) => visitor.visit_str(&text),
                    Any::Integer(number) => visitor.visit_u64(number),
                    Any::Boolean(value) => visitor.visit_bool(value),
                    Any::Float(number) => visitor.visit_f64(number),
                    Any::Array => visitor.visit_seq(&mut Items::placeholders(value.nested()?, 0)),
                    Any::Table => visitor.visit_map(Pairs::placeholders(value.nested()?, &[])),
                }));
            }
            Self::Group(..) => return Err(de::Error::custom("a group of keys must be a struct")),
        };
        match &node.value {
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
            Value::Array(array) => Items::of(array).visit(visitor),
            Value::Table(table) => visitor.visit_map(Pairs::all(table)),
            Value::Placeholder(_) => Err(exhausted()),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self {
            Self::Placeholder(_) => visitor.visit_none(),
            Self::Node(Node {
                value: Value::Placeholder(placeholder),
                ..
            }) if !placeholder.other => visitor.visit_none(),
            Self::Node(_) => visitor.visit_some(self),
            Self::Group(..) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        match self {
            Self::Group(..) => self.deserialize_any(visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let input = self.resolved();
        let Self::Placeholder(value) = input else {
            return input.deserialize_any(visitor);
        };
        let items = value.elements().and_then(|elements| {
            let value = value.nested()?;
            Ok(Items::placeholders(value, elements))
        });
        input.marked(items.and_then(|mut items| visitor.visit_seq(&mut items)))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value> {
        let input = self.resolved();
        let Self::Placeholder(value) = input else {
            return input.deserialize_any(visitor);
        };
        value.store_example(|| "[…]".to_owned());
        let items = value
            .nested()
            .map(|value| Items::placeholders(value, length));
        input.marked(items.and_then(|mut items| visitor.visit_seq(&mut items)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let input = self.resolved();
        let Self::Placeholder(value) = input else {
            return input.deserialize_any(visitor);
        };
        value.store_example(|| "{…}".to_owned());
        let pairs = value.nested().map(|value| Pairs::placeholders(value, &[]));
        input.marked(pairs.and_then(|pairs| visitor.visit_map(pairs)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let input = self.resolved();
        let pairs = match input {
            Self::Node(Node {
                value: Value::Table(table),
                ..
            }) => Ok(Pairs::of_struct(table, fields)),
            Self::Node(_) => Err(ReadError::new(Fault::Type(
                (&visitor as &dyn Expected).to_string(),
            ))),
            Self::Placeholder(value) => {
                value.store_example(|| "{…}".to_owned());
                value
                    .nested()
                    .map(|value| Pairs::placeholders(value, fields))
            }
            Self::Group(table, keys) => {
                keys.borrow_mut().extend(fields);
                Ok(Pairs::only(table, fields))
            }
        };
        input.marked(pairs.and_then(|pairs| visitor.visit_map(pairs)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let input = self.resolved();
        let variant = match (input, input.as_text()) {
            (_, Some(text)) => Ok(Variant::Text(text)),
            (Self::Placeholder(value), _) => value
                .variant(variants)
                .and_then(|variant| Ok(Variant::Placeholder(variant, value.nested()?))),
            (Self::Node(node), _) => match &node.value {
                Value::Table(table) if table.entries.len() == 1 => {
                    Ok(Variant::Entry(&table.entries[0]))
                }
                _ => Err(ReadError::new(Fault::Type(format!(
                    "one of {}",
                    suggest::list(variants, 12)
                )))),
            },
            (Self::Group(..), _) => Err(de::Error::custom("a group of keys must be a struct")),
        };
        input.marked(variant.and_then(|variant| visitor.visit_enum(variant)))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct identifier }
}

/// The elements of an array.
struct Items<'n> {
    content: Elements<'n>,
    /// Index of the next element.
    next: usize,
}

#[derive(Clone, Copy)]
enum Elements<'n> {
    Written(&'n [Node]),
    /// This many placeholders.
    Placeholders(PlaceholderValue<'n>, usize),
}

impl<'n> Items<'n> {
    const fn of(array: &'n [Node]) -> Self {
        let content = Elements::Written(array);
        Self { content, next: 0 }
    }

    const fn placeholders(value: PlaceholderValue<'n>, length: usize) -> Self {
        let content = Elements::Placeholders(value, length);
        Self { content, next: 0 }
    }

    const fn len(&self) -> usize {
        match self.content {
            Elements::Written(array) => array.len(),
            Elements::Placeholders(_, length) => length,
        }
    }

    /// Reads all elements. An array with more elements than are read is an error.
    fn visit<'de, V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value> {
        let value = visitor.visit_seq(&mut self)?;
        if self.next < self.len() {
            let message = format!(
                "the array has {} elements, but {} are expected",
                self.len(),
                self.next
            );
            return Err(de::Error::custom(message));
        }
        Ok(value)
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let index = self.next;
        let input = match self.content {
            Elements::Written(array) => array.get(index).map(Input::Node),
            Elements::Placeholders(value, length) => {
                (index < length).then_some(Input::Placeholder(value))
            }
        };
        let Some(input) = input else {
            return Ok(None);
        };
        self.next += 1;
        seed.deserialize(input)
            .map(Some)
            .map_err(|error| error.below(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.len() - self.next)
    }
}

/// The keys of a table and their values.
struct Pairs<'n> {
    keys: Keys<'n>,
    /// What the key that was read last belongs to.
    value: Option<Pair<'n>>,
}

enum Keys<'n> {
    All(std::slice::Iter<'n, Entry>),
    /// The entries with these keys.
    Only(std::slice::Iter<'n, Entry>, &'static [&'static str]),
    Groups(Groups<'n>),
    Placeholders(PlaceholderValue<'n>, &'static [&'static str]),
}

#[derive(Clone, Copy)]
enum Pair<'n> {
    Written(&'n Entry),
    Group(&'static str),
    Placeholder(&'static str, PlaceholderValue<'n>),
}

impl<'n> Pair<'n> {
    const fn key(self) -> &'n str {
        match self {
            Self::Written(entry) => entry.key.as_str(),
            Self::Group(name) | Self::Placeholder(name, _) => name,
        }
    }

    /// Returns where an error of the key or the value is. Groups and placeholders have no place of their own.
    fn placed(self, error: ReadError) -> ReadError {
        match self {
            Self::Written(entry) => error.below(Step::Key(entry.key.clone())),
            Self::Group(_) | Self::Placeholder(..) => error,
        }
    }
}

impl<'n> Pairs<'n> {
    const fn new(keys: Keys<'n>) -> Self {
        Self { keys, value: None }
    }

    fn all(table: &'n Table) -> Self {
        Self::new(Keys::All(table.entries.iter()))
    }

    fn only(table: &'n Table, keys: &'static [&'static str]) -> Self {
        Self::new(Keys::Only(table.entries.iter(), keys))
    }

    fn of_struct(table: &'n Table, fields: &'static [&'static str]) -> Self {
        if fields.iter().any(|field| is_group(field)) {
            Self::new(Keys::Groups(Groups::new(table, fields)))
        } else {
            Self::all(table)
        }
    }

    const fn placeholders(value: PlaceholderValue<'n>, fields: &'static [&'static str]) -> Self {
        Self::new(Keys::Placeholders(value, fields))
    }

    fn next(&mut self) -> Result<Option<Pair<'n>>> {
        Ok(match &mut self.keys {
            Keys::All(entries) => entries.next().map(Pair::Written),
            Keys::Only(entries, keys) => {
                let own = entries.find(|entry| keys.contains(&entry.key.as_str()));
                own.map(Pair::Written)
            }
            Keys::Groups(groups) => groups.next()?.map(|next| match next {
                Next::Group(name) => Pair::Group(name),
                Next::Own(entry) => Pair::Written(entry),
            }),
            Keys::Placeholders(value, fields) => fields.split_first().map(|(first, rest)| {
                *fields = rest;
                Pair::Placeholder(first, *value)
            }),
        })
    }
}

impl<'de> MapAccess<'de> for Pairs<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.value = self.next()?;
        let Some(pair) = self.value else {
            return Ok(None);
        };
        seed.deserialize(de::value::StrDeserializer::new(pair.key()))
            .map(Some)
            .map_err(|error| pair.placed(error))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        let Some(pair) = self.value.take() else {
            return Err(de::Error::custom("the value was requested before its key"));
        };
        let grouped = RefCell::default();
        let input = match (pair, &self.keys) {
            (Pair::Written(entry), _) => Input::Node(&entry.node),
            (Pair::Placeholder(_, value), _) => Input::Placeholder(value),
            (Pair::Group(_), Keys::Groups(groups)) => Input::Group(groups.table(), &grouped),
            (Pair::Group(_), _) => return Err(exhausted()),
        };
        let value = seed.deserialize(input).map_err(|error| pair.placed(error));
        if let Keys::Groups(groups) = &mut self.keys {
            groups.add(grouped.take());
        }
        value
    }
}

/// A variant of an enum, with its content.
#[derive(Clone, Copy)]
enum Variant<'n> {
    /// The name of a variant without content.
    Text(&'n str),
    /// A table with one key: `{ name = content }`.
    Entry(&'n Entry),
    Placeholder(&'static str, PlaceholderValue<'n>),
}

impl<'n> Variant<'n> {
    const fn name(self) -> &'n str {
        match self {
            Self::Text(name) | Self::Placeholder(name, _) => name,
            Self::Entry(entry) => entry.key.as_str(),
        }
    }

    fn placed(self, error: ReadError) -> ReadError {
        match self {
            Self::Entry(entry) => error.below(Step::Key(entry.key.clone())),
            Self::Text(_) | Self::Placeholder(..) => error,
        }
    }

    /// Returns the content, which is a `what`.
    fn content(self, what: &str) -> Result<Input<'n>> {
        match self {
            Self::Text(_) => Err(de::Error::invalid_type(Unexpected::UnitVariant, &what)),
            Self::Entry(entry) => Ok(Input::Node(&entry.node)),
            Self::Placeholder(_, value) => Ok(Input::Placeholder(value)),
        }
    }
}

impl<'de, 'n> EnumAccess<'de> for Variant<'n> {
    type Error = ReadError;
    type Variant = Variant<'n>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self)> {
        let value = seed.deserialize(de::value::StrDeserializer::new(self.name()));
        Ok((value.map_err(|error| self.placed(error))?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<()> {
        match self {
            Self::Entry(entry) if !matches!(&entry.node.value, Value::Table(table) if table.entries.is_empty()) => {
                Err(self.placed(ReadError::new(Fault::Type("an empty table".to_owned()))))
            }
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.content("newtype variant")?)
            .map_err(|error| self.placed(error))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value> {
        de::Deserializer::deserialize_tuple(self.content("tuple variant")?, length, visitor)
            .map_err(|error| self.placed(error))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        de::Deserializer::deserialize_struct(self.content("struct variant")?, "", fields, visitor)
            .map_err(|error| self.placed(error))
    }
}
