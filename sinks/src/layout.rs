//! Describes layouts in the metadata of sinks, and rejects unsupported layouts.

use daq_core::config::Problem;
use daq_core::layout::{Axis, Layout, Order, Scalar};
use serde_json::{Value, json};

/// Rejects layouts without samples, and sample types for which `name` returns no name in the files of `sink`.
pub(crate) fn check_layout<T>(
    layout: &Layout,
    sink: &str,
    name: fn(Scalar) -> Option<T>,
) -> Result<(), Problem> {
    if name(layout.scalar).is_none() {
        return Err(layout.scalar.unsupported(&format!("sink `{sink}`")));
    }
    if layout.frame_bytes() == 0 {
        return Err(
            Problem::at("input", "the input's frames are smaller than one point")
                .help("raise the `slot` of the input ring"),
        );
    }
    Ok(())
}

/// Returns the name of an order in the metadata.
pub(crate) const fn order(order: Order) -> &'static str {
    match order {
        Order::Interleaved => "interleaved",
        Order::Planar => "planar",
    }
}

/// Describes an axis in the metadata: its `kind`, and its known values in Hz.
pub(crate) fn axis(axis: &Axis) -> Value {
    let mut known = serde_json::Map::new();
    let mut insert = |key: &str, value: &Option<f64>| {
        if let Some(value) = value {
            known.insert(key.to_owned(), json!(value));
        }
    };
    let kind = match axis {
        Axis::Time { rate } => {
            insert("rate", rate);
            "time"
        }
        Axis::Frequency { start, step } => {
            insert("start", start);
            insert("step", step);
            "frequency"
        }
        Axis::Fields(names) => {
            known.insert("names".to_owned(), json!(names));
            "fields"
        }
    };
    known.insert("kind".to_owned(), json!(kind));
    Value::Object(known)
}
