//! Placeholder values of any requested type. They replace missing and wrong values, so that reading continues and finds
//! further errors. The placeholder values are discarded afterwards.

use super::de::{Fault, ReadError};
use super::tree::Placeholder;
use serde::de::{
    self, DeserializeSeed, EnumAccess, Expected, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

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

/// A deserializer that returns a placeholder value of the requested type.
#[derive(Clone, Copy)]
pub(super) struct PlaceholderDeserializer<'p> {
    placeholder: &'p Placeholder,
    depth: usize,
}

impl<'p> PlaceholderDeserializer<'p> {
    pub(super) fn new(placeholder: &'p Placeholder) -> Self {
        Self {
            placeholder,
            depth: 0,
        }
    }

    fn nested(self) -> Result<Self, ReadError> {
        if self.depth == MAX_DEPTH {
            return Err(exhausted());
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }

    /// Stores an example of the requested type, unless this is a nested value or an example was stored before.
    fn store_example(self, example: impl FnOnce() -> String) {
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

    fn text(self) -> Option<&'static str> {
        self.values().texts.get(self.placeholder.attempt).copied()
    }
}

fn exhausted() -> ReadError {
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

/// Defines `deserialize_*` methods that return the list element with the index of the current attempt.
macro_rules! plain {
    ($values:ident $visit:ident $example:literal: $($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            self.store_example(|| $example.to_owned());
            let values = &self.values().$values;
            let value = values.get(self.placeholder.attempt).ok_or_else(exhausted)?;
            visitor.$visit(*value)
        }
    )*};
}

macro_rules! textual {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
            self.store_example(|| text_example(&visitor));
            visitor.visit_str(self.text().ok_or_else(exhausted)?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for PlaceholderDeserializer<'_> {
    type Error = ReadError;

    plain! { booleans visit_bool "true": deserialize_bool }
    plain! { floats visit_f64 "1.0": deserialize_f32 deserialize_f64 }
    plain! {
        integers visit_u64 "1":
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    textual! { deserialize_char deserialize_str deserialize_string }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let attempt = self.placeholder.attempt;
        self.store_example(|| text_example(&visitor));
        let Values {
            texts,
            integers,
            floats,
            booleans,
        } = self.values();
        match attempt {
            0 => match quoted(&visitor).filter(|_| !self.placeholder.other) {
                Some(text) => visitor.visit_str(&text),
                None => visitor.visit_str(texts[0]),
            },
            _ if attempt < texts.len() => visitor.visit_str(texts[attempt]),
            _ => match attempt - texts.len() {
                0 => visitor.visit_u64(integers[0]),
                1 => visitor.visit_bool(booleans[0]),
                2 => visitor.visit_f64(floats[0]),
                3 => visitor.visit_seq(Elements {
                    deserializer: self.nested()?,
                    left: 0,
                }),
                4 => visitor.visit_map(Elements {
                    deserializer: self.nested()?,
                    left: 0,
                }),
                _ => Err(exhausted()),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_none()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.store_example(|| "[…]".to_owned());
        // Each attempt returns a different number of elements, because some types require a certain number.
        let left = self.placeholder.attempt + usize::from(self.placeholder.other);
        if left > 2 {
            return Err(exhausted());
        }
        visitor.visit_seq(Elements {
            deserializer: self.nested()?,
            left,
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.store_example(|| "[…]".to_owned());
        visitor.visit_seq(Elements {
            deserializer: self.nested()?,
            left: length,
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.store_example(|| "{…}".to_owned());
        visitor.visit_map(Elements {
            deserializer: self.nested()?,
            left: 0,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        self.store_example(|| "{…}".to_owned());
        visitor.visit_map(Fields {
            deserializer: self.nested()?,
            fields,
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let attempt = self.placeholder.attempt;
        let index = if self.placeholder.other {
            variants.len().checked_sub(attempt + 1)
        } else {
            Some(attempt)
        };
        let variant = index
            .and_then(|index| variants.get(index))
            .ok_or_else(exhausted)?;
        self.store_example(|| format!("{variant:?}"));
        visitor.visit_enum(Chosen {
            deserializer: self.nested()?,
            variant,
        })
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct identifier ignored_any }
}

/// A sequence of placeholder elements, or an empty map.
struct Elements<'p> {
    deserializer: PlaceholderDeserializer<'p>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(self.deserializer).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        _: K,
    ) -> Result<Option<K::Value>, ReadError> {
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, _: V) -> Result<V::Value, ReadError> {
        Err(exhausted())
    }
}

struct Fields<'p> {
    deserializer: PlaceholderDeserializer<'p>,
    fields: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        let Some((first, rest)) = self.fields.split_first() else {
            return Ok(None);
        };
        self.fields = rest;
        seed.deserialize(de::value::StrDeserializer::new(first))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        seed.deserialize(self.deserializer)
    }
}

struct Chosen<'p> {
    deserializer: PlaceholderDeserializer<'p>,
    variant: &'static str,
}

impl<'p, 'de> EnumAccess<'de> for Chosen<'p> {
    type Error = ReadError;
    type Variant = PlaceholderDeserializer<'p>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, PlaceholderDeserializer<'p>), ReadError> {
        let value = seed.deserialize(de::value::StrDeserializer::<ReadError>::new(self.variant))?;
        Ok((value, self.deserializer))
    }
}

impl<'de> VariantAccess<'de> for PlaceholderDeserializer<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        de::Deserializer::deserialize_tuple(self, length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        de::Deserializer::deserialize_struct(self, "", fields, visitor)
    }
}
