//! `daq list` prints every entry that a configuration can use.

use daq_core::entry::Registry;
use std::fmt::Write;

pub(super) fn list(registry: &Registry) -> String {
    let mut text = String::new();
    let mut kinds: Vec<&str> = Vec::new();
    for entry in registry.entries() {
        if !kinds.contains(&entry.kind()) {
            kinds.push(entry.kind());
        }
    }
    for kind in kinds {
        let _ = writeln!(text, "{kind}");
        for entry in registry.entries().filter(|entry| entry.kind() == kind) {
            let _ = writeln!(text, "  {:<16} {}", entry.name(), entry.summary());
        }
    }
    text + "\n`daq new NAME` prints a starting configuration for a source, a kernel or a sink. A packet format\n\
            follows its source: `daq new udp-spead`.\n"
}
