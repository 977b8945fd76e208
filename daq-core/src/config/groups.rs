//! Groups of keys: keys that several components share, in one struct per group.
//!
//! A field whose serde name begins with `..` is a struct whose keys are written in the same table as the keys of the
//! struct that contains the field:
//!
//! ```text
//! #[serde(rename = "..socket_keys")]
//! #[schemars(flatten)]
//! socket_keys: SocketKeys,
//! ```
//! The keys of a group must have defaults, because a missing key would be found before a misspelt one.
//!
//! Serde's own `flatten` copies values before it reads them, so errors lose their locations.

use super::de::{Fault, Pairs, ReadError};
use super::tree::{Step, Table};
use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Returns whether a field of this name is a group.
pub(super) fn is_group(field: &str) -> bool {
    field.starts_with("..")
}

/// The keys of a table that a struct with groups reads: first each group, then the struct's own keys.
pub(super) struct Groups<'n> {
    table: &'n Table,
    fields: &'static [&'static str],
    /// Number of fields that were checked for groups.
    checked: usize,
    /// The keys of the groups.
    grouped: Vec<&'static str>,
    own: Pairs<'n>,
    reads_group: bool,
}

impl<'n> Groups<'n> {
    pub(super) fn new(table: &'n Table, fields: &'static [&'static str]) -> Self {
        Self {
            table,
            fields,
            checked: 0,
            grouped: Vec::new(),
            own: Pairs::new(table),
            reads_group: false,
        }
    }

    fn next_group(&mut self) -> Option<&'static str> {
        let left = &self.fields[self.checked..];
        let next = left.iter().position(|field| is_group(field))?;
        self.checked += next + 1;
        Some(left[next])
    }

    fn own_fields(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().copied().filter(|field| !is_group(field))
    }
}

impl<'de> MapAccess<'de> for Groups<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        if let Some(group) = self.next_group() {
            self.reads_group = true;
            let key = de::value::StrDeserializer::new(group);
            return seed.deserialize(key).map(Some);
        }
        self.reads_group = false;
        while let Some(entry) = self.own.entries.as_slice().first() {
            let key = entry.key.as_str();
            if self.own_fields().any(|field| field == key) {
                return self.own.next_key_seed(seed);
            }
            if !self.grouped.contains(&key) {
                let known = self.own_fields().chain(self.grouped.iter().copied());
                let fault = Fault::UnknownKey(known.collect());
                return Err(ReadError::new(fault).below(Step::Key(key.to_owned())));
            }
            self.own.entries.next();
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        if self.reads_group {
            return seed.deserialize(Group {
                table: self.table,
                keys: &mut self.grouped,
            });
        }
        self.own.next_value_seed(seed)
    }
}

/// The keys of a table that one group reads.
struct Group<'n, 'g> {
    table: &'n Table,
    /// The keys of the group are appended to this list.
    keys: &'g mut Vec<&'static str>,
}

impl<'de> de::Deserializer<'de> for Group<'_, '_> {
    type Error = ReadError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.keys.extend(fields);
        visitor.visit_map(Pairs::only(self.table, fields))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ReadError> {
        Err(de::Error::custom("a group of keys must be a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
