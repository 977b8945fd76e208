//! The CUDA implementation of `stats`.
//!
//! Consecutive frames that are all used form a run. Each block processes a part of one channel of one frame and writes
//! its sums to scratch memory. Histograms are added up in one buffer per output. A second launch combines the sums,
//! writes the finished outputs, and keeps the sums of the unfinished output for the next run.

use super::super::device::{self, code_of, promise, ring, slots, small};
use super::super::samples::Walk;
use super::FIELDS;
use super::histogram::Histogram;
use super::merging::{Merging, Tallies};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Argument, Backing, Function, Grid, Memory};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::layout::Layout;
use daq_core::ring::{Frame, Lease, Slice, SlotsMut};

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
/// Size of the device code's `Tally` in bytes.
const TALLY_BYTES: usize = 48;

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
    every: u64,
    limits: (f64, f64),
    histogram: Option<&Histogram>,
) -> Result<Box<dyn Kernel>, KernelError> {
    let (device, module) = device::STATS.load(ordinal)?;
    let channels = input.channels as usize;
    let bins = histogram.map_or(0, |histogram| histogram.bins.count);
    let is_codes = input.scalar.bytes() == 1;
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
    let parts = MAX_PARTS.max(channels);
    let plain = |bytes: usize| Memory::with(device, bytes, Backing::Plain);
    // An empty tally contains no numbers, and the extremes of an empty set.
    let mut nothing = [0; TALLY_BYTES];
    nothing[16..24].copy_from_slice(&f64::INFINITY.to_le_bytes());
    nothing[24..32].copy_from_slice(&f64::NEG_INFINITY.to_le_bytes());
    let edges: Vec<u8> = histogram
        .iter()
        .flat_map(|histogram| &histogram.edges)
        .flat_map(|edge| edge.to_le_bytes())
        .collect();
    let processors = usize::try_from(device.attributes().multiprocessors.max(1)).unwrap_or(1);
    Ok(Box::new(Merger {
        merging: Merging::new(input, every),
        counter: Counter {
            scalar: code_of(input.scalar),
            parts: if input.complex { 2 } else { 1 },
            points: input.points,
            channels,
            walk: Walk::through(input),
            every,
            limits,
            bins: Table::new(histogram),
            in_shared,
            grid,
            blocks: processors * BLOCKS,
            most_parts: parts,
            partial: plain(parts * TALLY_BYTES)?,
            counts: plain((buffers * channels * bins * 8).max(1))?,
            kept: Memory::holding(device, &nothing.repeat(buffers * channels))?,
            edges: Memory::holding(device, &edges)?,
            buffers,
            buffer: 0,
            pending: 0,
            count,
            finish: module.function("stats_finish")?,
        },
        occupancy,
    }))
}

struct Merger {
    merging: Merging,
    counter: Counter,
    occupancy: f64,
}

impl Kernel for Merger {
    fn outputs(&self, frames: usize) -> usize {
        Merging::outputs(frames)
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
            counter: &mut self.counter,
            out,
            stretch: None,
        };
        let submitted = self.merging.run(burst, &mut launching)?;
        launching.launch(false)?;
        Ok(submitted)
    }
}

/// A run of consecutive frames.
#[derive(Clone, Copy)]
struct Stretch {
    /// Index of the first frame in the burst.
    first: usize,
    count: usize,
    /// Output slots, starting with the slot for the output of the first frame.
    to: Slice,
}

/// State that exists while the work of a burst is launched.
struct Launching<'a, 'b> {
    stream: &'a driver::Stream,
    from: Slice,
    counter: &'a mut Counter,
    out: &'a mut SlotsMut<'b>,
    stretch: Option<Stretch>,
}

impl Launching<'_, '_> {
    /// Launches the work of the collected run. If `early` is true, ends the last output before it is complete.
    fn launch(&mut self, early: bool) -> Result<(), KernelError> {
        match self.stretch.take() {
            Some(stretch) => self.counter.launch(self.stream, &self.from, stretch, early),
            None => Ok(()),
        }
    }

    fn stretch(&self, first: usize, count: usize) -> Stretch {
        Stretch {
            first,
            count,
            to: self.out.slice(),
        }
    }
}

impl Tallies for Launching<'_, '_> {
    fn add(&mut self, i: usize, _: &Frame<'_>) -> Result<(), KernelError> {
        match &mut self.stretch {
            Some(stretch) if stretch.first + stretch.count == i => stretch.count += 1,
            _ => {
                self.launch(false)?;
                self.stretch = Some(self.stretch(i, 1));
            }
        }
        Ok(())
    }

    fn finish(&mut self, meta: FrameMeta) -> Result<(), KernelError> {
        let stretch = self.stretch.unwrap_or_else(|| self.stretch(0, 0));
        let bytes = self.counter.channels * (FIELDS.len() + self.counter.bins.count) * 8;
        promise(self.out, bytes, meta)?;
        self.stretch = Some(stretch);
        let merged = self.counter.pending + stretch.count as u64;
        if merged.is_multiple_of(self.counter.every) {
            Ok(())
        } else {
            self.launch(true)
        }
    }
}

/// The histogram in the device code's format.
struct Table {
    count: usize,
    arguments: [Argument; 5],
}

impl Table {
    fn new(histogram: Option<&Histogram>) -> Self {
        let (count, rounds, low, high, per_unit) =
            histogram.map_or((0, false, 0.0, 0.0, 0.0), |histogram| {
                let bins = &histogram.bins;
                let per_unit = histogram.per_unit;
                (bins.count, histogram.rounds, bins.low, bins.high, per_unit)
            });
        Self {
            count,
            arguments: [
                Argument::U32(small(count)),
                Argument::U32(u32::from(rounds)),
                Argument::F64(low),
                Argument::F64(high),
                Argument::F64(per_unit),
            ],
        }
    }
}

