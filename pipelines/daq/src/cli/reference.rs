//! `daq reference` prints the schema and the reference pages, which are generated from the registry.

use clap::ValueEnum;
use daq_core::entry::{Entry, Registered, Registry, SourceSpec};
use daq_core::kernel::KernelSpec;
use daq_core::plan::{
    DaqKeys, FILE_KERNEL, KernelKeys, RingKeys, SinkKeys, SourceKeys, StagingKeys,
};
use daq_core::sink::SinkSpec;
use schemars::{Schema, schema_for};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A generated page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Page {
    /// The JSON schema of configurations.
    Schema,
    /// Every key of every section, as Markdown.
    Config,
    /// Every metric, as Markdown.
    Metrics,
    /// The header `daq.cuh`, for compiling your own kernels.
    KernelHeader,
}

pub(super) fn page(registry: &Registry, page: Page) -> String {
    match page {
        Page::Schema => serde_json::to_string_pretty(&schema(registry)).unwrap_or_default() + "\n",
        Page::Config => config(registry),
        Page::Metrics => daq_pipelines::http::reference(),
        Page::KernelHeader => daq_pipelines::kernels::file::HEADER.to_owned(),
    }
}

/// Returns the schema of a whole configuration.
fn schema(registry: &Registry) -> Value {
    let mut definitions = Map::new();
    let sources = variants::<dyn SourceSpec>(
        registry,
        "driver",
        &schema_for!(SourceKeys),
        &mut definitions,
    );
    let kernels =
        variants::<dyn KernelSpec>(registry, "use", &schema_for!(KernelKeys), &mut definitions);
    let sinks =
        variants::<dyn SinkSpec>(registry, "driver", &schema_for!(SinkKeys), &mut definitions);
    let mut plain = |schema: Schema| hoist(schema.to_value(), &mut definitions);
    let named = |one: Value| json!({ "type": "object", "additionalProperties": one });
    let properties = json!({
        "daq": plain(schema_for!(DaqKeys)),
        "staging": plain(schema_for!(StagingKeys)),
        "http": plain(schema_for!(daq_pipelines::http::Http)),
        "ring": named(plain(schema_for!(RingKeys))),
        "source": named(json!({ "oneOf": sources })),
        "kernel": named(json!({ "oneOf": kernels })),
        "sink": named(json!({ "oneOf": sinks })),
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "daq",
        "description": "Configuration of a daq pipeline",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "$defs": definitions,
    })
}

/// Moves the definitions of a schema to the shared definitions `definitions`.
fn hoist(mut schema: Value, definitions: &mut Map<String, Value>) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("title");
        if let Some(Value::Object(own)) = object.remove("$defs") {
            for (name, definition) in own {
                let known = definitions.insert(name.clone(), definition.clone());
                debug_assert!(
                    known.is_none_or(|known| known == definition),
                    "two types are called {name}; rename one of them for schemas"
                );
            }
        }
    }
    schema
}

/// Returns one schema per entry. Each schema consists of the keys of the entry, the keys of the runtime, and the tag.
fn variants<S: ?Sized>(
    registry: &Registry,
    tag: &str,
    common: &Schema,
    definitions: &mut Map<String, Value>,
) -> Vec<Value>
where
    Entry<S>: Registered,
{
    let common = hoist(common.clone().to_value(), definitions);
    registry
        .all::<Entry<S>>()
        .map(|entry| {
            let mut own = hoist((entry.schema)(registry).to_value(), definitions);
            let mut properties = object(&common, "properties");
            properties.extend(object(&own, "properties"));
            // A kernel file is selected by its key `file`, so its section has no tag.
            let is_named = tag != "use" || entry.name != FILE_KERNEL;
            let mut required = Vec::new();
            if is_named {
                properties.insert(tag.to_owned(), json!({ "const": entry.name }));
                required.push(json!(tag));
            }
            for part in [&common, &own] {
                required.extend(
                    part.get("required")
                        .and_then(Value::as_array)
                        .cloned()
                        .unwrap_or_default(),
                );
            }
            own["description"] = json!(entry.summary);
            own["properties"] = Value::Object(properties);
            own["required"] = Value::Array(required);
            own["additionalProperties"] = json!(false);
            own
        })
        .collect()
}

