//! The schema of a table whose keys depend on its key `kind`.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Adds the table `table`, such as `format`, to the schema `keys` of a section. `kinds` returns the names of the kinds of the
/// table, and the schemas of their keys without `kind`.
pub fn with_kinds(
    keys: Schema,
    table: &str,
    description: &str,
    required: bool,
    kinds: impl FnOnce(&mut SchemaGenerator) -> Vec<(&'static str, Schema)>,
) -> Schema {
    let mut schema = keys;
    let mut generator = SchemaSettings::default().into_generator();
    let kinds: Vec<_> = kinds(&mut generator)
        .into_iter()
        .map(|(name, keys)| with_kind(name, keys))
        .collect();
    let mut title = table.to_owned();
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let described = json!({
        "title": format!("{title}Keys"),
        "description": description,
        "oneOf": kinds,
    });
    add(&mut schema, "$defs", generator.take_definitions(true));
    let properties = Map::from_iter([(table.to_owned(), described)]);
    add(&mut schema, "properties", properties);
    if required
        && let Some(list) = schema
            .ensure_object()
            .entry("required")
            .or_insert_with(|| json!([]))
            .as_array_mut()
    {
        list.push(table.into());
    }
    schema
}

/// Adds the key `kind` with the value `name` to the schema `keys` of a kind.
fn with_kind(name: &str, keys: Schema) -> Value {
    let mut keys = keys;
    let object = keys.ensure_object();
    let mut properties = Map::new();
    properties.insert(
        "kind".to_owned(),
        json!({ "type": "string", "const": name }),
    );
    if let Some(Value::Object(own)) = object.remove("properties") {
        properties.extend(own);
    }
    object.insert("properties".to_owned(), properties.into());
    let mut required = vec![Value::from("kind")];
    if let Some(Value::Array(own)) = object.remove("required") {
        required.extend(own);
    }
    object.insert("required".to_owned(), required.into());
    keys.to_value()
}

/// Adds `entries` to the object `key` of `schema`.
fn add(schema: &mut Schema, key: &str, entries: Map<String, Value>) {
    let object = schema
        .ensure_object()
        .entry(key)
        .or_insert_with(|| json!({}));
    if let Some(object) = object.as_object_mut() {
        object.extend(entries);
    }
}
