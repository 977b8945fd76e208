//! The kernel: loaded code, its parameters, and a launch a burst.

use super::super::device as gpu;
use super::FileKernel;
use super::params::{Member, refused};
use crate::sys::device_code;
use daq_core::cuda::{Argument, CudaError, Device, Function, Grid, Module, Pinned};
use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelContext, KernelError, KernelSpec, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::region::RegionError;
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

/// Tables of records: more than the bursts that an engine has in flight, so that none is written while it is read.
const TABLES: usize = 16;
/// Words of a record before its bitmap, as in daq.cuh.
const RECORD_WORDS: usize = 5;
/// The kernel's name where no other is given.
const ENTRY: &str = "daq_burst";
/// What the header's version is, and the variable in which code says which it was made with.
const HEADER_VERSION: (&str, u32) = ("daq_header", 1);
/// Dynamic shared memory that need not be asked for.
const FREE_SHARED: u32 = 48 << 10;

/// Code of the user's, ready to run.
pub(super) struct FileCode {
    function: Function,
    grid: Grid,
    occupancy: f64,
    /// Tables of `burst` records each.
    records: Pinned,
    /// The table that the next burst takes.
    turn: usize,
    burst: usize,
    /// Words of a record.
    words: usize,
    input: Shape,
    output: Shape,
}

/// What the code is told of frames.
#[derive(Clone, Copy, Debug)]
struct Shape {
    bytes: usize,
    channels: u32,
    points: usize,
}

impl From<&Layout> for Shape {
    fn from(layout: &Layout) -> Self {
        Self {
            bytes: layout.frame_bytes(),
            channels: layout.channels,
            points: layout.points,
        }
    }
}

impl FileCode {
    pub(super) fn new(
        keys: &FileKernel,
        context: &KernelContext,
        device: &'static Device,
        image: &[u8],
    ) -> Result<Self, KernelError> {
        let file = &keys.file;
        let output = keys
            .layout(&context.input)
            .map_err(|problem| KernelError::Refused(problem.to_string()))?;
        let module = device_code::user_code(device, file, image).map_err(|error| {
            let (major, minor) = device.attributes().capability;
            match error.code {
                // Not of a form that the driver knows, of another architecture, wrong PTX.
                200 | 209 | 218 => KernelError::Refused(format!(
                    "{error}; compile {file} for this GPU: nvcc -cubin -arch=sm_{major}{minor}"
                )),
                _ => error.into(),
            }
        })?;
        let made_with = module.read_global(HEADER_VERSION.0)?;
        if made_with.as_deref() != Some(&HEADER_VERSION.1.to_le_bytes()) {
            return Err(KernelError::Refused(format!(
                "{file} was {}; put DAQ_KERNEL(on_frame, Params) at the end of its source and compile it with the header \
                 that `daq reference kernel-header` prints",
                match made_with {
                    None => "made without the macro DAQ_KERNEL of daq.cuh",
                    Some(_) => "made with the daq.cuh of another version of daq",
                }
            )));
        }
        set_params(keys, &module)?;
        let entry = keys.entry.as_deref().unwrap_or(ENTRY);
        let function = module.function(entry).map_err(|error| match error.code {
            500 => KernelError::Refused(format!(
                "`entry`: {file} has no kernel `{entry}`; DAQ_ENTRY({entry}, FUNCTION) in its source makes it"
            )),
            _ => error.into(),
        })?;
        let shared = keys.shared.map_or(0, |shared| shared.0);
        let grid = Grid {
            blocks: [keys.blocks(&context.input), 1, 1],
            threads: [keys.threads, 1, 1],
            shared: u32::try_from(shared).unwrap_or(u32::MAX),
        };
        fit(keys, device, &function, &grid)?;
        let bitmap = (context.places as usize).div_ceil(64);
        let words = RECORD_WORDS + bitmap;
        let burst = context.burst.max(1);
        let records = Pinned::new(device, TABLES * burst * words).map_err(|error| match error {
            RegionError::Cuda(error) => KernelError::Cuda(error),
            other => KernelError::Unavailable(format!("records of frames: {other}")),
        })?;
        Ok(Self {
            occupancy: function.occupancy(&grid)?,
            function,
            grid,
            records,
            turn: 0,
            burst,
            words,
            input: (&context.input).into(),
            output: (&output).into(),
        })
    }