struct Counter {
    scalar: Argument,
    /// Number of values per sample: 2 for complex samples, otherwise 1.
    parts: usize,
    points: usize,
    channels: usize,
    walk: Walk,
    every: u64,
    limits: (f64, f64),
    bins: Table,
    in_shared: bool,
    grid: Grid,
    /// Number of blocks that are sufficient to keep the device busy.
    blocks: usize,
    most_parts: usize,
    partial: Memory,
    /// Histograms of `buffers` outputs. All counts are 0 except those of unfinished outputs.
    counts: Memory,
    /// Tallies of the outputs whose histograms are in `counts`.
    kept: Memory,
    edges: Memory,
    buffers: usize,
    /// Index of the unfinished output's buffer.
    buffer: usize,
    /// Number of frames in the unfinished output.
    pending: u64,
    count: Function,
    finish: Function,
}

/// Division of the frames of one round into outputs and parts.
#[derive(Clone, Copy)]
struct Cut {
    frames: usize,
    left: u64,
    each: u64,
    outputs: usize,
    complete: usize,
    /// Number of values per part. The next field is the number of parts into which each channel of a frame is divided.
    chunk: usize,
    pieces: usize,
}

impl Counter {
    fn launch(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        stretch: Stretch,
        early: bool,
    ) -> Result<(), KernelError> {
        let Stretch {
            mut first,
            count,
            mut to,
        } = stretch;
        let end = first + count;
        loop {
            let cut = self.cut(end - first, early);
            self.round(stream, &from.after(first), &cut, &to)?;
            first += cut.frames;
            to = to.after(cut.complete);
            if first == end {
                return Ok(());
            }
        }
    }

    /// Selects how many of the remaining `rest` frames are processed in one round. If `early` is true, the last frame
    /// ends the output.
    fn cut(&self, rest: usize, early: bool) -> Cut {
        let left = self.every - self.pending;
        let more = (self.buffers as u64 - 1).saturating_mul(self.every);
        let room = usize::try_from(left.saturating_add(more)).unwrap_or(usize::MAX);
        let frames = rest.min(room).min(self.most_parts / self.channels);
        let total = frames as u64;
        let (outputs, complete) = if total < left {
            (1, 0)
        } else {
            let more = total - left;
            (1 + more.div_ceil(self.every), 1 + more / self.every)
        };
        let complete = if early && frames == rest {
            outputs
        } else {
            complete
        };
        let numbers = self.points * self.parts;
        let lines = frames.max(1) * self.channels;
        let mut chunk = numbers
            .div_ceil(self.blocks.div_ceil(lines))
            .max(MIN_NUMBERS)
            .next_multiple_of(WHOLE)
            .min(MAX_NUMBERS);
        while numbers.div_ceil(chunk) * lines > self.most_parts {
            chunk *= 2;
        }
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Cut {
            frames,
            left: left.min(total),
            each: self.every.min(total.max(1)),
            outputs: count(outputs),
            complete: count(complete),
            chunk,
            pieces: numbers.div_ceil(chunk),
        }
    }

    fn round(
        &mut self,
        stream: &driver::Stream,
        from: &Slice,
        cut: &Cut,
        to: &Slice,
    ) -> Result<(), KernelError> {
        let total = Argument::U64(cut.frames as u64);
        let left = Argument::U64(cut.left);
        let each = Argument::U64(cut.each);
        let pieces = Argument::U32(small(cut.pieces));
        let channels = Argument::U32(small(self.channels));
        let counts = Argument::U64(self.counts.address());
        let buffers = Argument::U32(small(self.buffers));
        let buffer = Argument::U32(small(self.buffer));
        let partial = Argument::U64(self.partial.address());
        let [bins, rounds, low, high, per_unit] = self.bins.arguments;
        if cut.frames > 0 {
            let [a, b, c, d] = ring(from);
            let grid = Grid {
                blocks: [small(cut.frames * cut.pieces * self.channels), 1, 1],
                ..self.grid
            };
            let in_shared = Argument::U32(u32::from(self.in_shared));
            let arguments = [
                a,
                b,
                c,
                d,
                self.scalar,
                Argument::U32(small(self.parts)),
                Argument::U64(self.points as u64),
                channels,
                Argument::U64(self.walk.point as u64),
                Argument::U64(self.walk.channel as u64),
                total,
                left,
                each,
                Argument::U64(cut.chunk as u64),
                pieces,
                Argument::F64(self.limits.0),
                Argument::F64(self.limits.1),
                bins,
                rounds,
                low,
                high,
                per_unit,
                Argument::U64(self.edges.address()),
                in_shared,
                counts,
                buffers,
                buffer,
                partial,
            ];
            self.count.launch(stream, &grid, &arguments)?;
        }
        let [a, b, c, d] = ring(to);
        self.finish.launch(
            stream,
            &Grid::line(small(cut.outputs * self.channels), THREADS),
            &[
                partial,
                total,
                left,
                each,
                pieces,
                channels,
                bins,
                counts,
                Argument::U64(self.kept.address()),
                buffers,
                buffer,
                Argument::U32(small(cut.complete)),
                a,
                b,
                c,
                d,
            ],
        )?;
        self.buffer = (self.buffer + cut.complete) % self.buffers;
        self.pending = if cut.complete == cut.outputs {
            0
        } else {
            (self.pending + cut.frames as u64) % self.every
        };
        Ok(())
    }
}
