//! Measures baseline copies by size, without rings or pipelines.

use super::comparison::Comparison;
use super::figures::{percentiles, rate, times};
use super::place::{Place, slots};
use super::table::{Cell, Table, size};
use super::{BenchError, Common, Publish, bar};
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

/// Size of each source and target buffer in bytes.
const BUFFER_BYTES: usize = 64 << 20;
/// Number of copies in flight while rates are measured.
const DEPTH: usize = 4;
/// Number of timed copies per round.
const TIMED_COPIES: usize = 400;

fn at_most(max: usize, sizes: &[usize]) -> Vec<usize> {
    sizes.iter().map(|bytes| (*bytes).min(max)).collect()
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
    let sizes = at_most(BUFFER_BYTES, sizes);
    let mut pinned = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let mut pageable = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, true)?;
    let methods = [
        (Direction::In, false),
        (Direction::Out, false),
        (Direction::In, true),
        (Direction::Out, true),
    ];
    let measure = |bytes: &usize, (direction, is_pageable): &(Direction, bool)| {
        let baseline = if *is_pageable {
            &mut pageable
        } else {
            &mut pinned
        };
        baseline.turn(*direction);
        let copies = || {
            for _ in 0..DEPTH {
                baseline.begin(baseline.walk(*bytes), *bytes)?;
            }
            baseline.finish().map(|()| DEPTH * bytes)
        };
        Ok(Some([rate(common.window, copies, || baseline.finish())?]))
    };
    let compared = Comparison::run(common.rounds, &sizes, &methods, measure)?;
    let columns = "copy | in GB/s | out GB/s | in, pageable | out, pageable";
    let title = format!(
        "{}: throughput of copies between host and GPU, {DEPTH} copies per wait; medians of {} rounds",
        device.identity().name,
        common.rounds
    );
    let rows = compared.by_scenario().map(|(bytes, rates)| {
        let rates = rates.iter().map(|[rate]| Cell::Number(rate / 1e9, 2));
        [size(*bytes)].into_iter().chain(rates).collect()
    });
    publish(Table::of(title, columns, rows));
    publish(match bar::open(device) {
        Ok(mapped) => bar::bandwidth(common, &mapped, stores)?,
        Err(unmappable) => bar::refusals(&unmappable),
    });
    Ok(())
}

/// An input ring in which frames are published, and an output ring to which the frames are copied.
struct Pair {
    device: &'static Device,
    source: Producer,
    target: Ring,
    copied: (Reader, Producer),
}

impl Pair {
    fn new(device: &'static Device, place: &Place, bytes: usize) -> Result<Self, BenchError> {
        let options = slots(&place.host, bytes);
        let ledger = RingLedger::default;
        let (from, source) = Ring::new(place.host.clone(), options.clone(), ledger())?;
        let (target, copied) = Ring::new(place.gpu.clone(), options, ledger())?;
        let reader = from.attach(true, 1, ReaderLedger::default())?;
        Ok(Self {
            device,
            source,
            target,
            copied: (reader, copied),
        })
    }

    /// Publishes single frames. Returns the microseconds until `step` has published each frame in the output ring.
    fn time(
        mut source: Producer,
        target: &Ring,
        bytes: usize,
        mut step: impl FnMut() -> Result<(), StagingError>,
    ) -> Result<Vec<f64>, BenchError> {
        let mut frames = 0..;
        times(0, TIMED_COPIES, || {
            let frame = frames.next().unwrap_or(u64::MAX);
            let mut slots = source.reserve(1);
            slots.finish(FrameMeta::whole(frame, bytes));
            slots.publish();
            while target.published() <= frame {
                step()?;
            }
            Ok(())
        })
    }

    /// Measures the copy engine, which the calling thread drives.
    fn engine(self, tuning: Tuning, bytes: usize) -> Result<Vec<f64>, BenchError> {
        let (reader, producer) = self.copied;
        let stream = CopyStream::new(self.device, Direction::In, tuning.depth)?;
        let mut copy_engine =
            CopyEngineThread::new(Box::new(stream), tuning, Arc::new(Notifier::default()));
        let ledger = CopyLedger::default();
        copy_engine.add(RingCopy::new(reader, producer, ledger, tuning.chunk));
        Self::time(self.source, &self.target, bytes, || {
            copy_engine.step().map(drop)
        })
    }

    /// Measures an inline copy by the thread that waits for the frame. Returns `None` if the ring supports no inline
    /// copy.
    fn inline_copy(self, bytes: usize) -> Result<Option<Vec<f64>>, BenchError> {
        let (reader, producer) = self.copied;
        let Some(mut inline_copy) = RingCopy::inline(reader, producer, CopyLedger::default(), 1)
        else {
            return Ok(None);
        };
        let times = Self::time(self.source, &self.target, bytes, || {
            inline_copy.step().map(drop)
        });
        times.map(Some)
    }
}

