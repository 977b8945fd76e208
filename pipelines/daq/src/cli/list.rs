//! `daq list` prints every entry that a configuration can use.

use daq_core::entry::{Registered, Registry};
use std::fmt::Write;

pub(super) fn list(registry: &Registry) -> String {
    list_with(registry, daq_nats::HAS_CLIENT)
}

/// Lists the entries of a program that contains the NATS client if `has_nats`.
fn list_with(registry: &Registry, has_nats: bool) -> String {
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
            if !has_nats && needs_nats(entry) {
                let _ = writeln!(
                    text,
                    "  {:<16} (not part of this program: build daq with `--features nats`)",
                    ""
                );
            }
        }
    }
    text + "\n`daq new NAME` prints a starting configuration for a source, a kernel or a sink. A packet format\n\
            follows its source: `daq new udp-spead`.\n"
}

/// Returns whether `entry` uses the NATS client.
fn needs_nats(entry: &dyn Registered) -> bool {
    matches!((entry.kind(), entry.name()), ("sources" | "sinks", "nats"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_that_were_not_built_are_marked() {
        let registry = daq_pipelines::registry();
        let mark = "not part of this program: build daq with `--features nats`";
        let without = list_with(&registry, false);
        let marked: Vec<_> = without
            .lines()
            .zip(without.lines().skip(1))
            .filter(|(_, next)| next.contains(mark))
            .filter_map(|(line, _)| line.split_whitespace().next())
            .collect();
        assert_eq!(marked, ["nats", "nats"]);
        assert!(!list_with(&registry, true).contains(mark));
    }
}
