//! Measures persistent kernels, which run as in a pipeline. The results are the latency from the commit of a frame in
//! host memory to its result in the output ring, with and without concurrent copies at full rate, and frames per
//! second.

mod fixture;
mod packets;
mod rate;
mod round_trips;

use super::chart::Chart;
use super::cores::Cores;
use super::figures::{median, percentiles};
use super::harness::{Harness, Load, index};
use super::place::Place;
use super::table::{Cell, Table, numbers, row, size};
use super::{BenchError, Common, MAX_BYTES, Publish, bytes, count};
use daq_core::notify::Wait;
use daq_core::staging::{Direction, measure};
use daq_core::units::ByteSize;
use daq_diagnostics::fixture::Environment;
use daq_diagnostics::fixture::Scratch;
use fixture::Bench;
use packets::Protocol;
use rate::RATE_FRAME_BYTES;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Source code of the built-in kernel for this benchmark.
const CODE: &str = include_str!("touch.cu");
/// Number of threads of a kernel that are pinned to a core. These are the measuring thread, the runtime's thread and a
/// source's thread.
const CORES: usize = 3;
/// Maximum packet size in bytes.
const PACKET: usize = 8 << 10;
/// The numbers of kernels, and of concurrent frames of each kernel, for which the rate is measured.
const RATES: [(usize, u32); 6] = [(1, 1), (1, 8), (1, 32), (1, 64), (2, 8), (4, 8)];
/// Copies that run concurrently with the kernel: their frame size, and the size of the host memory and of the GPU
/// memory, in bytes.
const CONCURRENT_COPIES: (usize, usize) = (1 << 20, 256 << 20);
/// Maximum chunk sizes of the concurrent copies in bytes: the measured best size (`None`), and smaller sizes.
const CHUNKS: [Option<usize>; 4] = [None, Some(1 << 20), Some(512 << 10), Some(256 << 10)];

/// Options of `daq bench persistent`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Frames per method and round.
    #[arg(long, default_value = "20000", value_parser = count::<8, { usize::MAX }>)]
    round_trips: usize,
    /// Frame sizes, multiples of 16 bytes.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64 B,256 B,1 KiB,4 KiB,16 KiB",
        value_parser = bytes::<1, MAX_BYTES, 16>
    )]
    frames: Vec<usize>,
    /// CUDA file of the kernel, as `file` in [kernel.NAME]. The default kernel adds up the words of a frame.
    #[arg(long)]
    file: Option<PathBuf>,
}

/// Measures, and passes the result tables to `publish`.
pub(super) fn persistent(
    common: &Common,
    args: &Args,
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let scratch = Scratch::new("touch.cu", CODE, args.file.as_deref())?;
    let bench = Bench {
        common,
        cores: Cores::near(device, CORES),
        device,
        environment: Environment::new(common.registry.clone(), scratch, Some(device))?,
        is_checked: args.file.is_none(),
    };
    common.progress.set_parts(4);
    publish(latencies(&bench, args)?);
    publish(beside(&bench, args)?);
    publish(rates(&bench)?);
    publish(packets(&bench, args)?);
    Ok(())
}

/// How frames reach the kernel.
#[derive(Clone, Copy)]
enum Method {
    OneThread,
    TwoThreads,
    Launch,
}

fn latencies(bench: &Bench<'_>, args: &Args) -> Result<Table, BenchError> {
    let methods = [Method::OneThread, Method::TwoThreads, Method::Launch];
    let cores = &bench.cores;
    let count = args.round_trips;
    let compared = bench
        .common
        .compare(&args.frames, &methods, |&frame, method| {
            // The time on the host is known only if one thread does all work.
            let (times, host) = match method {
                Method::OneThread => {
                    let mut running = bench.fixture(frame, 1)?;
                    let times = cores.first(|| running.round_trips(count))?;
                    let host = median(running.host());
                    running.end()?;
                    (times, host)
                }
                Method::TwoThreads => {
                    let running = bench.fixture(frame, 1)?;
                    (running.round_trips_by_two(count, cores)?, f64::NAN)
                }
                Method::Launch => {
                    let times = cores.first(|| bench.launches(frame, count / 8))?;
                    (times, f64::NAN)
                }
            };
            let [p50, p99, p999] = percentiles(&times);
            Ok(Some([p50, p99, p999, host]))
        })?;
    let title = format!(
        "{}: microseconds from a frame's commit to its result; {count} frames",
        bench.device.name()
    );
    let columns = "frame | method | p50 | p99 | p99.9 | host part | ÷ copy + launch";
    let chart = Chart::times("From the commit of a frame to its result", "µs")
        .over("frame", "frame size")
        .by(&["method"], "p50")
        .own(&["persistent"]);
    let table = compared.table(&title, columns, |it| {
        let name = match it.method {
            Method::OneThread => "persistent, one thread",
            Method::TwoThreads => "persistent, two threads",
            Method::Launch => "copy + launch + synchronise",
        };
        let [quantiles @ .., host] = it.figures;
        let mut cells = row([size(*it.scenario), name.into()], quantiles, 3);
        cells.extend(numbers([host, quantiles[0] / it.all[2][0]], 3));
        cells
    });
    Ok(table.with(chart))
}

