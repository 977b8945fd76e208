//! The CUDA implementation of `power-spectrum`.
//!
//! Spectra of consecutive frames that are all used form a run. A run needs as few launches as the scratch memory
//! allows. The spectra of one output are divided into pieces, so that there are enough blocks for the GPU. Each piece
//! writes its sums to scratch memory, and the last launch combines them. The sums of an unfinished output are carried
//! over to the next run.

use super::super::device::{self, code_of, promise, ring, slots, small};
use super::super::samples::Walk;
use super::integration::{Integration, Sums};
use super::passes::{Batch, Passes, roots};
use super::{Detrend, PowerSpectrum, Scaling, Shape};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Argument, Device, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

/// Maximum size of all partial sums in bytes. If one set per channel needs more memory, this limit is exceeded.
const PARTIAL_BYTES: usize = 32 << 20;
/// Maximum number of sets of partial sums. If there are more channels, this limit is exceeded.
const MAX_PARTIAL: usize = 1 << 16;
/// Maximum size of the work space for long transforms in bytes. If one transform per channel needs more memory, this
/// limit is exceeded.
const WORK_BYTES: usize = 32 << 20;
/// Number of bytes of shared memory per block that every GPU provides.
const MIN_SHARED: usize = 48 << 10;
/// Number of pieces per concurrent block of the device. Several pieces per block keep the device busy until the end of
/// a launch.
const PIECES: usize = 2;
/// Maximum size of all means in bytes. If one mean per channel needs more memory, this limit is exceeded.
const MEAN_BYTES: usize = 4 << 20;
const MEAN_THREADS: u32 = 256;
const COMBINE_THREADS: u32 = 256;
/// Number of bins per block in the launch that combines pieces.
const COMBINE_BINS: usize = 32;

/// Sizes of the memory allocated on the device.
#[derive(Clone, Copy)]
struct Scratch {
    /// Number of sets of partial sums.
    partial: usize,
    /// Number of values per set of partial sums.
    width: usize,
    /// Number of spectra per channel that fit into the work space; 0 if no work space is needed.
    work: usize,
    /// Number of spectra per channel whose means fit into the memory; 0 if no means are needed.
    means: usize,
}

impl Scratch {
    fn new(keys: &PowerSpectrum, passes: &Passes, input: &Layout, shape: &Shape) -> Self {
        let channels = input.channels as usize;
        let is_long = matches!(passes, Passes::Long { .. });
        let width = if is_long { shape.size } else { shape.bins };
        let pair = if input.complex { 1 } else { 2 };
        let fit = WORK_BYTES / (shape.size * 8 * channels) / pair * pair;
        Self {
            partial: (PARTIAL_BYTES / (width * 8)).min(MAX_PARTIAL).max(channels),
            width,
            work: if is_long { fit.max(pair) } else { 0 },
            means: match keys.detrend {
                Detrend::None => 0,
                Detrend::Constant => (MEAN_BYTES / (8 * channels) / pair * pair).max(pair),
            },
        }
    }

    fn work_bytes(&self, size: usize, channels: usize) -> usize {
        self.work * channels * size * 8
    }

    const fn partial_bytes(&self) -> usize {
        self.partial * self.width * 8
    }
}

/// Returns the maximum number of bytes allocated on a device.
pub(super) fn memory(keys: &PowerSpectrum, input: &Layout, shape: &Shape) -> usize {
    let max = usize::try_from(shape.integrate).unwrap_or(usize::MAX);
    Passes::new(shape.size, max, MIN_SHARED).map_or(0, |passes| {
        let channels = input.channels as usize;
        let scratch = Scratch::new(keys, &passes, input, shape);
        let means = scratch.means * channels * 8;
        let tables = shape.size * (4 + 3 * 8);
        let carried = 2 * channels * shape.bins * 8;
        scratch.partial_bytes()
            + scratch.work_bytes(shape.size, channels)
            + means
            + tables
            + carried
    })
}

