//! Parses the configuration table `[source.NAME.format]`.

use super::{FORMATS, Format, RawConfig, SpeadConfig};
use daq_core::config::{Diagnostics, Problem, Section};
use schemars::{JsonSchema, Schema};

/// The table `format`: the structure of a packet.
#[derive(JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum FormatKeys {
    Raw(RawConfig),
    Spead(SpeadConfig),
}

/// Removes the table `format` from a source's section and parses it. Returns `None` after reporting an error.
pub fn take(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Format> {
    let mut table = section.require_section("format", diagnostics)?;
    let kinds: Vec<&str> = FORMATS.iter().map(|entry| entry.name).collect();
    let (kind, _) = table.take_string("kind", &kinds, diagnostics)?;
    // Problems name their keys relative to the source's section.
    let below = |problem: Problem| Problem {
        key: problem
            .key
            .map(|key| key.strip_prefix("format.").unwrap_or(&key).to_owned()),
        ..problem
    };
    let problems = |built: Result<Format, Vec<Problem>>| -> Vec<Problem> {
        built.err().into_iter().flatten().map(below).collect()
    };
    match kind.as_str() {
        "spead" => table
            .finish_checked(&[], diagnostics, |keys: &SpeadConfig| {
                problems(keys.build())
            })?
            .build(),
        _ => table
            .finish_checked(&[], diagnostics, |keys: &RawConfig| problems(keys.build()))?
            .build(),
    }
    .ok()
}

/// Adds the table `format` to the schema `keys` of a source.
pub fn with_format(keys: Schema, required: bool) -> Schema {
    let mut schema = keys;
    let mut format = schemars::schema_for!(FormatKeys);
    let object = schema.ensure_object();
    if let Some(definitions) = format.remove("$defs")
        && let Some(definitions) = definitions.as_object()
        && let Some(all) = object
            .entry("$defs")
            .or_insert_with(|| serde_json::json!({}))
            .as_object_mut()
    {
        all.extend(definitions.clone());
    }
    format.remove("$schema");
    if let Some(properties) = object
        .entry("properties")
        .or_insert_with(|| serde_json::json!({}))
        .as_object_mut()
    {
        properties.insert("format".to_owned(), format.to_value());
    }
    if required
        && let Some(list) = object
            .entry("required")
            .or_insert_with(|| serde_json::json!([]))
            .as_array_mut()
    {
        list.push("format".into());
    }
    schema
}
