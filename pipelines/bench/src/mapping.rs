//! Measures how long each backend takes to allocate and free CPU-mapped GPU memory, by size.

use super::chart::Chart;
use super::comparison::Row;
use super::table::{Table, row, size};
use super::{BenchError, Common, Publish};
use daq_core::gpu::Backend;
use daq_core::gpu::bar_mapping::{BarMapping, Refusal};
use daq_core::gpu::driver::Device;
use std::collections::BTreeMap;
use std::time::Instant;

/// Measures the duration of each step in milliseconds.
pub(super) fn mapping(
    common: &Common,
    sizes: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let mut refused = BTreeMap::new();
    let compared = common.compare(sizes, &Backend::ALL, |&bytes, &backend| {
        let steps = measure(device, backend, bytes);
        Ok(steps
            .map_err(|refusal| {
                // Report only the smallest size that cannot be allocated.
                let smallest = refused.entry(refusal.to_string()).or_insert(bytes);
                *smallest = bytes.min(*smallest);
            })
            .ok())
    })?;
    let title = format!(
        "{}: milliseconds to allocate and free mapped memory; `all` includes zeroing",
        device.name()
    );
    let columns = "backend | bytes | allocate | pin | map | all | unmap + free";
    let measured = compared.rows().filter(Row::is_measured);
    let rows = measured.map(|it| row([it.method.name().into(), size(*it.scenario)], it.figures, 3));
    let chart = Chart::times("Time to allocate mapped memory", "ms")
        .over("bytes", "size of the memory")
        .by(&["backend"], "all")
        .own(&[""]);
    publish(Table::of(compared.title(&title), columns, rows).with(chart));
    if !refused.is_empty() {
        let rows = refused
            .into_iter()
            .map(|(why, bytes)| vec![why.into(), size(bytes)]);
        let columns = "reason | smallest size";
        publish(Table::of("allocations that failed", columns, rows));
    }
    Ok(())
}

/// Returns the milliseconds of each step.
fn measure(device: &'static Device, backend: Backend, bytes: usize) -> Result<[f64; 5], Refusal> {
    let start = Instant::now();
    let mapped = BarMapping::with(device, bytes, backend)?;
    let all = start.elapsed();
    let costs = mapped.costs();
    let start = Instant::now();
    drop(mapped);
    let steps = [costs.allocate, costs.pin, costs.map, all, start.elapsed()];
    Ok(steps.map(|time| time.as_secs_f64() * 1e3))
}
