//! Measures how long each backend takes to allocate and free CPU-mapped GPU memory, by size.

use super::table::{Cell, Table};
use super::{BenchError, Publish, median};
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::{BarMapping, Refusal};
use daq_core::gpu::driver::Device;
use daq_core::units::ByteSize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The steps whose duration is measured in milliseconds.
const STEPS: [&str; 5] = ["allocate", "pin", "map", "all", "unmap + free"];

/// Measures the duration of each step in milliseconds, and reports the medians of `rounds` rounds.
pub fn apiperf(
    device: u32,
    rounds: usize,
    sizes: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = Device::open(device)?;
    let title = format!(
        "{}: milliseconds to allocate and free mapped memory; `all` includes zeroing; medians of {rounds} rounds",
        device.name()
    );
    let mut columns = vec!["backend", "bytes"];
    columns.extend(STEPS);
    let mut table = Table::new(title, &columns);
    let mut refused = BTreeMap::new();
    let cases = || {
        let sizes = sizes.iter().copied();
        sizes.flat_map(|bytes| Backend::ALL.map(|backend| (backend, bytes)))
    };
    let mut figures = vec![[const { Vec::new() }; STEPS.len()]; cases().count()];
    for _ in 0..rounds {
        for ((backend, bytes), figures) in cases().zip(&mut figures) {
            match measure(device, backend, bytes) {
                Ok(times) => {
                    for (figures, time) in figures.iter_mut().zip(times) {
                        figures.push(time.as_secs_f64() * 1e3);
                    }
                }
                // Report only the smallest size that cannot be allocated.
                Err(refusal) => {
                    refused.entry(refusal.to_string()).or_insert(bytes);
                }
            }
        }
    }
    for ((backend, bytes), figures) in cases().zip(&figures) {
        if figures[0].is_empty() {
            continue;
        }
        let mut row = vec![backend.name().into(), size(bytes)];
        row.extend(
            figures
                .iter()
                .map(|figures| Cell::Number(median(figures), 3)),
        );
        table.row(row);
    }
    publish(table);
    if !refused.is_empty() {
        let mut table = Table::new("allocations that failed", &["reason", "smallest size"]);
        for (why, bytes) in refused {
            table.row(vec![why.into(), size(bytes)]);
        }
        publish(table);
    }
    Ok(())
}

fn size(bytes: usize) -> Cell {
    ByteSize(bytes as u64).to_string().into()
}

fn measure(
    device: &'static Device,
    backend: Backend,
    bytes: usize,
) -> Result<[Duration; STEPS.len()], Refusal> {
    let start = Instant::now();
    let mapped = BarMapping::with(device, bytes, backend)?;
    let all = start.elapsed();
    let costs = mapped.costs();
    let start = Instant::now();
    drop(mapped);
    Ok([costs.allocate, costs.pin, costs.map, all, start.elapsed()])
}
