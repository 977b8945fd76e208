//! The CUDA implementation of `beamform`.

use super::super::antennas::Extents;
use super::super::device;
use super::super::half::half;
use super::super::parameters::{Beams, RingSlots, code_of, small};
use super::super::reorder::{self, Reorder};
use super::weights::Weights;
use super::{Beamform, Detect, rounds_weights};
use daq_core::gpu::driver::{self, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Lease, Slice, SlotsMut};
use daq_fft::Complex;

/// Number of beams and of times of a tile.
const TILE: usize = 64;
/// Number of beams and of antennas whose weights are stored together for tensor cores.
const GROUP: usize = 16;
/// Number of threads per block: with tensor cores, and without.
const TENSOR_THREADS: u32 = 128;
const PLAIN_THREADS: u32 = 256;
/// Maximum number of blocks in the second and third dimension of a grid.
const MAX_BLOCKS: usize = 65_535;
/// The first compute capability with the instructions for tensor cores that the device code uses.
const TENSOR_CAPABILITY: (i32, i32) = (8, 0);

/// Returns whether a grid has enough blocks for a frame.
pub(super) const fn fits(keys: &Beamform, extents: &Extents) -> bool {
    extents.channels <= MAX_BLOCKS && keys.beams.div_ceil(TILE) <= MAX_BLOCKS
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(keys: &Beamform, input: &Layout, extents: &Extents) -> usize {
    let beams = keys.beams.next_multiple_of(GROUP);
    let antennas = extents.antennas.next_multiple_of(GROUP);
    beams * antennas * extents.channels * 8 + reorder::memory(input, extents)
}

pub(super) fn build(
    ordinal: u32,
    keys: &Beamform,
    input: &Layout,
    extents: &Extents,
    weights: &Weights,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::BEAMFORM.load(ordinal)?;
    let is_tensor =
        rounds_weights(input.scalar) && device.attributes().capability >= TENSOR_CAPABILITY;
    let (function, threads, packed) = if is_tensor {
        let (_, module) = device::BEAMFORM_TENSOR.load(ordinal)?;
        let name = match input.sample_bytes() {
            Some(2) => "beamform_int8",
            _ => "beamform_float16",
        };
        let packed = fragments(weights, keys.beams, extents.antennas);
        (module.function(name)?, TENSOR_THREADS, packed)
    } else {
        let bytes = weights.numbers.iter().flat_map(|w| [w.re, w.im]);
        let bytes = bytes.flat_map(f32::to_le_bytes).collect();
        (module.function("beamform_any")?, PLAIN_THREADS, bytes)
    };
    let weights_memory = Memory::holding(device, &packed)?;
    let reorder = Reorder::new(ordinal, input, extents)?;
    let steps = reorder.as_ref().map_or(extents.steps, Reorder::steps);
    let output = keys.output(input, extents);
    let tiles = keys.beams.div_ceil(TILE);
    let span = if keys.integrate <= TILE {
        TILE / keys.integrate * keys.integrate
    } else {
        keys.integrate
    };
    let grid = Grid {
        blocks: [
            small(extents.times.div_ceil(span)),
            small(extents.channels),
            1,
        ],
        ..Grid::line(1, threads)
    };
    Ok(Box::new(Beamformer {
        occupancy: function.occupancy(&grid)?,
        parameters: Beams {
            weights: weights_memory.address(),
            antenna_step: steps.antenna as u64,
            channel_step: steps.channel as u64,
            scale: match keys.detect {
                Detect::None => keys.scale * weights.factor,
                Detect::Power => keys.scale * weights.factor * weights.factor,
            },
            antennas: small(extents.antennas),
            channels: small(extents.channels),
            times: small(extents.times),
            beams: small(keys.beams),
            groups: small(keys.beams.div_ceil(GROUP)),
            tiles: small(tiles),
            integrate: small(keys.integrate),
            outputs: small(output.points),
            scalar: code_of(input.scalar),
            kind: code_of(output.scalar),
            sample_bytes: small(output.sample_bytes().unwrap_or(0)),
            detects: u32::from(keys.detect == Detect::Power),
            by_channel: u32::from(weights.by_channel),
            ..Beams::default()
        },
        max_frames: reorder
            .as_ref()
            .map_or(MAX_BLOCKS, Reorder::frames)
            .min(MAX_BLOCKS / tiles),
        bytes: [input.frame_bytes(), output.frame_bytes()],
        grid,
        function,
        reorder,
        _weights: weights_memory,
    }))
}

/// Returns the weights as float16 numbers in the order in which threads of a warp need them: for each channel, group of 16
/// beams and group of 16 antennas, 32 threads with four words of real parts and four words of imaginary parts.
fn fragments(weights: &Weights, beams: usize, antennas: usize) -> Vec<u8> {
    let number = |channel: usize, beam: usize, antenna: usize| {
        if beam < beams && antenna < antennas {
            weights.numbers[(channel * beams + beam) * antennas + antenna]
        } else {
            Complex::new(0.0, 0.0)
        }
    };
    let channels = weights.numbers.len() / (beams * antennas);
    let mut bytes = Vec::new();
    for channel in 0..channels {
        for group in (0..beams).step_by(GROUP) {
            for step in (0..antennas).step_by(GROUP) {
                for lane in 0..32 {
                    let (row, pair) = (lane / 4, lane % 4 * 2);
                    let words = [
                        (row, pair),
                        (row + 8, pair),
                        (row, pair + 8),
                        (row + 8, pair + 8),
                    ];
                    let numbers = || {
                        words.into_iter().flat_map(|(row, pair)| {
                            [pair, pair + 1].map(|k| number(channel, group + row, step + k))
                        })
                    };
                    bytes.extend(numbers().flat_map(|w| half(w.re).to_le_bytes()));
                    bytes.extend(numbers().flat_map(|w| half(w.im).to_le_bytes()));
                }
            }
        }
    }
    bytes
}

struct Beamformer {
    /// The parameters without the slots.
    parameters: Beams,
    /// The grid for one frame and one tile of beams.
    grid: Grid,
    function: Function,
    reorder: Option<Reorder>,
    /// Maximum number of frames per launch.
    max_frames: usize,
    /// Sizes of an input and of an output frame.
    bytes: [usize; 2],
    occupancy: f64,
    /// Memory to which the parameters point.
    _weights: Memory,
}

impl Beamformer {
    fn launch(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        to: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        for first in (0..frames).step_by(self.max_frames.max(1)) {
            let count = self.max_frames.max(1).min(frames - first);
            let mut slots = RingSlots::from(&from.after(first));
            if let Some(reorder) = &self.reorder {
                slots = reorder.launch(stream, slots, count)?;
            }
            let parameters = Beams {
                from: slots,
                to: (&to.after(first)).into(),
                ..self.parameters
            };
            let [x, y, _] = self.grid.blocks;
            let grid = Grid {
                blocks: [x, y, small(count) * parameters.tiles],
                ..self.grid
            };
            self.function
                .launch(stream, &grid, &parameters.arguments())?;
        }
        Ok(())
    }
}

impl Kernel for Beamformer {
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
        let from = device::slots(burst)?;
        device::map_frames(burst, out, usize::MAX, self.bytes, |first, frames, to| {
            self.launch(stream, &from.after(first), to, frames)
        })
    }
}