pub(super) fn build(
    ordinal: u32,
    keys: &PowerSpectrum,
    input: &Layout,
    shape: Shape,
    factor: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::POWER_SPECTRUM.load(ordinal)?;
    let max_shared = usize::try_from(device.attributes().max_shared).unwrap_or(MIN_SHARED);
    let max = usize::try_from(shape.integrate).unwrap_or(usize::MAX);
    let max = max.div_ceil(if input.complex { 1 } else { 2 });
    let passes = Passes::new(shape.size, max, max_shared).ok_or_else(|| {
        KernelError::Refused(format!(
            "the GPU cannot transform {} points; choose a `size` up to 1048576 without a prime factor \
             above 7, or set `memory = \"host\"` for the input ring",
            shape.size
        ))
    })?;
    let scratch = Scratch::new(keys, &passes, input, &shape);
    let channels = input.channels as usize;
    let function = |name: &str, batch: &Batch| -> Result<Function, KernelError> {
        let function = module.function(name)?;
        if batch.shared > MIN_SHARED {
            function.allow_shared(small(batch.shared))?;
        }
        Ok(function)
    };
    let tables = Tables::new(device, keys, shape.size, &passes)?;
    let (work, occupancy) = match passes {
        Passes::Short(batch) => {
            let sum = function("power_spectrum_short", &batch)?;
            let occupancy = sum.occupancy(&grid(1, &batch))?;
            (Work::Short { batch, sum }, occupancy)
        }
        Passes::Long { columns, rows } => {
            let down = function("power_spectrum_columns", &columns)?;
            let across = function("power_spectrum_rows", &rows)?;
            let occupancy = across.occupancy(&grid(1, &rows))?;
            let space = plain(device, scratch.work_bytes(shape.size, channels))?;
            let work = Work::Long {
                columns,
                rows,
                down,
                across,
                space,
            };
            (work, occupancy)
        }
    };
    let attributes = device.attributes();
    let processors = usize::try_from(attributes.multiprocessors.max(1)).unwrap_or(1);
    let resident_threads = f64::from(attributes.threads_per_multiprocessor) * occupancy;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number of threads of a multiprocessor fits into a usize"
    )]
    let resident_blocks = (resident_threads as usize / work.threads()).max(1);
    let carry = || plain(device, channels * shape.bins * 8);
    Ok(Box::new(Averager {
        integration: Integration::new(keys, input, shape),
        summer: Summer {
            shape,
            scalar: code_of(input.scalar),
            complex: input.complex,
            walk: Walk::through(input),
            channels,
            factor: factor / shape.integrate as f64,
            db: keys.scaling == Scaling::Db,
            blocks: processors * resident_blocks * PIECES,
            partial: plain(device, scratch.partial_bytes())?,
            scratch,
            carry: [carry()?, carry()?],
            current: 0,
            pending: 0,
            means: match scratch.means {
                0 => None,
                spectra => Some((
                    module.function("power_spectrum_means")?,
                    plain(device, spectra * channels * 8)?,
                )),
            },
            tables,
            work,
            combine: module.function("power_spectrum_combine")?,
        },
        occupancy,
    }))
}

fn plain(device: &'static Device, bytes: usize) -> Result<Memory, KernelError> {
    Ok(Memory::with(device, bytes, driver::Backing::Plain)?)
}

fn grid(blocks: usize, batch: &Batch) -> Grid {
    Grid {
        shared: small(batch.shared),
        ..Grid::line(small(blocks), small(batch.threads))
    }
}

/// The window and the roots of unity in device memory.
struct Tables {
    memory: Memory,
    window: usize,
    /// Offsets of the roots: of a short transform, or of the columns, the rows and the whole transform.
    roots: [usize; 3],
}

