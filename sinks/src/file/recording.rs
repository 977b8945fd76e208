//! Describes a layout with the terms of SigMF.

use crate::layout::order;
use crate::sigmf::{Recording, Table};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::sigmf::{Datatype, Number};
use daq_core::sink::SinkContext;

/// Returns the SigMF description of the frames of `context`.
pub(super) fn recording(
    context: &SinkContext,
    description: Option<String>,
    hardware: Option<String>,
) -> Recording {
    let layout = &context.layout;
    let table = table(layout);
    Recording {
        // `check` of the sink accepts only types with a name in SigMF.
        datatype: Datatype {
            number: number(layout.scalar).unwrap_or(Number::U8),
            complex: layout.complex,
            big_endian: layout.scalar.is_big_endian(),
        },
        channels: if table.is_some() { 1 } else { layout.channels },
        sample_rate: if table.is_some() {
            None
        } else {
            layout.sample_rate()
        },
        frame_bytes: layout.frame_bytes() as u64,
        packets_per_frame: context.packets_per_frame,
        packet_sizes: context.packet_sizes,
        detects_sizes: context.packets_per_frame > 0 && context.packet_sizes.rest == 0,
        is_layout_maximum: context.is_layout_maximum,
        source: context.ring.clone(),
        description,
        hardware,
        table,
        kept: context.kept.clone(),
    }
}

/// Returns the shape of frames that are not interleaved samples over time.
fn table(layout: &Layout) -> Option<Table> {
    let interleaved = layout.order == Order::Interleaved || layout.channels == 1;
    if interleaved && matches!(layout.axis, Axis::Time { .. }) {
        return None;
    }
    Some(Table {
        channels: layout.channels,
        points: layout.points as u64,
        order: order(layout.order),
        axis: serde_json::to_value(&layout.axis).unwrap_or_default(),
        frame_rate: layout.frame_rate,
    })
}

/// Returns the SigMF type of a number; `None` if SigMF has no such type.
pub(super) const fn number(scalar: Scalar) -> Option<Number> {
    Some(match scalar.little_endian() {
        Scalar::Int8 => Number::I8,
        Scalar::Uint8 => Number::U8,
        Scalar::Int16 => Number::I16,
        Scalar::Uint16 => Number::U16,
        Scalar::Int32 => Number::I32,
        Scalar::Uint32 => Number::U32,
        Scalar::Float32 => Number::F32,
        Scalar::Float64 => Number::F64,
        _ => return None,
    })
}