/// One method to copy a single frame.
#[derive(Clone, Copy)]
enum Method {
    /// A copy by the GPU, then a wait of the driver.
    Wait,
    /// A copy by the GPU, then the host polls.
    Poll,
    /// CPU stores.
    Store,
    /// From the publication in one ring to the publication in the other, by an inline copy.
    InlineCopy,
    /// The same by the copy engine.
    Engine,
}

/// Measures latency in microseconds by size: copies by the GPU first, then CPU stores to mapped memory. Then compares CPU
/// stores and loads with reference copies.
pub fn latency(
    common: &Common,
    sizes: &[usize],
    stores: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let tuning = measure(device)?.tuning(Direction::In);
    let baseline = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let place = Place::new(device, BUFFER_BYTES)?;
    let sizes = at_most(BUFFER_BYTES / 8, sizes);
    let count = format!("{TIMED_COPIES} copies, medians of {} rounds", common.rounds);
    let methods = [Method::Wait, Method::Poll, Method::Engine];
    let copies = Comparison::run(common.rounds, &sizes, &methods, |&bytes, method| {
        let times = match method {
            Method::Wait => times(0, TIMED_COPIES, || {
                baseline.begin(0, bytes)?;
                baseline.finish()
            })?,
            Method::Poll => times(0, TIMED_COPIES, || {
                baseline.begin(0, bytes)?;
                BaselineCopy::wait(&*baseline.record_event()?);
                Ok::<_, BenchError>(())
            })?,
            _ => Pair::new(device, &place, bytes)?.engine(tuning, bytes)?,
        };
        Ok(Some(percentiles(&times)))
    })?;
    let columns = "frame | copy + wait p50 | p99 | copy + poll p50 | p99 | engine p50 | p99";
    let title = format!(
        "{}: microseconds per copy to the GPU; {count}",
        device.name()
    );
    let rows = copies.by_scenario().map(cells);
    publish(Table::of(title, columns, rows));
    let place = match place.mapped(device) {
        Ok(place) => place,
        Err(BenchError::Region(RegionError::Unmappable(unmappable))) => {
            publish(bar::refusals(&unmappable));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(mapped) = place.gpu.mapping() else {
        unreachable!("the region is created with a mapping");
    };
    let methods = [Method::Store, Method::InlineCopy, Method::Engine];
    let source = vec![0x5a; sizes.iter().copied().max().unwrap_or(0)];
    let mut seed = 0;
    let stored = Comparison::run(common.rounds, &sizes, &methods, |&bytes, method| {
        if matches!(method, Method::Store) {
            let stores = times(0, TIMED_COPIES, || mapped.copy_to(0, &source[..bytes]));
            return Ok(Some(percentiles(&stores?)));
        }
        seed += 1;
        place.prepare(Direction::In, seed)?;
        let pair = Pair::new(device, &place, bytes)?;
        let times = match method {
            Method::InlineCopy => pair.inline_copy(bytes)?,
            _ => Some(pair.engine(tuning, bytes)?),
        };
        if times.is_some() {
            place.verify(Direction::In, seed, bytes, TIMED_COPIES as u64)?;
        }
        Ok(times.map(|times| percentiles(&times)))
    })?;
    let columns =
        "frame | store p50 | p99 | inline_copy p50 | p99 | engine p50 | p99 | copy + wait ÷ store";
    let title = format!(
        "{}, mapped by {}: microseconds per CPU store to the GPU (above {} the runtime uses the copy engine); {count}",
        device.name(),
        mapped.backend(),
        ByteSize(tuning.cpu_store_threshold as u64),
    );
    let waits = copies.by_scenario().map(|(_, copies)| copies[0][0]);
    let rows = stored
        .by_scenario()
        .zip(waits)
        .map(|((bytes, stored), wait)| {
            let ratio = wait / stored[0][0];
            let mut row = cells((bytes, stored));
            row.push(Cell::Number(ratio, 1));
            row
        });
    publish(Table::of(title, columns, rows));
    bar::latency(common, mapped, stores)?
        .into_iter()
        .for_each(publish);
    Ok(())
}

/// Returns the size, then the median and the 99th percentile of each method.
fn cells((bytes, methods): (&usize, Vec<[f64; 3]>)) -> Vec<Cell> {
    let times = methods.iter().flat_map(|[p50, p99, _]| [*p50, *p99]);
    let times = times.map(|time| Cell::Number(time, 2));
    [size(*bytes)].into_iter().chain(times).collect()
}