impl Tables {
    fn new(
        device: &'static Device,
        keys: &PowerSpectrum,
        size: usize,
        passes: &Passes,
    ) -> Result<Self, KernelError> {
        let sizes = match passes {
            Passes::Short(_) => [size, 0, 0],
            Passes::Long { columns, rows } => [columns.size, rows.size, size],
        };
        let mut bytes = Vec::new();
        let at = sizes.map(|size| {
            let at = bytes.len();
            bytes.extend(roots(size).flatten().flat_map(f32::to_le_bytes));
            at
        });
        let window = bytes.len();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the transform uses float32 values"
        )]
        bytes.extend((0..size).flat_map(|n| (keys.window.at(n, size) as f32).to_le_bytes()));
        Ok(Self {
            memory: Memory::holding(device, &bytes)?,
            window,
            roots: at,
        })
    }

    const fn window(&self) -> Argument {
        Argument::U64(self.memory.address() + self.window as u64)
    }

    const fn roots(&self, which: usize) -> Argument {
        Argument::U64(self.memory.address() + self.roots[which] as u64)
    }
}

/// The kernels that transform and sum spectra.
enum Work {
    Short {
        batch: Batch,
        sum: Function,
    },
    Long {
        columns: Batch,
        rows: Batch,
        down: Function,
        across: Function,
        /// Memory for the results of the column transforms, which the row transforms read.
        space: Memory,
    },
}

impl Work {
    const fn threads(&self) -> usize {
        match self {
            Self::Short { batch, .. } => batch.threads,
            Self::Long { rows, .. } => rows.threads,
        }
    }
}

struct Averager {
    integration: Integration,
    summer: Summer,
    occupancy: f64,
}

impl Kernel for Averager {
    fn outputs(&self, frames: usize) -> usize {
        self.integration.outputs(frames)
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
        let mut launching = Launching {
            stream: device::stream(on)?,
            from: slots(burst)?,
            summer: &mut self.summer,
            out,
            stretch: None,
        };
        let submitted = self.integration.run(burst, &mut launching)?;
        launching.launch()?;
        Ok(submitted)
    }
}

/// A run of consecutive spectra.
#[derive(Clone, Copy)]
struct Stretch {
    /// Index of the first spectrum, counted from the first spectrum of the burst.
    first: u64,
    count: u64,
    /// Output slots, starting with the slot for the output of the first spectrum.
    to: Slice,
}

/// State that exists while the work of a burst is launched.
struct Launching<'a, 'b> {
    stream: &'a driver::Stream,
    from: Slice,
    summer: &'a mut Summer,
    out: &'a mut SlotsMut<'b>,
    stretch: Option<Stretch>,
}

impl Launching<'_, '_> {
    /// Launches the work of the collected run.
    fn launch(&mut self) -> Result<(), KernelError> {
        match self.stretch.take() {
            Some(stretch) => self.summer.launch(self.stream, &self.from, stretch),
            None => Ok(()),
        }
    }
}

impl Sums for Launching<'_, '_> {
    fn add(
        &mut self,
        i: usize,
        _: &Frame<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), KernelError> {
        let first = (i * self.summer.shape.spectra + first) as u64;
        match &mut self.stretch {
            Some(stretch) if stretch.first + stretch.count == first => {
                stretch.count += count as u64;
            }
            _ => {
                self.launch()?;
                self.stretch = Some(Stretch {
                    first,
                    count: count as u64,
                    to: self.out.slice(),
                });
            }
        }
        Ok(())
    }

    fn finish(&mut self, meta: FrameMeta) -> Result<(), KernelError> {
        let bytes = self.summer.channels * self.summer.shape.bins * 4;
        promise(self.out, bytes, meta)
    }

    fn clear(&mut self) -> Result<(), KernelError> {
        self.launch()?;
        self.summer.pending = 0;
        Ok(())
    }
}

struct Summer {
    shape: Shape,
    scalar: Argument,
    complex: bool,
    walk: Walk,
    channels: usize,
    /// Factor by which a finished sum is multiplied.
    factor: f64,
    db: bool,
    /// Number of pieces needed to keep the device busy.
    blocks: usize,
    scratch: Scratch,
    partial: Memory,
    /// Two buffers for sums that are carried from one launch to the next. A launch reads the current buffer and writes
    /// the other.
    carry: [Memory; 2],
    current: usize,
    /// Number of spectra in the sums of the current buffer.
    pending: u64,
    /// The function that computes the means to subtract, and the memory of the means.
    means: Option<(Function, Memory)>,
    tables: Tables,
    work: Work,
    combine: Function,
}

