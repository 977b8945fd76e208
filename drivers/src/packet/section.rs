//! Parses the configuration table `[source.NAME.format]`.

use super::keys::default_max_gap;
use super::{Format, FormatEntry};
use daq_core::config::{Diagnostics, Problem, Section, with_kinds};
use daq_core::entry::Registry;
use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Removes the table `format` from a source's section and parses it. Returns `None` after reporting an error.
pub fn take(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Format> {
    let mut table = section.require_section("format", diagnostics)?;
    let kinds = registry.names::<FormatEntry>();
    let (kind, _) = table.take_string("kind", &kinds, diagnostics)?;
    let entry = registry.find::<FormatEntry>(&kind)?;
    (entry.parse)(&mut table, diagnostics)
}

/// Reads a source's section with a table `format`. Returns the format and the other keys, or `None` after reporting an
/// error.
pub(crate) fn read<T: DeserializeOwned>(
    section: &mut Section,
    registry: &Registry,
    diagnostics: &mut Diagnostics,
    problems: impl Fn(&T) -> Vec<Problem>,
) -> Option<(Format, T)> {
    let format = take(section, registry, diagnostics);
    let keys = section.finish_checked(&[], diagnostics, problems)?;
    Some((format?, keys))
}

/// Adds the keys of packets, and the table `format` with packets of `$payload`, to the example `$keys` of a source.
macro_rules! example {
    ($keys:literal, $payload:literal) => {
        concat!(
            $keys,
            r#"# window  = 64                # number of frames open at the same time; packets may arrive out of order within them
# max_gap = 65536             # maximum number of packets missing in a row
# resync_after = 4            # packets in a row that confirm a restart of the sender
# close_after = "100 ms"      # time without packets after which frames with missing packets are published

[source.NAME.format]
kind     = "raw"              # or "spead", "vita49", "vdif"
header   = "16 B"             # size of the header before the payload
payload  = "#,
            $payload,
            r#"            # payload size of each packet
sequence = { offset = 0, bytes = 8, endian = "big" }
"#
        )
    };
}
pub(crate) use example;

/// Reads the keys of one format, and builds the format from them. The problems of `build` name their keys relative to
/// the source's section. Returns `None` after reporting an error.
pub fn finish<T: DeserializeOwned>(
    table: &mut Section,
    diagnostics: &mut Diagnostics,
    build: impl Fn(&T) -> Result<Format, Vec<Problem>>,
) -> Option<Format> {
    let below = |problem: Problem| Problem {
        key: problem
            .key
            .map(|key| key.strip_prefix("format.").unwrap_or(&key).to_owned()),
        ..problem
    };
    let problems = |keys: &T| build(keys).err().into_iter().flatten().map(below).collect();
    let keys: T = table.finish_checked(&[], diagnostics, problems)?;
    build(&keys).ok()
}

/// Adds default values to the schema `keys` of a source, for keys whose default values depend on the source.
pub(crate) fn with_defaults<const N: usize>(keys: Schema, defaults: [(&str, Value); N]) -> Schema {
    let mut schema = keys;
    for (key, value) in defaults {
        if let Some(property) = schema.pointer_mut(&format!("/properties/{key}")) {
            property["default"] = value;
        }
    }
    schema
}

/// Adds the table `format` to the schema `keys` of a source.
pub fn with_format(registry: &Registry, keys: Schema, required: bool) -> Schema {
    let keys = with_defaults(keys, [("max_gap", default_max_gap().into())]);
    let description = "The table `format`: the structure of a packet.";
    with_kinds(keys, "format", description, required, |generator| {
        let entries = registry.all::<FormatEntry>();
        let kinds = entries.map(|entry| (entry.name, (entry.schema)(generator)));
        kinds.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::{FORMATS, Parsed, raw};
    use super::*;
    use daq_core::config::Document;

    static OWN: FormatEntry = FormatEntry {
        name: "own",
        parse: |table, diagnostics| match (raw::ENTRY.parse)(table, diagnostics)? {
            Format::Raw(raw) => Some(Format::Other(Box::new(raw))),
            other => Some(other),
        },
        ..raw::ENTRY
    };

    fn parse(registry: &Registry, keys: &str) -> Format {
        let mut diagnostics = Diagnostics::new();
        let text = format!("[source.adc.format]\n{keys}");
        let document = Document::from_text("daq.toml", &text, &mut diagnostics);
        let mut section = document.sections("source").remove(0);
        let format = take(&mut section, registry, &mut diagnostics);
        format
            .ok_or_else(|| diagnostics.render(document.sources(), false))
            .unwrap()
    }

    #[test]
    fn schema_has_default_values_that_depend_on_source() {
        let registry = Registry::default().with_all(FORMATS);
        let default_of = |source: &str, key: &str| {
            let entry = crate::SOURCES.iter().find(|entry| entry.name == source);
            let schema = (entry.unwrap().schema)(&registry).to_value();
            schema["properties"][key]["default"].clone()
        };
        for (source, gap, buffer) in [
            ("udp", 65536, "64 MiB"),
            ("xdp", 65536, "8 MiB"),
            ("hsb", 524_288, "64 MiB"),
        ] {
            assert_eq!(default_of(source, "max_gap"), gap, "{source}");
            assert_eq!(default_of(source, "receive_buffer"), buffer, "{source}");
        }
        assert_eq!(default_of("replay", "max_gap"), 65536);
        assert_eq!(default_of("hsb", "window"), 2);
    }

    #[test]
    fn format_examples_are_valid() {
        for entry in FORMATS {
            let kind = format!("kind={:?}", entry.name);
            let first = entry.example.lines().next().unwrap_or_default();
            assert_eq!(first.replace(' ', ""), kind);
            parse(&Registry::default().with_all(FORMATS), entry.example);
        }
    }

    #[test]
    fn format_of_another_crate_is_parsed() {
        let registry = Registry::default().with_all(FORMATS).with(&OWN);
        let keys =
            "kind = \"own\"\nheader = 8\npayload = 2\nsequence = { offset = 0, bytes = 8 }\n";
        let mut format = parse(&registry, keys);
        assert_eq!(
            (format.header_len(0), format.facts().layout.count()),
            (8, 1)
        );
        let parsed = format.parse(&[0, 0, 0, 0, 0, 0, 0, 5, 1, 2]);
        assert!(matches!(parsed, Ok(Parsed::Data(packet)) if packet.unit == 5));
        let schema = with_format(&registry, Schema::default(), true).to_value();
        let kinds = &schema["properties"]["format"]["oneOf"];
        assert_eq!(kinds[FORMATS.len()]["properties"]["kind"]["const"], "own");
    }
}
