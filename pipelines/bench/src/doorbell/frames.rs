//! Measures frames that a kernel reads after a doorbell: latency, frame rate, and the cost of storing the frames.

use super::{Bench, LAUNCH_DIVISOR, WARM_UP};
use crate::BenchError;
use crate::chart::Chart;
use crate::comparison::Comparison;
use crate::figures::Percentiles;
use crate::figures::{percentiles, times};
use crate::table::{Cell, Table, row, size};
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::Argument;
use daq_core::staging::{BaselineCopy, Direction};
use daq_core::units::ByteSize;
use daq_diagnostics::fixture::PersistentKernel;
use std::sync::Arc;
use std::time::Instant;

/// Offset of the first frame in bytes. The doorbell is stored before the first frame.
const FRAMES_OFFSET: usize = 4096;
/// Number of slots of the ring.
const SLOTS: usize = 512;
/// The numbers of frames per doorbell for which the rate is measured.
const BATCHES: [usize; 4] = [1, 8, 32, 128];
/// Frame size in bytes for the rate measurement.
const RATE_FRAME_BYTES: usize = 256;

/// The memory to which the CPU stores; `None` for copies by the GPU.
type Target = Option<Arc<BarMapping>>;

impl Bench<'_> {
    /// Opens memory of `bytes` bytes with each backend that supports doorbells, except host memory.
    fn targets(&self, bytes: usize) -> Vec<Target> {
        let backends = self.bells.iter().map(|bell| bell.backend());
        backends
            .filter(|backend| *backend != Backend::Host)
            .filter_map(|backend| BarMapping::with(self.device, bytes, backend).ok())
            .map(Some)
            .collect()
    }

    /// Starts a kernel that reads frames of `bytes` bytes from `slots` slots.
    fn reader(
        &self,
        target: &Arc<BarMapping>,
        bytes: usize,
        slots: usize,
        threads: u32,
    ) -> Result<PersistentKernel, BenchError> {
        let arguments = [
            Argument::U64(target.address() + FRAMES_OFFSET as u64),
            Argument::U64(stride(bytes) as u64),
            Argument::U64(slots as u64),
            Argument::U64(bytes as u64),
            Argument::U64(0),
        ];
        self.echo
            .start("daq_echo_frames", threads, target, &arguments, None)
    }
}

/// Returns the distance in bytes between the starts of two frames of `bytes` bytes.
const fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

/// Measures round trips with a frame that the kernel reads, compared with a copy and a launch.
pub(super) fn latencies(bench: &Bench<'_>) -> Result<Table, BenchError> {
    /// Number of slots. Successive round trips use successive slots.
    const TURNS: usize = 16;
    let args = bench.args;
    let max = args.frames.iter().copied().max().unwrap_or(1);
    let mut targets = bench.targets(FRAMES_OFFSET + TURNS * stride(max));
    targets.push(None);
    let from = vec![1; max];
    let compared = bench
        .common
        .compare(&args.frames, &targets, |&bytes, target| {
            let Some(target) = target else {
                return timed(args.round_trips / LAUNCH_DIVISOR, || {
                    bench.upload.begin(bytes)?;
                    bench.launch()?;
                    Ok(bench.upload.stream().synchronize()?)
                });
            };
            // Use one thread per 16 bytes, rounded up to whole warps.
            let threads = bytes.div_ceil(16).next_multiple_of(32).min(512);
            let threads = u32::try_from(threads).unwrap_or(32);
            let mut kernel = bench.reader(target, bytes, TURNS, threads)?;
            let mut slots = (0..TURNS).cycle();
            let times = timed(args.round_trips, || {
                let slot = slots.next().unwrap_or(0);
                let at = FRAMES_OFFSET + slot * stride(bytes);
                let at = kernel.post([at].into_iter(), &from[..bytes])?;
                kernel.wait(at)
            })?;
            kernel.stop()?;
            Ok(times)
        })?;
    let title = format!(
        "{}: round-trip latency in microseconds: the CPU stores a frame from its cache, a kernel reads the frame and replies",
        bench.device.name()
    );
    let names = ["stores and doorbell", "copy + launch + synchronise"];
    let ratio = |p50: f64, copy: f64| Cell::Number(p50 / copy, 2);
    let ends = ["frame", "× copy p50"];
    let chart = Chart::times("From storing a frame to the answer of the GPU", "µs")
        .over("frame", "frame size")
        .by(&["method"], "p50")
        .own(&["stores"]);
    Ok(table(&title, ends, names, &compared, ratio).with(chart))
}

