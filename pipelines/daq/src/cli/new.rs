//! `daq new` builds a starting configuration from the examples of registry entries.

use daq_core::config::nearest;
use daq_core::entry::{Entry, KernelEntry, Registry, SinkEntry, SourceEntry};
use daq_core::plan::FILE_KERNEL;
use std::fmt::Write;

/// Errors that prevent building a configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum NewError {
    #[error("no source, kernel or sink is called `{name}`; {help}")]
    Unknown { name: String, help: String },
    #[error("{what} `{name}` is in the wrong place; the order is SOURCE/KERNEL/SINK")]
    Order { what: &'static str, name: String },
}

/// Builds a configuration from `parts`, for example `udp/power-spectrum/file`.
pub(super) fn new(registry: &Registry, parts: &str) -> Result<String, NewError> {
    let mut source = None;
    let mut kernels = Vec::new();
    let mut sink = None;
    let mut parts = parts.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = parts.next() {
        let is_first = source.is_none() && kernels.is_empty() && sink.is_none();
        // `file` is the name of a kernel and of a sink; only the last part is a sink.
        let is_sink = parts.peek().is_none() && registry.find::<SinkEntry>(name).is_some();
        if let Some(entry) = registry.find::<SourceEntry>(name).filter(|_| is_first) {
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
        } else if registry.find::<SourceEntry>(name).is_some() {
            return Err(NewError::Order {
                what: "source",
                name: name.to_owned(),
            });
        } else {
            let names = [
                registry.names::<SourceEntry>(),
                registry.names::<KernelEntry>(),
                registry.names::<SinkEntry>(),
            ]
            .concat();
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
    let source = source.or_else(|| registry.find::<SourceEntry>("sim"));
    let sink = sink.or_else(|| registry.find::<SinkEntry>("null"));
    let mut text = String::new();
    let mut ring = "raw".to_owned();
    if let Some(source) = source {
        example(&mut text, source, source.name, "", &ring);
    }
    for kernel in kernels {
        declare(&mut text, &ring);
        let output = format!("{}-out", called(kernel.name));
        let text = &mut text;
        example(text, kernel, called(kernel.name), &ring, &output);
        ring = output;
    }
    declare(&mut text, &ring);
    if let Some(sink) = sink {
        example(&mut text, sink, sink.name, &ring, "");
    }
    text += "[http]\nlisten = \"127.0.0.1:9464\"   # /metrics, /status, /-/healthy, /-/ready\n";
    Ok(text)
}

/// Returns the section name for the kernel `name`. It is the kernel's name, unless a sink can have the same name.
fn called(name: &str) -> &str {
    if name == FILE_KERNEL {
        "my-kernel"
    } else {
        name
    }
}

fn example<S: ?Sized>(text: &mut String, entry: &Entry<S>, name: &str, input: &str, output: &str) {
    let section = entry
        .example
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
