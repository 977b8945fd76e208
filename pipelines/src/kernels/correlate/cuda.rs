//! The CUDA implementation of `correlate`.
//!
//! An item is the part of a frame that belongs to one output. Consecutive items form a round, which needs one launch: each
//! block computes a tile of the baselines of one channel of one output. The sums of an output that remains incomplete are
//! carried over to the next round. If time is not the last axis, another launch copies the frames to scratch memory in the
//! order (channel, antenna, time).

use super::super::device;
use super::super::grouping::Grouping;
use super::super::launcher::{DeviceSums, Launcher, Round};
use super::super::parameters::{Correlation, RingSlots, code_of, small};
use super::super::reorder::{self, Reorder};
use super::shape::Shape;
use super::{Correlate, MAX_INT8_TIMES};
use daq_core::gpu::driver::{self, Backing, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::{Layout, Scalar};

/// Number of antennas per side of a tile, and threads per block: with tensor cores, and without.
const TENSOR: (usize, u32) = (64, 128);
const PLAIN: (usize, u32) = (32, 256);
/// Maximum number of outputs of a round: of blocks in the second dimension of a grid.
const MAX_OUTPUTS: usize = 65_535;
/// The first compute capability with the instructions for tensor cores that the device code uses.
const TENSOR_CAPABILITY: (i32, i32) = (8, 0);

/// Returns the size of a set of sums.
const fn carry_bytes(shape: &Shape) -> usize {
    shape.extents.channels * shape.baselines() * 16
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(input: &Layout, shape: &Shape) -> usize {
    2 * carry_bytes(shape) + reorder::memory(input, &shape.extents)
}

pub(super) fn build(
    ordinal: u32,
    keys: &Correlate,
    input: &Layout,
    grouping: Grouping,
    shape: Shape,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::CORRELATE.load(ordinal)?;
    let tensor = match input.scalar {
        _ if device.attributes().capability < TENSOR_CAPABILITY => None,
        Scalar::Int8 => Some("correlate_int8"),
        Scalar::Float16 => Some("correlate_float16"),
        _ => None,
    };
    let (function, (size, threads)) = match tensor {
        Some(name) => {
            let (_, module) = device::CORRELATE_TENSOR.load(ordinal)?;
            (module.function(name)?, TENSOR)
        }
        None => (module.function("correlate_any")?, PLAIN),
    };
    let across = shape.extents.antennas.div_ceil(size);
    let tiles = across * (across + 1) / 2;
    let plain = |bytes: usize| Memory::with(device, bytes, Backing::Plain);
    let reorder = Reorder::new(ordinal, input, &shape.extents)?;
    let steps = match &reorder {
        None => shape.extents.steps,
        Some(reorder) => reorder.steps(),
    };
    let output = keys.output(input, &shape);
    let grid = Grid::line(small(shape.extents.channels * tiles), threads);
    let occupancy = function.occupancy(&grid)?;
    let correlator = Correlator {
        parameters: Correlation {
            antenna_step: steps.antenna as u64,
            channel_step: steps.channel as u64,
            items: shape.items as u64,
            scale: keys.scale,
            length: small(shape.length),
            antennas: small(shape.extents.antennas),
            tiles: small(tiles),
            scalar: code_of(input.scalar),
            kind: code_of(output.scalar),
            ..Correlation::default()
        },
        grid,
        function,
        reorder,
        output_bytes: output.frame_bytes(),
        carry: [plain(carry_bytes(&shape))?, plain(carry_bytes(&shape))?],
    };
    Ok(Box::new(Launcher::new(grouping, correlator, occupancy)))
}

struct Correlator {
    /// The parameters of the next round.
    parameters: Correlation,
    /// The grid for one output.
    grid: Grid,
    function: Function,
    reorder: Option<Reorder>,
    output_bytes: usize,
    /// Two buffers for sums that are carried from one round to the next. A round reads the first buffer and writes the
    /// second.
    carry: [Memory; 2],
}

impl DeviceSums for Correlator {
    fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn limits(&self) -> (usize, usize) {
        // The int32 sums of a round cannot overflow, and frames of a round fit into the scratch memory.
        let mut max_items = (MAX_INT8_TIMES / self.parameters.length as usize).max(1);
        if let Some(reorder) = &self.reorder {
            let items = usize::try_from(self.parameters.items).unwrap_or(1);
            max_items = max_items.min((reorder.frames() - 1) * items);
        }
        (MAX_OUTPUTS, max_items)
    }

    fn launch(&mut self, stream: &driver::Stream, round: &Round) -> Result<(), KernelError> {
        let mut from = RingSlots::from(&round.from);
        if let Some(reorder) = &self.reorder
            && round.cut.total > 0
        {
            let items = round.origin + round.cut.total;
            let frames = usize::try_from(items.div_ceil(self.parameters.items)).unwrap_or(0);
            from = reorder.launch(stream, from, frames)?;
        }
        self.parameters = Correlation {
            from,
            to: (&round.to).into(),
            cut: round.cut,
            origin: round.origin,
            complete: small(round.complete),
            carry: self.carry[1].address(),
            carried: if round.pending > 0 {
                self.carry[0].address()
            } else {
                0
            },
            ..self.parameters
        };
        let grid = Grid {
            blocks: [self.grid.blocks[0], small(round.outputs), 1],
            ..self.grid
        };
        self.function
            .launch(stream, &grid, &self.parameters.arguments())?;
        if round.complete < round.outputs {
            self.carry.swap(0, 1);
        }
        Ok(())
    }
}