fn object(schema: &Value, key: &str) -> Map<String, Value> {
    schema
        .get(key)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

fn config(registry: &Registry) -> String {
    let schema = schema(registry);
    let mut text = "# Configuration\n\n\
        Generated by `daq reference config`; every key of every section. Sizes, times and rates are written \
        with units: `\"4 MiB\"`, `\"10 us\"`, `\"25 Gbit/s\"`, `\"1 MHz\"`.\n"
        .to_owned();
    let definitions = object(&schema, "$defs");
    let properties = object(&schema, "properties");
    for table in ["daq", "staging", "http"] {
        let _ = writeln!(text, "\n## [{table}]\n");
        keys(&mut text, "", &properties[table], &definitions);
    }
    let _ = writeln!(text, "\n## [ring.NAME]\n");
    keys(
        &mut text,
        "",
        &properties["ring"]["additionalProperties"],
        &definitions,
    );
    group::<dyn SourceSpec>(&mut text, "source", registry, &properties, &definitions);
    group::<dyn KernelSpec>(&mut text, "kernel", registry, &properties, &definitions);
    group::<dyn SinkSpec>(&mut text, "sink", registry, &properties, &definitions);
    text
}

fn group<S: ?Sized>(
    text: &mut String,
    kind: &str,
    registry: &Registry,
    properties: &Map<String, Value>,
    definitions: &Map<String, Value>,
) where
    Entry<S>: Registered,
{
    let variants = properties[kind]["additionalProperties"]["oneOf"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for (entry, schema) in registry.all::<Entry<S>>().zip(&variants) {
        let _ = writeln!(
            text,
            "\n## [{kind}.NAME], {}\n\n{}.\n",
            entry.name, entry.summary
        );
        keys(text, "", schema, definitions);
        let _ = writeln!(text, "\n```toml\n{}\n```", entry.example.trim());
        if let Some(notes) = notes(&(entry.schema)(registry).to_value()) {
            let _ = writeln!(text, "\n{notes}");
        }
    }
}

/// Returns the text of an entry's documentation after the first paragraph. Omits code blocks, because they are tests.
fn notes(schema: &Value) -> Option<String> {
    let (_, notes) = schema.get("description")?.as_str()?.split_once("\n\n")?;
    let notes: String = notes.split("```").step_by(2).collect();
    let notes = notes.trim();
    (!notes.is_empty()).then(|| notes.to_owned())
}

/// Appends a table of the keys of `schema`. Keys of nested tables follow, each with its full path.
fn keys(text: &mut String, path: &str, schema: &Value, definitions: &Map<String, Value>) {
    if path.is_empty() {
        text.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    }
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for (name, property) in object(schema, "properties") {
        let target = follow(&property, definitions);
        let meaning = property
            .get("description")
            .or(target.get("description"))
            .and_then(Value::as_str)
            .unwrap_or("");
        let default = match property.get("default").or(target.get("default")) {
            Some(Value::Null) | None if required.contains(&json!(name)) => "required".to_owned(),
            Some(Value::Null) | None => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let inner = target.get("properties").is_some();
        let default = if inner && default != "required" {
            String::new()
        } else {
            default
        };
        let _ = writeln!(
            text,
            "| `{path}{name}` | {} | {default} | {} |",
            kind(target, definitions),
            meaning.replace('\n', " ").replace('|', "\\|"),
        );
        for choice in ["oneOf", "anyOf"] {
            for variant in target
                .get(choice)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let variant = follow(variant, definitions);
                if variant.get("properties").is_some() {
                    keys(text, &format!("{path}{name}."), variant, definitions);
                }
            }
        }
        if inner {
            keys(text, &format!("{path}{name}."), target, definitions);
        }
        let element = target.get("items").map(|items| follow(items, definitions));
        if let Some(element) = element.filter(|element| element.get("properties").is_some()) {
            keys(text, &format!("{path}{name}."), element, definitions);
        }
    }
}

/// Resolves a reference, or an optional value, to the schema that it contains.
fn follow<'a>(schema: &'a Value, definitions: &'a Map<String, Value>) -> &'a Value {
    if let Some(name) = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|path| path.rsplit('/').next())
        && let Some(target) = definitions.get(name)
    {
        return follow(target, definitions);
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(choices) = schema.get(choice).and_then(Value::as_array) {
            let real: Vec<_> = choices
                .iter()
                .filter(|one| one.get("type") != Some(&json!("null")))
                .collect();
            if let [one] = real[..] {
                return follow(one, definitions);
            }
        }
    }
    schema
}

fn kind(schema: &Value, definitions: &Map<String, Value>) -> String {
    let words = |values: &[Value]| {
        values
            .iter()
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return words(values);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = schema.get(choice).and_then(Value::as_array) {
            let kinds: Vec<_> = choices
                .iter()
                .filter(|one| one.get("type") != Some(&json!("null")))
                .map(|one| kind(follow(one, definitions), definitions))
                .collect();
            return kinds.join(" or ");
        }
    }
    let plain = match schema.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) => {
            let kinds: Vec<_> = kinds
                .iter()
                .filter_map(Value::as_str)
                .filter(|kind| *kind != "null")
                .collect();
            kinds.join(" or ")
        }
        _ => return String::new(),
    };
    match (plain.as_str(), schema.get("items")) {
        ("object", _) => "table".to_owned(),
        ("array", Some(items)) => {
            format!("array of {}", kind(follow(items, definitions), definitions))
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_pipelines::registry;
    use std::path::Path;

    /// Compares the generated files with the registry; `DAQ_UPDATE=1` rewrites them.
    #[test]
    fn generated_files_are_current() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (file, text) in [
            ("configs/schema.json", page(&registry(), Page::Schema)),
            (
                "docs/src/reference/config.md",
                page(&registry(), Page::Config),
            ),
        ] {
            let path = repository.join(file);
            if std::env::var_os("DAQ_UPDATE").is_some() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == text,
                "{file} is out of date; run the tests once with DAQ_UPDATE=1"
            );
        }
    }

    #[test]
    fn file_metadata_keys_are_all_documented() {
        let text = include_str!("../../../../docs/src/reference/file-formats.md");
        let code = include_str!("../../../../daq-core/src/sigmf.rs");
        let keys: Vec<_> = code
            .lines()
            .filter_map(|line| {
                line.trim()
                    .strip_prefix("#[serde(rename = \"daq:")?
                    .split('"')
                    .next()
            })
            .collect();
        assert!(keys.len() > 15, "{keys:?}");
        for key in keys {
            assert!(text.contains(&format!("`daq:{key}`")), "daq:{key}");
        }
    }

    #[test]
    fn config_keys_are_all_documented() {
        let text = page(&registry(), Page::Config);
        let undocumented: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("| `") && line.ends_with("|  |"))
            .collect();
        let undocumented: Vec<_> = undocumented
            .into_iter()
            .filter(|line| {
                !["`driver`", "`use`", "kind`"]
                    .iter()
                    .any(|tag| line.contains(tag))
            })
            .collect();
        assert!(
            undocumented.is_empty(),
            "keys without a description: {undocumented:#?}"
        );
    }
}
