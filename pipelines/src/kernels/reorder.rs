//! Copies frames on a GPU into the order (channel, antenna, time), which `channelize`, `correlate` and
//! `beamform` read fastest.

use super::antennas::{Axes, Extents, Steps};
use super::device;
use super::parameters::{Reordering, RingSlots, small};
use daq_core::gpu::driver::{self, Backing, Function, Grid, Memory};
use daq_core::kernel::KernelError;
use daq_core::layout::Layout;

const THREADS: u32 = 256;
/// Size of the tile that a block transposes, and maximum size of its rows in the input, in bytes.
const TILE_BYTES: usize = 8192;
const MAX_ROW_BYTES: usize = 64;
/// Minimum number of samples per row of a tile.
const MIN_WIDTH: usize = 4;
/// Size of the scratch memory in bytes. If two frames need more memory, this limit is exceeded.
const SCRATCH_BYTES: usize = 256 << 20;
/// Maximum number of frames per launch: of blocks in the second dimension of a grid.
const MAX_FRAMES: usize = 65_535;

/// Returns the number of frames that fit into the scratch memory; 0 if times are neighbours already.
fn scratch_frames(input: &Layout, extents: &Extents) -> usize {
    if extents.steps.time == 1 {
        0
    } else {
        (SCRATCH_BYTES / input.frame_bytes().max(1)).clamp(2, MAX_FRAMES)
    }
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(input: &Layout, extents: &Extents) -> usize {
    scratch_frames(input, extents) * input.frame_bytes()
}

pub(super) struct Reorder {
    function: Function,
    /// The parameters without the input.
    parameters: Reordering,
    /// The grid for one frame.
    grid: Grid,
    steps: Steps,
    _scratch: Memory,
}

impl Reorder {
    /// Allocates the scratch memory; `None` if times are neighbours already.
    pub(super) fn new(
        ordinal: u32,
        input: &Layout,
        extents: &Extents,
    ) -> Result<Option<Self>, KernelError> {
        let frames = scratch_frames(input, extents);
        if frames == 0 {
            return Ok(None);
        }
        let (device, module) = device::REORDER.load(ordinal)?;
        let scratch = Memory::with(device, frames * input.frame_bytes(), Backing::Plain)?;
        let Extents {
            antennas,
            channels,
            times,
            steps: from,
        } = *extents;
        let to = Axes::ChannelAntennaTime.steps(antennas, channels, times);
        // The axis whose elements are neighbours in the input, and the third axis.
        let (fast, slow, steps) = if from.channel == 1 {
            (channels, antennas, [from.antenna, to.channel, to.antenna])
        } else {
            (antennas, channels, [from.channel, to.antenna, to.channel])
        };
        let [slow_step, to_fast_step, to_slow_step] = steps.map(|step| step as u64);
        let bytes = input.sample_bytes().unwrap_or(0);
        // Device code divides the axes in the same way.
        let mut width = MIN_WIDTH;
        while width < fast && width * bytes < MAX_ROW_BYTES {
            width *= 2;
        }
        let length = TILE_BYTES / (width * bytes).max(1);
        let tiles = fast.div_ceil(width) * times.div_ceil(length) * slow;
        Ok(Some(Self {
            function: module.function("reorder_samples")?,
            parameters: Reordering {
                to: RingSlots {
                    base: scratch.address(),
                    stride: input.frame_bytes() as u64,
                    slots: small(frames),
                    first: 0,
                },
                slow_step,
                time_step: from.time as u64,
                to_fast_step,
                to_slow_step,
                fast: small(fast),
                times: small(times),
                bytes: small(bytes),
                ..Reordering::default()
            },
            grid: Grid::line(small(tiles), THREADS),
            steps: to,
            _scratch: scratch,
        }))
    }

    /// Returns the maximum number of frames per launch, at least 2.
    pub(super) const fn frames(&self) -> usize {
        self.parameters.to.slots as usize
    }

    /// Returns the distances between samples in the scratch memory.
    pub(super) const fn steps(&self) -> Steps {
        self.steps
    }

    /// Copies frames to the scratch memory and returns their slots there.
    pub(super) fn launch(
        &self,
        stream: &driver::Stream,
        from: RingSlots,
        frames: usize,
    ) -> Result<RingSlots, KernelError> {
        let parameters = Reordering {
            from,
            ..self.parameters
        };
        let grid = Grid {
            blocks: [self.grid.blocks[0], small(frames), 1],
            ..self.grid
        };
        self.function
            .launch(stream, &grid, &parameters.arguments())?;
        Ok(parameters.to)
    }
}
