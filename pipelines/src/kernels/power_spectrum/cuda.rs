//! The CUDA implementation of `power-spectrum`.
//!
//! Spectra of consecutive frames that are all used form a run. A run needs as few launches as the scratch memory
//! allows. The spectra of one output are divided into pieces, so that there are enough blocks for the GPU. Each piece
//! writes its sums to scratch memory, and the last launch combines them. The sums of an unfinished output are carried
//! over to the next run.

use super::super::device;
use super::super::grouping::Grouping;
use super::super::joiner::{self, Joiner};
use super::super::launcher::{DeviceSums, Launcher, Round};
use super::super::parameters::{Spectra, Transforms, code_of, small};
use super::super::samples::Walk;
use super::median::bias;
use super::passes::{Batch, Passes, roots};
use super::{Average, Detrend, PowerSpectrum, Scaling, Shape};
use daq_core::gpu::driver::{self, Backing, Device, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::Layout;

/// Maximum size of all partial sums in bytes. If one set per channel needs more memory, this limit is exceeded.
const PARTIAL_BYTES: usize = 32 << 20;
/// Maximum number of spectra that the device code for powers of two adds in float32. Their sums are added in float64.
const MAX_TERMS: usize = 64;
/// Maximum size of the spectra of all outputs whose medians are computed, and of the spectra of one such output.
const HISTORY_BYTES: usize = 64 << 20;
const MAX_HISTORY_BYTES: usize = 1 << 30;
/// Maximum number of sets of partial sums. If there are more channels, this limit is exceeded.
const MAX_PARTIAL: usize = 1 << 16;
/// Maximum size of the used part of the work space for long transforms in bytes, so that it fits into the cache of the GPU.
/// If one transform per channel needs more memory, this limit is exceeded.
const WORK_BYTES: usize = 32 << 20;
/// Number of bytes of shared memory per block that every GPU provides.
const MIN_SHARED: usize = 48 << 10;
/// Number of pieces of whole transforms per concurrent block of the device. Several pieces per block keep the device busy
/// until the end of a launch. The partial sums of long transforms are larger, so they have one piece.
const SHORT_PIECES: usize = 2;
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
    /// Number of spectra of an output whose median is computed, and the number of such outputs that fit into the memory; 0
    /// for means.
    history: usize,
    spaces: usize,
    /// Number of spectra per channel that fit into the work space; 0 if no work space is needed.
    work: usize,
    /// Number of spectra per channel whose means fit into the memory; 0 if no means are needed.
    means: usize,
}

