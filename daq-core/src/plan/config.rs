//! The typed configuration: sections taken apart by their owners, not yet related to each other.

use super::KnownKeys;
use crate::claim::Claim;
use crate::config::{Diagnostic, Diagnostics, Document, Problem, Section};
use crate::entry::{Entry, Registry, SourceSpec};
use crate::examine::NamedFile;
use crate::gpu::Backend;
use crate::gpu::Dispatch;
use crate::kernel::KernelSpec;
use crate::notify::Wait;
use crate::region::Placement;
use crate::ring::Fill;
use crate::sink::SinkSpec;
use crate::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The shortest silence of a source that can be an event.
const MIN_SILENCE: Duration = Duration::from_secs(1);

/// The kernel in the registry that `file` names in place of `use`.
pub const FILE_KERNEL: &str = "file";

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

/// Who rings the doorbell of a kernel that stays on its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DoorbellInitiator {
    /// The CPU, once frames are committed.
    #[default]
    Cpu,
    /// The device that writes the frames, with its last write.
    Device,
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

/// What a reader is given of frames with missing packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Incomplete {
    /// All frames; missing packets are filled and marked.
    #[default]
    Pass,
    /// None of them: they are counted as `dropped_incomplete`.
    Drop,
}

impl Incomplete {
    /// The name in configuration and plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
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
    /// How long no packet with data may arrive, such as `"10 s"`, before `/-/ready` fails and a line with a hint is logged;
    /// without it, silence is no event. Another line is logged when data arrives again.
    pub silent_after: Option<Span>,
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
    /// What it is given of frames with missing packets: `"pass"` (default), they are filled and marked, or `"drop"`, they
    /// are not handed to it and count as `dropped_incomplete`.
    #[serde(default)]
    pub incomplete: Incomplete,
    /// How its thread waits: `"adaptive"`, `"busy"` or `"event"`.
    #[serde(default)]
    pub wait: Wait,
    /// The core that its thread runs on; without it, any.
    pub core: Option<usize>,
    /// Most frames taken at once, 1 to 4096.
    #[serde(default = "sixteen")]
    pub burst: u32,
    /// How bursts reach it on a GPU: `"launch"` (one launch a burst) or `"persistent"` (the kernel stays there and
    /// waits for its doorbell; of kernels of your own in a `.cu` file); without it, `"launch"`.
    pub dispatch: Option<Dispatch>,
    /// Who rings the doorbell of a persistent kernel: `"cpu"`, or `"device"` (the one that writes the frames, where it
    /// can); without it, `"cpu"`.
    pub doorbell: Option<DoorbellInitiator>,
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
    /// What it is given of frames with missing packets: `"pass"` (default), they are filled and marked, or `"drop"`, they
    /// are not handed to it and count as `dropped_incomplete`.
    #[serde(default)]
    pub incomplete: Incomplete,
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

/// How the staging engine waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StagingWait {
    /// Poll without pause: least latency, one core spent a GPU and direction.
    Busy,
    /// Poll for a few microseconds, then sleep.
    #[default]
    Adaptive,
}

impl From<StagingWait> for Wait {
    fn from(wait: StagingWait) -> Self {
        match wait {
            StagingWait::Busy => Self::Busy,
            StagingWait::Adaptive => Self::Adaptive,
        }
    }
}

/// The keys of the `[staging]` table: copies between host memory and GPUs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StagingKeys {
    /// How its threads wait: `"adaptive"` or `"busy"`.
    pub wait: StagingWait,
    /// Most bytes of one copy; without it, what `daq tune` measured, or what is measured at the start.
    pub chunk: Option<ByteSize>,
    /// Most copies in flight at a time a direction, 1 to 16; without it, as measured.
    pub depth: Option<u32>,
    /// The cores that its threads run on, in turn; without them, any.
    pub cores: Vec<usize>,
    /// What may make GPU memory that the CPU stores to: any of `"gdrapi"` (GDRCopy's library), `"dma-buf"`, `"vulkan"`
    /// and `"host"` (host memory that the GPU reads, for doorbells alone), tried in this order; `[]` for none.
    pub backends: Vec<Backend>,
}

