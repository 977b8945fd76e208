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

use super::fault::{Fault, ReadError};
use super::tree::{Entry, Step, Table};

/// Returns whether a field of this name is a group.
pub(super) fn is_group(field: &str) -> bool {
    field.starts_with("..")
}

/// What a struct with groups reads next.
pub(super) enum Next<'n> {
    /// The keys of the group with this name.
    Group(&'static str),
    /// A key of the struct itself.
    Own(&'n Entry),
}

/// The keys of a table that a struct with groups reads: first each group, then the struct's own keys.
pub(super) struct Groups<'n> {
    table: &'n Table,
    fields: &'static [&'static str],
    /// Number of fields that were checked for groups.
    checked: usize,
    /// The keys of the groups.
    grouped: Vec<&'static str>,
    own: std::slice::Iter<'n, Entry>,
}

impl<'n> Groups<'n> {
    pub(super) fn new(table: &'n Table, fields: &'static [&'static str]) -> Self {
        Self {
            table,
            fields,
            checked: 0,
            grouped: Vec::new(),
            own: table.entries.iter(),
        }
    }

    pub(super) const fn table(&self) -> &'n Table {
        self.table
    }

    /// Adds the keys of a group that was read.
    pub(super) fn add(&mut self, keys: Vec<&'static str>) {
        self.grouped.extend(keys);
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

    /// Returns what is read next; the error for a key that neither the struct nor a group has.
    pub(super) fn next(&mut self) -> Result<Option<Next<'n>>, ReadError> {
        if let Some(group) = self.next_group() {
            return Ok(Some(Next::Group(group)));
        }
        while let Some(entry) = self.own.next() {
            let key = entry.key.as_str();
            if self.own_fields().any(|field| field == key) {
                return Ok(Some(Next::Own(entry)));
            }
            if !self.grouped.contains(&key) {
                let known = self.own_fields().chain(self.grouped.iter().copied());
                let fault = Fault::UnknownKey(known.collect());
                return Err(ReadError::new(fault).below(Step::Key(key.to_owned())));
            }
        }
        Ok(None)
    }
}