impl Scratch {
    fn new(keys: &PowerSpectrum, passes: &Passes, input: &Layout, shape: &Shape) -> Self {
        let channels = input.channels as usize;
        let is_long = passes.columns.is_some();
        let width = if is_long { shape.fft } else { shape.bins };
        let pair = if input.complex { 1 } else { 2 };
        // Of the space for two real spectra, only one half is used.
        let fit = WORK_BYTES / (shape.fft * 8 * channels) * pair;
        let history = match keys.average {
            Average::Mean => 0,
            Average::Median => shape.history(),
        };
        // At least one output, and at most as many outputs as a set of launches can use.
        let spaces = match history {
            0 => 0,
            _ => (HISTORY_BYTES / (history * channels * width * 4)).clamp(1, MAX_PARTIAL),
        };
        Self {
            history,
            spaces,
            partial: match history {
                0 => (PARTIAL_BYTES / (width * 4)).min(MAX_PARTIAL).max(channels),
                _ => history * spaces * channels,
            },
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
        self.partial * self.width * 4
    }
}

/// Returns the maximum number of bytes allocated on a device.
pub(super) fn memory(keys: &PowerSpectrum, input: &Layout, shape: &Shape) -> usize {
    let max = max_together(keys, input, shape);
    Passes::new(shape.fft, shape.is_padded(), max, MIN_SHARED).map_or(0, |passes| {
        let channels = input.channels as usize;
        let scratch = Scratch::new(keys, &passes, input, shape);
        let means = scratch.means * channels * 8;
        let tables = shape.fft * (4 + 3 * 8);
        let carried = 2 * channels * shape.bins * 8;
        let joined = if keys.continuous {
            joiner::memory(input, shape.size)
        } else {
            0
        };
        scratch.partial_bytes()
            + scratch.work_bytes(shape.fft, channels)
            + means
            + tables
            + carried
            + joined
    })
}

/// Returns the maximum number of transforms that a block adds up.
fn max_together(keys: &PowerSpectrum, input: &Layout, shape: &Shape) -> usize {
    match keys.average {
        Average::Mean => shape.history().div_ceil(if input.complex { 1 } else { 2 }),
        Average::Median => 1,
    }
}

/// Returns whether the spectra of an output whose median is computed fit into the memory that a device may use for them.
pub(super) fn has_space(keys: &PowerSpectrum, input: &Layout, shape: &Shape) -> bool {
    let channels = input.channels as usize;
    let bytes = shape.history().saturating_mul(channels * shape.fft * 4);
    keys.average == Average::Mean || bytes <= MAX_HISTORY_BYTES
}

pub(super) fn build(
    ordinal: u32,
    keys: &PowerSpectrum,
    input: &Layout,
    grouping: Grouping,
    shape: Shape,
    factor: f64,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::POWER_SPECTRUM.load(ordinal)?;
    let max_shared = usize::try_from(device.attributes().max_shared).unwrap_or(MIN_SHARED);
    let max = max_together(keys, input, &shape);
    let passes = Passes::new(shape.fft, shape.is_padded(), max, max_shared).ok_or_else(|| {
        KernelError::Refused(format!(
            "the GPU cannot transform {} points; choose a number of points up to 1048576 without a prime factor \
             above 7, or set `memory = \"host\"` for the input ring",
            shape.fft
        ))
    })?;
    let scratch = Scratch::new(keys, &passes, input, &shape);
    let channels = input.channels as usize;
    let function = |name: &str, batch: &Batch| -> Result<Function, KernelError> {
        let own = device::power_of_two(batch.size).filter(|_| batch.is_power());
        let function = match own {
            Some(code) => {
                let (_, module) = code.load(ordinal)?;
                module.function(&format!("{name}_{}", batch.size))?
            }
            None => module.function(name)?,
        };
        if batch.shared > MIN_SHARED {
            function.allow_shared(small(batch.shared))?;
        }
        Ok(function)
    };
    let plain = |bytes: usize| Memory::with(device, bytes, Backing::Plain);
    let tables = Tables::new(device, keys, &shape, &passes)?;
    let [column_roots, row_roots, all_roots] = tables.roots;
    let rows = (
        passes.rows,
        function(
            match passes.columns {
                None => "power_spectrum_short",
                Some(_) => "power_spectrum_rows",
            },
            &passes.rows,
        )?,
    );
    let columns = match passes.columns {
        None => None,
        Some(columns) => Some((columns, function("power_spectrum_columns", &columns)?)),
    };
    let occupancy = rows.1.occupancy(&grid(1, &rows.0))?;
    let attributes = device.attributes();
    let processors = usize::try_from(attributes.multiprocessors.max(1)).unwrap_or(1);
    let resident_threads = f64::from(attributes.threads_per_multiprocessor) * occupancy;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number of threads of a multiprocessor fits into a usize"
    )]
    let resident_blocks = (resident_threads as usize / rows.0.threads).max(1);
    let space = match scratch.work {
        0 => None,
        _ => Some(plain(scratch.work_bytes(shape.fft, channels))?),
    };
    let partial = plain(scratch.partial_bytes())?;
    let means = match scratch.means {
        0 => None,
        spectra => Some((
            module.function("power_spectrum_means")?,
            plain(spectra * channels * 8)?,
        )),
    };
    let carry = || plain(channels * shape.bins * 8);
    let joiner = if keys.continuous {
        Some(Joiner::new(device, &module, input, shape.size)?)
    } else {
        None
    };
    let walk = match &joiner {
        Some(joiner) => Walk::of(input.order, channels, joiner.channel_points()),
        None => Walk::through(input),
    };
    let summer = Summer {
        parameters: Spectra {
            columns: passes.columns.map_or_else(Transforms::default, |columns| {
                transforms(&columns, column_roots)
            }),
            rows: transforms(&passes.rows, row_roots),
            all_roots,
            window: tables.window,
            means: means.as_ref().map_or(0, |(_, memory)| memory.address()),
            work: space.as_ref().map_or(0, Memory::address),
            partial: partial.address(),
            point_step: walk.point as u64,
            channel_step: walk.channel as u64,
            hop: shape.hop as u64,
            spectra: if keys.continuous {
                u64::from(u32::MAX)
            } else {
                shape.spectra as u64
            },
            factor: match keys.average {
                Average::Mean => factor / shape.integrate as f64,
                Average::Median => factor / bias(shape.history()),
            },
            history: small(scratch.history),
            spaces: small(scratch.spaces),
            channels: input.channels,
            scalar: code_of(input.scalar),
            complex: u32::from(input.complex),
            block: small(shape.size),
            bins: small(shape.bins),
            width: small(scratch.width),
            doubled: small(shape.doubled),
            db: u32::from(keys.scaling == Scaling::Db),
            ..Spectra::default()
        },
        bins: shape.bins,
        channels,
        blocks: processors
            * resident_blocks
            * if passes.columns.is_none() {
                SHORT_PIECES
            } else {
                1
            },
        scratch,
        carry: [carry()?, carry()?],
        joiner,
        means,
        columns,
        rows,
        combine: module.function(match keys.average {
            Average::Mean => "power_spectrum_combine",
            Average::Median => "power_spectrum_median",
        })?,
        _memory: [Some(tables.memory), Some(partial), space],
    };
    Ok(Box::new(Launcher::new(grouping, summer, occupancy)))
}

