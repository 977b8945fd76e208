//! Measures baseline copies by size, without rings or pipelines.

use super::place::{Place, slots};
use super::table::{Cell, Table};
use super::{BenchError, Common, Publish, bar, median, quantile, rate};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::Device;
use daq_core::ledger::{CopyLedger, ReaderLedger, RingLedger};
use daq_core::notify::Notifier;
use daq_core::region::RegionError;
use daq_core::ring::{Producer, Reader, Ring};
use daq_core::staging::Direction;
use daq_core::staging::{
    BaselineCopy, CopyEngineThread, CopyStream, RingCopy, StagingError, Tuning, measure,
};
use daq_core::units::ByteSize;
use std::sync::Arc;
use std::time::Instant;

/// Size of each source and target buffer in bytes.
const BUFFER_BYTES: usize = 64 << 20;
/// Number of copies in flight while rates are measured.
const DEPTH: usize = 4;
/// Number of timed copies per round.
const TIMED_COPIES: usize = 400;

fn size(bytes: usize) -> Cell {
    ByteSize(bytes as u64).to_string().into()
}

/// Measures throughput by size: first pinned and pageable memory in both directions, then CPU stores, which have their
/// own list of sizes.
pub fn bandwidth(
    common: &Common,
    sizes: &[usize],
    stores: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let methods = [
        ("in", Direction::In, false),
        ("out", Direction::Out, false),
        ("in, pageable", Direction::In, true),
        ("out, pageable", Direction::Out, true),
    ];
    let mut pinned = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let mut pageable = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, true)?;
    let mut figures = vec![Vec::new(); sizes.len() * methods.len()];
    for _ in 0..common.rounds {
        let mut cells = figures.iter_mut();
        for bytes in sizes.iter().map(|bytes| (*bytes).min(BUFFER_BYTES)) {
            for (_, direction, is_pageable) in methods {
                let baseline = if is_pageable {
                    &mut pageable
                } else {
                    &mut pinned
                };
                baseline.turn(direction);
                let figure = rate(
                    common.window,
                    || {
                        for _ in 0..DEPTH {
                            baseline.begin(baseline.walk(bytes), bytes)?;
                        }
                        baseline.finish().map(|()| DEPTH * bytes)
                    },
                    || baseline.finish(),
                )?;
                if let Some(cell) = cells.next() {
                    cell.push(figure);
                }
            }
        }
    }
    let columns = [
        "copy",
        "in GB/s",
        "out GB/s",
        "in, pageable",
        "out, pageable",
    ];
    let title = format!(
        "{}: throughput of copies between host and GPU, {DEPTH} copies per wait; medians of {} rounds",
        device.identity().name,
        common.rounds
    );
    let mut table = Table::new(title, &columns);
    for (bytes, rates) in sizes.iter().zip(figures.chunks(methods.len())) {
        let mut row = vec![size(*bytes)];
        row.extend(
            rates
                .iter()
                .map(|rates| Cell::Number(median(rates) / 1e9, 2)),
        );
        table.row(row);
    }
    publish(table);
    publish(match bar::open(device) {
        Ok(mapped) => bar::bandwidth(common, &mapped, stores)?,
        Err(unmappable) => bar::refusals(&unmappable),
    });
    Ok(())
}

/// The duration of each copy in microseconds.
type Times = Vec<f64>;

/// Returns two cells per copy method: the median and the 99th percentile.
fn quantiles(times: &[&Times]) -> Vec<Cell> {
    let cells = times.iter().flat_map(|times| {
        [
            Cell::Number(median(times), 2),
            Cell::Number(quantile(times, 0.99), 2),
        ]
    });
    cells.collect()
}

fn since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// An input ring in which frames are published, and an output ring to which the frames are copied.
struct Pair {
    source: Producer,
    target: Ring,
    copied: (Reader, Producer),
}

impl Pair {
    fn new(place: &Place, bytes: usize) -> Result<Self, BenchError> {
        let options = slots(&place.host, bytes);
        let ledger = RingLedger::default;
        let (from, source) = Ring::new(place.host.clone(), options.clone(), ledger())?;
        let (target, copied) = Ring::new(place.gpu.clone(), options, ledger())?;
        let reader = from.attach(true, 1, ReaderLedger::default())?;
        Ok(Self {
            source,
            target,
            copied: (reader, copied),
        })
    }

    /// Publishes single frames. Measures the time until `step` has published each frame in the output ring.
    fn time(
        mut source: Producer,
        target: &Ring,
        bytes: usize,
        times: &mut Times,
        mut step: impl FnMut() -> Result<(), StagingError>,
    ) -> Result<(), BenchError> {
        for frame in 0..TIMED_COPIES as u64 {
            let start = Instant::now();
            let mut slots = source.reserve(1);
            slots.finish(FrameMeta::whole(frame, bytes));
            slots.publish();
            while target.published() <= frame {
                step()?;
            }
            times.push(since(start));
        }
        Ok(())
    }

    /// Measures the copy engine, which runs on a dedicated thread.
    fn engine(
        self,
        device: &'static Device,
        tuning: Tuning,
        bytes: usize,
        times: &mut Times,
    ) -> Result<(), BenchError> {
        let (reader, producer) = self.copied;
        let stream = CopyStream::new(device, Direction::In, tuning.depth)?;
        let mut copy_engine =
            CopyEngineThread::new(Box::new(stream), tuning, Arc::new(Notifier::default()));
        let ledger = CopyLedger::default();
        copy_engine.add(RingCopy::new(reader, producer, ledger, tuning.chunk));
        Self::time(self.source, &self.target, bytes, times, || {
            copy_engine.step().map(drop)
        })
    }

