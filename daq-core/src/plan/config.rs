//! The typed configuration: each component's keys, parsed and checked on their own.
//!
//! References between sections, such as the ring that a source fills, are checked later by
//! [`resolve`](super::resolve()).

use super::{AttachAccess, AttachKey, DeviceKey, FillKey, KnownKeys, SpreadKey};
use crate::check::NamedFile;
use crate::claim::Claim;
use crate::config::{Diagnostic, Diagnostics, Document, Problem, Section};
use crate::entry::{Entry, KernelEntry, Registered, Registry, SourceSpec};
use crate::gpu::Backend;
use crate::gpu::Dispatch;
use crate::kernel::KernelSpec;
use crate::notify::Wait;
use crate::region::Placement;
use crate::sink::SinkSpec;
use crate::units::{ByteSize, Span};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// The shortest allowed `silent_after`.
const MIN_SILENCE: Duration = Duration::from_secs(1);

/// The registry's name of the kernel that a section selects with `file` instead of `use`.
pub const FILE_KERNEL: &str = "file";

/// The value of a ring's `memory` key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// The first GPU, or host memory on a machine without a GPU.
    #[default]
    Auto,
    /// The given memory.
    At(Placement),
    /// Several GPUs, by CUDA ordinal, over which the ring is spread.
    Gpus(Vec<u32>),
}

/// Returns the CUDA ordinal in a name such as `cuda:0`.
fn gpu(name: &str) -> Option<u32> {
    name.strip_prefix("cuda:")?.parse().ok()
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Memory;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", \"host\", a GPU such as \"cuda:0\", or a list of GPUs")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Memory, E> {
                match text {
                    "auto" => Ok(Memory::Auto),
                    "host" => Ok(Memory::At(Placement::Host)),
                    other => gpu(other)
                        .map(|ordinal| Memory::At(Placement::Cuda(ordinal)))
                        .ok_or_else(|| {
                            E::custom(format!(
                                "unknown memory \"{text}\"; write \"auto\", \"host\" or a GPU such as \"cuda:0\""
                            ))
                        }),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Memory, A::Error> {
                let mut gpus = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    let Some(ordinal) = gpu(&name) else {
                        return Err(A::Error::custom(format!(
                            "unknown GPU \"{name}\"; a list of memories contains only GPUs such as \"cuda:0\""
                        )));
                    };
                    if gpus.contains(&ordinal) {
                        return Err(A::Error::custom(format!("\"{name}\" is listed twice")));
                    }
                    gpus.push(ordinal);
                }
                if gpus.len() < 2 {
                    return Err(A::Error::custom(
                        "a list of memories needs at least two GPUs; write one GPU as memory = \"cuda:0\"",
                    ));
                }
                Ok(Memory::Gpus(gpus))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Memory {
    fn schema_name() -> Cow<'static, str> {
        "Memory".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "pattern": "^(auto|host|cuda:[0-9]+)$" },
                {
                    "type": "array",
                    "items": { "type": "string", "pattern": "^cuda:[0-9]+$" },
                    "minItems": 2,
                    "uniqueItems": true
                }
            ]
        })
    }
}

/// The component that rings the doorbell of a persistent kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DoorbellInitiator {
    /// The CPU rings the doorbell after it commits frames.
    #[default]
    Cpu,
    /// The device that writes the frames rings the doorbell with the last write of each frame.
    Device,
}

/// The keys of a `[ring.NAME]` section.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RingKeys {
    /// Memory that holds the ring: `"auto"` (the first GPU, or host memory without a GPU), `"host"`, a GPU such as
    /// `"cuda:0"`, or a list of GPUs such as `["cuda:0", "cuda:1"]` with `spread`.
    pub memory: Memory,
    /// How the frames are spread over the GPUs in `memory`: `"frames"` (whole frames, in turn), `"channels"`, `"points"` or
    /// `"parts"` (each GPU gets its part of each frame). A table such as `{ by = "frames", guarantee = false }` also sets
    /// that a slow or failed GPU loses only its own share.
    pub spread: Option<SpreadKey>,
    /// Payload bytes per slot. Default: the size of the producer's frames.
    pub slot: Option<ByteSize>,
    /// Number of slots, at least 2.
    pub slots: u32,
    /// Bytes written in place of missing packets: `"zero"`, `"nan"` (every number is NaN; only for float types) or a byte from 0
    /// to 255.
    pub fill: FillKey,
    /// Preferred NUMA node. Default: Linux chooses.
    pub node: Option<u32>,
    /// Lock the slots in memory, up to the memlock limit.
    pub lock: bool,
    /// Use huge pages where available.
    pub huge: bool,
    /// Whether other processes of the same user can read the ring without a copy: `true`, `false`, or a table such as
    /// `{ guarantee = true, hold = "2 s" }`, which also permits readers that the producer waits for. Default: `true`.
    pub attach: Option<AttachKey>,
}