    /// Writes what is known of `frame` where record `index` of the tables is.
    fn describe(&mut self, index: usize, frame: &Frame<'_>) -> Result<(), KernelError> {
        let at = index * self.words;
        let FrameMeta {
            sequence,
            epoch,
            flags,
            timestamp,
            places,
            arrived,
            ..
        } = *frame.meta();
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let record: [u64; RECORD_WORDS] = [
            sequence,
            timestamp.ns,
            pair(epoch, flags.0),
            pair(places, arrived),
            timestamp.clock as u64,
        ];
        let bitmap = (places as usize).div_ceil(64);
        let words = frame.present().words();
        let words = words.get(..bitmap).unwrap_or(words);
        if words.len() > self.words - RECORD_WORDS {
            return Err(KernelError::Defect(format!(
                "a frame of {places} places came where at most {} were announced; this is a defect in daq",
                64 * (self.words - RECORD_WORDS)
            )));
        }
        self.records.write(at, &record);
        self.records.write(at + RECORD_WORDS, words);
        Ok(())
    }

    /// Launches the code for `frames` frames: of the input from `first` of the burst on, of the output from the next
    /// slot on; `record` is the first one's.
    fn launch(
        &self,
        (source, first): (&Slice, usize),
        target: &Slice,
        (record, frames): (usize, usize),
        stream: &daq_core::cuda::Stream,
    ) -> Result<(), CudaError> {
        let word = |value: usize| Argument::U64(value as u64);
        let Self { input, output, .. } = self;
        self.function.launch(
            stream,
            &Grid {
                blocks: [
                    self.grid.blocks[0],
                    u32::try_from(frames).unwrap_or(u32::MAX),
                    1,
                ],
                ..self.grid
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
                Argument::U64(self.records.address() + 8 * (record * self.words) as u64),
                word(self.words),
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

/// Sets the parameters that the configuration names.
fn set_params(keys: &FileKernel, module: &Module) -> Result<(), KernelError> {
    if keys.params.is_empty() {
        return Ok(());
    }
    let file = &keys.file;
    const NAME: &str = "daq_params";
    let Some(mut image) = module.read_global(NAME)? else {
        return Err(KernelError::Refused(format!(
            "`params`: {file} has no parameters; put DAQ_KERNEL(on_frame, Params) at the end of its source"
        )));
    };
    for (key, value) in &keys.params {
        let Some(told) = module.read_global(&format!("daq_param_{key}"))? else {
            return Err(KernelError::Refused(format!(
                "`params.{key}`: {file} does not let `{key}` be set; put DAQ_PARAM(Params, {key}) at the end of its source"
            )));
        };
        let Some(member) = Member::read(&told) else {
            return Err(KernelError::Refused(format!(
                "`params.{key}`: member `{key}` of `struct Params` in {file} is of a type that cannot be set; make it a \
                 number, a boolean or an array of one dimension"
            )));
        };
        member
            .set(&mut image, value)
            .map_err(|why| KernelError::Refused(refused(file, key, value, &member, &why)))?;
    }
    module.write_global(NAME, &image)?;
    Ok(())
}

/// Refuses a grid that the device or the code cannot have.
fn fit(
    keys: &FileKernel,
    device: &Device,
    function: &Function,
    grid: &Grid,
) -> Result<(), KernelError> {
    let file = &keys.file;
    let most = function.most_threads()?;
    if keys.threads > most {
        return Err(KernelError::Refused(format!(
            "`threads` = {}: blocks of {file} have {most} threads at most on {}; write at most {}",
            keys.threads,
            device.name(),
            most / super::WARP * super::WARP
        )));
    }
    let most = u32::try_from(device.attributes().most_shared).unwrap_or(0);
    if grid.shared > most {
        return Err(KernelError::Refused(format!(
            "`shared` = {} bytes: a block can have {most} on {}; write less",
            grid.shared,
            device.name()
        )));
    }
    if grid.shared > FREE_SHARED {
        function.allow_shared(grid.shared)?;
    }
    Ok(())
}

impl Kernel for FileCode {
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
        let defect = |what: &str| KernelError::Defect(format!("{what}; this is a defect in daq"));
        let stream = gpu::stream(on)?;
        let source = gpu::slots(burst)?;
        let frames = burst.len();
        if frames > self.burst || frames > out.remaining() {
            return Err(defect("a burst is longer than was announced"));
        }
        if self.input.bytes > source.stride || self.output.bytes > out.slice().stride {
            return Err(defect("frames are longer than slots"));
        }
        let table = self.turn * self.burst;
        self.turn = (self.turn + 1) % TABLES;
        let (mut next, mut failed) = (0, 0);
        while next < frames {
            // Frames that are shorter than they should be are left out: old bytes lie behind their end.
            let first = next;
            while next < frames {
                let frame = burst.frame(next);
                if frame.meta().length < self.input.bytes {
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
                    length: self.output.bytes,
                    places: 0,
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
