//! Kernels that stay on a GPU, run by the engine as in a pipeline: from a frame that is committed in host memory to its
//! result in the output ring, alone and beside copies at full rate; and how many frames a second.

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
use packets::Speech;
use rate::RATED;
use std::time::{Duration, Instant};

/// The code that every frame goes through.
const CODE: &str = include_str!("touch.cu");
/// Threads at a time that have a core of their own: the measuring one, the engine's, a source's.
const THREADS: usize = 3;
/// Bytes of the largest packet that is sent.
const PACKET: usize = 8 << 10;
/// Teams that their rate is measured with.
const TEAMS: [u32; 4] = [1, 8, 32, 64];
/// Bytes of the frames, and of the memory on either side, of the copies beside.
const BESIDE: (usize, usize) = (1 << 20, 256 << 20);
/// The longest copies beside: what was measured to be best, and shorter ones.
const CHUNKS: [Option<usize>; 4] = [None, Some(1 << 20), Some(512 << 10), Some(256 << 10)];

/// What to measure.
#[derive(Clone, Debug)]
pub struct PersistentArgs {
    /// Device, rounds, window.
    pub common: Common,
    /// Frames of each way a round.
    pub round_trips: usize,
    /// Bytes of a frame, multiples of 16.
    pub frames: Vec<usize>,
    /// Code to run instead of one that adds up a frame's words: a kernel of the user's own.
    pub file: Option<std::path::PathBuf>,
}

/// Measures and publishes tables.
pub fn persistent(args: &PersistentArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let device = args.common.open()?;
    let bench = Bench {
        cores: Cores::near(device, THREADS),
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
            "{}: microseconds from a frame's commit to its result, {} frames, medians of {}",
            bench.device.name(),
            args.round_trips,
            args.common.rounds
        ),
        &[
            "frame",
            "way",
            "p50",
            "p99",
            "p99.9",
            "of it the host",
            "÷ copy + launch",
        ],
    );
    for ((frame, methods), hosts) in args.frames.iter().zip(&figures).zip(&hosts) {
        let hosts = [median(hosts), f64::NAN, f64::NAN];
        let names = [
            "stays, one thread",
            "stays, committed by another thread",
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
    let (frame, memory) = BESIDE;
    let place = Place::new(bench.device, memory)?;
    let load = Load {
        direction: Direction::In,
        frame,
        rate: None,
    };
    let small = *args.frames.first().unwrap_or(&64);
    let mut methods = vec![(Vec::new(), Vec::new(), Figures::default()); CHUNKS.len()];
    let mut most = Vec::new();
    for _ in 0..args.common.rounds {
        for (chunk, (alone, both, figures)) in CHUNKS.iter().zip(&mut methods) {
            let tunings = [Direction::In, Direction::Out]
                .map(|direction| profile.tuning_for(direction, *chunk, None));
            // Memory is had, and given back, while nothing is under way.
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
        most.push(median(&methods[0].0));
    }
    let most = median(&most);
    let mut table = Table::new(
        format!(
            "{}: frames of {} beside copies of the staging engine at full rate, medians of {}",
            bench.device.name(),
            ByteSize(small as u64),
            args.common.rounds
        ),
        &[
            "longest copy",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "copies GB/s",
            "alone GB/s",
            "÷ the best",
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
            Cell::Number(median(both) / most, 3),
        ]);
    }
    Ok(table)
}

fn packets(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let sizes = args.frames.iter().copied();
    let sizes = sizes.filter(|frame| *frame <= PACKET);
    let mut methods: Vec<_> = sizes
        .flat_map(|size| Speech::ALL.map(|speech| (size, speech, Figures::default())))
        .collect();
    for _ in 0..args.common.rounds {
        for (size, speech, figures) in &mut methods {
            figures.add(&bench.packets(*speech, *size, args.round_trips / 8)?);
        }
    }
    let mut table = Table::new(
        format!(
            "{}: microseconds from a packet's sending over loopback to its result, {} packets, medians of {}",
            bench.device.name(),
            args.round_trips / 8,
            args.common.rounds
        ),
        &["payload", "source", "p50", "p99", "p99.9"],
    );
    for (size, speech, figures) in &methods {
        let [p50, p99, p999] = figures.cells();
        let size = ByteSize(*size as u64).to_string();
        table.row(vec![size.into(), speech.name().into(), p50, p99, p999]);
    }
    Ok(table)
}

fn rates(bench: &Bench, args: &PersistentArgs) -> Result<Table, BenchError> {
    let mut rates = vec![Vec::new(); TEAMS.len()];
    for _ in 0..args.common.rounds {
        for (teams, rates) in TEAMS.into_iter().zip(&mut rates) {
            rates.push(bench.rate(teams, args.common.window)? / 1e6);
        }
    }
    let mut table = Table::new(
        format!(
            "{}: million frames of {} a second, committed by one thread, taken by another; medians of {}",
            bench.device.name(),
            ByteSize(RATED as u64),
            args.common.rounds
        ),
        &["teams", "million/s"],
    );
    for (teams, rates) in TEAMS.into_iter().zip(&rates) {
        table.row(vec![
            teams.to_string().into(),
            Cell::Number(median(rates), 2),
        ]);
    }
    Ok(table)
}
