//! The table `[sink.NAME.format]`: the formats of the registry that can be sent.

use daq_core::config::{Diagnostics, Section, with_kinds};
use daq_core::entry::Registry;
use daq_core::outgoing::OutgoingFormat;
use schemars::Schema;

/// Removes the table `format` from a sink's section and parses it. Returns `None` after reporting an error.
pub(super) fn take(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn OutgoingFormat>> {
    let mut table = section.require_section("format", diagnostics)?;
    let kinds: Vec<_> = registry.outgoing_formats().map(|(name, _)| name).collect();
    let (kind, _) = table.take_string("kind", &kinds, diagnostics)?;
    let (_, entry) = registry
        .outgoing_formats()
        .find(|(name, _)| *name == kind)?;
    entry.parse(&mut table, diagnostics)
}

/// Adds the table `format` to the schema `keys` of a sink.
pub(super) fn with_format(registry: &Registry, keys: Schema) -> Schema {
    let description =
        "The table `format`: the structure of a packet, with the keys of a source's `format`.";
    with_kinds(keys, "format", description, true, |generator| {
        let entries = registry.outgoing_formats();
        entries
            .map(|(name, entry)| (name, entry.schema(generator)))
            .collect()
    })
}
