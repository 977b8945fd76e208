//! Registry entries of engines, and the keys and the schema that follow from them.

use super::FpgaEngine;
use crate::fpga::FpgaSource;
use crate::fpga::device::Device;
use crate::fpga::keys::FpgaConfig;
use daq_core::config::{Diagnostics, Problem, Section, nearest};
use daq_core::dma::EngineInfo;
use daq_core::entry::{Registered, Registry, SourceSpec};
use daq_core::plan::SourceKeys;
use schemars::{Schema, schema_for};
use serde_json::Value;
use std::fmt;

/// A registry entry of an engine, selected by `engine = "…"`.
#[derive(Clone, Copy)]
pub struct EngineEntry {
    /// The description of the engine.
    pub info: &'static EngineInfo,
    /// The JSON schema of the engine's own keys.
    pub schema: fn() -> Schema,
    /// Reads a section that selects this engine.
    pub(in crate::fpga) parse:
        fn(&mut Section, &Registry, &mut Diagnostics) -> Option<Box<dyn SourceSpec>>,
    pub(super) recognises: fn(&dyn Device) -> bool,
}

impl EngineEntry {
    /// Creates the entry of the engine `E`.
    pub const fn of<E: FpgaEngine>() -> Self {
        Self {
            info: &E::INFO,
            schema: || schema_for!(E::Keys),
            parse: |section, registry, diagnostics| {
                FpgaSource::<E>::read(section, registry, diagnostics)
                    .map(|source| Box::new(source) as Box<dyn SourceSpec>)
            },
            recognises: E::recognises,
        }
    }

    /// Returns the names of the engine's own keys.
    pub(in crate::fpga) fn keys(&self) -> Vec<String> {
        names(&(self.schema)())
    }
}

/// Returns the names of the keys of `schema`.
fn names(schema: &Schema) -> Vec<String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.map_or(Vec::new(), |keys| keys.keys().cloned().collect())
}

impl Registered for EngineEntry {
    fn kind(&self) -> &'static str {
        "DMA engines"
    }

    fn name(&self) -> &'static str {
        self.info.name
    }

    fn summary(&self) -> &'static str {
        self.info.summary
    }

    fn mistake(&self) -> Option<String> {
        let common = [
            names(&schema_for!(FpgaConfig)),
            names(&schema_for!(SourceKeys)),
        ]
        .concat();
        let key = self.keys().into_iter().find(|key| common.contains(key))?;
        Some(format!(
            "every source `fpga` has a key `{key}`; rename the field `{key}` of the engine's `Keys`"
        ))
    }
}

impl fmt::Debug for EngineEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineEntry")
            .field("info", self.info)
            .finish_non_exhaustive()
    }
}

/// Returns the problem of a configuration that selects no engine of `engines`.
pub(in crate::fpga) fn missing_engine(config: &FpgaConfig, engines: &[EngineEntry]) -> Problem {
    if let Some(name) = &config.engine {
        let names: Vec<&str> = engines.iter().map(|entry| entry.info.name).collect();
        let help = match nearest(name, &names).or(names.first().copied()) {
            Some(suggestion) => format!("write for instance \"{suggestion}\""),
            None => "this program contains no DMA engine".to_owned(),
        };
        return Problem::at("engine", format!("`engine`: unknown engine \"{name}\"")).help(help);
    }
    let names: Vec<String> = engines
        .iter()
        .map(|entry| format!("\"{}\" ({})", entry.info.name, entry.info.summary))
        .collect();
    let message = format!("the DMA engine of {} is not configured", config.device);
    Problem::at("engine", message).help(format!("add `engine`: {}", names.join(", ")))
}

/// Returns the names of all keys that belong to `engines`.
pub(in crate::fpga) fn engine_keys(engines: &[EngineEntry]) -> Vec<String> {
    let mut keys: Vec<String> = engines.iter().flat_map(EngineEntry::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns the schema of all keys of the source: the common keys, and the keys of `engines`.
pub(in crate::fpga) fn schema(engines: &[EngineEntry]) -> Schema {
    let mut schema = schema_for!(FpgaConfig).to_value();
    let names: Vec<&str> = engines.iter().map(|entry| entry.info.name).collect();
    schema["properties"]["engine"]["enum"] = names.into();
    for entry in engines {
        let own = (entry.schema)().to_value();
        for part in ["$defs", "properties"] {
            let own = own[part].as_object().into_iter().flatten();
            for (key, value) in own {
                let known = &mut schema[part][key];
                if known.is_null() {
                    *known = value.clone();
                }
                if part == "properties" {
                    let users = engines.iter().filter(|engine| engine.keys().contains(key));
                    let users: Vec<String> = users
                        .map(|engine| format!("`{}`", engine.info.name))
                        .collect();
                    let text = value["description"].as_str().unwrap_or_default();
                    known["description"] = format!("{}: {text}", users.join(", ")).into();
                }
            }
        }
    }
    serde_json::from_value(schema).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fpga::ENGINES;
    use schemars::JsonSchema;

    #[test]
    fn engine_cannot_take_key_that_every_fpga_source_has() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only the schema is used")]
        struct Keys {
            fifo: usize,
            channel: usize,
        }
        let [entry, ..] = ENGINES else {
            unreachable!("there are engines");
        };
        assert_eq!(entry.mistake(), None);
        let entry = EngineEntry {
            schema: || schema_for!(Keys),
            ..*entry
        };
        let added =
            std::panic::catch_unwind(|| Registry::default().with(Box::leak(Box::new(entry))));
        let message = *added.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(
            message,
            "`xdma` of DMA engines: every source `fpga` has a key `channel`; rename the field `channel` of the engine's `Keys`"
        );
        let silent_after = EngineEntry {
            schema: || schema_for!(SourceKeys),
            ..entry
        };
        assert!(silent_after.mistake().is_some());
    }
}