impl Default for RingKeys {
    fn default() -> Self {
        Self {
            memory: Memory::Auto,
            spread: None,
            slot: None,
            slots: 64,
            fill: FillKey::default(),
            node: None,
            lock: true,
            huge: true,
            attach: None,
        }
    }
}

/// What happens to frames with missing packets before a reader gets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Incomplete {
    /// The reader gets these frames; missing packets are filled and marked.
    #[default]
    Pass,
    /// The reader does not get these frames; they are counted as `dropped_incomplete`.
    Drop,
}

impl Incomplete {
    /// Returns the name used in configuration and plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
        }
    }
}

/// The keys that every source has in addition to its driver's keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceKeys {
    /// Ring that the source fills.
    pub ring: String,
    /// How the source's thread waits for free slots: `"adaptive"`, `"busy"` or `"event"`.
    #[serde(default)]
    pub wait: Wait,
    /// Time without data packets, such as `"10 s"`, after which the source counts as silent: `/-/ready` fails and a hint is
    /// logged. When data arrives again, this is logged too. At least 1 s. Default: a hint is logged once after 10 s, and silence
    /// does not affect `/-/ready`.
    pub silent_after: Option<Span>,
}

/// The keys that every kernel has in addition to its own keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelKeys {
    /// Ring that the kernel reads.
    pub input: String,
    /// Ring that the kernel fills.
    pub output: String,
    /// How the kernel reads.
    #[serde(rename = "..reader")]
    #[schemars(flatten)]
    pub reader: ReaderKeys,
    /// How a GPU kernel gets bursts: `"launch"` (one launch per burst) or `"persistent"` (the kernel runs permanently and
    /// waits for its doorbell; only for your own kernels in a `.cu` file). Default: `"launch"`.
    pub dispatch: Option<Dispatch>,
    /// Processor that runs the kernel: `"cpu"`, or a GPU such as `"cuda:1"`. Frames are copied there if the input ring is in
    /// other memory. Default: the GPU with the input ring if the kernel can run there, otherwise the CPU.
    pub device: Option<DeviceKey>,
    /// What rings the doorbell of a persistent kernel: `"cpu"`, or `"device"` (the device that writes the frames, if it
    /// supports this). Default: `"cpu"`.
    pub doorbell: Option<DoorbellInitiator>,
}

/// The keys that every sink has in addition to its driver's keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkKeys {
    /// Ring that the sink reads.
    pub input: String,
    /// How the sink reads.
    #[serde(rename = "..reader")]
    #[schemars(flatten)]
    pub reader: ReaderKeys,
}

/// The keys that every reader of a ring has: each kernel and each sink.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReaderKeys {
    /// `true`: apply backpressure; frames wait until the kernel has processed them or the sink has written them, also while
    /// its disk is full. `false`: the kernel or sink may be overrun, and a sink drops frames while its disk is full; lost
    /// frames are counted.
    pub guarantee: bool,
    /// What happens to frames with missing packets: `"pass"` (the kernel or sink gets them, with missing packets filled and
    /// marked) or `"drop"` (the kernel or sink does not get them; they are counted as `dropped_incomplete`).
    pub incomplete: Incomplete,
    /// How the thread of the kernel or sink waits: `"adaptive"`, `"busy"` or `"event"`.
    pub wait: Wait,
    /// CPU core that the thread of the kernel or sink runs on. Default: any core.
    pub core: Option<usize>,
    /// Maximum number of frames read in one batch, 1 to 4096. Default: 16; for a sink `stream` with `guarantee`, the maximum
    /// number of frames in flight.
    pub burst: Option<u32>,
}

