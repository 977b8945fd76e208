//! The arrays of a store, with their content, type and number of rows per chunk.

use crate::layout::{axis, order};
use daq_core::frame::{Clock, Flags};
use daq_core::layout::{Layout, Order, Scalar};
use daq_core::sink::{SinkContext, SinkError};
use daq_core::units::ByteSize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;
use zarrs::array::{Array, ArrayBuilder, ChunkKeySeparator, DataType, FillValue, data_type};

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

/// One array of the store.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Number of bytes per row.
    pub(super) width: usize,
    /// Number of rows per chunk.
    pub(super) rows: u64,
    /// Shape of a chunk.
    pub(super) chunk: Vec<NonZeroU64>,
    /// The metadata and the codecs of the array. [`Store`](super::store::Store) writes the files.
    pub(super) array: Array<()>,
}

impl Column {
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
    let plain = |name, kind, width, attributes: Value| {
        column(name, kind, width, index, &[], &["frame"], attributes)
    };
    let clocks: Map<_, _> = (0..=u8::MAX)
        .map_while(|n| {
            (n == 0 || Clock::from_u8(n) != Clock::None)
                .then(|| (n.to_string(), json!(Clock::from_u8(n).name())))
        })
        .collect();
    let bits = json!({
        Flags::INCOMPLETE.0.to_string(): "incomplete",
        Flags::EPOCH.0.to_string(): "first of an epoch",
        Flags::TRUNCATED.0.to_string(): "truncated",
        Flags::SUSPECT.0.to_string(): "suspect",
    });
    let mut columns = vec![
        column(
            FRAMES_NAME,
            kind,
            layout.frame_bytes(),
            rows,
            &dims,
            &names,
            frame_attributes(layout),
        )?,
        plain("sequence", data_type::uint64(), 8, json!({}))?,
        plain("epoch", data_type::uint32(), 4, json!({}))?,
        plain(
            "timestamp_ns",
            data_type::uint64(),
            8,
            json!({ "units": "ns" }),
        )?,
        plain("clock", data_type::uint8(), 1, json!({ "names": clocks }))?,
        plain("length", data_type::uint64(), 8, json!({ "units": "byte" }))?,
        plain("flags", data_type::uint32(), 4, json!({ "bits": bits }))?,
    ];
    if context.packets_per_frame > 0 {
        let packets_per_frame = u64::from(context.packets_per_frame);
        let attributes = if context.packet_bytes > 0 {
            json!({ "packet_bytes": context.packet_bytes, "first_bytes": context.first_bytes })
        } else {
            json!({})
        };
        let width = context.packets_per_frame as usize;
        columns.push(column(
            "present",
            data_type::bool(),
            width,
            rows,
            &[packets_per_frame],
            &["frame", "packet"],
            attributes,
        )?);
    }
    if context.packets_per_frame > 0 && context.packet_bytes == 0 {
        for name in ["packets_per_frame", "first_bytes", "packet_bytes"] {
            columns.push(plain(name, data_type::uint32(), 4, json!({}))?);
        }
    }
    Ok(columns)
}

/// Returns the type, the dimensions and the names of the dimensions of one frame.
fn elements(layout: &Layout) -> (DataType, Vec<u64>, Vec<&'static str>) {
    let (points, channels) = (
        (layout.points as u64, "point"),
        (u64::from(layout.channels), "channel"),
    );
    let mut dims = match layout.order {
        Order::Interleaved => vec![points, channels],
        Order::Planar => vec![channels, points],
    };
    let kind = match (layout.scalar, layout.complex) {
        (Scalar::Float32, true) => data_type::complex64(),
        (Scalar::Float64, true) => data_type::complex128(),
        (scalar, complex) => {
            if complex {
                dims.push((2, "part"));
            }
            match scalar {
                Scalar::Int8 => data_type::int8(),
                Scalar::Uint8 => data_type::uint8(),
                Scalar::Int16 => data_type::int16(),
                Scalar::Int32 => data_type::int32(),
                Scalar::Float32 => data_type::float32(),
                Scalar::Float64 => data_type::float64(),
            }
        }
    };
    let (sizes, names) = dims.into_iter().unzip();
    (kind, sizes, names)
}

fn frame_attributes(layout: &Layout) -> Value {
    let mut attributes = json!({
        "axis": axis(&layout.axis),
        "order": order(layout.order),
        "type": layout.scalar.name(),
        "complex": layout.complex,
    });
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
    name: &'static str,
    kind: DataType,
    width: usize,
    rows: u64,
    dims: &[u64],
    names: &[&'static str],
    attributes: Value,
) -> Result<Column, SinkError> {
    let defect = |why: String| SinkError::Failed {
        what: format!("create the array `{name}`"),
        why,
    };
    let elements = usize::try_from(dims.iter().product::<u64>())
        .unwrap_or(usize::MAX)
        .max(1);
    let shape: Vec<u64> = std::iter::once(0).chain(dims.iter().copied()).collect();
    let chunk: Vec<u64> = std::iter::once(rows).chain(dims.iter().copied()).collect();
    let chunk: Option<Vec<NonZeroU64>> = chunk.into_iter().map(NonZeroU64::new).collect();
    let chunk = chunk.ok_or_else(|| {
        defect("a frame has no samples; raise the `slot` of the input ring".to_owned())
    })?;
    let attributes = match attributes {
        Value::Object(attributes) => attributes,
        _ => Map::new(),
    };
    let mut builder = ArrayBuilder::new(
        shape,
        chunk.clone(),
        kind,
        FillValue::new(vec![0; width / elements]),
    );
    builder
        .dimension_names(Some(names.iter().copied()))
        .attributes(attributes);
    // All chunks of an array are in one directory, with names such as `c.12.0.0`.
    builder.chunk_key_encoding_default_separator(ChunkKeySeparator::Dot);
    let array = builder
        .build(Arc::new(()), &format!("/{name}"))
        .map_err(|error| defect(error.to_string()))?;
    Ok(Column {
        name,
        width,
        rows,
        chunk,
        array,
    })
}