fn beside(bench: &Bench<'_>, args: &Args) -> Result<Table, BenchError> {
    let profile = measure(bench.device)?;
    let (frame, memory) = CONCURRENT_COPIES;
    let place = Place::new(bench.device, memory)?;
    let load = Load {
        direction: Direction::In,
        frame,
        rate: None,
    };
    let small = *args.frames.first().unwrap_or(&64);
    let compared = bench.common.compare(&CHUNKS, &[()], |chunk, ()| {
        let tunings = [Direction::In, Direction::Out]
            .map(|direction| profile.tuning_for(direction, *chunk, None));
        // Memory is allocated and freed only while no work is in flight.
        let mut running = bench.fixture(small, 1)?;
        let places = std::slice::from_ref(&place);
        let harness = Harness::start(bench.device, places, &[load], tunings, Wait::Busy)?;
        std::thread::sleep(Duration::from_millis(100));
        let copied = || harness.sample().bytes[index(Direction::In)];
        let (start, before) = (Instant::now(), copied());
        std::thread::sleep(bench.common.window.0);
        let alone = (copied() - before) as f64 / start.elapsed().as_secs_f64();
        let (start, before) = (Instant::now(), copied());
        let times = bench
            .cores
            .first(|| running.round_trips(args.round_trips))?;
        let both = (copied() - before) as f64 / start.elapsed().as_secs_f64();
        harness.stop()?;
        running.end()?;
        let [p50, p99, p999] = percentiles(&times);
        Ok(Some([p50, p99, p999, both / 1e9, alone / 1e9]))
    })?;
    let title = format!(
        "{}: latency of frames of {} while other frames are copied at full rate",
        bench.device.name(),
        ByteSize(small as u64)
    );
    let columns = "longest chunk | p50 µs | p99 µs | p99.9 µs | copies GB/s | alone GB/s | ÷ best";
    let max = compared.rows().next().map_or(f64::NAN, |it| it.figures[4]);
    Ok(compared.table(&title, columns, |it| {
        let measured = ByteSize(profile.tuning(Direction::In).chunk as u64);
        let chunk = match it.scenario {
            Some(chunk) => ByteSize(*chunk as u64).to_string(),
            None => format!("{measured} (as measured)"),
        };
        let [p50, p99, p999, both, alone] = it.figures;
        let mut cells = row([chunk.into()], [p50, p99, p999], 3);
        cells.extend(numbers([both, alone], 2));
        cells.push(Cell::Number(both / max, 3));
        cells
    }))
}

fn packets(bench: &Bench<'_>, args: &Args) -> Result<Table, BenchError> {
    let sizes = args.frames.iter().copied();
    let sizes: Vec<_> = sizes.filter(|frame| *frame <= PACKET).collect();
    let count = args.round_trips / 8;
    let compared = bench
        .common
        .compare(&sizes, &Protocol::ALL, |&size, &protocol| {
            Ok(Some(percentiles(&bench.packets(protocol, size, count)?)))
        })?;
    let title = format!(
        "{}: microseconds from sending a packet over loopback to its result; {count} packets",
        bench.device.name()
    );
    let columns = "payload | source | p50 | p99 | p99.9";
    let chart = Chart::times("From sending a packet to its result", "µs")
        .over("payload", "size of the payload")
        .by(&["source"], "p50")
        .own(&[""]);
    let table = compared.table(&title, columns, |it| {
        row([size(*it.scenario), it.method.name().into()], it.figures, 3)
    });
    Ok(table.with(chart))
}

fn rates(bench: &Bench<'_>) -> Result<Table, BenchError> {
    let compared = bench
        .common
        .compare(&RATES, &[()], |&(kernels, frames), ()| {
            Ok(Some([bench.rate(kernels, frames)? / 1e6]))
        })?;
    let title = format!(
        "{}: throughput in million frames per second, frame size {}; for each kernel, one thread commits, one submits, and \
         one reads",
        bench.device.name(),
        ByteSize(RATE_FRAME_BYTES as u64)
    );
    let columns = "kernels | concurrent frames | million/s";
    let chart = Chart::rates("Frames through persistent kernels", "million frames/s")
        .over("concurrent frames", "number of concurrent frames")
        .by(&["kernels"], "million/s")
        .own(&[""]);
    let table = compared.table(&title, columns, |it| {
        let (kernels, frames) = *it.scenario;
        let ends = [kernels as f64, f64::from(frames)].map(|number| Cell::Number(number, 0));
        row(ends, it.figures, 2)
    });
    Ok(table.with(chart))
}