/// Default of [`ReaderKeys::burst`].
const DEFAULT_BURST: usize = 16;
/// Maximum of [`ReaderKeys::burst`].
pub(super) const MAX_BURST: usize = 4096;

impl ReaderKeys {
    const NAMES: [&str; 5] = ["guarantee", "incomplete", "wait", "core", "burst"];

    /// Returns the maximum number of frames per batch. `in_flight` is the number of frames that the reader can have in
    /// flight, if it has this limit.
    pub(super) fn burst(&self, in_flight: Option<usize>) -> usize {
        let default = in_flight
            .filter(|_| self.guarantee)
            .map_or(DEFAULT_BURST, |frames| frames.clamp(1, MAX_BURST));
        self.burst.map_or(default, |burst| burst as usize)
    }
}

impl Default for ReaderKeys {
    fn default() -> Self {
        Self {
            guarantee: true,
            incomplete: Incomplete::default(),
            wait: Wait::default(),
            core: None,
            burst: None,
        }
    }
}

/// The keys of the `[daq]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DaqKeys {
    /// Name of the pipeline in reports, metrics and the state directory. Default: the name of the configuration file.
    pub name: Option<String>,
    /// Who may attach to the rings, in addition to the user who runs the pipeline and root.
    pub attach: AttachAccess,
}

/// How the threads of the staging engine wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StagingWait {
    /// Poll continuously: lowest latency, but each pair of memories occupies one core.
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
    /// How the copy threads wait: `"adaptive"` (poll briefly, then sleep) or `"busy"` (poll continuously).
    pub wait: StagingWait,
    /// Maximum size of one copy. Default: the value that `daq tune` measured, otherwise a measurement at startup.
    pub chunk: Option<ByteSize>,
    /// Maximum number of copies in flight between two memories, 1 to 16. Default: measured.
    pub depth: Option<u32>,
    /// Whether GPUs may write each other's memory, over NVLink or PCIe. `false`: frames are copied from one GPU to another
    /// through host memory.
    pub peer_access: bool,
    /// CPU cores for the copy threads, assigned in turn. Default: any core.
    pub cores: Vec<usize>,
    /// Methods that may allocate GPU memory for CPU stores: any of `"gdrapi"` (GDRCopy's library), `"dma-buf"`, `"vulkan"`
    /// and `"host"` (host memory that the GPU reads; for doorbells only), tried in this order. `[]` disables all of them.
    pub backends: Vec<Backend>,
}

impl Default for StagingKeys {
    fn default() -> Self {
        Self {
            wait: StagingWait::default(),
            chunk: None,
            depth: None,
            peer_access: true,
            cores: Vec::new(),
            backends: Backend::ALL.to_vec(),
        }
    }
}

/// A component's section together with its parsed keys.
pub struct Component<K, S: ?Sized> {
    /// The section, used to locate errors in the file.
    pub section: Section,
    /// The name of the driver or kernel.
    pub driver: String,
    /// The keys that all components of this kind have.
    pub keys: K,
    /// The keys of the driver or kernel.
    pub spec: Box<S>,
}

impl<K, S: ?Sized> Component<K, S> {
    /// Returns the component's name.
    pub fn name(&self) -> &str {
        self.section.name()
    }
}

/// A ring's section.
pub struct RingSection {
    /// The section, used to locate errors in the file.
    pub section: Section,
    /// The parsed keys; the defaults if the section has errors.
    pub keys: RingKeys,
    /// Whether all keys were parsed without errors.
    pub is_whole: bool,
}

/// A whole configuration.
pub struct Config {
    /// The pipeline's name.
    pub name: String,
    /// Who may attach to the rings.
    pub attach: AttachAccess,
    /// Sources in file order.
    pub sources: Vec<Component<SourceKeys, dyn SourceSpec>>,
    /// Rings in file order.
    pub rings: Vec<RingSection>,
    /// Kernels in file order.
    pub kernels: Vec<Component<KernelKeys, dyn KernelSpec>>,
    /// Sinks in file order.
    pub sinks: Vec<Component<SinkKeys, dyn SinkSpec>>,
    /// The common keys of all sources, then kernels, then sinks, including components whose sections have errors.
    pub known_keys: Vec<KnownKeys>,
    /// The `[staging]` table.
    pub staging: StagingKeys,
    /// The `[staging]` table as written, used to locate errors in the file.
    pub staging_table: Option<Section>,
    /// Names of the built-in kernels that `use` accepts.
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
    /// Returns the exclusive resources of sources and sinks, each with the component's section.
    pub fn claims(&self) -> impl Iterator<Item = (&Section, Vec<Claim>)> {
        let sources = self.sources.iter();
        let sources = sources.map(|source| (&source.section, source.spec.facts().claims));
        let sinks = self.sinks.iter();
        sources.chain(sinks.map(|sink| (&sink.section, sink.spec.facts().claims)))
    }

