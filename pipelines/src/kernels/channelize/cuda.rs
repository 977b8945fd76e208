//! The CUDA implementation of `channelize`.
//!
//! Successive frames of a burst that continue each other form a run, which needs one launch. After each run, another launch
//! copies the last samples to memory on the device, from which the first spectra of the next run read them. Two buffers
//! are used in turn; a third one with zeros replaces samples that are not known.

use super::super::account::Account;
use super::super::device::{self, promise, slots};
use super::super::parameters::{Polyphase, code_of, small};
use super::super::samples::Walk;
use super::continuity::{Before, Continuity};
use super::cpu::phase;
use super::{Channelize, Shape};
use daq_core::gpu::driver::{self, Backing, Device, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::{Layout, Order};
use daq_core::ring::{Lease, Slice, SlotsMut};
use std::f64::consts::PI;

/// Number of points of a transform that a thread computes.
const POINTS: usize = 16;
/// Minimum number of threads per block.
const THREADS: usize = 128;
/// Number of channels up to which the shared memory of a block contains whole points.
const MAX_WHOLE: usize = 4096;
const HISTORY_THREADS: usize = 256;
/// Maximum number of frames per launch: of blocks in the second dimension of a grid.
const MAX_RUN: usize = 65_535;

/// Returns the size of a buffer for the samples before a run.
fn history_bytes(input: &Layout, shape: &Shape) -> usize {
    shape.history() * shape.inputs * input.sample_bytes().unwrap_or(0)
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(input: &Layout, shape: &Shape) -> usize {
    3 * history_bytes(input, shape) + shape.size * shape.taps * 4 + shape.channels * 2 * 8
}

pub(super) fn build(
    ordinal: u32,
    keys: &Channelize,
    input: &Layout,
    shape: Shape,
    coefficients: &[f32],
) -> Result<Box<dyn Kernel>, KernelError> {
    let code = device::channelize(shape.channels).ok_or_else(|| {
        KernelError::Refused(format!(
            "the GPU cannot make {} channels; choose a power of two from 64 to 8192 as `channels`, or set `memory = \
             \"host\"` for the input ring",
            shape.channels
        ))
    })?;
    let (device, module) = code.load(ordinal)?;
    let function = module.function(&format!("channelize_{}", shape.channels))?;
    let keep = module.function("channelize_history")?;
    let table = |numbers: &mut dyn Iterator<Item = f32>| {
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        Memory::holding(device, &bytes)
    };
    let coefficients = table(&mut coefficients.iter().copied())?;
    let roots = table(&mut roots(shape.channels))?;
    let history = || history(device, input, &shape);
    let history = [history()?, history()?, history()?];
    let threads = THREADS.max(shape.channels / POINTS);
    let count = threads * POINTS / shape.channels;
    let pitch = (shape.channels + shape.channels / 16) | 1;
    let shared = count * pitch * if shape.channels <= MAX_WHOLE { 8 } else { 4 };
    let blocks = shape.spectra * shape.inputs;
    let grid = Grid {
        shared: small(shared),
        ..Grid::line(small(blocks.div_ceil(count)), small(threads))
    };
    let walk = Walk::through(input);
    let is_interleaved = input.order == Order::Interleaved && input.channels > 1;
    let parameters = Polyphase {
        coefficients: coefficients.address(),
        roots: roots.address(),
        point_step: walk.point as u64,
        channel_step: walk.channel as u64,
        history_step: if is_interleaved {
            1
        } else {
            shape.history() as u64
        },
        points: small(shape.points),
        hop: small(shape.hop),
        before: small(shape.history()),
        taps: small(shape.taps),
        spectra: small(shape.spectra),
        inputs: small(shape.inputs),
        count: small(count),
        scalar: code_of(input.scalar),
        complex: u32::from(input.complex),
        kind: code_of(keys.output.scalar()),
        by_input: u32::from(is_interleaved),
        rotates: u32::from(shape.hop != shape.size),
        ..Polyphase::default()
    };
    Ok(Box::new(Channelizer {
        occupancy: function.occupancy(&grid)?,
        launcher: Launcher {
            shape,
            parameters,
            grid,
            function,
            keep,
            history,
            _tables: [coefficients, roots],
        },
        continuity: Continuity::new(shape.history(), shape.points),
        account: Account::default(),
        bytes: [
            input.frame_bytes(),
            keys.output(input, &shape).frame_bytes(),
        ],
    }))
}

fn history(device: &'static Device, input: &Layout, shape: &Shape) -> Result<Memory, KernelError> {
    let bytes = history_bytes(input, shape).max(1);
    Ok(Memory::with(device, bytes, Backing::Plain)?)
}

/// Returns the roots of unity `exp(-pi i k / size)`, real and imaginary parts in turn.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the transform uses float32 values"
)]
fn roots(size: usize) -> impl Iterator<Item = f32> {
    (0..2 * size).flat_map(move |k| {
        let (sin, cos) = (PI * k as f64 / size as f64).sin_cos();
        [cos as f32, -sin as f32]
    })
}

