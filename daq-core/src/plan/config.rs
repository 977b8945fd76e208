//! The typed configuration: sections taken apart by their owners, not yet related to each other.

use crate::config::{Diagnostic, Diagnostics, Document, Section};
use crate::entry::Registry;
use crate::entry::SourceSpec;
use crate::kernel::KernelSpec;
use crate::region::Placement;
use crate::ring::Fill;
use crate::sink::SinkSpec;
use crate::units::ByteSize;
use crate::wait::Wait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Where a ring should lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// The first GPU, host memory where there is none.
    #[default]
    Auto,
    /// Here.
    At(Placement),
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::At(Placement::Host)),
            other => other
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(|ordinal| Self::At(Placement::Cuda(ordinal)))
                .ok_or_else(|| {
                    D::Error::custom(format!(
                        "\"{text}\" is no memory: \"auto\", \"host\" or \"cuda:0\""
                    ))
                }),
        }
    }
}

impl JsonSchema for Memory {
    fn schema_name() -> Cow<'static, str> {
        "Memory".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^(auto|host|cuda:[0-9]+)$" })
    }
}

/// What missing places show, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillKey(pub Fill);

impl<'de> Deserialize<'de> for FillKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = FillKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"zero\", \"nan\" or a byte from 0 to 255")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<FillKey, E> {
                match text {
                    "zero" => Ok(FillKey(Fill::ZERO)),
                    "nan" => Ok(FillKey(Fill::nan())),
                    _ => Err(E::custom(format!(
                        "\"{text}\" is no fill: \"zero\", \"nan\" or a byte from 0 to 255"
                    ))),
                }
            }

            fn visit_i64<E: Error>(self, byte: i64) -> Result<FillKey, E> {
                u8::try_from(byte)
                    .map(|byte| FillKey(Fill::byte(byte)))
                    .map_err(|_| E::custom(format!("{byte} is no byte from 0 to 255")))
            }

            fn visit_u64<E: Error>(self, byte: u64) -> Result<FillKey, E> {
                u8::try_from(byte)
                    .map(|byte| FillKey(Fill::byte(byte)))
                    .map_err(|_| E::custom(format!("{byte} is no byte from 0 to 255")))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for FillKey {
    fn schema_name() -> Cow<'static, str> {
        "Fill".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "enum": ["zero", "nan"] }, { "type": "integer", "minimum": 0, "maximum": 255 }]
        })
    }
}

/// The keys of a `[ring.NAME]` section.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RingKeys {
    /// Where the ring lies: `"auto"` (the first GPU, host memory where there is none), `"host"`, `"cuda:0"`.
    pub memory: Memory,
    /// Payload bytes of a slot; without it, what the producer's frames need.
    pub slot: Option<ByteSize>,
    /// Slots, at least 2.
    pub slots: u32,
    /// What missing places show: `"zero"`, `"nan"` (of float32) or a byte.
    pub fill: FillKey,
    /// Preferred NUMA node; without it, the kernel's choice.
    pub node: Option<u32>,
    /// Lock the slots in memory, as far as the memlock limit allows.
    pub lock: bool,
    /// Use hugepages where they are to be had.
    pub huge: bool,
}

impl Default for RingKeys {
    fn default() -> Self {
        Self {
            memory: Memory::Auto,
            slot: None,
            slots: 64,
            fill: FillKey::default(),
            node: None,
            lock: true,
            huge: true,
        }
    }
}

/// The keys that every source has beside its driver's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceKeys {
    /// The ring that it fills.
    pub ring: String,
    /// How its thread waits for slots: `"adaptive"`, `"busy"` or `"event"`.
    #[serde(default)]
    pub wait: Wait,
}

/// The keys that every kernel has beside its own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelKeys {
    /// The ring that it reads.
    pub input: String,
    /// The ring that it fills.
    pub output: String,
    /// Whether frames wait for it (true), or it may be overrun and is told (false).
    #[serde(default = "yes")]
    pub guarantee: bool,
    /// How its thread waits: `"adaptive"`, `"busy"` or `"event"`.
    #[serde(default)]
    pub wait: Wait,
    /// The core that its thread runs on; without it, any.
    pub core: Option<usize>,
    /// Most frames taken at once, 1 to 4096.
    #[serde(default = "sixteen")]
    pub burst: u32,
}

/// The keys that every sink has beside its driver's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkKeys {
    /// The ring that it reads.
    pub input: String,
    /// Whether frames wait for it (true), or it may be overrun and is told (false). Decides as well what
    /// happens when its medium is full: wait for space, or drop frames and count them.
    #[serde(default = "yes")]
    pub guarantee: bool,
    /// How its thread waits: `"adaptive"`, `"busy"` or `"event"`.
    #[serde(default)]
    pub wait: Wait,
    /// The core that its thread runs on; without it, any.
    pub core: Option<usize>,
    /// Most frames taken at once, 1 to 4096.
    #[serde(default = "sixteen")]
    pub burst: u32,
}

const fn yes() -> bool {
    true
}

const fn sixteen() -> u32 {
    16
}

/// The keys of the `[daq]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DaqKeys {
    /// The pipeline's name in reports, metrics and the state directory; without it, the file's name.
    pub name: Option<String>,
}

/// A component's section with what its owner made of it.
pub struct Component<K, S: ?Sized> {
    /// The section, for places in messages.
    pub section: Section,
    /// The driver's or kernel's name.
    pub driver: String,
    /// The keys that the engine owns.
    pub keys: K,
    /// The rest.
    pub spec: Box<S>,
}

