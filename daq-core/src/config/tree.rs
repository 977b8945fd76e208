//! A tree of configuration values, each with its location. Unlike the tables of the `toml` crate, the tree owns its
//! text and keeps the order of the files.

use super::source_map::Span;
use std::cell::RefCell;
use toml::de::{DeString, DeTable, DeValue};

/// Maximum nesting depth. Useful configurations are less deep, and this depth does not overflow the stack in recursion.
const DEPTH: usize = 40;

/// A value and its location.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Location of the value; for a table with a header, the location of the header.
    pub(crate) span: Span,
    pub(crate) value: Value,
    /// The original text of an override, used if the configuration type expects a string.
    pub(crate) loose: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    String(String),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    /// A date or time, as the text that was written.
    Datetime(String),
    Array(Vec<Node>),
    Table(Table),
    /// Replaces a value that is missing or wrong, so that reading can continue and find further errors.
    Placeholder(Placeholder),
}

/// State of a placeholder: which value it returns, and an example value recorded while it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placeholder {
    /// Index of the placeholder value to try.
    pub(crate) attempt: usize,
    /// Whether to use the second set of placeholder values.
    pub(crate) other: bool,
    /// A valid value, as written in TOML.
    pub(crate) example: RefCell<Option<String>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) node: Node,
}

/// A table of keys and values in the order of the text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
}

impl Node {
    pub(crate) fn new(span: Span, value: Value) -> Self {
        Self {
            span,
            value,
            loose: None,
        }
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(crate) fn table_mut(&mut self) -> Option<&mut Table> {
        match &mut self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the node at `path` below this node.
    pub(crate) fn descend(&self, path: &[Step]) -> Option<&Self> {
        path.iter()
            .try_fold(self, |node, step| match (&node.value, step) {
                (Value::Table(table), Step::Key(key)) => table.get(key).map(|entry| &entry.node),
                (Value::Array(array), Step::Index(index)) => array.get(*index),
                _ => None,
            })
    }

    /// Returns the node at `path` below this node.
    pub(crate) fn descend_mut(&mut self, path: &[Step]) -> Option<&mut Self> {
        path.iter()
            .try_fold(self, |node, step| match (&mut node.value, step) {
                (Value::Table(table), Step::Key(key)) => {
                    table.get_mut(key).map(|entry| &mut entry.node)
                }
                (Value::Array(array), Step::Index(index)) => array.get_mut(*index),
                _ => None,
            })
    }

    /// Whether this node is a placeholder or contains a placeholder.
    pub(crate) fn has_placeholder(&self) -> bool {
        match &self.value {
            Value::Placeholder(_) => true,
            Value::Array(array) => array.iter().any(Self::has_placeholder),
            Value::Table(table) => table
                .entries
                .iter()
                .any(|entry| entry.node.has_placeholder()),
            _ => false,
        }
    }

    /// Calls `change` on every placeholder.
    pub(crate) fn each_placeholder(&mut self, change: &mut impl FnMut(&mut Placeholder)) {
        match &mut self.value {
            Value::Placeholder(placeholder) => change(placeholder),
            Value::Array(array) => array
                .iter_mut()
                .for_each(|node| node.each_placeholder(change)),
            Value::Table(table) => table
                .entries
                .iter_mut()
                .for_each(|entry| entry.node.each_placeholder(change)),
            _ => {}
        }
    }

    /// Calls `change` on every string and its location.
    pub(crate) fn each_string(&mut self, change: &mut impl FnMut(&mut String, Span)) {
        match &mut self.value {
            Value::String(text) => {
                let before = text.clone();
                change(text, self.span);
                if *text != before {
                    self.loose = None;
                }
            }
            Value::Array(array) => array.iter_mut().for_each(|node| node.each_string(change)),
            Value::Table(table) => table
                .entries
                .iter_mut()
                .for_each(|entry| entry.node.each_string(change)),
            _ => {}
        }
    }

    /// Returns the name of the value's type with its article, such as "an integer".
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a number with a decimal point",
            Value::Boolean(_) => "a boolean",
            Value::Datetime(_) => "a date or time",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
            Value::Placeholder(_) => "missing",
        }
    }
}

/// One step of a path from a node to a node inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(index))
    }

    pub(crate) fn keys(&self) -> Vec<&str> {
        self.entries
            .iter()
            .map(|entry| entry.key.as_str())
            .collect()
    }
}

/// A valid TOML value that this tree cannot represent.
pub(crate) struct Unfit {
    pub(crate) span: Span,
    pub(crate) message: String,
}

/// Converts a table of the `toml` crate and adds `base` to every location.
pub(crate) fn from_table(table: DeTable<'_>, base: usize, unfit: &mut Vec<Unfit>) -> Table {
    convert_table(table, base, 0, unfit)
}

/// Converts a value of the `toml` crate and adds `base` to every location.
pub(crate) fn from_value(
    value: toml::Spanned<DeValue<'_>>,
    base: usize,
    unfit: &mut Vec<Unfit>,
) -> Node {
    let span = shift(value.span(), base);
    convert(value.into_inner(), span, base, 0, unfit)
}

fn shift(range: std::ops::Range<usize>, base: usize) -> Span {
    Span::new(range.start + base, range.end + base)
}

fn convert_table(table: DeTable<'_>, base: usize, depth: usize, unfit: &mut Vec<Unfit>) -> Table {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| {
            let span = shift(value.span(), base);
            Entry {
                key_span: shift(key.span(), base),
                key: DeString::into_owned(key.into_inner()),
                node: convert(value.into_inner(), span, base, depth + 1, unfit),
            }
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span);
    Table { entries }
}

fn convert(
    value: DeValue<'_>,
    span: Span,
    base: usize,
    depth: usize,
    unfit: &mut Vec<Unfit>,
) -> Node {
    let value = match value {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => {
            let read = i128::from_str_radix(number.as_str(), number.radix());
            Value::Integer(read.unwrap_or_else(|_| {
                let message = format!("the integer {number} is too large");
                unfit.push(Unfit { span, message });
                0
            }))
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Datetime(time) => Value::Datetime(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) if depth > DEPTH => {
            let message = format!("tables and arrays are nested deeper than {DEPTH} levels");
            unfit.push(Unfit { span, message });
            Value::Boolean(false)
        }
        DeValue::Array(array) => Value::Array(
            array
                .into_iter()
                .map(|value| {
                    let span = shift(value.span(), base);
                    convert(value.into_inner(), span, base, depth + 1, unfit)
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, base, depth, unfit)),
    };
    Node::new(span, value)
}