fn grid(blocks: usize, batch: &Batch) -> Grid {
    Grid {
        shared: small(batch.shared),
        ..Grid::line(small(blocks), small(batch.threads))
    }
}

/// Returns the transforms of `batch` in the format of the device code. Their roots are at the address `roots`.
fn transforms(batch: &Batch, roots: u64) -> Transforms {
    Transforms {
        roots,
        radices: batch.radices,
        size: small(batch.size),
        count: small(batch.count),
        second: small(batch.second),
    }
}

/// The window and the roots of unity in device memory.
struct Tables {
    memory: Memory,
    /// Address of the window.
    window: u64,
    /// Addresses of the roots: of the columns, the rows and the whole transform.
    roots: [u64; 3],
}

impl Tables {
    fn new(
        device: &'static Device,
        keys: &PowerSpectrum,
        shape: &Shape,
        passes: &Passes,
    ) -> Result<Self, KernelError> {
        let sizes = match passes.columns {
            None => [0, shape.fft, 0],
            Some(columns) => [columns.size, passes.rows.size, shape.fft],
        };
        let mut bytes = Vec::new();
        let offsets = sizes.map(|size| {
            let offset = bytes.len();
            bytes.extend(roots(size).flatten().flat_map(f32::to_le_bytes));
            offset
        });
        let window = bytes.len();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the transform uses float32 values"
        )]
        bytes.extend(
            (0..shape.size).flat_map(|n| (keys.window.at(n, shape.size) as f32).to_le_bytes()),
        );
        let memory = Memory::holding(device, &bytes)?;
        let address = |offset: usize| memory.address() + offset as u64;
        Ok(Self {
            window: address(window),
            roots: offsets.map(address),
            memory,
        })
    }
}

struct Summer {
    /// The parameters of the next round.
    parameters: Spectra,
    bins: usize,
    channels: usize,
    /// Number of pieces needed to keep the device busy.
    blocks: usize,
    scratch: Scratch,
    /// Two buffers for sums that are carried from one round to the next. A round reads the first buffer and writes the
    /// second.
    carry: [Memory; 2],
    joiner: Option<Joiner>,
    /// The function that computes the means to subtract, and the memory of the means.
    means: Option<(Function, Memory)>,
    /// The kernel that transforms the columns of long transforms.
    columns: Option<(Batch, Function)>,
    /// The kernel that transforms the rows or the whole transforms, and sums them.
    rows: (Batch, Function),
    /// The function that combines the partial sums to outputs.
    combine: Function,
    /// Memory to which the parameters point.
    _memory: [Option<Memory>; 3],
}

impl Summer {
    /// Returns the number of blocks per transform.
    fn row_groups(&self) -> usize {
        let columns = self.columns.as_ref();
        columns.map_or(1, |(columns, _)| columns.size.div_ceil(self.rows.0.count))
    }

    /// Returns the number of spectra that a block transforms side by side, and the maximum number of spectra per piece.
    fn steps(&self) -> (usize, usize) {
        let pair = if self.parameters.complex == 1 { 1 } else { 2 };
        let step = match self.columns {
            None => pair * self.rows.0.count,
            Some(_) => pair,
        };
        let max = if self.rows.0.is_power() {
            MAX_TERMS * step
        } else {
            usize::MAX / step * step
        };
        (step, max)
    }

    /// Returns the number of sets of partial sums for each channel.
    const fn sets(&self) -> usize {
        self.scratch.partial / self.channels
    }