struct Launcher {
    shape: Shape,
    /// The parameters without those of the run.
    parameters: Polyphase,
    /// The grid for one frame.
    grid: Grid,
    function: Function,
    keep: Function,
    /// The samples before the next run, a buffer for those before the run after it, and zeros.
    history: [Memory; 3],
    /// Memory to which the parameters point.
    _tables: [Memory; 2],
}

/// Successive frames that continue each other.
struct Run {
    before: Before,
    /// Index of the first frame in the burst, and its sequence number.
    first: usize,
    sequence: u64,
    frames: usize,
    to: Slice,
}

impl Launcher {
    fn launch(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        run: &Run,
    ) -> Result<(), KernelError> {
        let [known, next, zeros] = &self.history;
        let parameters = Polyphase {
            from: (&from.after(run.first)).into(),
            to: (&run.to).into(),
            history: match run.before {
                Before::Previous => known.address(),
                Before::Zeros => zeros.address(),
            },
            kept: next.address(),
            phase: small(phase(&self.shape, run.sequence)),
            frames: small(run.frames),
            ..self.parameters
        };
        let arguments = parameters.arguments();
        let grid = Grid {
            blocks: [self.grid.blocks[0], small(run.frames), 1],
            ..self.grid
        };
        self.function.launch(stream, &grid, &arguments)?;
        let samples = self.shape.history() * self.shape.inputs;
        if samples > 0 {
            let grid = Grid::line(
                small(samples.div_ceil(HISTORY_THREADS)),
                small(HISTORY_THREADS),
            );
            self.keep.launch(stream, &grid, &arguments)?;
            self.history.swap(0, 1);
        }
        Ok(())
    }
}

struct Channelizer {
    launcher: Launcher,
    continuity: Continuity,
    account: Account,
    /// Sizes of an input and of an output frame.
    bytes: [usize; 2],
    occupancy: f64,
}

impl Kernel for Channelizer {
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
        let [input_bytes, output_bytes] = self.bytes;
        let mut run: Option<Run> = None;
        for i in 0..burst.len() {
            let meta = *burst.frame(i).meta();
            if meta.length < input_bytes {
                self.continuity.fail(&meta);
                self.account.fail();
                continue;
            }
            let (before, made) = self.continuity.accept(&meta);
            match &mut run {
                Some(run) if before == Before::Previous && run.frames < MAX_RUN => run.frames += 1,
                _ => {
                    if let Some(run) = run.take() {
                        self.launcher.launch(stream, &from, &run)?;
                    }
                    run = Some(Run {
                        before,
                        first: i,
                        sequence: meta.sequence,
                        frames: 1,
                        to: out.slice(),
                    });
                }
            }
            promise(out, output_bytes, made)?;
            self.account.take();
        }
        if let Some(run) = run {
            self.launcher.launch(stream, &from, &run)?;
        }
        Ok(self.account.submit())
    }
}