impl<K, S: ?Sized> Component<K, S> {
    /// The component's name.
    pub fn name(&self) -> &str {
        self.section.name()
    }
}

/// A ring's section.
pub struct RingSection {
    /// The section, for places in messages.
    pub section: Section,
    /// Its keys.
    pub keys: RingKeys,
}

/// A whole configuration.
pub struct Config {
    /// The pipeline's name.
    pub name: String,
    /// In file order.
    pub sources: Vec<Component<SourceKeys, dyn SourceSpec>>,
    /// In file order.
    pub rings: Vec<RingSection>,
    /// In file order.
    pub kernels: Vec<Component<KernelKeys, dyn KernelSpec>>,
    /// In file order.
    pub sinks: Vec<Component<SinkKeys, dyn SinkSpec>>,
    /// Rings filled by components that could not be read: nothing is known of them.
    pub unknown: Vec<String>,
    /// Rings that components name that could not be read: a name may be wrong too.
    pub mentions: Vec<Mention>,
}

/// A ring that a section names.
#[derive(Clone, Debug)]
pub struct Mention {
    /// The section.
    pub section: Section,
    /// The key that holds the name.
    pub key: &'static str,
    /// The name.
    pub ring: String,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the sections that make up the pipeline; every error is added to `diagnostics`, and what could
    /// not be read is left out.
    ///
    /// `name` is used where `[daq] name` is not given.
    pub fn read(
        document: &Document,
        registry: &Registry,
        name: &str,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let keys = match document.table("daq") {
            Some(mut table) => table.finish(&[], diagnostics).unwrap_or_default(),
            None => DaqKeys::default(),
        };
        let (mut unknown, mut mentions) = (Vec::new(), Vec::new());
        // A ring whose keys are wrong is declared all the same: whoever names it has made no mistake.
        let rings = document.sections("ring").into_iter().map(|mut section| {
            let keys = section.finish(&[], diagnostics).unwrap_or_default();
            RingSection { section, keys }
        });
        let rings = rings.collect();
        let sources = document
            .sections("source")
            .into_iter()
            .filter_map(|section| {
                let read = component(
                    section,
                    "driver",
                    registry.sources,
                    &["ring", "wait"],
                    diagnostics,
                );
                unknown.extend(read.mention(&mut mentions, "ring", |keys: &SourceKeys| &keys.ring));
                read.whole()
            });
        let sources = sources.collect();
        let keys_of_kernel = ["input", "output", "guarantee", "wait", "core", "burst"];
        let kernels = document
            .sections("kernel")
            .into_iter()
            .filter_map(|section| {
                let read = component(
                    section,
                    "use",
                    registry.kernels,
                    &keys_of_kernel,
                    diagnostics,
                );
                read.mention(&mut mentions, "input", |keys: &KernelKeys| &keys.input);
                unknown.extend(
                    read.mention(&mut mentions, "output", |keys: &KernelKeys| &keys.output),
                );
                read.whole()
            });
        let kernels = kernels.collect();
        let keys_of_sink = ["input", "guarantee", "wait", "core", "burst"];
        let sinks = document.sections("sink").into_iter().filter_map(|section| {
            let read = component(
                section,
                "driver",
                registry.sinks,
                &keys_of_sink,
                diagnostics,
            );
            read.mention(&mut mentions, "input", |keys: &SinkKeys| &keys.input);
            read.whole()
        });
        let sinks = sinks.collect();
        let name = keys.name.unwrap_or_else(|| name.to_owned());
        Self {
            name,
            sources,
            rings,
            kernels,
            sinks,
            unknown,
            mentions,
        }
    }
}

/// What could be read of a component.
struct Read<K, S: ?Sized> {
    section: Section,
    driver: Option<String>,
    keys: Option<K>,
    spec: Option<Box<S>>,
}

impl<K, S: ?Sized> Read<K, S> {
    fn whole(self) -> Option<Component<K, S>> {
        Some(Component {
            section: self.section,
            driver: self.driver?,
            keys: self.keys?,
            spec: self.spec?,
        })
    }

    /// The ring that it names at `key`, noted if the component is not whole.
    fn mention(
        &self,
        mentions: &mut Vec<Mention>,
        key: &'static str,
        ring: impl Fn(&K) -> &String,
    ) -> Option<String> {
        let keys = self.keys.as_ref().filter(|_| self.spec.is_none())?;
        let ring = ring(keys).clone();
        mentions.push(Mention {
            section: self.section.clone(),
            key,
            ring: ring.clone(),
        });
        Some(ring)
    }
}

fn component<K: serde::de::DeserializeOwned, S: ?Sized>(
    mut section: Section,
    tag: &str,
    entries: &'static [crate::entry::Entry<S>],
    keys: &[&str],
    diagnostics: &mut Diagnostics,
) -> Read<K, S> {
    let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    let driver = section
        .take_string(tag, &names, diagnostics)
        .map(|(driver, _)| driver);
    // The keys are read even if the driver is unknown, so that all errors are told at once.
    let keys = section.take(keys, diagnostics);
    let entry = entries
        .iter()
        .find(|entry| Some(entry.name) == driver.as_deref());
    let spec = entry.and_then(|entry| (entry.parse)(&mut section, diagnostics));
    Read {
        section,
        driver,
        keys,
        spec,
    }
}

/// An error at a key of a section.
pub(super) fn at(section: &Section, key: &str, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(message.into()).at(section.place_of(key))
}
