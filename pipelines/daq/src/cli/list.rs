//! `daq list` prints every source, kernel and sink that a configuration can use.

use daq_core::entry::Entry;
use daq_pipelines::REGISTRY;
use std::fmt::Write;

pub(super) fn list() -> String {
    let mut text = String::new();
    section(&mut text, "sources", REGISTRY.sources);
    section(&mut text, "kernels", REGISTRY.kernels);
    section(&mut text, "sinks", REGISTRY.sinks);
    text + "\n`daq new NAME` prints a starting configuration.\n"
}

fn section<S: ?Sized>(text: &mut String, title: &str, entries: &[Entry<S>]) {
    let _ = writeln!(text, "{title}");
    for entry in entries {
        let _ = writeln!(text, "  {:<16} {}", entry.name, entry.summary);
    }
}
