//! Measures single copies by size, without rings or pipelines.

use super::chart::Chart;
use super::figures::{Percentiles, copy_rate, percentiles, times};
use super::place::{Place, slots};
use super::table::{Cell, Table, size};
use super::{BenchError, Common, Publish, bar, bytes, count, launch, mapping};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::Device;
use daq_core::ledger::{CopyLedger, ReaderLedger, RingLedger};
use daq_core::notify::Notifier;
use daq_core::region::RegionError;
use daq_core::ring::{Producer, Reader, Ring};
use daq_core::staging::{
    BaselineCopy, CopyEngineThread, CopyStream, CopyThread, Direction, RingCopy, StagingError,
    Tuning, measure,
};
use daq_core::units::ByteSize;
use std::sync::Arc;

/// Size of each source and target buffer in bytes.
const BUFFER_BYTES: usize = 64 << 20;
/// Number of copies in flight while rates are measured.
const DEPTH: usize = 4;
/// Number of timed copies per round.
const TIMED_COPIES: usize = 400;

/// What `daq bench copy` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Throughput of copies and of CPU stores.
    Bandwidth,
    /// Latency of copies, of frames from ring to ring, and of CPU stores.
    Latency,
    /// Time to allocate and free CPU-mapped GPU memory, by backend.
    Mapping,
    /// Single kernel launches compared with a CUDA graph of the same kernels.
    Launch,
}

/// Options of `daq bench copy`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(long, value_enum, default_value = "bandwidth")]
    mode: Mode,
    /// With --mode bandwidth, latency and mapping: sizes of copies, at most 64 MiB (latency: 8 MiB), or of mapped memory.
    /// The default depends on the mode.
    #[arg(long, value_delimiter = ',', value_parser = bytes::<1, { usize::MAX }, 1>)]
    sizes: Option<Vec<usize>>,
    /// With --mode bandwidth and latency: sizes of CPU stores to GPU memory, aligned and unaligned, at most 4 MiB
    /// [default: powers of 4 from 4 B to 4 MiB].
    #[arg(long, value_delimiter = ',', value_parser = bytes::<1, { bar::MAX_STORE_BYTES }, 1>)]
    stores: Option<Vec<usize>>,
    /// With --mode launch: bursts per method and round [default: 2000].
    #[arg(long, value_parser = count::<1, { usize::MAX }>)]
    bursts: Option<usize>,
    /// With --mode launch: kernels per burst [default: 1,2,4,8].
    #[arg(long, value_delimiter = ',', value_parser = count::<1, { usize::MAX }>)]
    kernels: Option<Vec<usize>>,
}

impl Args {
    /// Returns an error if an option does not belong to the mode.
    pub(super) fn check(&self) -> Result<(), String> {
        use Mode::{Bandwidth, Latency, Launch, Mapping};
        let options = [
            (
                "--sizes",
                self.sizes.is_some(),
                &[Bandwidth, Latency, Mapping][..],
            ),
            ("--stores", self.stores.is_some(), &[Bandwidth, Latency]),
            ("--bursts", self.bursts.is_some(), &[Launch]),
            ("--kernels", self.kernels.is_some(), &[Launch]),
        ];
        let wrong =
            |(_, is_given, modes): &&(_, bool, &[Mode])| *is_given && !modes.contains(&self.mode);
        let name = |mode: &Mode| format!("{mode:?}").to_lowercase();
        if let Some((option, _, modes)) = options.iter().find(wrong) {
            let modes: Vec<_> = modes.iter().map(name).collect();
            return Err(format!(
                "{option} has no effect with --mode {}; remove {option}, or use --mode {}",
                name(&self.mode),
                modes.join(" or ")
            ));
        }
        let max = match self.mode {
            Bandwidth => BUFFER_BYTES,
            Latency => BUFFER_BYTES / 8,
            Launch | Mapping => usize::MAX,
        };
        match self.sizes.iter().flatten().find(|size| **size > max) {
            Some(size) => Err(format!(
                "--sizes {}: with --mode {}, the maximum is {}",
                ByteSize(*size as u64),
                name(&self.mode),
                ByteSize(max as u64)
            )),
            None => Ok(()),
        }
    }
}

/// Measures what the mode selects, and passes the result tables to `publish`.
pub(super) fn copy(common: &Common, args: &Args, publish: Publish<'_>) -> Result<(), BenchError> {
    let powers = |exponents: std::ops::RangeInclusive<u32>| {
        exponents.step_by(2).map(|exponent| 1 << exponent).collect()
    };
    let sizes = |default| args.sizes.clone().unwrap_or_else(|| powers(default));
    let stores = args.stores.clone().unwrap_or_else(|| powers(2..=22));
    match args.mode {
        Mode::Bandwidth => bandwidth(common, &sizes(12..=26), &stores, publish),
        Mode::Latency => latency(common, &sizes(6..=20), &stores, publish),
        Mode::Mapping => mapping::mapping(common, &sizes(16..=28), publish),
        Mode::Launch => {
            let kernels = args.kernels.as_deref().unwrap_or(&[1, 2, 4, 8]);
            launch::launch(common, args.bursts.unwrap_or(2000), kernels, publish)
        }
    }
}

