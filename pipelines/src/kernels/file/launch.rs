//! A user kernel that is launched for each burst.

use super::super::device as gpu;
use super::FileKernel;
use super::code::{Code, no_memory};
use super::record;
use daq_core::gpu::driver::{Argument, CudaError, Device, Grid};
use daq_core::kernel::{Kernel, KernelContext, KernelError, Stream, Submitted};
use daq_core::region::SharedWords;
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

/// Number of record tables. It is larger than the number of bursts in flight, so that no table is overwritten while the
/// GPU reads the table.
const TABLES: usize = 16;
/// Default name of the kernel.
pub(super) const ENTRY: &str = "daq_burst";

/// User code that is launched for each burst.
pub(super) struct FileCode {
    code: Code,
    /// The record tables, each with `burst` records.
    records: SharedWords,
    /// Buffer for one record.
    record: Vec<u64>,
    /// Index of the table for the next burst.
    turn: usize,
    burst: usize,
}

impl FileCode {
    pub(super) fn new(
        keys: &FileKernel,
        context: &KernelContext,
        device: &'static Device,
        image: &[u8],
    ) -> Result<Self, KernelError> {
        let code = Code::load(keys, context, device, image, ENTRY)?;
        let words = record::words(context.packets_per_frame, context.kept.len());
        let burst = context.burst.max(1);
        let records = SharedWords::pinned(device, 8 * TABLES * burst * words)
            .map_err(no_memory("frame records"))?;
        Ok(Self {
            code,
            records,
            record: vec![0; words],
            turn: 0,
            burst,
        })
    }

    /// Writes the metadata of `frame` to record `index` of the tables.
    fn describe(&mut self, index: usize, frame: &Frame<'_>) -> Result<(), KernelError> {
        record::describe(frame, &mut self.record)?;
        let at = 8 * index * self.record.len();
        self.records.store_words(at, &self.record);
        Ok(())
    }

    /// Launches the code for `frames` frames; without frames, the code returns at once. The input starts at frame `first` of the
    /// burst, the output at the next output slot. `record` is the index of the first frame's record.
    fn launch(
        &self,
        (source, first): (&Slice, usize),
        target: &Slice,
        (record, frames): (usize, usize),
        stream: &daq_core::gpu::driver::Stream,
    ) -> Result<(), CudaError> {
        let Code {
            input,
            output,
            grid,
            ..
        } = &self.code;
        let words = if frames == 0 { 0 } else { self.record.len() };
        let rows = u32::try_from(frames.max(1)).unwrap_or(u32::MAX);
        let grid = Grid {
            blocks: [grid.blocks[0], rows, 1],
            ..*grid
        };
        let arguments = [
            source.base,
            source.stride as u64,
            source.slots as u64,
            ((source.first + first) % source.slots) as u64,
            target.base,
            target.stride as u64,
            target.slots as u64,
            target.first as u64,
            self.records.address() + 8 * (record * self.record.len()) as u64,
            words as u64,
            input.bytes as u64,
            input.channels_word(),
            input.points as u64,
            output.bytes as u64,
            output.channels.into(),
            output.points as u64,
        ];
        let arguments = arguments.map(Argument::U64);
        self.code.function.launch(stream, &grid, &arguments)
    }
}

impl Kernel for FileCode {
    fn occupancy(&self) -> Option<f64> {
        Some(self.code.occupancy)
    }

    fn launch_empty(&mut self, on: Stream<'_>) -> Result<(), KernelError> {
        let none = Slice {
            base: 0,
            stride: 0,
            slots: 1,
            first: 0,
            len: 0,
        };
        Ok(self.launch((&none, 0), &none, (0, 0), gpu::stream(on)?)?)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let stream = gpu::stream(on)?;
        let source = gpu::slots(burst)?;
        let table = self.turn * self.burst;
        self.turn = (self.turn + 1) % TABLES;
        let bytes = [self.code.input.bytes, self.code.output.bytes];
        gpu::map_frames(burst, out, self.burst, bytes, |first, count, target| {
            for i in first..first + count {
                self.describe(table + i, &burst.frame(i))?;
            }
            Ok(self.launch((&source, first), target, (table + first, count), stream)?)
        })
    }
}