/// Division of the spectra of one round into outputs and pieces.
#[derive(Clone, Copy)]
struct Cut {
    total: u64,
    /// Number of spectra that are missing in the first output, at most `total`. The next field is the number of spectra
    /// per later output.
    left: u64,
    each: u64,
    outputs: usize,
    complete: usize,
    /// Number of spectra per piece. The next field is the maximum number of pieces per output.
    chunk: u64,
    pieces: usize,
}

impl Summer {
    fn launch(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        stretch: Stretch,
    ) -> Result<(), KernelError> {
        let Stretch {
            mut first,
            count,
            mut to,
        } = stretch;
        let end = first + count;
        while first < end {
            let cut = self.cut(end - first);
            self.round(stream, from, first, &cut, &to)?;
            first += cut.total;
            to = to.after(cut.complete);
        }
        Ok(())
    }

    /// Selects how many of the remaining `rest` spectra are processed in one round.
    fn cut(&self, rest: u64) -> Cut {
        let integrate = self.shape.integrate;
        let left = integrate - self.pending;
        // Each output needs one set of partial sums per channel.
        let most_outputs = (self.scratch.partial / self.channels) as u64;
        let room = left.saturating_add((most_outputs - 1).saturating_mul(integrate));
        let mut total = rest.min(room);
        for space in [self.scratch.work, self.scratch.means] {
            if space > 0 {
                total = total.min(space as u64);
            }
        }
        let (outputs, complete) = if total < left {
            (1, 0)
        } else {
            let more = total - left;
            (1 + more.div_ceil(integrate), 1 + more / integrate)
        };
        let (outputs, complete) = (as_usize(outputs), as_usize(complete));
        let (left, each) = (left.min(total), integrate.min(total));
        let longest = if outputs == 1 { total } else { left.max(each) };
        let pair = if self.complex { 1 } else { 2 };
        let (step, groups) = match &self.work {
            Work::Short { batch, .. } => (pair * batch.count, 1),
            Work::Long { rows, columns, .. } => (pair, columns.size.div_ceil(rows.count)),
        };
        let all = total * (self.channels * groups) as u64;
        let mut chunk = all
            .div_ceil(self.blocks as u64)
            .next_multiple_of(step as u64);
        // With one piece per output, the partial sums always fit.
        while as_usize(longest.div_ceil(chunk)) * outputs * self.channels > self.scratch.partial {
            chunk *= 2;
        }
        Cut {
            total,
            left,
            each,
            outputs,
            complete,
            chunk,
            pieces: as_usize(longest.div_ceil(chunk)),
        }
    }

