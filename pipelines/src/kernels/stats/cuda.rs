//! The CUDA implementation of `stats`.
//!
//! Consecutive frames that are all used form a run. Each block processes a part of one channel of one frame and writes
//! its sums to scratch memory. Histograms are added up in one buffer per output. A second launch combines the sums,
//! writes the finished outputs, and keeps the sums of the unfinished output for the next run.

use super::super::device;
use super::super::grouping::Grouping;
use super::super::launcher::{DeviceSums, Launcher, Round};
use super::super::parameters::{Bins, Statistics, Tally, code_of, small};
use super::super::samples::Walk;
use super::FIELDS;
use super::histogram::Histogram;
use daq_core::gpu::driver::{self, Backing, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError};
use daq_core::layout::Layout;

const THREADS: u32 = 256;
/// Number of blocks per multiprocessor.
const BLOCKS: usize = 16;
/// Minimum number of values per part. All parts are multiples of this number, so that wide loads are aligned.
const MIN_NUMBERS: usize = 8192;
const WHOLE: usize = 64;
/// Maximum number of values per part. It is limited because the values are counted in 32 bits.
const MAX_NUMBERS: usize = 1 << 30;
/// Maximum number of parts per launch. If there are more channels, this limit is exceeded.
const MAX_PARTS: usize = 1 << 14;
/// Maximum number of bins of a histogram in shared memory.
const MAX_SHARED: usize = 8192;
/// Maximum size of all histograms in bytes. If the histograms of two outputs need more memory, this limit is exceeded.
const HISTOGRAM_BYTES: usize = 16 << 20;
/// Maximum number of outputs whose values are counted at the same time.
const MAX_BUFFERS: usize = 256;
/// Size of a tally in bytes.
const TALLY_BYTES: usize = size_of::<Tally>();

/// Returns the number of outputs whose values are counted at the same time: at least two (one output that ends and one
/// that begins), and more if memory allows.
fn buffers(channels: usize, bins: usize) -> usize {
    let each = channels * bins.max(1) * 8;
    (HISTOGRAM_BYTES / each).clamp(2, MAX_BUFFERS)
}

/// Returns the number of bytes allocated on a device.
pub(super) fn memory(input: &Layout, bins: usize) -> usize {
    let channels = input.channels as usize;
    let kept = buffers(channels, bins) * channels * (bins * 8 + TALLY_BYTES);
    kept + MAX_PARTS.max(channels) * TALLY_BYTES + (bins + 1) * 8
}

pub(super) fn build(
    ordinal: u32,
    input: &Layout,
    grouping: Grouping,
    limits: (f64, f64),
    histogram: Option<&Histogram>,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::STATS.load(ordinal)?;
    let channels = input.channels as usize;
    let bins = histogram.map_or(0, |histogram| histogram.bins.count);
    let is_codes = input.scalar.bits() == 8;
    let in_shared = !is_codes && (1..=MAX_SHARED).contains(&bins);
    let count = module.function(if is_codes {
        "stats_codes"
    } else {
        "stats_numbers"
    })?;
    let grid = Grid {
        shared: if in_shared { small(bins * 4) } else { 0 },
        ..Grid::line(1, THREADS)
    };
    let occupancy = count.occupancy(&grid)?;
    let buffers = buffers(channels, bins);
    let max_parts = MAX_PARTS.max(channels);
    let plain = |bytes: usize| Memory::with(device, bytes, Backing::Plain);
    let edges: Vec<u8> = histogram
        .iter()
        .flat_map(|histogram| &histogram.edges)
        .flat_map(|edge| edge.to_le_bytes())
        .collect();
    let partial = plain(max_parts * TALLY_BYTES)?;
    let counts = plain((buffers * channels * bins * 8).max(1))?;
    let kept = Memory::holding(device, &Tally::empty_bytes().repeat(buffers * channels))?;
    let edges = Memory::holding(device, &edges)?;
    let processors = usize::try_from(device.attributes().multiprocessors.max(1)).unwrap_or(1);
    let walk = Walk::through(input);
    let parts = if input.complex { 2 } else { 1 };
    let counter = Counter {
        parameters: Statistics {
            bins: Bins {
                edges: edges.address(),
                ..histogram.map_or_else(Bins::default, Bins::from)
            },
            points: input.points as u64,
            point_step: walk.point as u64,
            channel_step: walk.channel as u64,
            low: limits.0,
            high: limits.1,
            partial: partial.address(),
            kept: kept.address(),
            counts: counts.address(),
            buffers: small(buffers),
            channels: input.channels,
            parts,
            scalar: code_of(input.scalar),
            in_shared: u32::from(in_shared),
            ..Statistics::default()
        },
        numbers: input.points * parts as usize,
        channels,
        grid,
        blocks: processors * BLOCKS,
        max_parts,
        count,
        finish: module.function("stats_finish")?,
        _memory: [partial, counts, kept, edges],
    };
    Ok(Box::new(Launcher::new(grouping, counter, occupancy)))
}

impl From<&Histogram> for Bins {
    fn from(histogram: &Histogram) -> Self {
        Self {
            low: histogram.bins.low,
            high: histogram.bins.high,
            per_unit: histogram.per_unit,
            edges: 0,
            count: small(histogram.bins.count),
            rounds: u32::from(histogram.rounds),
        }
    }
}

struct Counter {
    /// The parameters of the next round. All counts of the histograms are 0 except those of the output in progress.
    parameters: Statistics,
    /// Number of values of one channel of a frame.
    numbers: usize,
    channels: usize,
    grid: Grid,
    /// Number of blocks that are sufficient to keep the device busy.
    blocks: usize,
    max_parts: usize,
    count: Function,
    finish: Function,
    /// Memory to which the parameters point.
    _memory: [Memory; 4],
}

impl Counter {
    /// Returns the number of values per part if `frames` frames are processed in one round.
    fn chunk(&self, frames: usize) -> usize {
        let lines = frames.max(1) * self.channels;
        let mut chunk = self
            .numbers
            .div_ceil(self.blocks.div_ceil(lines))
            .max(MIN_NUMBERS)
            .next_multiple_of(WHOLE)
            .min(MAX_NUMBERS);
        while self.numbers.div_ceil(chunk) * lines > self.max_parts {
            chunk *= 2;
        }
        chunk
    }
}

impl DeviceSums for Counter {
    fn output_bytes(&self) -> usize {
        self.channels * (FIELDS.len() + self.parameters.bins.count as usize) * 8
    }

    fn limits(&self) -> (usize, usize) {
        let buffers = self.parameters.buffers as usize;
        (buffers, self.max_parts / self.channels)
    }

    fn launch(&mut self, stream: &driver::Stream, round: &Round) -> Result<(), KernelError> {
        let chunk = self.chunk(round.items);
        let pieces = self.numbers.div_ceil(chunk);
        let parameters = &mut self.parameters;
        parameters.from = (&round.from).into();
        parameters.to = (&round.to).into();
        parameters.cut = round.cut;
        parameters.chunk = chunk as u64;
        parameters.pieces = small(pieces);
        parameters.complete = small(round.complete);
        let arguments = parameters.arguments();
        if round.items > 0 {
            let grid = Grid {
                blocks: [small(round.items * pieces * self.channels), 1, 1],
                ..self.grid
            };
            self.count.launch(stream, &grid, &arguments)?;
        }
        let grid = Grid::line(small(round.outputs * self.channels), THREADS);
        self.finish.launch(stream, &grid, &arguments)?;
        parameters.buffer = (parameters.buffer + parameters.complete) % parameters.buffers;
        Ok(())
    }
}
