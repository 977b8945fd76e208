//! Configuration keys that accept one value or an array of values.

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// One or several values of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> List<T> {
    /// Returns the values of `list`, or an empty slice if the key is absent.
    pub fn or_none(list: Option<&Self>) -> &[T] {
        list.map_or(&[], |list| &list.0)
    }
}

/// A value of a key that accepts one value or several values. The value is written as a string.
pub trait Listed: FromStr<Err: fmt::Display> {
    /// Name of the list in the schema.
    const NAME: &'static str;
    /// Description of a value, with an example.
    const WHAT: &'static str;
    /// Example values for the schema.
    const EXAMPLES: [&'static str; 2];
}

impl Listed for SocketAddr {
    const NAME: &'static str = "Listen";
    const WHAT: &'static str = "an address and a port such as \"0.0.0.0:4950\"";
    const EXAMPLES: [&'static str; 2] = ["0.0.0.0:4950", "[::]:4950"];
}

impl Listed for PathBuf {
    const NAME: &'static str = "Paths";
    const WHAT: &'static str = "a path such as \"recording.pcap\"";
    const EXAMPLES: [&'static str; 2] = ["recording.pcap", "recordings/"];
}

/// One element of an array, parsed separately so that an error points at it.
struct Element<T>(T);

struct Reader<T>(PhantomData<T>);

impl<'de, T: Listed> Visitor<'de> for Reader<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or an array of such values", T::WHAT)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<List<T>, E> {
        text.parse()
            .map(|value| List(vec![value]))
            .map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(Element(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(List(values))
    }
}

impl<'de, T: Listed> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl<'de, T: Listed> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

impl<T: Listed> JsonSchema for List<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }],
            "examples": T::EXAMPLES,
        })
    }
}