impl Default for StagingKeys {
    fn default() -> Self {
        Self {
            wait: StagingWait::default(),
            chunk: None,
            depth: None,
            cores: Vec::new(),
            backends: Backend::ALL.to_vec(),
        }
    }
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
    /// Its keys; defaults where they could not be read.
    pub keys: RingKeys,
    /// Whether they could.
    pub is_whole: bool,
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
    /// Of all sources, then kernels, then sinks, whether they could be read or not.
    pub known_keys: Vec<KnownKeys>,
    /// `[staging]`.
    pub staging: StagingKeys,
    /// Its table, for places in messages.
    pub staging_table: Option<Section>,
    /// Names of the kernels in the registry that `use` can name.
    pub built_in: Vec<&'static str>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// What sources and sinks take for themselves alone, each with the component's section.
    pub fn claims(&self) -> impl Iterator<Item = (&Section, Vec<Claim>)> {
        let sources = self.sources.iter();
        let sources = sources.map(|source| (&source.section, source.spec.claims()));
        let sinks = self.sinks.iter();
        sources.chain(sinks.map(|sink| (&sink.section, sink.spec.claims())))
    }

    /// The files and directories that components name, each with the component's section.
    pub fn files(&self) -> impl Iterator<Item = (&Section, NamedFile)> {
        fn of(
            section: &Section,
            files: Vec<NamedFile>,
        ) -> impl Iterator<Item = (&Section, NamedFile)> {
            files.into_iter().map(move |file| (section, file))
        }
        let sources = self.sources.iter();
        let sources = sources.flat_map(|source| of(&source.section, source.spec.files()));
        let kernels = self.kernels.iter();
        let kernels = kernels.flat_map(|kernel| of(&kernel.section, kernel.spec.files()));
        let sinks = self.sinks.iter();
        let sinks = sinks.flat_map(|sink| of(&sink.section, sink.spec.files()));
        sources.chain(kernels).chain(sinks)
    }

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
        for kind in ["source", "ring", "kernel", "sink"] {
            document.check_names(kind, diagnostics);
        }
        let name = own_name(document, diagnostics).unwrap_or_else(|| name.to_owned());
        // A ring whose keys are wrong is declared all the same: whoever names it has made no mistake.
        let rings = document.sections("ring").into_iter().map(|mut section| {
            let keys = section.finish(&[], diagnostics);
            RingSection {
                section,
                is_whole: keys.is_some(),
                keys: keys.unwrap_or_default(),
            }
        });
        let rings = rings.collect();
        let mut known_keys = Vec::new();
        let (tag, keys) = ("driver", &["ring", "wait", "silent_after"][..]);
        let sources: Vec<Component<SourceKeys, dyn SourceSpec>> = components(
            document,
            ("source", tag, keys),
            registry.sources,
            &mut known_keys,
            diagnostics,
        );
        for known in &mut known_keys {
            // Its driver knows better what it takes.
            if let Some(source) = known.index.and_then(|index| sources.get(index)) {
                known.cores = source.spec.cores();
            }
        }
        for source in &sources {
            if source
                .keys
                .silent_after
                .is_some_and(|span| span.0 < MIN_SILENCE)
            {
                let problem = Problem::at("silent_after", "`silent_after` must be at least 1 s");
                diagnostics.push(source.section.problem(problem.help(
                    "silence is looked for five times a second: try \"10 s\", or leave it out",
                )));
            }
        }
        let keys = &[
            "input",
            "output",
            "guarantee",
            "incomplete",
            "wait",
            "core",
            "burst",
            "dispatch",
            "doorbell",
        ][..];
        let kernels = components(
            document,
            ("kernel", "use", keys),
            registry.kernels,
            &mut known_keys,
            diagnostics,
        );
        let keys = &["input", "guarantee", "incomplete", "wait", "core", "burst"][..];
        let sinks = components(
            document,
            ("sink", tag, keys),
            registry.sinks,
            &mut known_keys,
            diagnostics,
        );
        let names = registry.kernels.iter().map(|entry| entry.name);
        Self {
            name,
            sources,
            rings,
            kernels,
            sinks,
            known_keys,
            staging: staging(document, diagnostics).unwrap_or_default(),
            staging_table: document.table("staging"),
            built_in: names.filter(|name| *name != FILE_KERNEL).collect(),
        }
    }
}

fn staging(document: &Document, diagnostics: &mut Diagnostics) -> Option<StagingKeys> {
    let mut table = document.table("staging")?;
    table.finish_checked(&[], diagnostics, |keys: &StagingKeys| {
        let mut problems = Vec::new();
        if let Some(depth) = keys.depth
            && !(1..=16).contains(&depth)
        {
            let message = format!("{depth} copies in flight");
            problems.push(Problem::at("depth", message).help("write a number from 1 to 16"));
        }
        if keys.chunk.is_some_and(|chunk| chunk.0 < 4096) {
            problems.push(
                Problem::at("chunk", "a copy of less than 4 KiB is mostly overhead")
                    .help("leave it out: it is measured"),
            );
        }
        problems
    })
}

