//! Reading of metadata, also of files that other programs wrote.
//!
//! Parsing is strict for fields whose misinterpretation would result in wrong samples (type, channels, indices). It is
//! lenient otherwise: unknown keys are ignored, text fields of another JSON type are treated as absent, and integers
//! may be written as `1000.0`.

use super::{Annotation, Capture, Datatype, Extension, Global, Meta, Stream};
use crate::frame::PacketSizes;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Maximum size in bytes of a metadata file that [`Meta::read`] accepts.
pub(crate) const MAX_META_BYTES: u64 = 64 << 20;

/// The error for metadata that cannot be used.
#[derive(Debug, Error)]
pub enum SigmfError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the metadata file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The file is implausibly large.
    #[error(
        "{path} is larger than {MAX_META_BYTES} B, the maximum for metadata; check that this file is the metadata and not the data"
    )]
    TooLarge {
        /// Path of the metadata file.
        path: PathBuf,
    },
    /// The text is not JSON.
    #[error("SigMF metadata is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A required field is missing.
    #[error("SigMF metadata lacks {field}: {why}")]
    Missing {
        /// The path of the field.
        field: String,
        /// What the field is needed for.
        why: &'static str,
    },
    /// A field has an invalid value.
    #[error("SigMF metadata: {field} is {value}, but must be {wanted}")]
    Value {
        /// The path of the field.
        field: String,
        /// The invalid value.
        value: String,
        /// Description of valid values.
        wanted: &'static str,
    },
}

impl Meta {
    /// Reads the metadata file `path`, which may have at most 64 MiB.
    pub fn read(path: &Path) -> Result<Self, SigmfError> {
        let io = |source| SigmfError::Io {
            path: path.to_owned(),
            source,
        };
        let mut text = Vec::new();
        crate::file::open(path)
            .map_err(io)?
            .take(MAX_META_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(io)?;
        if text.len() as u64 > MAX_META_BYTES {
            return Err(SigmfError::TooLarge {
                path: path.to_owned(),
            });
        }
        Self::parse(&text)
    }

    /// Parses the text of a metadata file, with or without a byte order mark. Captures and annotations are returned in ascending order. If the file has no
    /// captures, one capture of all samples is added.
    pub fn parse(text: &[u8]) -> Result<Self, SigmfError> {
        // Some programs write a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let root: Value = serde_json::from_slice(text)?;
        let global = root
            .get("global")
            .and_then(Value::as_object)
            .ok_or_else(|| SigmfError::Missing {
                field: "the object `global`".into(),
                why: "this object must contain the sample type",
            })?;
        let global = read_global(Fields {
            at: "global",
            index: None,
            map: global,
        })?;
        let mut captures = read_list(&root, "captures", read_capture)?;
        if captures.is_empty() {
            captures.push(Capture {
                sample_start: global.offset,
                ..Capture::default()
            });
        }
        captures.sort_by_key(|capture| capture.sample_start);
        let mut annotations = read_list(&root, "annotations", read_annotation)?;
        annotations.sort_by_key(|annotation| annotation.sample_start);
        Ok(Self {
            global,
            captures,
            annotations,
        })
    }
}

fn read_list<T>(
    root: &Value,
    at: &'static str,
    read: fn(Fields<'_>) -> Result<T, SigmfError>,
) -> Result<Vec<T>, SigmfError> {
    let items = match root.get(at) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong(at.into(), other, "an array")),
    };
    let item = |(i, item): (usize, &Value)| match item.as_object() {
        Some(map) => read(Fields {
            at,
            index: Some(i),
            map,
        }),
        None => Err(wrong(format!("{at}[{i}]"), item, "an object")),
    };
    items.iter().enumerate().map(item).collect()
}

