//! Measures persistent kernels, which run as in a pipeline. The results are the latency from the commit of a frame in
//! host memory to its result in the output ring, with and without concurrent copies at full rate, and frames per
//! second.

mod fixture;
mod packets;
mod rate;
mod round_trips;

use super::cores::Cores;
use super::figures::Figures;
use super::harness::{Harness, Load, index};
use super::place::Place;
use super::scratch::Scratch;
use super::table::{Cell, Table};
use super::{BenchError, Common, Publish, median};
use daq_core::notify::Wait;
use daq_core::staging::Direction;
use daq_core::staging::measure;
use daq_core::units::ByteSize;
use fixture::Bench;
use packets::Protocol;
use rate::RATE_FRAME_BYTES;
use std::time::{Duration, Instant};

/// Source code of the built-in kernel for this benchmark.
const CODE: &str = include_str!("touch.cu");
/// Number of threads that are pinned to a core. These are the measuring thread, the runtime's thread and a source's
/// thread.
const CORES: usize = 3;
/// Maximum packet size in bytes.
const PACKET: usize = 8 << 10;
/// The numbers of concurrent frames for which the rate is measured.
const CONCURRENT_FRAMES: [u32; 4] = [1, 8, 32, 64];
/// Copies that run concurrently with the kernel: their frame size, and the size of the host memory and of the GPU
/// memory, in bytes.
const CONCURRENT_COPIES: (usize, usize) = (1 << 20, 256 << 20);
/// Maximum chunk sizes of the concurrent copies in bytes: the measured best size (`None`), and smaller sizes.
const CHUNKS: [Option<usize>; 4] = [None, Some(1 << 20), Some(512 << 10), Some(256 << 10)];

/// Options of `daq bench persistent`.
#[derive(Clone, Debug)]
pub struct PersistentArgs {
    /// GPU, number of rounds, and duration per method.
    pub common: Common,
    /// Number of frames per method and round.
    pub round_trips: usize,
    /// Frame sizes in bytes, multiples of 16.
    pub frames: Vec<usize>,
    /// Kernel file to run instead of the built-in kernel, which adds up the words of a frame.
    pub file: Option<std::path::PathBuf>,
}

/// Measures, and passes the result tables to `publish`.
pub fn persistent(args: &PersistentArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let device = args.common.open()?;
    let bench = Bench {
        cores: Cores::near(device, CORES),
        device,
        scratch: Scratch::new("touch.cu", CODE, args.file.as_deref())?,
        is_checked: args.file.is_none(),
    };
    publish(latencies(&bench, args)?);
    publish(beside(&bench, args)?);
    publish(rates(&bench, args)?);
    publish(packets(&bench, args)?);
    Ok(())
}

fn latencies(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let mut figures =
        vec![[Figures::default(), Figures::default(), Figures::default()]; args.frames.len()];
    let mut hosts = vec![Vec::new(); args.frames.len()];
    for _ in 0..args.common.rounds {
        for ((&frame, methods), hosts) in args.frames.iter().zip(&mut figures).zip(&mut hosts) {
            let mut running = bench.start(frame)?;
            methods[0].add(
                &bench
                    .cores
                    .first(|| running.round_trips(args.round_trips))?,
            );
            hosts.push(median(running.host()));
            running.end()?;
            methods[1].add(
                &bench
                    .start(frame)?
                    .round_trips_by_two(args.round_trips, &bench.cores)?,
            );
            methods[2].add(
                &bench
                    .cores
                    .first(|| bench.launches(frame, args.round_trips / 8))?,
            );
        }
    }
    let mut table = Table::new(
        format!(
            "{}: microseconds from a frame's commit to its result; {} frames, medians of {} rounds",
            bench.device.name(),
            args.round_trips,
            args.common.rounds
        ),
        &[
            "frame",
            "method",
            "p50",
            "p99",
            "p99.9",
            "host part",
            "÷ copy + launch",
        ],
    );
    for ((frame, methods), hosts) in args.frames.iter().zip(&figures).zip(&hosts) {
        let hosts = [median(hosts), f64::NAN, f64::NAN];
        let names = [
            "persistent, one thread",
            "persistent, two threads",
            "copy + launch + synchronise",
        ];
        for ((name, method), host) in names.into_iter().zip(methods).zip(hosts) {
            let [p50, p99, p999] = method.cells();
            let ratio = Cell::Number(method.at(0) / methods[2].at(0), 3);
            let frame = ByteSize(*frame as u64).to_string();
            let host = Cell::Number(host, 3);
            table.row(vec![frame.into(), name.into(), p50, p99, p999, host, ratio]);
        }
    }
    Ok(table)
}

