//! The CUDA implementation of `select`.

use super::super::device::{self, slots};
use super::super::parameters::{self, small};
use super::{Choice, Places};
use daq_core::gpu::driver::{self, Device, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ring::{Lease, Slice, SlotsMut};

const THREADS: u32 = 256;
/// Maximum number of bytes that a thread copies at a time.
const WORD: usize = 16;
/// Number of blocks per multiprocessor.
const BLOCKS: u32 = 16;

pub(super) fn build(
    ordinal: u32,
    input_bytes: usize,
    selection: &super::Selection,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::SELECT.load(ordinal)?;
    let function = module.function("select_bytes")?;
    let pieces = &selection.pieces;
    let (outer, outer_bases) = places(device, &pieces.outer)?;
    let (inner, inner_bases) = places(device, &pieces.inner)?;
    let processors = device.attributes().multiprocessors.max(1).cast_unsigned();
    let output_bytes = pieces.bytes();
    Ok(Box::new(Selector {
        input_bytes,
        output_bytes,
        parameters: parameters::Selection {
            outer,
            inner,
            run: small(pieces.run),
            bytes: small(output_bytes),
            word: small(pieces.word(WORD)),
            ..parameters::Selection::default()
        },
        choice: selection.choice,
        max_blocks: small(output_bytes.div_ceil(THREADS as usize * WORD)).max(1),
        sufficient_blocks: processors * BLOCKS,
        occupancy: function.occupancy(&Grid::line(1, THREADS))?,
        function,
        _bases: [outer_bases, inner_bases],
    }))
}

/// Copies places to a device.
fn places(
    device: &'static Device,
    places: &Places,
) -> Result<(parameters::Places, Memory), KernelError> {
    let (bases, each, step) = places.groups();
    let bytes: Vec<u8> = bases
        .iter()
        .flat_map(|base| small(*base).to_le_bytes())
        .collect();
    let memory = Memory::holding(device, &bytes)?;
    let places = parameters::Places {
        bases: memory.address(),
        each: small(each),
        step: small(step),
        count: small(places.count()),
    };
    Ok((places, memory))
}

struct Selector {
    input_bytes: usize,
    output_bytes: usize,
    parameters: parameters::Selection,
    choice: Choice,
    /// Number of blocks in which each thread copies one word.
    max_blocks: u32,
    /// Number of blocks of all frames that keep the device busy.
    sufficient_blocks: u32,
    function: Function,
    occupancy: f64,
    /// The memory that the parameters refer to.
    _bases: [Memory; 2],
}

impl Kernel for Selector {
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
        let choose = |meta: &_| self.choice.choose(meta);
        let launch = |first, frames, to: &_| self.launch(stream, &from.after(first), to, frames);
        device::map_chosen(burst, out, usize::MAX, bytes, choose, launch)
    }
}

impl Selector {
    /// Copies from frames whose slots are consecutive in both rings.
    fn launch(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        to: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        let frames = small(frames);
        let blocks = self.max_blocks.min(self.sufficient_blocks.div_ceil(frames));
        let grid = Grid {
            blocks: [blocks, frames, 1],
            ..Grid::line(1, THREADS)
        };
        let parameters = parameters::Selection {
            from: from.into(),
            to: to.into(),
            ..self.parameters
        };
        Ok(self
            .function
            .launch(stream, &grid, &parameters.arguments())?)
    }
}
