//! The CUDA implementation of `convert`.

use super::super::account::Account;
use super::super::device::{self, code_of, promise, ring, slots, small};
use daq_core::gpu::driver::{self, Argument, Function, Grid};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::{Layout, Order};
use daq_core::ring::{Lease, Slice, SlotsMut};

const THREADS: u32 = 256;
/// Number of values that a thread converts at a time.
const WIDTH: usize = 4;
/// Number of samples of a tile. The next constant is the maximum number of channels of a tile.
const TILE: usize = 1024;
const MAX_WIDE: usize = 32;
/// Number of blocks per multiprocessor.
const BLOCKS: u32 = 16;
/// Maximum number of frames per launch.
const MAX_FRAMES: usize = 65_535;

pub(super) fn build(
    ordinal: u32,
    input: &Layout,
    output: &Layout,
    factor: f64,
    offset: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::CONVERT.load(ordinal)?;
    let reordered = input.order != output.order && input.channels > 1;
    let name = if reordered {
        "convert_tiles"
    } else {
        "convert_straight"
    };
    let function = module.function(name)?;
    let processors = device.attributes().multiprocessors.max(1).cast_unsigned();
    let occupancy = function.occupancy(&Grid::line(1, THREADS))?;
    Ok(Box::new(Converter {
        scalar: code_of(input.scalar),
        input_bytes: input.frame_bytes(),
        output_bytes: output.frame_bytes(),
        points: input.points,
        channels: input.channels as usize,
        parts: if input.complex { 2 } else { 1 },
        reordered: reordered.then_some(output.order),
        factor,
        offset,
        blocks: processors * BLOCKS,
        function,
        occupancy,
    }))
}

struct Converter {
    scalar: Argument,
    input_bytes: usize,
    output_bytes: usize,
    points: usize,
    channels: usize,
    parts: usize,
    /// Order of the output, if it differs from the order of the input.
    reordered: Option<Order>,
    factor: f64,
    offset: f64,
    /// Number of blocks that are sufficient to keep the device busy.
    blocks: u32,
    function: Function,
    occupancy: f64,
}

impl Kernel for Converter {
    fn outputs(&self, frames: usize) -> usize {
        frames
    }

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
        let mut account = Account::default();
        let (mut first, mut to) = (0, out.slice());
        for (i, frame) in burst.iter().enumerate() {
            if frame.meta().length < self.input_bytes {
                account.fail();
                self.launch(stream, &from.after(first), &to, i - first)?;
                (first, to) = (i + 1, out.slice());
                continue;
            }
            promise(out, self.output_bytes, *frame.meta())?;
            account.take();
        }
        self.launch(stream, &from.after(first), &to, burst.len() - first)?;
        Ok(account.submit())
    }
}

impl Converter {
    /// Converts frames whose slots are contiguous in both rings.
    fn launch(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        to: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        let mut done = 0;
        while done < frames {
            let now = (frames - done).min(MAX_FRAMES);
            self.launch_some(stream, &from.after(done), &to.after(done), now)?;
            done += now;
        }
        Ok(())
    }

    fn launch_some(
        &self,
        stream: &driver::Stream,
        from: &Slice,
        to: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        let [in_base, in_stride, in_slots, in_first] = ring(from);
        let [out_base, out_stride, out_slots, out_first] = ring(to);
        let (factor, offset) = (Argument::F64(self.factor), Argument::F64(self.offset));
        let across = small(frames);
        if let Some(order) = self.reordered {
            let wide = self.channels.min(MAX_WIDE);
            let tile_points = TILE / wide;
            let grid = Grid {
                blocks: [
                    small(self.points.div_ceil(tile_points)),
                    across,
                    small(self.channels.div_ceil(wide)),
                ],
                ..Grid::line(1, THREADS)
            };
            let arguments = [
                in_base,
                in_stride,
                in_slots,
                in_first,
                out_base,
                out_stride,
                out_slots,
                out_first,
                self.scalar,
                Argument::U64(self.points as u64),
                Argument::U32(small(self.channels)),
                Argument::U32(small(self.parts)),
                Argument::U32(small(tile_points)),
                Argument::U32(small(wide)),
                Argument::U32(u32::from(order == Order::Planar)),
                factor,
                offset,
            ];
            self.function.launch(stream, &grid, &arguments)?;
        } else {
            let numbers = self.points * self.channels * self.parts;
            let max = small(numbers.div_ceil(THREADS as usize * WIDTH)).max(1);
            let grid = Grid {
                blocks: [max.min(self.blocks.div_ceil(across)), across, 1],
                ..Grid::line(1, THREADS)
            };
            let arguments = [
                in_base,
                in_stride,
                in_slots,
                in_first,
                out_base,
                out_stride,
                out_slots,
                out_first,
                self.scalar,
                Argument::U64(numbers as u64),
                factor,
                offset,
            ];
            self.function.launch(stream, &grid, &arguments)?;
        }
        Ok(())
    }
}
