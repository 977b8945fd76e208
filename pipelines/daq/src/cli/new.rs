//! `daq new` builds a starting configuration from the examples of registry entries.
//!
//! A *kind* is a source with a packet format, such as `udp-spead`. Kinds are not entries: each source whose example has a
//! table `format` is a kind with each registered format.

use daq_core::config::nearest;
use daq_core::entry::{KernelEntry, Registry, SinkEntry, SourceEntry};
use daq_core::plan::FILE_KERNEL;
use daq_drivers::packet::FormatEntry;
use std::borrow::Cow;
use std::fmt::Write;

/// The heading of the table of a source that contains the keys of its packet format.
const FORMAT: &str = "[source.NAME.format]\n";

/// Errors that prevent building a configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum NewError {
    #[error("no source, kernel or sink is called `{name}`; {help}")]
    Unknown { name: String, help: String },
    #[error("{what} `{name}` is in the wrong place; the order is SOURCE/KERNEL/SINK")]
    Order { what: &'static str, name: String },
}

/// A source, with its packet format if the name selects one.
#[derive(Clone, Copy)]
struct Kind {
    source: &'static SourceEntry,
    format: Option<&'static FormatEntry>,
}

impl Kind {
    /// Returns the source `name`, or the source and the format of the kind `name`.
    fn find(registry: &Registry, name: &str) -> Option<Self> {
        if let Some(source) = registry.find(name) {
            return Some(Self {
                source,
                format: None,
            });
        }
        registry.all::<SourceEntry>().find_map(|source| {
            let format = name.strip_prefix(source.name)?.strip_prefix('-')?;
            let format = Some(registry.find(format).filter(|_| has_format(source))?);
            Some(Self { source, format })
        })
    }

    /// Returns the example of the source with the keys of the format.
    fn example(&self) -> Cow<'static, str> {
        let whole = self.source.example;
        match (self.format, whole.split_once(FORMAT)) {
            // The example of the source already has the keys of this format.
            (Some(format), Some((_, keys))) if names_kind(keys, format.name) => whole.into(),
            (Some(format), Some((keys, _))) => format!("{keys}{FORMAT}{}", format.example).into(),
            _ => whole.into(),
        }
    }
}

/// Returns whether packets of `source` have a configurable format.
fn has_format(source: &SourceEntry) -> bool {
    source.example.contains(FORMAT)
}

/// Returns whether the first of `keys` is `kind = "NAME"`.
fn names_kind(keys: &str, name: &str) -> bool {
    let value = keys.split(['=', '#', '\n']).nth(1).unwrap_or_default();
    value.trim().trim_matches('"') == name
}

/// Returns the names of all kinds: each source with a configurable format, and each format.
pub(super) fn kinds(registry: &Registry) -> Vec<String> {
    let sources = registry
        .all::<SourceEntry>()
        .filter(|source| has_format(source));
    let formats = registry.names::<FormatEntry>();
    let of = |source: &SourceEntry| {
        let name = source.name;
        formats.iter().map(move |format| format!("{name}-{format}"))
    };
    sources.flat_map(of).collect()
}

