//! The CUDA implementation of `channelize`.
//!
//! Successive frames of a burst that continue each other form a run, which needs one launch. After each run, another launch
//! copies the last samples to memory on the device, from which the first spectra of the next run read them. Two buffers
//! are used in turn; a third one with zeros replaces samples that are not known. Interleaved inputs are copied to planar
//! frames first.

use super::super::account::Account;
use super::super::antennas::{Axes, Extents};
use super::super::device::{self, promise, slots};
use super::super::parameters::{Polyphase, RingSlots, code_of, small};
use super::super::reorder::{self, Reorder};
use super::continuity::{Before, Continuity};
use super::cpu::phase;
use super::{Channelize, Shape};
use daq_core::gpu::driver::{self, Backing, Device, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Lease, Slice, SlotsMut};
use std::f64::consts::PI;

/// Number of taps that device code processes together, and to whose multiple the coefficients are extended with zeros.
const CHUNK: usize = 8;
/// Number of points per thread, or more if one set of spectra has more points.
const MIN_POINTS: usize = 32;
/// Sizes in shared memory of a point, of the address of an output, and of the addresses of a row of samples.
const POINT_BYTES: usize = 8;
const OUTPUT_BYTES: usize = 8;
const ROW_BYTES: usize = 24;
const HISTORY_THREADS: usize = 256;

/// Returns the functions that exist: threads per block, successive spectra that a block computes together, and the number
/// of blocks per multiprocessor that the function needs to be fast. The second one needs less shared memory. The numbers are
/// those with which an H200 is fastest.
const fn functions(shape: &Shape) -> &'static [(usize, usize, usize)] {
    match (shape.channels, shape.is_oversampled()) {
        (0..=256, _) => &[(64, 8, 1)],
        (512, _) => &[(128, 8, 1)],
        (1024, _) => &[(128, 4, 1)],
        (2048, true) => &[(128, 2, 1)],
        (2048, false) => &[(256, 6, 2), (128, 2, 1)],
        (4096, true) => &[(256, 2, 1), (128, 1, 1)],
        (4096, false) => &[(256, 3, 2), (128, 1, 1)],
        (_, true) => &[(256, 1, 1)],
        (_, false) => &[(512, 3, 1), (256, 1, 1)],
    }
}

/// Returns whether the filter is equal to its mirror image, apart from rounding errors.
pub(super) fn is_symmetric(coefficients: &[f32]) -> bool {
    let energy = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>();
    let numbers = || coefficients.iter().map(|h| f64::from(*h));
    let difference = energy(&mut numbers().zip(numbers().rev()).map(|(h, mirror)| h - mirror));
    difference <= f64::from(f32::EPSILON).powi(2) * energy(&mut numbers())
}