    /// Returns the files and directories that components name, each with the component's section.
    pub fn files(&self) -> impl Iterator<Item = (&Section, NamedFile)> {
        fn of(
            section: &Section,
            files: Vec<NamedFile>,
        ) -> impl Iterator<Item = (&Section, NamedFile)> {
            files.into_iter().map(move |file| (section, file))
        }
        let sources = self.sources.iter();
        let sources = sources.flat_map(|source| of(&source.section, source.spec.facts().files));
        let kernels = self.kernels.iter();
        let kernels = kernels.flat_map(|kernel| of(&kernel.section, kernel.spec.facts().files));
        let sinks = self.sinks.iter();
        let sinks = sinks.flat_map(|sink| of(&sink.section, sink.spec.facts().files));
        sources.chain(kernels).chain(sinks)
    }

    /// Reads the sections of the pipeline. Adds every error to `diagnostics` and omits components with errors.
    ///
    /// `name` is the pipeline's name unless `[daq] name` is set.
    pub fn read(
        document: &Document,
        registry: &Registry,
        name: &str,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        for kind in ["source", "ring", "kernel", "sink"] {
            document.check_names(kind, diagnostics);
        }
        let (own, attach) = pipeline_keys(document, diagnostics);
        let name = own.unwrap_or_else(|| name.to_owned());
        // A ring with invalid keys still counts as declared, so that sections that name it get no error.
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
            registry,
            &mut known_keys,
            diagnostics,
        );
        for known in &mut known_keys {
            // The driver returns the exact cores, with its defaults.
            if let Some(source) = known.index.and_then(|index| sources.get(index)) {
                known.cores = source.spec.facts().cores;
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
                    "the runtime checks for silence five times per second; write \"10 s\", or remove the key",
                )));
            }
        }
        let keys = ["input", "output", "device", "dispatch", "doorbell"];
        let keys = &[&keys[..], &ReaderKeys::NAMES].concat();
        let kernels = components(
            document,
            ("kernel", "use", keys),
            registry,
            &mut known_keys,
            diagnostics,
        );
        let keys = &[&["input"][..], &ReaderKeys::NAMES].concat();
        let sinks = components(
            document,
            ("sink", tag, keys),
            registry,
            &mut known_keys,
            diagnostics,
        );
        Self {
            name,
            attach,
            sources,
            rings,
            kernels,
            sinks,
            known_keys,
            staging: staging(document, diagnostics).unwrap_or_default(),
            staging_table: document.table("staging"),
            built_in: built_in(registry),
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
            let message = format!("`depth` is {depth}, but must be 1 to 16");
            problems.push(
                Problem::at("depth", message)
                    .help("set `depth` to 1 to 16, or remove `depth` to use the measured value"),
            );
        }
        if keys.chunk.is_some_and(|chunk| chunk.0 < 4096) {
            problems.push(
                Problem::at(
                    "chunk",
                    "`chunk` must be at least 4 KiB, because smaller copies are mostly overhead",
                )
                .help("remove `chunk` to use the measured value"),
            );
        }
        problems
    })
}

/// Reads the table `[daq]`: the name, `None` if the key is missing or its value cannot be part of a file name, and who may
/// attach.
fn pipeline_keys(
    document: &Document,
    diagnostics: &mut Diagnostics,
) -> (Option<String>, AttachAccess) {
    let Some(mut table) = document.table("daq") else {
        return (None, AttachAccess::default());
    };
    let keys = table.finish::<DaqKeys>(&[], diagnostics);
    let DaqKeys { name, attach } = keys.unwrap_or_default();
    let name = name.and_then(|name| checked_name(name, &table, diagnostics));
    (name, attach)
}