fn beside(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let profile = measure(bench.device)?;
    let (frame, memory) = CONCURRENT_COPIES;
    let place = Place::new(bench.device, memory)?;
    let load = Load {
        direction: Direction::In,
        frame,
        rate: None,
    };
    let small = *args.frames.first().unwrap_or(&64);
    let mut methods = vec![(Vec::new(), Vec::new(), Figures::default()); CHUNKS.len()];
    let mut max = Vec::new();
    for _ in 0..args.common.rounds {
        for (chunk, (alone, both, figures)) in CHUNKS.iter().zip(&mut methods) {
            let tunings = [Direction::In, Direction::Out]
                .map(|direction| profile.tuning_for(direction, *chunk, None));
            // Memory is allocated and freed only while no work is in flight.
            let mut running = bench.start(small)?;
            let places = std::slice::from_ref(&place);
            let harness = Harness::start(bench.device, places, &[load], tunings, Wait::Busy)?;
            std::thread::sleep(Duration::from_millis(100));
            let rate =
                |time: &mut dyn FnMut() -> Result<(), BenchError>| -> Result<f64, BenchError> {
                    let (start, before) =
                        (Instant::now(), harness.sample().bytes[index(Direction::In)]);
                    time()?;
                    let bytes = harness.sample().bytes[index(Direction::In)] - before;
                    Ok(bytes as f64 / start.elapsed().as_secs_f64())
                };
            alone.push(rate(&mut || {
                std::thread::sleep(args.common.window);
                Ok(())
            })?);
            both.push(rate(&mut || {
                figures.add(
                    &bench
                        .cores
                        .first(|| running.round_trips(args.round_trips))?,
                );
                Ok(())
            })?);
            harness.stop()?;
            running.end()?;
        }
        max.push(median(&methods[0].0));
    }
    let max = median(&max);
    let mut table = Table::new(
        format!(
            "{}: latency of frames of {} while other frames are copied at full rate, medians of {} rounds",
            bench.device.name(),
            ByteSize(small as u64),
            args.common.rounds
        ),
        &[
            "longest chunk",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "copies GB/s",
            "alone GB/s",
            "÷ best",
        ],
    );
    for (chunk, (alone, both, figures)) in CHUNKS.iter().zip(&methods) {
        let chunk = chunk.map_or_else(
            || {
                format!(
                    "{} (as measured)",
                    ByteSize(profile.tuning(Direction::In).chunk as u64)
                )
            },
            |chunk| ByteSize(chunk as u64).to_string(),
        );
        let [p50, p99, p999] = figures.cells();
        table.row(vec![
            chunk.into(),
            p50,
            p99,
            p999,
            Cell::Number(median(both) / 1e9, 2),
            Cell::Number(median(alone) / 1e9, 2),
            Cell::Number(median(both) / max, 3),
        ]);
    }
    Ok(table)
}

fn packets(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let sizes = args.frames.iter().copied();
    let sizes = sizes.filter(|frame| *frame <= PACKET);
    let mut methods: Vec<_> = sizes
        .flat_map(|size| Protocol::ALL.map(|protocol| (size, protocol, Figures::default())))
        .collect();
    for _ in 0..args.common.rounds {
        for (size, protocol, figures) in &mut methods {
            figures.add(&bench.packets(*protocol, *size, args.round_trips / 8)?);
        }
    }
    let mut table = Table::new(
        format!(
            "{}: microseconds from sending a packet over loopback to its result; {} packets, medians of {} rounds",
            bench.device.name(),
            args.round_trips / 8,
            args.common.rounds
        ),
        &["payload", "source", "p50", "p99", "p99.9"],
    );
    for (size, protocol, figures) in &methods {
        let [p50, p99, p999] = figures.cells();
        let size = ByteSize(*size as u64).to_string();
        table.row(vec![size.into(), protocol.name().into(), p50, p99, p999]);
    }
    Ok(table)
}

fn rates(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let mut rates = vec![Vec::new(); CONCURRENT_FRAMES.len()];
    for _ in 0..args.common.rounds {
        for (concurrent_frames, rates) in CONCURRENT_FRAMES.into_iter().zip(&mut rates) {
            rates.push(bench.rate(concurrent_frames, args.common.window)? / 1e6);
        }
    }
    let mut table = Table::new(
        format!(
            "{}: throughput in million frames per second, frame size {}; one thread commits, another reads; medians of {} rounds",
            bench.device.name(),
            ByteSize(RATE_FRAME_BYTES as u64),
            args.common.rounds
        ),
        &["concurrent frames", "million/s"],
    );
    for (concurrent_frames, rates) in CONCURRENT_FRAMES.into_iter().zip(&rates) {
        table.row(vec![
            concurrent_frames.to_string().into(),
            Cell::Number(median(rates), 2),
        ]);
    }
    Ok(table)
}