/// Measures throughput by size: first pinned and pageable memory in both directions, then CPU stores, which have their
/// own list of sizes.
fn bandwidth(
    common: &Common,
    sizes: &[usize],
    stores: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    common.progress.set_parts(2);
    let mut pinned = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let mut pageable = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, true)?;
    let directions = [Direction::In, Direction::Out];
    let methods = [false, true].map(|is_pageable| directions.map(|to| (to, is_pageable)));
    let compared = common.compare(
        sizes,
        methods.as_flattened(),
        |bytes, (direction, is_pageable)| {
            let baseline = if *is_pageable {
                &mut pageable
            } else {
                &mut pinned
            };
            baseline.turn(*direction);
            let rate = copy_rate(&[baseline], (*bytes, DEPTH), common.window.0)?;
            Ok(Some([rate / 1e9]))
        },
    )?;
    let columns = "copy | in GB/s | out GB/s | in, pageable | out, pageable";
    let title = format!(
        "{}: throughput of copies between host and GPU, {DEPTH} copies per wait",
        device.name()
    );
    let rows = compared.by_scenario().map(|(bytes, rates)| {
        let rates = rates.iter().map(|[rate]| Cell::Number(*rate, 2));
        [size(*bytes)].into_iter().chain(rates).collect()
    });
    let chart = Chart::rates("Copies between host and GPU", "GB/s")
        .over("copy", "size of a copy")
        .columns(&["in GB/s", "out GB/s", "in, pageable", "out, pageable"])
        .own(&["in GB/s", "out GB/s"]);
    publish(Table::of(compared.title(&title), columns, rows).with(chart));
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
            let step = inline_copy.step();
            inline_copy.notify_freed();
            step.map(drop)
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
fn latency(
    common: &Common,
    sizes: &[usize],
    stores: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    common.progress.set_parts(4);
    let tuning = measure(device)?.tuning(Direction::In);
    let baseline = BaselineCopy::new(device, Direction::In, BUFFER_BYTES, false)?;
    let place = Place::new(device, BUFFER_BYTES)?;
    let methods = [Method::Wait, Method::Poll, Method::Engine];
    let copies = common.compare(sizes, &methods, |&bytes, method| {
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
    let columns = "frame | copy + wait p50 | copy + wait p99 | copy + poll p50 | copy + poll p99 | engine p50 | engine p99";
    let title = format!(
        "{}: microseconds per copy to the GPU; {TIMED_COPIES} copies",
        device.name()
    );
    let rows = copies.by_scenario().map(cells);
    let chart = chart("Copies of single frames to the GPU").columns(&[
        "copy + wait p50",
        "copy + poll p50",
        "engine p50",
    ]);
    publish(Table::of(copies.title(&title), columns, rows).with(chart));
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
    let stored = common.compare(sizes, &methods, |&bytes, method| {
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
    let columns = "frame | store p50 | store p99 | inline_copy p50 | inline_copy p99 | engine p50 | engine p99 | copy + wait ÷ store";
    let title = format!(
        "{}, mapped by {}: microseconds per CPU store to the GPU (above {} the runtime uses the copy engine); {TIMED_COPIES} copies",
        device.name(),
        mapped.backend(),
        ByteSize(tuning.cpu_store_threshold as u64),
    );
    let waits = copies.by_scenario().map(|(_, copies)| copies[0][0]);
    let rows = stored.by_scenario().zip(waits);
    let rows = rows.map(|((bytes, stored), wait)| {
        let ratio = Cell::Number(wait / stored[0][0], 1);
        let mut row = cells((bytes, stored));
        row.push(ratio);
        row
    });
    let chart = self::chart("CPU stores of single frames to the GPU").columns(&[
        "store p50",
        "inline_copy p50",
        "engine p50",
    ]);
    publish(Table::of(stored.title(&title), columns, rows).with(chart));
    publish(bar::latency(common, mapped, stores)?);
    publish(bar::loads(common, mapped, stores)?);
    Ok(())
}

/// Returns the chart of a table of latencies, without its columns.
fn chart(title: &str) -> Chart {
    Chart::times(title, "µs")
        .over("frame", "frame size")
        .own(&["engine", "inline_copy"])
}

/// Returns the size, then the median and the 99th percentile of each method.
fn cells((bytes, methods): (&usize, Vec<Percentiles>)) -> Vec<Cell> {
    let times = methods.iter();
    let times = times.flat_map(|times| [Cell::Number(times[0], 2), Cell::Number(times[1], 2)]);
    [size(*bytes)].into_iter().chain(times).collect()
}
