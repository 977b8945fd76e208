//! Reading the table `[source.NAME.format]`.

use super::{FORMATS, Format, RawConfig, SpeadConfig};
use daq_core::config::{Diagnostics, Section};
use schemars::{JsonSchema, Schema};

/// The table `format`: how a packet is made.
#[derive(JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum FormatKeys {
    Raw(RawConfig),
    Spead(SpeadConfig),
}

/// Takes the table `format` out of a source's section; `None` after an error was reported.
pub fn take(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Format> {
    let mut table = section.require_section("format", diagnostics)?;
    let kinds: Vec<&str> = FORMATS.iter().map(|entry| entry.name).collect();
    let (kind, _) = table.take_string("kind", &kinds, diagnostics)?;
    let built = match kind.as_str() {
        "spead" => table.finish::<SpeadConfig>(&[], diagnostics)?.build(),
        _ => table.finish::<RawConfig>(&[], diagnostics)?.build(),
    };
    built
        .map_err(|problems| {
            for problem in problems {
                diagnostics.push(section.problem(problem));
            }
        })
        .ok()
}

/// The schema `keys` of a source's own keys, with the table `format` added.
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