/// Returns the name of the pipeline if it can be part of a file name.
fn checked_name(name: String, table: &Section, diagnostics: &mut Diagnostics) -> Option<String> {
    // File names can have 255 bytes, and files in the state directory append a suffix of 24 bytes.
    const MAX_NAME_BYTES: usize = 200;
    let fault = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.starts_with('.') {
        "must not begin with a dot".to_owned()
    } else if let Some(wrong) = name.chars().find(|c| *c == '/' || c.is_control()) {
        format!("must not contain {wrong:?}")
    } else if name.len() > MAX_NAME_BYTES {
        format!(
            "has {} bytes, but at most {MAX_NAME_BYTES} are allowed",
            name.len()
        )
    } else {
        return Some(name);
    };
    diagnostics.push(
        table.problem(
            Problem::at("name", format!("`name` in [daq] {fault}")).help(
                "the name becomes part of file names in the state directory; write a word such as \"telescope\", or remove the key",
            ),
        ),
    );
    None
}

/// The parts of a component's section that have no errors.
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

/// Returns the names that `use` accepts. A kernel file is selected by `file`.
fn built_in(registry: &Registry) -> Vec<&'static str> {
    let names = registry.names::<KernelEntry>().into_iter();
    names.filter(|name| *name != FILE_KERNEL).collect()
}

/// Reads all sections of `kind`. Returns the components without errors, and adds the common keys of all components to
/// `known_keys`.
fn components<K: DeserializeOwned, S: ?Sized>(
    document: &Document,
    (kind, tag, keys): (&str, &str, &[&str]),
    registry: &Registry,
    known_keys: &mut Vec<KnownKeys>,
    diagnostics: &mut Diagnostics,
) -> Vec<Component<K, S>>
where
    Entry<S>: Registered,
{
    let mut components = Vec::new();
    for section in document.sections(kind) {
        let read = component(section, tag, registry, keys, diagnostics);
        let index = read.is_whole().then_some(components.len());
        known_keys.push(KnownKeys::of(&read.section, index));
        components.extend(read.whole());
    }
    components
}

fn component<K: DeserializeOwned, S: ?Sized>(
    mut section: Section,
    tag: &str,
    registry: &Registry,
    keys: &[&str],
    diagnostics: &mut Diagnostics,
) -> Read<K, S>
where
    Entry<S>: Registered,
{
    let names = match tag {
        "use" => built_in(registry),
        _ => registry.names::<Entry<S>>(),
    };
    let driver = if tag == "use" && section.has(FILE_KERNEL) {
        if section.has(tag) {
            let message = format!(
                "`use` and `file` cannot both be set in [{}]",
                section.title()
            );
            diagnostics.push(at(&section, tag, message).help(
                "`use` names a built-in kernel, `file` names your own kernel; remove one of the two keys",
            ));
            section.detach(&[tag]);
        }
        Some(FILE_KERNEL.to_owned())
    } else {
        section
            .take_string(tag, &names, diagnostics)
            .map(|(driver, _)| driver)
    };
    let keys = section.detach(keys);
    let entry = driver
        .as_deref()
        .and_then(|driver| registry.find::<Entry<S>>(driver))
        // A driver may use the name as the start of a path, so it never gets an invalid name.
        .filter(|_| section.is_well_named());
    let spec = if let Some(entry) = entry {
        (entry.parse)(&mut section, registry, diagnostics)
    } else {
        if let Some(known) = all_keys::<S>(registry) {
            let known: Vec<_> = known.iter().map(String::as_str).collect();
            section.refuse_unknown(&known, diagnostics);
        }
        None
    };
    // The common keys are read even if the driver is unknown, so that all errors are reported at once.
    let keys = section.read(keys, diagnostics);
    Read {
        section,
        driver,
        keys,
        spec,
    }
}

/// Returns every key that any entry accepts, or `None` if a schema does not list its keys.
fn all_keys<S: ?Sized>(registry: &Registry) -> Option<Vec<String>>
where
    Entry<S>: Registered,
{
    let mut keys = Vec::new();
    for entry in registry.all::<Entry<S>>() {
        let schema = (entry.schema)(registry);
        if schema.get("additionalProperties")?.as_bool()? {
            return None;
        }
        keys.extend(schema.get("properties")?.as_object()?.keys().cloned());
    }
    Some(keys)
}

/// Returns an error located at a key of a section.
pub(super) fn at(section: &Section, key: &str, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(message.into()).at(section.place_of(key))
}
