//! The arrays of a store, with their content, type and number of rows per chunk.

use crate::layout::order;
use daq_core::frame::{Clock, Flags, MAX_KEPT_FIELDS};
use daq_core::layout::{ArrayType, Layout, Order, Scalar};
use daq_core::sink::{SinkContext, SinkError};
use daq_core::units::ByteSize;
use serde_json::{Value, json};

/// Desired number of rows per chunk of the arrays other than `frames`, so that their files are not too small. The
/// actual number is a multiple of the number of rows per chunk of `frames`.
const INDEX_ROWS: u64 = 4096;

/// Name of the payload array.
pub(super) const FRAMES_NAME: &str = "frames";

/// Index of the payload array in [`columns`].
pub(super) const FRAMES: usize = 0;
pub(super) const SEQUENCE: usize = 1;
pub(super) const EPOCH: usize = 2;
pub(super) const TIMESTAMP: usize = 3;
pub(super) const CLOCK: usize = 4;
pub(super) const LENGTH: usize = 5;
pub(super) const FLAGS: usize = 6;
pub(super) const PRESENT: usize = 7;

/// Units of times of clocks that do not count from 1970, or of several clocks.
pub(super) const UNITS: &str = "ns";
/// Units of times in UTC, which xarray decodes.
pub(super) const UTC_UNITS: &str = "nanoseconds since 1970-01-01";

/// Name of the array that states which kept fields are present. The arrays of the fields follow it.
pub(super) const KEPT_NAME: &str = "kept";

/// One array of the store.
pub(super) struct Column {
    pub(super) name: String,
    /// Number of bytes per row.
    pub(super) width: usize,
    /// Number of rows per chunk.
    pub(super) rows: u64,
    /// The array's metadata, as in its `zarr.json`: <https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html>.
    pub(super) metadata: Value,
}

impl Column {
    /// Returns the name of the file of a chunk. `chunk` counts along the first dimension; along the others there is one
    /// chunk.
    pub(super) fn chunk_name(&self, chunk: u64) -> String {
        let dims = self.metadata["shape"].as_array().map_or(1, Vec::len);
        format!("c.{chunk}{}", ".0".repeat(dims - 1))
    }

    /// Sets the number of rows of the array.
    pub(super) fn set_rows(&mut self, rows: u64) {
        self.metadata["shape"][0] = json!(rows);
    }

    /// Returns the number of bytes per chunk.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.width * usize::try_from(self.rows).unwrap_or(usize::MAX)
    }
}

/// Returns the number of frames in a chunk of about `chunk` bytes.
pub(super) fn chunk_rows(chunk: ByteSize, frame_bytes: usize) -> u64 {
    (chunk.0 / (frame_bytes as u64).max(1)).max(1)
}

/// Returns the arrays for frames of `context`, with `rows` frames per chunk.
pub(super) fn columns(context: &SinkContext, rows: u64) -> Result<Vec<Column>, SinkError> {
    let layout = &context.layout;
    // The number is a multiple of the rows of `frames`, so that one chunk of frames never spans two chunks of these
    // arrays.
    let index = rows * (INDEX_ROWS / rows).max(1);
    let (kind, dims, mut names) = elements(layout);
    names.insert(0, "frame");
    let plain = |name: &str, kind, width, attributes: Value| {
        column(name, kind, width, index, &[], &["frame"], &attributes)
    };
    let clocks = (0..=u8::MAX)
        .take_while(|n| *n == 0 || Clock::from_u8(*n) != Clock::None)
        .map(|n| (u32::from(n), Clock::from_u8(n).name()));
    let bits = [
        (Flags::INCOMPLETE.0, "incomplete"),
        (Flags::EPOCH.0, "first_of_an_epoch"),
        (Flags::TRUNCATED.0, "truncated"),
        (Flags::SUSPECT.0, "suspect"),
    ];
    let mut frames = column(
        FRAMES_NAME,
        kind,
        layout.frame_bytes(),
        rows,
        &dims,
        &names,
        &frame_attributes(layout),
    )?;
    if layout.scalar.is_big_endian() {
        frames.metadata["codecs"][0]["configuration"]["endian"] = json!("big");
    }
    let mut columns = vec![
        frames,
        plain("sequence", "uint64", 8, json!({}))?,
        plain("epoch", "uint32", 4, json!({}))?,
        plain("timestamp_ns", "uint64", 8, json!({ "units": UNITS }))?,
        plain("clock", "uint8", 1, meanings("flag_values", clocks))?,
        plain("length", "uint64", 8, json!({ "units": "byte" }))?,
        plain("flags", "uint32", 4, meanings("flag_masks", bits))?,
    ];
    if context.packets_per_frame > 0 {
        let packets_per_frame = u64::from(context.packets_per_frame);
        let attributes = if context.packet_sizes.rest > 0 {
            json!(context.packet_sizes)
        } else {
            json!({})
        };
        let width = context.packets_per_frame as usize;
        columns.push(column(
            "present",
            "bool",
            width,
            rows,
            &[packets_per_frame],
            &["frame", "packet"],
            &attributes,
        )?);
    }
    if context.packets_per_frame > 0 && context.packet_sizes.rest == 0 {
        for name in ["packets_per_frame", "first_bytes", "packet_bytes"] {
            columns.push(plain(name, "uint32", 4, json!({}))?);
        }
    }
    if !context.kept.is_empty() {
        let bits = (0..MAX_KEPT_FIELDS)
            .zip(&context.kept)
            .map(|(i, name)| (1 << i, name.as_str()));
        columns.push(plain(KEPT_NAME, "uint8", 1, meanings("flag_masks", bits))?);
        for name in context.kept.iter().take(MAX_KEPT_FIELDS) {
            columns.push(plain(name, "uint64", 8, json!({}))?);
        }
    }
    Ok(columns)
}

