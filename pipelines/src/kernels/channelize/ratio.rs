//! Oversampling ratios.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;

/// Maximum ratio.
const MAX: u32 = 64;

/// The ratio of the output rate of a channel to the distance between two channels, such as 32/27.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    numerator: u32,
    denominator: u32,
}

impl Ratio {
    /// Critical sampling.
    pub const ONE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// Returns a ratio from 1 to 64; `None` for other ratios.
    ///
    /// ```
    /// use daq_pipelines::kernels::channelize::Ratio;
    /// assert!(Ratio::new(32, 27).is_some() && Ratio::new(27, 32).is_none());
    /// ```
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        if denominator == 0 || numerator < denominator || numerator / denominator > MAX {
            return None;
        }
        Some(Self {
            numerator,
            denominator,
        })
    }

    /// Returns `size` divided by the ratio; `None` if this is not an integer.
    pub(super) const fn divide(self, size: usize) -> Option<usize> {
        let Some(product) = size.checked_mul(self.denominator as usize) else {
            return None;
        };
        if product == 0 || !product.is_multiple_of(self.numerator as usize) {
            return None;
        }
        Some(product / self.numerator as usize)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fraction;
        impl Visitor<'_> for Fraction {
            type Value = Ratio;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a fraction from \"1\" to \"64\", such as \"32/27\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ratio, E> {
                let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
                match (numerator.trim().parse(), denominator.trim().parse()) {
                    (Ok(numerator), Ok(denominator)) => Ratio::new(numerator, denominator),
                    _ => None,
                }
                .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ratio, E> {
                let ratio = u32::try_from(value).ok().and_then(|n| Ratio::new(n, 1));
                ratio.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Ratio, E> {
                let ratio = u32::try_from(value).ok().and_then(|n| Ratio::new(n, 1));
                ratio.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
        }
        deserializer.deserialize_any(Fraction)
    }
}

impl JsonSchema for Ratio {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Ratio".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "pattern": "^\\s*[0-9]+\\s*(/\\s*[0-9]+\\s*)?$" },
                { "type": "integer", "minimum": 1, "maximum": 64 }
            ]
        })
    }
}