/// `[daq] name`, if it is written and can be what it is used for.
fn own_name(document: &Document, diagnostics: &mut Diagnostics) -> Option<String> {
    let mut table = document.table("daq")?;
    let name = table.finish::<DaqKeys>(&[], diagnostics)?.name?;
    // A file's name may have 255 bytes; the state directory's files have an ending of 24.
    const LONGEST: usize = 200;
    let fault = if name.is_empty() {
        "is empty".to_owned()
    } else if name.starts_with('.') {
        "begins with a dot".to_owned()
    } else if let Some(wrong) = name.chars().find(|c| *c == '/' || c.is_control()) {
        format!("has {wrong:?} in it")
    } else if name.len() > LONGEST {
        format!("has {} bytes, at most {LONGEST} are possible", name.len())
    } else {
        return Some(name);
    };
    diagnostics.push(
        table.problem(
            Problem::at("name", format!("`name` in [daq] {fault}")).help(
                "it is part of file names in the state directory: write a word such as \"telescope\", or leave it out",
            ),
        ),
    );
    None
}

/// What could be read of a component.
struct Read<K, S: ?Sized> {
    section: Section,
    driver: Option<String>,
    keys: Option<K>,
    spec: Option<Box<S>>,
}

impl<K, S: ?Sized> Read<K, S> {
    fn is_whole(&self) -> bool {
        self.driver.is_some() && self.keys.is_some() && self.spec.is_some()
    }

    fn whole(self) -> Option<Component<K, S>> {
        Some(Component {
            section: self.section,
            driver: self.driver?,
            keys: self.keys?,
            spec: self.spec?,
        })
    }
}

/// The components of `kind` that could be read; the known_keys of all.
fn components<K: DeserializeOwned, S: ?Sized>(
    document: &Document,
    (kind, tag, keys): (&str, &str, &[&str]),
    entries: &'static [Entry<S>],
    known_keys: &mut Vec<KnownKeys>,
    diagnostics: &mut Diagnostics,
) -> Vec<Component<K, S>> {
    let mut components = Vec::new();
    for section in document.sections(kind) {
        let read = component(section, tag, entries, keys, diagnostics);
        let index = read.is_whole().then_some(components.len());
        known_keys.push(KnownKeys::of(&read.section, index));
        components.extend(read.whole());
    }
    components
}

fn component<K: DeserializeOwned, S: ?Sized>(
    mut section: Section,
    tag: &str,
    entries: &'static [Entry<S>],
    keys: &[&str],
    diagnostics: &mut Diagnostics,
) -> Read<K, S> {
    // A kernel of the user's own is named by its file alone.
    let names = entries.iter().map(|entry| entry.name);
    let names: Vec<_> = names
        .filter(|name| *name != FILE_KERNEL || tag != "use")
        .collect();
    let driver = if tag == "use" && section.has(FILE_KERNEL) {
        if section.has(tag) {
            let message = format!(
                "`use` and `file` exclude each other in [{}]",
                section.title()
            );
            diagnostics.push(at(&section, tag, message).help(
                "`use` names a built-in kernel, `file` one of your own: leave one of them out",
            ));
            section.set_aside(&[tag]);
        }
        Some(FILE_KERNEL.to_owned())
    } else {
        section
            .take_string(tag, &names, diagnostics)
            .map(|(driver, _)| driver)
    };
    let keys = section.set_aside(keys);
    let entry = entries
        .iter()
        .find(|entry| Some(entry.name) == driver.as_deref())
        // It may take the name for the beginning of a path.
        .filter(|_| section.is_well_named());
    let spec = if let Some(entry) = entry {
        (entry.parse)(&mut section, diagnostics)
    } else {
        if let Some(known) = all_keys(entries) {
            let known: Vec<_> = known.iter().map(String::as_str).collect();
            section.refuse_unknown(&known, diagnostics);
        }
        None
    };
    // The keys are read even if the driver is unknown, so that all errors are told at once.
    let keys = section.read(keys, diagnostics);
    Read {
        section,
        driver,
        keys,
        spec,
    }
}

/// Every key that any of `entries` knows; `None` where a schema does not tell.
fn all_keys<S: ?Sized>(entries: &[Entry<S>]) -> Option<Vec<String>> {
    let mut keys = Vec::new();
    for entry in entries {
        let schema = (entry.schema)();
        if schema.get("additionalProperties")?.as_bool()? {
            return None;
        }
        keys.extend(schema.get("properties")?.as_object()?.keys().cloned());
    }
    Some(keys)
}

/// An error at a key of a section.
pub(super) fn at(section: &Section, key: &str, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(message.into()).at(section.place_of(key))
}