fn read_global(fields: Fields<'_>) -> Result<Global, SigmfError> {
    let datatype = match fields.map.get("core:datatype") {
        Some(Value::String(text)) => text.parse::<Datatype>()?,
        Some(other) => {
            return Err(fields.wrong("core:datatype", other, "a string such as \"ci16_le\""));
        }
        None => {
            return Err(fields.missing(
                "core:datatype",
                "the sample type is needed to read the data",
            ));
        }
    };
    let channels = match fields.integer("core:num_channels")? {
        None => 1,
        Some(n) => u32::try_from(n)
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(|| SigmfError::Value {
                field: fields.name("core:num_channels"),
                value: n.to_string(),
                wanted: "1 to 4294967295",
            })?,
    };
    let dataset = fields.text("core:dataset");
    if let Some(name) = dataset.as_deref().filter(|name| !is_plain_name(name)) {
        return Err(SigmfError::Value {
            field: fields.name("core:dataset"),
            value: shorten(name),
            wanted: "the name of a file in the same directory",
        });
    }
    Ok(Global {
        datatype,
        version: fields.text("core:version").unwrap_or_default(),
        sample_rate: fields.positive("core:sample_rate"),
        channels,
        offset: fields.integer("core:offset")?.unwrap_or(0),
        dataset,
        trailing_bytes: fields.integer("core:trailing_bytes")?.unwrap_or(0),
        recorder: fields.text("core:recorder"),
        description: fields.text("core:description"),
        author: fields.text("core:author"),
        hardware: fields.text("core:hw"),
        extensions: read_extensions(fields.map)?,
        stream: read_stream(&fields)?,
    })
}