    /// Sums the spectra of `cut`, starting at spectrum `first` of the burst. Writes the finished outputs.
    fn round(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        first: u64,
        cut: &Cut,
        to: &Slice,
    ) -> Result<(), KernelError> {
        let Cut {
            outputs, pieces, ..
        } = *cut;
        let spectra = self.shape.spectra as u64;
        let from = from.after(as_usize(first / spectra));
        let [a, b, c, d] = ring(&from);
        let complex = Argument::U32(u32::from(self.complex));
        let point_step = Argument::U64(self.walk.point as u64);
        let channel_step = Argument::U64(self.walk.channel as u64);
        let hop = Argument::U64(self.shape.hop as u64);
        let origin = Argument::U64(first % spectra);
        let spectra = Argument::U64(spectra);
        let total = Argument::U64(cut.total);
        let left = Argument::U64(cut.left);
        let each = Argument::U64(cut.each);
        let chunk = Argument::U64(cut.chunk);
        let channels = Argument::U32(small(self.channels));
        let pieces_each = Argument::U32(small(pieces));
        let partial = Argument::U64(self.partial.address());
        let u32_of = |count: usize| Argument::U32(small(count));
        let sets = outputs * pieces * self.channels;
        let means = Argument::U64(self.means.as_ref().map_or(0, |(_, space)| space.address()));
        if let Some((function, _)) = &self.means {
            let blocks = small(as_usize(cut.total) * self.channels);
            function.launch(
                stream,
                &Grid::line(blocks, MEAN_THREADS),
                &[
                    a,
                    b,
                    c,
                    d,
                    self.scalar,
                    complex,
                    point_step,
                    channel_step,
                    hop,
                    spectra,
                    origin,
                    channels,
                    u32_of(self.shape.size),
                    means,
                ],
            )?;
        }
        match &self.work {
            Work::Short { batch, sum } => sum.launch(
                stream,
                &grid(sets, batch),
                &[
                    a,
                    b,
                    c,
                    d,
                    self.scalar,
                    complex,
                    point_step,
                    channel_step,
                    hop,
                    spectra,
                    origin,
                    total,
                    left,
                    each,
                    chunk,
                    pieces_each,
                    channels,
                    u32_of(batch.size),
                    u32_of(batch.count),
                    Argument::U64(batch.radices),
                    means,
                    self.tables.window(),
                    self.tables.roots(0),
                    partial,
                ],
            )?,
            Work::Long {
                columns,
                rows,
                down,
                across,
                space,
            } => {
                let work = Argument::U64(space.address());
                let transforms = as_usize(cut.total) * self.channels;
                let groups = rows.size.div_ceil(columns.count);
                down.launch(
                    stream,
                    &grid(transforms * groups, columns),
                    &[
                        a,
                        b,
                        c,
                        d,
                        self.scalar,
                        complex,
                        point_step,
                        channel_step,
                        hop,
                        spectra,
                        origin,
                        total,
                        left,
                        each,
                        chunk,
                        channels,
                        u32_of(columns.size),
                        u32_of(rows.size),
                        u32_of(columns.count),
                        Argument::U64(columns.radices),
                        means,
                        self.tables.window(),
                        self.tables.roots(0),
                        self.tables.roots(2),
                        work,
                    ],
                )?;
                let groups = columns.size.div_ceil(rows.count);
                across.launch(
                    stream,
                    &grid(sets * groups, rows),
                    &[
                        complex,
                        total,
                        left,
                        each,
                        chunk,
                        pieces_each,
                        channels,
                        u32_of(columns.size),
                        u32_of(rows.size),
                        u32_of(rows.count),
                        Argument::U64(rows.radices),
                        self.tables.roots(1),
                        work,
                        partial,
                    ],
                )?;
            }
        }
        self.combine(stream, cut, to)
    }

    /// Combines the partial sums of a round.
    fn combine(
        &mut self,
        stream: &driver::Stream,
        cut: &Cut,
        to: &Slice,
    ) -> Result<(), KernelError> {
        let bins = self.shape.bins;
        let carried = match self.pending {
            0 => 0,
            _ => self.carry[self.current].address(),
        };
        let fold = self.scratch.width != bins;
        let [a, b, c, d] = ring(to);
        let tiles = bins.div_ceil(COMBINE_BINS);
        let grid = Grid::line(small(tiles * self.channels * cut.outputs), COMBINE_THREADS);
        self.combine.launch(
            stream,
            &grid,
            &[
                Argument::U64(self.partial.address()),
                Argument::U64(cut.total),
                Argument::U64(cut.left),
                Argument::U64(cut.each),
                Argument::U64(cut.chunk),
                Argument::U32(small(cut.pieces)),
                Argument::U32(small(self.channels)),
                Argument::U32(small(bins)),
                Argument::U32(small(self.scratch.width)),
                Argument::U32(u32::from(fold)),
                Argument::U32(small(cut.complete)),
                Argument::U64(carried),
                Argument::U64(self.carry[1 - self.current].address()),
                a,
                b,
                c,
                d,
                Argument::F64(self.factor),
                Argument::U32(small(self.shape.doubled)),
                Argument::U32(u32::from(self.complex)),
                Argument::U32(u32::from(self.db)),
            ],
        )?;
        let integrate = self.shape.integrate;
        self.pending = (self.pending + cut.total) % integrate;
        if self.pending > 0 {
            self.current = 1 - self.current;
        }
        Ok(())
    }
}

/// Converts a count, which must fit into `usize`.
fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