/// Returns the names of all sources, kinds, kernels and sinks.
pub(super) fn names(registry: &Registry) -> Vec<String> {
    let entries = [
        registry.names::<SourceEntry>(),
        registry.names::<KernelEntry>(),
        registry.names::<SinkEntry>(),
    ];
    let entries = entries.concat().into_iter().map(ToOwned::to_owned);
    let mut names: Vec<_> = entries.chain(kinds(registry)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Builds a configuration from `parts`, for example `udp-spead/power-spectrum/file`.
pub(super) fn new(registry: &Registry, parts: &str) -> Result<String, NewError> {
    let mut source = None;
    let mut kernels = Vec::new();
    let mut sink = None;
    let mut parts = parts.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = parts.next() {
        let is_first = source.is_none() && kernels.is_empty() && sink.is_none();
        // `file` is the name of a kernel and of a sink; only the last part is a sink.
        let is_sink = parts.peek().is_none() && registry.find::<SinkEntry>(name).is_some();
        if let Some(entry) = Kind::find(registry, name).filter(|_| is_first) {
            source = Some(entry);
        } else if let Some(entry) = registry.find::<KernelEntry>(name).filter(|_| !is_sink) {
            if sink.is_some() {
                return Err(NewError::Order {
                    what: "kernel",
                    name: name.to_owned(),
                });
            }
            kernels.push(entry);
        } else if let Some(entry) = registry.find::<SinkEntry>(name) {
            if sink.replace(entry).is_some() {
                return Err(NewError::Order {
                    what: "a second sink",
                    name: name.to_owned(),
                });
            }
        } else if Kind::find(registry, name).is_some() {
            return Err(NewError::Order {
                what: "source",
                name: name.to_owned(),
            });
        } else {
            let names = names(registry);
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let help = match nearest(name, &names) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "run `daq list` to list all names".to_owned(),
            };
            return Err(NewError::Unknown {
                name: name.to_owned(),
                help,
            });
        }
    }
    let source = source.or_else(|| Kind::find(registry, "sim"));
    let sink = sink.or_else(|| registry.find::<SinkEntry>("null"));
    let mut text = String::new();
    let mut ring = "raw".to_owned();
    if let Some(kind) = source {
        example(&mut text, &kind.example(), kind.source.name, "", &ring);
    }
    let is_complex = source.is_some_and(|kind| is_complex(&kind.example()));
    let mut names: Vec<String> = Vec::new();
    for kernel in with_complex_input(registry, kernels, is_complex) {
        declare(&mut text, &ring);
        let name = unused(called(kernel.name), &names);
        let output = format!("{name}-out");
        example(&mut text, kernel.example, &name, &ring, &output);
        names.push(name);
        ring = output;
    }
    declare(&mut text, &ring);
    if let Some(sink) = sink {
        example(&mut text, sink.example, sink.name, &ring, "");
    }
    text += "[http]\nlisten = \"127.0.0.1:9464\"   # /metrics, /status, /-/healthy, /-/ready\n";
    Ok(text)
}

/// Kernels that need complex samples, and the kernel whose output has them.
const NEED_COMPLEX: [&str; 2] = ["correlate", "beamform"];
const MAKES_COMPLEX: &str = "channelize";

/// Returns whether the samples in `example` of a source are complex.
fn is_complex(example: &str) -> bool {
    let mut lines = example.lines().filter(|line| !line.starts_with('#'));
    lines.any(|line| line.contains("complex = true"))
}

/// Returns `kernels`, with a `channelize` before the first kernel that needs complex samples but does not get them.
fn with_complex_input(
    registry: &Registry,
    kernels: Vec<&'static KernelEntry>,
    mut is_complex: bool,
) -> Vec<&'static KernelEntry> {
    let mut all = Vec::new();
    for kernel in kernels {
        if !is_complex && NEED_COMPLEX.contains(&kernel.name) {
            all.extend(registry.find::<KernelEntry>(MAKES_COMPLEX));
        }
        is_complex |= kernel.name == MAKES_COMPLEX || NEED_COMPLEX.contains(&kernel.name);
        all.push(kernel);
    }
    all
}

/// Returns `name`, with a number after it if `names` contains it.
fn unused(name: &str, names: &[String]) -> String {
    let is_free = |name: &String| !names.contains(name);
    let numbered = (2_usize..).map(|number| format!("{name}-{number}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(is_free).unwrap_or_default()
}

/// Returns the section name for the kernel `name`. It is the kernel's name, unless a sink can have the same name.
fn called(name: &str) -> &str {
    if name == FILE_KERNEL {
        "my-kernel"
    } else {
        name
    }
}

fn example(text: &mut String, example: &str, name: &str, input: &str, output: &str) {
    let section = example
        .replace("NAME", name)
        .replace("INPUT", input)
        .replace("OUTPUT", output);
    let _ = writeln!(text, "{}", section.trim());
    if !input.is_empty() {
        text.push_str(READER);
        if !output.is_empty() {
            text.push_str(KERNEL);
        }
    }
    text.push('\n');
}

/// Keys that every reader of a ring supports.
const READER: &str = "\
# guarantee = true       # true: the ring waits for this reader or counts ring_full; false: the reader may be overrun
# wait = \"adaptive\"      # or \"busy\", \"event\"
# core = 1               # CPU core of the thread
# burst = 16             # maximum number of frames per call
";

/// Additional keys that every kernel supports.
const KERNEL: &str = "\
# dispatch = \"launch\"    # on a GPU: one launch per burst; \"persistent\": the kernel of your .cu file keeps running
";

fn declare(text: &mut String, ring: &str) {
    let _ = writeln!(
        text,
        "[ring.{ring}]\n\
         memory = \"auto\"        # or \"host\", \"cuda:0\"; auto = the first GPU, or host memory without a GPU\n\
         slots = 64             # number of frames\n\
         # slot = \"1 MiB\"       # payload size of a frame; default: set by the producer\n\
         # fill = \"zero\"        # content of missing packets: \"zero\", \"nan\" or a byte\n\
         # lock = true          # lock the ring in RAM, up to the memlock limit\n\
         # huge = true          # use hugepages if available\n\
         # node = 0             # preferred NUMA node\n"
    );
}