fn read_extensions(global: &Map<String, Value>) -> Result<Vec<Extension>, SigmfError> {
    let items = global
        .get("core:extensions")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let mut extensions = Vec::new();
    for item in items {
        let text = |key: &str| {
            item.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let extension = Extension {
            name: text("name"),
            version: text("version"),
            optional: item
                .get("optional")
                .and_then(Value::as_bool)
                .unwrap_or(true),
        };
        if !extension.optional && extension.name != super::NAMESPACE {
            return Err(SigmfError::Value {
                field: "global.core:extensions".into(),
                value: shorten(&extension.name),
                wanted: "an optional extension (optional: true), because daq cannot read samples that need an extension",
            });
        }
        extensions.push(extension);
    }
    Ok(extensions)
}

/// Reads daq's own keys. Returns `None` if another program wrote the file, which is the case if `daq:bytes` is missing.
fn read_stream(fields: &Fields<'_>) -> Result<Option<Stream>, SigmfError> {
    let Some(bytes) = fields.integer("daq:bytes")? else {
        return Ok(None);
    };
    Ok(Some(Stream {
        bytes,
        frames: fields.integer("daq:frames")?.unwrap_or(0),
        frame_bytes: fields.integer("daq:frame_bytes")?.unwrap_or(0),
        packets_per_frame: fields.small("daq:packets_per_frame")?.unwrap_or(0),
        packet_sizes: read_packet_sizes(fields)?,
        sizes_differ: fields.map.get("daq:sizes_differ").and_then(Value::as_bool),
        segment: fields.integer("daq:segment")?.unwrap_or(0),
        first_segment: fields.integer("daq:first_segment")?,
        source: fields.text("daq:source"),
        missing_samples: fields.integer("daq:missing_samples")?.unwrap_or(0),
        missing_frames: fields.integer("daq:missing_frames")?.unwrap_or(0),
        channels: fields.small("daq:channels")?,
        points: fields.integer("daq:points")?,
        order: fields.text("daq:order"),
        axis: fields
            .map
            .get("daq:axis")
            .filter(|axis| !axis.is_null())
            .cloned(),
        frame_rate: fields.map.get("daq:frame_rate").and_then(Value::as_f64),
        kept: fields.texts("daq:kept"),
    }))
}

/// Reads the sizes of packets. Returns `None` if the file does not contain them.
fn read_packet_sizes(fields: &Fields<'_>) -> Result<Option<PacketSizes>, SigmfError> {
    let sizes = fields
        .small("daq:first_bytes")?
        .zip(fields.small("daq:packet_bytes")?);
    let parts = fields.small("daq:parts")?.unwrap_or(1).max(1);
    Ok(sizes.map(|(first, rest)| PacketSizes { first, rest, parts }))
}

fn read_capture(fields: Fields<'_>) -> Result<Capture, SigmfError> {
    Ok(Capture {
        sample_start: fields.required("core:sample_start")?,
        global_index: fields.integer("core:global_index")?,
        datetime: fields.text("core:datetime"),
        frequency: fields.map.get("core:frequency").and_then(Value::as_f64),
        bandwidth: fields.map.get("daq:bandwidth").and_then(Value::as_f64),
        header_bytes: fields.integer("core:header_bytes")?.unwrap_or(0),
        sequence: fields.integer("daq:sequence")?,
        epoch: fields.small("daq:epoch")?,
        clock: fields.text("daq:clock"),
        clock_ns: fields.integer("daq:time_ns")?,
        times_ns: fields.offsets("daq:times_ns"),
        frames: fields.integer("daq:frames")?,
        missing_frames: fields.integer("daq:missing_frames")?.unwrap_or(0),
    })
}

fn read_annotation(fields: Fields<'_>) -> Result<Annotation, SigmfError> {
    Ok(Annotation {
        sample_start: fields.required("core:sample_start")?,
        sample_count: fields.integer("core:sample_count")?,
        label: fields.text("core:label"),
        comment: fields.text("core:comment"),
        cause: fields.text("daq:cause"),
        missing_frames: fields.integer("daq:missing_frames")?.unwrap_or(0),
        missing_bytes: fields.ranges("daq:missing_bytes"),
        merged: fields.integer("daq:merged")?.unwrap_or(0),
        kept: fields.integers("daq:kept"),
    })
}

/// The members of one JSON object, and the object's path for messages.
#[derive(Clone, Copy)]
struct Fields<'a> {
    at: &'static str,
    index: Option<usize>,
    map: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn name(&self, key: &str) -> String {
        match self.index {
            Some(i) => format!("{}[{i}].{key}", self.at),
            None => format!("{}.{key}", self.at),
        }
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &'static str) -> SigmfError {
        wrong(self.name(key), value, wanted)
    }

    fn missing(&self, key: &str, why: &'static str) -> SigmfError {
        SigmfError::Missing {
            field: self.name(key),
            why,
        }
    }

    fn text(&self, key: &str) -> Option<String> {
        self.map.get(key).and_then(Value::as_str).map(str::to_owned)
    }

    /// Returns the texts of the array `key`. Other values are ignored.
    fn texts(&self, key: &str) -> Vec<String> {
        let texts = self.map.get(key).and_then(Value::as_array);
        let texts = texts.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }

    /// Returns the integers of the object `key`. Other values are ignored.
    fn integers(&self, key: &str) -> BTreeMap<String, u64> {
        let values = self.map.get(key).and_then(Value::as_object);
        let values = values.into_iter().flatten();
        values
            .filter_map(|(name, value)| Some((name.clone(), value.as_u64()?)))
            .collect()
    }

    /// Returns the integers of the array `key`. Other values become `None`.
    fn offsets(&self, key: &str) -> Vec<Option<i64>> {
        let values = self.map.get(key).and_then(Value::as_array);
        values.into_iter().flatten().map(Value::as_i64).collect()
    }

    /// Returns the pairs of integers of the array `key`. Other values are ignored.
    fn ranges(&self, key: &str) -> Vec<[u64; 2]> {
        let pairs = self.map.get(key).and_then(Value::as_array);
        let pair = |value: &Value| match value.as_array()?.as_slice() {
            [first, count] => Some([first.as_u64()?, count.as_u64()?]),
            _ => None,
        };
        pairs.into_iter().flatten().filter_map(pair).collect()
    }

    fn positive(&self, key: &str) -> Option<f64> {
        self.map
            .get(key)
            .and_then(Value::as_f64)
            .filter(|value| *value > 0.0 && value.is_finite())
    }

    fn integer(&self, key: &str) -> Result<Option<u64>, SigmfError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let whole = value.as_u64().or_else(|| value.as_f64().and_then(whole));
                whole
                    .map(Some)
                    .ok_or_else(|| self.wrong(key, value, "an integer of at least 0"))
            }
        }
    }

    fn small(&self, key: &str) -> Result<Option<u32>, SigmfError> {
        let Some(n) = self.integer(key)? else {
            return Ok(None);
        };
        u32::try_from(n).map(Some).map_err(|_| SigmfError::Value {
            field: self.name(key),
            value: n.to_string(),
            wanted: "an integer from 0 to 4294967295",
        })
    }

    fn required(&self, key: &str) -> Result<u64, SigmfError> {
        self.integer(key)?.ok_or_else(|| {
            self.missing(
                key,
                "the field must state which samples the entry describes",
            )
        })
    }
}

/// Converts a whole float to an integer, up to the largest integer that a float represents exactly.
fn whole(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    // The value is whole and in range, so the conversion is exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (value.fract() == 0.0 && (0.0..=EXACT).contains(&value)).then_some(value as u64)
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

fn wrong(field: String, value: &Value, wanted: &'static str) -> SigmfError {
    let value = match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        other => shorten(&other.to_string()),
    };
    SigmfError::Value {
        field,
        value,
        wanted,
    }
}

/// Shortens `text` to a length suitable for a message.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