    /// Measures an inline copy by the thread that waits for the frame. Does nothing if the ring supports no inline
    /// copy.
    fn inline_copy(self, bytes: usize, times: &mut Times) -> Result<(), BenchError> {
        let (reader, producer) = self.copied;
        let Some(mut inline_copy) = RingCopy::inline(reader, producer, CopyLedger::default(), 1)
        else {
            return Ok(());
        };
        Self::time(self.source, &self.target, bytes, times, || {
            inline_copy.step().map(drop)
        })
    }
}

/// Measures latency in microseconds by size. The methods are: copy and wait, copy and poll, and one frame through the
/// copy engine on a dedicated thread, from its publication in one ring to its publication in the other. Then measures
/// the last method with CPU-mapped GPU memory, and compares CPU stores and loads with reference copies.
pub fn latency(
    common: &Common,
    sizes: &[usize],
    stores: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let profile = measure(device)?;
    let tuning = profile.tuning(Direction::In);
    let baseline = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let place = Place::new(device, BUFFER_BYTES)?;
    let columns = [
        "frame",
        "copy + wait p50",
        "p99",
        "copy + poll p50",
        "p99",
        "engine p50",
        "p99",
    ];
    let title = format!(
        "{}: microseconds per copy to the GPU; {} copies",
        device.name(),
        TIMED_COPIES * common.rounds
    );
    let mut table = Table::new(title, &columns);
    let mut waits = Vec::new();
    let sizes: Vec<_> = sizes
        .iter()
        .map(|bytes| (*bytes).min(BUFFER_BYTES / 8))
        .collect();
    for &bytes in &sizes {
        let (mut wait, mut poll, mut engine) = (Times::new(), Times::new(), Times::new());
        for _ in 0..common.rounds {
            for _ in 0..TIMED_COPIES {
                let start = Instant::now();
                baseline.begin(0, bytes)?;
                baseline.finish()?;
                wait.push(since(start));
            }
            for _ in 0..TIMED_COPIES {
                let start = Instant::now();
                baseline.begin(0, bytes)?;
                BaselineCopy::wait(&*baseline.record_event()?);
                poll.push(since(start));
            }
            Pair::new(&place, bytes)?.engine(device, tuning, bytes, &mut engine)?;
        }
        let mut row = vec![size(bytes)];
        row.extend(quantiles(&[&wait, &poll, &engine]));
        table.row(row);
        waits.push(median(&wait));
    }
    publish(table);
    let place = match place.mapped(device) {
        Ok(place) => place,
        Err(BenchError::Region(RegionError::Unmappable(unmappable))) => {
            publish(bar::refusals(&unmappable));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    publish(stored(common, &place, tuning, &sizes, &waits)?);
    let Some(mapped) = place.gpu.mapping() else {
        unreachable!("the region is created with a mapping");
    };
    for table in bar::latency(common, mapped, stores)? {
        publish(table);
    }
    Ok(())
}

/// Measures the time to copy frames to CPU-mapped GPU memory, in microseconds. `waits` contains the times of a copy
/// that is followed by a wait.
fn stored(
    common: &Common,
    place: &Place,
    tuning: Tuning,
    sizes: &[usize],
    waits: &[f64],
) -> Result<Table, BenchError> {
    let Some(mapped) = place.gpu.mapping() else {
        unreachable!("the region is created with a mapping");
    };
    let columns = [
        "frame",
        "store p50",
        "p99",
        "inline_copy p50",
        "p99",
        "engine p50",
        "p99",
        "copy + wait ÷ store",
    ];
    let title = format!(
        "{}, mapped by {}: microseconds per CPU store to the GPU (above {} the runtime uses the copy engine); {} repetitions",
        mapped.device().name(),
        mapped.backend(),
        ByteSize(tuning.cpu_store_threshold as u64),
        TIMED_COPIES * common.rounds
    );
    let mut table = Table::new(title, &columns);
    let source = vec![0x5a; sizes.iter().copied().max().unwrap_or(0)];
    for (seed, (&bytes, wait)) in (1..).zip(sizes.iter().zip(waits)) {
        let (mut store, mut inline_copy, mut engine) = (Times::new(), Times::new(), Times::new());
        for _ in 0..TIMED_COPIES * common.rounds {
            let start = Instant::now();
            mapped.copy_to(0, &source[..bytes])?;
            store.push(since(start));
        }
        let verify = |seed| place.verify(Direction::In, seed, bytes, TIMED_COPIES as u64);
        place.prepare(Direction::In, 2 * seed)?;
        for _ in 0..common.rounds {
            Pair::new(place, bytes)?.inline_copy(bytes, &mut inline_copy)?;
        }
        verify(2 * seed)?;
        place.prepare(Direction::In, 2 * seed + 1)?;
        for _ in 0..common.rounds {
            Pair::new(place, bytes)?.engine(mapped.device(), tuning, bytes, &mut engine)?;
        }
        verify(2 * seed + 1)?;
        let mut row = vec![size(bytes)];
        row.extend(quantiles(&[&store, &inline_copy, &engine]));
        row.push(Cell::Number(wait / median(&store), 1));
        table.row(row);
    }
    Ok(table)
}