    /// Returns the maximum number of items of a round. Each piece needs one set of partial sums per channel. For n items in
    /// pieces of m, o outputs have at most (each / m + 1) * o pieces, where o is at most n / each + 2: less than 3 * n / m + o.
    fn max_items(&self) -> usize {
        (self.sets() / 6).max(1).saturating_mul(self.steps().1)
    }

    /// Returns the number of spectra per piece and the maximum number of pieces per output.
    fn pieces(&self, round: &Round) -> (u64, usize) {
        if self.scratch.history > 0 {
            let longest = round.cut.left.max(round.cut.each).min(round.cut.total);
            return (1, usize::try_from(longest).unwrap_or(usize::MAX));
        }
        let (step, max) = self.steps();
        let max = max as u64;
        let groups = self.row_groups();
        let all = round.items * self.channels * groups;
        let mut chunk = max.min(all.div_ceil(self.blocks).next_multiple_of(step) as u64);
        let cut = round.cut;
        let longest = if round.outputs == 1 {
            cut.total
        } else {
            cut.left.max(cut.each)
        };
        let pieces = |chunk: u64| usize::try_from(longest.div_ceil(chunk)).unwrap_or(usize::MAX);
        // With pieces of the maximum size, the partial sums always fit into the memory, because `limits` limits the round.
        while chunk < max && pieces(chunk) * round.outputs * self.channels > self.scratch.partial {
            chunk = max.min(chunk * 2);
        }
        (chunk, pieces(chunk))
    }
}

impl DeviceSums for Summer {
    fn output_bytes(&self) -> usize {
        self.channels * self.bins * 4
    }

    fn limits(&self) -> (usize, usize) {
        let max_items = match self.scratch.history {
            0 => self.max_items(),
            _ => usize::MAX,
        };
        let max_outputs = match self.scratch.history {
            0 => (self.sets() / 2).max(1),
            _ => self.scratch.spaces,
        };
        let spaces = [self.scratch.work, self.scratch.means];
        let max_items = spaces
            .into_iter()
            .filter(|space| *space > 0)
            .fold(max_items, usize::min);
        (max_outputs, max_items)
    }

    fn joiner(&mut self) -> Option<&mut Joiner> {
        self.joiner.as_mut()
    }

    fn launch(&mut self, stream: &driver::Stream, round: &Round) -> Result<(), KernelError> {
        let (chunk, pieces) = self.pieces(round);
        let parameters = &mut self.parameters;
        parameters.from = (&round.from).into();
        parameters.to = (&round.to).into();
        parameters.cut = round.cut;
        parameters.origin = round.origin;
        parameters.chunk = chunk;
        parameters.pieces = small(pieces);
        let is_direct = self.columns.is_none()
            && pieces == 1
            && round.complete == round.outputs
            && round.pending == 0
            && self.scratch.history == 0;
        parameters.direct = u32::from(is_direct);
        parameters.complete = small(round.complete);
        parameters.carry = self.carry[1].address();
        parameters.pending = small(round.pending);
        parameters.carried = if round.pending > 0 {
            self.carry[0].address()
        } else {
            0
        };
        let arguments = parameters.arguments();
        let transforms = round.items * self.channels;
        let sets = round.outputs * pieces * self.channels * self.row_groups();
        if let Some((means, _)) = &self.means {
            means.launch(
                stream,
                &Grid::line(small(transforms), MEAN_THREADS),
                &arguments,
            )?;
        }
        if let Some((columns, function)) = &self.columns {
            let groups = self.rows.0.size.div_ceil(columns.count);
            function.launch(stream, &grid(transforms * groups, columns), &arguments)?;
        }
        let (rows, function) = &self.rows;
        function.launch(stream, &grid(sets, rows), &arguments)?;
        if is_direct {
            return Ok(());
        }
        let tiles = self.bins.div_ceil(COMBINE_BINS);
        if self.scratch.history > 0 {
            let space = self.parameters.space + small(round.complete);
            self.parameters.space = space % small(self.scratch.spaces);
        }
        // Medians need all spectra of an output.
        let outputs = if self.scratch.history > 0 {
            round.complete
        } else {
            round.outputs
        };
        if outputs == 0 {
            return Ok(());
        }
        let blocks = tiles * self.channels * outputs;
        self.combine.launch(
            stream,
            &Grid::line(small(blocks), COMBINE_THREADS),
            &arguments,
        )?;
        if round.complete < round.outputs {
            self.carry.swap(0, 1);
        }
        Ok(())
    }
}
