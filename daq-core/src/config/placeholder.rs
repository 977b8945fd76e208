//! Placeholder values of any requested type. They replace missing and wrong values, so that reading continues and finds
//! further errors. The placeholder values are discarded afterwards.

use super::fault::{Fault, ReadError};
use super::tree::Placeholder;
use serde::de::Expected;

/// Placeholder values, tried one after the other.
struct Values {
    /// Strings that common types accept: names, numbers, quantities and addresses.
    texts: [&'static str; 10],
    /// Integers, chosen so that most range checks accept at least one of them.
    integers: [u64; 9],
    floats: [f64; 6],
    booleans: [bool; 2],
}

const FIRST: Values = Values {
    texts: [
        "a",
        "1",
        "1 B",
        "1 s",
        "1 bit/s",
        "1 Hz",
        "127.0.0.1:1",
        "127.0.0.1",
        "::1",
        "host",
    ],
    integers: [1, 0, 2, 3, 8, 64, 100, 1024, 65536],
    floats: [1.0, 0.0, 0.5, 2.0, 100.0, 1e6],
    booleans: [true, false],
};

/// A second set of placeholder values. An error that appears with both sets does not depend on the placeholders.
const SECOND: Values = Values {
    texts: [
        "b",
        "7",
        "1 GiB",
        "1 h",
        "1 Gbit/s",
        "1 GHz",
        "10.9.8.7:65000",
        "10.9.8.7",
        "fd00::7",
        "cuda:0",
    ],
    integers: [7, 4, 48, 1000, 4096, 60_000, 5, 9, 1_000_000],
    floats: [0.25, 3.0, 7.5, -1.0, 1000.0, 1e-3],
    booleans: [false, true],
};

/// Maximum nesting depth, which stops the expansion of recursive types.
const MAX_DEPTH: usize = 16;

/// A value of any type.
pub(super) enum Any {
    Text(String),
    Integer(u64),
    Boolean(bool),
    Float(f64),
    Array,
    Table,
}

/// A placeholder that is being read, or a value nested in it.
#[derive(Clone, Copy)]
pub(super) struct PlaceholderValue<'p> {
    placeholder: &'p Placeholder,
    depth: usize,
}

impl<'p> PlaceholderValue<'p> {
    pub(super) const fn new(placeholder: &'p Placeholder) -> Self {
        Self {
            placeholder,
            depth: 0,
        }
    }

    /// Returns whether this is the placeholder itself, not a value nested in it.
    pub(super) const fn is_outermost(self) -> bool {
        self.depth == 0
    }

    pub(super) fn nested(self) -> Result<Self, ReadError> {
        if self.depth == MAX_DEPTH {
            return Err(exhausted());
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }

    /// Stores an example of the requested type, unless this is a nested value or an example was stored before.
    pub(super) fn store_example(self, example: impl FnOnce() -> String) {
        if self.depth == 0 {
            self.placeholder
                .example
                .borrow_mut()
                .get_or_insert_with(example);
        }
    }

    const fn values(self) -> &'static Values {
        if self.placeholder.other {
            &SECOND
        } else {
            &FIRST
        }
    }

    /// Returns the value of a list for the current attempt.
    fn of<T: Copy>(self, values: &[T], example: &str) -> Result<T, ReadError> {
        self.store_example(|| example.to_owned());
        let value = values.get(self.placeholder.attempt).copied();
        value.ok_or_else(exhausted)
    }

    pub(super) fn boolean(self) -> Result<bool, ReadError> {
        self.of(&self.values().booleans, "true")
    }

    pub(super) fn float(self) -> Result<f64, ReadError> {
        self.of(&self.values().floats, "1.0")
    }

    pub(super) fn integer(self) -> Result<u64, ReadError> {
        self.of(&self.values().integers, "1")
    }

    /// Returns a text for a type that expects `expected`.
    pub(super) fn text(self, expected: &dyn Expected) -> Result<&'static str, ReadError> {
        self.store_example(|| text_example(expected));
        let text = self.values().texts.get(self.placeholder.attempt).copied();
        text.ok_or_else(exhausted)
    }

    /// Returns the number of elements of an array. Each attempt returns a different number, because some types require a
    /// certain number.
    pub(super) fn elements(self) -> Result<usize, ReadError> {
        self.store_example(|| "[…]".to_owned());
        let elements = self.placeholder.attempt + usize::from(self.placeholder.other);
        if elements > 2 {
            return Err(exhausted());
        }
        Ok(elements)
    }

    /// Returns one of the variants of an enum.
    pub(super) fn variant(
        self,
        variants: &'static [&'static str],
    ) -> Result<&'static str, ReadError> {
        let attempt = self.placeholder.attempt;
        let index = if self.placeholder.other {
            variants.len().checked_sub(attempt + 1)
        } else {
            Some(attempt)
        };
        let variant = index.and_then(|index| variants.get(index)).copied();
        let variant = variant.ok_or_else(exhausted)?;
        self.store_example(|| format!("{variant:?}"));
        Ok(variant)
    }

    /// Returns a value for a type that accepts several types, and expects `expected`.
    pub(super) fn any(self, expected: &dyn Expected) -> Result<Any, ReadError> {
        let attempt = self.placeholder.attempt;
        self.store_example(|| text_example(expected));
        let Values {
            texts,
            integers,
            floats,
            booleans,
        } = self.values();
        let text = |i: usize| Any::Text(texts[i].to_owned());
        Ok(match attempt {
            0 => quoted(expected)
                .filter(|_| !self.placeholder.other)
                .map_or_else(|| text(0), Any::Text),
            _ if attempt < texts.len() => text(attempt),
            _ => match attempt - texts.len() {
                0 => Any::Integer(integers[0]),
                1 => Any::Boolean(booleans[0]),
                2 => Any::Float(floats[0]),
                3 => Any::Array,
                4 => Any::Table,
                _ => return Err(exhausted()),
            },
        })
    }
}

pub(super) fn exhausted() -> ReadError {
    ReadError::new(Fault::Custom("no placeholder values are left".to_owned()))
}

/// Returns the text between the first two double quotes of a type's description of its expected value.
fn quoted(expected: &dyn Expected) -> Option<String> {
    let text = expected.to_string();
    text.split('"').nth(1).map(str::to_owned)
}

/// Returns an example string, based on a type's description of its expected value.
fn text_example(expected: &dyn Expected) -> String {
    if let Some(example) = quoted(expected) {
        return format!("{example:?}");
    }
    match expected.to_string().as_str() {
        "socket address" | "IPv4 socket address" => "\"127.0.0.1:4950\"".to_owned(),
        "IPv6 socket address" => "\"[::1]:4950\"".to_owned(),
        "IP address" | "IPv4 address" => "\"127.0.0.1\"".to_owned(),
        "IPv6 address" => "\"::1\"".to_owned(),
        "path string" => "\"path/to/it\"".to_owned(),
        _ => "\"…\"".to_owned(),
    }
}
