//! Describes layouts in the metadata of sinks, and rejects unsupported layouts.

use daq_core::config::Problem;
use daq_core::layout::{Layout, Order, Scalar};

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
