//! Measures frames that a kernel reads after a doorbell: latency, frame rate, and the cost of storing the frames.

use super::{Bench, DoorbellArgs, LAUNCH_DIVISOR, WARM_UP};
use crate::bench::echo::PersistentKernel;
use crate::bench::figures::Figures;
use crate::bench::table::{Cell, Table};
use crate::bench::{BenchError, median};
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{Argument, Device};
use daq_core::staging::BaselineCopy;
use daq_core::staging::Direction;
use daq_core::units::ByteSize;
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

impl Bench {
    /// Opens frame memory with each backend that supports doorbells, except host memory.
    fn data(&self, device: &'static Device, bytes: usize) -> Vec<Arc<BarMapping>> {
        let backends = self.bells.iter().map(|bell| bell.backend());
        backends
            .filter(|backend| *backend != Backend::Host)
            .filter_map(|backend| BarMapping::with(device, bytes, backend).ok())
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

/// Measures round trips with a frame that the kernel reads, compared with a copy and a launch.
pub(super) fn latencies(
    device: &'static Device,
    bench: &Bench,
    args: &DoorbellArgs,
) -> Result<Table, BenchError> {
    /// Number of slots. Successive round trips use successive slots.
    const TURNS: usize = 16;
    let max = args.frames.iter().copied().max().unwrap_or(1);
    let targets = bench.data(device, FRAMES_OFFSET + TURNS * stride(max));
    let from = vec![1; max];
    let mut figures = vec![vec![Figures::default(); targets.len() + 1]; args.frames.len()];
    for _ in 0..args.rounds {
        for (&bytes, row) in args.frames.iter().zip(&mut figures) {
            for (target, figures) in targets.iter().zip(row.iter_mut()) {
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
                figures.add(&times);
            }
            let times = timed(args.round_trips / LAUNCH_DIVISOR, || {
                bench.upload.begin(bytes)?;
                bench.launch()?;
                Ok(bench.upload.stream().synchronize()?)
            })?;
            if let Some(figures) = row.last_mut() {
                figures.add(&times);
            }
        }
    }
    let title = format!(
        "{}: round-trip latency in microseconds: the CPU stores a frame from its cache, a kernel reads the frame and replies; medians of {} rounds",
        device.name(),
        args.rounds
    );
    let columns = [
        "frame",
        "method",
        "p50",
        "p99",
        "p99.9",
        "p99 ÷ p50",
        "× copy p50",
    ];
    let mut table = Table::new(title, &columns);
    for (bytes, row) in args.frames.iter().zip(&figures) {
        let copy = row.last().map_or(f64::NAN, |copy| copy.at(0));
        let methods = targets
            .iter()
            .map(|target| format!("stores and doorbell by {}", target.backend()))
            .chain(["copy + launch + synchronise".to_owned()]);
        for (method, figures) in methods.zip(row) {
            let mut cells = vec![ByteSize(*bytes as u64).to_string().into(), method.into()];
            cells.extend(figures.cells());
            cells.push(Cell::Number(figures.spread(), 2));
            cells.push(Cell::Number(figures.at(0) / copy, 2));
            table.row(cells);
        }
    }
    Ok(table)
}

/// Measures frames per second through a ring with credits, for several numbers of frames per doorbell.
pub(super) fn rates(
    device: &'static Device,
    bench: &Bench,
    args: &DoorbellArgs,
) -> Result<Table, BenchError> {
    let targets = bench.data(device, FRAMES_OFFSET + SLOTS * stride(RATE_FRAME_BYTES));
    let from = vec![1; RATE_FRAME_BYTES];
    let mut figures = vec![vec![Vec::new(); BATCHES.len()]; targets.len()];
    for _ in 0..args.rounds {
        for (target, row) in targets.iter().zip(&mut figures) {
            for (batch, figures) in BATCHES.iter().zip(row) {
                let mut kernel = bench.reader(target, RATE_FRAME_BYTES, SLOTS, 512)?;
                let frames = args.round_trips.next_multiple_of(*batch) * 8;
                let start = Instant::now();
                for first in (0..frames).step_by(*batch) {
                    // Wait until the credits for the previous frames in these slots have been received.
                    let due = (first + batch).saturating_sub(SLOTS);
                    kernel.wait(due as u64)?;
                    let slots = (first..first + batch).map(|frame| frame % SLOTS);
                    let offsets = slots.map(|slot| FRAMES_OFFSET + slot * stride(RATE_FRAME_BYTES));
                    kernel.post(offsets, &from)?;
                }
                kernel.wait(frames as u64)?;
                figures.push(frames as f64 / start.elapsed().as_secs_f64() / 1e6);
                kernel.stop()?;
            }
        }
    }
    let title = format!(
        "{}: throughput in million frames per second through a ring with credits, frame size {}; one thread stores; medians of {} rounds",
        device.name(),
        ByteSize(RATE_FRAME_BYTES as u64),
        args.rounds
    );
    let mut table = Table::new(title, &["method", "frames per doorbell", "million/s"]);
    for (target, row) in targets.iter().zip(&figures) {
        for (batch, figures) in BATCHES.iter().zip(row) {
            table.row(vec![
                target.backend().name().into(),
                Cell::Number(*batch as f64, 0),
                Cell::Number(median(figures), 2),
            ]);
        }
    }
    Ok(table)
}

/// Returns the distance in bytes between the starts of two frames of `bytes` bytes.
const fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

/// Compares the time until CPU stores have left the CPU with the time until copies are complete.
pub(super) fn stores(
    device: &'static Device,
    bench: &Bench,
    args: &DoorbellArgs,
) -> Result<Table, BenchError> {
    let max = args.sizes.iter().copied().max().unwrap_or(1);
    let baseline = BaselineCopy::new(device, Direction::In, max, false)?;
    let targets = bench.data(device, max);
    let from = vec![1; max];
    let mut figures = vec![vec![Figures::default(); targets.len() + 1]; args.sizes.len()];
    for _ in 0..args.rounds {
        for (&bytes, row) in args.sizes.iter().zip(&mut figures) {
            let round_trips = args.round_trips / LAUNCH_DIVISOR;
            for (target, figures) in targets.iter().zip(row.iter_mut()) {
                let times = timed(round_trips, || Ok(target.copy_to(0, &from[..bytes])?))?;
                figures.add(&times);
            }
            let times = timed(round_trips, || {
                baseline.begin(0, bytes)?;
                Ok(baseline.finish()?)
            })?;
            if let Some(figures) = row.last_mut() {
                figures.add(&times);
            }
        }
    }
    let title = format!(
        "{}: microseconds until CPU stores have left the CPU, compared with copies until the copies are complete; medians of {} rounds",
        device.identity().name,
        args.rounds
    );
    let columns = [
        "bytes",
        "method",
        "p50",
        "p99",
        "p99.9",
        "p99 ÷ p50",
        "× faster",
    ];
    let mut table = Table::new(title, &columns);
    for (bytes, row) in args.sizes.iter().zip(&figures) {
        let copy = row.last().map_or(f64::NAN, |copy| copy.at(0));
        let methods = targets
            .iter()
            .map(|target| format!("stores by {}", target.backend()))
            .chain(["cuMemcpyHtoDAsync + synchronise".to_owned()]);
        for (method, figures) in methods.zip(row) {
            let mut cells = vec![ByteSize(*bytes as u64).to_string().into(), method.into()];
            cells.extend(figures.cells());
            cells.push(Cell::Number(figures.spread(), 2));
            cells.push(Cell::Number(copy / figures.at(0), 1));
            table.row(cells);
        }
    }
    Ok(table)
}

/// Returns the duration of each of `round_trips` calls in microseconds. The warm-up calls before them are not measured.
fn timed(
    round_trips: usize,
    mut work: impl FnMut() -> Result<(), BenchError>,
) -> Result<Vec<f64>, BenchError> {
    let warm = WARM_UP.min(round_trips);
    let mut times = Vec::with_capacity(round_trips);
    for i in 0..warm + round_trips {
        let start = Instant::now();
        work()?;
        let took = start.elapsed();
        if i >= warm {
            times.push(took.as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}
