//! The CUDA implementation of `convert`.

use super::super::device::{self, slots};
use super::super::finish_with_packets;
use super::super::parameters::{Conversion, code_of, small};
use super::converted_packets;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Function, Grid};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::{Layout, Order, Scalar};
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

const THREADS: u32 = 256;
/// Number of values that a thread converts at a time.
const WIDTH: usize = 4;
/// Number of samples of a tile. The next constant is the maximum number of channels of a tile.
const TILE: usize = 1024;
const MAX_WIDE: usize = 32;
/// Number of blocks per multiprocessor.
const BLOCKS: u32 = 16;

pub(super) fn build(
    ordinal: u32,
    input: &Layout,
    output: &Layout,
    factor: f64,
    offset: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let layouts = [input.clone(), output.clone()];
    let (device, module) = device::CONVERT.load(ordinal)?;
    let is_reordered = input.order != output.order && input.channels > 1;
    let function = module.function(match (is_reordered, output.scalar) {
        (false, Scalar::Int16) => "convert_straight_int16",
        (true, Scalar::Int16) => "convert_tiles_int16",
        (false, _) => "convert_straight",
        (true, _) => "convert_tiles",
    })?;
    let channels = input.channels as usize;
    let wide = channels.min(MAX_WIDE);
    let tile_points = TILE / wide;
    let parts = input.parts();
    let numbers = input.numbers();
    let processors = device.attributes().multiprocessors.max(1).cast_unsigned();
    let blocks = if is_reordered {
        Blocks::Tiles {
            along: small(input.points.div_ceil(tile_points)),
            across: small(channels.div_ceil(wide)),
        }
    } else {
        Blocks::Straight {
            max: small(numbers.div_ceil(THREADS as usize * WIDTH)).max(1),
            sufficient: processors * BLOCKS,
        }
    };
    Ok(Box::new(Converter {
        input_bytes: input.frame_bytes(),
        output_bytes: output.frame_bytes(),
        layouts,
        parameters: Conversion {
            factor,
            offset,
            points: input.points as u64,
            channels: input.channels,
            parts: small(parts),
            scalar: code_of(input.scalar),
            tile_points: small(tile_points),
            wide: small(wide),
            planar: u32::from(output.order == Order::Planar),
            sign: match input.scalar.packing() {
                Some(packing) if packing.signed => 1 << (packing.bits - 1),
                _ => 0,
            },
            ..Conversion::default()
        },
        blocks,
        occupancy: function.occupancy(&Grid::line(1, THREADS))?,
        function,
    }))
}

/// Numbers of blocks per frame.
enum Blocks {
    /// The order changes: one block per tile, in both directions.
    Tiles { along: u32, across: u32 },
    /// The order does not change: at most `max` blocks. `sufficient` blocks of all frames keep the device busy.
    Straight { max: u32, sufficient: u32 },
}

struct Converter {
    input_bytes: usize,
    output_bytes: usize,
    /// The layouts of input and output.
    layouts: [Layout; 2],
    parameters: Conversion,
    blocks: Blocks,
    function: Function,
    occupancy: f64,
}

impl Kernel for Converter {
    fn occupancy(&self) -> Option<f64> {
        Some(self.occupancy)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let stream = device::stream(on)?;
        let from = slots(burst)?;
        let bytes = [self.input_bytes, self.output_bytes];
        let [input, output] = &self.layouts;
        let sizes = |sizes| converted_packets(input, output, sizes);
        let finish = |out: &mut SlotsMut<'_>, frame: &Frame<'_>, _| {
            finish_with_packets(out, self.output_bytes, frame, sizes);
        };
        let choose = |meta: &FrameMeta| Some(*meta);
        device::map_and_finish(
            burst,
            out,
            usize::MAX,
            bytes,
            choose,
            finish,
            |first, frames, to| self.launch(stream, &from.after(first), to, frames),
        )
    }
}

impl Converter {
    /// Converts frames whose slots are consecutive in both rings.
    fn launch(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        to: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        let frames = small(frames);
        let blocks = match self.blocks {
            Blocks::Tiles { along, across } => [along, frames, across],
            Blocks::Straight { max, sufficient } => {
                [max.min(sufficient.div_ceil(frames)), frames, 1]
            }
        };
        let grid = Grid {
            blocks,
            ..Grid::line(1, THREADS)
        };
        let parameters = Conversion {
            from: from.into(),
            to: to.into(),
            ..self.parameters
        };
        Ok(self
            .function
            .launch(stream, &grid, &parameters.arguments())?)
    }
}