/// Returns the type, the dimensions and the names of the dimensions of one frame.
fn elements(layout: &Layout) -> (&'static str, Vec<u64>, Vec<&'static str>) {
    let (points, channels) = (
        (layout.points as u64, "point"),
        (u64::from(layout.channels), "channel"),
    );
    let mut dims = match layout.order {
        _ if layout.image().is_some() => of_image(layout),
        Order::Interleaved => vec![points, channels],
        Order::Planar => vec![channels, points],
    };
    let kind = match (layout.scalar.little_endian(), layout.complex) {
        (Scalar::Float32, true) => "complex64",
        (Scalar::Float64, true) => "complex128",
        (scalar, complex) => {
            if complex {
                dims.push((2, "part"));
            }
            number(scalar).unwrap_or_default()
        }
    };
    let (sizes, names) = dims.into_iter().unzip();
    (kind, sizes, names)
}

/// Returns the dimensions of an image, without that of pairs of numbers.
fn of_image(layout: &Layout) -> Vec<(u64, &'static str)> {
    let array = ArrayType::of(layout);
    let dims = array.shape.into_iter().zip(array.axes);
    let dims = dims.filter(|(_, name)| *name != "part");
    dims.map(|(size, name)| (size as u64, name)).collect()
}

/// Returns the Zarr type of a real number; `None` if the core of the Zarr specification has no such type.
pub(super) const fn number(scalar: Scalar) -> Option<&'static str> {
    match scalar {
        Scalar::Bfloat16 => None,
        _ if scalar.packing().is_some() => None,
        _ => Some(scalar.little_endian().name()),
    }
}

/// Returns the numbers or bits of an array and their meanings as the CF conventions store them, `key` with the numbers.
fn meanings<'a>(key: &str, known: impl IntoIterator<Item = (u32, &'a str)>) -> Value {
    let (numbers, names): (Vec<_>, Vec<_>) = known.into_iter().unzip();
    json!({ key: numbers, "flag_meanings": names.join(" ") })
}

/// Returns the attributes of the frames: only numbers, texts and lists of them, because other files, such as netCDF, have no other
/// attributes.
fn frame_attributes(layout: &Layout) -> Value {
    let mut attributes = json!({
        "order": order(layout.order),
        "type": layout.scalar.name(),
        "complex": u8::from(layout.complex),
    });
    if let Ok(Value::Object(known)) = serde_json::to_value(&layout.axis) {
        for (key, value) in known {
            let name = match key.as_str() {
                "kind" => "axis".to_owned(),
                key => format!("axis_{key}"),
            };
            attributes[name] = value;
        }
    }
    for (key, rate) in [
        ("sample_rate", layout.sample_rate()),
        ("frame_rate", layout.frame_rate),
    ] {
        if let Some(rate) = rate {
            attributes[key] = json!(rate);
        }
    }
    attributes
}

fn column(
    name: &str,
    kind: &str,
    width: usize,
    rows: u64,
    dims: &[u64],
    names: &[&str],
    attributes: &Value,
) -> Result<Column, SinkError> {
    let with_rows = |rows| [&[rows], dims].concat();
    if with_rows(rows).contains(&0) {
        return Err(SinkError::Failed {
            what: format!("create the array `{name}`"),
            why: "a frame has no samples; raise the `slot` of the input ring".to_owned(),
        });
    }
    let fill = match kind {
        "bool" => json!(false),
        "complex64" | "complex128" => json!([0.0, 0.0]),
        "float16" | "float32" | "float64" => json!(0.0),
        _ => json!(0),
    };
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": with_rows(0),
        "data_type": kind,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": with_rows(rows) } },
        // All chunks of an array are in one directory, with names such as `c.12.0.0`.
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "." } },
        "fill_value": fill,
        "codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        "dimension_names": names,
        "attributes": attributes,
    });
    Ok(Column {
        name: name.to_owned(),
        width,
        rows,
        metadata,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::is_metadata_name;
    use daq_core::layout::{Axis, Image, Module};
    use daq_testkit::sink::{context, layout};

    #[test]
    fn images_have_rows_columns_and_modules() {
        let pixels = layout(Scalar::Int16, true, 1, 24);
        let image = Image {
            width: 4,
            height: 3,
            colors: None,
            modules: vec![Module::default(); 2],
        };
        let pixels = Layout {
            axis: Axis::Pixels(image),
            ..pixels
        };
        let context = context(std::path::Path::new("."), "raw", pixels, 4, 0);
        let frames = &columns(&context, 1).unwrap()[0];
        let names = json!(["frame", "module", "y", "x", "part"]);
        assert_eq!(frames.metadata["dimension_names"], names);
        assert_eq!(frames.metadata["shape"], json!([0, 2, 3, 4, 2]));
        let attributes = &frames.metadata["attributes"];
        assert_eq!(attributes["axis"], "pixels");
        assert_eq!(attributes["axis_module_x"], json!([0, 0]));
    }

    /// Otherwise the array of a kept field could replace another array.
    #[test]
    fn names_of_other_arrays_are_reserved() {
        let layout = layout(Scalar::Int16, false, 1, 32);
        let mut context = context(std::path::Path::new("."), "raw", layout, 4, 0);
        context.kept = vec!["feng_id".to_owned()];
        let columns = columns(&context, 1).unwrap();
        assert_eq!(columns.len(), 13);
        for column in &columns[..12] {
            assert!(is_metadata_name(&column.name), "{}", column.name);
        }
    }
}
