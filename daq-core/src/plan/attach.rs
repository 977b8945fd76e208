//! The key `attach` of rings: what other processes may do.

use crate::units::Span;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Maximum number of guaranteed readers in other processes that a ring has at a time.
pub const MAX_GUARANTEED_PROCESSES: usize = 8;

/// Which users may attach to the rings of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachAccess {
    /// Group whose members may attach, such as `"daq"`. The user who runs the pipeline must be a member, and the group must
    /// be able to enter the state directory. Default: no group.
    pub group: Option<String>,
}

/// How readers in other processes of the same user may attach to a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(rename = "RingAttach")]
#[serde(deny_unknown_fields, default)]
pub struct Attach {
    /// Whether these readers may request a guarantee, so that the producer waits for them. At most 8 readers per ring can
    /// have a guarantee.
    pub guarantee: bool,
    /// Maximum time for which a reader with a guarantee may hold a frame. Then daq revokes the reader.
    pub hold: Span,
}

impl Default for Attach {
    fn default() -> Self {
        Self {
            guarantee: false,
            hold: Span(Duration::from_secs(2)),
        }
    }
}

/// The value of a ring's `attach` key; `None` if other processes cannot read the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachKey(pub Option<Attach>);

impl Default for AttachKey {
    fn default() -> Self {
        Self(Some(Attach::default()))
    }
}

impl<'de> Deserialize<'de> for AttachKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = AttachKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or a table such as { guarantee = true, hold = \"2 s\" }")
            }

            fn visit_bool<E>(self, is_allowed: bool) -> Result<AttachKey, E> {
                Ok(AttachKey(is_allowed.then(Attach::default)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AttachKey, A::Error> {
                let attach = Attach::deserialize(MapAccessDeserializer::new(map))?;
                if attach.hold.0.is_zero() {
                    return Err(A::Error::custom("`hold` must be longer than zero"));
                }
                Ok(AttachKey(Some(attach)))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for AttachKey {
    fn schema_name() -> Cow<'static, str> {
        "RingAttachKey".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = generator.subschema_for::<Attach>();
        schemars::json_schema!({ "anyOf": [{ "type": "boolean" }, table] })
    }
}
