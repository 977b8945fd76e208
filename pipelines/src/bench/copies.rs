//! Copies with nothing around them, by size.

use super::place::Place;
use super::rig::Load;
use super::table::{Cell, Table};
use super::{BenchError, Common, median, quantile, rate};
use daq_core::frame::FrameMeta;
use daq_core::ledger::{CopyLedger, ReaderLedger, RingLedger};
use daq_core::plan::Direction;
use daq_core::ring::{Ring, RingOptions};
use daq_core::staging::{Bare, CopyStream, Lane, Stager, measure};
use daq_core::units::ByteSize;
use daq_core::wait::Bell;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of each stretch.
const STRETCH: usize = 64 << 20;
/// Copies in flight while rates are measured.
const DEPTH: usize = 4;
/// Copies a round whose time is taken.
const TIMES: usize = 400;

fn size(bytes: usize) -> Cell {
    ByteSize(bytes as u64).to_string().into()
}

/// Bytes a second by size: pinned and pageable memory, both directions.
pub fn bandwidth(common: &Common, sizes: &[usize]) -> Result<Vec<Table>, BenchError> {
    let device = common.open()?;
    let ways = [
        ("in", Direction::In, false),
        ("out", Direction::Out, false),
        ("in, pageable", Direction::In, true),
        ("out, pageable", Direction::Out, true),
    ];
    let mut pinned = Bare::new(device, Direction::In, STRETCH, false)?;
    let mut pageable = Bare::new(device, Direction::In, STRETCH, true)?;
    let mut figures = vec![Vec::new(); sizes.len() * ways.len()];
    for _ in 0..common.rounds {
        let mut cells = figures.iter_mut();
        for bytes in sizes.iter().map(|bytes| (*bytes).min(STRETCH)) {
            for (_, direction, is_pageable) in ways {
                let bare = if is_pageable {
                    &mut pageable
                } else {
                    &mut pinned
                };
                bare.turn(direction);
                let figure = rate(
                    common.window,
                    || {
                        for _ in 0..DEPTH {
                            bare.begin(bare.walk(bytes), bytes)?;
                        }
                        bare.finish().map(|()| DEPTH * bytes)
                    },
                    || bare.finish(),
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
        "{}: {DEPTH} copies, then a wait; medians of {}",
        device.identity().name,
        common.rounds
    );
    let mut table = Table::new(title, &columns);
    for (bytes, rates) in sizes.iter().zip(figures.chunks(ways.len())) {
        let mut row = vec![size(*bytes)];
        row.extend(
            rates
                .iter()
                .map(|rates| Cell::Number(median(rates) / 1e9, 2)),
        );
        table.row(row);
    }
    Ok(vec![table])
}

/// Microseconds by size: copy and wait, copy and poll, and a single frame through the staging engine from its
/// publication in one ring to its publication in the other, on a thread that does nothing else.
pub fn latency(common: &Common, sizes: &[usize]) -> Result<Vec<Table>, BenchError> {
    let device = common.open()?;
    let tuning = measure(device)?.tuning(Direction::In);
    let bare = Bare::new(device, Direction::In, STRETCH, false)?;
    let place = Place::new(device, STRETCH)?;
    let mut table = Table::new(
        format!(
            "{}: microseconds to the GPU; {} copies",
            device.identity().name,
            TIMES * common.rounds
        ),
        &[
            "frame",
            "copy + wait p50",
            "p99",
            "copy + poll p50",
            "p99",
            "engine p50",
            "p99",
        ],
    );
    for bytes in sizes.iter().map(|bytes| (*bytes).min(STRETCH / 8)) {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let load = Load {
            direction: Direction::In,
            frame: bytes,
            rate: None,
        };
        for _ in 0..common.rounds {
            for _ in 0..TIMES {
                let start = Instant::now();
                bare.begin(0, bytes)?;
                bare.finish()?;
                times[0].push(start.elapsed().as_secs_f64() * 1e6);
            }
            for _ in 0..TIMES {
                let start = Instant::now();
                bare.begin(0, bytes)?;
                Bare::wait(&*bare.mark()?);
                times[1].push(start.elapsed().as_secs_f64() * 1e6);
            }
            let bell = Arc::new(Bell::default());
            let options = RingOptions::new("from", STRETCH / load.frame, load.frame);
            let (source, mut producer) =
                Ring::new(place.host.clone(), options.clone(), RingLedger::default())?;
            let (target, copied) = Ring::new(place.gpu.clone(), options, RingLedger::default())?;
            let reader = source.attach(true, 1, ReaderLedger::default())?;
            let stream = CopyStream::new(device, load.direction, tuning.depth)?;
            let mut stager = Stager::new(Box::new(stream), tuning, bell);
            stager.add(Lane::new(
                reader,
                copied,
                CopyLedger::default(),
                tuning.chunk,
            ));
            for frame in 0..TIMES as u64 {
                let start = Instant::now();
                let mut slots = producer.reserve(1);
                slots.finish(FrameMeta::whole(frame, bytes));
                slots.publish();
                while target.published() <= frame {
                    stager.step()?;
                }
                times[2].push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        let mut row = vec![size(bytes)];
        for times in &times {
            row.push(Cell::Number(median(times), 2));
            row.push(Cell::Number(quantile(times, 0.99), 2));
        }
        table.row(row);
    }
    Ok(vec![table])
}