/// Compares the time until CPU stores have left the CPU with the time until copies are complete.
pub(super) fn stores(bench: &Bench<'_>) -> Result<Table, BenchError> {
    let args = bench.args;
    let max = args.sizes.iter().copied().max().unwrap_or(1);
    let baseline = BaselineCopy::new(bench.device, Direction::In, max, false)?;
    let mut targets = bench.targets(max);
    targets.push(None);
    let from = vec![1; max];
    let compared = bench
        .common
        .compare(&args.sizes, &targets, |&bytes, target| {
            timed(args.round_trips / LAUNCH_DIVISOR, || {
                if let Some(target) = target {
                    return Ok(target.copy_to(0, &from[..bytes])?);
                }
                baseline.begin(0, bytes)?;
                Ok(baseline.finish()?)
            })
        })?;
    let title = format!(
        "{}: microseconds until CPU stores have left the CPU, compared with copies until the copies are complete",
        bench.device.name()
    );
    let names = ["stores", "cuMemcpyHtoDAsync + synchronise"];
    let ratio = |p50: f64, copy: f64| Cell::Number(copy / p50, 1);
    let ends = ["bytes", "× faster"];
    let chart = Chart::times("CPU stores to GPU memory", "µs")
        .over("bytes", "size of the store")
        .by(&["method"], "p50")
        .own(&["stores"]);
    Ok(table(&title, ends, names, &compared, ratio).with(chart))
}

/// Returns the percentiles of the duration of `count` calls in microseconds.
fn timed(
    count: usize,
    work: impl FnMut() -> Result<(), BenchError>,
) -> Result<Option<Percentiles>, BenchError> {
    let times = times(WARM_UP.min(count), count, work)?;
    Ok(Some(percentiles(&times)))
}

/// Builds a table of CPU stores and copies. `ends` are the names of the first and the last column, and `names` are those
/// of the two kinds of method. `ratio` compares the median of a method with that of a copy.
fn table(
    title: &str,
    [first, last]: [&str; 2],
    [stores, copy]: [&str; 2],
    compared: &Comparison<'_, usize, Target, 3>,
    ratio: impl Fn(f64, f64) -> Cell,
) -> Table {
    let columns = format!("{first} | method | p50 | p99 | p99.9 | p99 ÷ p50 | {last}");
    compared.table(title, &columns, |it| {
        let name = match it.method {
            Some(target) => format!("{stores} by {}", target.backend()),
            None => copy.to_owned(),
        };
        let [p50, p99, ..] = it.figures;
        let copy = it.all.last().map_or(f64::NAN, |copy| copy[0]);
        let mut cells = row([size(*it.scenario), name.into()], it.figures, 3);
        cells.extend([Cell::Number(p99 / p50, 2), ratio(p50, copy)]);
        cells
    })
}

/// Measures frames per second through a ring with credits, for several numbers of frames per doorbell.
pub(super) fn rates(bench: &Bench<'_>) -> Result<Table, BenchError> {
    let targets = bench.targets(FRAMES_OFFSET + SLOTS * stride(RATE_FRAME_BYTES));
    let targets: Vec<_> = targets.into_iter().flatten().collect();
    let from = vec![1; RATE_FRAME_BYTES];
    let compared = bench.common.compare(&targets, &BATCHES, |target, &batch| {
        let mut kernel = bench.reader(target, RATE_FRAME_BYTES, SLOTS, 512)?;
        let frames = bench.args.round_trips.next_multiple_of(batch) * 8;
        let start = Instant::now();
        for first in (0..frames).step_by(batch) {
            // Wait until the credits for the previous frames in these slots have been received.
            let due = (first + batch).saturating_sub(SLOTS);
            kernel.wait(due as u64)?;
            let slots = (first..first + batch).map(|frame| frame % SLOTS);
            let offsets = slots.map(|slot| FRAMES_OFFSET + slot * stride(RATE_FRAME_BYTES));
            kernel.post(offsets, &from)?;
        }
        kernel.wait(frames as u64)?;
        let rate = frames as f64 / start.elapsed().as_secs_f64();
        kernel.stop()?;
        Ok(Some([rate / 1e6]))
    })?;
    let title = format!(
        "{}: throughput in million frames per second through a ring with credits, frame size {}; one thread stores",
        bench.device.name(),
        ByteSize(RATE_FRAME_BYTES as u64)
    );
    let columns = "method | frames per doorbell | million/s";
    let chart = Chart::rates(
        "Frames of 256 B through a ring with credits",
        "million frames/s",
    )
    .over("frames per doorbell", "number of frames per doorbell")
    .by(&["method"], "million/s")
    .own(&[""]);
    let table = compared.table(&title, columns, |it| {
        let batch = Cell::Number(*it.method as f64, 0);
        row([it.scenario.backend().name().into(), batch], it.figures, 2)
    });
    Ok(table.with(chart))
}