/// Names the values that the PTX contains instead of reading them from the parameters: type and kind of the samples, type of
/// the output, and taps.
pub(in crate::kernels) fn known_values(values: [u32; 4]) -> [(&'static str, u32); 4] {
    let [scalar, complex, kind, taps] = values;
    [
        ("DAQ_SCALAR", scalar),
        ("DAQ_COMPLEX", complex),
        ("DAQ_KIND", kind),
        ("DAQ_TAPS", taps),
    ]
}

/// How spectra are divided between blocks.
#[derive(Clone, Copy)]
struct Blocks {
    threads: usize,
    /// Number of successive spectra that a block computes together.
    per_set: usize,
    /// Number of sets of spectra per block.
    count: usize,
    /// Size of the shared memory in bytes.
    shared: usize,
}

impl Blocks {
    fn new(shape: &Shape, threads: usize, per_set: usize) -> Self {
        let count = (threads * MIN_POINTS / (per_set * shape.channels)).max(1);
        let rows = if shape.is_oversampled() {
            per_set * CHUNK
        } else {
            per_set + CHUNK - 1
        };
        let set = per_set * (shape.channels * POINT_BYTES + OUTPUT_BYTES) + rows * ROW_BYTES;
        Self {
            threads,
            per_set,
            count,
            shared: count * set,
        }
    }

    /// Returns the first division that fits into `max_shared` bytes of shared memory.
    fn fitting(shape: &Shape, max_shared: usize) -> Result<Self, KernelError> {
        // A multiprocessor has about as much shared memory as the largest block.
        let mut fitting = functions(shape)
            .iter()
            .filter_map(|&(threads, per_set, number)| {
                let blocks = Self::new(shape, threads, per_set);
                (number * blocks.shared <= max_shared).then_some(blocks)
            });
        fitting.next().ok_or_else(|| {
            KernelError::Refused(format!(
                "a block of the GPU has {max_shared} bytes of shared memory, too few for {} channels; choose fewer \
                 `channels`, or set `memory = \"host\"` for the input ring",
                shape.channels
            ))
        })
    }
}

/// Returns the axes of the inputs as `reorder` copies them.
const fn extents(input: &Layout) -> Extents {
    let (channels, times) = (input.channels as usize, input.points);
    Extents {
        antennas: 1,
        channels,
        times,
        steps: if channels == 1 {
            Axes::ChannelAntennaTime.steps(1, channels, times)
        } else {
            Axes::of(input).steps(1, channels, times)
        },
    }
}

/// Returns the size of a buffer for the samples before a run.
fn history_bytes(input: &Layout, shape: &Shape) -> usize {
    shape.history() * shape.inputs * input.sample_bytes().unwrap_or(0)
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(input: &Layout, shape: &Shape) -> usize {
    3 * history_bytes(input, shape)
        + shape.size * shape.taps.next_multiple_of(CHUNK) * 4
        + shape.channels * 2 * 8
        + reorder::memory(input, &extents(input))
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
    let (scalar, complex) = (code_of(input.scalar), u32::from(input.complex));
    let (kind, taps) = (code_of(keys.output.scalar()), small(shape.taps));
    let known = known_values([scalar, complex, kind, taps]);
    let (device, module) = code.load_with(ordinal, &known)?;
    let max_shared = usize::try_from(device.attributes().max_shared).unwrap_or(0);
    let blocks = Blocks::fitting(&shape, max_shared)?;
    let suffix = if shape.is_oversampled() {
        "_oversampled"
    } else {
        ""
    };
    let (threads, per_set) = (blocks.threads, blocks.per_set);
    let name = format!("channelize_{}_{threads}x{per_set}{suffix}", shape.channels);
    let function = module.function(&name)?;
    let keep = module.function("channelize_history")?;
    let table = |numbers: &mut dyn Iterator<Item = f32>| {
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        Memory::holding(device, &bytes)
    };
    // Each point of real samples contributes twice to the sums that make channels from a transform.
    let factor = if input.complex { 1.0 } else { 0.5 };
    let symmetric = u32::from(shape.taps.is_multiple_of(CHUNK) && is_symmetric(coefficients));
    let zeros = shape.size * (shape.taps.next_multiple_of(CHUNK) - shape.taps);
    let padded = coefficients.iter().map(|h| h * factor);
    let coefficients = table(&mut padded.chain(std::iter::repeat_n(0.0, zeros)))?;
    let roots = table(&mut roots(shape.channels))?;
    let history = || history(device, input, &shape);
    let history = [history()?, history()?, history()?];
    function.allow_shared(small(blocks.shared))?;
    let grid = Grid {
        shared: small(blocks.shared),
        ..Grid::line(1, small(blocks.threads))
    };
    let in_points = |samples: usize| small(if input.complex { samples } else { samples / 2 });
    let parameters = Polyphase {
        coefficients: coefficients.address(),
        roots: roots.address(),
        points: in_points(shape.points),
        hop: in_points(shape.hop),
        before: in_points(shape.history()),
        taps,
        spectra: small(shape.spectra),
        inputs: small(shape.inputs),
        count: small(blocks.count),
        scalar,
        complex,
        kind,
        symmetric,
        ..Polyphase::default()
    };
    let reorder = Reorder::new(ordinal, input, &extents(input))?;
    // Device code counts the points of a run in 32 bits.
    let points = u32::MAX as usize / 2 - shape.size * (shape.taps + blocks.per_set);
    let max_run = reorder
        .as_ref()
        .map_or(usize::MAX, Reorder::frames)
        .min(points / shape.points)
        .max(1);
    Ok(Box::new(Channelizer {
        occupancy: function.occupancy(&grid)?,
        max_run,
        launcher: Launcher {
            shape,
            per_set: blocks.per_set,
            parameters,
            grid,
            function,
            keep,
            reorder,
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
    /// Number of spectra per set.
    per_set: usize,
    /// The parameters without those of the run.
    parameters: Polyphase,
    /// The grid without the number of blocks.
    grid: Grid,
    function: Function,
    keep: Function,
    reorder: Option<Reorder>,
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
        let mut from: RingSlots = (&from.after(run.first)).into();
        if let Some(reorder) = &self.reorder {
            from = reorder.launch(stream, from, run.frames)?;
        }
        let sets = (run.frames * self.shape.spectra).div_ceil(self.per_set);
        let blocks = (sets * self.shape.inputs).div_ceil(self.parameters.count as usize);
        let parameters = Polyphase {
            from,
            to: (&run.to).into(),
            history: match run.before {
                Before::Previous => known.address(),
                Before::Zeros => zeros.address(),
            },
            kept: next.address(),
            phase: small(phase(&self.shape, run.sequence) * self.shape.channels / self.shape.size),
            frames: small(run.frames),
            sets: small(sets),
            ..self.parameters
        };
        let arguments = parameters.arguments();
        let grid = Grid {
            blocks: [small(blocks), 1, 1],
            ..self.grid
        };
        self.function.launch(stream, &grid, &arguments)?;
        let points = self.parameters.before as usize * self.shape.inputs;
        if points > 0 {
            let grid = Grid::line(
                small(points.div_ceil(HISTORY_THREADS)),
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
    /// Maximum number of frames per launch.
    max_run: usize,
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
                Some(run) if before == Before::Previous && run.frames < self.max_run => {
                    run.frames += 1;
                }
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
