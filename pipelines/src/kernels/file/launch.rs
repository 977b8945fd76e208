//! A user kernel that is launched for each burst.

use super::super::device as gpu;
use super::FileKernel;
use super::code::Code;
use super::record;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{Argument, CudaError, Device, Grid};
use daq_core::kernel::{Kernel, KernelContext, KernelError, Stream, Submitted};
use daq_core::region::{RegionError, SharedWords};
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
        let words = record::words(context.packets_per_frame);
        let burst = context.burst.max(1);
        let records =
            SharedWords::pinned(device, 8 * TABLES * burst * words).map_err(
                |error| match error {
                    RegionError::Cuda(error) => KernelError::Cuda(error),
                    other => {
                        KernelError::Unavailable(format!("cannot allocate frame records: {other}"))
                    }
                },
            )?;
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

    /// Launches the code for `frames` frames. The input starts at frame `first` of the burst, the output at the next
    /// output slot. `record` is the index of the first frame's record.
    fn launch(
        &self,
        (source, first): (&Slice, usize),
        target: &Slice,
        (record, frames): (usize, usize),
        stream: &daq_core::gpu::driver::Stream,
    ) -> Result<(), CudaError> {
        let word = |value: usize| Argument::U64(value as u64);
        let Code {
            input,
            output,
            grid,
            ..
        } = &self.code;
        self.code.function.launch(
            stream,
            &Grid {
                blocks: [grid.blocks[0], u32::try_from(frames).unwrap_or(u32::MAX), 1],
                ..*grid
            },
            &[
                Argument::U64(source.base),
                word(source.stride),
                word(source.slots),
                word((source.first + first) % source.slots),
                Argument::U64(target.base),
                word(target.stride),
                word(target.slots),
                word(target.first),
                Argument::U64(self.records.address() + 8 * (record * self.record.len()) as u64),
                word(self.record.len()),
                word(input.bytes),
                Argument::U64(input.channels.into()),
                word(input.points),
                word(output.bytes),
                Argument::U64(output.channels.into()),
                word(output.points),
            ],
        )
    }
}

impl Kernel for FileCode {
    fn outputs(&self, frames: usize) -> usize {
        frames
    }

    fn occupancy(&self) -> Option<f64> {
        Some(self.code.occupancy)
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        on: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let defect = |what: &str| KernelError::Defect(format!("{what}; this is a defect in daq"));
        let stream = gpu::stream(on)?;
        let source = gpu::slots(burst)?;
        let frames = burst.len();
        if frames > self.burst || frames > out.remaining() {
            return Err(defect(
                "a burst has more frames than the announced maximum or than free output slots",
            ));
        }
        if self.code.input.bytes > source.stride || self.code.output.bytes > out.slice().stride {
            return Err(defect("a frame is larger than a slot of its ring"));
        }
        let table = self.turn * self.burst;
        self.turn = (self.turn + 1) % TABLES;
        let (mut next, mut failed) = (0, 0);
        while next < frames {
            // Frames that are shorter than expected are skipped, because their slots contain stale bytes after the end
            // of the frame.
            let first = next;
            while next < frames {
                let frame = burst.frame(next);
                if frame.meta().length < self.code.input.bytes {
                    break;
                }
                self.describe(table + next, &frame)?;
                next += 1;
            }
            if next > first {
                self.launch(
                    (&source, first),
                    &out.slice(),
                    (table + first, next - first),
                    stream,
                )?;
            }
            for i in first..next {
                out.finish(FrameMeta {
                    length: self.code.output.bytes,
                    packets_per_frame: 0,
                    arrived: 0,
                    ..*burst.frame(i).meta()
                });
            }
            if next < frames {
                failed += 1;
                next += 1;
            }
        }
        Ok(Submitted {
            failed,
            ..Submitted::done(frames as u64 - failed)
        })
    }
}
