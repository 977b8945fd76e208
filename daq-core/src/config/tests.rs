//! Tests of the exact error messages that a user sees.

use super::*;
use crate::units::{ByteSize, Span as Time};
use serde::Deserialize;

mod document;
mod overrides;
mod partial;
mod section;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Ring {
    #[serde(default)]
    memory: Option<String>,
    slot: ByteSize,
    slots: u32,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Udp {
    listen: std::net::SocketAddr,
    #[serde(default)]
    ttl: u8,
    format: Format,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Format {
    header: ByteSize,
    payload: ByteSize,
    sequence: Sequence,
    #[serde(default)]
    timeout: Option<Time>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Sequence {
    offset: usize,
    bytes: usize,
    #[serde(default)]
    endian: Endian,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Endian {
    #[default]
    Big,
    Little,
}

/// Reads the first section of `kind` with `finish::<T>`. Returns the value, or the rendered diagnostics.
fn finish<T: serde::de::DeserializeOwned>(kind: &str, text: &str) -> Result<T, String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let section = document.sections(kind).into_iter().next();
    let value =
        section.and_then(|mut section| section.finish(&["driver", "ring"], &mut diagnostics));
    match value {
        Some(value) if !diagnostics.has_errors() => Ok(value),
        _ => Err(diagnostics.render(document.sources(), false)),
    }
}

fn ring(text: &str) -> String {
    finish::<Ring>("ring", text).unwrap_err()
}

fn udp(text: &str) -> String {
    finish::<Udp>("source", text).unwrap_err()
}

fn overridden(text: &str, env: &[(&str, &str)], set: &[&str]) -> (Document, Diagnostics) {
    let mut diagnostics = Diagnostics::new();
    let overrides = Overrides {
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        set: set.iter().map(|&set| set.to_owned()).collect(),
    };
    let document = Document::from_text("daq.toml", text, &mut diagnostics)
        .with_overrides(&overrides, &mut diagnostics);
    (document, diagnostics)
}
