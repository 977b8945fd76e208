//! Errors of a node that cannot be read into a type.

use super::tree::Step;
use serde::de::{self, Expected, Unexpected};
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
