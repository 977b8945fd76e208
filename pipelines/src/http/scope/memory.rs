//! The memory that browsers use at most.

use super::frames::Recent;
use super::hub::{MAX_DOWNLOADS, MAX_STREAMS, MAX_VIEWS};
use super::pixels::COLOURS;
use super::points::BLOCK;
use super::reduce::IMAGE;
use super::spectrum::ROWS;
use daq_core::layout::{Layout, Scalar};
use daq_core::plan::PlannedRing;

/// Maximum size in bytes of the header of a message, of the 4096 columns of a curve, and of a histogram.
const SMALL_BYTES: usize = 128 << 10;
/// Bytes per point of a transform: the window, the block, the scratch memory and the factors, and two sums of float64.
const TRANSFORM_BYTES: usize = 4 + 8 + 8 + 8 + 16;
/// Bytes per cell of an image while it is computed: the sum and the count of its values.
const CELL_BYTES: usize = 16;

/// Returns the maximum memory in bytes that browsers use in a plan with `rings`: copies of frames, downloads, and what views need
/// to reduce frames.
pub fn max_memory(rings: &[PlannedRing]) -> usize {
    let most = |bytes: fn(&PlannedRing) -> usize| rings.iter().map(bytes).max().unwrap_or(0);
    let recent = Recent::of(rings.len());
    let copies = rings.iter().map(|ring| {
        // The tap has a copy of the newest frame.
        let frame = ring.slot_bytes + unpacked_bytes(ring);
        recent.max_memory(ring.slot_bytes, MAX_VIEWS) + frame + working_bytes(&ring.layout)
    });
    // A download has a copy of the frame and a file.
    let download = most(|ring| ring.slot_bytes + unpacked_bytes(ring) + file_bytes(ring));
    let view = most(|ring| view_bytes(&ring.layout));
    let message = most(|ring| message_bytes(&ring.layout));
    let shared = [
        download.saturating_mul(MAX_DOWNLOADS),
        view * MAX_VIEWS,
        message * 2 * MAX_STREAMS,
    ];
    copies.chain(shared).fold(0, usize::saturating_add)
}

/// Returns the size of a frame whose packed numbers are unpacked to `int16`; 0 if the numbers are not packed.
fn unpacked_bytes(ring: &PlannedRing) -> usize {
    let scalar = ring.layout.scalar;
    scalar.packing().map_or(0, |packing| {
        let bits = ring.slot_bytes.saturating_mul(Scalar::Int16.bits());
        bits / packing.bits as usize
    })
}

fn file_bytes(ring: &PlannedRing) -> usize {
    unpacked_bytes(ring).max(ring.slot_bytes)
}

/// Returns the size of the largest transform.
fn transform_size(layout: &Layout) -> usize {
    layout.points.min(BLOCK)
}

/// Returns the maximum number of values of an image.
fn cells(layout: &Layout) -> usize {
    let channels = (layout.channels as usize).max(1);
    let pixels = layout.image().map_or(0, |image| {
        let (width, height) = image.size();
        let is_grey = channels == 1 && image.colors.is_none();
        let values = if is_grey { 1 } else { COLOURS };
        width.saturating_mul(height).saturating_mul(values)
    });
    let values = layout.points.saturating_mul(channels).max(pixels);
    values.min(IMAGE.0 * IMAGE.1 * COLOURS)
}

/// Returns the maximum size of a message.
fn message_bytes(layout: &Layout) -> usize {
    let values = transform_size(layout) * (ROWS + 1) + cells(layout);
    SMALL_BYTES + values * size_of::<f32>()
}

/// Returns the size of the buffers of a view, and of its newest message.
pub(super) fn view_bytes(layout: &Layout) -> usize {
    let points = transform_size(layout) * (2 * size_of::<f32>() + TRANSFORM_BYTES);
    points + message_bytes(layout)
}

/// Returns the memory in which a thread computes a message: the arrays, which can have up to twice their size, their encoding,
/// and the cells of an image.
fn working_bytes(layout: &Layout) -> usize {
    3 * message_bytes(layout) + cells(layout) * CELL_BYTES
}
